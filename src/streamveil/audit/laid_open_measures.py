"""The exact account of the library's mechanisms: inputs of each measurement, choice, comparison.

Mechanisms for tables and questions meet noise only in the functions of `core.measure`. These are
replaced by others that note their arguments; a second run, on a neighbouring input, gets the same
answers as the first. The two notes give the loss along that transcript:

- a Gaussian about a centre that moves by d: mu^2 = |d / sigma|^2;
- Laplace noise: the sum of |d| / scale, which some outcome reaches;
- a choice by the exponential mechanism: the ratio of the chances of the chosen index;
- a run of comparisons with one noisy threshold: the ratio of the chances of all its answers, summed
  over the noise of the threshold.

In rho a loss counts as claims convert it (`pure_zcdp`), each noisy number by itself; a choice
counts as an eighth of the square of its range, if that is less.

Comparisons answer yes or no, not numbers, so the first run may get any answers: the caller looks
for those that lose most. Nothing here uses bounds, shares, meters or horizons.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np
from scipy.special import logsumexp

from streamveil.audit.laid_open import OpenDraws, OpenNoise, replaced, spied, users_of
from streamveil.core import measure
from streamveil.core.accounting.convert import pure_zcdp
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noisy import Noisy, values
from streamveil.linear.sparse_vector import AboveState, AboveThreshold
from streamveil.types import Array, Float64

TAILS = 60  # the sum over a threshold's noise goes this many scales far
SLACK = 1 + 1e-9
Address = tuple[Any, ...]


@dataclass(frozen=True)
class Entered:
    """The inputs of one draw."""

    law: str  # 'laplace', 'gaussian' or 'choice'
    centre: Float64[Array, " n"]  # of a choice: scores times its rate
    scale: Float64[Array, " n"]
    outcome: Any


@dataclass
class Comparisons:
    """One noisy threshold, and the counts that were compared with it."""

    address: Address
    centre: float  # of the noise of the threshold: 0
    scale: float
    counts: list[int] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    answers: list[bool] = field(default_factory=list)
    state: AboveState | None = None

    def log_chance(self) -> float:
        """The logarithm of the chance of exactly these answers."""
        gap = np.array(self.limits, np.float64) - np.array(self.counts)
        reach = int(TAILS * self.scale + float(np.abs(gap).max(initial=0.0))) + 1
        noise = np.arange(-reach, reach + 1, dtype=np.float64)
        law = np.log(np.tanh(0.5 / self.scale)) - np.abs(noise - self.centre) / self.scale
        for one, scale, yes in zip(gap, self.scales, self.answers, strict=True):
            law = law + log_tail(one + noise if yes else 1 - one - noise, scale)
        return float(logsumexp(law))


def log_tail(least: Float64[Array, " n"], scale: float) -> Float64[Array, " n"]:
    """The logarithm of P(noise >= least), discrete Laplace; P(noise < k) = P(noise >= 1 - k)."""
    decay = 1 / scale
    whole = np.log1p(np.exp(-decay))
    far = -np.maximum(least, 0) * decay - whole
    near = np.log1p(-np.exp(-(1 - np.minimum(least, 0)) * decay - whole))
    return np.asarray(np.where(least >= 1, far, near))


Policy = Callable[[Comparisons, int], int | None]


@dataclass
class MeasureTranscript:
    """The answers that the first of two runs got; its policy may choose how comparisons end."""

    policy: Policy = lambda _, __: None  # (run, questions) -> the first that is above; None: honest
    told: dict[Address, Any] = field(default_factory=dict)
    leads: bool = True


@dataclass
class MeasuresSeen:
    """The inputs of the draws of one run."""

    draws: dict[Address, Entered] = field(default_factory=dict)
    runs: dict[Address, Comparisons] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Realised:
    """The loss of one pair of neighbours along one transcript."""

    epsilon: float  # of all that is not Gaussian
    rho: float
    mu_squared: float  # of what is Gaussian
    faults: tuple[str, ...] = ()

    def beside(self, claim: Loss) -> tuple[str, float, float]:
        """The claim's currency, and the realised and claimed losses in it."""
        if not claim.zcdp and not claim.gaussian:
            found = inf if self.mu_squared else self.epsilon
            return "epsilon", found, float(claim.pure_total)
        if not claim.zcdp and not claim.pure:
            return "mu^2", inf if self.epsilon else self.mu_squared, float(claim.gaussian)
        return "rho", self.rho, claim.rho()

    def tightness(self, claim: Loss) -> float:
        """The part of a claim that was realised, in the claim's currency."""
        _, part, whole = self.beside(claim)
        if part and not whole:
            return inf
        return part / whole if whole else 0.0

    def stands(self, claim: Loss) -> bool:
        """Whether a claim covers the realised loss."""
        return not self.faults and self.tightness(claim) <= SLACK


