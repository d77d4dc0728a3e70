"""How many groups there are, from one row of each unit: what a unit moves, and what is found."""

import numpy as np
import pytest

from streamveil.compiler.by_unit import ByUnit, shape_of
from streamveil.compiler.expected_stream import ExpectedStream, group_law
from streamveil.compiler.group_sizes import (
    BUCKET_WEIGHT,
    BUCKETS,
    SIZES,
    WEIGHT,
    Units,
    groups_by_size,
    likely_laws,
    rows_by_bucket,
)

SIGMA = 20.0


def sample(scope, cell):
    """Rows by units, which are numbered from 0."""
    rows = ByUnit(np.uint32)
    scope = np.unique(scope, return_inverse=True)[1]
    rows.add(scope.astype(np.uint32), np.asarray(cell).astype(np.uint32))
    return rows


def sized(some, words):
    return groups_by_size(shape_of(some, words).cell)


def noisy_laws(rng, sizes, lengths=(1,), repeats=0.0, sigma=SIGMA):
    """What a look finds where groups have so many of the chosen rows."""
    exact = (sizes[:, None] >= SIZES).sum(axis=0)
    groups = rng.integers(0, 2**64, len(sizes), np.uint64)
    buckets = rows_by_bucket(np.repeat(np.arange(len(sizes)), sizes), groups)
    numbers = np.round(exact + rng.normal(0, WEIGHT * sigma, len(SIZES)))
    rows = np.round(buckets + rng.normal(0, BUCKET_WEIGHT * sigma, BUCKETS))
    units = Units(float(sizes.sum()), np.array(lengths), repeats, 0.02)
    return likely_laws(numbers, rows, units, sigma)


def test_one_unit_moves_one_bucket_by_one_whatever_number_its_group_gets():
    """Groups are numbered as they come: a word belongs to a group, a number to nobody."""
    rng, renumbered = np.random.default_rng(4), 0
    for _ in range(200):
        scope, cell = rng.integers(0, 20, 60), rng.integers(0, 40, 60)
        words, units = rng.integers(0, 2**64, 20, np.uint64), np.unique(scope)
        of_groups = rng.integers(0, 2**64, 40, np.uint64)
        gone = rng.choice(units)
        found, planted = [], []
        for some, who in ((scope >= 0, units >= 0), (scope != gone, units != gone)):
            known, numbered = np.unique(cell[some], return_inverse=True)
            cells = shape_of(sample(scope[some], numbered), words[units[who]]).cell
            found.append(rows_by_bucket(cells, of_groups[known]))
            planted.append(rows_by_bucket(cells, np.arange(len(known)).astype(np.uint64)))
        assert np.abs(found[0] - found[1]).sum() == 1
        renumbered += np.abs(planted[0] - planted[1]).sum() > 1
    assert renumbered  # the planted fault: buckets by number


@pytest.mark.parametrize("groups", [1, 3, 40])
def test_one_unit_moves_one_number_by_one_whatever_its_rows_are(groups):
    """Two rows of each unit, the plain reading of a histogram of sizes, would move more."""
    rng, most = np.random.default_rng(groups), 0
    for _ in range(300):
        scope, cell = rng.integers(0, rng.integers(2, 30), 200), rng.integers(0, groups, 200)
        words = rng.integers(0, 2**64, 30, np.uint64)
        gone = rng.choice(np.unique(scope))
        units = np.unique(scope)
        some, rest = scope != gone, units != gone
        whole = sized(sample(scope, cell), words[units])
        less = sized(sample(scope[some], cell[some]), words[units[rest]])
        moved = np.abs(whole - less)
        assert moved.sum() <= 1
        most = max(most, moved.sum())
        every = np.bincount(cell)
        assert (whole <= (every[:, None] >= SIZES).sum(axis=0)).all()
    assert most == 1
    if groups < 40:
        return
    both = [np.bincount(c, minlength=groups) for c in (cell, cell[some])]
    counted = [(one[:, None] >= SIZES).sum(axis=0) for one in both]
    assert np.abs(counted[0] - counted[1]).sum() > 1  # the planted fault: all rows of a unit


