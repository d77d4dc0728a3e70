"""Faults planted in the library's mechanisms: each is caught by the account of the honest claim."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import pmw
from benchmarks.papers.pmw import Pmw
from benchmarks.papers.snapshots import TriggeredSnapshots
from streamveil.audit.laid_open import OpenNoise
from streamveil.audit.laid_open_measures import (
    MeasuresSeen,
    MeasureTranscript,
    lost_by,
    measures_laid_open,
    random_policy,
)
from streamveil.core.noise import SeededNoise, SilentDraws
from streamveil.core.noisy import restored
from streamveil.counters import tree
from streamveil.dynamic import (
    DisjointDoubling,
    Pmwg,
    Rerun,
    TreeCounter,
    TwoStream,
    erm,
    pmwg,
    signed_counter,
)
from streamveil.dynamic import pack as packing
from streamveil.dynamic.schedulers import Reruns
from streamveil.dynamic.trees import Difference, Tree
from streamveil.linear import (
    Direct,
    Matrix,
    Points,
    Residuals,
    Through,
)
from streamveil.linear.additive import Additive
from streamveil.linear.budget_shares import Meter, Share
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.sparse_vector import AboveThreshold
from tests.audit import library
from tests.audit.test_library import (
    STEPS,
    asked_pairs,
    rerun_pairs,
    static_pairs,
    table_input,
    tightness_of,
    worst_of_comparisons,
)
from tests.counters.examples import NAMES, examples

SEEDS = 24


def everything(subject, seed):
    """The pair of inputs of a subject with its honest claim, made before a fault is planted."""
    for name, (mechanism, matching) in library.tables(STEPS):
        if name == subject:
            stream, other = table_input(name, mechanism, seed)
            release = library.table(mechanism, matching)
            policy = random_policy(seed, (0.2, 0.5, 1.0)[seed % 3])
            return mechanism.guarantee.loss, release, stream, other, policy
    pairs = chain(static_pairs(seed), asked_pairs(seed), rerun_pairs(seed))
    return next((rest for name, *rest in pairs if name == subject), None)


def caught(subject, plant, first=0):
    """What the account says of a fault, in seeds from the first on; None if it sees none."""
    for seed in range(first, SEEDS):
        pair = everything(subject, seed)
        if pair is None:  # schedules of classifiers take turns
            continue
        claim, *given = pair
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            release, *pair, policy = given
            lost = lost_by(release, pair, policy, seed)
        if not lost.stands(claim):
            return lost.faults or lost.tightness(claim)
    return None


def instead(owner, name, make):
    """Replaces an attribute by what `make` makes of the honest one."""

    def plant(patch):
        honest = owner.__dict__[name]
        if isinstance(honest, property):
            patch.setattr(owner, name, property(make(honest.fget)))
        else:
            patch.setattr(owner, name, make(honest))

    return plant


def times(factor):
    """A number or share times a factor."""

    def make(honest):
        def changed(*given, **named):
            found = honest(*given, **named)
            return found.scale(factor) if isinstance(found, Share) else found * factor

        return changed

    return make


def other(value):
    return lambda honest: lambda *given, **named: value


def free(honest):
    return lambda self, share: share


def unpaid_correction(honest):
    def measure(self, state, *given):
        before = state.meter.spent
        found = honest(self, state, *given)
        state.meter.spent = before
        return found

    return measure


def exact_comparison(honest):
    def ask_many(self, state, counts, thresholds, place):
        above = np.flatnonzero(counts >= thresholds + state.offset)
        first = int(above[0]) if len(above) else len(counts)
        state.halted = first < len(counts)
        state.asked += min(first + 1, len(counts))
        return first

    return ask_many


def leaking(honest):
    def release(self, histogram, share, place, size_hat=None):
        honest(self, histogram, share, place, size_hat)
        return QueryAnswers(restored(self.queries.answers(histogram.astype(float))))

    return release


def rich(honest):
    def noisy(self, *given):
        return honest(Share(self.kind, self.amount * 60), *given)

    return noisy


def one_draw(honest):
    return lambda draws, ids, keys, rows, sigma: honest(
        SeededNoise(1).at("always"), ids, keys, rows, sigma
    )


def quiet_later(honest):
    asked = []

    def rows(draws, *given):
        asked.append(1)
        return honest(SilentDraws() if len(asked) > 4 else draws, *given)

    return rows


def four_times_each(honest):
    """Parts of a share, each with four times its own."""
    return lambda self: tuple(part.scale(4) for part in honest(self))


def from_the_start(honest):
    return lambda self, index: replace(honest(self, index), start=0)


def overlapping(patch):
    """Batches that start at nothing, and nobody who looks where they start."""
    instead(DisjointDoubling, "run", from_the_start)(patch)
    instead(Reruns, "_charge", lambda honest: lambda self, due: None)(patch)


def unbounded(honest):
    return lambda x, y: (np.nan_to_num(x), y)


def long_rows(honest):
    return lambda x, intercept: 10 * honest(x, intercept=intercept)


def whole_records(honest):
    """Noise for records, where questions count quanta of them."""
    return lambda self: replace(honest(self), unit=1)


def one_quantum(honest):
    return property(lambda self: 1)


def full_parts(honest):
    return lambda self, factor: self if factor < 1 else honest(self, factor)


FAULTS = {
    "a meter that forgets what was charged": ("pmwg pure", instead(Meter, "charge", free)),
    "a meter that forgets, for ever": ("live pure", instead(Meter, "charge", free)),
    "corrections of PMWG are free": ("pmwg pure", instead(Pmwg, "_measure", unpaid_correction)),
    "a run of PMWG costs a fortieth": (
        "pmwg pure",
        instead(pmwg, "pure_cost", times(Fraction(1, 40))),
    ),
    "a run of live questions costs a fortieth": (
        "live pure",
        instead(pmwg, "pure_cost", times(Fraction(1, 40))),
    ),
    "a run of comparisons costs a fortieth": (
        "pmw pure",
        instead(pmw, "pure_cost", times(Fraction(1, 40))),
    ),
    "answers are compared without noise": (
        "pmw pure",
        instead(AboveThreshold, "ask_many", exact_comparison),
    ),
    "answers leave without noise": ("growing queries pure", instead(Additive, "release", leaking)),
    "a ninth of the noise of comparisons": (
        "fully dynamic labels queries pure hidden steps",
        instead(AboveThreshold, "width", other(Fraction(1, 9))),
    ),
    "half the noise of every row": (
        "insertions for ever queries pure",
        instead(Additive, "scales", times(0.5)),
    ),
    "half the noise of every row, in zCDP": (
        "growing queries zcdp",
        instead(Additive, "scales", times(0.5)),
    ),
    "a replaced record moves rows once": (
        "growing queries pure",
        instead(Additive, "sensitivity", other(1.0)),
    ),
    "every level of a tree has all of the share": (
        "insertions queries pure",
        instead(Tree, "node", lambda _: lambda self: self.share),
    ),
    "levels of a known horizon, in zCDP": (
        "insertions ways zcdp",
        instead(Tree, "node", lambda _: lambda self: self.share),
    ),
    "a tree counter pays a deletion nothing": (
        "tree counter pure False",
        instead(
            TreeCounter,
            "inner",
            lambda _: (
                lambda self: Tree(Additive(self.strategy), self.share, self.horizon, self.arity)
            ),
        ),
    ),
    "insertions and deletions have eight times their share": (
        "two streams queries pure",
        instead(
            TwoStream,
            "_both",
            lambda _: (
                lambda self: Difference(
                    Tree(self.static, self.share.scale(4), self.horizon, self.arity)
                )
            ),
        ),
    ),
    "every rerun spends all": ("rerun queries pure", instead(Share, "scale", full_parts)),
    "snapshots are free": ("snapshots queries zcdp", instead(Share, "scale", full_parts)),
    "triggered snapshots have four times their share": (
        "triggered queries pure",
        instead(TriggeredSnapshots, "parts", four_times_each),
    ),
    "a signed record moves one step": (
        "signed counter True",
        instead(signed_counter, "root_sensitivity", other(1.0)),
    ),
    "a deletion moves nothing": (
        "signed counter False",
        instead(signed_counter, "root_sensitivity", other(1.0)),
    ),
    "a choice at ten times its epsilon": (
        "insertions for ever mwem pure",
        instead(Share, "choice_epsilon", times(10)),
    ),
    "measurements at many times their share": ("growing mwem pure", instead(Share, "noisy", rich)),
    "disjoint batches that start at nothing": ("DisjointDoubling pure", overlapping),
    "gradient steps that share no budget": (
        "NoisyGradientDescent zcdp",
        instead(Share, "scale", full_parts),
    ),
    "coefficients with a tenth of the noise": (
        "OutputPerturbation pure",
        instead(Share, "spread", times(Fraction(1, 10))),
    ),
    "rows of any length enter gradients": (
        "NoisyGradientDescent zcdp",
        instead(erm, "bounded", unbounded),
    ),
    "rows of any length enter a classifier": (
        "classifier BBScheduler zcdp",
        lambda patch: (
            instead(erm, "bounded", unbounded)(patch),
            instead(erm, "unit_rows", long_rows)(patch),
        ),
    ),
    "fractional questions have noise for whole records": (
        "once PMW practical fractions pure",
        instead(Pmw, "sparse", whole_records),
    ),
    "fractional queries move by one quantum": (
        "once direct pure",
        instead(Matrix, "l1", one_quantum),
    ),
    "fractional queries move by one quantum, in zCDP": (
        "once direct zcdp",
        instead(Matrix, "l2_squared", one_quantum),
    ),
    "half the noise of halfspaces": ("once boxes pure", instead(Direct, "scales", times(0.5))),
    "half the noise of a histogram": (
        "once points replaced gdp",
        instead(Points, "scales", times(0.5)),
    ),
    "half the noise of interactions": (
        "once interactions gdp",
        instead(Residuals, "scales", times(0.5)),
    ),
    "half the noise of interactions under sums": (
        "once through zcdp",
        instead(Through, "scales", times(0.5)),
    ),
    "a choice once at ten times its epsilon": (
        "once MWEM again sums zcdp",
        instead(Share, "choice_epsilon", times(10)),
    ),
    "every rerun spends all while records stay": (
        "rerun while records stay pure",
        instead(Rerun, "part", lambda _: lambda self: self.share),
    ),
    "a squaring partition compares without noise": (
        "squaring insertions pure",
        instead(AboveThreshold, "ask_many", exact_comparison),
    ),
    "a published partition compares without noise": (
        "published hidden steps pure",
        instead(AboveThreshold, "ask_many", exact_comparison),
    ),
    "a tree counter by labels has three times its share": (
        "tree counter labels pure",
        instead(
            TreeCounter,
            "inner",
            lambda _: (
                lambda self: Tree(
                    Additive(self.strategy), self.share.scale(3), self.horizon, self.arity
                )
            ),
        ),
    ),
    "a signed update by labels moves one step": (
        "signed counter labels",
        instead(signed_counter, "root_sensitivity", other(1.0)),
    ),
    "snapshots at every step are free": (
        "snapshots at every step zcdp",
        instead(Share, "scale", full_parts),
    ),
    "questions in quarters are compared without noise": (
        "pmwg kept False pure",
        instead(AboveThreshold, "ask_many", exact_comparison),
    ),
    "questions about growing tables are compared without noise": (
        "live growing True zcdp",
        instead(AboveThreshold, "ask_many", exact_comparison),
    ),
    "a replaced record moves rows once, in the paper's schedule": (
        "BBScheduler of the paper pure",
        instead(Additive, "sensitivity", other(1.0)),
    ),
    "disjoint batches that start at nothing, of many records": (
        "DisjointDoubling pure of many",
        overlapping,
    ),
    "a fourth of the noise of buckets": (
        "fully dynamic 7 queries pure hidden steps",
        instead(Share, "spread", times(Fraction(1, 4))),
    ),
}


FIRST = {  # seeds that meet a fault at once, where those before do not
    "rows of any length enter a classifier": 11,
    "a choice at ten times its epsilon": 16,
    "a replaced record moves rows once, in the paper's schedule": 4,
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_mechanism_is_caught(name):
    subject, plant = FAULTS[name]
    assert caught(subject, plant, FIRST.get(name, 0))


# ---- comparisons and segments: every small input


def half_threshold_noise(honest):
    def init(self, place):
        return honest(replace(self, epsilon1=2 * Fraction(self.epsilon1)), place)

    return init


COMPARED = {
    "the noise of thresholds is halved": instead(AboveThreshold, "init", half_threshold_noise),
    "answers have a third of the noise": instead(AboveThreshold, "width", other(Fraction(1, 3))),
}


@pytest.mark.parametrize("name", COMPARED)
def test_a_fault_in_comparisons_is_caught(monkeypatch, name):
    above = AboveThreshold(epsilon1=Fraction(2, 5), epsilon2=Fraction(3, 5))
    COMPARED[name](monkeypatch)
    worst = [worst_of_comparisons(above, (-1, 0, 1), np.array(limits))[0]
             for limits in ([2] * 4, [40, 40, 40, 2])]  # fmt: skip
    assert max(worst) > 1


# ---- counters


@pytest.mark.parametrize("name", NAMES)
def test_a_quarter_less_noise_of_a_counter_is_caught(name):
    honest = examples(STEPS)[name]
    less = replace(honest, sigma=Fraction(honest.sigma) * Fraction(3, 4))
    assert tightness_of(less, claimed=honest) > 1


@pytest.mark.parametrize("fault", [one_draw, quiet_later])
def test_a_tree_whose_nodes_share_or_lack_noise_is_caught(monkeypatch, fault):
    counter = examples(STEPS)["honaker"]
    monkeypatch.setattr(tree, "gaussian_rows", fault(tree.gaussian_rows))
    assert tightness_of(counter) > 1


# ---- charges that are left out, where no pair of inputs loses all of what is charged


def worst_transcript(subject, seed, release=None):
    """The part of the claim that a transcript in which every comparison halts may cost."""
    claim, honest, points, _, _ = everything(subject, seed)
    release, seen = release or honest, MeasuresSeen()
    with measures_laid_open(seen, MeasureTranscript(random_policy(seed, 1.0))):
        release(points, OpenNoise(seed))
    return library.at_worst(seen).tightness(claim)


CHARGES = {
    "a charge of PMWG is left out, in zCDP": ("pmwg zcdp", "_measure", unpaid_correction),
    "a run of PMWG is not charged, in zCDP": ("pmwg zcdp", "open_run", unpaid_correction),
    "a charge of live questions is left out, in zCDP": ("live zcdp", "_measure", unpaid_correction),
}  # fmt: skip


@pytest.mark.parametrize("name", CHARGES)
def test_a_charge_that_is_left_out_is_caught(name):
    subject, attribute, make = CHARGES[name]
    honest = [worst_transcript(subject, seed) for seed in range(3)]
    assert max(honest) <= 1 + 1e-9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pmwg, attribute, make(getattr(Pmwg, attribute)))
        assert worst_transcript(subject, 0) > 1.02 > max(honest)


FORGOTTEN = "a kept PMWG state forgets what was charged"


@pytest.mark.parametrize("share", [library.PURE, library.ZCDP])
def test_a_kept_state_that_forgets_what_was_charged_is_caught(monkeypatch, share):
    (_, release), subject = library.pmwg(share, kept=True), f"pmwg {share.kind}"
    honest = worst_transcript(subject, 0, release)
    assert honest == worst_transcript(subject, 0) <= 1 + 1e-9
    monkeypatch.setitem(packing.CLASSES, "Meter", lambda limit, spent: Meter(limit))
    assert worst_transcript(subject, 0, release) > 1.5


def test_the_page_for_reviewers_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "review-mechanisms.md").read_text()
    assert [
        name for name in (*FAULTS, *COMPARED, *CHARGES, FORGOTTEN) if f"| {name} |" not in page
    ] == []
