"""The exact account of joins on live data, and planted faults.

Neighbours are inputs with and without a unit's rows, which leave no gap: chunks end elsewhere, and
units are the same otherwise. A process ends in between, and the next one goes on from its files.
"""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from streamveil.audit.account import account, claims_of
from streamveil.audit.laid_open import Transcript, run
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.plan import joins
from streamveil.runtime import live_joins
from streamveil.sql.schema import needed_columns
from tests.planting import all_units_are_one, instead
from tests.runtime.test_live_joins import (
    HOUR_US,
    RELATIONS,
    STEPS,
    drawn,
    opened,
    planned,
    so_many_wait,
)

MINE = 99
KINDS = ("table", "events")
PAIRS = (0, 1, 2, 5)  # seeds of drawn inputs with and without the unit


@cache
def compiled(name):
    plan = planned(name)
    operator = compile_plan(plan)
    return plan, operator, claims_of(operator)


def with_mine(found, seed):
    """The rows with those of one more unit among them, which come at any of the steps."""
    rng, made, alike = np.random.default_rng(seed), [], seed % 2
    for relation, (table, steps) in enumerate(found):
        lacks = relation == 1 and seed % 5 == 0  # it has no rows in the other relation
        count = 0 if lacks else int(rng.integers(1, 30))
        when = rng.integers(1, STEPS + 1, count)
        rows = pa.table({
            "user": pa.array(np.full(count, MINE)),
            table.column_names[1]: pa.array(rng.integers(0, 1 if alike else 5, count) + 1),
            table.column_names[2]: pa.array(
                (when * HOUR_US - rng.integers(0, 2 * HOUR_US, count)), pa.timestamp("us", "UTC")
            ),
        })  # fmt: skip
        place = np.concatenate([rng.random(table.num_rows), rng.random(count)])
        place[: table.num_rows].sort()  # others' rows keep their order
        together = np.concatenate([steps, when])
        order = np.lexsort((place, together))
        both = pa.concat_tables([table, rows.cast(table.schema)])
        made.append((both.take(pa.array(order)), together[order]))
    return made


def batches(plan, found, folder, dies_after):
    """The micro-batches of a job that dies once."""
    source, inner = opened(plan, found, (5, 3), folder)
    columns = needed_columns(plan, source.schema())
    nothing = source.schema().empty_table().select(columns)
    position, step, chunks = None, 1, 0
    while step <= STEPS:
        for one in inner:
            one.step = step
        source.begin_step((step - 1) * HOUR_US)
        for chunk in source.read(position, 100, columns):
            chunks += 1
            if chunks == dies_after:
                source, inner = opened(plan, found, (5, 3), folder)
                break
            position = chunk.position
            yield Batch(chunk.rows, step, False, "{}")
        else:
            yield Batch(nothing, step, True, "{}")
            step += 1


def alike(others=12):
    """Two clicks of each of several people, and later three rows of each, which fill a chunk."""
    units, times = np.arange(others), pa.timestamp("us", "UTC")

    def relation(each, names, step):
        at = pa.array(np.full(each * others, HOUR_US), times)
        place = pa.array(np.tile(np.arange(each), others))
        rows = {"user": pa.array(np.repeat(units, each)), names[0]: place, names[1]: at}
        return pa.table(rows), np.full(each * others, step)

    return [relation(2, ("page", "ts"), 1), relation(3, ("kind", "at"), 2)]


def with_one(found):
    """The same, and before all others two clicks and one row of a unit: no chunk ends as it did."""
    made = []
    for (table, steps), count in zip(found, (2, 1), strict=True):
        own = table.slice(0, count).set_column(0, "user", pa.array(np.full(count, MINE)))
        made.append((pa.concat_tables([own, table]), np.concatenate([steps[:count], steps])))
    return made


def pairs(seeds):
    """Seeds, and inputs without and with the unit."""
    yield 0, (found := alike()), with_one(found)
    for seed in seeds:
        found = drawn(seed, rows=30)
        yield seed + 1, found, with_mine(found, seed)


def accounts(name, seeds, folder):
    """What the unit loses in each pair."""
    plan, operator, claims = compiled(name)
    for seed, *both in pairs(seeds):
        script = Transcript(lambda window, key, seed=seed: 1 + (window + seed) % 3)
        seen = []
        for place, rows in enumerate(both):
            home = folder / f"{seed}-{place}"
            home.mkdir(parents=True)
            given = batches(plan, rows, home, dies_after=4 + seed % 7)
            seen.append(run(operator, given, script, seed))
        yield account(operator, seen[1], seen[0], script, claims)


@pytest.mark.parametrize("name", RELATIONS)
def test_a_unit_loses_what_is_claimed(name, tmp_path):
    found = list(accounts(name, PAIRS, tmp_path))
    assert all(one.stands for one in found)
    assert max(one.tightness for one in found) > 0.9


def newest_of_all(honest):
    """Memory that people share: so many rows stay, whoever they are of."""
    return lambda units, times, most: honest(pa.array([0] * len(units)), times, 5 * most)


def ordered_by_chunks(honest):
    return lambda *given, late: honest(*given)


def newest_of_a_chunk(honest):
    """A limit that holds within each chunk alone."""

    def kept(self, rows):
        limit, self.most = self.most, 10**6
        table, units = rows
        first = np.zeros(len(units), np.bool_)
        first[-1:] = True  # the last row of a chunk, whoever it is of
        honest(self, (table.filter(pa.array(first)), units.filter(pa.array(first))))
        self.most = limit

    return kept


FAULTS = {
    "a row on live data meets kept rows of other people": (
        KINDS, instead(joins, "numbered", all_units_are_one),
    ),
    "people share the memory of kept rows": (KINDS, instead(live_joins, "newest", newest_of_all)),
    "chunks decide which rows are kept": (
        KINDS, instead(live_joins.NewestRows, "add", newest_of_a_chunk),
    ),
    "chunks decide which pairs are a unit's first": (
        ("events",), instead(live_joins, "joined", ordered_by_chunks),
    ),
    "people end each other's waiting": (
        ("left events",), instead(live_joins, "replaced", so_many_wait),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "name"), [(one, kind) for one in FAULTS for kind in FAULTS[one][0]]
)
def test_planted_faults_in_live_joins_are_caught(fault, name, tmp_path, monkeypatch):
    compiled(name)
    FAULTS[fault][1](monkeypatch)
    assert any(not one.stands for one in accounts(name, PAIRS, tmp_path))
