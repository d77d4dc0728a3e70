"""Partitions: privacy by enumerating every transcript, thresholds, accuracy on streams."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.qiu_yi import Squaring
from streamveil.core.accounting import Neighbours
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.dynamic import Changes, FullyDynamic, InsertionOnly
from streamveil.dynamic.baselines import Rerun, TwoStream
from streamveil.dynamic.partition import TimeVarying
from streamveil.dynamic.schedulers import PUBLIC_SIZES, PublicSizes
from streamveil.dynamic.trees import accumulator
from streamveil.linear import Marginals, Share, noisy_queries
from tests.linear.test_sparse_vector import REACH, at_least
from tests.statistics import assert_rate, assert_rejects_rate


def transcript_law(counts, thresholds_of, split):
    """P(each close/open transcript); `thresholds_of(t, j)` is public. Sums over every offset."""
    first, second = split
    offsets = np.arange(-REACH, REACH + 1)
    prior = np.tanh(first / 2) * np.exp(-first * np.abs(offsets))
    law = {(): (1.0, prior, 0, 1)}
    for t, arrived in enumerate(counts, start=1):
        following = {}
        for transcript, (before, alive, count, segment) in law.items():
            total = count + arrived
            above = at_least(thresholds_of(t, segment) + offsets - total, second)
            closes = before * float((alive * above).sum())
            following[(*transcript, 1)] = (closes, prior, 0, segment + 1)
            following[(*transcript, 0)] = (before, alive * (1 - above), total, segment)
        law = following
    return {key: before * float(alive.sum()) for key, (before, alive, _, _) in law.items()}


def worst(counts, other, thresholds_of, split):
    one, two = (transcript_law(c, thresholds_of, split) for c in (counts, other))
    assert abs(sum(one.values()) - 1) < 1e-9
    return max(abs(math.log(one[key] / two[key])) for key in one)


def small_thresholds(t, segment):
    return 2 + (t > 3) + (segment > 2)


BASE = (0, 1, 0, 2, 0, 1)


@pytest.mark.parametrize(
    ("split", "claim"), [((0.5, 0.5), 0.5), ((0.3, 0.8), 0.8), ((0.8, 0.3), 0.8)]
)
def test_one_update_costs_epsilon_over_every_transcript(split, claim):
    found = max(
        worst(BASE, tuple(c + (i == s) for i, c in enumerate(BASE)), small_thresholds, split)
        for s in range(6)
    )
    assert 0.6 * claim < found <= claim + 1e-9


def test_two_updates_cost_twice_as_much_and_no_more():
    found = 0.0
    for s, u in itertools.combinations(range(6), 2):
        other = tuple(c + (i in (s, u)) for i, c in enumerate(BASE))
        found = max(found, worst(BASE, other, small_thresholds, (0.5, 0.5)))
    assert 0.55 < found <= 1 + 1e-9


def test_a_threshold_that_depends_on_the_data_is_caught():
    """The planted fault: the threshold follows the true number of updates."""

    def thresholds(counts):
        return lambda t, _segment: 2 + 2 * sum(counts[:t])

    other = (1, *BASE[1:])
    one, two = (transcript_law(c, thresholds(c), (0.5, 0.5)) for c in (BASE, other))
    assert max(abs(math.log(one[key] / two[key])) for key in one) > 0.55


def test_the_code_follows_the_enumerated_law():
    partition = TimeVarying(epsilon=0.5, beta=0.9, kappa=0.15)
    law = transcript_law(BASE, partition.threshold, (0.5, 0.5))
    wrong = transcript_law(BASE, partition.threshold, (0.8, 0.8))
    seen = dict.fromkeys(law, 0)
    for i in range(8_000):
        place = Place(SeededNoise(3), "p", (i,))
        state = partition.init(place)
        seen[tuple(int(partition.step(state, c, place)) for c in BASE)] += 1
    for transcript in law:
        assert_rate(seen[transcript], 8_000, law[transcript])
    idle = (0,) * 6
    assert_rejects_rate(seen[idle], 8_000, wrong[idle])


def test_silent_partitions_close_exactly_at_their_threshold():
    partition = TimeVarying(epsilon=1)
    place = Place(SilentNoise(), "p")
    state = partition.init(place)
    closes = [partition.step(state, 1, place) for _ in range(40)]
    first = closes.index(True) + 1
    assert first >= partition.threshold(first, 1)
    assert first - 1 < partition.threshold(first - 1, 1)


@pytest.mark.parametrize(
    "partition",
    [TimeVarying(epsilon=1, kappa=1.0), Squaring(epsilon=1)],
)
def test_segments_are_neither_empty_nor_large(partition):
    rng = np.random.default_rng(0)
    bad = 0
    for run in range(5):
        place = Place(SeededNoise(run), "p")
        state = partition.init(place)
        sizes, count, idle = [], 0, 0
        for arrived in (rng.random(3000) < 0.3).astype(int):
            count += arrived
            limit = 2 * partition.hidden(state, 0.001)
            forced = isinstance(partition, Squaring) and (
                state.t + 1 >= partition.limit(state.opened, state.segment)[0]
            )
            if partition.step(state, int(arrived), place):
                sizes.append(count)
                bad += count > limit or (count == 0 and not forced)
                idle += forced
                count = 0
        assert len(sizes) <= 900 + 6
    assert bad <= 1


def test_squaring_times_out_where_the_paper_says():
    partition = Squaring(epsilon=1)
    place = Place(SilentNoise(), "p")
    state = partition.init(place)
    closed = [t for t in range(1, 300) if partition.step(state, 0, place)]
    assert closed == [2, 4, 16, 256]


def test_records_count_as_updates_where_nobody_says_how_many_there_were():
    """They stayed in the open segment for ever, and the bound allowed for a hundred of them."""
    table = InsertionOnly.sparse(noisy_queries(Marginals((2,), ((0,),))), Share("pure", 1))
    place = Place(SilentNoise(), "x")
    state = table.init(place)
    table.step(state, Changes(np.zeros(1000, np.int64)), place)
    assert table.answers(state).values[0] == 1000


def test_guarantees_follow_the_relation():
    event = TimeVarying(epsilon=1)
    record = TimeVarying(epsilon=1, protects=Neighbours("row", relation="record"))
    assert event.guarantee.epsilon(0) == pytest.approx(1)
    assert record.guarantee.epsilon(0) == pytest.approx(2)


def test_a_table_refuses_to_promise_more_than_its_parts_do():
    static, share = noisy_queries(Marginals((2,), ((0,),))), Share("pure", 1)
    of_rows, by_hand = TimeVarying(epsilon=1), Neighbours("row", 3, "event")
    hidden = FullyDynamic.repaired(static, share, horizon=8, public_steps=False)
    with pytest.raises(ValueError, match="the partition protects 'event'"):
        replace(hidden, partition=of_rows)  # an insertion and its deletion are two updates
    rows = InsertionOnly.sparse(static, share)
    with pytest.raises(ValueError, match="protects one row, not 3"):
        replace(rows, protects=by_hand)
    with pytest.raises(ValueError, match="'event-change'"):
        replace(rows, protects=Neighbours("row", relation="event-change"))
    for protects in (Neighbours("row", relation=kind) for kind in ("event-change", "change-one")):
        with pytest.raises(ValueError, match="replaced=True"):  # it moves both rows
            replace(InsertionOnly.dense(static, share), protects=protects)
        with pytest.raises(ValueError, match="protect 'update'"):
            replace(
                FullyDynamic.repaired(static, share, horizon=8, matching="labels"),
                protects=protects,
            )


def test_a_table_refuses_sizes_for_public_where_they_are_not():
    told, share = (
        PublicSizes(noisy_queries(Marginals((2,), ((0,),)), replaced=True)),
        Share("pure", 1),
    )
    for make in (
        lambda: InsertionOnly.dense(told, share),
        lambda: FullyDynamic.repaired(told, share, horizon=8),
        lambda: Rerun(static=told, share=share, steps=8),
        lambda: TwoStream(static=told, share=share, horizon=8),
    ):
        with pytest.raises(ValueError, match="does not take sizes for public"):
            make()
    assert InsertionOnly(inner=accumulator(told, share, 8, 4), static=told, protects=PUBLIC_SIZES)


@pytest.mark.parametrize("partition", [TimeVarying, Squaring])
def test_a_change_of_several_updates_is_charged_for_all_of_them(partition):
    for relation, updates in (("event", 3), ("update", 3), ("record", 6)):
        cut = partition(epsilon=1, protects=Neighbours("row", 3, relation))
        assert cut.guarantee.epsilon(0) == updates
