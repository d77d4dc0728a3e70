"""The ledger refuses in time, survives crashes, shows tampering and never forgets a charge."""

from __future__ import annotations

import copy
import errno
import gc
import json
import math
import multiprocessing
import os
import pickle
import sys
import threading
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamveil import accounts
from streamveil.accounts import deployment
from streamveil.accounts.ledger import Charge, Ledger
from streamveil.calendars import DAY, HOUR, Cells
from streamveil.calibrate import gaussian_mu
from streamveil.compiled import log_ndtr
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp, Guarantee, Loss, Pure, Zcdp
from streamveil.dataflow.windows import protected
from streamveil.errors import BudgetError, PlanError, StoreError
from tests.losses import approx

USER = Neighbours("user_id")
USER_DAY = Neighbours("user_id", period=timedelta(days=1))
SIX = Budget(epsilon=6, delta=1e-9)
RHO = Budget(rho=1)


def test_decimal_charges_use_up_a_decimal_limit_exactly() -> None:
    ledger = Ledger.open(None, Budget(epsilon=0.3), USER)
    for name in "abc":
        ledger.charge(name, Pure(0.1))
    assert ledger.spent() == Pure(0.1).times(3)
    assert ledger.left() == Loss()
    with pytest.raises(BudgetError):
        ledger.charge("d", Pure("1e-30"))


def test_a_refusal_says_what_was_asked_what_is_left_and_the_way_out() -> None:
    ledger = Ledger.open(None, RHO, USER)
    ledger.charge("first", Zcdp(0.92))
    with pytest.raises(BudgetError) as caught:
        ledger.charge("daily_visits", Zcdp(0.125))
    message = str(caught.value)
    for part in ("'daily_visits'", "'in memory'", "rho=0.125", "rho=0.08", "rho=1", "to fix"):
        assert part in message
    assert caught.value.asked == Zcdp(0.125)
    assert caught.value.left == Zcdp(0.08)
    assert len(ledger.entries()) == 1


def test_any_single_mechanism_that_fits_the_limit_fits_the_ledger() -> None:
    mu = gaussian_mu(Budget(epsilon=6, delta=Fraction(1, 2 * 10**9)))
    for loss in (
        Gdp(gaussian_mu(SIX)),
        Gdp(mu) + Loss(delta=Fraction(1, 2 * 10**9)),
        approx(6, 1e-9),
        approx(6, 8.7e-10),
        Pure(6),
        Zcdp(0.4),
        Gdp(0.5) + Pure(1) + Loss(delta=Fraction(1, 10**10)),
    ):
        assert loss.fits(SIX)
        ledger = Ledger.open(None, SIX, USER)
        ledger.charge("only", loss)
        assert ledger.caps is not None
        assert ledger.caps.fits(SIX)
        with pytest.raises(BudgetError):
            ledger.charge("again", loss.times(40))


@pytest.mark.parametrize(
    "loss",
    [
        Gdp(10),
        Zcdp(50),
        Zcdp(50) + Pure(1),
        Loss(distance=Fraction(1, 10)),
        Gdp(1) + Loss(delta=Fraction(1, 1000)),
        Gdp("1e30"),
        approx(3, 1e-3),
    ],
)
def test_a_first_charge_that_does_not_fit_is_refused_also_with_round_numbers(loss: Loss) -> None:
    ledger = Ledger.open(None, SIX, USER)
    for take in (ledger.require, ledger.charge):
        with pytest.raises(BudgetError) as caught:
            take("first", loss)
        left = caught.value.left
        assert left is not None
        assert left.fits(SIX)
    assert ledger.entries() == []
    ledger.charge("one that fits", Gdp(0.5))


def test_a_first_charge_whose_many_pure_losses_compose_is_taken() -> None:
    many = Loss(gaussian=Fraction(1, 10**4), pure=((Fraction(1, 200), 1600),))
    assert many.fits(SIX)
    assert not accounts._times(many, Fraction(1)).fits(SIX)
    ledger = Ledger.open(None, SIX, USER)
    ledger.charge("many", many)
    assert ledger.caps is not None
    assert ledger.caps.fits(SIX)
    with pytest.raises(BudgetError):
        ledger.charge("one more", Pure("1e-9"))


MANY = Loss(pure=((Fraction(1, 10), 100),))  # fits epsilon 6 together, and its sum does not


