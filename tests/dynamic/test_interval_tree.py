"""The fully dynamic mechanism: exact in silence, structure over all small streams, budgets."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers.qiu_yi import published
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dynamic import Bag, Changes, FullyDynamic, LiveTable, Records, Repaired
from streamveil.dynamic.interval_tree import UPDATE
from streamveil.errors import HorizonError
from streamveil.linear import (
    Marginals,
    Mwem,
    Place,
    Share,
    noisy_histogram,
    noisy_queries,
)
from tests.dynamic.streams import Plain, arrays, random_stream

CELLS = Marginals((2, 3), ((0, 1), (1,)))
PURE, ZCDP = Share("pure", Fraction(1)), Share("zcdp", Fraction(1, 40))


def mechanisms():
    static = noisy_queries(CELLS)
    for horizon in (None, 300):
        for matching in ("ids", "labels"):
            yield FullyDynamic.repaired(static, PURE, horizon=horizon, matching=matching)
    yield FullyDynamic.repaired(noisy_histogram(CELLS), ZCDP, horizon=300)
    yield published(static, PURE)
    yield published(static, PURE, finite=True)


@pytest.mark.parametrize("mechanism", list(mechanisms()))
@pytest.mark.parametrize("seed", range(3))
def test_without_noise_it_is_the_table(mechanism, seed):
    table = LiveTable.open(mechanism, SilentNoise(), "t", matching=mechanism.matching)
    plain, ids = Plain(), mechanism.matching == "ids"
    for t, updates in enumerate(random_stream(seed, 120, 6), start=1):
        for sign, rid, label in updates:
            (plain.insert if sign > 0 else plain.delete)(rid, label, ids=ids)
        table.change(*arrays(updates))
        table.tick()
        assert_allclose(table.answers().values, CELLS.exact(plain.histogram(6)), atol=1e-9)
        if mechanism.plan == "published" or mechanism.horizon is not None:
            assert len(table.state.buckets) == t.bit_count()


def test_with_a_partition_it_is_the_table_at_the_last_closed_segment():
    mechanism = FullyDynamic.repaired(
        noisy_queries(CELLS), Share("pure", 30), horizon=None, public_steps=False
    )
    table = LiveTable.open(mechanism, SilentNoise(), "t")
    plain, exact, closed = Plain(), np.zeros(CELLS.size), 0
    for updates in random_stream(5, 300, 6):
        for sign, rid, label in updates:
            (plain.insert if sign > 0 else plain.delete)(rid, label, ids=True)
        table.change(*arrays(updates))
        table.tick()
        if table.state.q > closed:
            closed, exact = table.state.q, CELLS.exact(plain.histogram(6))
        assert_allclose(table.answers().values, exact, atol=1e-9)
    assert 20 < closed < 300


def buckets_of(stream, match):
    """For every bucket: its first contents and the deletions it takes, of a stream of one update a
    step; `match` picks the birth of the copy to delete."""
    alive, contents = [], {}
    live = []  # (first, last, labels as (birth, label))
    for q, (sign, label) in enumerate(stream, start=1):
        gone = None
        if sign > 0:
            alive.append((q, label))
        elif sign < 0:
            copies = [record for record in alive if record[1] == label]
            if copies:
                gone = match(copies)
                alive.remove(gone)
        first = q - (q & -q)
        kept = []
        for low, last in live:
            if low < first:
                kept.append((low, last))
                if gone and low < gone[0] <= last:
                    contents[low, last][1].append((q, label))
        inside = sorted(label for birth, label in alive if first < birth <= q)
        contents[first, q] = (inside, [])
        live = [*kept, (first, q)]
    return contents


def difference(one, other):
    """Multiset difference."""
    left = list(other)
    extra = 0
    for item in one:
        if item in left:
            left.remove(item)
        else:
            extra += 1
    return extra + len(left)


UPDATES = [(1, 0), (1, 1), (-1, 0), (-1, 1), (0, 0)]


def worst_structure(length, match, labels=1, trials=None):
    """All changed buckets over all streams and single-update neighbours, by level."""
    symbols = [u for u in UPDATES if u[1] < labels]
    streams = itertools.product(symbols, repeat=length) if trials is None else trials
    per_level, shapes = 0, set()
    for stream in streams:
        base = buckets_of(stream, match)
        for s in range(length):
            if stream[s][0] == 0:
                continue
            other = buckets_of((*stream[:s], (0, 0), *stream[s + 1 :]), match)
            seen = {}
            for key in base:
                moved = tuple(difference(base[key][i], other[key][i]) for i in (0, 1))
                if moved != (0, 0):
                    shapes.add(moved)
                    level = (key[1] - key[0]).bit_length()
                    seen[level] = seen.get(level, 0) + 1
            per_level = max([per_level, *seen.values()])
    return per_level, shapes


def lifo(copies):
    return copies[-1]


def fifo(copies):
    return copies[0]


def test_labels_last_in_first_out_move_one_bucket_a_level_over_all_streams():
    per_level, shapes = worst_structure(9, lifo)
    assert per_level == 1
    assert shapes <= {(1, 0), (1, 1), (0, 1), (0, 2)}
    assert (0, 2) in shapes  # the reason for the label factor


def test_first_in_first_out_is_caught():
    """The planted fault: with FIFO one update moves many buckets of one level."""
    stream = [(1, 0), *[(1, 0), (-1, 0)] * 8]
    per_level, _ = worst_structure(17, fifo, trials=[tuple(stream)])
    assert per_level >= 3
    assert worst_structure(17, lifo, trials=[tuple(stream)])[0] == 1


def test_the_code_deletes_the_copies_the_structure_test_is_about():
    rng = np.random.default_rng(1)
    records = Records(matching="labels", domain=2, counts_no_ops=True)
    state, alive = records.init(), []
    for q in range(1, 200):
        sign, label = UPDATES[rng.integers(0, 4)]
        changes, _ = records.step(state, *arrays([(sign, 0, label)]), q)
        if sign > 0:
            alive.append((q, label))
        else:
            copies = [record for record in alive if record[1] == label]
            assert changes.birth.tolist() == [birth for birth, _ in copies[-1:]]
            if copies:
                alive.remove(copies[-1])


def test_two_labels_over_all_longer_streams():
    per_level, shapes = worst_structure(6, lifo, labels=2)
    assert per_level == 1
    assert shapes <= {(1, 0), (1, 1), (0, 1), (0, 2)}


def test_record_ids_move_one_bucket_a_level_by_one_record_and_one_deletion():
    """Removing a record with its deletion: read from the mechanism's own buckets."""
    for seed in range(4):
        steps = list(random_stream(seed, 40, 6, most=2))
        rids = {rid for updates in steps for sign, rid, _ in updates if sign > 0}
        for rid in sorted(rids)[:8]:
            without = [[u for u in updates if u[1] != rid] for updates in steps]
            one, other = (traced(s) for s in (steps, without))
            levels = {}
            for key in one:
                moved = (
                    np.abs(one[key][0] - other[key][0]).sum(),
                    np.abs(one[key][1] - other[key][1]).sum(),
                )
                assert moved in {(0, 0), (1, 0), (1, 1)}
                if moved != (0, 0):
                    level = (key[1] - key[0]).bit_length()
                    levels[level] = levels.get(level, 0) + 1
            assert max(levels.values(), default=0) <= 1


