"""Texts and rows nobody meant: answered, or refused in words; never an error of Python's own."""

import random

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.advise import explain
from streamveil.core.noise import SilentNoise
from streamveil.errors import StreamveilError
from streamveil.sql.sql import parse_script
from tests.sql.mutate import mutated
from tests.sql.test_sql import FULL
from tests.sql.test_words import script

WILD = ("9" * 400, "1e400", "-0.0", "\U0001f4a9", "\u202e", "ｓｅｌｅｃｔ", "NaN", "0x" + "f" * 40,
        "(" * 90 + "1" + ")" * 90, "CASE WHEN " * 20, "'\\u0000'", "``", "TIMESTAMP '9999-12-31'",
        "INTERVAL 99999999 WEEK", "-1", "0", "''", "NULL", ";;", "--", "é" * 300)  # fmt: skip
SEEDS = (
    FULL,
    script(),
    """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u,
       max_groups_contributed = 3, public_groups = ['a', 'b'])
       url, AVG(ms,
       contribution_bounds_per_group => (0, 60)) AS m, COUNT(DISTINCT u)
       FROM 'x.csv' GROUP BY url""",
)


def wild(rng):
    """A mutated query, with a wild word in place of one of its own now and then."""
    text = mutated(rng, rng.choice(SEEDS))
    if rng.random() < 0.5 and text:
        words = text.split(" ")
        words[rng.randrange(len(words))] = rng.choice(WILD)
        text = " ".join(words)
    return text


@pytest.mark.parametrize("count", [250, pytest.param(3_000, marks=pytest.mark.slow)])
def test_wild_texts_are_plans_or_refused_in_words(count):
    rng, accepted, said = random.Random(20261123), 0, []
    for _ in range(count):
        text = wild(rng)
        try:
            plans = parse_script(text).queries
            accepted += 1
        except StreamveilError as error:
            said.append(str(error))
            continue
        for one in plans if count > 1_000 and accepted % 10 == 0 else ():
            try:
                explain(one.plan)
            except StreamveilError as error:
                said.append(str(error))
    assert 0 < accepted < count
    assert max(map(len, said)) < 2_000


def wild_rows(n, rng):
    """Rows of every type with the values at which arithmetic breaks."""
    ends = np.array([0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
    floats = np.array([0.0, -0.0, 1e308, -1e308, 5e-324, np.inf, -np.inf, np.nan, 59.999999])
    texts = np.array(["", "a", "\0", "é" * 50, "\ud83d", "NULL", "'; --", "x" * 2_000, "\x1b[2J"])
    texts = np.array([one.encode("utf-8", "replace").decode() for one in texts])
    holes = rng.random((4, n)) < 0.05
    return pa.table({
        "ts": pa.array(rng.choice(np.append(ends, 1_767_225_600_000_000), n), pa.timestamp("us"),
                       mask=holes[0]),
        "u": pa.array(rng.choice(ends, n), pa.int64(), mask=holes[1]),
        "url": pa.array(rng.choice(texts, n), pa.string(), mask=holes[2]),
        "ms": pa.array(rng.choice(floats, n), pa.float64(), mask=holes[3]),
        "k": rng.choice(ends, n),
    })  # fmt: skip


@pytest.mark.filterwarnings("ignore:insecure noise")
@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_wild_rows_are_counted_or_left_out(count, tmp_path):
    rows = wild_rows(count, np.random.default_rng(20261123))
    made = (
        sv.memory(rows, event_time="ts").protect("MOD(u, 1000)", per="1 day")
        .where("ms * ms / (k + 1) >= 0 OR LENGTH(url) > 3 OR u IS NULL")
        .group_by("url", keys=sv.public(["a", "", "NULL"]))
        .agg(n=sv.count(), s=sv.sum("ms * k", bounds=(-60, 60)),
             m=sv.avg("CAST(url AS FLOAT64) + ms", bounds=(0, 9)), d=sv.count_distinct("k"))
        .bound(max_rows=50)
        .release(every="6 hours", start="2026-01-01", steps=4,
                 budget=sv.Budget(epsilon=4, delta=1e-6))
    )  # fmt: skip
    releases = list(made.run(str(tmp_path / "s"), noise=SilentNoise(), insecure=True))
    assert len(releases) == 4
    for release in releases:
        for name in ("n", "s", "m", "d"):
            assert np.isfinite(release.table[name].drop_null().to_numpy()).all()
    plain = pa.table({"url": rows["url"], "ts": rows["ts"].cast(pa.int64())}).to_pylist()
    known = [row["url"] for row in plain if row["ts"] == 1_767_225_600_000_000]
    counted = dict(zip(*(releases[-1].table[name].to_pylist() for name in ("url", "n")),
                       strict=True))  # fmt: skip
    assert all(0 < counted[key] <= known.count(key) for key in counted)
