"""The exact account of a changing table and of questions to it, on made-up change data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.audit.account import MechanismLoss, QueryAccount
from streamveil.audit.laid_open_measures import lost_by, random_policy
from streamveil.batch import Batch
from streamveil.core.noise import Noise
from streamveil.errors import PlanError
from streamveil.plan import TableSource

STEPS, EACH, ASKED = 6, 12, 3  # steps of a run, rows of one, questions after it
OPERATIONS = ("+", "+", "-", "U", "d", "c", "update", "I", "?", None)
ABOVE = (0.05, 0.3, 1.0)  # how often comparisons end
OTHERS = (("a", "a", "b"), (0, 0, 1), (0.5, 0.5, 2.0))  # values of columns without a domain
Row = dict[str, Any]
Domains = dict[str, tuple[Any, ...]]


def table_accounts(
    operator: Any, source: TableSource, seed: int, counted: Sequence[str] = ()
) -> Iterator[QueryAccount]:
    """Accounts of pairs of neighbours of a changing table, without end.

    `counted`: the columns whose different values are counted.
    """
    rng, claim = np.random.default_rng(seed), operator.guarantee.loss
    domains = dict(source.domains) | others_of(operator, source, counted)
    columns = columns_of(source, domains)
    nth = 0
    while True:
        once, nth = int(rng.integers(2**32)), nth + 1
        rows = rows_drawn(rng, source, domains)
        other = neighbour(rng, rows, source, operator.guarantee.protects.relation)

        def release(given: list[Row], noise: Noise, once: int = once) -> list[Any]:
            return released(operator, columns, given, noise, np.random.default_rng(once))

        lost = lost_by(release, (rows, other), random_policy(once, ABOVE[nth % 3]), once)
        name = "the table and its questions" if operator.adaptive else "the table"
        yield QueryAccount([MechanismLoss(name, *lost.beside(claim))], [*lost.faults])


def others_of(operator: Any, source: TableSource, counted: Sequence[str]) -> Domains:
    """Values of a fitting type, for columns without a declared domain."""
    known = {*columns_of(source, dict(source.domains))}
    names = [name for name in counted if name not in known]
    for values in OTHERS if names else ():
        domains = dict.fromkeys(names, values)
        try:
            operator.value(pa.schema(columns_of(source, dict(source.domains) | domains)))
        except PlanError:
            continue
        return domains
    return {}


def columns_of(source: TableSource, domains: Domains) -> dict[str, pa.DataType]:
    """The columns of change data."""
    found = {name: pa.array(values).type for name, values in domains.items()}
    if source.record is not None:
        found[source.record] = pa.int64()
    if source.operation is not None:
        found[source.operation] = pa.string()
    return found


def rows_drawn(rng: np.random.Generator, source: TableSource, domains: Domains) -> list[Row]:
    """Changes of few records: lives that begin, change and end, and rows without effect."""
    ids = int(rng.integers(2, 25))

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    def row() -> Row:
        found = {name: one(*values, *values, None) for name, values in domains.items()}
        if source.record is not None:
            found[source.record] = one(*range(ids), None)
        if source.operation is not None:
            found[source.operation] = one(*OPERATIONS)
        return found

    return [row() for _ in range(STEPS * EACH)]


def neighbour(
    rng: np.random.Generator, rows: list[Row], source: TableSource, relation: str
) -> list[Row]:
    """The rows without those of one record, or without one row; positions are public."""
    gap = dict.fromkeys(rows[0])
    name = source.record
    if relation != "record" or name is None:
        place = int(rng.integers(len(rows)))
        return [gap if nth == place else row for nth, row in enumerate(rows)]
    known = [row[name] for row in rows if row[name] is not None] or [0]
    gone = known[int(rng.integers(len(known)))]
    return [gap if row[name] == gone else row for row in rows]


def released(
    operator: Any, columns: dict[str, pa.DataType], rows: list[Row], noise: Noise,
    rng: np.random.Generator,
) -> list[Any]:  # fmt: skip
    """The releases after each step, with answers to questions."""
    state, found = operator.init(), list[Any]()
    for step in range(1, min(STEPS, operator.guarantee.horizon or STEPS) + 1):
        mine = rows[(step - 1) * EACH : step * EACH]
        table = pa.table({
            name: pa.array([row[name] for row in mine], kind) for name, kind in columns.items()
        })  # fmt: skip
        operator.fold(state, Batch(table, step, True, ""), noise)  # noqa: FBT003
        found += published(operator, state, step, noise, rng)
    return found


def published(
    operator: Any, state: Any, step: int, noise: Noise, rng: np.random.Generator
) -> Iterator[Any]:
    """The releases after a step, and the answers to some questions."""
    for one in operator.release(state, step, noise):
        yield np.array(repr(one.table.to_pydict()))
    for points in rng.random((ASKED, operator.mechanism.queries.domain)) < rng.random():
        try:
            answer, _ = operator.ask(state, points, noise)
        except PlanError:  # nothing is set aside, or it does not follow
            yield np.zeros(1)
            continue
        yield np.array([len(answer.kind), answer.value, answer.reach])
