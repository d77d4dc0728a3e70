"""Charges against an account that is kept outside the mechanisms; no line that charges may go."""

from __future__ import annotations

import ast
import importlib
import textwrap
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import streamveil
from benchmarks.papers.pmw import Pmw, PmwRelease, Sparse
from streamveil import dynamic, linear
from streamveil.core.accounting import Budget
from streamveil.core.noise import Place
from streamveil.dynamic import Changes
from streamveil.dynamic.schedulers import ScheduledRun
from streamveil.errors import BudgetError
from tests.core.account import LIBRARY, Account, Hearing, OverspentError, listening

SHARES = {"pure": linear.Share("pure", Fraction(1)), "zcdp": linear.Share("zcdp", Fraction(1, 8))}
CELLS = linear.Marginals.ways((2, 3), 1)
HISTOGRAM = np.array([400, 100, 0, 300, 50, 150])
QUERIES = [(np.arange(6) % k == r).astype(float) for k in (2, 3, 4, 5) for r in range(k)]


def static(make):
    """One release with everything it needs to buy, and one of a public size."""

    def run(share, place):
        make().release(HISTOGRAM, share, place)

    return run


def sparse(share, place):
    mechanism = Sparse(share=share, halts=4)
    state = mechanism.init(place)
    for _ in range(60):
        mechanism.ask(state, 10**6, 0, place)


def pmw(share, place):
    mechanism = Pmw.practical(share, 1000, 6, halts=4)
    state = mechanism.init(HISTOGRAM, place)
    for turn in range(80):
        state.weights = np.eye(6)[turn % 6]  # as far from the truth as can be: always hard
        mechanism.ask(state, QUERIES[turn % len(QUERIES)], place)


def pmwg(share, place):
    mechanism = dynamic.Pmwg.practical(share, start=1000, domain=6, halts=4)
    state = mechanism.init(HISTOGRAM, place)
    for turn in range(120):
        state.weights = np.eye(6)[turn % 6]
        mechanism.ask(state, QUERIES[turn % len(QUERIES)], place)
        if turn % 40 == 39:
            mechanism.arrive(state, np.arange(state.size) % 6, place)


def live_pmw(share, place):
    mechanism = dynamic.LivePmw(share=share, start=1000, domain=6, halts=4, only_grows=True)
    state = mechanism.init(place)
    for turn in range(120):
        if turn % 40 == 0:
            born = np.repeat(np.arange(6), 1000 * (turn + 1))
            mechanism.step(state, Changes(born), float(state.size + len(born)), place)
        state.weights = np.eye(6)[turn % 6]
        mechanism.ask(state, QUERIES[turn % len(QUERIES)], place)


class Greedy:
    """A schedule that would spend without end."""

    disjoint = False

    def __init__(self, share):
        self.share = share
        self.budget = Budget(epsilon=1) if share.kind == "pure" else Budget(rho=share.amount)

    def run(self, index):
        return ScheduledRun(index, 0, index + 1, self.share.scale(Fraction(2, 5)), 0.1)


def reruns(plan, *, restarts=False):
    def run(share, place):
        def box(data, part, at):
            return part.noisy(0, at.draws(b"value"), 1, 1)

        made = plan(share), box, lambda start, stop: None, place
        runs = dynamic.Reruns(*made)
        with suppress(BudgetError):
            for _ in range(30):
                runs.arrive(2)
                if restarts:
                    runs = dynamic.Reruns(*made, size=runs.size, next_index=runs.next_index)

    return run


def scheduler(share):
    return dynamic.BBScheduler(start=2, budget=Greedy(share).budget)


def improver(share):
    return dynamic.BBImprover(start=2, budget=Greedy(share).budget)


def rerun(share, place):
    mechanism = dynamic.Rerun(static=linear.noisy_queries(CELLS), share=share, steps=5)
    follow(mechanism, place, 5)


def continual(share, place):
    follow(dynamic.ContinualMwem(queries=CELLS, share=share, horizon=6), place, 6)


def signed(share, place):
    strategy = linear.Direct(CELLS)
    if share.kind == "pure":
        follow(dynamic.TreeCounter(strategy=strategy, share=share, horizon=6), place, 6)
    else:
        follow(dynamic.SignedCounter(strategy=strategy, share=share, horizon=6), place, 6)


def follow(mechanism, place, steps):
    state = mechanism.init(place)
    for _ in range(steps):
        mechanism.step(state, Changes(np.arange(6)), place)


def gradient(share, place):
    if share.kind == "zcdp":
        rows = np.random.default_rng(1).normal(size=(60, 2)) / 4
        dynamic.NoisyGradientDescent().train(rows, np.sign(rows[:, 0]), share, place)