def realised(one: MeasuresSeen, other: MeasuresSeen) -> Realised:
    """The losses of two runs that got the same answers."""
    faults = [*one.faults, *other.faults]
    if {*one.draws, *one.runs} != {*other.draws, *other.runs}:
        faults.append("what is drawn depends on the data")
    epsilon = rho = mu = signed = 0.0
    for address in {*one.draws} & {*other.draws}:
        a, b = one.draws[address], other.draws[address]
        if a.law != b.law or a.scale.shape != b.scale.shape or (a.scale != b.scale).any():
            faults.append(f"{address[0]}: the noise depends on the data")
            continue
        if a.law == "choice":
            ratios = log_chances(a.centre) - log_chances(b.centre)
            signed += float(ratios[a.outcome])
            spread = float(ratios.max() - ratios.min())
            rho += min(spread**2 / 8, pure_zcdp(spread))
        elif a.law == "laplace":
            moved = (np.abs(a.centre - b.centre) / a.scale).tolist()
            epsilon, rho = epsilon + sum(moved), rho + sum(map(pure_zcdp, moved))
        else:
            lost = float((((a.centre - b.centre) / a.scale) ** 2).sum())
            mu, rho = mu + lost, rho + lost / 2
    for address in {*one.runs} & {*other.runs}:
        ratio = one.runs[address].log_chance() - other.runs[address].log_chance()
        signed, rho = signed + ratio, rho + pure_zcdp(abs(ratio))
    return Realised(epsilon + abs(signed), rho, mu, tuple(sorted({*faults})))


def lost_by(
    release: Callable[[Any, OpenNoise], list[Any]],
    pair: tuple[Any, Any],
    policy: Policy = lambda run, questions: None,
    seed: int = 1,
) -> Realised:
    """The loss between two inputs that get the same answers; their releases must be equal."""
    script, seen, found = MeasureTranscript(policy), list[MeasuresSeen](), []
    for given in pair:
        seen.append(MeasuresSeen())
        with measures_laid_open(seen[-1], script):
            found.append(release(given, OpenNoise(seed)))
    if not all(np.array_equal(a, b) for a, b in zip(*found, strict=True)):
        seen[0].faults.append("releases differ although all noise is the same")
    return realised(seen[0], seen[1])


def random_policy(seed: int, chance: float) -> Policy:
    """A policy by which coins decide where comparisons end."""
    rng = np.random.default_rng(seed)

    def policy(run: Comparisons, questions: int) -> int:
        above = np.flatnonzero(rng.random(questions) < chance)
        return int(above[0]) if len(above) else questions

    return policy


def log_chances(scores: Float64[Array, " n"]) -> Float64[Array, " n"]:
    """The logarithms of the chances of all outcomes of a choice."""
    return np.asarray(scores - logsumexp(scores))


@contextmanager
def measures_laid_open(seen: MeasuresSeen, script: MeasureTranscript) -> Iterator[None]:
    """Replaces the functions at which mechanisms meet noise; later runs follow the first."""
    spy = MeasureSpy(seen, script)
    with ExitStack() as stack:
        for name in LAWS:
            honest = getattr(measure, name)
            for module in users_of(name, honest, len(sys.modules)):
                noting = partial(spy.measured, name, honest)
                stack.enter_context(replaced(module, name, noting))
        stack.enter_context(spied(AboveThreshold, "init", spy.above_init))
        stack.enter_context(spied(AboveThreshold, "ask_many", spy.above_ask))
        yield
    script.leads = False


