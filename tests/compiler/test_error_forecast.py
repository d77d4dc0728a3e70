"""Settings from public expectations: the forecast agrees with the pipeline, choices with it."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from math import inf

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from benchmarks.clicks import drawn, repeated
from streamveil.batch import Batch
from streamveil.calibrate import gaussian_mu
from streamveil.compiler import sizing
from streamveil.compiler.design_choice import BATCHES, SHARES, SLOTS, Given, Problem, choose
from streamveil.compiler.error_forecast import ForecastNoise, Settings, admit, forecast
from streamveil.compiler.expected_stream import (
    ROWS_OF_UNITS,
    ExpectedStream,
    draw_stream,
    expected,
    group_law,
    row_law,
    tail_of,
    up_to,
)
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import as_settings, forecasts
from streamveil.compiler.table_design import NoTableError, design_selection
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow.outputs import Totals
from streamveil.errors import PlanError
from streamveil.plan.look import VALUES, look_share, told, with_look

BUDGET = sv.Budget(epsilon=6, delta=1e-9)
EXPECTED = {"expected_rows": 5.9, "expected_most_rows": 32, "expected_units": 30_000,
            "expected_groups": 3_000}  # fmt: skip
NOISE = ForecastNoise(mu=0.96, spread=2.1, half=18.6)


OPEN = Given()


def chosen(stream, noise=NOISE, kinds=("table",), given=OPEN, weighted=True):
    return choose(Problem(stream.family(), noise, given, kinds, weighted))


def query(bound=None, keys=None, value=None, steps=20, **options):
    return compile_plan(planned(bound, keys, value, steps, **options))


def planned(bound=None, keys=None, value=None, steps=20, **options):
    kinds = [("user", pa.int64()), ("key", pa.int64()), ("v", pa.int64())]
    asked = sv.count() if value is None else sv.sum("v", bounds=value)
    stream = sv.memory(pa.schema(kinds).empty_table()).protect(unit="user")
    grouped = stream.group_by("key", keys=keys).agg(n=asked)
    grouped = grouped if bound is None else grouped.bound(**bound)
    return grouped.release(every=sv.rows(10**9), steps=steps, budget=BUDGET, **options).plan


def test_the_law_of_rows_has_the_mean_and_the_tail():
    for mean, most in ((5.905, 32), (17.7, 26), (60, 79), (1.5, 3), (2_000, 9_000)):
        law = row_law(mean, *tail_of(mean, most))
        assert float((law * ROWS_OF_UNITS[: len(law)]).sum()) == pytest.approx(mean, rel=1e-3)
        assert float(law[: up_to(most)].sum()) == pytest.approx(0.99, abs=1e-3)
    assert tail_of(5.905, 32)[0] == pytest.approx(6.738, rel=0.1)  # where the two come from


def test_units_that_are_alike_have_no_tail():
    """Poisson rows: most of them have about the mean, which no power of n tells."""
    rows = np.random.default_rng(3).poisson(60, 20_000)
    mean, most = float(rows.mean()), float(np.quantile(rows, 0.99))
    law = row_law(mean, *tail_of(mean, most))
    n = ROWS_OF_UNITS[: len(law)]
    assert float((law * n**2).sum()) - mean**2 == pytest.approx(60, rel=0.2)


def test_a_sum_of_one_release_pays_for_no_count_of_units():
    """Its noise is that of public groups, but for the half of delta that shows groups."""
    bound = {"max_rows": 4, "max_rows_per_group": 1}
    plan = planned(bound, value=(0, 9), steps=1)
    [expression] = [one.expression for one in plan.aggregates]
    assert compile_plan(plan).aggregation.selected_by != "totals"  # nobody knows how large they are
    known = {"expected_rows": 4, "expected_units": 10**6, VALUES: {expression: 9.0}}
    summed = compile_plan(told(plan, known, []))
    public = compile_plan(planned(bound, keys=sv.public(["a"]), value=(0, 9), steps=1))
    assert summed.aggregation.selected_by == "totals"
    noise = [float(one.aggregation.counters[0].sigma) for one in (summed, public)]
    assert noise[1] < noise[0] < 1.06 * noise[1]
    falling = told(planned(bound, value=(-9, 9), steps=1), known, [])  # such totals may fall
    both = compile_plan(falling)
    assert both.aggregation.selected_by != "totals"


def test_a_unit_that_counts_once_in_a_group_is_sized_by_its_groups():
    """Not by its rows: 80 rows of a unit in 20 groups made noise for 6,400 squared rows."""
    stream = ExpectedStream(units=1e4, rows=80, groups=30, steep=1.2)
    every, once = draw_stream(stream), draw_stream(replace(stream, once=True))
    assert np.array_equal(once.first, np.arange(len(once.first)))
    assert (np.diff(np.r_[0, once.ends]) <= 30).all()
    assert (once.totals * once.counts).sum() <= 1e4 * 30 < (every.totals * every.counts).sum()
    table = pa.table({"user": np.arange(8_000) % 100, "page": np.arange(8_000) % 80 // 8})
    plan = (
        sv.memory(table).protect(unit="user").group_by("page").agg(n=sv.count_units())
        .release(budget=BUDGET)
    ).plan  # fmt: skip
    known = {"expected_rows": 80, "expected_units": 100, "expected_repeats": 0.875}
    made = compile_plan(told(plan, known, []))
    assert made.bounds.per_group == 1
    assert (made.bounds.quadratic or made.bounds.max_rows) <= 40  # of 10 groups, with weights


def test_more_known_tails_make_more_room():
    even = ExpectedStream(units=1e6, rows=3, groups=10**4, most=10)
    heavy = replace(even, most=40)
    assert chosen(even).quadratic <= chosen(heavy).quadratic


@pytest.mark.parametrize(("slots", "share"), [(1, 0.5), (2, 0.6), (3, 0.72), (4, 0.66)])
def test_the_opening_stands_for_designs(slots, share):
    budget = Budget(epsilon=6, delta=1e-9)
    noise = replace(NOISE, half=design_selection(50, budget, 2).half)
    true = design_selection(50, budget, slots, Fraction(share).limit_denominator(100)).half
    assert noise.coins(slots, share) == pytest.approx(true, rel=0.1)


def test_bounding_of_the_forecast():
    def kept(first, hidden, weight, limits):
        rows = np.array(first), np.array(hidden, bool), np.array(weight, float)
        limits = np.array([*limits, np.inf][:5])
        times = np.ones(len(first))
        return [
            a.tolist() for a in admit(np.array([len(first)]), rows[0], times, *rows[1:], limits)
        ]

    inf = np.inf
    # quadratic bound, slots, rows in a group, rows; a shown group of weight 1/2
    limits, shown = [2.0, 9.0, inf, inf], [False] * 9
    assert kept([0] * 4, shown[:4], [0.5] * 4, limits)[0] == [True, True, False, False]
    assert kept(range(9), shown, [0.5] * 9, limits)[0] == [True] * 8 + [False]
    assert kept(range(3), shown[:3], [1.0] * 3, limits)[0] == [True, True, False]
    # slots limit what the selection counts, not what is kept
    accepted, entered = kept([0, 0, 2], [True] * 3, [1.0] * 3, [9.0, 1.0, inf, inf])
    assert (accepted, entered) == ([True, True, True], [True, False, False])
    # bounds on rows
    assert kept([0, 0, 2, 3], [True] * 4, [1.0] * 4, [inf, 9.0, 1.0, 2.0])[0] == [
        True, False, True, False]  # fmt: skip
    # and on groups
    assert kept([0, 1, 0, 3, 1], [True] * 5, [1.0] * 5, [inf, 9.0, inf, inf, 2.0])[0] == [
        True, True, True, False, True]  # fmt: skip


def drawn_stream(stream, seed):
    """Users and keys from the law of a stream, in a random order."""
    rng = np.random.default_rng(seed)
    rows = drawn(rng, row_law(stream.rows, stream.heavy), int(stream.units)) + 1
    ranks = np.arange(1, stream.groups + 1) + stream.groups / 1000
    keys = repeated(rng, drawn(rng, ranks**-stream.steep, rows.sum()), rows, stream.repeats)
    order = rng.permutation(len(keys))
    return np.repeat(np.arange(len(rows)), rows)[order], keys[order]


def day(operator, who, which, groups):
    """Errors of all groups at the last release, and how many were shown."""
    edges = np.linspace(0, len(who), operator.schedule.steps + 1).astype(int)
    noise, state = SeededNoise(1), operator.init()
    for step, (a, b) in enumerate(pairwise(edges), start=1):
        table = pa.table({"user": who[a:b], "key": which[a:b], "v": which[a:b]})
        operator.fold(state, Batch(table, step, True, "{}"), noise)
        [release] = operator.release(state, step, noise)
    estimate = np.zeros(groups)
    estimate[release.table["key"].to_numpy()] = release.table["n"].to_numpy()
    return np.abs(estimate - np.bincount(which, minlength=groups)), release.table.num_rows


@pytest.mark.parametrize(("repeats", "near"), [(0.0, 0.15), (0.4, 0.15), (1.0, 0.2)])
def test_the_forecast_is_what_the_pipeline_does(repeats, near):
    stream = ExpectedStream(units=60_000, rows=5.9, groups=3_000, heavy=6.7, repeats=repeats)
    who, which = drawn_stream(stream, 5)
    operator = query({"max_squared_rows": 2}, mu_share=0.7, entry_weight=0.5, hidden_groups=2,
                     weight_reference=60, steps=100)  # fmt: skip
    error, shown = day(operator, who, which, stream.groups)
    [counter], rule = operator.aggregation.counters, operator.aggregation.rule
    mu = float(gaussian_mu(Budget(epsilon=6, delta=1e-9)))
    spread = float(counter.std(np.array([100]))[0]) * 0.7 * mu / np.sqrt(2)
    half = design_selection(100, Budget(epsilon=6, delta=1e-9), 2).half
    settings = Settings(kind="table", quadratic=2 * (rule.scale / rule.entry) ** 2, slots=2,
                        share=0.7, reference=60)  # fmt: skip
    found = forecast(stream, settings, ForecastNoise(mu=mu, spread=spread, half=half, triggers=100))
    assert found.l1 == pytest.approx(float(error.sum()), rel=0.15)
    assert found.l2 == pytest.approx(float(np.sqrt((error**2).sum())), rel=0.3)
    assert found.keys == pytest.approx(shown, rel=near)


def test_half_of_the_units_begin_with_their_rows_in_groups_of_one():
    made = draw_stream(ExpectedStream(units=3e4, rows=12, groups=500, single=0.5))
    single = made.place == len(made.totals) - 1
    sides = [part for part in np.split(single, made.ends[:-1]) if len(part) >= 6]
    first = [bool((np.diff(part.astype(int)) <= 0).all()) for part in sides]
    assert 0.4 < np.mean(first) < 0.6


def test_the_choice_is_no_worse_than_its_neighbourhood():
    stream = ExpectedStream(units=1e6, rows=4, groups=10**5)
    best = chosen(stream)

    def cost(settings):
        return sum(forecast(one, settings, NOISE).cost for one in stream.family())

    for other in (
        replace(best, quadratic=best.quadratic * 2), replace(best, quadratic=best.quadratic / 2),
        replace(best, share=best.share - 0.1), replace(best, reference=best.reference * 4),
    ):  # fmt: skip
        assert cost(best) <= cost(other) + 1e-2


def test_a_choice_thinks_of_rows_in_batches_and_loses_little_where_they_come_evenly():
    stream = ExpectedStream(units=3e4, rows=6, groups=40, most=32)

    def coming(batches):
        return tuple(replace(one, batches=batches) for one in stream.family())

    def l1(settings, batches):
        return np.exp(np.mean([np.log(forecast(o, settings, NOISE).l1) for o in coming(batches)]))

    even, safe = (
        choose(Problem(coming(batches), NOISE, OPEN, ("table",), True))
        for batches in (inf, BATCHES)
    )
    assert l1(even, 10) > 1.2 * l1(even, inf)  # rows before a release have entry weight
    assert l1(safe, 10) < 0.9 * l1(even, 10)
    assert l1(safe, inf) < 1.15 * l1(even, inf)


def test_every_choice_thinks_so_and_knows_the_entry_weight_that_it_gets(monkeypatch):
    asked = []
    monkeypatch.setattr(sizing, "choose", lambda problem: asked.append(problem) or choose(problem))
    operator = query(steps=1_000, **EXPECTED)
    assert {one.batches for problem in asked for one in problem.family} == {BATCHES}
    taken = choose(asked[-1])
    assert as_settings(operator).quadratic == pytest.approx(taken.quadratic, rel=1e-9)


def test_few_large_groups_ask_for_looser_bounds_than_many_small_ones():
    once = replace(NOISE, spread=1.0, triggers=1)
    few, many = (
        chosen(
            ExpectedStream(units=1e5, rows=6, groups=groups, most=32), once, ("table", "gaussian")
        )
        for groups in (40, 10_000)
    )
    assert few.moved > 8 * many.moved


def test_a_query_without_a_bound_gets_one():
    operator = query(**EXPECTED)
    known = {default.name: default for default in operator.defaults}
    assert operator.bounds.quadratic == known["max_squared_rows"].value
    assert "forecast" in known["max_squared_rows"].reason
    assert operator.guarantee.epsilon(1e-9) <= 6
    flat = query(weights="flat", **EXPECTED)
    assert flat.aggregation.rule is None
    assert flat.guarantee.epsilon(1e-9) <= 6
    counter = query(selection="gaussian", **EXPECTED)
    assert isinstance(counter.aggregation.selection, GaussianSelection)


def test_a_table_for_fewer_groups_is_tried_where_none_fits_so_many(monkeypatch):
    """Without it the choice fell to a Gaussian counter, however much worse."""
    tried = []

    def fits_one(horizon, budget, slots, *others):
        tried.append(slots)
        if slots > 1:
            raise NoTableError("none fits")
        return design_selection(horizon, budget, slots, *others)

    monkeypatch.setattr("streamveil.compiler.sizing.design_selection", fits_one)
    operator = query(**EXPECTED)
    assert tried[0] > 1
    assert tried[-1] == operator.bounds.slots == 1
    assert isinstance(operator.aggregation.selection, CoinSelection)
    assert tried == sorted(tried, reverse=True)
    counter = query(hidden_groups=3, **EXPECTED)  # as the query wants it: three or no table
    assert isinstance(counter.aggregation.selection, GaussianSelection)


def test_a_query_without_bounds_or_expectations_is_sized_for_usual_streams():
    operator = query()
    assert operator.guarantee.epsilon(1e-9) <= 6
    assert operator.guarantee.epsilon(1e-9) > 5.9


MEANS = {"avg": sv.avg("v", bounds=(0, 9)), "median": sv.median("v", bounds=(0, 9))}


@pytest.mark.parametrize("name", MEANS)
def test_means_and_quantiles_alone_are_sized_by_a_look_and_not_for_all_rows(name):
    """Rows of units with 1.5 of them: bounds on squared rows were 900 to 2,048, look or not."""
    rows = pa.table({"user": [1, 2], "key": [1, 1], "v": [3, 4]})
    grouped = sv.memory(rows).protect(unit="user").group_by("key").agg(a=MEANS[name])
    plan = with_look(grouped.release(every=sv.rows(10), steps=1, budget=BUDGET).plan)
    assert look_share(plan) > 0
    known = {"expected_rows": 1.5, "expected_most_rows": 4, "expected_units": 30_000}
    assert as_settings(compile_plan(told(plan, known, []))).moved < 20
    assert as_settings(compile_plan(told(plan, {}, []))).moved < 400


def test_a_mean_errs_by_its_noise_over_kept_rows_and_little_by_what_is_cut():
    stream = ExpectedStream(units=1e5, rows=30, groups=30, steep=0.0)
    few, all_ = (Settings(kind="public", max_rows=rows) for rows in (5, 1_000))
    means = replace(stream, ratio=True)
    assert forecast(stream, few, NOISE).l1 > 5 * forecast(stream, all_, NOISE).l1
    kept = 1 - forecast(means, few, NOISE).cut
    assert forecast(means, few, NOISE).l1 == pytest.approx(0.3 * (1 - kept) * 30, rel=0.1)
    tiny = replace(means, units=100)
    noisy = [forecast(tiny, settings, NOISE) for settings in (few, all_)]
    assert noisy[0].l1 < noisy[1].l1 <= 30


def test_options_that_are_given_win_over_the_forecast():
    operator = query({"max_squared_rows": 4}, mu_share=0.5, entry_weight=0.25, hidden_groups=3,
                     weight_reference=40, **EXPECTED)  # fmt: skip
    rule = operator.aggregation.rule
    assert operator.bounds.quadratic == 4
    assert operator.bounds.slots == 3
    assert rule.entry / rule.scale == pytest.approx(0.25, abs=0.01)
    assert rule.reference == 40


def test_explain_forecasts_all_groups_where_sizes_are_expected():
    from streamveil.advise import explain

    made = planned(**EXPECTED, expected_repeats=0.1)
    text = str(explain(made, forecast=True))
    lines = [line.split("  ") for line in text.splitlines() if "repeats, tail" in line]
    operator, stream = compile_plan(made), expected(made.options, 1)
    assert len(lines) == len(stream.family()) > 0
    shown = [float([cell for cell in line if cell][1].replace(",", "")) for line in lines]
    settings = as_settings(operator)
    noise = ForecastNoise(mu=0.96, spread=1.7, half=18.6, triggers=20, delta=5e-10)
    for keys, one in zip(shown, stream.family(), strict=True):
        share = replace(settings, share=0.7 if settings.kind == "table" else 0.5)
        assert keys == pytest.approx(forecast(one, share, noise).keys, rel=0.5)
    assert "as expected" not in str(explain(planned({"max_rows": 4}), forecast=True))
    public = str(explain(planned(keys=sv.public([1, 2]), **EXPECTED), forecast=True))
    assert "streams of 30,000 units with 5.9 rows each on average, as expected" in public


@pytest.mark.parametrize(("change", "message"), [
    ({"expected_rows": 0}, "between 1 and"), ({"expected_most_rows": 2}, "at least"),
    ({"expected_repeats": 1.0}, "at least 0 and below 1"),
    ({"expected_units": 1e13}, "between 1 and"),
])  # fmt: skip
def test_expectations_that_make_no_sense_are_refused(change, message):
    with pytest.raises(PlanError, match=message):
        query(**EXPECTED | change)


def test_public_keys_get_weights_and_less_noise_for_their_rows():
    keys = sv.public([1, 2, 3])
    weighted = query(keys=keys, **EXPECTED)
    flat = query(keys=keys, weights="flat", **EXPECTED)
    assert weighted.aggregation.selection is None
    assert weighted.aggregation.rule.caution > 0
    assert flat.aggregation.rule is None
    both = query({"max_squared_rows": 40, "max_rows": 30}, keys=keys, **EXPECTED)
    assert both.aggregation.rule is not None, "bounds that are given leave room for weights"
    assert weighted.guarantee.epsilon(1e-9) <= 6
    assert weighted.guarantee.epsilon(1e-9) > 5.9


def test_weights_of_public_keys_pay():
    stream = ExpectedStream(units=40_000, rows=5.9, groups=4_000, heavy=6.7, repeats=0.2)
    who, which = drawn_stream(stream, 9)
    keys, said = sv.public(list(range(4_000))), EXPECTED | {"expected_groups": 4_000}
    weighted, flat = (
        day(query(keys=keys, **said, **more), who, which, 4_000)[0].sum()
        for more in ({}, {"weights": "flat"})
    )
    assert weighted < 0.8 * flat


def test_a_sum_alone_carries_weights_by_its_own_size():
    operator = query(value=(-4, 2), **EXPECTED)
    totals = np.array([[-400.0, 40.0, 4.0]])
    sized = operator.aggregation.size_of_keys.of(Totals(totals, np.ones_like(totals)))
    assert sized.tolist() == [100.0, 10.0, 1.0]  # in rows of the largest value
    assert operator.aggregation.rule is not None
    assert operator.guarantee.epsilon(1e-9) <= 6


def test_a_known_share_of_repeats_has_a_law_in_which_all_of_them_are_in_large_groups():
    """Without it, repeats that are in large groups were taken for repeats in all alike."""
    from streamveil.compiler.expected_stream import repeated_by_chance

    stream = ExpectedStream(units=30_000, rows=6.0, groups=3_600, most=44.0, again=0.05)
    steep = max(stream.family(), key=lambda one: one.steep)
    assert 0 < steep.steep < 1.6
    assert repeated_by_chance(steep) == pytest.approx(0.05, rel=0.1)
    assert steep.repeats < 0.01
    quiet = replace(stream, again=0.002).family()
    assert {one.steep for one in quiet} == {0.0}


@pytest.mark.parametrize("again", [0.5, 0.8])
def test_rows_repeat_as_often_as_known(again):
    """First rows, which never repeat a group, were thought to: the law repeated too little."""
    stream = ExpectedStream(units=30_000, rows=6.0, groups=3_600, most=44.0, again=again)
    for one in stream.family():
        drawn = draw_stream(one)
        repeats = drawn.first < np.arange(len(drawn.first))
        share = drawn.weight[repeats].sum() / drawn.weight.sum()
        assert share == pytest.approx(again, abs=0.03)


def test_what_a_look_said_of_rows_and_groups_stands_in_for_guesses():
    """Rows that are all alike were taken for a tail: bounds eight times too loose."""
    known = {"expected_rows": 12.0, "expected_most_rows": 22.0, "expected_units": 18_000,
             "laws": [[31.0, 1.4, 0.0], [40.0, 0.4, 0.2]],
             "histogram": [[8, 11, 0.5], [12, 15, 0.5]]}  # fmt: skip
    stream = expected(known, 1)
    assert [(one.groups, one.steep) for one in stream.family()[::2]] == [
        (31, 1.4),
        (40, 0.4),
    ]
    totals, counts = group_law(stream.family()[2])
    assert (totals[-1], counts[-1]) == (1, 43_200)
    assert totals @ counts == pytest.approx(12 * 18_000)
    lengths = np.diff(np.r_[0, draw_stream(stream).ends])
    assert (lengths.min(), lengths.max()) == (8, 15)
    loose = replace(stream, histogram=())
    assert np.diff(draw_stream(loose.family()[0]).ends).max() > 22
    assert expected({**known, "expected_groups": 500}, 1).laws == ()  # who knows is believed


def test_a_query_without_groups_is_sized_for_the_one_that_it_has():
    """It was taken for one of 2 to 5 groups: bounds that cut a fifth of the rows."""
    known = {"expected_rows": 12.0, "expected_units": 18_000, "expected_most_rows": 22,
             "laws": [[2.0, 1.4, 0.0], [5.0, 0.0, 0.2]]}  # fmt: skip
    said = expected(known, 1, public=1)
    assert said is not None
    assert {(one.groups, one.single) for one in said.family()} == {(1, 0.0)}
    sizes = {name: value for name, value in known.items() if name != "laws"}
    plan = (
        sv.memory({"user": [1]}).protect(unit="user").agg(n=sv.count())
        .release(budget=BUDGET, **sizes).plan
    )  # fmt: skip
    operator = compile_plan(plan)
    assert 20 <= operator.bounds.max_rows <= 60
    assert operator.bounds.quadratic is None
    assert operator.aggregation.rule is None
    assert "forecast" in {one.name: one.reason for one in operator.defaults}["max_rows_contributed"]
    noise = operator.aggregation.counters[0].std(np.array([1]))[0]
    for _, ahead in forecasts(plan, operator):
        assert ahead.l1 == pytest.approx(noise * np.sqrt(2 / np.pi), rel=0.25)
    weighed = replace(plan, options={**plan.options, "entry_weight": 0.5})
    assert compile_plan(weighed).aggregation.rule is not None  # who asks for weights has them


def test_declared_groups_are_no_more_than_there_are():
    assert expected(EXPECTED, 1, public=3).groups == 3
    assert expected({"expected_rows": 5}, 4, public=12).groups == 12


@pytest.mark.parametrize("steep", [0.0, 0.8])
@pytest.mark.parametrize("rows", [20.0, 60.0])
def test_rows_over_a_given_bound_do_not_drown_the_choice(rows, steep):
    """Nine of ten rows are cut whatever is chosen; of the others as many as may be are shown."""
    stream = ExpectedStream(units=3e3, rows=rows, groups=40, steep=steep, value=0.5, drawn=250)
    noise, given = (
        ForecastNoise(mu=0.5, spread=1.0, triggers=1, half=40.0),
        Given(max_rows=4, per_group=1),
    )
    problem = Problem((stream,), noise, given, ("table",), weighted=False, counted=False)
    grid = [
        Settings(kind="table", max_rows=4, per_group=1, slots=slots, share=share)
        for slots, share in product(SLOTS, SHARES) if slots <= problem.most_slots
    ]  # fmt: skip
    for bounded, near in ((False, 1.02), (True, 1.07)):

        def error(settings, bounded=bounded):
            return forecast(stream, settings, noise, bounded=bounded).l1

        assert error(choose(problem)) <= near * min(map(error, grid))


@pytest.mark.parametrize("value", [0.1, 0.3])
@pytest.mark.parametrize("triggers", [1, 10])
def test_groups_that_could_be_shown_are_not_hidden_to_spare_noise(value, triggers):
    """Beside the totals within the bounds alone 33 or 56 of 116 alike groups seemed enough."""
    stream = ExpectedStream(units=6e3, rows=7.3, groups=116, steep=0.0, value=value, drawn=250)
    noise = ForecastNoise(
        mu=0.23, beside=0.22, spread=1 + triggers / 25, triggers=triggers, half=60.0, delta=2.9e-7
    )
    kinds = ("table", "gaussian")
    problem = Problem((stream,), noise, Given(max_rows=2), kinds, weighted=False, counted=False)
    assert forecast(stream, choose(problem), noise).keys > 0.95 * stream.groups


@pytest.mark.parametrize("groups", [45, 60, 80])
def test_groups_stay_hidden_where_units_have_used_up_their_rows(groups):
    """Rows that come later open nothing: of 80 groups 65 were forecast, and 26 shown."""
    stream = ExpectedStream(units=600, rows=12, groups=groups, steep=0.0, heavy=50.0)
    who, which = drawn_stream(stream, 7)
    operator = query({"max_rows": 4}, selection="table", mu_share=0.7, hidden_groups=2,
                     total_tests=0)  # fmt: skip
    error, shown = day(operator, who, which, groups)
    settings = replace(as_settings(operator), share=0.7)
    half = design_selection(20, BUDGET, 2).half
    noise = ForecastNoise(mu=float(gaussian_mu(BUDGET)), spread=1.7, half=half, triggers=20)
    found = forecast(stream, settings, noise)
    assert found.l1 == pytest.approx(float(error.sum()), rel=0.1)
    assert abs(found.keys - shown) < 0.2 * groups
