"""What an observer of a job sees beside its numbers is the same for neighbours: generated jobs.

Files that exist, their names, exit codes, log lines, which releases there are, their columns, types
and public facts; over public groups also which rows. The neighbour has one unit more, whose rows
are as odd as rows can be. What differs (sizes and times of files, counts of rows on the terminal)
is the operator's, and listed in `docs/privacy.md`.

Where the neighbour releases the very noisy numbers of the other one, everything is the same bytes:
what stands beside numbers, such as the share of rows that were cut, follows from them alone.
"""

import json
import re
import sys
import threading
from copy import deepcopy
from http.client import HTTPConnection

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.cli import app
from streamveil.core import noisy
from streamveil.core.noise import SeededNoise
from streamveil.dashboard import server_of
from streamveil.dataflow import release, release_tables
from streamveil.runtime.watch import LOG, Watch

HOUR = 3_600_000_000
STEPS = 6
OTHERS = 60  # units in both inputs
ODD = 240  # rows of the unit that is in one of them

AGGREGATES = (
    "COUNT(*) AS n", "COUNT(DISTINCT user) AS people", "COUNTIF(ms > 3) AS slow",
    "SUM(ms, contribution_bounds_per_row => (0, 9)) AS total",
    "AVG(ms, contribution_bounds_per_row => (-1, 9)) AS mean",
    "APPROX_QUANTILES(ms, 2, contribution_bounds_per_row => (0, 9)) AS half",
)  # fmt: skip
WINDOWS = (
    "clicks", "TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 2 HOUR)",
    "HOP(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 2 HOUR, slide => INTERVAL 1 HOUR)",
    "CUMULATE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 3 HOUR, step => INTERVAL 1 HOUR)",
)  # fmt: skip
GROUPS = ("public_groups = ['a', 'b', 'c']", "min_privacy_units_per_group = 2",
          "selection = 'gaussian'")  # fmt: skip
KEYS = (
    "page", "SUBSTR(page, 2, 3) AS page", "SAFE_CAST(page AS INT64) AS page",
    "REGEXP_EXTRACT(page, '([a-c])') AS page", "SAFE_CAST(ms AS INT64) AS page",
    "EXTRACT(YEAR FROM ts) AS page", "FORMAT_TIMESTAMP('%Y-%m', ts) AS page",
    "TIMESTAMP_TRUNC(ts, MONTH, 'Europe/Berlin') AS page", "ms / (ms - 4.0) AS page",
    "TIMESTAMP_ADD(ts, INTERVAL 100000 DAY) AS page", "POW(ms, 400) AS page", "LN(ms) AS page",
    "DATE_DIFF(DATE(ts), DATE '2020-01-01', MONTH) AS page", "SAFE_CAST(page AS DATE) AS page",
)  # fmt: skip
SUBQUERIES = (
    "clicks", "(SELECT user, page, ms, ts FROM clicks WHERE ms / (ms - 4) > 0 OR page LIKE 'a%')",
    "(SELECT user, part AS page, ms, ts FROM clicks, UNNEST(SPLIT(page, 'a')) AS part)",
)  # fmt: skip
MORE = ("", "privacy_unit_period = INTERVAL 2 HOUR", "lateness = INTERVAL 1 HOUR",
        "max_rows_per_group = 2", "cut_share = 0.1", "non_negative = TRUE")  # fmt: skip
OWN = (
    "(SELECT user, page, COUNT(*) AS ms, MIN(ts) AS ts FROM clicks GROUP BY user, page)",
    "(SELECT user, MAX(page) AS page, SUM(ms) / COUNT(ms) AS ms, MAX(ts) AS ts FROM clicks"
    " GROUP BY user)",
    "(SELECT user, page, ms, LAG(ts) OVER (PARTITION BY user ORDER BY ms) AS ts FROM clicks)",
    "(SELECT user, page, UNIX_SECONDS(MAX(ts)) - UNIX_SECONDS(MIN(ts)) AS ms, MIN(ts) AS ts"
    " FROM clicks GROUP BY user, page)",
    "(SELECT c.user, c.page, d.ms, c.ts FROM clicks AS c JOIN clicks AS d USING (user))",
    "(SELECT c.user, c.page, d.ms, c.ts FROM clicks AS c LEFT JOIN clicks AS d"
    " ON c.user = d.user AND c.page = d.page)",
    "(SELECT user, page, ms, ts FROM clicks UNION ALL SELECT user, page, -ms, ts FROM clicks)",
    "(SELECT user, page, ms, ts FROM clicks WHERE user NOT IN (SELECT user FROM clicks"
    " WHERE page = 'a'))",
)  # fmt: skip
TOGETHER = (
    "SELECT page, a.n / b.m AS part FROM a JOIN b USING (page)",
    "SELECT page, a.n, b.m FROM a LEFT JOIN b USING (page)",
    "SELECT page, a.n / SUM(a.n) OVER () AS part, b.m FROM a JOIN b USING (page)",
)  # fmt: skip
JOBS = 16