def traced(steps):
    """Of every bucket ever opened: its first contents, and all its deletions."""
    mechanism = FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=64)
    table = LiveTable.open(mechanism, SilentNoise(), "t")
    seen, last = {}, {}
    for updates in steps:
        table.change(*arrays(updates))
        table.tick()
        for bucket in table.state.buckets:
            key, now = (bucket.first, bucket.last), bucket.state.live.histogram(6)
            if key not in seen:
                seen[key] = [now, np.zeros(6, np.int64)]
            else:
                seen[key][1] = seen[key][0] - now
            last[key] = now
    return seen


def test_levels_and_rounds_spend_exactly_the_share():
    static = noisy_queries(CELLS)
    known = FullyDynamic.repaired(static, PURE, horizon=1000)
    total = sum(known.level_share(level, 0).amount for level in range(1, 11))
    assert 1 - 1e-12 < total <= 1
    unknown = FullyDynamic.repaired(static, PURE, horizon=None)
    for epoch in range(1, 20):
        levels = [unknown.level_share(level, epoch).amount for level in range(epoch + 1)]
        assert 1 - 1e-12 < sum(levels) <= 1
    tree = published(static, PURE)
    series = [float(tree.level_share(level, 0).amount) for level in range(1, 2000)]
    assert sum(series) <= 1
    assert series[3] == pytest.approx(6 / (math.pi * 4) ** 2)
    assert sum(4 * 3 / (2 * math.pi**2 * r**2) for r in range(1, 10**5)) == pytest.approx(
        1, abs=1e-4
    )