class MeasureSpy:
    """The functions that note."""

    def __init__(self, seen: MeasuresSeen, script: MeasureTranscript) -> None:
        self.seen, self.script = seen, script
        self.comparing = False  # inside a comparison: its numbers are not released
        self.heard: list[tuple[Address, Entered]] = []

    def _noted(self, law: str, given: tuple[Any, Any], draws: Any, made: Noisy[Any]) -> Any:
        if draws.silent or not isinstance(draws, OpenDraws):
            self.seen.faults.append("numbers are released without noise")
            return made
        address = (draws.purpose, *draws.path)
        if self.script.leads:
            self.script.told[address] = made
        made = self.script.told.get(address, made)
        centre = np.atleast_1d(np.asarray(given[0], np.float64))
        scale = np.broadcast_to(np.asarray(given[1], np.float64), centre.shape)
        entered = Entered(law, centre, scale, values(made))
        if self.comparing:
            self.heard.append((address, entered))
        elif address in self.seen.draws:
            self.seen.faults.append(f"{draws.purpose}: one draw serves two releases")
        else:
            self.seen.draws[address] = entered
        return made

    def measured(self, name: str, honest: Any, *given: Any, **named: Any) -> Any:
        """Notes a call of a function of `core.measure`, whose last argument is its draws."""
        *exact, draws = given
        law, centre, scale = LAWS[name](*exact, **named)
        return self._noted(law, (centre, scale), draws, honest(*given, **named))

    # ---- comparisons

    @contextmanager
    def _inside(self) -> Iterator[list[tuple[Address, Entered]]]:
        self.heard = []
        with replaced(self, "comparing", value=True):
            yield self.heard

    def above_init(self, honest: Any, _: Any, place: Any) -> AboveState:
        """Notes a new noisy threshold."""
        with self._inside() as heard:
            state: AboveState = honest(place)
        if len(heard) != 1 or heard[0][1].law != "laplace":
            self.seen.faults.append("a threshold has no noise of its own")
            return state
        address, entered = heard[0]
        if address in self.seen.runs:
            self.seen.faults.append("one noise serves two thresholds")
        if state.offset != int(entered.outcome[0]):
            self.seen.faults.append("a threshold is another than was drawn")
        centre, scale = float(entered.centre[0]), float(entered.scale[0])
        self.seen.runs[address] = Comparisons(address, centre, scale, state=state)
        return state

    def above_ask(
        self, honest: Any, _: Any, state: Any, counts: Array, limits: Array, place: Any
    ) -> int:
        """Notes questions to a run, and gives the answers of the script."""
        run = next((one for one in self.seen.runs.values() if one.state is state), None)
        asked, offset = state.asked, state.offset
        with self._inside() as heard:
            first = honest(state, counts, limits, place)
        if run is None or len(heard) != 1 or heard[0][1].law != "laplace":
            self.seen.faults.append("a comparison without noise or threshold of its own")
            return int(first)
        address, entered = heard[0]
        above = np.flatnonzero(entered.outcome >= np.asarray(limits) + offset)
        if first != (int(above[0]) if len(above) else len(counts)):
            self.seen.faults.append("an answer is not that of the noisy comparison")
        key = ("answer", *address)
        if self.script.leads:
            wanted = self.script.policy(run, len(counts))
            self.script.told[key] = first if wanted is None else wanted
        first = min(int(self.script.told.get(key, first)), len(counts))
        state.halted, taken = first < len(counts), min(first + 1, len(counts))
        state.asked = asked + taken
        run.counts += entered.centre[:taken].astype(int).tolist()
        run.limits += np.asarray(limits)[:taken].tolist()
        run.scales += entered.scale[:taken].tolist()
        run.answers += [False] * (taken - state.halted) + [True] * state.halted
        return first


def law_name(laplace: bool) -> str:  # noqa: FBT001
    """The law of noise."""
    return "laplace" if laplace else "gaussian"


LAWS: dict[str, Callable[..., tuple[str, Any, Any]]] = {  # law, centre, scale of what is drawn
    "with_laplace": lambda exact, scale: ("laplace", exact, scale),
    "with_gaussian": lambda exact, sigma: ("gaussian", exact, sigma),
    "rows_with_noise": lambda exact, scales, *, laplace: (law_name(laplace), exact, scales),
    "sums_with_noise": lambda whole, rest, scales: ("gaussian", whole + rest, scales),
    "about": lambda centre, scale, *, laplace=False: (law_name(laplace), centre, scale),
    "chosen": lambda scores, epsilon, sensitivity: (
        "choice", np.asarray(scores, np.float64) * (float(epsilon) / (2 * sensitivity)), 1.0
    ),
}  # fmt: skip
