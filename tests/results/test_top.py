"""Ranks that hold for all groups at once, the hidden ones included."""

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import Address, SeededNoise
from streamveil.dataflow.grouping import hidden_facts
from streamveil.errors import PlanError
from streamveil.results.ranks import HIDDEN_SHARE, ceiling, rank, with_moves
from tests.results.streams import DESIGNS, TRIGGERS, query, released, truth
from tests.statistics import ALPHA, assert_rejects_rate, rate_p_value

LEVEL, TRIALS = 0.8, 2_000


def statements(values, ranked, k):
    """Whether everything that is said about ranks is true."""
    place = np.empty(len(values), int)
    place[np.argsort(-values)] = np.arange(1, len(values) + 1)
    certain = (place[ranked.certain] <= k).all()
    possible = np.isin(np.flatnonzero(place <= k), ranked.order).all()
    return certain and possible and (ranked.best <= place).all() and (place <= ranked.worst).all()


def right_answers(alpha_of_one):
    """How often all statements are true, when each interval has this error probability."""
    rng, n, k = np.random.default_rng(2), 60, 10
    values, sd = np.linspace(0, 30, n), np.ones(n)
    stretch = stats.norm.ppf(1 - alpha_of_one / 2) / stats.norm.ppf(1 - (1 - LEVEL) / (2 * n))
    right = 0
    for _ in range(TRIALS):
        ranked = rank(values + rng.normal(0, sd), stretch * sd, k, LEVEL, (None, 0.0, 0))
        right += statements(values, ranked, k)
    return right


def test_all_statements_hold_at_once_as_often_as_stated():
    right = right_answers((1 - LEVEL) / 60)
    assert right / TRIALS >= LEVEL or rate_p_value(right, TRIALS, LEVEL) > ALPHA
    planted = right_answers(1 - LEVEL)  # intervals that each hold alone
    assert planted / TRIALS < LEVEL
    assert_rejects_rate(planted, TRIALS, LEVEL)


def test_what_is_far_apart_is_certain_and_ties_are_not():
    value, sd = np.array([100.0, 50.0, 49.0, 1.0]), np.full(4, 1.0)
    ranked = rank(value, sd, 2, 0.95, (None, 0.0, 0))
    assert ranked.certain.tolist() == [True, False, False, False]
    assert ranked.order.tolist() == [0, 1, 2]
    assert ranked.best.tolist() == [1, 2, 2, 4]
    assert ranked.worst.tolist() == [1, 3, 3, 4]


def test_hidden_groups_count_unless_they_are_too_small():
    value, sd = np.array([100.0, 40.0]), np.full(2, 1.0)
    facts = {"threshold": 30.0, "sd": 2.0}
    few = rank(value, sd, 2, 0.95, (facts, 1.0, 1000))
    assert few.certain.tolist() == [True, False]  # the ceiling is above 40
    assert few.worst.tolist() == [1, 1002]
    assert "at most 1,000" in few.note
    none = rank(value, sd, 2, 0.95, (None, np.nan, 1000))
    assert not none.certain.any()
    assert "nothing is known" in none.note


@pytest.mark.parametrize("design", ["gaussian", "weights"])
def test_a_group_above_the_ceiling_is_rarely_hidden(design):
    operator = compile_plan(query(design).plan)
    selection, noise = operator.aggregation.selection, SeededNoise(17)
    names = np.random.default_rng(1).integers(1, 2**63, (20_000, 2)).astype(np.uint64)
    alpha, trigger = 0.02, 3
    facts = hidden_facts(operator, trigger)
    top = ceiling(facts, 1.0, alpha, 1)
    shown = {}
    for units in (int(top) + 1, int(facts["threshold"] / 2)):
        state, at = selection.init(1), Address(noise, b"job", 0)
        for now in range(1, trigger + 1):
            came = np.full(len(names), units if now == 1 else 0)
            if design == "gaussian":
                state, passing = selection.step(state, came, names, now, at)
        if design == "weights":  # slots: the coins do not see all rows of a group, this test does
            came = np.full(len(names), units)
            passing = operator.aggregation.test.passing(came, names, trigger, at)
        shown[units] = len(passing) / len(names)
    assert shown[int(top) + 1] >= 1 - alpha  # over all triggers: hidden even more rarely
    assert min(shown.values()) < 0.9  # far below the ceiling most are hidden: it says something