def test_ids_protect_all_rows_of_a_record_and_not_one_of_them():
    """Without its first row an id comes with its second: two buckets of one level change."""
    moved = []
    for stream in ([(1, 7, 0), (0, 0, 0), (1, 7, 0)], [(0, 0, 0), (0, 0, 0), (1, 7, 0)]):
        records = Records(matching="ids", domain=1, counts_no_ops=True)
        state, born = records.init(), []
        for step, update in enumerate(stream, start=1):
            changes, _ = records.step(state, *arrays([update] if update[0] else []), step)
            born += [step] * len(changes.born)
        moved.append(born)  # steps 1 and 3 are buckets of level 1
    assert moved == [[1], [3]]
    known = FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=8)
    with pytest.raises(ValueError, match="protect 'record'"):
        replace(known, protects=UPDATE)
    by_labels = FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=8, matching="labels")
    with pytest.raises(ValueError, match="match by labels"):
        LiveTable.open(by_labels, SilentNoise(), "t")
    assert LiveTable.open(by_labels, SilentNoise(), "t", matching="labels").privacy() == (
        by_labels.guarantee
    )


def test_guarantees_are_computed_from_the_parts():
    static = noisy_queries(CELLS)
    known = FullyDynamic.repaired(static, PURE, horizon=1000)
    assert known.guarantee.epsilon(0) == pytest.approx(1)
    hidden = FullyDynamic.repaired(static, PURE, horizon=None, public_steps=False)
    assert hidden.guarantee.epsilon(0) == pytest.approx(1)
    assert float(hidden.partition.epsilon) == pytest.approx(0.1)  # two updates of a record
    labels = FullyDynamic.repaired(Mwem(queries=CELLS), PURE, horizon=8, matching="labels")
    assert labels.guarantee.epsilon(0) == pytest.approx(1)
    assert labels.guarantee.protects.relation == "update"
    assert float(labels.tree_share.amount) == pytest.approx(1 / 1.37)
    one_round = FullyDynamic.repaired(static, PURE, horizon=8, matching="labels")
    assert one_round.tree_share.amount == 1  # two deletions cost less than the base does
    zcdp = FullyDynamic.repaired(Mwem(queries=CELLS), ZCDP, horizon=8, matching="labels")
    assert float(zcdp.tree_share.amount * 40) == pytest.approx(1 / 1.47)
    with pytest.raises(ValueError, match="labels have no records"):
        FullyDynamic(static=static, share=PURE, horizon=8, bucket=known.bucket, matching="labels")


def test_more_steps_than_promised_are_refused():
    table = LiveTable.open(
        FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=3), SilentNoise(), "t"
    )
    for _ in range(3):
        table.tick()
    with pytest.raises(HorizonError):
        table.tick()


