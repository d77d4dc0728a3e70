"""Intervals of groups that their own noisy totals have shown, at that release and at later ones."""

from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import streamveil as sv
from streamveil import counters
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from streamveil.results.joint import Cell, Joint
from streamveil.results.noise import covariance
from tests.statistics import ALPHA, assert_rejects_rate

STEPS, GROUPS, Z = 6, 3_000, 1.959964
KINDS = pa.schema([("u", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])


def compiled(*functions, selection="gaussian", **options):
    measures = {
        "n": sv.count(), "s": sv.sum("v", bounds=(0, 10)), "a": sv.avg("v", bounds=(0, 10)),
    }  # fmt: skip
    query = (
        sv.memory(KINDS.empty_table()).protect("u").group_by("k", keys=sv.discover(min_units=1))
        .agg(**{name: measures[name] for name in functions}).bound(max_rows=1)
        .release(every=sv.rows(10**9), steps=STEPS, budget=sv.Budget(epsilon=1, delta=1e-6),
                 look_share=0, selection=selection, **options)
    )  # fmt: skip
    return compile_plan(query.plan)


@cache
def equal_groups(size, functions, selection="gaussian", options=()):
    """Releases of groups of so many thresholds, whose rows come evenly; and the rows so far."""
    operator, rng = (
        compiled(*functions, selection=selection, **dict(options)),
        np.random.default_rng(8),
    )
    test, chosen = operator.aggregation.test, operator.aggregation.selection
    threshold = chosen.threshold(STEPS) if test is None else test.threshold(STEPS)
    rows = GROUPS * round(size * threshold)
    keys, values = rng.permutation(np.arange(rows) % GROUPS), rng.integers(0, 11, rows)
    state, noise, found = operator.init(), SeededNoise(9), []
    for step, (start, end) in enumerate(pairwise(np.linspace(0, rows, STEPS + 1).astype(int)), 1):
        some = slice(start, end)
        batch = pa.table({"u": np.arange(rows)[some], "k": keys[some], "v": values[some]})
        operator.fold(state, Batch(batch, step, True, ""), noise)
        count, total = (np.bincount(keys[:end], w, GROUPS) for w in (None, values[:end]))
        [release] = operator.release(state, step, noise)
        found.append((release, {"n": count, "s": total, "a": total / np.maximum(count, 1)}))
    return found


def holds(table, name, truth, ends=("_low", "_high")):
    low, high = (table[name + end].to_numpy() for end in ends)
    wanted = truth[table["k"].to_numpy()]
    return (low <= wanted) & (wanted <= high)


@pytest.mark.parametrize("selection", ["gaussian", "totals"])
@pytest.mark.parametrize("size", [0.8, 1, 1.4])
@pytest.mark.parametrize("functions", ["n", "ns", "na"])
def test_the_groups_that_a_release_shows_are_held_as_often_as_it_says(functions, size, selection):
    """False alarms: 1e-9 each. Nothing of it depends on when a group was shown."""
    for release, truth in equal_groups(size, functions, selection)[STEPS // 2 - 1 :]:
        table = release.table
        for name in functions if len(table) > 50 else "":
            missed = int((~holds(table, name, truth[name])).sum())
            assert stats.binomtest(missed, len(table), 0.05, alternative="greater").pvalue > ALPHA


def test_groups_near_the_threshold_are_told_too_large_and_their_intervals_allow_for_it():
    release, truth = equal_groups(0.8, "n")[-1]
    n, sd = (release.table[name].to_numpy() for name in ("n", "n_sd"))
    plain = np.abs(n - truth["n"][0]) <= Z * sd
    early = release.table["opened"].to_numpy() < STEPS
    assert_rejects_rate(int((~plain).sum()), len(n), 0.05)
    assert_rejects_rate(int((~plain)[early].sum()), int(early.sum()), 0.05)
    assert holds(release.table, "n", truth["n"])[early].mean() > 0.88


def test_intervals_of_groups_far_above_the_threshold_are_those_of_noise_alone():
    table = equal_groups(4, "n")[-1][0].table
    assert len(table) == GROUPS
    width = table["n_high"].to_numpy() - table["n_low"].to_numpy()
    np.testing.assert_array_equal(width, 2 * np.rint(Z * table["n_sd"].to_numpy()))


def test_the_lower_end_is_the_least_that_a_test_lets_pass():
    """A total that has fallen to its threshold or below leaves open how large the group is."""
    operator = compiled("n")
    [*_, (release, _)] = equal_groups(1, "n")
    table, test = release.table, operator.aggregation.selection
    fallen = table["n"].to_numpy() <= test.threshold(STEPS)
    assert fallen.sum() > 20
    low, plain = table["n_low"].to_numpy(), (table["n"].to_numpy() - Z * table["n_sd"].to_numpy())
    np.testing.assert_allclose(low[fallen], np.minimum(test.floor, plain[fallen]), rtol=1e-6)
    assert (low <= plain + 1e-6).all()


@pytest.mark.parametrize("limit", ["non_negative", "monotone"])
def test_the_noisy_number_is_read_back_from_a_corrected_interval(limit):
    """As it is without the limit, which moves no number of groups near the threshold."""
    for (limited, _), (plain, _) in zip(
        equal_groups(1, "n", options=((limit, True),)), equal_groups(1, "n"), strict=True
    ):
        if not len(limited.table):
            continue
        answers = sv.answers([limited])
        [moment] = answers.moments
        joint = Joint(answers.releases, answers.releases.keys(moment), moment)
        found, wanted = joint.value(Cell(moment, "n")), plain.table["n"].to_numpy()
        kept = limited.table["n"].to_numpy() == wanted
        assert kept.mean() > 0.8
        np.testing.assert_allclose(found[kept], wanted[kept], atol=1e-6)


@pytest.mark.parametrize(("size", "told"), [(1, True), (7, False)])
def test_answers_over_releases_say_that_they_do_not_allow_for_it(size, told):
    answers = sv.answers([release for release, _ in equal_groups(size, "n")])
    notes = answers.difference("n", STEPS, STEPS - 1).notes
    assert any("near the threshold" in note for note in notes) == told


@pytest.mark.parametrize(
    "name", ["BltCounter", "AnytimeBltCounter", "HonakerCounter", "KaryTreeCounter"]
)
@pytest.mark.parametrize("steps", [2, 7, 30])
def test_noise_of_different_triggers_is_nowhere_negatively_correlated(name, steps):
    """Upper ends of groups that are shown by an earlier total rest on it."""
    made = getattr(counters, name)
    counter = made(sigma=100) if name == "AnytimeBltCounter" else made(sigma=100, horizon=steps)
    pairs = [(t, s) for t in range(1, steps + 1) for s in range(1, t + 1)]
    assert min(covariance(counter, *pair, np.array([1]))[0] for pair in pairs) >= 0
