"""Rows over the bound, told privately: one unit moves the bands no further than is charged."""

import json
import re
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import streamveil as sv
from streamveil.advise import bias_rows
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.mechanism import MOST_CUT, MOVED, REACH
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dataflow import stages
from streamveil.dataflow.cut_rows import (
    BANDS,
    CutBands,
    CutUnits,
    bands_in,
    bands_of,
    cut_in,
    cut_summary,
)
from streamveil.dataflow.outputs import Estimate, Output
from streamveil.dataflow.release_tables import (
    CutOdds,
    Thresholds,
    ends_with_cut,
    mean_above,
    with_cut,
)
from streamveil.dataflow.state import State
from streamveil.errors import PlanError
from streamveil.release_metadata import FACTS, OF_KEPT, cut_sentence, sentences

ROWS = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), max_size=60)  # unit, window


def query(bound=3, steps=4, measures=None, keys=None, **options):
    kinds = pa.schema([("u", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
    made = (
        sv.memory(kinds.empty_table()).protect(unit="u")
        .group_by("k", keys=keys or sv.public([1, 2]))
        .agg(**measures or {"n": sv.count()}).bound(max_rows=bound)
        .release(every=sv.rows(10**9), steps=steps, budget=Budget(epsilon=2, delta=1e-7), **options)
    )  # fmt: skip
    return compile_plan(made.plan)


def bands(batches):
    """Sums of all bands by window, folded batch by batch."""
    known, found = CutUnits(), {}
    for batch in batches:
        units = np.array([unit for unit, _ in batch], np.uint64)
        windows = np.array([window for _, window in batch], np.int64)
        if len(units):
            band, _ = bands_in(known, units)
            for window in np.unique(windows).tolist():
                more = cut_in(band[windows == window])
                found[window] = found.get(window, np.zeros(BANDS, np.int64)) + more
    return found


@given(ROWS, st.integers(0, 60), st.integers(1, 4))
def test_one_unit_moves_each_band_by_its_reach_at_most(rows, cut, unit):
    split = [rows[:cut], rows[cut:]]
    without = [[row for row in part if row[0] != unit] for part in split]
    one, other = bands(split), bands(without)
    none = np.zeros(BANDS, np.int64)
    moved = sum(np.abs(one.get(w, none) - other.get(w, none)) for w in {*one, *other})
    assert (np.broadcast_to(moved, BANDS) <= REACH).all()


@pytest.mark.parametrize("rows", [1, 5, 6, 1365, 5000])
def test_a_unit_with_very_many_rows_moves_all_bands_no_further(rows):
    [total] = bands([[(1, 0)] * rows]).values()
    assert (total <= REACH).all()
    assert Fraction(int((total**2).sum())) <= MOVED**2
    assert int((total / 4.0 ** np.arange(BANDS - 1, -1, -1)).sum()) == min(rows, MOST_CUT)


def test_a_unit_pays_the_slack_of_each_band_of_each_window_that_it_moves():
    found = bands([[(1, window) for window in range(2 * MOST_CUT)]])
    streams = sum(int(np.count_nonzero(total)) for total in found.values())
    cut = query(cut_share=0.1).aggregation.cut
    assert streams == MOST_CUT
    assert cut.loss == cut.counter.loss(MOVED, streams) != cut.counter.loss(MOVED, BANDS)


def test_batches_do_not_matter():
    rows = [(1 + i % 3, i % 2) for i in range(300)]
    whole, parts = bands([rows]), bands([rows[i : i + 7] for i in range(0, 300, 7)])
    assert {w: b.tolist() for w, b in whole.items()} == {w: b.tolist() for w, b in parts.items()}


def test_bands_take_rows_in_order():
    assert (np.diff(bands_of(np.arange(1, 2000))) >= 0).all()


def run(operator, tables, noise):
    state, releases = operator.init(), []
    for step, table in enumerate(tables, start=1):
        operator.fold(state, Batch(table, step, True, ""), noise)
        releases += operator.release(state, step, noise)
    return state, releases


def tables(rows=2_000, units=300, steps=4, seed=1):
    rng = np.random.default_rng(seed)
    u = rng.integers(0, units, (steps, rows))
    return [pa.table({"u": part, "k": np.ones(rows, np.int64)}) for part in u]


def facts(release):
    return json.loads(release.table.schema.metadata[FACTS])


def test_every_release_tells_how_many_rows_were_cut():
    operator = query(cut_share=0.5)
    state, releases = run(operator, tables(), SeededNoise(4))
    true = state.reject_counts["over the contribution bound"]
    last = facts(releases[-1])["cut"]
    assert abs(last["rows"] - true) < 6 * last["sd"]
    assert last["sd"] < true / 4
    assert operator.guarantee.epsilon(1e-7) <= 2
    assert operator.guarantee.epsilon(1e-7) > 1.9


def test_the_share_of_cut_rows_is_of_all_rows_or_is_not_told():
    few = {"few": sv.count_if("u < 30")}  # a tenth of the units, so of the rows
    for measures in (few | {"n": sv.count()}, few):
        operator = query(cut_share=0.5, measures=measures)
        state, releases = run(operator, tables(), SeededNoise(4))
        true = state.reject_counts["over the contribution bound"] / 8_000
        last = facts(releases[-1])["cut"]
        if "n" in measures:
            assert abs(last["share"] - true) < 0.05
        else:
            assert "rows" in last
            assert "share" not in last


def test_without_noise_it_is_the_number_of_cut_rows():
    operator = query(steps=5)  # the window is still there after four
    state, releases = run(operator, tables(), SilentNoise())
    [held] = state.windows.values()
    counted = held.cut.counted.whole.reshape(-1)[:BANDS] / 4.0 ** np.arange(BANDS - 1, -1, -1)
    assert counted.sum() == state.reject_counts["over the contribution bound"]
    assert facts(releases[-1])["cut"]["rows"] <= counted.sum()


def grown(steps=4):
    """Rows of a group that is shown at once, of one that is shown later, and of groups never."""
    rng = np.random.default_rng(8)
    for step in range(steps):
        u = np.repeat(rng.permutation(4_000), 5) + 4_000 * (step // 2)
        large = 1 if step < 2 else 2
        k = np.where(rng.random(len(u)) < 0.9, large, 1_000 + rng.integers(0, 10**9, len(u)))
        k[:40] = 2
        yield pa.table({"u": u, "k": k})


def test_rows_of_groups_that_are_not_shown_wait_until_they_are(monkeypatch):
    operator, noise = query(steps=5, keys=sv.discover(min_units=5), look_share=0), SeededNoise(3)
    lost, counted, bound, count = Counter(), [], stages.pass_units, CutBands.release

    def passed(*given):
        found = bound(*given)
        lost.update(batch["k"].to_numpy()[~found.accepted].tolist())
        return found

    def released(self, *given):
        counted.append(self.pending / 4.0 ** np.arange(BANDS - 1, -1, -1))
        return count(self, *given)

    monkeypatch.setattr(CutBands, "release", released)
    state, again, shown = operator.init(), operator.init(), []
    for step, batch in enumerate(grown(), start=1):
        with monkeypatch.context() as patch:
            patch.setattr(stages, "pass_units", passed)
            delta = operator.fold(state, Batch(batch, step, True, ""), noise)
        operator.apply(again, delta)
        [one], [other] = (operator.release(held, step, noise) for held in (state, again))
        assert facts(one) == facts(other)
        assert sum(counted[::2]).sum() == sum(lost[k] for k in one.table["k"].to_pylist())
        shown.append(len(one.table))
        spans, width = len(operator.aggregation.spans), operator.aggregation.width
        again = State.from_arrays(state.to_arrays(), spans, width)
    assert shown == [1, 1, 2, 2]
    assert lost.total() > sum(counted[::2]).sum() + 1_000
    assert re.match("about [0-9,]+ or more rows of the published groups", cut_sentence(facts(one)))


def test_a_share_of_zero_counts_nothing_and_costs_nothing():
    plain, counting = query(cut_share=0), query()
    assert plain.aggregation.cut is None
    assert plain.aggregation.counters[0].sigma < counting.aggregation.counters[0].sigma
    _, releases = run(plain, tables(), SeededNoise(1))
    assert "cut" not in facts(releases[0])


def test_the_charge_contains_the_bands():
    operator = query()
    parts = operator.aggregation.cut.loss.gaussian + operator.aggregation.counters[0].loss(
        3, 3).gaussian  # fmt: skip
    assert operator.loss.gaussian == parts


def test_a_saved_state_goes_on_like_an_unbroken_run():
    operator, noise = query(), SeededNoise(2)
    _, whole = run(operator, tables(), noise)
    state, found = operator.init(), []
    for step, table in enumerate(tables(), start=1):
        operator.fold(state, Batch(table, step, True, ""), noise)
        found += operator.release(state, step, noise)
        width = operator.aggregation.width
        state = State.from_arrays(state.to_arrays(), len(operator.aggregation.spans), width)
    assert [facts(r)["cut"] for r in found] == [facts(r)["cut"] for r in whole]


def test_a_replayed_delta_leaves_the_same_state():
    operator, noise = query(), SeededNoise(2)
    first, second = operator.init(), operator.init()
    for step, table in enumerate(tables(), start=1):
        delta = operator.fold(first, Batch(table, step, True, ""), noise)
        operator.apply(second, delta)
        one, other = operator.release(first, step, noise), operator.release(second, step, noise)
        assert facts(one[0])["cut"] == facts(other[0])["cut"]
    assert first.cut[0].rows.tolist() == second.cut[0].rows.tolist()


@pytest.mark.parametrize("filled", [
    [0] * 6, [1] * 6, [76, 61, 30, 4, 0, 0], [40, 40, 40, 40, 40, 0], [5000, 3000, 200, 1, 0, 0],
])  # fmt: skip
def test_the_bound_holds_whatever_the_noise_shows(filled):
    """It holds in 95 of 100 at least: fewer than 935 of 1,000 by chance once in 60."""
    sd, worth = 42.0, 4.0 ** np.arange(BANDS)
    rng, rows = np.random.default_rng(11), np.array(filled) * worth
    noisy = rows + rng.normal(scale=sd, size=(1_000, BANDS)) * worth
    found = cut_summary(noisy * worth[::-1], np.full(1_000, sd * worth[-1]))
    true = [rows[: bands_of(np.array([one["each"]]))[0] + 1].sum() for one in found]
    assert sum(one["high"] >= most for one, most in zip(found, true, strict=True)) >= 935


def test_a_number_that_noise_alone_might_make_is_told_as_its_bound():
    few, many = ({"rows": rows, "sd": 700.0, "high": 2500.0, "each": 21} for rows in (2000, 2200))
    said = [cut_sentence({"cut": cut, "outputs": [{"function": "count"}]}) for cut in (few, many)]
    assert said[0].startswith("0 to 2,500 rows are not counted: they were over the contribution")
    assert said[1].startswith("about 2,200 or more rows are not counted: they were over the")
    most = "with 95% confidence; only the first 21 such rows of each unit are in this number)"
    assert all(one.endswith(most) for one in said)
    none = {"rows": -60, "sd": 12.0, "high": 0.0, "share_high": 0.0, "each": 21}
    said_of_none = cut_sentence({"cut": none, "outputs": [{"function": "count"}]})
    assert said_of_none.startswith("no rows were over the contribution bound (with 95%")


def test_a_release_without_a_number_tells_of_no_rows_that_no_number_holds():
    cut = {"rows": 800, "sd": 700.0, "high": 2500.0, "each": 21}
    facts = {"version": 1, "hidden": {"threshold": 40.0, "sd": 3}, "cut": cut, "outputs": []}
    table = pa.table({"k": ["a"]}).replace_schema_metadata({FACTS: json.dumps(facts).encode()})
    assert sentences(table)[0].startswith("0 to 2,500 rows")
    (said,) = sentences(table.slice(1))
    assert said.startswith("no group is published")


def test_true_intervals_hold_the_true_counts_where_noise_alone_does_not():
    true = 2_000 * 4
    noise_only, wide = query(), query(intervals="true")
    for operator, holds in ((noise_only, False), (wide, True)):
        _, releases = run(operator, tables(), SeededNoise(5))
        row = next(r for r in releases[-1].table.to_pylist() if r["k"] == 1)
        assert (row["n_low"] <= true <= row["n_high"]) is holds


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)), min_size=1, max_size=40))
def test_groups_beyond_true_intervals_hold_less_than_a_third_of_the_rows(groups):
    kept, lost = np.array(groups, np.float64).T
    plain = Estimate(kept, np.zeros(len(kept)), kept, kept)
    output = Output(name="n", function="count", lanes=(0,))
    odds = CutOdds(lost.sum() / kept.sum(), 0.0)
    high = with_cut(plain, output, odds, 0.95).high
    assert kept[kept + lost > high * (1 + 1e-9)].sum() <= kept.sum() / 3


