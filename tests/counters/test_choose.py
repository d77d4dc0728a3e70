"""Choosing and comparing counters."""

from __future__ import annotations

import pytest

from streamveil.core.accounting import Budget
from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    KaryTreeCounter,
    choose,
)

BUDGET = Budget(epsilon=2, delta=1e-9)


@pytest.mark.parametrize(
    ("horizon", "budget", "kind"),
    [
        (1000, BUDGET, BltCounter),
        (None, BUDGET, AnytimeBltCounter),
        (10_000, Budget(epsilon=1, delta=1e-6), BltCounter),
        (1000, Budget(epsilon=1), KaryTreeCounter),
        (100, Budget(epsilon=1, delta=1e-9), KaryTreeCounter),  # Laplace wins
        (1000, Budget(epsilon=1, delta=1e-6), BltCounter),
        (1000, Budget(mu=0.3), BltCounter),
        (2**40, Budget(mu=0.3), BltCounter),  # takes no memory for each step
    ],
)
def test_the_choice_and_its_reason(horizon, budget, kind):
    choice = choose(horizon, budget)
    assert type(choice.counter) is kind
    assert choice.counter.loss(1).fits(budget)
    assert str(choice).startswith(kind.__name__)
    assert "max sd" in choice.reason


def test_the_person_is_protected_with_all_rows():
    choice = choose(1000, BUDGET, rows=8, per_key=2)
    assert choice.counter.loss(4, 8).fits(BUDGET)
    assert not choice.counter.loss(4.01, 8).fits(BUDGET)


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="needs a horizon"):
        choose(None, Budget(epsilon=1))
