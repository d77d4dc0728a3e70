"""A ledger as one machine-readable record of a deployment, described in `docs/ledger.md`."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite, sqrt
from typing import Any

from streamveil.accounts.ledger import Charge, Ledger
from streamveil.core.accounting.guarantee import Loss

FORMAT = 1
ACCOUNTING = {
    "rule": "a filter: one cap per kind of loss, fixed before the first release; a charge is"
    " refused when any cap would be exceeded for any unit-period. Within its range alone count its"
    " pure epsilon, and all of it when it holds given the past; everywhere counts the rest",
    "kinds": {
        "gaussian": "sum of mu^2 (Gaussian differential privacy)",
        "zcdp": "sum of rho",
        "pure": "sum of epsilon",
        "delta": "sum",
        "chance": "sum of probabilities of events that no group raises; part of delta",
        "tables": "tables of coins by their certificates, each with how often it runs",
        "distance": "sum of total variation distances",
    },
    "conversion": "exact: the analytic Gaussian formula, products of randomised responses, the"
    " tight zCDP bound, certified loss laws of tables; rounded against the publisher",
}
CHAIN = {"algorithm": "BLAKE2b-128 of the previous hash and the record as sorted compact JSON"}
SPANS = ("user-week", "user-month", "user-year")


def record(ledger: Ledger) -> dict[str, Any]:
    """Everything in a ledger, as plain values for any JSON reader."""
    limit, spent = ledger.limit, ledger.spent()
    delta = limit.quoted_delta
    protects = ledger.protects
    return {
        "schema": f"streamveil-deployment/{FORMAT}",
        "format": FORMAT,
        "model": "central",
        "protects": protects.to_dict() | {"phrase": protects.phrase},
        "limit": limit.to_dict(),
        "caps": None if ledger.caps is None else ledger.caps.to_dict(),
        "accounting": ACCOUNTING,
        "charges": [charge_record(charge, delta) for charge in ledger.entries()],
        "spent": summary(spent, delta),
        "left": summary(ledger.left(), delta),
        "lifetime": {} if protects.period is None else {span: span_of(ledger, span)
                                                        for span in SPANS},
        "epsilon": number(spent.epsilon(delta)),
        "delta": str(delta),
        "chain": CHAIN | {"head": ledger.head, "charges": len(ledger.entries())},
        "head": ledger.head,
    }  # fmt: skip


def measured(ledger: Ledger) -> tuple[str, float]:
    """The rest of a limit, in its own measure; all of it before the first charge.

    >>> from streamveil.core.accounting import Budget
    >>> from streamveil.core.accounting.guarantee import Zcdp
    >>> from streamveil.core.accounting import Neighbours
    >>> with Ledger.open(None, Budget(rho=1), Neighbours("user")) as ledger:
    ...     ledger.charge("a", Zcdp(0.75))
    ...     measured(ledger)
    ('rho', 0.25)
    """
    limit, left = ledger.limit, ledger.left()
    if limit.rho is not None:
        return "rho", float(limit.rho if ledger.caps is None else left.zcdp)
    if limit.mu is not None:
        return "mu", sqrt(limit.mu**2 if ledger.caps is None else left.gaussian)
    assert limit.epsilon is not None  # noqa: S101  (a budget has exactly one of the three)
    if ledger.caps is None:
        return "epsilon", float(limit.epsilon)
    return "epsilon", left.epsilon(limit.quoted_delta)


def charge_record(charge: Charge, delta: Fraction) -> dict[str, Any]:
    """One charge, with its own loss at the limit's delta."""
    return charge.to_dict() | {
        "range": None if charge.range is None else list(charge.range),
        "separate": charge.separate,
        "given_past": charge.given_past,
        "summary": summary(charge.loss, delta),
    }


def summary(loss: Loss, delta: Fraction) -> dict[str, Any]:
    """A loss in the usual measures; null where a measure does not hold."""
    return {
        "exact": loss.to_dict(),
        "text": str(loss),
        "epsilon": number(loss.epsilon(delta)),
        "delta": str(delta),
        "rho": None if loss.needs_delta and not loss.rho() else number(loss.rho()),
        "mu": number(loss.mu()),
    }


def span_of(ledger: Ledger, span: str) -> dict[str, Any]:
    """The most that a unit present in every period of a longer time may lose."""
    guarantee = ledger.convert(span)
    epsilon, delta = guarantee.quoted(ledger.limit.quoted_delta)
    return {"periods": guarantee.periods, "epsilon": number(epsilon), "delta": str(delta)}


def number(value: float) -> float | None:
    """A number for JSON, which has no infinity: null."""
    return float(value) if isfinite(value) else None