@pytest.mark.parametrize("limit", [Budget(epsilon=6, delta=1e-6), Budget(rho=0.51)])
def test_no_single_charge_takes_what_many_small_ones_were_let(limit: Budget) -> None:
    assert MANY.fits(limit)
    with pytest.raises(PlanError, match="epsilon=10 do not fit"):
        Ledger.open(None, limit, USER, caps=MANY)


@pytest.mark.parametrize("other", [Gdp(0.1), Loss(distance=Fraction(1, 10**12))])
def test_what_many_small_losses_leave_in_other_periods_fits_as_one(other: Loss) -> None:
    ledger = Ledger.open(None, Budget(epsilon=6, delta=1e-6), USER_DAY)
    with pytest.raises(BudgetError):  # else another day had epsilon 10 left
        ledger.charge("many", MANY + other, range=(0, 1))
    ledger.charge("many", MANY + other)
    assert ledger.left().pure_total == 0


def test_many_small_gaussians_use_the_whole_analytic_limit() -> None:
    ledger = Ledger.open(None, SIX, USER)
    part = Gdp.squared(Fraction(gaussian_mu(SIX)) ** 2 / 100)
    for number in range(100):
        ledger.charge(f"n{number}", part)
    with pytest.raises(BudgetError):
        ledger.charge("one more", part)
    assert ledger.spent().fits(SIX)


def test_many_small_pure_charges_compose_as_zcdp() -> None:
    ledger = Ledger.open(None, Budget(epsilon=1, delta=1e-6), USER)
    for _ in range(400):  # twice what adding epsilons would allow
        ledger.charge("small", Pure(0.005))
    assert ledger.spent().fits(ledger.limit)
    with pytest.raises(BudgetError):
        ledger.charge("large", Pure(0.5))


def test_no_more_noise_is_advised_where_a_first_charge_left_no_delta() -> None:
    ledger = Ledger.open(None, Budget(epsilon=8, delta="1e-7"), USER)
    ledger.charge("survey", Gdp(0.1))
    with pytest.raises(BudgetError, match=r"no cap for delta loss .* a limit in rho and delta"):
        ledger.charge("visits", Gdp(0.1) + Loss(delta=Fraction(1, 10**12)))
    with pytest.raises(BudgetError, match="use more noise"):
        ledger.charge("visits", Gdp(9))


def test_caps_share_a_limit_between_kinds() -> None:
    caps = Gdp(0.6) + approx(1, 1e-10)
    ledger = Ledger.open(None, SIX, USER, caps=caps)
    ledger.charge("counts", Gdp(0.6))
    ledger.charge("keys", approx(1, 1e-10))
    with pytest.raises(BudgetError, match="no cap for zcdp"):
        ledger.charge("other", Zcdp(0.001))
    with pytest.raises(ValueError, match="do not fit"):
        Ledger.open(None, SIX, USER, caps=Gdp(2))


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 3.0, 20.0, 700.0])
def test_pure_losses_restated_as_gaussian_dominate(epsilon: float) -> None:
    (square, *_) = accounts.cost(Pure(epsilon), Gdp(1000))
    gaussian = accounts.as_loss((square, 0, 0, 0, 0))
    for share in (0.0, 0.3, 0.9):
        at = share * epsilon
        assert gaussian.delta_at(at) >= Pure(epsilon).delta_at(at) * (1 - 1e-8) - 1e-15
    tail = float(log_ndtr(-math.sqrt(gaussian.gaussian) / 2))  # where it is as likely as the other
    assert tail <= -np.logaddexp(0, epsilon) * (1 - 1e-9)


@given(st.floats(-400, 0.5))
@example(-3.0)
@example(-17.0)  # once nothing was charged for it
def test_small_pure_losses_take_no_less_than_their_square(exponent: float) -> None:
    with mpmath.workdps(900):
        epsilon = mpmath.mpf(10) ** exponent
        mu = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(epsilon / 2))
        loss = Pure(Fraction(mpmath.nstr(epsilon, 30)))
        (square, *_) = accounts.cost(loss, Gdp(1000))
        least = mu**2 * (1 - mpmath.mpf(10) ** -25) * accounts.UNIT  # 30 digits are charged
        assert least <= square < least * 1.00001 + 1