GRID = list(product((1, 3, 6, 20), (0.05, 0.2, 1), (0.001, 0.05, 0.4)))  # kept, odds, deviation


def missed(kept, odds, sd, part, confidence=0.95, threshold=None):
    """How often an interval misses what was kept and a part of all that it has room for.

    Integrated over the noise of the number, of deviation 1, and of the odds; given that the number
    is above a threshold, if there is one.
    """
    own, further = (norm.ppf((np.arange(n) + 0.5) / n) for n in (2_000, 10))
    if threshold is not None:
        own = -norm.ppf(norm.cdf(-own) * norm.cdf(kept - threshold))
    number, found = kept + np.repeat(own, 10), np.maximum(odds + sd * np.tile(further, 2_000), 0.0)
    one, z = np.ones(len(number)), norm.ppf((1 + confidence) / 2)
    lower = kept + own - z
    if threshold is not None:
        given = Thresholds(*np.repeat([[threshold], [-np.inf], [0.0]], len(own), axis=1))
        lower = mean_above(kept + own, given, np.ones(len(own)), (1 - confidence) / 2)
    ends = np.repeat(lower, 10), number + z
    low, high = ends_with_cut(*ends, one, CutOdds(found, one * sd), confidence)
    true = kept * (1 + 3 * odds * part)
    return ((low > true) | (high < true)).mean()


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_true_intervals_hold_whatever_part_of_their_room_was_cut(confidence):
    worst = max(missed(*case, part, confidence) for case in GRID for part in (0, 0.5, 1))
    assert 0.9 * (1 - confidence) < worst < 1.02 * (1 - confidence)


