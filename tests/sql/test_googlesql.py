"""docs/googlesql.md: every statement runs, or is refused with the reason that the page gives."""

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil import kept
from streamveil.core.noise import SECRET_BYTES, KeyedNoise
from streamveil.errors import PlanError

PAGE = Path(__file__).parents[2] / "docs" / "googlesql.md"
LINES = re.findall(
    r"^\| `(.+?)` \| (runs|refused: .+?)(?:; instead `(.+)`)? \|$", PAGE.read_text(), flags=re.M
)
SHORT = dict(re.findall(r"`(DP|CAP)`[^`]+`([^`]+)`", PAGE.read_text()))
ROWS = np.arange(10_000)
VISITS = pa.table({
    "visitor": ROWS % 2_000,
    "country": np.array(["fi", "is", "no"])[ROWS % 3],
    "page": np.array(["/shop/a", "/shop/b", "/help", "/home"])[ROWS % 4],
    "minutes": ROWS % 30,
    "day": pa.array(20_454 + ROWS % 60, pa.int32()).cast(pa.date32()),
    "seen": pa.array((20_454 + ROWS % 60) * 86_400_000_000, pa.timestamp("us", "UTC")),
})  # fmt: skip


def statement(text):
    for short, whole in SHORT.items():
        text = re.sub(rf"\b{short}\b", lambda _, whole=whole: whole, text)
    return text


def answer(text, state):
    *_, release = sv.sql(statement(text), {"visits": VISITS}).run(state=str(state))
    return release.table


@pytest.mark.parametrize(("text", "said", "instead"), LINES, ids=range(len(LINES)))
def test_the_page_is_true(text, said, instead, tmp_path, monkeypatch):
    # with one secret all looks say the same, and what one statement searches for serves others
    shared = os.environ[kept.FOLDER]
    monkeypatch.setattr(KeyedNoise, "fresh", lambda: KeyedNoise(bytes(SECRET_BYTES)))
    monkeypatch.setenv(kept.FOLDER, shared)  # no search draws a secret
    if said == "runs":
        assert answer(text, tmp_path / "state").num_rows
        return
    with pytest.raises(PlanError) as caught:
        answer(text, tmp_path / "state")
    assert said.removeprefix("refused: ") in " ".join(str(caught.value).split())
    assert "to fix" in str(caught.value)
    assert answer(instead, tmp_path / "instead").num_rows


def test_most_statements_run():
    assert len(LINES) > 39
    assert len(SHORT) == 2
    refused = [said for _, said, _ in LINES if said != "runs"]
    assert len(refused) < len(LINES) / 4


def test_old_spellings_are_the_same_query():
    new = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, "
        "privacy_unit_column = visitor, max_groups_contributed = 2) country, "
        "SUM(minutes, contribution_bounds_per_group => (-1, 90)) AS s FROM visits GROUP BY country"
    )
    old = (
        new.replace("DIFFERENTIAL_PRIVACY", "ANONYMIZATION")
        .replace("max_groups_contributed", "kappa").replace("SUM(minutes,", "ANON_SUM(minutes")
        .replace("contribution_bounds_per_group => (-1, 90)", "CLAMPED BETWEEN -1 AND 90")
    )  # fmt: skip
    assert sv.sql(old, {"visits": VISITS}).plan == sv.sql(new, {"visits": VISITS}).plan
    with pytest.raises(PlanError, match="CLAMPED is followed by BETWEEN"):
        sv.sql(old.replace("BETWEEN -1 AND 90", "BY 3"), {"visits": VISITS})


def test_null_groups_are_all_public_groups():
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, "
        "privacy_unit_column = visitor, max_groups_contributed = NULL{}) {} FROM visits {}"
    )
    made = sv.sql(text.format(", public_groups = ['a', 'b', 'c']", "country, COUNT(*) AS n",
                              "GROUP BY country"), {"visits": VISITS}).plan  # fmt: skip
    assert made.bounding.max_rows == 3
    made = sv.sql(text.format("", "COUNT(*) AS n", ""), {"visits": VISITS}).plan
    assert made.bounding.max_rows == 1


@pytest.mark.parametrize(("text", "expected"), [
    ("LOGICAL_OR(minutes > 20)", True), ("LOGICAL_OR(minutes > 100)", False),
    ("LOGICAL_AND(minutes < 100)", True), ("LOGICAL_AND(minutes > 20)", False),
])  # fmt: skip
def test_logical_or_is_what_is_certain(text, expected, tmp_path):
    """A false alarm: where nobody has it, the interval of 95 % lies above 0 in one of 40 runs."""
    text = f"SELECT DP {text} AS x FROM visits"
    found = [answer(text, tmp_path / str(i))["x"][0].as_py() for i in range(4)]
    assert (found.count(expected)) >= 2  # fails by chance once in 16,000 runs
