"""Streams that the rows of a first release leave possible."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.compiler.expected_stream import ExpectedStream, draw_stream, expected
from streamveil.compiler.first_release import (
    MIXED,
    RARELY,
    likely_repeats,
    likely_ways,
    of_all_releases,
    repeated_in_part,
)
from streamveil.compiler.group_sizes import GroupLaw
from streamveil.compiler.unit_sizes import ROW_EDGES, SeenUnits
from streamveil.plan.look import CONCENTRATION, LAWS, MEAN_ROWS, STREAMS

LAW = GroupLaw(1_000.0, 1.25, 0.0, 0.0)
KNOWN = {"expected_units": 1000.0, "expected_rows": 1.7}


def seen_of(rows, releases, seed, again=0.0, off=0.01, sigma=5.0):
    """What is seen of units with so many rows, each in any release."""
    rng = np.random.default_rng(seed)
    first = rng.binomial(rows, 1 / releases)
    place = np.searchsorted(ROW_EDGES, first[first > 0], side="right") - 1
    bins = np.bincount(place, minlength=len(ROW_EDGES)) + rng.normal(0, sigma, len(ROW_EDGES))
    return SeenUnits(np.round(bins).astype(np.int64), sigma, 1, again, off)


@pytest.mark.parametrize("kind", ["even", "geometric", "heavy"])
@pytest.mark.parametrize("releases", [4, 24])
def test_units_that_come_at_any_time_are_expected_with_as_many_rows(kind, releases):
    rng = np.random.default_rng(7)
    n = np.arange(1, 1_001)
    law = {"even": 1.0 * (n == 9), "geometric": 0.88**n, "heavy": (n + 40.0) ** -6.7}[kind]
    rows = rng.choice(n, 40_000, p=law / law.sum())
    for seed in range(3):
        ways = likely_ways(seen_of(rows, releases, seed), releases)
        always = [way.rows for way in ways if way.there == releases]
        assert always
        assert np.median(always) == pytest.approx(rows.mean(), rel=0.25)


def test_units_that_are_there_once_are_expected_as_they_were_seen():
    rows = np.random.default_rng(8).geometric(1 / 5, 5_000)
    ways = likely_ways(seen_of(rows, 1, 1), 24)
    once = [way.rows for way in ways if way.there == 1.0]
    assert once
    assert once == pytest.approx([rows.mean()] * len(once), rel=0.1)


def test_units_that_stand_out_beside_a_law_are_there_as_often():
    """Of 100 units with 200 rows beside 10,000 with two, a law that fits most showed none."""
    rows = np.append(np.full(10_000, 2), np.random.default_rng(6).poisson(200, 100))
    for seed in range(3):
        ways = likely_ways(seen_of(rows, 8, seed), 8)
        always = [way for way in ways if way.there == 8]
        assert always
        for way in always:
            many = [(low + high) / 2 * part for low, high, part in way.histogram if low > 100]
            assert sum(many) / way.rows == pytest.approx(0.5, abs=0.15)
        once = [way for way in ways if way.there == 1]
        assert all(high < 100 for way in once for _, high, _ in way.histogram)


def test_units_that_never_come_twice_in_a_release_may_come_in_all():
    """Of 15 rows at even distances in 24 releases, none was seen twice: one row was expected."""
    bins = np.zeros(len(ROW_EDGES), np.int64)
    bins[0] = 5_000
    seen = SeenUnits(bins, 5.0, 1, 0.0, 0.01)
    ways = likely_ways(seen, 24)
    assert all(way.apart for way in ways)
    means = [way.rows for way in ways]
    assert min(means) < 3
    assert 12 < max(means) < 40
    told = of_all_releases(KNOWN | {LAWS: [LAW]}, 24, seen)
    assert max(one.repeats for one in expected(told, 1).family()) > 0.3
    by_chance = seen_of(np.full(40_000, 6), 24, 3)
    assert not any(way.apart for way in likely_ways(by_chance, 24))


def test_noise_alone_leaves_usual_units_of_any_kind():
    bins = np.zeros(len(ROW_EDGES), np.int64)
    bins[0] = 900
    ways = likely_ways(SeenUnits(bins, 150.0, 1, 0.0, 1.0), 100)
    means = [way.rows for way in ways]
    assert len({way.there for way in ways}) > 1
    assert min(means) < 6 < max(means) < 60


@pytest.mark.parametrize("place", [1, 2, 5])
def test_few_units_of_one_size_leave_no_law_without_units(place):
    """The first bin fell below 0 by noise: a law of no units fitted, and a look divided by 0."""
    for seed in range(20):
        bins = np.random.default_rng(seed).normal(0, 10, len(ROW_EDGES))
        bins[0], bins[place] = -abs(bins[0]), 45
        seen = SeenUnits(np.round(bins).astype(np.int64), 10.0, 1, 0.0, 1.0)
        assert all(way.rows >= 1 for way in likely_ways(seen, 24))
    nothing = SeenUnits(np.full(len(ROW_EDGES), -1), 10.0, 1, 0.0, 1.0)
    assert likely_ways(nothing, 24) == []
    assert STREAMS not in of_all_releases(KNOWN, 24, nothing)


def test_the_share_that_repeats_in_a_part_is_that_of_rows_drawn():
    stream = ExpectedStream(units=1e4, rows=8.0, groups=50, steep=0.9, repeats=0.4)
    drawn = draw_stream(stream)
    rng, found = np.random.default_rng(9), []
    units = np.repeat(np.arange(len(drawn.ends)), np.diff(drawn.ends, prepend=0))
    weight = drawn.single[drawn.ends - 1][units]
    for _ in range(200):
        there = rng.random(len(units)) < 1 / 6
        some = np.flatnonzero(there)
        _, first = np.unique(drawn.first[some], return_index=True)
        found.append((weight[some].sum(), weight[some[first]].sum()))
    rows, groups = np.sum(found, axis=0)
    assert repeated_in_part(drawn, 6) == pytest.approx(1 - groups / rows, abs=0.005)
    whole = 1 - drawn.single[drawn.new].sum() / drawn.weight.sum()
    assert repeated_in_part(drawn, 1) == pytest.approx(whole)


def test_repeats_follow_from_those_of_a_part():
    stream = ExpectedStream(units=1e4, rows=6.0, groups=2_000, steep=0.8, drawn=250)
    for repeats in (0.1, 0.5, 0.9):
        share = repeated_in_part(draw_stream(replace(stream, repeats=repeats)), 24)
        seen = SeenUnits(np.zeros(1, np.int64), 1.0, 1, share, 1e-3)
        assert likely_repeats(stream, 24, seen, 0.5) == pytest.approx(repeats, abs=0.1)
    hidden = SeenUnits(np.zeros(1, np.int64), 1.0, 1, 0.0, 100.0)
    found = [likely_repeats(stream, 24, hidden, chance) for chance in MIXED]
    before = [1 - (1 - chance) ** (1 / (RARELY + 1)) for chance in MIXED]
    assert found == pytest.approx(before, abs=0.03)


def test_units_that_keep_to_a_group_are_expected_to():
    """What a first release said of repeats was left out: every second row was thought to be new."""
    rows = np.random.default_rng(10).geometric(1 / 6, 30_000)
    for again, least, most in ((0.2, 0.7, 1.0), (0.002, 0.0, 0.3)):
        seen = seen_of(rows, 24, 3, again=again)
        told = of_all_releases(KNOWN | {LAWS: [LAW] * 6}, 24, seen)
        family = expected(told, 1).family()
        chances = [one.repeats for one in family if one.rows > 4]
        assert chances
        assert all(least <= chance <= most for chance in chances)


def test_all_streams_have_as_many_rows():
    rows = np.random.default_rng(11).geometric(1 / 6, 30_000)
    told = of_all_releases(KNOWN | {LAWS: [LAW]}, 24, seen_of(rows, 24, 4))
    family = expected(told, 1).family()
    assert len(family) == len(told[STREAMS])
    for one in family:
        assert one.units * one.rows == pytest.approx(1000 * 1.7 * 24, rel=0.01)
        assert (one.groups, one.steep) == (1_000, 1.25)
    assert {f"{one.rows:.3g}" for one in family} == {f"{mean:.3g}" for mean in told[MEAN_ROWS]}


def test_groups_that_a_query_knows_are_those_of_all_streams():
    rows = np.random.default_rng(11).geometric(1 / 6, 30_000)
    told = of_all_releases(KNOWN | {LAWS: [LAW]}, 24, seen_of(rows, 24, 4))
    for more, public in (({"expected_groups": 70}, None), ({}, 70)):
        family = expected(told | more, 1, public).family()
        assert {one.groups for one in family} == {70}
    unknown = of_all_releases(KNOWN, 24, seen_of(rows, 24, 4))
    assert {one.groups for one in expected(unknown, 1, 70).family()} == {70}
    assert len({one.steep for one in expected(unknown, 1).family()}) > 2


def test_a_first_release_of_rows_in_groups_of_their_own_says_nothing_of_others():
    own, usual = GroupLaw(9_000.0, 0.0, 0.9, 0.7), GroupLaw(300.0, 1.2, 0.1, 0.0)
    known = KNOWN | {LAWS: [own, usual, own]}
    assert of_all_releases(known, 10, None)[LAWS] == [usual]
    assert LAWS not in of_all_releases(known | {LAWS: [own, own]}, 10, None)
    assert of_all_releases(known, 1, None)[LAWS] == known[LAWS]


def test_units_with_many_rows_in_a_first_release_may_come_back():
    """They were taken for others in each: of devices with 60 rows an hour, 23 hours were cut."""
    known = {"expected_units": 1000.0, "expected_rows": 60.0, CONCENTRATION: (0.0, 0.9, 0.1)}
    seen = seen_of(np.full(1_000, 60), 1, 5)
    told = of_all_releases(known, 24, seen)
    assert [round(mean) for mean in told[MEAN_ROWS]] == [60, 294, 1440]
    assert told[CONCENTRATION] == known[CONCENTRATION]
    assert told["expected_units"] == 1000.0
    assert STREAMS not in told
    few = of_all_releases(known | {"expected_rows": 6.0}, 24, seen_of(np.full(1_000, 6), 1, 5))
    assert CONCENTRATION not in few