@pytest.mark.parametrize("limit", [Budget(mu=1, delta="1e-6"), Budget(rho=1, delta="1e-6")])
@pytest.mark.parametrize("known", [True, False])
def test_a_charge_that_fits_its_limit_exactly_has_room(limit: Budget, *, known: bool) -> None:
    """Though its delta and its chance are no multiples of what a ledger counts in."""
    chance = Fraction(125, 2**61)
    loss = Loss(gaussian=1, delta=Fraction("1e-6") - chance, chance=chance)
    assert loss.fits(limit)
    ledger = Ledger.open(None, limit, USER)
    ledger.charge("all of it", Guarantee(USER, loss, given_past=known))
    with pytest.raises(BudgetError):
        ledger.charge("more", Loss(delta=Fraction(1, 10**60)))


THIRD = Fraction(1, 3)
THIRDS = (
    (Budget(epsilon=THIRD), Pure(THIRD)),
    (Budget(epsilon=THIRD, delta=THIRD / 10**9), Pure(THIRD)),
    (Budget(rho=THIRD, delta=THIRD / 10**9), Loss(zcdp=THIRD, delta=THIRD / 10**9)),
    (Budget(mu=THIRD), Gdp(THIRD)),
)


@pytest.mark.parametrize(("limit", "loss"), THIRDS)
def test_a_limit_in_thirds_is_used_up_once(limit: Budget, loss: Loss) -> None:
    """It is no multiple of what a ledger counts in; nothing else fits beside the charge."""
    ledger = Ledger.open(None, limit, USER)
    ledger.charge("all of it", loss)
    for more in (loss, replace(loss, delta=0), Pure(Fraction(1, 10**60))):
        with pytest.raises(BudgetError):
            ledger.charge("more", more)
    with pytest.raises(BudgetError):
        Ledger.open(None, limit, USER).charge("more than all", loss + Pure(Fraction(1, 10**70)))
    tiny = Fraction(1, 3 * 10**60)  # a limit of less than one unit holds nothing
    with pytest.raises(BudgetError):
        Ledger.open(None, Budget(epsilon=tiny), USER).charge("all of it", Pure(tiny))


@given(st.fractions(Fraction(1, 10**9), Fraction(1, 2), max_denominator=10**12))
def test_charges_are_rounded_up_and_caps_down(amount: Fraction) -> None:
    loss = Loss(amount, amount, ((amount, 1),), amount / 2, amount)
    exact = [x * accounts.UNIT for x in (amount, amount, amount, amount / 2, amount)]
    taken, room = accounts.amounts(loss), accounts.limits(loss)
    for true, more, less in zip(exact, taken, room, strict=True):
        assert less <= true <= more <= less + 1


def test_gaussian_charges_take_half_of_mu_squared_of_a_limit_in_rho() -> None:
    ledger = Ledger.open(None, RHO, USER)
    for name in "ab":
        ledger.charge(name, Gdp(1))
    assert ledger.left() == Loss()
    with pytest.raises(BudgetError):
        ledger.charge("c", Gdp("0.001"))


# --- ranges ---------------------------------------------------------------------------------------


def given_past(loss: Loss) -> Guarantee:
    return Guarantee(USER_DAY, loss, given_past=True)


ranged = st.one_of(
    st.none(), st.tuples(st.integers(-5, 20), st.integers(1, 12)).map(lambda r: (r[0], sum(r)))
)


@given(st.lists(st.tuples(ranged, st.integers(1, 9)), max_size=25))
@settings(deadline=None)
def test_ranges_equal_a_table_of_all_periods(
    charges: list[tuple[tuple[int, int] | None, int]],
) -> None:
    ledger = Ledger.open(None, Budget(rho=3), USER_DAY)
    oracle: dict[int, Fraction] = defaultdict(Fraction)
    everyday = range(-10, 40)
    for place, (periods, tenths) in enumerate(charges):
        touched = everyday if periods is None else range(*periods)
        fits = all(oracle[day] + Fraction(tenths, 10) <= 3 for day in touched)
        try:
            ledger.charge(f"{place}", given_past(Zcdp(Fraction(tenths, 10))), range=periods)
        except BudgetError:
            assert not fits
            continue
        assert fits
        for day in touched:
            oracle[day] += Fraction(tenths, 10)
    assert ledger.spent().zcdp == max((oracle[day] for day in everyday), default=0)
    assert ledger.left((3, 7)).zcdp == 3 - max(oracle[day] for day in range(3, 7))