def test_every_row_of_a_unit_is_taken_as_often():
    """9,000 units with three groups each: 3,000 in each, 300 is 6.7 deviations (below 1e-10)."""
    units = 9_000
    scope = np.arange(3 * units) % units
    words = np.random.default_rng(1).integers(0, 2**64, units, np.uint64)
    found = sized(sample(scope, np.arange(3 * units) // units), words)
    assert (found[SIZES <= 2_700] == 3).all()
    assert (found[SIZES >= 3_300] == 0).all()
    last = sized(sample(scope, np.arange(3 * units) // units), words * 0 + (2**64 - 1))
    assert last[units >= SIZES].tolist() == [1] * int((units >= SIZES).sum())
    assert sized(ByUnit(np.uint32), words[:0]).sum() == 0


@pytest.mark.parametrize("steep", [0.0, 1.05])
@pytest.mark.parametrize("groups", [20, 1_000])
def test_the_number_of_groups_and_how_unequal_they_are_are_found(groups, steep):
    """Laws far from the truth would say so: 30,000 units are a guess of many more groups."""
    rng = np.random.default_rng(groups)
    totals, counts = group_law(ExpectedStream(units=30_000, rows=1, groups=groups, steep=steep))
    sizes = rng.poisson(np.repeat(totals, counts.astype(int)))
    laws = noisy_laws(rng, sizes)
    held, _, single, _ = np.median(laws, axis=0)
    assert single <= 0.05
    assert held == pytest.approx(groups, rel=0.35 if groups == 1_000 else 0.6)
    for law in laws:  # the half of all rows that is in the largest groups
        one = ExpectedStream(units=30_000, rows=1, groups=int(law.groups), steep=law.steep,
                             spread=law.spread)  # fmt: skip
        assert share_of_half(*group_law(one)) == pytest.approx(
            share_of_half(totals, counts), abs=0.12
        )


def share_of_half(totals, counts):
    """The share of groups, the largest, that have half of all rows."""
    rows = np.cumsum(totals * counts)
    return np.interp(rows[-1] / 2, np.r_[0, rows], np.r_[0, np.cumsum(counts)]) / counts.sum()


def test_many_small_groups_below_a_few_are_seen_where_the_noise_leaves_them():
    """Laws whose smallest groups are half the mean took 3,000 groups of 12 to 190 rows for 2,400.

    Half of them had fewer rows than any group of such a law, and were not published.
    """
    rng = np.random.default_rng(6)
    means = np.exp(rng.normal(0, 0.6, 3_000))
    laws = noisy_laws(rng, rng.poisson(10 * means / means.mean()))
    small = [
        np.average(totals < 0.5 * 10, weights=counts)
        for law in laws
        for totals, counts in [group_law(ExpectedStream(
            units=30_000, rows=1, groups=int(law.groups), steep=law.steep, spread=law.spread))]
    ]  # fmt: skip
    assert np.mean(small) == pytest.approx((means < 0.5 * means.mean()).mean(), abs=0.1)


def test_a_law_by_which_units_would_meet_groups_again_more_often_than_they_do_is_none():
    """500 units in noise of 40: without their repeats, a tenth of their groups was as likely."""
    rng = np.random.default_rng(7)
    falling = (np.arange(1, 201) + 0.2) ** -1.4
    sizes = rng.poisson(500 * falling / falling.sum())
    known, unknown = (
        noisy_laws(np.random.default_rng(8), sizes, (60,), repeats, 45.0) for repeats in (0.3, 0.95)
    )
    again = [[repeated(law, 500, 60) for law in laws] for laws in (known, unknown)]
    assert max(again[0]) < 0.45 < max(again[1])


def repeated(law, units, rows):
    """The share of rows that repeat a group of their unit by chance."""
    totals, counts = group_law(ExpectedStream(
        units=units, rows=1, groups=int(law.groups), steep=law.steep, single=law.single,
        spread=law.spread))  # fmt: skip
    return 1 - counts @ (1 - (1 - totals / units) ** rows) / rows


def test_groups_of_one_row_do_not_hide_the_others():
    """Half of all rows are unique words; with one law for all, 30 groups were taken for 15,000."""
    rng = np.random.default_rng(3)
    sizes = np.r_[np.full(30, 500), np.ones(15_000, int)]
    laws = noisy_laws(rng, sizes)
    held, _, single, _ = np.median(laws, axis=0)
    assert held < 150
    assert single == 0.5