@pytest.mark.parametrize("above", [-2, 0, 2])  # the threshold what was kept is, or below
def test_true_intervals_of_groups_that_are_just_seen_hold_as_often(above):
    cases = [(*case, part) for case in GRID for part in (0, 1)]
    worst = max(missed(*case, threshold=case[0] - above) for case in cases)
    assert 0.01 < worst < 1.02 * 0.05


def test_a_release_says_what_its_true_intervals_do_not_hold():
    _, [release] = run(query(steps=1, intervals="true"), tables(steps=1), SilentNoise())
    assert "can lie outside" in cut_sentence(facts(release))
    _, [release] = run(query(steps=1), tables(steps=1), SilentNoise())
    assert "can lie outside" not in cut_sentence(facts(release))


@pytest.mark.parametrize("share", [0.01, 0])  # of the budget, for a private count of cut rows
def test_means_and_quantiles_are_said_to_be_of_kept_rows(share):
    measures = {
        "n": sv.count(),
        "a": sv.avg("v", bounds=(0, 5)),
        "q": sv.median("v", bounds=(0, 5)),
    }
    rows = [table.append_column("v", pa.array(np.ones(len(table)))) for table in tables(steps=1)]
    operator = query(steps=1, measures=measures, cut_share=share)
    _, [release] = run(operator, rows, SilentNoise())
    assert cut_sentence(facts(release)).endswith(f"; a, q: {OF_KEPT}")
    assert OF_KEPT not in cut_sentence(facts(release), ["n"])
    assert cut_sentence(facts(release), ["n", "q"]).endswith(f"; q: {OF_KEPT}")
    assert ("a, q", OF_KEPT) in bias_rows(operator)
    _, [counted] = run(query(steps=1, cut_share=share), rows, SilentNoise())
    assert OF_KEPT not in cut_sentence(facts(counted))


