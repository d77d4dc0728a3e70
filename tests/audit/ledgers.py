"""Ledgers, filled: what `streamveil.audit.ledger_account` judges."""

from datetime import timedelta
from fractions import Fraction

import numpy as np

from streamveil.accounts.ledger import Ledger
from streamveil.audit import ledger_account
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.errors import BudgetError

DAY, PEOPLE = Neighbours("user", period=timedelta(days=1)), Neighbours("user")
DAYS = 9
LIMITS = (
    Budget(epsilon=1, delta=Fraction("1e-6")), Budget(epsilon=4, delta=Fraction("1e-4")),
    Budget(epsilon=2), Budget(rho=Fraction(1, 2)),
    Budget(rho=Fraction(1, 8), delta=Fraction("1e-6")),
    Budget(mu=1), Budget(mu=Fraction(1, 2), delta=Fraction("1e-5")),
)  # fmt: skip


def loss_drawn(rng):
    """The loss of one mechanism, of one kind or of several."""
    part = lambda top: Fraction(int(rng.integers(1, 20)), 20) * Fraction(top)  # noqa: E731
    kinds = rng.permutation(4)[: int(rng.choice([1, 1, 1, 2, 3]))]
    return Loss(
        gaussian=part("0.2") if 0 in kinds else 0,
        zcdp=part("0.1") if 1 in kinds else 0,
        pure=((part("0.5"), int(rng.choice([1, 1, 3]))),) if 2 in kinds else (),
        delta=part(1) * Fraction(1, 10 ** int(rng.integers(5, 9))) if 3 in kinds else 0,
    )


def filled(rng):
    """A ledger with all charges that it took, of many that were tried."""
    protects, limit = (DAY, PEOPLE)[rng.random() < 0.3], LIMITS[int(rng.integers(len(LIMITS)))]
    ledger = Ledger.open(None, limit, protects)
    few = [loss_drawn(rng) for _ in range(3)]
    for nth in range(int(rng.integers(3, 25))):
        loss = few[int(rng.integers(3))]
        if rng.random() < 0.3:
            loss = loss_drawn(rng)
        given, separate = rng.random() < 0.5, rng.random() < 0.5
        periods = None
        if protects is DAY and rng.random() < 0.7:
            first = int(rng.integers(DAYS - 1))
            periods = first, first + int(rng.choice([1, 1, 2, 4]))
        made = Guarantee(protects, loss, None, separate, given_past=given)
        try:
            ledger.charge(f"{nth}", made, range=periods)
        except BudgetError:
            continue
    return ledger


def judged(seed):
    """(rule, the part of its claim that was realised) of one ledger."""
    yield from ledger_account.judged(filled(np.random.default_rng(seed)))