def test_between_its_tests_a_table_with_slots_says_nothing_of_hidden_groups():
    """Rows of units without a slot are in a group's total, and no coin sees them."""
    operator = compile_plan(query("weights").plan)
    assert operator.bounds.slots < operator.bounds.most_groups(operator.aggregation.rule.entry)
    assert hidden_facts(operator, 4) == {}
    assert ceiling({}, 1.0, 0.1, 10) == np.inf
    assert hidden_facts(operator, 3)["lane"] == operator.aggregation.test.place


@pytest.mark.parametrize("design", DESIGNS)
def test_released_groups_are_ranked(design):
    answers = sv.answers(released(design))
    found = answers.top("n", 5, (1, TRIGGERS), hidden=10_000)
    table, exact = found.table, truth("n")[1, TRIGGERS]
    assert table.num_rows >= 5
    assert table["n"].to_pylist() == sorted(table["n"].to_pylist(), reverse=True)
    best = np.argsort(-exact)[:5]
    assert exact[best[-1]] <= np.sort(exact[table["k"].to_numpy()])[-5:][0]
    hidden = "public" in design
    worst, certain = table["rank_worst"].to_pylist(), table["certain"].to_pylist()
    assert [rank is not None and rank <= 5 for rank in worst] == certain
    assert any("hidden groups" in note for note in found.notes) != hidden
    if hidden:
        return
    assert not answers.top("mean", 3).table["certain"].to_numpy().any()


def test_the_share_for_hidden_groups_is_only_spent_where_there_are_some():
    value, sd = np.array([10.0, 0.0]), np.ones(2)
    public = rank(value, sd, 1, 0.9, (None, 0.0, 0)).interval
    hidden = rank(value, sd, 1, 0.9, ({"threshold": 1.0, "sd": 1.0}, 1.0, 1)).interval
    assert 0 < HIDDEN_SHARE < 1
    assert hidden.high[0] > public.high[0]
    with pytest.raises(PlanError, match="at least 1"):
        rank(value, sd, 0, 0.9, (None, 0.0, 0))


def right_moves(stretch):
    """How often all that two lists say of who entered, left or stayed is true at once."""
    rng, n, k, right = np.random.default_rng(5), 12, 4, 0
    before, now = np.linspace(0, 40, n), np.linspace(0, 40, n)
    now[[3, 9]] = now[[9, 3]]
    true = [set(np.argsort(-values)[:k].tolist()) for values in (now, before)]
    for _ in range(TRIALS):
        lists = [rank(values + rng.normal(0, 1, n), np.full(n, stretch), k, 1 - (1 - LEVEL) / 2,
                      (None, 0.0, 0)) for values in (now, before)]  # fmt: skip
        tables = [pa.table({"key": np.arange(n), "n": one.interval.value}) for one in lists]
        told = with_moves(tables, lists, 1, k)
        said = dict(zip(told["key"].to_pylist(), told["moved"].to_pylist(), strict=True))
        fits = {
            "entered": true[0] - true[1],
            "left": true[1] - true[0],
            "stayed": true[0] & true[1],
        }
        right += all(move == "open" or key in fits[move] for key, move in said.items())
    return right


def test_who_entered_and_left_is_true_as_often_as_stated():
    right = right_moves(1.0)
    assert right / TRIALS >= LEVEL or rate_p_value(right, TRIALS, LEVEL) > ALPHA
    assert_rejects_rate(right_moves(0.02), TRIALS, LEVEL)  # planted: intervals of no width


def test_a_list_over_time_says_who_is_not_shown_any_more():
    answers = sv.answers(released("gaussian"))
    first = answers.moments[0]
    found = answers.top("n", 5, since=(first.window, first.trigger), hidden=0)
    assert found.table.column_names[-5:] == [
        "rank_best", "rank_worst", "before_best", "before_worst", "moved"
    ]  # fmt: skip
    assert set(found.table["moved"].to_pylist()) <= {"entered", "left", "stayed", "open"}
    plain = answers.top("n", 5, hidden=0)
    count = sum(value is not None for value in found.table["n"].to_pylist())
    assert count >= min(5, plain.table.num_rows)
    assert "both lists hold at once" in found.notes[-1]