CASES = {
    "noisy queries": static(lambda: linear.noisy_queries(CELLS)),
    "noisy histogram": static(lambda: linear.noisy_histogram(CELLS)),
    "mwem": static(lambda: linear.Mwem(queries=CELLS)),
    "mwem 3": static(lambda: linear.Mwem(queries=CELLS, rounds=3)),
    "pmw release": static(lambda: PmwRelease(queries=CELLS)),
    "sparse": sparse,
    "pmw": pmw,
    "pmwg": pmwg,
    "live pmw": live_pmw,
    "greedy": reruns(Greedy),
    "greedy, from restart to restart": reruns(Greedy, restarts=True),
    "scheduler": reruns(scheduler),
    "improver": reruns(improver),
    "rerun": rerun,
    "continual mwem": continual,
    "signed counter": signed,
    "gradient descent": gradient,
}


def cost_of_rows(name, kind):
    """What one record's worst life costs in noisy vectors; by the mechanism's own geometry."""
    table = np.eye(6, dtype=np.int64)
    one = {"noisy histogram": linear.noisy_histogram}.get(name, linear.noisy_queries)(CELLS)
    columns = np.array([one.strategy.measure(point) for point in table])  # a record of each kind
    heard = {}

    def rows(path, scales):
        if name == "gradient descent":  # in the ball of radius one; a replaced record moves by two
            quanta = round(1 / dynamic.erm.GRID)
            return (2 * quanta) ** 2 / (2 * float(np.min(scales)) ** 2)
        moved = columns if len(np.atleast_1d(scales)) > 1 else np.ones((1, 1))
        if b"step" in path:  # a running sum: the worst record that comes and goes
            before = paired(heard)
            heard[path[-1]] = (np.square(moved) / (2 * scales**2)).sum(axis=1).max()
            return paired(heard) - before
        if kind == "pure":
            price = (np.abs(moved) / scales).sum(axis=1).max()
            if b"node" in path:  # a tree of one level: a record is in two nodes, born and gone
                return 2 * price if path[-2] == 1 else 0.0
            return price
        return (np.square(moved) / (2 * scales**2)).sum(axis=1).max()

    return rows


def paired(prices):
    """The largest cost of a record born and gone, by the square root's coefficients."""
    root = [1.0]
    for k in range(1, 64):
        root.append(root[-1] * (1 - 1 / (2 * k)))
    worst = 0.0
    for born in prices:
        for gone in (*[t for t in prices if t > born], 10**6):
            moves = ((t, root[t - born] - (root[t - gone] if t >= gone else 0.0))
                     for t in prices if t >= born)  # fmt: skip
            worst = max(worst, sum(prices[t] * move**2 for t, move in moves))
    return worst


def spent(name, kind, seed=1):
    share = SHARES[kind]
    account = Account(kind, float(share.amount), rows=cost_of_rows(name, kind))
    with listening(account):
        CASES[name](share, Place(Hearing(seed), "t"))
    return account


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("name", CASES)
def test_the_draws_of_a_run_cost_no_more_than_its_share(name, kind):
    account = spent(name, kind)  # raises OverspentError
    if (name, kind) != ("gradient descent", "pure"):
        assert account.spent > 0.2 * account.claim  # and it hears them


def charging_lines():
    """(module, class, function, line within it) of every line that charges."""
    root = Path(streamveil.__path__[0])
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("streamveil", *path.relative_to(root).with_suffix("").parts))
        if not name.startswith(LIBRARY):
            continue
        text = path.read_text()
        for owner in ast.walk(ast.parse(text)) if ".charge(" in text else ():
            if not isinstance(owner, ast.ClassDef):
                continue
            for function in owner.body:
                if isinstance(function, ast.FunctionDef):
                    lines = text.splitlines()[function.lineno - 1 : function.end_lineno]
                    for number, line in enumerate(lines):
                        if ".charge(" in line:
                            yield name, owner.name, function.name, number, "\n".join(lines)


LINES = list(charging_lines())


def test_there_are_lines_that_charge():
    assert len(LINES) >= 4


@pytest.mark.parametrize(("module", "owner", "function", "number", "text"), LINES,
                         ids=[f"{line[1]}.{line[2]}+{line[3]}" for line in LINES])  # fmt: skip
def test_without_a_line_that_charges_the_account_is_overspent(
    module, owner, function, number, text, monkeypatch
):
    lines = text.splitlines()
    indent = len(lines[number]) - len(lines[number].lstrip())
    lines[number] = " " * indent + "pass"
    found = importlib.import_module(module)
    mutant, names = textwrap.dedent("\n".join(lines)), {}
    exec("from __future__ import annotations\n" + mutant, vars(found), names)
    monkeypatch.setattr(getattr(found, owner), function, names[function])
    assert any(overspends(name, kind) for name in CASES for kind in SHARES)


def overspends(name, kind):
    try:
        spent(name, kind)
    except OverspentError:
        return True
    return False
