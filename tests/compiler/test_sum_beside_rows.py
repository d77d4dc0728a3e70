"""Counts, sums and shares beside the number of all rows: less noise, and true intervals."""

from functools import lru_cache
from math import sqrt

import numpy as np
import pyarrow as pa
import pytest

from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import answer_sd, lane_sd
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.sensitivity import Lane
from streamveil.results.post import post_processed
from streamveil.sql.post import read_step
from tests.compiler.beside import GROUPS, UNITS, held, plant_noise_apart, query_of, release_of
from tests.statistics import assert_rate, assert_rejects_rate

RNG = np.random.default_rng(28)
TABLE = pa.table({
    "u": np.arange(UNITS), "g": np.arange(UNITS) % GROUPS, "name": RNG.choice(["a", "b"], UNITS),
    "x": pa.array(RNG.gamma(2, 20, UNITS), mask=RNG.random(UNITS) < 0.2),
    "z": pa.array(RNG.choice(["p", "q", "r"], UNITS), mask=RNG.random(UNITS) < 0.3),
})  # fmt: skip
G, X = TABLE["g"].to_numpy(), np.clip(TABLE["x"].to_numpy(), 10, 90)
NAME, Z = TABLE["name"].to_numpy(), np.array(TABLE["z"].to_pylist(), object)
SUM = "SUM(x, contribution_bounds_per_row => (10, 90))"
EXACT = {  # of each column: what a row adds
    "r": ("COUNT(*)", np.ones(UNITS)), "n": ("COUNTIF(name = 'a')", NAME == "a"),
    "p": ("COUNTIF(z = 'p')", Z == "p"), "c": ("COUNT(z)", np.not_equal(Z, None)),
    "s": (SUM, np.nan_to_num(X)), "w": ("SUM(IF(z = 'p', -2, 3))", np.where(Z == "p", -2, 3)),
}  # fmt: skip
TRUE = {name: np.bincount(G, row, GROUPS) for name, (_, row) in EXACT.items()}
COLUMNS = ", ".join(f"{text} AS {name}" for name, (text, _) in EXACT.items())


def asked(columns, options="epsilon = 4, delta = 1e-6", where=""):
    return query_of(TABLE, columns, options, where)


def sds(columns, where=""):
    """The deviation of each count or sum, and the operator."""
    operator = compile_plan(asked(columns, where=where).plan)
    totals = (one for one in operator.outputs if one.is_total)
    return {one.name: answer_sd(operator, one, 1) for one in totals}, operator


@pytest.mark.parametrize(
    ("text", "low", "high"),  # bounds that hold 0
    [
        ("COUNTIF(name = 'a')", 0, 1), ("COUNT(z)", 0, 1), (SUM, 0, 90),
        ("SUM(IF(z = 'p', -2, 3))", -2, 3),
        ("SUM(x, contribution_bounds_per_row => (-90, 10))", -90, 10),
    ],
)  # fmt: skip
def test_noise_is_that_of_the_middle_and_the_number_of_rows_has_no_more(text, low, high):
    found, operator = sds(f"{text} AS a, COUNT(*) AS r")
    before, _ = sds("COUNTIF(name = 'a') AS a, COUNTIF(z = 'p') AS r")  # two lanes of their own
    assert found["r"] == pytest.approx(before["r"], rel=0.001)
    wanted = sqrt((low**2 + high**2) / 2) * before["r"]
    assert found["a"] == pytest.approx(wanted, rel=0.02)  # whole numbers have a bit more
    assert len(operator.aggregation.lanes) == 2


@pytest.mark.parametrize("number", [1, 2, 4, 9])
def test_many_counts_read_one_number_of_rows(number):
    """Each has about (1 + sqrt(number))^2 / 4 of the variance of a lane with all of the budget."""
    counts = [f"COUNTIF(name = 'a' AND x < {place}) AS c{place}" for place in range(number)]
    found, _ = sds(", ".join(["COUNT(*) AS r", *counts]))
    one, _ = sds("COUNT(*) AS r")
    root = 1 + sqrt(number)
    assert found["c0"] / one["r"] == pytest.approx(root / 2, rel=0.03)
    assert found["r"] / one["r"] == pytest.approx(sqrt((number + 1) / sqrt(number)), rel=0.02)


def test_others_have_as_much_noise_as_without_it():
    """Two counts give a part of theirs to the number of rows, and nothing of a third lane's."""
    other = "COUNT(DISTINCT u) AS o"
    counts = "COUNTIF(name = 'a') AS a, COUNTIF(z = 'p') AS b"
    (beside, operator), (apart, plain) = (
        sds(f"{counts}, {more}, {other}") for more in ("COUNT(*) AS r", "COUNTIF(z = 'q') AS r")
    )
    assert len(operator.aggregation.lanes) == len(plain.aggregation.lanes) == 4
    assert beside["o"] == pytest.approx(apart["o"], rel=0.001)
    assert beside["r"] < apart["r"]