def test_a_release_does_not_depend_on_the_order_in_which_keys_came():
    measures = {"x": sv.sum("v", bounds=(0, 5), quantum=0.001)}
    operator = query(
        keys=sv.discover(min_units=2), measures=measures, intervals="true", look_share=0
    )
    rng = np.random.default_rng(3)
    k = rng.integers(0, 100, 20_000)
    rows = pa.table({"u": np.arange(len(k)), "k": k, "v": rng.uniform(0, 5, len(k))})
    found = set()
    for _ in range(8):
        state, noise = operator.init(), SeededNoise(6)
        early = rng.random(100)[k] < 0.5
        for part in (early, ~early):  # two micro-batches before one release
            operator.fold(state, Batch(rows.filter(pa.array(part)), 1, True, ""), noise)
        [release] = operator.release(state, 1, noise)
        assert release.table.num_rows > 50
        found.add((str(release.table.to_pydict()), str(release.table.schema.metadata)))
    assert len(found) == 1


@pytest.mark.parametrize(("measure", "options", "message"), [
    (sv.avg("k", bounds=(0, 5)), {"intervals": "true"}, "does not cover 'x'"),
    (sv.sum("k", bounds=(-1, 5)), {"intervals": "true"}, "does not cover 'x'"),
    (sv.count(), {"intervals": "true", "cut_share": 0}, "needs the private count"),
    (sv.count(), {"intervals": "wide"}, "intervals must be 'noise' or 'true'"),
    (sv.count(), {"cut_share": 1}, "cut_share must be"),
])  # fmt: skip
def test_intervals_that_cannot_be_given_are_refused(measure, options, message):
    kinds = pa.schema([("u", pa.int64()), ("k", pa.int64()), ("v", pa.float64())])
    grouped = (
        sv.memory(kinds.empty_table()).protect(unit="u").group_by("k", keys=sv.public([1, 2]))
        .agg(x=measure).bound(max_rows=3)
    )  # fmt: skip
    budget = Budget(epsilon=2, delta=1e-7)
    with pytest.raises(PlanError, match=message):
        compile_plan(grouped.release(every=sv.rows(9), steps=2, budget=budget, **options).plan)


