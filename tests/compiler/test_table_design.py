"""The table chosen for a setting: always the same one, and certified by the exact bound."""

from __future__ import annotations

from fractions import Fraction
from hashlib import blake2b

import pytest

from streamveil.compiler import table_design
from streamveil.compiler.table_design import Lattice, NoTableError, Setting, design_selection
from streamveil.core.accounting import Budget
from streamveil.core.selection.coins import FINE

# found by the descent of `table_design`: mu, shift, digest of the coins; delta
CHOSEN = [
    (30, ("6", "1e-5"), 2, "19/25", ("199/200", "931/1000", "492ded8fc9d97148"), 9.89024e-06),
    (30, ("8", "1e-5"), 1, "4/5", ("333/250", "952/625", "2f56aa038688a45d"), 9.98079e-06),
    (400, ("8", "1e-6"), 3, "1/2", ("153/200", "187429/125000", "bd1f89a23ee8595e"), 8.61876e-07),
    (4, ("3", "1e-9"), 1, "4/5", ("411/1000", "33579/50000", "aa9e7643d6885bca"), 9.51953e-10),
    (7, ("8", "1e-7"), 3, "19/25", ("541/500", "10397/12500", "247d6a8ef92e15bd"), 9.89284e-08),
    (24, ("6", "1e-10"), 3, "19/25", ("701/1000", "3633/6250", "9ee2f2dd76e151ab"), 9.08121e-11),
    (168, ("4", "1e-6"), 1, "4/5", ("67/100", "14616/15625", "ca022dc49e8acf1e"), 9.57523e-07),
    (500, ("2", "3.3e-12"), 1, "1/2", ("19/125", "644/625", "3d0287c40ecbd359"), 2.28168e-12),
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
    assert lattice.losses.delta(places) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    "budget", [Budget(epsilon=1e-7, delta=0.999), Budget(epsilon=1e-12, delta=1e-6)]
)
def test_tables_too_long_to_compute_are_none(budget):
    with pytest.raises(NoTableError, match=r"no table fits epsilon=1e-\d+.*\n.*to fix"):
        design_selection(100, budget, 4)


def test_flat_tables_need_no_finer_lattice(monkeypatch) -> None:
    """One test of a key makes the best tables flat: a fifth of the usual slope, or less."""
    setting = Setting(1, Budget(epsilon=1, delta="5e-8"), 8, Fraction("191/1000"))
    shape = Fraction("17/2500"), Fraction("23/1250")
    coarse = table_design._rough_half(setting, shape)
    assert setting.step(shape, 1) > shape[0]
    monkeypatch.setattr(table_design, "FLAT", 0)
    assert coarse == pytest.approx(table_design._rough_half(setting, shape), rel=0.002)


def test_a_shift_is_found_where_delta_pays_for_all_openings() -> None:
    """The search doubled the shift for minutes, and then divided by 0."""
    budget = Budget(epsilon="0.1", delta="0.05")
    assert design_selection(1, budget, 2).loss.fits(budget)


def test_tables_of_small_epsilons_are_the_same_but_for_scale() -> None:
    """Falls, shift and half go with 1 / epsilon: the search finds that out, soon."""
    steep, flat = (design_selection(30, Budget(epsilon=e, delta=1e-9), 2) for e in ("0.4", "0.1"))
    assert flat.delta <= 1e-9
    assert flat.half == pytest.approx(4 * steep.half, rel=0.1)
    shifts = [float(design.selection.shift_epsilon) for design in (steep, flat)]
    assert shifts[0] == pytest.approx(4 * shifts[1], rel=0.2)


@pytest.mark.parametrize(("keys", "half"), [(1, 12.18), (2, 18.64), (4, 27.47)])
def test_no_search_did_better(keys: int, half: float) -> None:
    """What the coordinate descent from a flatter start found."""
    assert design_selection(100, Budget(epsilon=6, delta=1e-9), keys).half <= 1.01 * half


@pytest.mark.parametrize("epsilon", [100, 711, 999_999])
def test_no_table_fits_where_epsilon_is_huge(epsilon):
    with pytest.raises(NoTableError):
        design_selection(6, Budget(epsilon=epsilon, delta=1e-6), 3)


def test_a_tiny_budget_leaves_something_for_the_releases():
    """Rounded to thousandths, their mu was 0, and sizing them stopped with an internal error."""
    budget = Budget(epsilon=Fraction(1, 100), delta=Fraction(1, 10**10))
    assert design_selection(4, budget, 1).mu > 0