def query(rng, path):
    """A job, and whether its groups are public."""
    window, groups = WINDOWS[rng.integers(4)], GROUPS[rng.integers(3)]
    chosen = rng.permutation(len(AGGREGATES))[: rng.integers(1, 4)]
    more = ", ".join(filter(None, [groups, MORE[rng.integers(len(MORE))]]))
    windowed = window != "clicks"
    text = f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
        INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 2, delta = 1e-6, privacy_unit_column = user, max_rows_contributed = 6,
            look_share = 0,
            start = TIMESTAMP '1970-01-01', end = TIMESTAMP '1970-01-01 0{STEPS}:00:00', {more})
            {"window_start, " * windowed}page, {", ".join(AGGREGATES[place] for place in chosen)}
        FROM {window} GROUP BY {"window_start, " * windowed}page EMIT EVERY INTERVAL 1 HOUR"""
    return text, groups.startswith("public")


def expressions(rng, path):
    """A job whose groups and values are computed, so that some rows have none."""
    key, rows_of = KEYS[rng.integers(len(KEYS))], SUBQUERIES[rng.integers(len(SUBQUERIES))]
    groups = ("page", "ROLLUP(page)")[rng.integers(2)]
    text = f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
        INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 2, delta = 1e-6, privacy_unit_column = user, max_rows_contributed = 6,
            look_share = 0, start = TIMESTAMP '1970-01-01',
            end = TIMESTAMP '1970-01-01 0{STEPS}:00:00')
            {key}, COUNT(*) AS n,
            SUM(ms * ms - LN(ms), contribution_bounds_per_row => (0, 9)) AS total
        FROM {rows_of} GROUP BY {groups} EMIT EVERY INTERVAL 1 HOUR"""
    return text, False


def own(rng, path):
    """A job over rows that are combined for each person, with the bounds of any job or none."""
    groups, bound = GROUPS[rng.integers(3)], ("max_rows_contributed = 6,", "")[rng.integers(2)]
    text = f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
        INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 2, delta = 1e-6, privacy_unit_column = user, {bound} look_share = 0,
            start = TIMESTAMP '1970-01-01', end = TIMESTAMP '1970-01-01 0{STEPS}:00:00', {groups})
            page, {AGGREGATES[rng.integers(len(AGGREGATES))]}
        FROM {OWN[rng.integers(len(OWN))]} GROUP BY page EMIT EVERY INTERVAL 1 HOUR"""
    return text, groups.startswith("public")


def joint(rng, path):
    """A statement of two private answers."""
    places = rng.integers(len(OWN), size=2), rng.permutation(5)[:2]  # no quantiles
    parts = [
        f"""{name} AS (SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 2, delta = 1e-6, privacy_unit_column = user, max_rows_contributed = 6,
            look_share = 0, start = TIMESTAMP '1970-01-01', public_groups = ['a', 'b', 'c'],
            end = TIMESTAMP '1970-01-01 0{STEPS}:00:00')
            page, {AGGREGATES[asked].rsplit(" AS ", 1)[0]} AS {called}
        FROM {OWN[rows_of]} GROUP BY page EMIT EVERY INTERVAL 1 HOUR)"""
        for name, called, rows_of, asked in zip("ab", "nm", *places, strict=True)
    ]
    text = f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
        INSERT INTO out WITH {", ".join(parts)} {TOGETHER[rng.integers(len(TOGETHER))]}"""
    return text, True


def sketch(rng, path):
    """A job over a sketch."""
    asked = ("HEAVY_HITTERS(page, k => 3, memory => 200000, text_length => 2) AS n",
             "APPROX_FREQUENCY(page, memory => 200000) AS n")[rng.integers(2)]  # fmt: skip
    public = ", public_groups = ['a', 'b']" * asked.startswith("APPROX")
    text = f"""
        CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
        INSERT INTO out SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 2, delta = 1e-6, privacy_unit_column = user, max_rows_contributed = 6,
            look_share = 0,
            start = TIMESTAMP '1970-01-01', end = TIMESTAMP '1970-01-01 0{STEPS}:00:00' {public})
            {asked} FROM clicks EMIT EVERY INTERVAL 1 HOUR"""
    return text, bool(public)