def test_what_a_charge_takes_in_its_range_and_everywhere_counts_together() -> None:
    ledger = Ledger.open(None, Budget(rho=1, delta="3e-6"), USER_DAY)
    chance = Fraction("2e-6")
    with pytest.raises(BudgetError):
        ledger.charge("two", given_past(Loss(delta=chance, chance=chance)), range=(0, 1))
    ledger.charge("one", given_past(Loss(delta=chance / 2, chance=chance)), range=(0, 1))
    with pytest.raises(BudgetError):
        ledger.charge("same day", given_past(Loss(delta=chance / 4)), range=(0, 1))
    ledger.charge("other day", given_past(Loss(delta=chance / 2)), range=(1, 2))


def test_disjoint_ranges_cost_their_maximum_only_for_unit_periods() -> None:
    ledger = Ledger.open(None, RHO, USER_DAY)
    for day in range(100):
        ledger.charge("daily", given_past(Zcdp(1)), range=(day, day + 1))
    assert ledger.spent() == Zcdp(1)
    with pytest.raises(BudgetError):
        ledger.charge("weekly", given_past(Zcdp(0.1)), range=(98, 105))
    with pytest.raises(ValueError, match="privacy unit with a period"):
        Ledger.open(None, RHO, USER).charge("daily", Zcdp(1), range=(0, 1))


@pytest.mark.parametrize("part", [(0.0, 0.5), (0, 1.5), (0, math.inf), ("a", "b"), (1, 2, 3), 5])
def test_a_range_is_of_whole_periods(part: tuple[int, int]) -> None:
    """Else two halves of one day cost their maximum."""
    ledger = Ledger.open(None, Budget(epsilon=1), USER_DAY)
    with pytest.raises(PlanError, match=r"range must be"):
        ledger.charge("a", Pure(1), range=part)
    assert ledger.entries() == []
    ledger.charge("a", Pure(1), range=(np.int64(0), np.int64(1)))  # type: ignore[arg-type]
    assert ledger.entries()[0].range == (0, 1)


def test_arguments_of_another_kind_are_refused_by_name() -> None:
    ledger = Ledger.open(None, RHO, USER)
    for fault, loss, named in (
        ("name must be text", Zcdp(1), {"name": None}),
        ("key must be text", Zcdp(1), {"key": 0}),
        ("loss must be a Loss", RHO, {}),
    ):
        with pytest.raises(PlanError, match=fault):
            ledger.charge(**{"name": "a", "loss": loss, **named})  # type: ignore[arg-type]
    assert ledger.entries() == []
    for fault, opened in (
        ("limit must be a Budget", (1, USER, None)),
        ("protects must be a Neighbours", (RHO, "user", None)),
        ("caps must be a Loss", (RHO, USER, RHO)),
    ):
        with pytest.raises(PlanError, match=fault):
            Ledger.open(None, *opened[:2], caps=opened[2])  # type: ignore[arg-type]


def test_a_year_adds_up_the_days() -> None:
    ledger = Ledger.open(None, Budget(mu=1), USER_DAY)
    for day in range(400):
        separate = Guarantee(USER_DAY, Gdp(0.5), separate=True, given_past=True)
        ledger.charge("daily", separate, range=(day, day + 1))
    assert ledger.convert("user-week").loss == Gdp.squared(Fraction(7, 4))
    assert ledger.convert("user-year").loss == Gdp.squared(Fraction(366, 4))
    ledger.charge("whole", Gdp(0.1))  # one mechanism that reads all days: group privacy
    assert ledger.convert("user-week").loss == Gdp.squared(Fraction(7, 4) + Fraction(49, 100))
    assert "present in at most 7 days" in ledger.convert("user-week").sentence(1e-6)
    with pytest.raises(ValueError, match="did you mean 'year'"):
        ledger.convert("user-yaer")


def test_days_of_one_charge_add_up_where_each_has_mechanisms_of_its_own() -> None:
    for separate, times in ((True, 7), (False, 49)):
        ledger = Ledger.open(None, Budget(mu=1), USER_DAY)
        month = Guarantee(USER_DAY, Gdp(0.1), separate=separate, given_past=True)
        ledger.charge("a month", month, range=(0, 30))
        assert ledger.convert("user-week").loss == Gdp.squared(Fraction(times, 100))


def test_a_year_with_slack_walks_from_day_to_day() -> None:
    ledger = Ledger.open(None, Budget(mu=1, delta=1e-9), USER_DAY)
    loss = Gdp(0.1) + Loss(delta=Fraction(1, 10**20))
    ledger.charge("shared", loss)
    assert ledger.convert("user-week").loss == loss.group(7)


