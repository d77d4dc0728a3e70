"""Matching: equal to the plain table, saved and resumed anywhere, no-ops counted as promised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from streamveil.dynamic import Records
from streamveil.errors import PlanError, StoreError
from tests.dynamic.streams import Plain, arrays, random_stream


def net(records, state, steps, reload_at=()):
    total = np.zeros(records.domain, np.int64)
    births = np.zeros((len(steps) + 2, records.domain), np.int64)
    for t, updates in enumerate(steps, start=1):
        if t in reload_at:
            state = records.load(records.save(state))
        changes, _ = records.step(state, *arrays(updates), t)
        np.add.at(total, changes.born, 1)
        np.add.at(total, changes.gone, -1)
        np.add.at(births[t], changes.born, 1)
        np.add.at(births, (changes.birth, changes.gone), -1)
        assert births.min() >= 0  # every deletion names a step that still has such a record
        yield t, total, changes, state


@pytest.mark.parametrize("matching", ["ids", "labels"])
@pytest.mark.parametrize("seed", range(6))
def test_matching_equals_the_plain_table(matching, seed):
    records = Records(matching=matching, domain=5, counts_no_ops=False)
    plain, ids = Plain(), matching == "ids"
    steps = list(random_stream(seed, 200, 5))
    for t, total, _, state in net(records, records.init(), steps, reload_at=(1, 57, 150)):
        for sign, rid, label in steps[t - 1]:
            (plain.insert if sign > 0 else plain.delete)(rid, label, ids=ids)
        assert_array_equal(total, plain.histogram(5))
        assert state.alive == len(plain.alive)


def test_ids_are_told_apart_by_both_of_their_words():
    """One word of 64 bits is shared by two of n ids with a chance that nothing pays for."""
    records, count = Records(matching="ids", domain=1, counts_no_ops=False), 5_000
    state, ids = records.init(), np.full((count, 2), 7, np.int64)
    ids[:, 1] = np.arange(count)
    signs, labels = np.ones(count, np.int64), np.zeros(count, np.int64)
    assert len(records.step(state, signs, ids, labels, 1)[0].born) == count
    assert len(records.step(state, signs, ids, labels, 2)[0].born) == 0
    state = records.load(records.save(state))
    assert len(records.step(state, -signs[:7], ids[:7], labels[:7], 3)[0].gone) == 7


HASH = 2**63 + 5  # an id as hashes are: 64 bits without a sign


@pytest.mark.parametrize("ids", [np.array([HASH], np.uint64), np.array([-7]), np.array([7], "i1")])
def test_an_id_of_any_whole_type_lives_once(ids):
    """It was kept as another number, not found again, and lived as often as it came."""
    records, one = Records(matching="ids", domain=1, counts_no_ops=False), np.array([1])
    state = records.init()
    outcomes = [records.step(state, one, ids, one - 1, t)[1].item() for t in (1, 2, 3)]
    assert outcomes == [1, 0, 0]
    assert records.step(state, -one, ids, one - 1, 4)[1].item() == 2


@pytest.mark.parametrize("ids", [[np.nan], [3.7], [17.0], [None], ["a"], [2**64], [True]])
def test_an_id_that_is_no_whole_number_is_refused(ids):
    records, one = Records(matching="ids", domain=1, counts_no_ops=False), np.array([1])
    with pytest.raises(PlanError, match="ids must be whole numbers"):
        records.step(records.init(), one, np.array(ids), one - 1, 1)


@pytest.mark.parametrize("width", [1, 3])
def test_an_id_has_one_word_or_two(width):
    """Of others a word was left out, or taken from beyond the array."""
    records, one = Records(matching="ids", domain=1, counts_no_ops=False), np.array([1])
    with pytest.raises(PlanError, match="ids must be one word"):
        records.step(records.init(), one, np.zeros((1, width), np.int64), one - 1, 1)


@pytest.mark.parametrize("matching", ["ids", "labels"])
@pytest.mark.parametrize(
    ("signs", "labels", "says"),
    [
        ([2], [0], "signs must be 1"),
        ([0], [0], "signs must be 1"),
        ([1, 1], [0], "as many"),
        (1, 0, "as many"),
        ([[1]], [[0]], "as many"),
        ([1], [0.5], "labels must be whole"),
        ([1], [np.nan], "labels must be whole"),
        ([1], [5], "labels must be in 0"),
    ],
)
def test_updates_that_are_none_change_nothing(matching, signs, labels, says):
    records = Records(matching=matching, domain=5, counts_no_ops=False)
    state = records.init()
    with pytest.raises(PlanError, match=says):
        records.step(state, np.array(signs), np.array([1]), np.array(labels), 1)
    assert state.alive == state.used == 0


def test_no_update_is_none_of_any_type():
    records = Records(matching="ids", domain=5, counts_no_ops=False)
    assert len(records.step(records.init(), [], [], [], 1)[0].born) == 0


def test_the_last_copy_goes_first():
    records = Records(matching="labels", domain=2, counts_no_ops=True)
    state = records.init()
    for t in (1, 2, 3):
        records.step(state, *arrays([(1, 0, 1)]), t)
    births = [records.step(state, *arrays([(-1, 0, 1)]), 4)[0].birth.tolist() for _ in range(4)]
    assert births == [[3], [2], [1], []]


@given(
    st.lists(st.tuples(st.sampled_from([1, -1]), st.integers(0, 5)), max_size=40), st.integers(1, 3)
)
def test_removing_all_updates_of_one_id_leaves_every_other_life_as_it_was(updates, lives):
    """The fact behind the guarantee for records: at most `lives` lives, nothing else moves."""
    records = Records(matching="ids", domain=6, counts_no_ops=False, lives=lives)

    def histories(stream):
        state, found, counted = records.init(), {}, 0
        for t, (sign, rid) in stream:
            changes, _ = records.step(state, *arrays([(sign, rid, rid)]), t)
            counted += changes.updates
            for label in changes.born:
                found.setdefault(int(label), []).append(("born", t))
            for label, birth in zip(changes.gone, changes.birth, strict=True):
                found.setdefault(int(label), []).append(("gone", t, int(birth)))
        return found, counted

    stream = list(enumerate(updates, start=1))
    whole, counted = histories(stream)
    without, rest = histories([(t, u) for t, u in stream if u[1] != 0])
    removed = whole.pop(0, [])
    assert whole == without
    assert sum(event[0] == "born" for event in removed) <= lives
    assert counted - rest <= 2 * lives


def test_no_ops_count_exactly_when_updates_are_protected():
    dangling = arrays([(-1, 9, 0), (1, 1, 0), (1, 1, 0), (-1, 1, 0), (-1, 1, 0)])
    for counts_no_ops, expected in ((True, 5), (False, 2)):
        records = Records(matching="ids", domain=1, counts_no_ops=counts_no_ops)
        state = records.init()
        assert records.step(state, *dangling, 1)[0].updates == expected
        assert state.ignored == {"insert": 1, "delete": 2}


def test_tables_grow_past_any_size():
    for matching in ("ids", "labels"):
        records = Records(matching=matching, domain=7, counts_no_ops=False)
        state = records.init()
        n = 50_000
        ids = np.random.default_rng(0).permutation(n).astype(np.int64) * 1_000_003
        records.step(state, np.ones(n, np.int64), ids, ids % 7, 1)
        changes, _ = records.step(state, -np.ones(n, np.int64), ids, ids % 7, 2)
        assert len(changes.gone) == n
        assert state.alive == 0


def test_wrong_labels_and_wrong_states_are_refused_without_showing_values():
    records = Records(matching="ids", domain=3, counts_no_ops=False)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.2"):
        records.step(records.init(), *arrays([(1, 5, 77)]), 1)
    other = Records(matching="labels", domain=3, counts_no_ops=False)
    with pytest.raises(StoreError):
        records.load(other.save(other.init()))
    with pytest.raises(StoreError):
        Records(matching="labels", domain=4, counts_no_ops=False).load(other.save(other.init()))
