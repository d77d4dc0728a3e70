"""Sketches without privacy, against plain counting and against hash theory."""

import numpy as np
import pytest

from benchmarks.plain_sketches import CountMin, CountSketch
from streamveil.sketches import Layout

KEYS = np.random.default_rng(0).zipf(1.3, 20_000).astype(np.uint32)


def counted(layout, keys, weights=None):
    table = np.zeros((layout.depth, layout.width), np.int64)
    amounts = np.ones(len(keys), np.int64) if weights is None else weights
    places = layout.places(keys)
    for row in range(layout.depth):
        column = places[row] >> np.uint32(layout.signed)
        sign = 1 - 2 * (places[row] & 1).astype(int) if layout.signed else 1
        np.add.at(table[row], column, amounts * sign)
    return table


@pytest.mark.parametrize("make", [CountMin, CountSketch])
@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("width", [1, 7, 300])
def test_tables_are_plain_counts(make, depth, width):
    plain, weighted = (make(depth=depth, width=width, seed=3) for _ in range(2))
    plain.update(KEYS)
    weights = np.arange(len(KEYS)) % 5
    weighted.update(KEYS, weights)
    assert (plain.table == counted(plain.layout, KEYS)).all()
    assert (weighted.table == counted(plain.layout, KEYS, weights)).all()
    assert plain.total == len(KEYS)
    assert weighted.total == weights.sum()


@pytest.mark.parametrize("make", [CountMin, CountSketch])
def test_merging_equals_counting_together(make):
    one, two, both = (make(width=50, seed=1) for _ in range(3))
    one.update(KEYS[:5000])
    two.update(KEYS[5000:])
    both.update(KEYS)
    assert (one.merge(two).table == both.table).all()
    assert one.merge(two).total == both.total
    with pytest.raises(ValueError, match="seed"):
        one.merge(make(width=50, seed=2))


def test_estimates_never_fall_below_the_truth_and_stay_within_the_bound():
    sketch = CountMin(depth=5, width=400)
    sketch.update(KEYS)
    keys, truth = np.unique(KEYS, return_counts=True)
    error = sketch.estimate(keys) - truth
    assert error.min() >= 0
    assert (error > 2 * len(KEYS) / 400).mean() <= 2.0**-5


def test_count_sketch_is_unbiased_over_seeds():
    keys, truth = np.unique(KEYS, return_counts=True)
    errors = []
    for seed in range(60):
        sketch = CountSketch(depth=1, width=50, seed=seed)
        sketch.update(KEYS)
        errors.append((sketch.estimate(keys) - truth)[:20])
    errors = np.array(errors)
    z = errors.mean(axis=0) / (errors.std(axis=0) / np.sqrt(60))
    assert np.abs(z).max() < 6


@pytest.mark.parametrize("kind", ["count-min", "count-sketch"])
def test_two_keys_meet_about_as_often_as_promised(kind):
    keys = np.arange(300, dtype=np.uint32)
    meetings, width = 0, 16
    for seed in range(200):
        layout = Layout(kind=kind, depth=1, width=width, seed=seed)
        column = layout.columns(keys)[0]
        meetings += (column[0] == column[1:]).sum()
    assert meetings / (200 * 299) < 1.5 / width


def test_large_totals_move_to_wide_cells():
    sketch = CountMin(width=3)
    for _ in range(2):
        sketch.update([1], [2**31 - 1])
    assert sketch.estimate([1])[0] == 2 * (2**31 - 1)


@pytest.mark.parametrize(
    "fields",
    [dict(kind="count-sketch", family="identity", width=8), dict(family="identity", width=8),
     dict(family="other", width=8)],
)  # fmt: skip
def test_impossible_layouts_are_refused(fields):
    with pytest.raises(ValueError, match=r"signs|depth 1|unknown"):
        Layout(**(dict(kind="count-min", depth=2) | fields))


def test_updates_refuse_negative_weights():
    with pytest.raises(ValueError, match="weight"):
        CountMin(width=3).update([1], [-1])