# --- durability -----------------------------------------------------------------------------------


def test_the_same_key_is_charged_once_also_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    with Ledger.open(path, RHO, USER) as ledger:
        ledger.charge("a", Zcdp(0.6), key="job-1")
        ledger.charge("a", Zcdp(0.6), key="job-1")
        with pytest.raises(ValueError, match="another content"):
            ledger.charge("a", Zcdp(0.5), key="job-1")
    with Ledger.load(path) as again:
        again.charge("a", Zcdp(0.6), key="job-1")
        assert again.spent() == Zcdp(0.6)
        assert [charge.name for charge in again.entries()] == ["a"]
        assert again.limit == RHO


def test_the_same_key_is_charged_once_within_a_group_too() -> None:
    ledger = Ledger.open(None, RHO, USER)
    one, other = (Charge("a", Zcdp(rho), key="job-1") for rho in (0.6, 0.5))
    with pytest.raises(ValueError, match="another content"):
        ledger.charge_all([one, other])
    ledger.charge_all([one, one])
    assert ledger.spent() == Zcdp(0.6)


def test_another_limit_or_unit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    Ledger.open(path, RHO, USER).close()
    for limit, protects in ((Budget(rho=2), USER), (RHO, USER_DAY)):
        with pytest.raises(StoreError, match="created with the limit rho=1"):
            Ledger.open(path, limit, protects)
    with pytest.raises(StoreError, match="no ledger"):
        Ledger.load(tmp_path / "none.jsonl")


def filled(path: Path, charges: int = 6) -> str:
    with Ledger.open(path, RHO, USER) as ledger:
        for number in range(charges):
            ledger.charge(f"c{number}", Zcdp(0.1))
        return ledger.verify()


def test_every_changed_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    head = filled(path)
    original = path.read_bytes()
    for place in range(0, len(original), 7):
        changed = bytearray(original)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises((StoreError, UnicodeDecodeError)):
            Ledger.load(path).verify(head)
    lines = original.splitlines(keepends=True)
    for tampered in (lines[:2] + lines[3:], [*lines[:2], lines[3], lines[2], *lines[4:]]):
        path.write_bytes(b"".join(tampered))
        with pytest.raises(StoreError, match="altered"):
            Ledger.load(path)
    path.write_bytes(b"".join(lines[:-1]))
    shorter = Ledger.load(path)
    shorter.verify()  # a valid shorter ledger ...
    with pytest.raises(StoreError, match="lost records"):
        shorter.verify(head)  # ... unless an earlier hash was kept
    with pytest.raises(PlanError, match="head='3f2a' is no hash"):
        shorter.verify("3f2a")
    with pytest.raises(StoreError, match="make its folder"):
        Ledger.open(tmp_path / "none" / "visits.jsonl", RHO, USER)


@pytest.mark.parametrize("content", [b"notes of no line", b"PAR1\x15\x04\n", b"{}\n", b" "])
def test_a_file_of_another_kind_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    for use in (Ledger.load, lambda file: Ledger.open(file, Budget(rho=1), USER)):
        with pytest.raises(StoreError, match="mine is not a ledger of streamveil, and was left"):
            use(path)
        assert path.read_bytes() == content


