"""No query that is accepted lets one person move rows of others, however it names her."""

import pytest

from streamveil.plan import check_own_rows, own_rows
from streamveil.sql import joins
from tests.audit.people import judged, of_python, of_text
from tests.planting import instead

QUERIES = 400


def test_one_persons_rows_are_nobody_elses():
    found = list(judged(1, QUERIES // 2))
    assert len(found) > QUERIES / 10
    assert [text for text, wrong in found if wrong] == []


FAULTS = {  # and where they are
    "one table is read by two people's columns": (
        of_text, instead(check_own_rows, "of_two_people", lambda _: lambda _: ()),
    ),
    "what the other relation of a join protects is not asked": (
        of_python, instead(joins, "require_one_unit", lambda _: lambda *_: None),
    ),
    "rows that were combined by one unit go on by another": (
        of_python, instead(own_rows, "require_person", lambda _: lambda *_: None),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen_in_generated_queries(name, monkeypatch):
    way, plant = FAULTS[name]
    plant(monkeypatch)
    assert any(wrong for _, wrong in judged(1, QUERIES, [way]))
