"""No query that is accepted lets one person move rows of others, however it names her."""

import pytest

from streamveil.plan import check_own_rows, own_rows
from streamveil.sql import joins
from tests.audit.people import judged, loses_more, moves_others, of_days, of_python, of_text
from tests.planting import instead

QUERIES = 400


def test_one_persons_rows_are_nobody_elses():
    found = list(judged(1, QUERIES // 2))
    assert len(found) > QUERIES / 10
    assert [text for text, wrong in found if wrong] == []


@pytest.mark.parametrize(("ways", "queries"), [((of_text, of_python), 24), ((of_days,), 12)])
def test_one_person_loses_what_is_claimed(ways, queries):
    found = list(judged(2, queries, ways, loses_more))
    assert len(found) > queries / 5
    assert [text for text, wrong in found if wrong] == []


FAULTS = {  # the ways that meet them, how they are judged, and where they are
    "one table is read by two people's columns": (
        of_text, moves_others, instead(check_own_rows, "of_two_people", lambda _: lambda _: ()),
    ),
    "what the other relation of a join protects is not asked": (
        of_python, moves_others, instead(joins, "require_one_unit", lambda _: lambda *_: None),
    ),
    "rows that were combined by one unit go on by another": (
        of_python, moves_others, instead(own_rows, "require_person", lambda _: lambda *_: None),
    ),
    "the losses of two people's columns": (
        of_text, loses_more, instead(check_own_rows, "of_two_people", lambda _: lambda _: ()),
    ),
    "days of two times pass for one": (
        of_days, loses_more, instead(check_own_rows, "of_two_times", lambda _: lambda _: ()),
    ),
}  # fmt: skip


FIRST = {"days of two times pass for one": 2}  # seeds that meet a fault at once; 1 meets others


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen_in_generated_queries(name, monkeypatch):
    way, by, plant = FAULTS[name]
    plant(monkeypatch)
    assert any(wrong for _, wrong in judged(FIRST.get(name, 1), QUERIES, [way], by))
