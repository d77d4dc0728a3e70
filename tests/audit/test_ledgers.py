"""The account of the ledger's rules: what it takes fits its limit, and what it converts is true."""

import os
import time
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from scipy.optimize import brentq

from streamveil import accounts
from streamveil.accounts import ledger as module
from streamveil.audit.ledger_account import SLACK, lost
from streamveil.core.accounting.convert import gaussian_delta
from streamveil.core.accounting.guarantee import Loss
from tests.audit import ledgers

SECONDS = float(os.environ.get("STREAMVEIL_ACCOUNT_SECONDS", "120"))


def test_the_account_agrees_with_known_curves():
    for epsilon in (0.0, 0.3, 2.0):
        np.testing.assert_allclose(
            lost([], 0.25, [], epsilon), gaussian_delta(epsilon, 0.5), rtol=1e-9
        )
    both = (exp(1) / (1 + exp(1))) ** 2  # two randomised responses say the same
    np.testing.assert_allclose(lost([1, 1], 0, [], 1.0), both * (1 - exp(-1)), rtol=1e-9)
    np.testing.assert_allclose(lost([1], 0, [0.1], 1.0), 0.1, rtol=1e-9)
    assert brentq(lambda e: lost([1], 0, [], e) - 1e-9, 0, 2) > 0.999


def test_no_ledger_takes_more_than_its_limit_nor_converts_to_less_than_is_lost():
    worst: dict[str, float] = {}
    for seed in range(120):
        for rule, part in ledgers.judged(seed):
            assert part <= SLACK, (seed, rule, part)
            worst[rule] = max(worst.get(rule, 0.0), part)
    assert worst["a week"] > 0.999
    assert worst["limit in mu"] > 0.85
    assert worst["limit in rho"] > 0.85


@pytest.mark.slow
def test_new_ledgers_keep_their_limit():
    """New seeds for STREAMVEIL_ACCOUNT_SECONDS; the seed of a failure is in its message."""
    begun, seed = time.monotonic(), int(np.random.SeedSequence().entropy % 10**12)
    while time.monotonic() - begun < SECONDS:
        seed += 1
        for rule, part in ledgers.judged(seed):
            assert part <= SLACK, (seed, rule, part)


def ranged(loss, *, given_past):
    """Everything counts in its range alone."""
    return loss, Loss()


def cheap_gaussian(honest):
    return lambda loss, caps: honest(replace(loss, gaussian=loss.gaussian / 2), caps)


def wide_caps(honest):
    def caps_for(limit, first):
        found = honest(limit, first)
        return replace(found, gaussian=found.gaussian * 2, zcdp=found.zcdp * 2)

    return caps_for


FAULTS = {
    "deltas of disjoint ranges count once": (accounts, "split", lambda honest: ranged),
    "a Gaussian costs half": (accounts, "cost", cheap_gaussian),
    "pure losses cost nothing beside others": (
        accounts, "cost", lambda honest: lambda loss, caps: honest(
            replace(loss, pure=() if caps.zcdp or caps.gaussian else loss.pure), caps)
    ),
    "caps are twice the limit": (accounts, "caps_for", wide_caps),
    "zCDP counts as mu^2": (
        accounts, "cost", lambda honest: lambda loss, caps: honest(
            replace(loss, zcdp=loss.zcdp / 2), caps)
    ),
    "periods of one mechanism compose": (Loss, "group", lambda honest: Loss.times),
    "a charge holds one period only": (module.Charge, "held", lambda honest: lambda self, n: 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_in_the_rules_are_caught(name, monkeypatch):
    owner, attribute, make = FAULTS[name]
    monkeypatch.setattr(owner, attribute, make(getattr(owner, attribute)))
    for seed in range(150):
        if any(part > SLACK for _, part in ledgers.judged(seed)):
            return
    raise AssertionError(name)