def rows(rng, *, odd):
    """Rows of all units, and of one more whose values and times are anything."""
    count = 400
    user = rng.integers(1, OTHERS, count).tolist()
    page = rng.choice(["a", "b", "c", "d"], count).tolist()
    ms = rng.normal(4, 2, count).tolist()
    ts = np.sort(rng.integers(0, STEPS * HOUR, count)).tolist()
    times = list(ts)
    if odd:
        places = np.sort(rng.integers(0, count, ODD))[::-1]
        for place in places:
            user.insert(place, 10**6)
            page.insert(place, rng.choice(["a", None, "", "a\nb", "[red]x", "'; --", "é" * 300]))
            ms.insert(place, rng.choice([None, np.nan, np.inf, -1e308, 4.0]))
            when = (None, -(10**15), 10**17, STEPS * HOUR, -1, times[place], 2**62, -(2**62))
            ts.insert(place, when[rng.integers(len(when))])
    return pa.table({
        "user": pa.array(user, pa.int64()), "page": pa.array(page, pa.string()),
        "ms": pa.array(ms, pa.float64()), "ts": pa.array(ts, pa.timestamp("us")),
    })  # fmt: skip


def told(table, *, public):
    """What a release tells beside its numbers."""
    facts = dict(table.schema.metadata or {})
    stated = json.loads(facts.pop(b"streamveil", b"{}"))
    for name in ("cut", "hidden"):  # numbers of the release, with noise
        stated.pop(name, None)
    facts.pop(b"streamveil.note", None)  # the same in words, of several answers
    fields = [(field.name, str(field.type), field.metadata) for field in table.schema]
    return fields, facts, stated, table.num_rows if public else None


def ran(made, folder, *, odd, seed):
    """What a job that ran in a folder printed, and whether its groups are public."""
    folder.mkdir()
    data, state, out = (folder / name for name in ("data.parquet", "job", "out"))
    text, public = made(np.random.default_rng(seed), data)
    pq.write_table(rows(np.random.default_rng(seed + 1), odd=odd), data)
    (folder / "job.sql").write_text(f"CREATE SINK out WITH (sink = 'files', path = '{out}', "
                                    f"format = 'parquet');\n{text}")  # fmt: skip
    asked = ["run", str(folder / "job.sql"), "--state", str(state), "--quiet", "--log", "json"]
    return CliRunner().invoke(app, asked), public


def seen(made, folder, *, odd, seed):
    """Everything that can be observed of a job but its numbers."""
    result, public = ran(made, folder, odd=odd, seed=seed)
    out = folder / "out"
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    for line in lines:
        assert re.fullmatch(r"[-\dT:+]+", line.pop("time"))
    names = sorted(
        re.sub(r"-\d{12}$", "", str(path.relative_to(folder)))  # checkpoints follow the time
        for path in folder.rglob("*")
        if not path.name.startswith("checkpoint-")
    )
    releases = [told(pq.read_table(path), public=public) for path in sorted(out.rglob("*.parquet"))]
    return result.exit_code, result.stdout, lines, names, releases


@pytest.mark.parametrize("seed", range(JOBS))
def test_all_but_the_numbers_of_a_job_is_the_same_for_neighbours(seed, tmp_path):
    made = (query, query, expressions, own, sketch, own, joint)[seed % 7]
    one, other = (
        seen(made, tmp_path / name, odd=odd, seed=seed)
        for name, odd in (("with", True), ("without", False))
    )
    assert one == other
    assert one[0] == 0, one
    assert len(one[4]) >= STEPS


def public_groups(rng, path):
    """A job whose groups are public: its draws are those of the neighbour, one by one."""
    text, public = query(rng, path)
    return (text, public) if public else public_groups(rng, path)


class Replayed:
    """Noisy numbers of one job, in the order in which they are drawn: kept, then given again."""

    def __init__(self, monkeypatch):
        self.kept, self.turn = [], None
        core = [one for name, one in sys.modules.items() if name.startswith("streamveil.core.")]
        for module in core:
            if module is not noisy and getattr(module, "drawn", None) is noisy.drawn:
                monkeypatch.setattr(module, "drawn", self.drawn)

    def drawn(self, value):
        if self.turn is None:
            self.kept.append(deepcopy(value))
            return noisy.restored(value)
        self.turn += 1
        assert np.shape(self.kept[self.turn - 1]) == np.shape(value)
        return noisy.restored(deepcopy(self.kept[self.turn - 1]))


