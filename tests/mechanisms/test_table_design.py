"""The table chosen for a setting: always the same one, and certified by the exact bound."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b

import pytest

from streamveil.mechanisms.selection import FINE
from streamveil.mechanisms.table_design import Lattice, NoTableError, Setting, design_selection
from streamveil.privacy.budget import Budget

# found by the search that asked the exact bound at every step: mu, shift, digest of the coins
CHOSEN = [
    (30, ("6", "1e-5"), 2, "19/25", ("199/200", "114/125", "1de8824d8bd50174"), 9.66311e-06),
    (30, ("8", "1e-5"), 1, "4/5", ("333/250", "186063/100000", "82f94a6816c36b59"), 9.99048e-06),
    (400, ("8", "1e-6"), 3, "1/2", ("153/200", "109347/125000", "14f27f2e3cdcd59b"), 9.97172e-07),
    (4, ("3", "1e-9"), 1, "4/5", ("411/1000", "84513/125000", "8ed1bec62ee0ae55"), 9.802e-10),
    (7, ("8", "1e-7"), 3, "19/25", ("541/500", "38227/62500", "e97cc908b0741714"), 9.90763e-08),
    (24, ("6", "1e-10"), 3, "19/25", ("701/1000", "53781/125000", "0df8ccd2104592c5"), 9.98491e-11),
    (168, ("4", "1e-6"), 1, "4/5", ("67/100", "29393/31250", "f7d092ab4de0022d"), 9.82305e-07),
    (500, ("2", "3.3e-12"), 1, "1/2", ("19/125", "261239/250000", "e7ad55e6803c7d66"), 2.80975e-12),
]  # fmt: skip


@pytest.mark.parametrize(("horizon", "limit", "keys", "share", "wanted", "delta"), CHOSEN)
def test_a_setting_keeps_its_design(
    horizon: int,
    limit: tuple[str, str],
    keys: int,
    share: str,
    wanted: tuple[str, str, str],
    delta: float,
) -> None:
    """A state resumes only with the mechanisms that it was begun with."""
    budget = Budget(epsilon=limit[0], delta=limit[1])
    design = design_selection(horizon, budget, keys, Fraction(share))
    coins = " ".join(map(str, design.selection.coins.coins)).encode()
    digest = blake2b(coins, digest_size=8).hexdigest()
    assert (str(design.mu), str(design.selection.shift_epsilon), digest) == wanted
    assert design.delta == pytest.approx(delta, rel=1e-5)
    certified = design.selection.delta_at(design.epsilon, design.mu, design.places)
    assert certified == design.delta <= Fraction(limit[1])


def test_a_search_that_errs_is_not_believed() -> None:
    """What floats let pass is certified, or a smaller shift is."""
    budget = Budget(epsilon=6, delta=1e-9)
    setting = Setting(10, budget, 1, Fraction(1, 2))
    honest = Lattice(setting, (Fraction(1), Fraction(1, 5)), Fraction(1, FINE))
    wanted = honest.certified()
    hopeful = Lattice(setting, (Fraction(1), Fraction(1, 5)), Fraction(1, FINE))
    hopeful.__dict__["places"] = honest.places + 5
    assert wanted == hopeful.certified()
    assert wanted is not None
    assert wanted.places == honest.places


@pytest.mark.parametrize("places", [20, 60, 100, 140])
def test_floats_are_near_the_exact_bound(places: int) -> None:
    setting = Setting(50, Budget(epsilon=4, delta=1e-8), 3, Fraction(2, 5))
    lattice = Lattice(setting, (Fraction(1, 2), Fraction(1, 9)), Fraction(1, 200))
    exact = lattice.table(places).delta_at(4, setting.mu, places)
    assert lattice._about(places) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    "budget", [Budget(epsilon=1e-7, delta=0.999), Budget(epsilon=1e-12, delta=1e-6)]
)
def test_tables_too_long_to_compute_are_none(budget):
    with pytest.raises(NoTableError, match=r"no table fits epsilon=1e-\d+.*\n.*to fix"):
        design_selection(100, budget, 4)
