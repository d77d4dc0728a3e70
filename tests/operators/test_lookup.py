"""Finding keys by value equals finding them by name, whatever the values and however they come."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.operators import kernels
from streamveil.operators.aggregate import KeyTable, Recognised, enter, recognise
from streamveil.operators.hashing import encipher
from streamveil.operators.lookup import Lookup

KEY = bytes(range(32))
FIELDS = Recognised._fields


def feed(lookup, table, values, accepted, shown, trigger=0):
    """One micro-batch as `folding` runs it; what is known of its rows before any key enters."""
    room = room_for(len(values))
    lookup.weigh(table, shown, (trigger, len(shown[0])))
    met = lookup.find(table, values, (3, 7), KEY, room)
    known = Recognised(*(column.copy() for column in room[0]))
    enter(table, met.names, accepted, room[0].rows, met)
    lookup.keep(table, values[met.firsts], met.own, known.group[met.firsts])
    return known, met


def room_for(rows):
    return Recognised.empty(rows), tuple(np.empty((3, rows), np.int32))


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
        assert (np.count_nonzero(lookup.slots.reshape(-1, 2)[:, 1]) == 0) == (not accepted)
    assert table.keys == 5_000
    assert 0.25 <= table.keys / (len(lookup.slots) // 2) <= 0.5


def test_another_secret_puts_values_elsewhere():
    """Slots must not follow from the values alone: see `Lookup`, Protects."""
    values = np.arange(1_000) << 20
    order = []
    for key in (KEY, KEY[::-1]):
        lookup, table = Lookup(), KeyTable.empty(1)
        lookup.weigh(table, (values[:0], values[:0].astype(np.uint8)), (0, 0))
        lookup.find(table, values, (3, 7), key, room_for(1_000))
        table.add_names(encipher(values, key, 0))
        lookup.keep(table, values, np.arange(1_000), np.zeros(1_000, np.uint16))
        order.append(lookup.slots.reshape(-1, 2)[:, 1].copy())
    assert (order[0] != order[1]).any()


@pytest.mark.parametrize("secret", [np.array([0, 1 << 63], np.uint64)])
def test_values_without_room_near_their_place_are_named_each_time(secret):
    """A secret that sends all values to two places: the worst that could be aimed at."""
    lookup, table, nothing = Lookup(secret=secret), KeyTable.empty(1), np.zeros(0, np.int64)
    values, shown = np.arange(2_000), (nothing, nothing.astype(np.uint8))
    feed(lookup, table, values, np.ones(2_000, np.bool_), shown)
    for _ in range(2):
        wanted = by_name(table, values, np.zeros(2_000, np.uint8))
        known, met = feed(lookup, table, values, np.ones(2_000, np.bool_), shown)
        np.testing.assert_array_equal(known.rows, wanted.rows)
        assert 2_000 - len(met.places) <= 2 * (kernels.MOST_STEPS + 1)
    assert table.keys == 2_000


@pytest.mark.parametrize("keys", [40, 3_000, 20_000])
def test_slots_that_were_spread_in_place_hold_what_they_held(keys):
    """In parts, from the end on, with runs over the end of the table."""
    rng = np.random.default_rng(keys)
    values, rows = rng.permutation(1 << 20)[:keys], np.arange(keys, dtype=np.int32)
    known = rows, rng.integers(0, 1 << 16, keys).astype(np.uint16), (rows % 5).astype(np.uint8)
    secret, held = np.array([3, 0x9E3779B97F4A7C15], np.uint64), np.empty(keys, np.int64)
    slots = np.zeros(4 * keys, np.uint64)
    before, few, counts = len(slots) // 4, keys // 4, np.zeros(3, np.int64)
    facts = known[0][:few], known[1][:few], known[2]
    kernels.keep_values(values[:few], *facts, slots[:before], secret, held, counts)
    for size in (before, 2 * before, 4 * before):
        counts[0] -= kernels.spread_values(slots[:size], max(size // 2, before), secret)
        room, missing = room_for(keys)
        own, asked = (np.uint8(9), room, missing, counts.copy()), slots[:size].copy()
        ends = kernels.find_values(values[:few], asked, secret, 0, *own)
        assert ends == few
        found = np.zeros(keys, np.bool_)
        found[:few] = room.rows[:few] >= 0
        assert 0.9 * few <= np.count_nonzero(found) == counts[0] <= few
        np.testing.assert_array_equal(room.rows[found], rows[found])
        np.testing.assert_array_equal(room.group[found], known[1][found])
        np.testing.assert_array_equal(room.weight[found], np.where(rows % 5, rows % 5, 9)[found])
        np.testing.assert_array_equal(room.hidden[found], (rows % 5 == 0)[found])


@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([1 << 63, 0x9E3779B97F4A7C15]))
def test_a_freed_slot_hides_no_value_behind_it(seed, n, second):
    """Whatever leaves, all that stays is found, and slots in use are those of what stays."""
    rng = np.random.default_rng(seed)
    lookup, table = Lookup(secret=np.array([seed, second], np.uint64)), KeyTable.empty(1)
    shown = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    for _ in range(4):
        values = rng.integers(0, n, n)
        feed(lookup, table, values, rng.random(n) < 0.5, shown)
        slots = lookup.slots.reshape(-1, 2)
        held = np.flatnonzero(slots[:, 1])
        assert len(held) == lookup.counts[0] <= table.keys
        room = room_for(len(held))
        own = np.uint8(7), *room, np.zeros(3, np.int64)
        kernels.find_values(slots[held, 0].view(np.int64), lookup.slots, lookup.secret, 0, *own)
        facts = slots[held, 1]
        assert (facts < kernels.NEW).all()
        np.testing.assert_array_equal(room[0].rows, (facts & kernels.LOW_HALF).astype(int) - 1)


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
