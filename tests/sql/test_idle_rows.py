"""Rows that add to no answer use up no bound of their unit, where groups do not depend on them."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SilentNoise

OPTIONS = "epsilon = 1, delta = 1e-6, privacy_unit_column = u, max_rows_contributed = 2"
ROWS = pa.table({
    "u": np.repeat(np.arange(300), 6), "g": np.tile(["a", "a", "b", "b", "a", "b"], 300),
    "x": np.tile([9.0, 9, 9, 9, 2, 4], 300),
})  # fmt: skip
PUBLIC = ", public_groups = ['a', 'b']"
BOUNDS = "contribution_bounds_per_row => (0, 10)"


def asked(columns, where="", options=PUBLIC, by="GROUP BY g"):
    key = "g, " if by else ""
    text = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}{options}) {key}{columns} FROM t"
    return sv.sql(f"{text} {where} {by}", {"t": ROWS}).plan


@pytest.mark.parametrize(
    ("columns", "where"),
    [
        ("COUNTIF(x < 5) AS a", "NOT (IF(x < 5, TRUE, NULL)) IS NULL"),
        (f"AVG(IF(x < 5, x, NULL), {BOUNDS}) AS a", "NOT (IF(x < 5, x, NULL)) IS NULL"),
        (f"SUM(CASE WHEN x < 5 THEN x END, {BOUNDS}) AS a",
         "NOT (CASE WHEN x < 5 THEN x END) IS NULL"),
        ("COUNTIF(x < 5) AS a, COUNTIF(x = 9) AS b",
         "((NOT (IF(x < 5, TRUE, NULL)) IS NULL) OR (NOT (IF(x = 9, TRUE, NULL)) IS NULL))"),
        ("COUNTIF(x < 5) AS a, COUNT(*) AS b", None), ("COUNTIF(x < 5) AS a, COUNT(x) AS b", None),
        ("COUNTIF(x < 5) AS a, COUNT(DISTINCT u) AS b", None),
        (f"SUM(IF(x < 5, x, 0), {BOUNDS}) AS a", None), (f"AVG(x, {BOUNDS}) AS a", None),
        (f"AVG(COALESCE(IF(x < 5, x, NULL), 0), {BOUNDS}) AS a", None),
    ],
)  # fmt: skip
def test_which_rows_are_left_out(columns, where):
    assert asked(columns).where == asked(columns, by="", options="").where == where


def test_a_where_of_the_query_stays():
    assert "g = 'a'" in str(asked("COUNTIF(x < 5) AS n", "WHERE g = 'a'").where)


def test_groups_that_are_found_keep_their_rows():
    """Else one that has no row with a value would not be shown with the 0 that it has."""
    assert asked("COUNTIF(x < 5) AS n", options="").where is None


def answers(plan):
    [last] = unbroken(compile_plan(plan), [Batch(ROWS, 1, True, "{}")], SilentNoise())
    return last.table.sort_by("g").select(["g", "a"]).to_pylist()


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        ("COUNTIF(x < 5) AS a", "COUNT(*) AS a"),
        (f"SUM(IF(x < 5, x, NULL), {BOUNDS}) AS a", f"SUM(x, {BOUNDS}) AS a"),
        (f"AVG(IF(x < 5, x, NULL), {BOUNDS}) AS a", f"AVG(x, {BOUNDS}) AS a"),
    ],
)
def test_they_are_the_answers_of_a_where(columns, same):
    """Of two rows of a unit, which are all that it may have, none meets the condition."""
    found = answers(asked(columns))
    assert [row["a"] for row in found] == pytest.approx(
        [row["a"] for row in answers(asked(same, "WHERE x < 5"))], abs=1e-4
    )
    assert found[0]["a"] > 0
