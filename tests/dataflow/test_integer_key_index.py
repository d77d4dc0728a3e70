"""Finding keys by value equals finding them by name, whatever the values and however they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.dataflow import integer_key_index as kernels
from streamveil.dataflow.aggregate import KeyTable, Recognised, enter, recognise
from streamveil.dataflow.hashing import encipher
from streamveil.dataflow.integer_key_index import Lookup
from streamveil.dataflow.kernels import MIX
from streamveil.dataflow.raw_memory import reserved

KEY = bytes(range(32))
FIELDS = Recognised._fields
SECRET = np.array([0xC0FFEE, 0x9E3779B97F4A7C15], np.uint64)
WHOLE = 2**64


def feed(lookup, table, values, accepted, shown, trigger=0):
    """One micro-batch as `folding` runs it; what is known of its rows before any key enters."""
    room = room_for(len(values))
    lookup.weigh(table, shown, (trigger, len(shown[0])))
    met = lookup.find(table, values, (3, 7), KEY, room)
    known = Recognised(*(column.copy() for column in room[0]))
    enter(table, met.names, accepted, room[0].rows, met)
    lookup.keep(values, met, known)
    return known, met


def room_for(rows):
    return Recognised.empty(rows), tuple(np.empty((3, rows), np.int32))


def crowded(n, homes, seed=0):
    """Values that all want few buckets: the inverse of what places them, `value_kernels.mixed`."""
    rng = np.random.default_rng(seed)
    words = [int(home) << 32 | i + 1 for i, home in enumerate(rng.choice(homes, n))]
    back = [pow(int(factor), -1, WHOLE) for factor in (SECRET[1], MIX)]
    values = []
    for word in words:
        half = word * back[0] % WHOLE
        values.append((half ^ half >> 32) * back[1] % WHOLE ^ int(SECRET[0]))
    return np.array(values, np.uint64).view(np.int64), np.array(words, np.uint64)


def in_slots(lookup):
    """Mixed values, and what is known of their keys, of all slots in use."""
    lines = lookup.slots.reshape(-1, 2, kernels.SLOTS)
    used = lines[:, 0] != 0
    assert (used[:, 1:] <= used[:, :-1]).all()  # filled from the left
    return lines[:, 0][used], lines[:, 1][used]


def by_name(table, values, weights):
    return recognise(table, encipher(values, KEY, 0), 3, weights, 7)


def spread_of(kind, rng, n):
    """Values that are few, in a row, far apart, or the ends of what there is."""
    ends = np.array([0, -1, 2**63 - 1, -(2**63)], np.int64)
    return {
        "few": rng.integers(0, 9, n),
        "run": rng.integers(-300, 300, n),
        "far": rng.integers(0, 300, n) << 40,
        "ends": ends[rng.integers(0, 4, n)],
    }[kind]


@given(st.integers(0, 2**32), st.sampled_from(["few", "run", "far", "ends"]), st.integers(0, 300))
def test_values_find_what_names_find(seed, kind, n):
    rng = np.random.default_rng(seed)
    lookup, table = Lookup(), KeyTable.empty(1)
    rows = np.zeros(0, np.int64)
    for trigger in range(4):
        values, accepted = spread_of(kind, rng, n).astype(np.int64), rng.random(n) < 0.7
        hidden = np.setdiff1d(np.arange(table.keys), rows)
        rows = np.append(rows, hidden[rng.random(len(hidden)) < 0.3])
        shown = rows, rng.integers(1, 7, len(rows)).astype(np.uint8)
        weights = np.zeros(table.keys, np.uint8)
        weights[rows] = shown[1]
        wanted = by_name(table, values, weights)
        known, _ = feed(lookup, table, values, accepted, shown, trigger)
        for name, found, expected in zip(FIELDS, known, wanted, strict=True):
            np.testing.assert_array_equal(found, expected, name)


def test_a_value_is_named_until_its_key_has_a_row_and_never_again():
    lookup, table, nothing = Lookup(), KeyTable.empty(1), np.zeros(0, np.int64)
    values, shown = np.arange(5_000), (nothing, nothing.astype(np.uint8))
    for accepted, named in ((False, 5_000), (True, 5_000), (True, 0)):
        _, met = feed(lookup, table, values, np.full(5_000, accepted), shown)
        assert len(met.places) == len(met.names) == named
        assert (len(in_slots(lookup)[0]) == 0) == (not accepted)
    assert table.keys == 5_000
    assert 0.35 <= table.keys / (len(lookup.slots) // 2) <= 0.7


def test_another_secret_puts_values_elsewhere():
    """Slots must not follow from the values alone: see `Lookup`, Protects."""
    values, nothing = np.arange(1_000) << 20, np.zeros(0, np.int64)
    order = []
    for key in (KEY, KEY[::-1]):
        lookup, table = Lookup(), KeyTable.empty(1)
        lookup.weigh(table, (nothing, nothing.astype(np.uint8)), (0, 0))
        known, room = room_for(1_000)
        met = lookup.find(table, values, (3, 7), key, (known, room))
        enter(table, met.names, np.ones(1_000, np.bool_), known.rows, met)
        lookup.keep(values, met, known)
        order.append(in_slots(lookup)[1])
    assert (order[0] != order[1]).any()


def test_mixing_can_be_undone():
    """Slots hold mixed values only, so two values must never be mixed to one."""
    values, words = crowded(300, [0, 5, 2**32 - 1])
    np.testing.assert_array_equal([kernels.mixed(value, SECRET) for value in values], words)


def test_values_without_room_near_their_place_are_named_each_time():
    """All values want two buckets: the worst that could be aimed at."""
    lookup, table, nothing = Lookup(secret=SECRET), KeyTable.empty(1), np.zeros(0, np.int64)
    values, shown = crowded(2_000, [0, 2**32 - 1])[0], (nothing, nothing.astype(np.uint8))
    feed(lookup, table, values, np.ones(2_000, np.bool_), shown)
    for _ in range(2):
        wanted = by_name(table, values, np.zeros(2_000, np.uint8))
        known, met = feed(lookup, table, values, np.ones(2_000, np.bool_), shown)
        np.testing.assert_array_equal(known.rows, wanted.rows)
        assert 2_000 - len(met.places) <= 2 * kernels.SLOTS * kernels.MOST_BUCKETS
    assert table.keys == 2_000


def test_the_value_that_is_mixed_to_nothing_is_found_by_name():
    lookup, table, nothing = Lookup(secret=SECRET), KeyTable.empty(1), np.zeros(0, np.int64)
    values = np.full(5, SECRET[0]).view(np.int64)
    assert kernels.mixed(values[0], SECRET) == 0
    for _ in range(3):
        wanted = by_name(table, values, np.zeros(1, np.uint8))
        known, met = feed(lookup, table, values, np.ones(5, np.bool_), (nothing, nothing))
        np.testing.assert_array_equal(known.rows, wanted.rows)
        np.testing.assert_array_equal(known.group, wanted.group)
        assert len(met.places) == 5
    assert (table.keys, len(in_slots(lookup)[0])) == (1, 0)


@pytest.mark.parametrize("keys", [40, 3_000, 20_000])
@pytest.mark.parametrize("homes", [[2**32 - 1, 7], range(0, 2**32, 2**20)])
def test_slots_that_were_spread_in_place_hold_what_they_held(keys, homes):
    """In parts, from the end on, with runs over the end of the table."""
    values, _ = crowded(keys, list(homes), seed=keys)
    before, rows = -(-keys * 5 // 14) * kernels.WORDS, np.arange(keys)
    sizes = before, before * 3 // 2 // kernels.WORDS * kernels.WORDS, 4 * before
    slots = reserved(sizes[-1], np.uint64)
    group, firsts = (rows % 65_521).astype(np.uint16), rows.astype(np.int32)
    counts = np.zeros(3, np.int64)
    kernels.keep_values(values, firsts, firsts, group, slots[:before], SECRET, counts)
    for last, size in zip(sizes[:1] + sizes[:-1], sizes, strict=True):
        if size > last:
            counts[0] -= kernels.spread_values(slots[:size], last)
        known, missing = room_for(keys)
        by_row = np.append(np.uint8(0), (rows % 5).astype(np.uint8))
        own = (by_row, np.uint8(9)), known, missing, np.array([-keys, 0, 0])
        assert kernels.find_values(values, aligned(slots[:size]), SECRET, 0, *own) == keys
        found = known.rows >= 0
        assert np.count_nonzero(found) == counts[0] <= keys
        assert counts[0] == keys or len(homes) == 2
        weight = rows % 5
        np.testing.assert_array_equal(known.rows[found], rows[found])
        np.testing.assert_array_equal(known.group[found], group[found])
        np.testing.assert_array_equal(known.weight[found], np.where(weight, weight, 9)[found])
        np.testing.assert_array_equal(known.hidden[found], (weight == 0)[found])


def aligned(words):
    """A copy that begins at a line of the cache."""
    copy = reserved(len(words), np.uint64)[: len(words)]
    copy[:] = words
    return copy


@given(st.integers(0, 2**32), st.integers(1, 400), st.integers(1, 60))
def test_a_freed_slot_hides_no_value_behind_it(seed, n, homes):
    """Whatever leaves, all that stays is found, and slots in use are those of what stays."""
    rng = np.random.default_rng(seed)
    lookup, table = Lookup(secret=SECRET), KeyTable.empty(1)
    shown, pool = (np.zeros(0, np.int64), np.zeros(0, np.uint8)), rng.integers(0, 2**32, homes)
    pool[0] = 2**32 - 1  # the last bucket
    every = crowded(n, pool, seed)[0]
    for _ in range(4):
        values = every[rng.integers(0, n, n)]
        feed(lookup, table, values, rng.random(n) < 0.5, shown)
        words, facts = in_slots(lookup)
        assert len(words) == lookup.counts[0] <= table.keys
        assert (facts < kernels.NEW).all()
        mixed = np.array([kernels.mixed(value, SECRET) for value in every], np.uint64)
        held = every[np.isin(mixed, words)]
        assert len(held) == len(words)
        known, room = room_for(len(held))
        own = (lookup.by_row, np.uint8(7)), known, room, np.array([-n, 0, 0])
        kernels.find_values(held, lookup.slots, SECRET, 0, *own)
        assert sorted(known.rows) == sorted((facts & kernels.LOW_HALF).astype(int) - 1)


def test_a_micro_batch_left_half_way_leaves_no_new_value_behind():
    lookup, table, values = Lookup(), KeyTable.empty(1), np.arange(500)
    shown = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    feed(lookup, table, values[:200], np.ones(200, np.bool_), shown)
    lookup.find(table, values, (3, 7), KEY, room_for(500))
    for named in (500, 0):
        wanted = by_name(table, values, np.zeros(500, np.uint8))
        known, met = feed(lookup, table, values, np.ones(500, np.bool_), shown)
        np.testing.assert_array_equal(known.rows, wanted.rows)
        np.testing.assert_array_equal(known.group, wanted.group)
        assert len(met.places) == named
