"""Post-processing of releases: what it gives, what its intervals cover, what it may see."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil import cli
from streamveil.dataflow.outputs import Totals
from streamveil.dataflow.release_tables import Thresholds, since_published
from streamveil.errors import PlanError, StoreError
from streamveil.expressions.dialect import parse_text
from streamveil.plan import Post, PostColumn, PostShift, SortKey, SourceSpec
from streamveil.results import answer_sums, combine_intervals
from streamveil.results.post import CHOSEN, post_processed, processed, require_post
from streamveil.runtime.published import of_state
from streamveil.sql.post import read_step
from streamveil.sql.sql import parse_script
from tests.released import made
from tests.results.streams import KEYS, released, truth
from tests.sql.mutate import mutated
from tests.statistics import assert_rate, assert_rejects_rate

TABLE = pa.table({
    "u": [f"u{i}" for i in range(3_000)], "c": ["a", "b", "c"] * 1_000,
    "x": [i % 10 for i in range(3_000)],
})  # fmt: skip
PRIVATE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6, privacy_unit_column = u,"
    " max_rows_contributed = 1, name = 'job')"
)
MOMENT = (1, 6)
Z = 1.959963984540054  # deviations of an interval of 0.95


def run(text, state):
    """The last release of a query over the table."""
    *_, last = sv.sql(text, {"t": TABLE}).run(state=str(state))
    return last


def shown(text, tmp_path):
    return run(text, tmp_path / "state").table.to_pydict()


def test_having_order_and_limit_of_a_private_select(tmp_path):
    text = f"{PRIVATE} c, COUNT(*) AS n, COUNTIF(x > 5) AS big FROM t GROUP BY c"
    whole = run(text, tmp_path / "state").table.to_pylist()
    few = run(f"{text} HAVING n > 0 ORDER BY n DESC LIMIT 2 OFFSET 1", tmp_path / "state")
    ranked = sorted(whole, key=lambda row: -row["n"])
    assert few.table.to_pylist() == ranked[1:]
    assert CHOSEN in few.notes[-1]
    assert not run(f"{text} HAVING n_low > 1e9", tmp_path / "state").table.num_rows
    by_key = run(f"{text} ORDER BY c DESC", tmp_path / "state")
    assert by_key.table["c"].to_pylist() == ["c", "b", "a"]
    assert all(CHOSEN not in note for note in by_key.notes)


def test_aggregates_in_expressions_having_and_order(tmp_path):
    found = shown(
        f"{PRIVATE} UPPER(c) AS k, COUNTIF(x > 5) / COUNT(*) AS share FROM t GROUP BY c"
        " HAVING COUNT(*) > 10 AND SUM(x, contribution_bounds_per_row => (0, 9)) > 10"
        " ORDER BY 1 DESC", tmp_path,
    )  # fmt: skip
    assert list(found) == ["k", "share", "share_sd", "share_low", "share_high", "trigger"]
    assert found["k"] == ["C", "B", "A"]
    for low, high in zip(found["share_low"], found["share_high"], strict=True):
        assert low - 0.02 < 0.4 < high + 0.02  # 15 deviations: false alarms below 1e-9
        assert 0 < high - low < 0.01


@pytest.mark.parametrize(("computed", "named"), [
    ("COUNT(*) AS n", "grouping_set"), ("2 * COUNT(*) AS n", "grouping_set"),
    ("COUNT(*) AS n, LOGICAL_OR(x > 5) AS large", "grouping_set"),
    ("COUNT(*) / SUM(COUNT(*)) OVER () AS n", "grouping_set"),
    ("2 * COUNT(*) AS n, grouping_set AS which", "which"),
])  # fmt: skip
def test_computed_columns_leave_the_one_that_tells_totals_from_the_group_of_null(
    computed, named, tmp_path
):
    """It was gone, and two rows without a place were left."""
    text = f"{PRIVATE} NULLIF(c, 'a') AS place, {computed} FROM t GROUP BY ROLLUP (place)"
    rows = shown(text, tmp_path)
    told = zip(rows[named], rows["place"], strict=True)
    assert sorted(told, key=str) == [("()", None), ("(place)", "b"), ("(place)", "c"),
                                     ("(place)", None)]  # fmt: skip
    assert len([name for name in ("grouping_set", "which") if name in rows]) == 1


def test_a_select_over_a_private_answer(tmp_path):
    inner = f"{PRIVATE} c, COUNTIF(x > 5) AS a, COUNT(*) AS n FROM s GROUP BY c"
    whole = run(f"WITH s AS (SELECT u, c, x FROM t) {inner}", tmp_path / "state").table
    few = run(f"SELECT n FROM ({inner.replace('FROM s', 'FROM t')})", tmp_path / "state").table
    assert few.schema.field("n").metadata == whole.schema.field("n").metadata  # of its bias
    found = shown(
        f"WITH s AS (SELECT u, c, x FROM t), p AS ({inner}), q AS (SELECT *, a / n AS share FROM p)"
        " SELECT q.c AS city, share, CASE WHEN n > 0 THEN 'many' ELSE 'few' END AS word,"
        " n - a AS rest FROM q WHERE c <> 'b' ORDER BY city DESC",
        tmp_path,
    )
    assert found["city"] == ["c", "a"]
    assert found["word"] == ["many", "many"]
    n, a = whole["n"].to_numpy()[[2, 0]], whole["a"].to_numpy()[[2, 0]]
    assert found["rest"] == (n - a).tolist()
    assert np.allclose(found["share"], a / n)
    # one is half of all rows and as many more as the other is less
    assert np.allclose(found["rest_sd"], whole["a_sd"].to_numpy()[[2, 0]])
    assert "word_sd" not in found


def test_times_are_formed_from_the_window(tmp_path):
    times = pa.array([i * 86_400_000_000 for i in range(4)] * 100, pa.timestamp("us"))
    rows = pa.table({"u": range(400), "ts": times})
    query = sv.sql(
        f"{PRIVATE[:-1]}, start = '1970-01-01', end = '1970-01-05')"
        " DATE(window_start) AS day, EXTRACT(DAY FROM window_start) AS number, COUNT(*) AS n"
        " FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY window_start"
        " EMIT EVERY INTERVAL 1 DAY",
        {"t": sv.memory(rows, event_time="ts")},
    )
    releases = list(query.run(state=str(tmp_path / "s")))
    whole = sv.read(tmp_path / "s")
    kept = releases[-1].table.schema.metadata
    assert kept.keys() == whole.table.schema.metadata.keys()  # its place in time, for sinks
    found = [release.table.to_pylist()[0] for release in releases]
    assert [row["number"] for row in found] == [1, 2, 3, 4]
    assert [str(row["day"]) for row in found] == [f"1970-01-0{i}" for i in (1, 2, 3, 4)]


def test_it_is_no_part_of_the_query_and_may_change_at_no_cost(tmp_path):
    plain = f"{PRIVATE} c, COUNTIF(x > 5) AS a, COUNT(*) AS n FROM t GROUP BY c"
    others = [
        f"{plain} HAVING n > 10 ORDER BY a LIMIT 1",
        f"SELECT a / n AS share FROM ({plain}) ORDER BY share",
    ]
    plans = [sv.sql(text, {"t": TABLE}).plan for text in (plain, *others)]
    assert len({plan.fingerprint for plan in plans}) == 1
    assert len({plan.post for plan in plans}) == 3
    inside = [
        sv.sql(f"{PRIVATE} {text} FROM t", {"t": TABLE}).plan
        for text in ("COUNTIF(x > 5) / COUNT(*) AS share", "1 - COUNT(*) / COUNTIF(x > 5) AS r")
    ]
    assert inside[0].fingerprint == inside[1].fingerprint
    state = tmp_path / "state"
    first = run(plain, state).table
    ledger = (state / "ledger").read_bytes() if (state / "ledger").exists() else None
    share = run(others[1], state).table
    assert sorted(share["share"].to_pylist()) == share["share"].to_pylist()
    assert np.allclose(sorted(share["share"].to_pylist()),
                       sorted(first["a"].to_numpy() / first["n"].to_numpy()))  # fmt: skip
    if ledger is not None:
        assert (state / "ledger").read_bytes() == ledger
    assert run(plain, state).table == first  # the state keeps what was drawn
    few = sv.sql(others[0], {"t": TABLE}).read(str(state))
    assert few.table.num_rows == 1
    assert few.table.to_pylist() == run(others[0], state).table.to_pylist()
    assert few.trigger == 1
    releases = of_state(state)
    assert releases.table(releases.moments[-1]) == first


def test_a_state_keeps_private_answers_where_the_sink_has_what_was_made_of_them(tmp_path):
    text = (
        f"CREATE SINK out WITH (sink = 'files', path = '{tmp_path}/out');"
        f"INSERT INTO out {PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c ORDER BY c LIMIT 1"
    )
    state = tmp_path / "state"
    assert run(text, state).table.num_rows == 1
    assert run(text, state).table.num_rows == 1  # sent again after a restart: the same bytes
    assert sv.read(tmp_path / "out").table.num_rows == 1
    assert sv.read(state).table.num_rows == 3
    with pytest.raises(StoreError, match="changed post-processing"):
        run(text.replace("LIMIT 1", "LIMIT 2"), state)
    again = run(text.replace("LIMIT 1", "LIMIT 2").replace("/out'", "/other'"), state)
    assert again.table.num_rows == 2


def test_exact_totals_are_refused():
    """Planted: a post-processor that is given what nobody drew noise over."""
    steps = (Post(limit=1),)
    assert post_processed(made(TABLE), steps).table.num_rows == 1
    for exact in (TABLE, {"n": [1]}, np.arange(3)):
        release = made(TABLE)
        object.__setattr__(release, "noisy", exact)
        with pytest.raises(TypeError, match="may hold data"):
            post_processed(release, steps)


# ---- intervals

EXPRESSIONS = {  # over n, v (a sum) and w (the same sum), and what they are of exact totals
    "v / n": lambda n, v: v / n,
    "SAFE_DIVIDE(v, NULLIF(n, 0))": lambda n, v: v / n,
    "100 * (v - n / 4) / (v + n)": lambda n, v: 100 * (v - n / 4) / (v + n),
    "3 * n - 2 * v + 7": lambda n, v: 3 * n - 2 * v + 7,
    "v + w": lambda n, v: 2 * v,
}
BOXED = {  # by the union bound: at least
    "v / n + n / 1000": lambda n, v: v / n + n / 1000,
    "SQRT(v) * (n - v)": lambda n, v: np.sqrt(v) * (n - v),
    "GREATEST(n, 2 * v)": lambda n, v: np.maximum(n, 2 * v),
    "ABS(n - 80) / 2": lambda n, v: np.abs(n - 80) / 2,
    "IF(n > 80, n, v)": lambda n, v: np.where(n > 80, n, v),
    "ROUND(v, 1) / n": lambda n, v: np.floor(v * 10 + 0.5) / 10 / n,
}


def covered(expression, exact, design="public"):
    """How many intervals of an expression hold what it is of exact totals, of how many groups."""
    release = released(design)[-1]
    step = Post(columns=(PostColumn(name="k", expression="k"),
                         PostColumn(name="r", expression=expression)))  # fmt: skip
    table = post_processed(release, (step,)).table
    place = (release.window, release.trigger)
    n, v = (truth(name)[place] for name in ("n", "v"))
    true = exact(n, v)[table["k"].to_numpy()]
    low, high = (table[f"r_{end}"].to_numpy() for end in ("low", "high"))
    assert np.isfinite(low).mean() > 0.9
    return int(((low <= true) & (true <= high)).sum()), len(true)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_intervals_of_sums_and_ratios_cover_as_often_as_they_say(expression, monkeypatch):
    """False alarms: ALPHA of `tests.statistics` for each."""
    assert_rate(*covered(expression, EXPRESSIONS[expression]), 0.95)
    real = answer_sums.Answered.covariance
    monkeypatch.setattr(  # planted: half of the deviation
        answer_sums.Answered, "covariance",
        lambda self, a, b: tuple(end / 4 for end in real(self, a, b)),
    )  # fmt: skip
    assert_rejects_rate(*covered(expression, EXPRESSIONS[expression]), 0.95)


MOVED = {  # over rows in the order of k: an expression, and what it is of exact totals
    "n - LAG(n) OVER (ORDER BY k)": lambda n: n - back(n, 1),
    "LEAD(n, 2) OVER (ORDER BY k) - n": lambda n: back(n, -2) - n,
    "n / LAG(n) OVER (ORDER BY k) - 1": lambda n: n / back(n, 1) - 1,
    "AVG(n) OVER (ORDER BY k ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)":
        lambda n: (n + back(n, 1) + back(n, 2) + back(n, 3)) / 4,
    "n - AVG(n) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)":
        lambda n: n - (n + back(n, 1) + back(n, -1)) / 3,
    "LAG(n) OVER (ORDER BY k) + LEAD(n) OVER (ORDER BY k DESC)": lambda n: 2 * back(n, 1),
    "n - 2 * AVG(n) OVER (PARTITION BY MOD(k, 1) ORDER BY k DESC ROWS 1 PRECEDING)":
        lambda n: -back(n, -1),
    "SUM(n) OVER (PARTITION BY MOD(k, 2) ORDER BY k DESC ROWS 1 PRECEDING)":
        lambda n: n + back(n, -2),
    "n / SUM(n) OVER (PARTITION BY FLOOR(k / 8))": lambda n: n / eight(n),
    "AVG(n) OVER (PARTITION BY FLOOR(k / 8)) - n": lambda n: eight(n) / 8 - n,
    "SUM(n) OVER (PARTITION BY FLOOR(k / 8)) - n": lambda n: eight(n) - n,
}  # fmt: skip


@pytest.mark.parametrize("name", ["n_shift_1", "n_shift_1_row", "total_2", "total_2_sd", "place_3"])
def test_a_group_may_be_called_as_anything_that_is_computed_beside_it(name, tmp_path):
    """A group `n_shift_1` was shown as the number of another group."""
    told = {}
    for column in ("k", name):
        found = shown(
            f"SELECT {column}, n - LAG(n) OVER (ORDER BY {column}) AS d, n / SUM(n) OVER () AS s,"
            f" RANK() OVER (ORDER BY {column} DESC) AS place FROM ({PRIVATE} c AS {column},"
            " COUNT(*) AS n FROM t GROUP BY 1)", tmp_path / column,
        )  # fmt: skip
        told[column] = found.pop(column), found.keys()
    assert told[name] == told["k"]
    assert told[name][0] == ["a", "b", "c"]


@pytest.mark.parametrize("text", [
    f"{PRIVATE} c AS `streamveil row`, COUNT(*) AS n FROM t GROUP BY 1",
    f"{PRIVATE} c, COUNT(*) AS `Streamveil row` FROM t GROUP BY c",
    f"SELECT c, n + 1 AS `streamveil row` FROM ({PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c)",
    f"{PRIVATE} `streamveil place`, COUNT(*) AS n FROM (SELECT u, c AS `streamveil place` FROM t)"
    " GROUP BY 1",
])  # fmt: skip
def test_no_column_is_called_as_those_that_are_added(text, tmp_path):
    with pytest.raises(PlanError, match="names that begin with 'streamveil '"):
        run(text, tmp_path / "state")
    assert not (tmp_path / "state").exists()


def eight(values):
    return np.repeat(values.reshape(-1, 8).sum(axis=1), 8)


def back(values, rows):
    return np.roll(values, rows)


def covered_moved(expression, exact):
    """The same of numbers of other rows; of every eighth group, whose rows are its own."""
    release = released("public")[-1]
    plan = sv.sql(PRIVATE + " k, COUNT(*) AS n FROM t GROUP BY k", {"t": released_rows()}).plan
    step = read_step(f"k, {expression} AS r", "", plan)
    table = post_processed(release, step).table
    n = truth("n")[release.window, release.trigger]
    true = exact(n)[table["k"].to_numpy()]
    low, high = (table[f"r_{end}"].to_numpy(zero_copy_only=False) for end in ("low", "high"))
    place = table["k"].to_numpy()
    alone = (place % 8 == 4) & (place > 8) & (place < KEYS - 8)
    assert np.isfinite(low[alone]).all()
    return int(((low <= true) & (true <= high))[alone].sum()), int(alone.sum())


def released_rows():
    return pa.table({"u": ["a"], "k": [1]})


@pytest.mark.parametrize("expression", MOVED)
def test_intervals_of_moving_means_and_changes_cover_as_often_as_they_say(expression, monkeypatch):
    """False alarms: ALPHA of `tests.statistics` for each."""
    assert_rate(*covered_moved(expression, MOVED[expression]), 0.95)
    real = answer_sums.Answered.covariance
    monkeypatch.setattr(  # planted: half of the deviation
        answer_sums.Answered, "covariance",
        lambda self, a, b: tuple(end / 4 for end in real(self, a, b)),
    )  # fmt: skip
    assert_rejects_rate(*covered_moved(expression, MOVED[expression]), 0.95)


def test_numbers_whose_noise_may_go_together_get_the_widest_interval():
    rows = {"week": [1, 2], "n": [5, 9], "n_sd": [1.0, 1.0], "n_low": [3.0, 7.0],
            "n_high": [7.0, 11.0]}  # fmt: skip
    facts = {"version": 1, "rounds": True, "confidence": 0.95,
             "outputs": [{"name": "n", "function": "count", "lanes": [0]}]}  # fmt: skip
    made_of = [PostColumn(name="d", expression="n - before")]
    shift = PostShift(name="before", column="n", rows=1, order=(SortKey(expression="week"),))
    step = Post(columns=tuple(made_of), shifts=(shift,))
    for rounds, sd in ((True, 2.0), (False, 2**0.5)):
        metadata = {b"streamveil": json.dumps({**facts, "rounds": rounds}).encode()}
        table = pa.table(rows).replace_schema_metadata(metadata)
        assert processed(table, (step,))["d_sd"].to_pylist()[1] == pytest.approx(sd)


def post(text, rows, facts=None):
    """What a SELECT over a private answer (`p`) makes of a release of counts by c and d."""
    sql = f"WITH p AS ({PRIVATE} c, d, COUNT(*) AS n FROM t GROUP BY c, d) {text}"
    plan = sv.sql(sql, {"t": pa.table({"u": ["a"], "c": ["a"], "d": [1]})}).plan
    said = {"version": 1, "rounds": False, "confidence": 0.95, "keys": ["c", "d"],
            "outputs": [{"name": "n", "function": "count", "lanes": [0]}],
            **(facts or {})}  # fmt: skip
    table = pa.table(rows).replace_schema_metadata({b"streamveil": json.dumps(said).encode()})
    return processed(table, plan.post)


COUNTS = {"c": ["x", "x", "y"], "d": [1, 2, 1], "n": [50, 30, 20], "n_sd": [3.0, 4.0, 2.0],
          "n_low": [50 - Z * 3, 30 - Z * 4, 20 - Z * 2],
          "n_high": [50 + Z * 3, 30 + Z * 4, 20 + Z * 2], "trigger": [1, 1, 1]}  # fmt: skip


def test_totals_of_groups_and_of_all_stand_beside_the_answers():
    table = post(
        "SELECT c, SUM(n) AS n, COUNT(*) AS k FROM p GROUP BY c HAVING SUM(n) > 10 UNION ALL "
        "SELECT 'all', SUM(n), COUNT(*) FROM p ORDER BY n DESC", COUNTS
    )  # fmt: skip
    assert table["c"].to_pylist() == ["all", "x", "y"]
    assert table["n"].to_pylist() == [100, 80, 20]
    assert table["k"].to_pylist() == [3, 2, 1]
    assert table["n_sd"].to_pylist() == pytest.approx([29**0.5, 5, 2])
    assert table["n_high"].to_pylist() == pytest.approx([100 + Z * 29**0.5, 80 + Z * 5, 20 + Z * 2])
    together = post("SELECT SUM(n) AS n FROM p", COUNTS, {"rounds": True})
    assert together["n_sd"].to_pylist() == [9.0]  # deviations add up at worst


def test_what_is_made_of_columns_of_groups_groups_and_orders_rows_of_selects_around():
    inner = "SELECT UPPER(c) AS k, d, n FROM p"
    table = post(f"SELECT k, SUM(n) AS n FROM ({inner}) GROUP BY k ORDER BY 1", COUNTS)
    assert table["k"].to_pylist() == ["X", "Y"]
    assert table["n"].to_pylist() == [80, 20]
    assert table["n_sd"].to_pylist() == [5, 2]
    change = "n - LAG(n) OVER (PARTITION BY k ORDER BY d) AS change"
    table = post(f"SELECT d, {change} FROM ({inner}) WHERE k = 'X' ORDER BY d", COUNTS)
    assert table["change"].to_pylist() == [None, -20]
    both = f"({inner}) AS a JOIN (SELECT UPPER(c) AS k, d, n FROM p WHERE d = 1) AS b USING (k)"
    table = post(f"SELECT a.k, a.n - b.n AS more FROM {both} WHERE a.d = 2", COUNTS)
    assert (table["k"].to_pylist(), table["more"].to_pylist()) == (["X"], [-20])


INSIDE = "c, COUNT(*) AS n, COUNT(*) / SUM(COUNT(*)) OVER () AS share FROM t"
OUTSIDE = "SELECT c, n, n / SUM(n) OVER () AS share FROM (" + PRIVATE + " c, COUNT(*) AS n FROM t"


def test_over_in_a_private_select_is_that_of_a_select_around_it(tmp_path):
    """HAVING filters what OVER sees, QUALIFY what it gives; the private query is the same."""
    late = "QUALIFY RANK() OVER (ORDER BY n DESC) = 1"
    inside = f"{PRIVATE} {INSIDE} GROUP BY c HAVING n > 5 {late}"
    outside = f"{OUTSIDE} GROUP BY c HAVING n > 5) {late}"
    plans = [sv.sql(text, {"t": TABLE}).plan for text in (inside, outside)]
    assert plans[0].fingerprint == plans[1].fingerprint
    made = [run(text, tmp_path / "state").table for text in (inside, outside)]
    assert made[0] == made[1]
    assert made[0].num_rows == 1
    assert made[0]["share_low"].to_pylist()[0] > 0.3


def chosen_rows(rng, runs):
    """Runs of one release of ten groups, each shown where its noisy number is above 60."""
    true = np.tile([20.0, 35, 45, 50, 55, 60, 70, 80, 400, 900], runs)
    run, sd = np.repeat(np.arange(runs), 10), 9.0
    x = true + rng.normal(0, sd, len(true))
    shown = x > 60
    noise = Totals(x[None], np.full((1, len(x)), sd**2))
    low = since_published(noise, Thresholds(x * 0 + 60, x * 0, x * 0), x - Z * sd, 0.95)
    rows = {
        "c": run, "d": np.tile(np.arange(10), runs), "n": np.rint(x).astype(np.int64),
        "n_sd": x * 0 + sd, "n_low": low, "n_high": x + Z * sd,
        "opened": np.ones(len(x), np.int64), "trigger": np.ones(len(x), np.int64),
    }  # fmt: skip
    total = np.bincount(run[shown], true[shown])
    return {name: cells[shown] for name, cells in rows.items()}, true[shown], total[run[shown]]


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("SUM(n) OVER (PARTITION BY c)", lambda n, total: total),
        ("n / SUM(n) OVER (PARTITION BY c)", lambda n, total: n / total),
        ("2 * n - SUM(n) OVER (PARTITION BY c)", lambda n, total: 2 * n - total),
    ],
)
def test_totals_hold_of_groups_that_their_own_numbers_showed(text, exact, monkeypatch):
    """P(fewer than 3,760 of 4,000) < 1e-2 at 0.95; planted: as if nothing had been chosen."""
    rows, n, total = chosen_rows(np.random.default_rng(20260214), 4_000)

    def covered():
        found = post(f"SELECT c, d, {text} AS r FROM p", rows)
        low, high = (found[f"r_{end}"].to_numpy() for end in ("low", "high"))
        assert np.isfinite(low).all()
        assert np.isfinite(found["r_sd"].to_numpy()).all()
        one = rows["d"] == 9  # one row of each run, so that they are apart
        return int(((low <= exact(n, total)) & (exact(n, total) <= high))[one].sum()), one.sum()

    hits, runs = covered()
    assert hits / runs > 0.94
    monkeypatch.setattr(
        answer_sums.Answered, "centre", lambda self, name: self.column(name)
    )  # planted
    assert_rejects_rate(*covered(), 0.95)


def test_places_within_groups_choose_rows():
    table = post(
        "SELECT c, d, n, RANK() OVER (ORDER BY n) AS r FROM p "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY c ORDER BY n DESC) = 1", COUNTS
    )  # fmt: skip
    assert table.select(["c", "d", "n", "r"]).to_pylist() == [
        {"c": "x", "d": 1, "n": 50, "r": 3}, {"c": "y", "d": 1, "n": 20, "r": 1},
    ]  # fmt: skip
    assert "places follow noisy numbers" in table.schema.metadata[b"streamveil.note"].decode()


def test_totals_of_whole_numbers_reach_whole_steps():
    """At a deviation of 0.45 an interval of 0.87 to each side missed one total in seven."""
    rows = {**COUNTS, "n_sd": [0.45] * 3, "n_low": [49.0, 29.0, 19.0], "n_high": [51.0, 31.0, 21.0]}
    known = {"outputs": [{"name": "n", "function": "count", "lanes": [0], "step": 1.0}]}
    single = post("SELECT d, c, SUM(n) AS n FROM p GROUP BY d, c", rows, known)
    assert single["n_low"].to_pylist() == rows["n_low"]
    whole = post("SELECT SUM(n) AS n FROM p", rows, known)
    assert whole["n_high"].to_pylist() == [102.0]  # 1.53 deviations of three draws, in whole steps
    one = "(SELECT n FROM p WHERE c = 'y') AS q"
    thrice = post(f"SELECT SUM(m) AS n FROM (SELECT q.n AS m FROM p CROSS JOIN {one})", rows, known)
    assert thrice["n_low"].to_pylist() == [57.0]  # one draw three times


FOLLOW = "(SELECT c, d, n, {} AS w FROM p)"  # w follows from the noisy n and has no interval


@pytest.mark.parametrize("text", [
    "SELECT c, n FROM p QUALIFY RANK() OVER (PARTITION BY c ORDER BY n DESC) = 1",
    f"SELECT c, n FROM {FOLLOW.format('n > 25')} WHERE w",
    f"SELECT c, n FROM {FOLLOW.format('n_low')} WHERE w > 25",
    f"SELECT c, n FROM {FOLLOW.format('ROW_NUMBER() OVER (ORDER BY n)')} ORDER BY w LIMIT 1",
    f"SELECT c, n FROM (SELECT c, w, n FROM {FOLLOW.format('CAST(n AS STRING)')}) WHERE w > '25'",
    f"SELECT a.c, a.n FROM {FOLLOW.format('n > 25')} AS a JOIN p USING (c, d) WHERE w",
    "SELECT c, n FROM (SELECT c, n, n > 2 AS w FROM p UNION ALL SELECT c, n, TRUE FROM p) WHERE w",
])  # fmt: skip
def test_rows_chosen_by_what_follows_from_noisy_numbers_say_so(text):
    note = post(text, COUNTS).schema.metadata[b"streamveil.note"].decode()
    assert CHOSEN in note


@pytest.mark.parametrize("follows", ["RANK() OVER (ORDER BY n)", "CAST(n AS STRING)", "n_low"])
def test_what_follows_from_noisy_numbers_is_no_constant_and_no_group(follows):
    """An interval held n / CAST(w AS FLOAT64) as if w had no noise."""
    table = post(
        f"SELECT c, d, w, n / CAST(w AS FLOAT64) AS r FROM {FOLLOW.format(follows)}", COUNTS
    )
    assert table["r_low"].null_count == 3
    assert json.loads(table.schema.metadata[b"streamveil"])["keys"] == ["c", "d"]
    chosen = post(
        f"SELECT IF(CAST(w AS FLOAT64) > 2, n, 0) AS r FROM {FOLLOW.format(follows)}", COUNTS
    )
    assert chosen["r_low"].null_count == 0  # it holds both branches


def test_columns_of_united_rows_are_of_one_kind():
    with pytest.raises(PlanError, match="noisy numbers beside noisy numbers"):
        post("SELECT c, n FROM p UNION ALL SELECT n, c FROM p", COUNTS)


def test_sums_of_united_rows_take_the_worst_of_their_noise():
    """Rows of one release twice share their noise: what is added up after UNION ALL knows."""
    table = post(
        "SELECT SUM(n) AS n FROM (SELECT c, n FROM p UNION ALL SELECT c, n FROM p)", COUNTS
    )
    assert table["n"].to_pylist() == [200]
    assert table["n_sd"].to_pylist() == [18.0]
    assert table["n_low"].to_pylist() == [-np.inf]


@pytest.mark.parametrize("expression", BOXED)
def test_intervals_of_other_expressions_cover_at_least_as_often(expression):
    hits, groups = covered(expression, BOXED[expression])
    assert groups == KEYS
    assert hits / groups > 0.94  # P(fewer than 3,760 of 4,000) < 1e-2 at 0.95, far less above


@pytest.mark.parametrize(("expression", "reason"), [
    ("a * b", "known at the confidence of the query alone"),
    ("MOD(CAST(a AS INT64), 3)", "not carried through MOD"),
    ("a_low + 1", None),
    ("a + a_sd", "from the ends"),
])  # fmt: skip
def test_what_has_no_interval_says_why(expression, reason):
    parts = {f"{name}{end}": [1.0, 2.0] for name in "ab" for end in ("", "_sd", "_low", "_high")}
    columns = (PostColumn(name="r", expression=expression),)
    table = processed(pa.table(parts), (Post(columns=columns),))
    if reason is None:
        assert table.column_names == ["r"]
        return
    assert table["r_low"].null_count == table["r_high"].null_count == 2
    assert reason in table.schema.metadata[b"streamveil.note"].decode()


def test_a_mean_alone_keeps_its_interval():
    parts = {"m": [2.0, 4.0], "m_sd": [0.1, 0.2], "m_low": [1.0, 3.5], "m_high": [3.0, 4.1]}
    columns = (PostColumn(name="r", expression="10 - m / 2"),)
    table = processed(pa.table(parts), (Post(columns=columns),))
    assert table["r_low"].to_pylist() == [8.5, 7.95]
    assert table["r_high"].to_pylist() == [9.5, 8.25]
    assert table["r_sd"].to_pylist() == [0.05, 0.1]


def test_nulls_are_least_and_equal_rows_stay_in_order():
    table = pa.table({"k": ["a", "b", "c", "d"], "x": [2, None, 2, 1]})
    ask = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, privacy_unit_column = u) COUNT(*)"
    plan = sv.sql(f"{ask} AS n FROM t ORDER BY n DESC", {"t": TABLE}).plan
    order = plan.post[0].order[0]
    for descending, expected in ((False, "bdac"), (True, "acdb")):
        one = type(order)(expression="x", descending=descending, nulls_first=not descending)
        assert "".join(processed(table, (Post(order=(one,)),))["k"].to_pylist()) == expected


@pytest.mark.parametrize(("text", "message"), [
    ("SELECT c, MAX(n) FROM ({}) GROUP BY c", "added up by SUM, AVG and COUNT"),
    ("SELECT n, SUM(n) AS s FROM ({}) GROUP BY c", "neither in GROUP BY nor"),
    ("SELECT SUM(c) FROM ({})", "adds up no noisy number"),
    ("SELECT SUM(c) FROM (SELECT c, n FROM ({}))", "adds up no noisy number"),
    ("SELECT k, SUM(n) FROM (SELECT n + 1 AS k, n FROM ({})) GROUP BY k", "a noisy number"),
    ("WITH p AS ({}) SELECT c, COUNT(*) FROM (SELECT c FROM p UNION ALL SELECT n FROM p) GROUP BY c"
     , "a noisy number"),
    ("WITH p AS ({}) SELECT LAG(n) OVER (ORDER BY c) FROM (SELECT n AS c, n FROM p)", "by columns"),
    ("SELECT COUNT(*) FROM ({}) GROUP BY n", "GROUP BY a noisy number"),
    ("SELECT c FROM ({}) WHERE SUM(n) > 3", "added up by SUM"),
    ("WITH p AS ({}) SELECT c, n FROM p UNION ALL SELECT c FROM p", "different columns"),
    ("WITH p AS ({}) SELECT c FROM p UNION DISTINCT SELECT c FROM p", "UNION ALL"),
    ("SELECT RANK(n) OVER (ORDER BY n) FROM ({})", "write RANK"),
    ("SELECT nn FROM ({})", "unknown column 'nn' of the released rows; did you mean 'n'?"),
    ("SELECT NTILE(4) OVER (ORDER BY c) FROM ({})", "is not supported over released rows"),
    ("SELECT LAG(n) OVER (ORDER BY n) FROM ({})", "by columns of their groups"),
    ("SELECT LAG(n) OVER (PARTITION BY c) FROM ({})", "by columns of their groups"),
    ("SELECT SUM(n) OVER (PARTITION BY n) FROM ({})", "by columns of their groups"),
    ("SELECT LAG(n) OVER (ORDER BY trigger) FROM ({})", "OVER sees one release"),
    ("SELECT LAG(n + 1) OVER (ORDER BY c) FROM ({})", "takes a column of the released rows"),
    ("SELECT LAG(n, 1, 0) OVER (ORDER BY c) FROM ({})", "without a frame"),
    ("SELECT AVG(n) OVER (ORDER BY c) FROM ({})", "needs a frame"),
    ("SELECT AVG(n) OVER (ORDER BY c ROWS 9999 PRECEDING) FROM ({})", "at most 53 rows"),
    ("SELECT n FROM ({}) WHERE LAG(n) OVER (ORDER BY c) > 5", "in a SELECT, and filter"),
    ("SELECT n FROM ({}) ORDER BY 2", "between 1 and 1"),
    ("SELECT c, SUM(n) FROM ({}) GROUP BY 3", "GROUP BY position must be between 1 and 2"),
    ("SELECT SUM(n), c FROM ({}) GROUP BY 0", "GROUP BY position must be between 1 and 2"),
    ("SELECT c, SUM(n) FROM ({}) GROUP BY 'c'", "written out, such as 1"),
    ("SELECT n, c AS n FROM ({})", "two columns are called 'n'"),
    ("SELECT n FROM ({}) AS a JOIN t ON a.c = t.c", "is not a private answer"),
    ("SELECT n, b.c FROM ({}) AS a", "unknown column 'b.c' of the released rows"),
    ("WITH p AS ({}) SELECT u FROM t", "is not a private answer"),
])  # fmt: skip
def test_refusals_of_outer_selects(text, message):
    inner = f"{PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c"
    with pytest.raises(PlanError) as caught:
        sv.sql(text.format(inner), {"t": TABLE})
    assert message in str(caught.value)


def test_wrong_types_are_refused_before_anything_is_charged(tmp_path):
    text = f"{PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c HAVING c > 5"
    with pytest.raises(PlanError):
        sv.sql(text, {"t": TABLE}).run(state=str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_explain_says_what_is_done_and_that_it_is_free():
    text = f"{PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c HAVING n > 5 ORDER BY n DESC LIMIT 3"
    words = str(sv.sql(text, {"t": TABLE}).explain())
    assert "it costs nothing" in words
    assert "rows where n > 5; ordered by n DESC; the first 3 of each release" in words


def test_corrected_intervals_are_not_taken_for_those_of_noise_alone():
    """Groups that a Gaussian selection shows for the first time, near its threshold."""
    facts = {"function": "count", "lanes": [0]}
    wide = {
        "n": [100.0, 30.0], "n_sd": [1.0, 1.0], "n_low": [98.04, 20.0], "n_high": [101.96, 31.0],
        "m": [9.0, 9.0], "m_sd": [1.0, 1.0], "m_low": [7.04, 7.04], "m_high": [10.96, 10.96],
    }  # fmt: skip
    answers = {"n": facts, "m": {"function": "count", "lanes": [1]}}
    answered = answer_sums.Answered(pa.table(wide), answers)
    span = combine_intervals.interval_of(parse_text("n - m"), answered)
    half = 1.96 * np.sqrt(2)  # both numbers together; of the second, [0, 32.5] and [6.8, 11.2]
    np.testing.assert_allclose([span.low[0], span.high[0]], [91 - half, 91 + half], atol=1e-3)
    assert span.low[1] < -11
    assert 32.5 - 6.8 < span.high[1] < 26


def test_python_spells_the_same():
    ask = f"{PRIVATE} c, COUNTIF(x > 5) AS a, COUNT(*) AS n FROM t GROUP BY c"
    base = sv.sql(ask, {"t": TABLE})
    made = (
        base.having("n > 10").select("c", share="a / n").order_by("share DESC", "c").limit(2)
    ).plan  # fmt: skip
    text = (
        f"SELECT * FROM (SELECT * FROM (SELECT c, a / n AS share FROM (SELECT * FROM ({ask})"
        " WHERE n > 10)) ORDER BY share DESC, c) LIMIT 2"
    )
    assert made == sv.sql(text, {"t": TABLE}).plan
    assert made.fingerprint == base.plan.fingerprint
    with pytest.raises(PlanError, match="did you mean 'n'"):
        base.having("nn > 1")


VIEWS = f"""
CREATE VIEW adults AS SELECT u, c, x FROM t WHERE x > 0;
CREATE VIEW daily AS {PRIVATE.replace(", name = 'job'", "")} c, COUNTIF(x > 5) AS a, COUNT(*) AS n
  FROM adults GROUP BY c;
