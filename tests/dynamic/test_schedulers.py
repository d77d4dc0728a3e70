import copy
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import pytest

from streamveil.core.accounting import Budget
from streamveil.core.noise import Place, SilentNoise
from streamveil.dynamic.schedulers import (
    BBImprover,
    BBScheduler,
    DisjointDoubling,
    Reruns,
    ScheduledRun,
)
from streamveil.errors import BudgetError, PlanError, UncopiedNoiseError
from streamveil.linear.budget_shares import Share

PURE, ZCDP = Budget(epsilon=1), Budget(rho="0.5")


@pytest.mark.parametrize("budget", [PURE, ZCDP])
@pytest.mark.parametrize("mode", ["paper", "plus"])
@pytest.mark.parametrize("gamma", [0.05, 0.3, 1.0])
def test_the_shares_of_all_runs_add_to_the_budget_and_never_above(budget, mode, gamma):
    plan = BBScheduler(start=100, budget=budget, gamma=gamma, mode=mode)
    spent = sum(
        (plan.run(i).share.amount for i in range(int(150 / math.log1p(gamma)) // 3)), Fraction(0)
    )
    assert plan.whole.amount * Fraction(9999, 10000) < spent <= plan.whole.amount


def test_the_published_shares_are_the_closed_form():
    gamma, plan = 0.3, BBScheduler(start=10, budget=PURE, gamma=0.3, mode="paper")
    for i in range(20):
        expected = gamma**2 * (i + 1) / (1 + gamma) ** (i + 2)
        assert math.isclose(plan.run(i).share.amount, expected, rel_tol=1e-9)
        assert plan.run(i).beta == pytest.approx((0.05 / 1.05) ** (i + 1))
    plan = BBScheduler(start=10, budget=ZCDP, gamma=gamma, mode="paper")
    s = (1 + gamma) * (1 + (1 + gamma) ** 2) / (2 + gamma) ** 3
    for i in range(20):  # eps_i = eps' gamma^1.5 (i+1) / (1+gamma)^(i+1.5), sum of squares s eps'^2
        eps_i = math.sqrt(2 * 0.5 / s) * gamma**1.5 * (i + 1) / (1 + gamma) ** (i + 1.5)
        assert math.isclose(plan.run(i).share.amount, eps_i**2 / 2, rel_tol=1e-9)


@pytest.mark.parametrize("budget", [PURE, ZCDP])
def test_the_improver_stays_inside_its_budget(budget):
    plan = BBImprover(start=5, budget=budget)
    spent = sum((plan.run(i).share.amount for i in range(20_000)), Fraction(0))
    n, t = 5, 20_004
    tail = 1 / math.log(t)  # integral of dx / (x ln^2 x)
    z = 1 / (n * math.log(n + 1) ** 2) + 1 / math.log(n)
    assert spent <= plan.whole.amount * Fraction(1 - tail / z * 0.9)
    assert spent > plan.whole.amount / 2


def test_sizes_that_rounding_makes_equal_are_one_run():
    plan = BBScheduler(start=3, budget=PURE, gamma=0.01)
    assert plan.run(400).size == math.ceil(1.01**400 * 3)
    runs, seen, _ = watch(plan, [1] * 40)
    assert [stop for (_, stop), *_ in seen] == list(range(3, 41))
    assert runs.meter.spent <= 1


def test_the_new_failure_probabilities_lower_the_error_bound():
    for start in (10**4, 10**6):
        settings = {"start": start, "budget": PURE, "power": 1 / 3, "factor": 5.0}
        paper = BBScheduler.tuned(**settings, mode="paper")
        plus = BBScheduler.tuned(**settings, mode="plus")
        assert plus.error(1 / 3, 5.0) < paper.error(1 / 3, 5.0)


def watch(schedule, arrivals):
    seen = []

    def box(data, share, place):
        seen.append((data, share.amount, place.path))
        return len(seen)

    runs = Reruns(schedule, box, lambda a, b: (a, b), Place(SilentNoise(), "t"))
    news = [runs.arrive(k) for k in arrivals]
    return runs, seen, news


def test_a_run_happens_when_its_size_is_reached_and_sees_the_whole_database():
    plan = BBScheduler(start=10, budget=PURE, gamma=1.0)
    runs, seen, news = watch(plan, [9, 1, 9, 1, 60])
    assert news == [False, True, False, True, True]
    assert [data for data, _, _ in seen] == [(0, 10), (0, 20), (0, 80)]
    assert [path for *_, path in seen] == [(0,), (1,), (3,)]  # the run at 40 was skipped
    assert runs.meter.spent == sum(amount for _, amount, _ in seen) <= 1
    assert runs.answer == 3


@pytest.mark.parametrize("kind", [BBScheduler, DisjointDoubling])
def test_a_run_that_a_black_box_makes_from_inside_is_the_newer_one(kind):
    """The answer about 10 records replaced the one about 20."""

    def box(data, share, place):
        if data == (0, 10):
            runs.arrive(30)
        return data

    runs = Reruns(kind(start=10, budget=PURE), box, lambda a, b: (a, b), Place(SilentNoise(), "t"))
    assert runs.arrive(10)
    assert runs.answered_at == runs.answer[1] == 40


def test_schedulers_are_not_copied():
    """A black box with noise of its own read a batch again in each copy, with the whole budget."""
    runs, _, _ = watch(DisjointDoubling(start=10, budget=PURE), [])
    for copied in (copy.copy, pickle.dumps):
        with pytest.raises(UncopiedNoiseError):
            copied(runs)


def test_disjoint_batches_never_share_a_record():
    _, seen, _ = watch(DisjointDoubling(start=10, budget=PURE), [1] * 200)
    ranges = [data for data, _, _ in seen]
    assert ranges == [(0, 10), (10, 20), (20, 40), (40, 80), (80, 160)]
    assert all(amount == 1 for _, amount, _ in seen)


def test_the_meter_refuses_a_schedule_that_overspends():
    class Greedy(BBScheduler):
        def _weight(self, index):
            return 0.6

    with pytest.raises(BudgetError):
        watch(Greedy(start=1, budget=PURE, gamma=1.0), [1, 1])


def test_runs_that_are_called_disjoint_read_nothing_again_and_spend_one_budget_each():
    """Nobody looked: the whole budget went into every run, or more, while one was promised."""

    class Overlapping(DisjointDoubling):
        def run(self, index):
            return replace(super().run(index), start=0)

    class Generous(DisjointDoubling):
        def run(self, index):
            return replace(super().run(index), share=self.whole.scale(2))

    runs, _, _ = watch(Overlapping(start=10, budget=PURE), [10])
    with pytest.raises(BudgetError, match="begins at record 0, and an earlier one has read 10"):
        runs.arrive(10)
    with pytest.raises(BudgetError, match="asks for 2"):
        watch(Generous(start=10, budget=PURE), [10])


def test_a_schedule_of_another_kind_is_named():
    class Partly:
        budget = PURE

        def run(self, index):
            return ScheduledRun(index, 0, 10, Share.of(PURE), 0.05)

    with pytest.raises(PlanError, match="schedule must be a schedule such as DisjointDoubling"):
        watch(Partly(), [10])


def test_runs_that_go_on_after_a_restart_know_what_was_charged():
    class Halves(BBScheduler):
        def run(self, index):
            return replace(super().run(index), share=self.whole.scale(Fraction(1, 2)))

    plan = Halves(start=10, budget=Budget(epsilon=1))
    given = (lambda data, share, place: len(data), lambda a, b: range(a, b))
    runs = Reruns(plan, *given, Place(SilentNoise(), "doc"), size=plan.run(1).size, next_index=2)
    with pytest.raises(BudgetError):
        runs.arrive(plan.run(2).size)
    honest = BBImprover(start=10, budget=Budget(epsilon=1))
    runs = Reruns(honest, *given, Place(SilentNoise(), "doc"), size=109, next_index=100)
    assert runs.arrive()


def test_bad_settings_name_the_argument():
    with pytest.raises(ValueError, match="gamma"):
        BBScheduler(start=1, budget=PURE, gamma=0)
    with pytest.raises(ValueError, match="start must be a whole number of at least 2"):
        BBImprover(start=1, budget=PURE)
    with pytest.raises(ValueError, match="mode"):
        BBScheduler(start=1, budget=PURE, mode="papr")
