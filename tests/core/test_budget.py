"""Budgets are exact, complete and refuse what is not a budget."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from streamveil.core.accounting import Budget


def test_a_float_is_the_decimal_it_prints() -> None:
    assert Budget(epsilon=0.3, delta=1e-9) == Budget(epsilon="0.3", delta=Decimal("1e-9"))
    assert Budget(epsilon=0.1).epsilon == Fraction(1, 10)
    assert Budget(rho=3).rho == 3


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "none was given"),
        ({"delta": 1e-9}, "none was given"),
        ({"epsilon": 1, "rho": 1}, "epsilon and rho together"),
        ({"epsilon": 0}, "epsilon must be above 0"),
        ({"epsilon": -1}, "epsilon must be above 0"),
        ({"epsilon": float("inf")}, "epsilon must be a finite number"),
        ({"mu": float("nan")}, "mu must be a finite number"),
        ({"epsilon": 1, "delta": 0}, "delta must be above 0"),
        ({"epsilon": 1, "delta": 1.0}, "delta must be above 0 and below 1"),
        ({"epsilon": True}, "epsilon must be a number"),
        ({"epsilon": "much"}, "epsilon must be a finite number"),
        ({"epsilon": "1/3"}, "in decimals"),
        ({"epsilon": [1]}, "epsilon must be a number"),
        ({"epsilon": "1e999999999"}, "in decimals"),  # a billion digits
        ({"rho": "1e-999999999"}, "in decimals"),
    ],
)
def test_what_is_not_a_budget_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Budget(**wrong)


def test_budgets_are_values() -> None:
    budget = Budget(epsilon=6, delta=1e-9)
    assert Budget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget
    assert len({budget, Budget(epsilon=6.0, delta="1e-9")}) == 1
    with pytest.raises(FrozenInstanceError):
        budget.epsilon = Fraction(7)  # type: ignore[misc]
