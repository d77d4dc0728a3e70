"""What is kept is found again, exactly; what is damaged or of other code is searched again."""

import os
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from math import inf

import pytest

from streamveil import kept
from streamveil.compiler.sizing import Sizing
from streamveil.core.counters.blt import Blt


@dataclass(frozen=True)
class Asked:
    """A question."""

    budget: Fraction
    rates: tuple[float, ...]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def counting():
    calls = []

    @kept.kept(Blt)
    def search(asked, number):
        calls.append(number)
        return (Blt((0.1,), (0.2 + 1e-17,)), Fraction(1, 3), inf, None, number, "table")

    return search, calls


ASKED = Asked(Fraction(1, 7), (0.1, inf))


def test_what_is_kept_is_found_exactly_by_the_next_process(folder):
    first, asked = counting()
    made = first(ASKED, 3)
    again, further = counting()  # as another process would have it: nothing in memory
    assert again(ASKED, 3) == made
    assert (asked, further) == ([3], [])
    assert again(ASKED, 4) != made  # another question
    assert again(Asked(ASKED.budget, (0.1, 2.0)), 3) == made
    assert further == [4, 3]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_what_is_damaged_is_searched_again(folder, damage):
    search, calls = counting()
    made = search(ASKED, 3)
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    whole = path.read_bytes()
    spoilt = {
        "cut": whole[:-1], "flip": whole.replace(b"1/3", b"1/4"), "empty": b"",
        "other": whole[::-1],
    }[damage]  # fmt: skip
    path.write_bytes(spoilt)
    with pytest.warns(UserWarning, match=path.name):
        assert search(ASKED, 3) == made
    assert calls == [3, 3]
    assert path.read_bytes() == whole  # mended


def test_other_code_searches_again(folder, monkeypatch):
    search, calls = counting()
    search(ASKED, 3)
    monkeypatch.setattr(kept, "stamp", lambda: "of other code")
    search(ASKED, 3)
    assert calls == [3, 3]


def test_nothing_is_kept_where_it_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in ("off", str(tmp_path / "file")):
        monkeypatch.setenv(kept.FOLDER, place)
        search, calls = counting()
        assert search(ASKED, 3) == search(ASKED, 3)
        assert calls == [3, 3]
        assert search(object(), 3)  # no public number: not kept, and no error


QUERY = """
import sys
from datetime import datetime
import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.core.counters.blt import _variances
from streamveil.runtime.formats import calibration

rows = {"user": [1], "url": ["a"], "ts": [datetime(2026, 1, 1)]}
query = (sv.memory(rows, event_time="ts")
         .protect(unit="user").group_by("url").agg(n=sv.count()).bound(max_rows=4)
         .release(every="1 hour", start="2026-01-01", end="2026-01-02",
                  budget=sv.Budget(epsilon=1, delta=1e-7)))
operator = compile_plan(query.plan)
print(calibration(operator), operator.guarantee.to_dict(), query.explain())
print("computed", len(_variances.signatures), file=sys.stderr)
"""


def test_a_design_that_is_found_is_the_one_that_was_searched(folder):
    """By the word that a state is held to, what is charged, and what `explain` says.

    In processes of their own; the second one computes no variances again.
    """
    asked = [sys.executable, "-c", QUERY]
    first, second = (subprocess.run(asked, capture_output=True, check=True) for _ in range(2))
    assert first.stdout
    assert first.stdout == second.stdout
    assert [done.stderr.split()[-2:] for done in (first, second)] == [
        [b"computed", b"1"], [b"computed", b"0"],
    ]  # fmt: skip
    assert any(path.is_file() for path in folder.rglob("*"))


def test_a_scale_that_is_too_small_is_charged_for_what_it_loses(folder, monkeypatch):
    """What is kept decides no guarantee: the loss is that of the mechanism as it is."""
    import streamveil as sv
    from streamveil.compiler.group_by import compile_plan
    from streamveil.errors import BudgetError

    query = (
        sv.memory({"user": [1, 2], "url": ["a", "b"]})
        .protect(unit="user")
        .group_by("url", keys=sv.public(["a", "b"]))
        .agg(n=sv.count())
        .bound(max_rows=4)
        .release(budget=sv.Budget(epsilon=1, delta=1e-7))
    )
    fair = compile_plan(query.plan).guarantee
    fitted = Sizing._fitted
    monkeypatch.setattr(Sizing, "_fitted", lambda *asked: fitted(*asked) / 2)
    small = compile_plan(query.plan).guarantee
    assert small.epsilon(Fraction(1, 10**7)) > fair.epsilon(Fraction(1, 10**7))
    with pytest.raises(BudgetError):
        list(query.run(state=folder.parent / "state"))


def test_tests_share_designs_unless_they_replace_code(monkeypatch):
    assert os.path.isdir(os.environ[kept.FOLDER])
    monkeypatch.setattr(kept, "ROOMS", ())
    assert os.environ[kept.FOLDER] == "off"