def test_more_hidden_segments_than_promised_are_refused():
    """They were left out without a word: errors went beyond every bound."""
    hidden = FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=3, public_steps=False)
    place = Place(SilentNoise(), "t")
    state, born = hidden.init(place), np.zeros(1000, np.int64)
    for _ in range(3):
        hidden.step(state, Changes(born), place)
    with pytest.raises(HorizonError):
        hidden.step(state, Changes(born), place)


def test_the_bound_covers_with_additive_noise():
    mechanism = FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=31)
    missed = 0
    for seed in range(60):
        table = LiveTable.open(mechanism, SeededNoise(seed), "t")
        plain = Plain()
        for updates in random_stream(seed, 31, 6, most=3):
            for sign, rid, label in updates:
                (plain.insert if sign > 0 else plain.delete)(rid, label, ids=True)
            table.change(*arrays(updates))
            table.tick()
        worst = np.abs(table.answers().values - CELLS.exact(plain.histogram(6))).max()
        missed += worst > table.error_bound(0.05)
    assert missed <= 12  # P(Binomial(60, .05) > 12) < 2e-5


def test_restarts_happen_and_follow_the_records_that_remain():
    mechanism = FullyDynamic.repaired(Mwem(queries=CELLS), Share("zcdp", 1), horizon=127)
    table = LiveTable.open(mechanism, SeededNoise(1), "t")
    ids = np.arange(40_000)
    for t in range(64):
        here = ids[t * 600 : (t + 1) * 600]
        table.change(np.ones(600, np.int64), here, here % 6)
        table.tick()
    bucket = table.state.buckets[0].state
    assert bucket.rounds == 3
    for t in range(50):
        gone = ids[t * 600 : (t + 1) * 600]
        table.change(-np.ones(600, np.int64), gone, gone)
        table.tick()
    assert bucket.round >= 2
    assert bucket.size < 0.6 * 64 * 600


def test_same_seed_same_answers_and_asking_changes_nothing():
    mechanism = FullyDynamic.repaired(Mwem(queries=CELLS), ZCDP, horizon=50)
    runs = []
    for asked in (1, 3):
        table = LiveTable.open(mechanism, SeededNoise(9), "t")
        for updates in random_stream(2, 50, 6):
            table.change(*arrays(updates))
            table.tick()
            answers = [table.answers().values for _ in range(asked)]
        runs.append(answers[-1])
    assert_allclose(runs[0], runs[1], rtol=0, atol=0)


def test_no_address_is_drawn_twice():
    seen = []

    class Spy(SeededNoise(1).__class__):
        def at(self, purpose, *path):
            seen.append((purpose, path))
            return super().at(purpose, *path)

    for mechanism in (
        FullyDynamic.repaired(Mwem(queries=CELLS), Share("zcdp", 2), horizon=40),
        FullyDynamic.repaired(noisy_queries(CELLS), PURE, horizon=None, public_steps=False),
        published(noisy_queries(CELLS), PURE),
    ):
        seen.clear()
        table = LiveTable.open(mechanism, Spy(SeededNoise(1).secret, secure=False), "t")
        for updates in random_stream(2, 40, 6):
            table.change(*arrays(updates))
            table.tick()
        assert len(seen) == len(set(seen)) > 40


def test_a_restart_after_many_deletions_at_once_does_not_take_half_for_the_size():
    cells = Marginals((4,), ((),))
    bucket = Repaired(static=Mwem(queries=cells), most_rounds=2)
    place = Place(SilentNoise(), "restart")
    state = bucket.open(Bag.of(np.zeros(40_000, np.int64)), 7, Share("zcdp", 1), place)
    assert state.rounds == 2
    bucket.step(state, Bag.of(np.zeros(36_000, np.int64)), place)
    assert state.round == 2
    assert bucket.answers(state).values[0] == pytest.approx(4000)