@pytest.mark.parametrize("left", [b"", b"{", b'{"hash":"12', bytes(300)])
def test_a_creation_that_was_cut_short_is_begun_anew(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(left)
    Ledger.open(path, Budget(rho=1), USER)
    assert Ledger.load(path).limit == Budget(rho=1)


def test_a_torn_tail_was_never_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    filled(path)
    original = path.read_bytes()
    last = len(original.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        path.write_bytes(original[: len(original) - cut])
        with Ledger.load(path) as ledger:
            assert ledger.spent() == Zcdp(0.5)
            with pytest.raises(StoreError, match=r"ends within a record(.|\n)*to fix"):
                ledger.verify()
            ledger.charge("c5", Zcdp(0.1))
            ledger.verify()
        assert path.read_bytes() == original


def test_nothing_is_left_of_a_torn_record_behind_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    filled(path)
    with Ledger.load(path) as ledger:
        ledger.charge("a name that is longer", Zcdp(0.1))
    path.write_bytes(path.read_bytes()[:-1])
    with Ledger.load(path) as ledger:
        ledger.charge("d", Zcdp(0.1))
        ledger.verify()
        assert ledger.entries()[-1].name == "d"


def test_a_ledger_that_shrinks_while_open_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "visits.jsonl"
    filled(path)
    with Ledger.load(path) as ledger:
        os.truncate(path, 100)
        with pytest.raises(StoreError, match="lost records"):
            ledger.charge("more", Zcdp(0.1))


def test_a_ledger_stays_where_it_is_when_its_process_works_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with Ledger.open("visits.jsonl", Budget(rho=1), USER) as ledger:
        monkeypatch.chdir(elsewhere)
        ledger.charge("one", Zcdp(0.1))
        assert ledger.verify() == ledger.head
        ledger.close()
        ledger.charge("two", Zcdp(0.1))
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize("then", ["replaced", "moved", "deleted"])
def test_nothing_is_charged_to_a_file_that_lost_its_name(tmp_path: Path, then: str) -> None:
    """Two processes would otherwise fill one limit twice, each in a file of its own."""
    path, copy = tmp_path / "visits.jsonl", tmp_path / "copy.jsonl"
    filled(path)
    with Ledger.load(path) as ledger:
        copy.write_bytes(path.read_bytes())
        if then == "replaced":
            copy.replace(path)
        else:
            path.rename(copy) if then == "moved" else path.unlink()
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            ledger.charge("more", Zcdp(0.1))
        with pytest.raises(StoreError, match="moved, deleted or replaced"):
            ledger.left()
    if then == "replaced":
        with Ledger.load(path) as ledger:
            ledger.charge("more", Zcdp(0.1))


def test_a_process_may_go_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filled(Path("visits.jsonl"))
    with Ledger.load("visits.jsonl") as ledger:
        monkeypatch.chdir("/")
        ledger.charge("more", Zcdp(0.1))
    assert Ledger.load(tmp_path / "visits.jsonl").entries()[-1].name == "more"


def test_a_failed_write_charges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "visits.jsonl"
    filled(path)
    before = path.read_bytes()
    with Ledger.load(path) as ledger:
        real = os.pwrite

        def full(file: int, data: bytes, at: int) -> int:
            real(file, data[:10], at)
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreError, match="No space left"):
                ledger.charge("more", Zcdp(0.1))
        assert path.read_bytes() == before
        assert ledger.spent() == Zcdp(0.6)
        ledger.charge("more", Zcdp(0.1))
        ledger.verify()


def test_the_name_of_a_file_is_durable_before_it_is_charged_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "visits.jsonl", list[tuple[Path, int]]()
    path.touch()  # by a process that was killed then
    monkeypatch.setattr(
        accounts, "sync_directory", lambda folder: synced.append((folder, path.stat().st_size))
    )
    with Ledger.open(path, RHO, USER) as ledger:
        ledger.charge("visits", Zcdp(0.1))
    assert synced == [(tmp_path, 0)]


@pytest.mark.parametrize("block", [64, 512])
def test_no_blocks_that_a_power_failure_takes_alter_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Whatever was written since the last sync is there or not, block by block."""
    path, image = tmp_path / "visits.jsonl", tmp_path / "image.jsonl"
    filled(path)
    durable, sync, rng = path.read_bytes(), os.fsync, np.random.default_rng(block)
    seen, known = set[int](), list[Charge]()
    charges = [Charge(f"{name}{'.' * 300}", Zcdp(0.01), key=name) for name in "abc"]

    def fsync(fd: int) -> None:
        nonlocal durable
        written = path.read_bytes()
        for kept in rng.integers(2, size=(60, -(-len(written) // block))):
            made = bytearray(durable[: len(written)].ljust(len(written), b"\0"))
            for start in np.flatnonzero(kept) * block:
                made[start : start + block] = written[start : start + block]
            image.write_bytes(made)
            with Ledger.load(image) as ledger:
                found = ledger.entries()
                ledger.charge_all(charges[:1])
                seen.add(len(found))
                assert found == (known + charges)[: len(found)]
        durable = written
        sync(fd)

    with Ledger.load(path) as ledger:
        known += ledger.entries()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda fd: fsync(fd) if at(fd) == path else sync(fd))
            ledger.charge_all(charges[:1])
            ledger.charge_all(charges[1:])
        assert ledger.entries() == known + charges
        ledger.verify()
    assert {len(known), len(known) + 1, len(known) + 3} <= seen


def at(fd: int) -> Path:
    """Where an open file is."""
    return Path(os.readlink(f"/proc/self/fd/{fd}"))


@pytest.mark.parametrize("why", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_what_may_only_be_read_is_read_and_never_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    path = tmp_path / "visits.jsonl"
    head = filled(path)
    before, real = path.read_bytes(), os.open

    def read_only(name: str, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(why, os.strerror(why))
        return real(name, flags, *mode)

    monkeypatch.setattr(os, "open", read_only)
    with Ledger.load(path) as ledger:
        assert (ledger.spent(), ledger.verify()) == (Zcdp(0.6), head)
        for _ in range(2):
            with pytest.raises(StoreError, match=os.strerror(why)):
                ledger.charge("more", Zcdp(0.1))
        assert ledger.spent() == Zcdp(0.6)
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match=f"cannot be opened: {os.strerror(why)}"):
        Ledger.open(tmp_path / "new.jsonl", RHO, USER)


def charge_often(where: Path | str, name: str, refused: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    count = 0
    with Ledger.load(where) as ledger:
        for number in range(40):
            try:
                ledger.charge(f"{name}{number}", Zcdp("0.0125"))
            except BudgetError:
                count += 1
    refused.put(count)


def test_processes_share_a_limit(where: Path | str) -> None:
    Ledger.open(where, RHO, USER).close()
    context = multiprocessing.get_context("fork")
    refused = context.Queue()
    jobs = [context.Process(target=charge_often, args=(where, name, refused)) for name in "abc"]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert sum(refused.get() for _ in jobs) == 40
    with Ledger.load(where) as ledger:
        assert ledger.spent() == Zcdp(1)
        assert len(ledger.entries()) == 80
        ledger.verify()


def test_threads_and_forked_processes_share_an_open_ledger(where: Path | str) -> None:
    """The lock of an open file holds for a forked child, and for each thread, as if it were one."""
    ledger, refused = Ledger.open(where, RHO, USER), multiprocessing.get_context("fork").Queue()

    def charge(name: str) -> None:
        count = 0
        for number in range(20):
            try:
                ledger.charge(f"{name}{number}", Zcdp("0.0125"))
            except BudgetError:
                count += 1
        refused.put(count)

    def in_threads(names: str) -> None:
        threads = [threading.Thread(target=charge, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ledger.charge("first", Zcdp("0.0125"))
    every = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        context = multiprocessing.get_context("fork")
        jobs = [context.Process(target=in_threads, args=(names,)) for names in ("ab", "cd")]
        for job in jobs:
            job.start()
        in_threads("ef")
        for job in jobs:
            job.join()
    finally:
        sys.setswitchinterval(every)
    assert sum(refused.get() for _ in "abcdef") == 41
    assert len(ledger.entries()) == 80
    ledger.close()
    with Ledger.load(where) as again:
        assert again.spent() == Zcdp(1)
        again.verify()


@pytest.mark.parametrize("when", ["in memory", "while charged"])
def test_a_ledger_that_may_be_half_in_memory_is_refused_to_a_forked_process(
    tmp_path: Path, when: str
) -> None:
    ledger = Ledger.open(None if when == "in memory" else tmp_path / "l.jsonl", RHO, USER)
    ledger.charge("a", Zcdp("0.5"))
    entered, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with ledger._journal.locked():
            entered.set()
            go_on.wait(100)

    def told(found: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
        try:
            ledger.charge("b", Zcdp("0.5"))
            found.put("charged")
        except StoreError as error:
            found.put(str(error))

    thread = threading.Thread(target=hold)
    if when == "while charged":
        thread.start()
        entered.wait(100)
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=told, args=(found,))
    child.start()
    assert "opened before this process was forked" in found.get(timeout=100)
    child.join()
    go_on.set()
    if when == "while charged":
        thread.join()
    ledger.charge("b", Zcdp("0.5"))
    assert ledger.spent() == Zcdp(1)


def test_a_group_of_charges_is_all_or_nothing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.jsonl", RHO, USER) as ledger:
        with pytest.raises(BudgetError, match="'c'"):
            ledger.charge_all([Charge(name, Zcdp(0.4)) for name in "abc"])
        assert ledger.entries() == []
        ledger.charge_all([Charge(name, Zcdp(0.5)) for name in "ab"])
        assert ledger.left() == Zcdp(0)


def test_a_guarantee_about_others_is_refused() -> None:
    ledger = Ledger.open(None, RHO, USER_DAY)
    with pytest.raises(ValueError, match="the ledger protects"):
        ledger.charge("a", Guarantee(USER, Zcdp(0.1)))
    with pytest.raises(ValueError, match="one unit-period"):
        ledger.charge("a", Guarantee(USER_DAY, Zcdp(0.1)).over(7))


WEEK = 7 * DAY
OTHER_GRIDS = [  # and whether they are one
    (Cells(length_us=HOUR), Cells(length_us=HOUR, zone="Europe/Berlin"), True),
    (Cells(length_us=DAY), Cells(length_us=DAY, origin_us=HOUR), False),
    (Cells(length_us=DAY), Cells(length_us=DAY, zone="Europe/Berlin"), False),
    (
        Cells(length_us=DAY, zone="Europe/Berlin"),
        Cells(length_us=DAY, origin_us=HOUR, zone="Europe/Berlin"),
        False,
    ),
    (Cells(length_us=WEEK), Cells(length_us=WEEK, origin_us=4 * DAY), False),
    (Cells(length_us=WEEK, origin_us=4 * DAY), Cells(length_us=WEEK, origin_us=11 * DAY), True),
    (Cells(months=3), Cells(months=3, origin_us=90 * DAY), True),
    (Cells(months=3), Cells(months=3, origin_us=31 * DAY), False),
    (Cells(months=1), Cells(months=1, origin_us=DAY), False),
]


@pytest.mark.parametrize(("ours", "theirs", "one"), OTHER_GRIDS)
def test_periods_that_begin_at_other_times_share_no_limit(
    ours: Cells, theirs: Cells, *, one: bool
) -> None:
    """One period of a ledger's would meet two of a charge's, and be charged for one of them."""
    times = np.arange(-500, 500, dtype=np.int64) * 13 * HOUR
    first, second = (np.diff(cells.numbers(times)) for cells in (ours, theirs))
    assert one == np.array_equal(first, second)
    ledger = Ledger.open(None, RHO, protected("user", ours))
    refused = pytest.raises(PlanError, match="the ledger protects")
    with nullcontext() if one else refused:
        ledger.charge("a", Guarantee(protected("user", theirs), Zcdp(0.1)))


def test_the_export_is_json_and_complete(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.jsonl", SIX, USER) as ledger:
        ledger.charge("visits", Guarantee(USER, Gdp(0.5), horizon=1000), key="job")
        record = json.loads(json.dumps(deployment.record(ledger)))
        assert record["charges"][0]["horizon"] == 1000
        assert record["epsilon"] == Gdp(0.5).epsilon(1e-9)
        assert record["head"] == ledger.verify()
        assert "user_id" in record["protects"]["phrase"]


def test_the_export_tells_ranges_lifetime_and_what_was_charged(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "l.jsonl", SIX, USER_DAY) as ledger:
        about = {"mechanisms": {"kind": "counter"}}
        ledger.charge("a", Gdp(0.5), range=(3, 9), key="k", about=about)
        ledger.charge("a", Gdp(0.5), range=(3, 9), key="k")  # a restart: known, free
    with Ledger.load(tmp_path / "l.jsonl") as ledger:
        record = json.loads(json.dumps(deployment.record(ledger), allow_nan=False))
    (charge,) = record["charges"]
    assert charge["about"] == about
    assert charge["range"] == [3, 9]
    assert charge["summary"]["mu"] == pytest.approx(0.5)
    assert record["lifetime"]["user-week"]["periods"] == 7
    assert record["lifetime"]["user-year"]["epsilon"] > record["epsilon"]
    assert record["spent"]["epsilon"] == record["epsilon"]
    assert record["left"]["epsilon"] > 0
    assert record["chain"]["head"] == record["head"]
    assert record["accounting"]["kinds"].keys() >= {"gaussian", "zcdp", "pure", "delta"}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of open files")
def test_ledgers_give_their_files_back(tmp_path):
    path = tmp_path / "l.jsonl"
    gc.collect()  # what tests before this one left
    before = len(os.listdir("/proc/self/fd"))
    Ledger.open(path, RHO, USER)  # neither closed nor kept
    for _ in range(5):
        Ledger.load(path).close()
        Ledger.load(path)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_ledger_is_not_copied():
    """Two copies took the whole limit each."""
    ledger = Ledger.open(None, RHO, USER)
    for way in (copy.copy, copy.deepcopy, pickle.dumps, lambda one: copy.deepcopy([one])):
        with pytest.raises(PlanError, match="a ledger is not copied"):
            way(ledger)