@pytest.mark.parametrize(
    ("columns", "where", "lanes"),
    [
        ("COUNT(*) AS r, AVG(IF(name = 'a', 1, 0)) AS a", "", 2),
        ("COUNT(*) AS r, AVG(x, contribution_bounds_per_row => (0, 9)) AS a", "WHERE x > 3", 2),
        ("COUNT(*) AS r, AVG(x, contribution_bounds_per_row => (0, 9)) AS a", "", 3),
        ("COUNT(*) AS r, AVG(IF(name = 'a', 1, NULL)) AS a", "", 3),
        ("COUNT(*) AS r, COUNT(IF(name = 'a', 1, 0)) AS a", "", 1),
        ("COUNT(*) AS r, STDDEV(IF(name = 'a', 1, 0)) AS a, SUM(IF(name = 'a', 1, 0)) AS s", "", 3),
    ],
)  # fmt: skip
def test_what_has_a_value_in_every_row_needs_no_count_of_its_own(columns, where, lanes):
    assert len(sds(columns, where)[1].aggregation.lanes) == lanes


def test_a_rate_beside_the_number_of_rows_has_two_thirds_of_the_variance():
    found, operator = sds("COUNT(*) AS r, AVG(IF(name = 'a', 1, 0)) AS a")
    apart, other = sds("COUNT(*) AS r, AVG(IF(name = 'a', 1, NULL)) AS a")
    assert (found["r"] / apart["r"]) ** 2 == pytest.approx(2 / 3, rel=0.01)
    sums = [lane_sd(one, one.outputs[1].lanes[1], 1) for one in (operator, other)]
    assert (sums[0] / sums[1]) ** 2 == pytest.approx(2 / 3, rel=0.01)


@lru_cache
def released(noise):
    """The one release of the query."""
    return release_of(TABLE, COLUMNS, noise)


def test_without_noise_they_are_exact():
    table = released(SilentNoise()).table.sort_by("g")
    for name, true in TRUE.items():
        np.testing.assert_allclose(table[name], true, atol=1e-3)


SEED = 20261127


def covered(text, exact):
    return held(released(SeededNoise(SEED)), asked(COLUMNS).plan, text, exact(**TRUE))


SUMS = {
    "n": lambda n, **_: n, "s": lambda s, **_: s, "w": lambda w, **_: w,
    "r - n": lambda r, n, **_: r - n, "n - p": lambda n, p, **_: n - p,
    "n + p + c": lambda n, p, c, **_: n + p + c, "s - 45 * n": lambda s, n, **_: s - 45 * n,
    "s + w - 20 * r": lambda s, w, r, **_: s + w - 20 * r,
}  # fmt: skip
RATIOS = {
    "n / r": lambda n, r, **_: n / r, "p / n": lambda p, n, **_: p / n,
    "s / r": lambda s, r, **_: s / r, "s / n": lambda s, n, **_: s / n,
    "(n - p) / r": lambda n, p, r, **_: (n - p) / r,
}  # fmt: skip


@pytest.mark.parametrize("text", SUMS)
def test_intervals_of_sums_hold_the_truth_as_often_as_they_say(text):
    """They share the noise of the number of rows; false alarms: 1e-9."""
    assert_rate(*covered(text, SUMS[text]), 0.95)


@pytest.mark.parametrize("text", RATIOS)
def test_intervals_of_ratios_hold_the_truth_at_least_as_often(text):
    """6.2 deviations of as many coins below: false alarms 1e-9."""
    hits, trials = covered(text, RATIOS[text])
    assert hits > 0.95 * trials - 6.2 * sqrt(trials * 0.95 * 0.05)


def test_the_noise_of_a_share_is_that_of_the_middle():
    """Of a share p it is that of the count less 1/2 of all rows, and p - 1/2 of these."""
    [*steps] = read_step("g, n / r AS d", "ORDER BY g", asked(COLUMNS).plan)
    release = released(SeededNoise(SEED))
    found = post_processed(release, tuple(steps)).table
    table = release.table.sort_by("g")
    n, r, n_sd, r_sd = (table[name].to_numpy() for name in ("n", "r", "n_sd", "r_sd"))
    wanted = np.sqrt(n_sd**2 - r_sd**2 / 4 + (n / r - 0.5) ** 2 * r_sd**2) / r
    some = (found["d"].to_numpy() > 0) & (found["d"].to_numpy() < 1)
    np.testing.assert_allclose(found["d_sd"].to_numpy()[some], wanted[some], rtol=0.05)


@pytest.mark.parametrize("text", ["n + p + c", "r - n"])
def test_noise_taken_for_apart_is_seen(text, monkeypatch):
    plant_noise_apart(monkeypatch)
    assert_rejects_rate(*covered(text, SUMS[text]), 0.95)


def test_a_row_without_a_value_counts_as_none_where_it_must(monkeypatch):
    """A planted fault: rows without a value add nothing, so that counts are half of all rows."""
    monkeypatch.setattr(Lane, "absent", 0)
    operator = compile_plan(asked(COLUMNS).plan)
    [last] = unbroken(operator, [Batch(TABLE, 1, True, "{}")], SilentNoise())
    table = last.table.sort_by("g")
    assert np.abs(table["n"].to_numpy() - TRUE["n"]).max() > 1
