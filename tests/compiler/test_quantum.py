"""Values that are multiples of the quantum that a query gives stay what they are."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler import group_by
from streamveil.core.noise import SilentNoise
from tests.compiler.beside import GROUPS, UNITS, release_of

KINDS = {
    "s": "SUM(x, {more})", "a": "AVG(x, {more})", "v": "VARIANCE(x, {bounds})",
    "d": "STDDEV(x, {bounds})", "r": "COUNT(*)", "c": "COUNT(x)",
}  # fmt: skip
TOGETHER = ("s", "rs", "cs", "a", "sa", "rsa", "rcs", "ra", "v", "rd", "sav")
BOUNDS = ((0, 5, 1), (-3, 4, 1), (0, 0.75, 0.25), (-5.5, 0, 1), (3, 10, 3), (0, 1, 1), (0, 9, 0.5))


def misses(together, low, high, quantum):
    """The answers that are not what the rows say, of values that are multiples of a quantum."""
    rng = np.random.default_rng(5)
    steps = np.arange(np.ceil(low / quantum), np.floor(high / quantum) + 1)
    values, absent = quantum * rng.choice(steps, UNITS), rng.random(UNITS) < 0.2
    groups = np.arange(UNITS) % GROUPS
    table = pa.table({"u": np.arange(UNITS), "g": groups, "x": pa.array(values, mask=absent)})
    bounds = f"contribution_bounds_per_row => ({low}, {high})"
    more = f"{bounds}, quantum => {quantum}"
    columns = ", ".join(
        f"{KINDS[one].format(more=more, bounds=bounds)} AS {one}" for one in together
    )
    found = release_of(table, columns, SilentNoise()).table.sort_by("g")
    r, c, s, q = (
        np.bincount(groups, row, GROUPS)
        for row in (np.ones(UNITS), ~absent, ~absent * values, ~absent * values**2)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (q - s**2 / c) / (c - 1)
        true = {"r": r, "c": c, "s": s, "a": s / c, "v": variance, "d": np.sqrt(variance)}
    some = c > 1
    return [
        one for one in together
        if not np.allclose(found[one].to_numpy()[some], true[one][some], rtol=1e-5, atol=1e-5)
    ]  # fmt: skip


@pytest.mark.parametrize(("together", "bounds"), [
    (together, bounds)
    for i, together in enumerate(TOGETHER)
    for j, bounds in enumerate(BOUNDS)
    if (i + j) % 3 == 0  # each with two or three of the others
], ids=str)  # fmt: skip
def test_without_noise_they_are_exact(together, bounds):
    assert not misses(together, *bounds)


def test_a_centre_between_multiples_is_found(monkeypatch):
    """A planted fault: 1 is 0.5 and 4 is 4.5 where values are summed from 2.5."""
    monkeypatch.setattr(group_by, "middle_of", lambda low, high, _: (low + high) / 2)
    assert misses("rs", 0, 5, 1) == ["s"]
    assert misses("a", 0, 5, 1) == ["a"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("SUM(x, contribution_bounds_per_row => (0, 5), quantum => 2)", True),
        ("SUM(IF(x > 2, 1, 0), contribution_bounds_per_row => (0, 1), quantum => 1)", True),
        ("SUM(x, contribution_bounds_per_group => (0, 5), quantum => 2)", True),
        ("SUM(x, contribution_bounds_per_row => (0, 5))", False),
        ("COUNT(*, contribution_bounds_per_group => (0, 3))", False),
    ],
)
def test_a_given_quantum_is_told_beside_the_number(asked, said):
    """No interval holds what it changes: with 2, ten values of 0.9 add up to 0."""
    table = pa.table({"u": [*range(50)], "x": [0.9] * 50})
    options = "epsilon = 8, delta = 1e-6, privacy_unit_column = u"
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}) {asked} AS n FROM t"
    assert ("the nearest multiple of" in " ".join(sv.sql(text, t=table).notes)) is said
