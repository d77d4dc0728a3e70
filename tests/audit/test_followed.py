"""Rows of one unit in a followed folder move what they add, and nothing else that is seen.

Without noise, what a job releases of all rows is what it releases without a unit's rows and what it
releases of these alone, together. Files come step by step, and micro-batches end elsewhere.
"""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.core.noise import SilentNoise
from streamveil.plan import joins
from streamveil.runtime import live_joins
from streamveil.runtime import run as runs
from streamveil.runtime.run import Pace, run
from streamveil.sql.sql import parse_script
from tests.planting import all_units_are_one, instead

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
HOUR, STEPS, MINE, MOST = 3_600, 4, 7, 5
STREAM = """CREATE STREAM {0} (user INT64, page INT64, ts TIMESTAMP)
WITH (source = 'files', path = '{1}/{0}', follow = TRUE, event_time = 'ts');"""
RELATIONS = {
    "alone": ("SELECT user, page, ts FROM a", ""),
    "unnested": ("SELECT user, MOD(CAST(part AS INT64), 4) AS page, ts FROM a,"
                 " UNNEST(SPLIT('1,2,3', ',')) AS part", ""),
    "union": ("SELECT user, page, ts FROM a UNION ALL SELECT user, page, ts FROM b", ""),
    "joined": ("SELECT a.user, b.page, a.ts FROM a JOIN b ON a.user = b.user", ", join_rows = 2"),
    "left": ("SELECT a.user, b.page, a.ts FROM a LEFT JOIN b ON a.user = b.user AND b.page < 2",
             ", join_rows = 2"),
}  # fmt: skip


class Arrivals:
    """Time as a job has it: while it waits, the files of the next step come."""

    def __init__(self, folder, keep):
        self.folder, self.keep, self.step = folder, keep, 0

    def time(self):
        return self.step * HOUR

    def time_ns(self):
        return self.time() * 10**9

    def sleep(self, _):
        for place, name in enumerate("ab"):
            rng = np.random.default_rng((self.step, place))
            user, page = rng.integers(0, 20, 90), rng.integers(0, 4, 90)
            user[rng.random(90) < 0.2] = MINE
            ts = self.step * HOUR + rng.integers(-HOUR, HOUR, 90)
            here = self.keep(user)
            table = pa.table({
                "user": user[here], "page": page[here],
                "ts": pa.array(ts[here] * 10**6, pa.timestamp("us", "UTC")),
            })  # fmt: skip
            pq.write_table(table, self.folder / name / f"{self.step}.parquet")
        self.step += 1


def released(folder, name, keep, most, patch):
    """The numbers of all releases, by window, trigger and page."""
    for one in "ab":
        (folder / one).mkdir(parents=True)
    patch.setattr(runs, "time", Arrivals(folder, keep))
    relation, more = RELATIONS[name]
    text = f"""{STREAM.format("a", folder)} {STREAM.format("b", folder)}
    CREATE VIEW w AS {relation};
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 100, delta = 1e-6, look_share = 0,
        privacy_unit_column = user, max_rows_contributed = {MOST}, public_groups = [0, 1, 2, 3],
        clock = 'wall', start = '1970-01-01', steps = {STEPS}, lateness = INTERVAL 1 HOUR{more})
      window_start, page, COUNT(*) AS n, COUNT(DISTINCT user) AS units
    FROM TUMBLE(TABLE w, DESCRIPTOR(ts), size => INTERVAL 2 HOUR)
    GROUP BY window_start, page EMIT EVERY INTERVAL 1 HOUR"""
    noise = {"noise": SilentNoise(), "insecure": True}
    plan = parse_script(text).query.plan
    job = run(plan, state=folder / "state", pace=Pace(max_rows=most), **noise)
    return {
        (one.window, one.trigger, row["page"]): np.array([row["n"], row["units"]])
        for one in job for row in one.table.to_pylist()
    }  # fmt: skip


def stands(folder, name, patch):
    everybody = released(folder / "all", name, lambda user: user >= 0, 17, patch)
    others = released(folder / "others", name, lambda user: user != MINE, 100, patch)
    mine = released(folder / "mine", name, lambda user: user == MINE, 3, patch)
    last = {(window, page): n for (window, _, page), (n, _) in mine.items()}  # by trigger
    assert 0 < sum(last.values()) <= MOST
    assert list(everybody) == list(others) == list(mine)
    return all((others[at] + mine[at] == numbers).all() for at, numbers in everybody.items())


@pytest.mark.parametrize("name", RELATIONS)
def test_rows_of_one_unit_move_what_they_add(name, tmp_path, monkeypatch):
    assert stands(tmp_path, name, monkeypatch)


@pytest.mark.parametrize("plant", [
    instead(joins, "numbered", all_units_are_one),
    instead(live_joins, "newest", lambda honest: lambda units, *more: honest(
        pa.array([0] * len(units)), *more)),
])  # fmt: skip
def test_rows_that_meet_those_of_others_are_seen(plant, tmp_path, monkeypatch):
    plant(monkeypatch)
    assert not stands(tmp_path, "joined", monkeypatch)