def served(source):
    """What the served page answers."""
    found = {}
    with server_of(source) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in ("/", "/view.json", "/view.json?since=1", "/x"):
            connection = HTTPConnection("127.0.0.1", server.server_port)
            connection.request("GET", path)
            answer = connection.getresponse()
            headers = [one for one in answer.getheaders() if one[0] != "Date"]
            found[path] = answer.status, headers, answer.read()
        server.shutdown()
    return found


@pytest.mark.parametrize("seed", range(2, 5))
def test_what_stands_beside_noisy_numbers_follows_from_them_alone(seed, tmp_path, monkeypatch):
    replayed, found = Replayed(monkeypatch), []
    for odd in (False, True):
        folder = tmp_path / str(odd)
        result, _ = ran(public_groups, folder, odd=odd, seed=seed)
        assert result.exit_code == 0, result.exception
        replayed.turn = replayed.turn or 0
        monkeypatch.chdir(folder)
        asked = ["read out", "read out --list", "derive top out n -k 2", "dashboard out"]
        told = {words: CliRunner().invoke(app, words.split()).stdout for words in asked}
        del told["dashboard out"]  # where the page is
        files = (path for path in folder.glob("out/**/*") if path.is_file())
        told |= {str(path.relative_to(folder)): path.read_bytes() for path in files}
        found.append(told | {"page": (folder / "dashboard.html").read_bytes()} | served("out"))
    one, other = found
    assert one.keys() == other.keys()
    assert not [name for name in one if one[name] != other[name]]
    assert len(one) >= STEPS
    assert replayed.turn == len(replayed.kept)


@pytest.mark.parametrize(
    "chosen", ["'table'", "'gaussian'", "'totals'", "'auto', intervals = 'true'"]
)
@pytest.mark.parametrize("window", WINDOWS[:2])
def test_a_unit_alone_in_a_hidden_group_changes_no_byte(window, chosen, tmp_path):
    """Under the same noise: groups of others have draws of their own."""
    found, windowed = [], window != "clicks"
    text = f"""
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
            epsilon = 8, delta = 1e-6, privacy_unit_column = user, max_rows_contributed = 6,
            look_share = 0, start = TIMESTAMP '1970-01-01', selection = {chosen},
            end = TIMESTAMP '1970-01-01 0{STEPS}:00:00')
            {"window_start, " * windowed}page, COUNT(*) AS n, {AGGREGATES[3]}
        FROM {window} GROUP BY {"window_start, " * windowed}page EMIT EVERY INTERVAL 1 HOUR"""
    table = rows(np.random.default_rng(1), odd=False)
    ts = pa.array([0, 1, HOUR, 3 * HOUR], pa.timestamp("us"))
    own = pa.table({"user": [10**6] * 4, "page": ["own"] * 4, "ms": [9.0] * 4, "ts": ts})
    for name, some in (("without", [table]), ("with", [own, table])):
        query = sv.sql(text, {"clicks": sv.memory(pa.concat_tables(some), event_time="ts")})
        with pytest.warns(UserWarning, match="insecure"):
            job = query.run(tmp_path / name, noise=SeededNoise(7), insecure=True)
        found.append([(one.place, one.table, one.table.schema.metadata, one.notes) for one in job])
    assert found[0] == found[1]
    assert any("a" in shown["page"].to_pylist() for _, shown, *_ in found[0])


def test_a_share_of_exact_rows_is_seen(tmp_path, monkeypatch):
    """It stands beside numbers with noise, and was computed without."""
    honest, kept = release.take_lanes, [0]

    def take_lanes(pending, *rest):
        kept[0] += int(pending.sum())
        honest(pending, *rest)

    def with_share(lost, _):
        return lost | {"share_high": round(lost["high"] / (lost["high"] + kept[0]), 4)}

    monkeypatch.setattr(release, "take_lanes", take_lanes)
    monkeypatch.setattr(release_tables, "with_share", with_share)
    with pytest.raises(AssertionError, match="read out"):
        test_what_stands_beside_noisy_numbers_follows_from_them_alone(2, tmp_path, monkeypatch)


def test_a_difference_is_seen(tmp_path, monkeypatch):
    """A log line that counts rows."""
    honest = Watch.hear

    def hear(self, progress):
        honest(self, progress)
        LOG.info("%d rows", progress.rows)

    monkeypatch.setattr(Watch, "hear", hear)
    with pytest.raises(AssertionError, match="rows"):
        test_all_but_the_numbers_of_a_job_is_the_same_for_neighbours(0, tmp_path)