CREATE SINK shares WITH (sink = 'files', path = 'out', format = 'csv');
CREATE SINK top WITH (sink = 'files', path = 'out/top', format = 'csv');
INSERT INTO shares SELECT c, a / n AS share FROM daily;
INSERT INTO top WITH few AS (SELECT c, n FROM Daily ORDER BY n DESC LIMIT 1) SELECT * FROM few;
"""


def test_a_query_is_a_table_of_another(tmp_path):
    query = sv.sql(f"{PRIVATE} c, COUNT(*) AS n FROM t GROUP BY c", {"t": TABLE})
    text = "SELECT c, n / SUM(n) OVER () AS share FROM counts ORDER BY c"
    over = sv.sql(text, {"counts": query})
    assert over.plan.fingerprint == query.plan.fingerprint
    state = str(tmp_path / "s")
    assert over.answer(state).table["c"].to_pylist() == ["a", "b", "c"]
    assert sv.sql(text, counts=query, state=state).table == over.read(state).table
    with pytest.raises(PlanError, match="reads nothing but these"):
        sv.sql(text, {"counts": query, "t": TABLE})
    with pytest.raises(PlanError, match="'count' is not a private answer"):
        sv.sql("SELECT c FROM count", {"counts": query})


def test_views_name_private_and_public_queries():
    shares, top = parse_script(VIEWS, {"t": SourceSpec(name="t", kind="memory")}).queries
    assert (shares.name, top.name) == ("shares", "top")
    assert shares.plan.name == top.plan.name == "daily"
    assert shares.plan.fingerprint == top.plan.fingerprint  # one job: what follows is free
    assert shares.plan.where == "x > 0"
    assert [column.name for column in shares.plan.post[0].columns] == ["c", "share"]
    assert [post.limit for post in top.plan.post] == [1]


def test_a_script_of_views_runs_at_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(TABLE, "t.parquet")
    Path("script.sql").write_text(VIEWS)
    given = ["script.sql", "--table", "t=t.parquet", "--query"]
    for name in ("shares", "top"):
        done = CliRunner().invoke(cli.app, ["run", *given, name, "--state", "s", "--quiet"])
        assert done.exit_code == 0, done.output
    told = CliRunner().invoke(cli.app, ["explain", *given, "top"])
    assert "the first 1 of each release" in told.output
    read = ["read", "s", "--sql", *given]
    done = CliRunner().invoke(cli.app, [*read, "shares", "--out", "again.csv"])
    assert done.exit_code == 0, done.output
    assert (
        Path("again.csv").read_text() == next(Path("out/daily").rglob("trigger=*.csv")).read_text()
    )
    charges = json.loads(CliRunner().invoke(cli.app, ["ledger", "export", "s"]).stdout)["charges"]
    assert len(charges) == 1
    [first] = Path("out/daily").rglob("trigger=*.csv")
    [last] = Path("out/top").rglob("trigger=*.csv")
    assert first.read_text().startswith('"c","share","share_sd"')
    assert len(last.read_text().splitlines()) == 2


@pytest.mark.parametrize(("text", "message"), [
    ("CREATE VIEW a AS SELECT u FROM t; CREATE VIEW A AS SELECT u FROM t", "declared twice"),
    ("CREATE VIEW a AS COUNT(*)", "followed by a SELECT"),
    ("CREATE VIEW a AS SELECT u FROM t", "the query is empty"),
    ("CREATE VIEW a (SELECT u FROM t)", "expected AS"),
    ("CREATE VIEW a OPTIONS (x = 1) AS SELECT u FROM t", "CREATE VIEW a AS SELECT ..., and"),
])  # fmt: skip
def test_refusals_of_views(text, message):
    with pytest.raises(PlanError) as caught:
        parse_script(text)
    assert message in str(caught.value)


CLAUSE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u)"
)
SEEDS = (
    f"WITH s AS (SELECT u, c, x FROM t WHERE x > 0), p AS ({CLAUSE} c, COUNTIF(x > 5) AS a, "
    "COUNT(*) AS n, AVG(x, contribution_bounds_per_row => (0, 9)) AS m FROM s GROUP BY c) SELECT *"
    ", a / NULLIF(n, 0) AS share, CASE WHEN n > 5 THEN a ELSE -n END AS z, ROUND(m, 2) AS r, "
    "CAST(n AS STRING) || c AS w FROM p WHERE NOT n < 3 AND c LIKE 'a%' ORDER BY share DESC, 2, "
    "LOWER(c) NULLS LAST LIMIT 5 OFFSET 2",
    f"{CLAUSE} UPPER(c) AS k, COUNTIF(x > 5) / COUNT(*) AS share, SQRT(ABS(COUNT(*) - 5)) AS d,"
    " LOGICAL_OR(x > 2) AS b FROM t GROUP BY c HAVING COUNT(*) > 10 AND share < 2 ORDER BY 1 DESC",
    f"CREATE VIEW v AS SELECT u, c FROM t; CREATE VIEW w AS {CLAUSE} c, COUNT(*) AS n FROM v GROUP"
    " BY c; SELECT c, IF(n > 3, n, NULL) AS k, COALESCE(n / 3, 0) AS q FROM (SELECT * FROM w) y;",
    f"WITH p AS ({CLAUSE} c, x > 5 AS d, COUNT(*) AS n FROM t GROUP BY 1, 2) SELECT c, SUM(n) /"
    " COUNT(*) AS share FROM (SELECT c, n, LAG(n, 2) OVER (PARTITION BY d ORDER BY c) AS before"
    " FROM p UNION ALL SELECT UPPER(c), n, n - 1 FROM p) AS q GROUP BY 1 HAVING SUM(n) > 5 QUALIFY"
    " RANK() OVER (ORDER BY share DESC) < 4 ORDER BY 2 DESC, 1 LIMIT 3",
    f"SELECT a.c, AVG(a.n) OVER (ORDER BY a.c ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING) AS l, b.n"
    f" FROM ({CLAUSE} c, COUNT(*) AS n FROM t GROUP BY c) AS a LEFT JOIN ({CLAUSE} c, COUNT(*) AS n"
    " FROM t WHERE x > 1 GROUP BY c) AS b ON a.c = b.c WHERE a.n > 2 ORDER BY 1",
)


def test_broken_queries_are_refused_in_words():
    """Whatever is typed: PlanError alone, and what is accepted has columns of known types."""
    rng, accepted, told = random.Random(7), 0, [""]
    known = {"t": SourceSpec(name="t", kind="memory")}
    for text in [*SEEDS, *(mutated(rng, rng.choice(SEEDS)) for _ in range(600))]:
        try:
            for query in parse_script(text, known).queries:
                require_post(query.plan, TABLE.schema)
                accepted += 1
        except PlanError as error:
            told.append(str(error))
    assert max(map(len, told)) < 2_000
    assert 3 < accepted < 1_000


def test_answers_across_post_processed_releases(tmp_path):
    """Facts that are left say what columns are keys, and no more of the noise than is known."""
    ask = (
        PRIVATE[:-1].replace("'job'", "'j'")
        + ", steps = 6) {} FROM t GROUP BY c {} EMIT EVERY 500 ROWS"
    )

    def answers(columns, post=""):
        query = sv.sql(ask.format(f"{columns}, COUNT(*) AS n", post), {"t": TABLE})
        found = list(query.run(state=str(tmp_path / "state")))
        releases = [query.read(str(tmp_path / "state"), trigger=t) for t in range(1, 7)]
        return sv.answers(releases) if found else None

    whole, few = answers("c"), answers("c", "ORDER BY n DESC LIMIT 2")
    renamed, merged = answers("UPPER(c) AS k"), answers("LENGTH(c) AS k")
    assert renamed.releases.key_names == ["k"]
    sds = [one.difference("n", 6, 1).table["n_sd"][0].as_py() for one in (whole, renamed)]
    assert sds[0] < sds[1]  # as if noise of any two releases went together
    top = few.top("n", 1).table  # a group that is not shown may come first
    assert not any(top["certain"].to_pylist())
    with pytest.raises(PlanError, match="have the same key columns"):
        merged.difference("n", 6, 1)


PART = "COUNTIF(x > 0) / COUNT(*)"  # of rows that all have the property


@pytest.mark.parametrize(
    ("expression", "most"),
    [(PART, 1), (f"100 * {PART}", 100), (f"100 * ({PART})", 100), ("COUNT(x) / COUNT(*)", 1),
     ("COUNT(DISTINCT u) / COUNT(*)", 1)],
)  # fmt: skip
@pytest.mark.parametrize("intervals", ["noise", "true"])
def test_a_part_of_rows_lies_within_0_and_1(expression, most, intervals):
    found = parts_of_rows(expression, intervals, groups=("a", "b", "nobody"))
    assert min(low for low, _, _ in found) == 0
    assert max(high for _, _, high in found) == most
    assert all(low <= number <= high for low, number, high in found)
    numbers = [number for _, number, _ in found]
    assert len({*numbers} - {0, most}) > 3
    assert {*numbers} & {0, most}


@pytest.mark.parametrize(
    ("expression", "least", "most"),
    [(f"1 - {PART}", 0, 1), (f"ROUND(100 * {PART}, 1) - 50", -50, 50), (f"SQRT({PART})", 0, 1),
     (f"CAST(ROUND(100 * {PART}) AS INT64)", 0, 100), (f"{PART} - COUNT(x) / COUNT(*)", -1, 1)],
)  # fmt: skip
def test_what_is_made_of_shares_is_possible(expression, least, most):
    groups = ("a", *(f"nobody {n}" for n in range(9)))
    numbers = {number for _, number, _ in parts_of_rows(expression, "noise", groups)}
    assert least <= min(numbers) <= max(numbers) <= most
    assert numbers & {least, most}


@pytest.mark.parametrize(
    "expression",
    ["COUNT(*) / COUNTIF(x > 0)", "COUNTIF(x > 0) / COUNT(x)", "(COUNTIF(x > 0) + 1) / COUNT(*)",
     "-COUNTIF(x > 0) / COUNT(*)"],
)  # fmt: skip
def test_other_ratios_may_lie_anywhere(expression):
    found = parts_of_rows(expression, "noise")
    assert any(high > 1 for *_, high in found) or all(low < 0 for low, *_ in found)


def test_a_part_of_the_rows_of_another_group_may_be_more_than_all_of_its_own():
    """Numbers of different rows of a release: of a small group, and of a large one beside it."""
    ask = "COUNTIF(x > 0) / LAG(COUNT(*)) OVER (ORDER BY g)"
    assert max(high for *_, high in parts_of_rows(ask, "noise")) > 2


def parts_of_rows(expression, intervals, groups=("a", "b")):
    """Low ends, numbers and high ends of a few releases with other noise.

    Groups a and b have 400 and 2,000 rows, others none.
    """
    table = pa.table({
        "u": [u for u in range(400) for _ in range(6)],
        "x": [1] * 2_400, "g": (["a"] + ["b"] * 5) * 400,
    })  # fmt: skip
    ask = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
        f" privacy_unit_column = u, max_rows_contributed = 6, intervals = '{intervals}',"
        f" public_groups = {[*groups]}) g, {expression} AS share FROM t GROUP BY g"
    )
    rows = [row for _ in range(4) for row in sv.sql(ask, t=table).table.to_pylist()]
    shares = [row for row in rows if row["share"] is not None]  # 0 of 0 is nothing
    return [(row["share_low"], row["share"], row["share_high"]) for row in shares]
