"""The account of sketches as Python has them: no claim is passed, and planted faults are caught."""

from pathlib import Path

import pytest

from streamveil.core.counters.cells import CellCounter
from streamveil.sketches import levels, privacy
from streamveil.sketches.privacy import NoisePlan
from streamveil.sketches.table import SketchTable
from tests.audit.sketch_objects import judged, name_of

SEEDS = 60


def test_no_unit_moves_a_sketch_further_than_is_claimed():
    worst: dict[str, float] = {}
    for seed in range(SEEDS):
        for sketch, part, faults in judged(seed, 2):
            assert not faults, (seed, sketch, faults)
            assert part <= 1, (seed, sketch)
            worst[name_of(sketch)] = max(worst.get(name_of(sketch), 0.0), part)
    assert len(worst) == 7
    assert max(worst.values()) > 0.9


def caught():
    """What the account says of a fault; None if it sees none."""
    for seed in range(SEEDS):
        for _, part, faults in judged(seed, 2):
            if faults or part > 1:
                return faults or part
    return None


def half_the_noise(patch):
    honest = SketchTable.law.func
    patch.setattr(SketchTable, "law", property(
        lambda self: honest(self)._replace(sigmas=honest(self).sigmas / 2)))  # fmt: skip


def one_address(patch):
    honest, first = levels.key_schedule, {}

    def schedule(draws):
        return first.setdefault(0, honest(draws))

    patch.setattr(levels, "key_schedule", schedule)


def counts_twice(patch):
    honest = SketchTable.count

    def count(self, tables, words, weights, keys):
        weights = weights * 2 if len(weights) else weights
        honest(self, tables, words, weights, keys)

    patch.setattr(SketchTable, "count", count)


CODE = {
    "half the noise of a sketch in Python": half_the_noise,
    "levels of a finder in Python draw at one address": one_address,
    "an item counts twice its weight": counts_twice,
}


def claim(owner, name, value):
    return lambda patch: patch.setattr(owner, name, value)


CLAIMS = {
    "a replaced item is charged as one that is missing": claim(
        privacy, "squared_change", lambda layout, _: layout.depth),
    "a unit is charged for one of its items": claim(NoisePlan, "items", property(lambda _: 1)),
    "the weight of an item is not charged": claim(
        NoisePlan, "_l2_at", lambda self, _: float(self.items) * self.change**0.5
        * self.counter.column_norm),
    "pushes after the first are not charged": claim(
        CellCounter, "column_norm", property(lambda _: 1.0)),
    "textbook noise sets nothing aside for the sampler": claim(
        NoisePlan, "_paid", lambda _, mu: mu),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CODE, *CLAIMS])
def test_a_fault_is_caught(name, monkeypatch):
    (CODE | CLAIMS)[name](monkeypatch)
    assert caught()


def test_the_page_for_reviewers_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "review-mechanisms.md").read_text()
    assert [name for name in [*CODE, *CLAIMS] if f"| {name} |" not in page] == []
