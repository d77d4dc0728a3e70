"""Neighbouring relations: validated, named in words, saved without loss."""

from __future__ import annotations

import json
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from streamveil.core.accounting import RELATIONS, Neighbours, duration

DAY = timedelta(days=1)


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_relation_has_words_and_survives_a_record(relation: Any) -> None:
    protects = Neighbours("user_id", Fraction(7, 2), relation, DAY)
    assert protects.phrase.startswith(protects.verb)
    assert Neighbours.from_dict(json.loads(json.dumps(protects.to_dict()))) == protects


def test_the_period_is_part_of_the_promise() -> None:
    assert Neighbours("user_id", period=DAY).phrase.endswith("user_id within each day")
    week, zone = Neighbours("user_id", period=7 * DAY), "1 day in Europe/Berlin"
    assert week.phrase.endswith("user_id within each period of 7 days")
    local = Neighbours("user_id", period=DAY, calendar=zone)
    assert (local.each, local.several) == ("each day in Europe/Berlin", "days in Europe/Berlin")
    assert week.several == "periods of 7 days"
    assert "over the whole stream" in Neighbours("user_id").phrase
    assert Neighbours("user_id", period=DAY) != Neighbours("user_id")


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(days=2), "2 days"),
        (timedelta(hours=1), "1 hour"),
        (timedelta(minutes=15), "15 minutes"),
        (timedelta(seconds=61), "61 seconds"),
        (timedelta(milliseconds=1), "0:00:00.001000"),
        (None, "the whole stream"),
    ],
)
def test_durations_read_as_words(span: timedelta | None, words: str) -> None:
    assert duration(span) == words


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bound": 0}, "bound must be"),
        ({"relation": "add-removed"}, "did you mean 'add-remove'"),
        ({"period": timedelta(0)}, "period must be longer than zero"),
        ({"period": 1}, "period must be longer than zero"),
        ({"unit": 5}, "must be texts"),
        ({"calendar": True}, "must be texts"),
    ],
)
def test_what_is_not_a_relation_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Neighbours(**wrong)
