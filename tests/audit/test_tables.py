"""The account of queries over changing tables and of questions to them, from raw change data."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest

from streamveil.changing_tables import operator as module
from streamveil.changing_tables.operator import ChangingTable
from streamveil.core.accounting.guarantee import Pure
from streamveil.core.sensitivity import presence_moves
from streamveil.dynamic import distinct
from streamveil.dynamic.records import Records
from tests.audit import table_texts

SECONDS = float(os.environ.get("STREAMVEIL_ACCOUNT_SECONDS", "120"))


def kind_of(operator):
    return type(operator.mechanism).__name__ + " with questions" * (operator.adaptive is not None)


def test_records_of_queries_lose_no_more_than_is_claimed():
    worst: dict[str, float] = {}
    for seed in range(14):
        for text, operator, lost in table_texts.judged(seed, 3):
            claim = operator.guarantee.loss
            assert lost.stands(claim), (seed, text, lost)
            kind = kind_of(operator)
            worst[kind] = max(worst.get(kind, 0.0), lost.tightness(claim))
    assert len(worst) > 5
    assert max(worst.values()) > 0.99


@pytest.mark.slow
def test_new_scripts_lose_no_more_than_is_claimed():
    """New seeds for STREAMVEIL_ACCOUNT_SECONDS; the seed of a failure is in its message."""
    begun, seed = time.monotonic(), int(np.random.SeedSequence().entropy % 10**12)
    while time.monotonic() - begun < SECONDS:
        seed += 1
        for text, operator, lost in table_texts.judged(seed, 12):
            assert lost.stands(operator.guarantee.loss), (seed, text, lost)


START = (
    "CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo', 'Rome')), age CHECK (age BETWEEN 0"
    " AND 3)) WITH (source = rows, changelog = 'insert-delete', operation = op, id = id{}); SELECT"
    " WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, steps = 5, expected_size = 20, accept_error ="
    " TRUE, {}) COUNT(*) AS n FROM people EMIT EVERY 12 ROWS"
)
COUNTED = START.format("", "mechanism = 'counter'")
LIVES = START.format(", lives = 3", "mechanism = 'counter'")
COUNTED_VALUES = START.replace("COUNT(*) AS n", "COUNT(DISTINCT shop) AS n")
CHANGES = COUNTED_VALUES.format("", "max_changes = 3")
ONE_CHANGE = COUNTED_VALUES.format("", "max_changes = 1")
VALUE_LIVES = COUNTED_VALUES.format(", lives = 3", "max_changes = 1")
SETS = (
    COUNTED_VALUES.replace("EMIT", "GROUP BY GROUPING SETS ((city), (age), ()) EMIT")
    .format("", "max_changes = 1")
    .replace("COUNT(DISTINCT", "city, age, COUNT(DISTINCT")
)
ASKED = START.format("", "mechanism = 'counter', ask_share = 0.7")


def more_lives(patch):
    honest = ChangingTable.records.fget
    patch.setattr(ChangingTable, "records", property(
        lambda self: replace(honest(self), lives=self.lives + 2)))  # fmt: skip


def updates_stay(patch):
    """An update inserts its record and deletes none."""
    patch.setattr(module, "OPERATIONS", module.OPERATIONS | {"U": (1,), "UPDATE": (1,)})
    patch.setattr(Records, "_match", twice(Records._match))


def twice(honest):
    def match(self, state, updates, step, out):
        honest(self, state, updates, step, out)
        out[0, out[0] == 0] = 1

    return match


def all_changes(patch):
    """A value is counted anew however often it comes and goes."""
    honest = distinct.DistinctCounter.step

    def step(self, state, changes, place):
        state.used[:] = 0
        honest(self, state, changes, place)

    patch.setattr(distinct.DistinctCounter, "step", step)


def nothing(patch):
    """The code is honest: the fault is in the claim."""


def whole(operator):
    return operator.guarantee.loss


def without_questions(operator):
    return operator.mechanism.guarantee.loss


def of_one_life(operator):
    return operator.mechanism.guarantee.loss


def moved_as(**other):
    """The claim of a table of values whose counter moves as if some number were another."""

    def claim(operator):
        made = operator.mechanism
        pure = made.share.kind == "pure"
        numbers = {"changes": made.changes, "sets": len(made.cells.sets), **other}
        return made.counter.guarantee.loss.times(presence_moves(**numbers, pure=pure))

    return claim


def as_an_event(operator):
    """One number moves once by one: half of what a life that comes and goes costs."""
    ((epsilon, times),) = operator.mechanism.counter.inner.loss.pure
    return Pure(epsilon).times(times)


def churn(rng):
    """One id that comes and goes at every other step, among rows of others."""
    rows = table_texts.rows_drawn(rng)
    rows = [{**row, "id": row["id"] and row["id"] + 1} for row in rows]
    for step in range(table_texts.STEPS):
        some = {"op": "+-"[step % 2], "id": 0, "city": "Oslo", "age": 1, "shop": f"x{step}"}
        rows[table_texts.EACH * step + int(rng.integers(table_texts.EACH))] = some
    return rows


def flips(rng):
    """One id stays, while another of its value comes or goes at every later step."""
    rows = [{**row, "id": row["id"] and row["id"] + 4} for row in table_texts.rows_drawn(rng)]
    rows = [row if row["id"] else dict.fromkeys(row) for row in rows]
    for step, (op, one) in enumerate((("+", 0), ("+", 1), ("-", 1), ("+", 3), ("-", 3))):
        some = {"op": op, "id": one, "city": "Oslo", "age": 1, "shop": "x"}
        rows[table_texts.EACH * step + int(rng.integers(table_texts.EACH))] = some
    return rows


FAULTS = {
    "an id lives more often than is charged": (COUNTED, more_lives, whole),
    "updates never delete": (COUNTED, updates_stay, whole),
    "lives are charged as one": (LIVES, nothing, of_one_life),
    "questions are not charged": (ASKED, nothing, without_questions),
    "changes of a value are not bounded": (ONE_CHANGE, all_changes, whole),
    "changes of a value are charged as one": (CHANGES, nothing, moved_as(changes=1)),
    "a value moves its count once": (CHANGES, nothing, as_an_event),
    "values of a record's lives are charged as one": (VALUE_LIVES, nothing, of_one_life),
    "sets of groups are charged as one": (SETS, nothing, moved_as(sets=1)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_in_tables_are_caught(name):
    text, plant, claim = FAULTS[name]
    rng = np.random.default_rng(4)
    plan = table_texts.plan_of(text)
    operator = table_texts.work_of(plan).operator
    for seed in range(10):
        rows = flips(rng) if "changes" in name else churn(rng)
        other = [dict.fromkeys(row) if row["id"] == 0 else row for row in rows]
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            policy = table_texts.random_policy(seed, 0.5)
            release = table_texts.released(plan, table_texts.work_of(plan).operator, seed)
            lost = table_texts.lost_by(release, (rows, other), policy, seed)
        assert plant is not nothing or lost.stands(operator.guarantee.loss)
        if not lost.stands(claim(operator)):
            return
    raise AssertionError(name)