def people(measures, bound, rows):
    """The last release over people with five rows in each of `rows` groups, without noise."""
    kinds = pa.schema([("u", pa.int64()), ("k", pa.int64())])
    made = (
        sv.memory(kinds.empty_table()).protect(unit="u")
        .group_by("k", keys=sv.public([1, 2, 3])).agg(**measures).bound(**bound)
        .release(every=sv.rows(10**9), steps=1, budget=Budget(epsilon=2, delta=1e-7),
                 intervals="true", cut_share=0.02)
    )  # fmt: skip
    u = np.repeat(np.arange(1, 501), 5 * rows)
    k = np.tile(np.repeat(np.arange(1, rows + 1), 5), 500)
    return run(compile_plan(made.plan), [pa.table({"u": u, "k": k})], SilentNoise())


def test_of_people_only_those_count_as_cut_whom_a_group_does_not_count():
    bound = {"max_rows": 2, "max_rows_per_group": 1}
    state, [all_in] = people({"n": sv.count_units()}, bound, rows=2)
    cut = facts(all_in)["cut"]
    assert state.reject_counts["over the contribution bound"] == 500 * 8
    assert cut["rows"] == 0
    assert "counts it already" in cut_sentence(facts(all_in))
    _, [some_out] = people({"n": sv.count_units()}, bound, rows=3)
    assert facts(some_out)["cut"]["rows"] == 500 * 5
    n, high = (some_out.table[name].to_numpy() for name in ("n", "n_high"))
    assert sorted(n.tolist()) == [0, 500, 500]
    assert high[n > 0].min() > 500 * 1.5
    _, [both] = people({"n": sv.count_units(), "rows": sv.count()}, bound, rows=2)
    cut = facts(both)["cut"]  # of a unit's eight rows the noise hides the sixth and those after it
    assert (cut["rows"], cut["each"]) == (500 * 5, 21)
    assert cut["high"] >= 500 * 8
    assert "counts it already" not in cut_sentence(facts(both))


def test_intervals_that_hold_cut_rows_pay_more_for_their_count():
    usual, wide = query(cut_share=None), query(cut_share=None, intervals="true")
    assert usual.aggregation.cut.counter.sigma > 2 * wide.aggregation.cut.counter.sigma
    asked = query(cut_share=0.02, intervals="true")
    assert asked.aggregation.cut.counter.sigma == usual.aggregation.cut.counter.sigma


def test_no_share_is_told_over_no_rows():
    _, [release] = run(query(steps=1), [tables()[0].slice(0, 0)], SilentNoise())
    assert not {"share", "share_high"} & {*facts(release)["cut"]}
    said = cut_sentence(facts(release))
    assert said.startswith("0 to ")
    assert "of their rows" not in said
