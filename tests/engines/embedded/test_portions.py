"""A state saved in portions, each after another micro-batch, comes back as the one it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil import engines
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from streamveil.engines import PARTS, EmbeddedGroupBy, Room, embedded
from streamveil.plan import Aggregate, Bounding, Clock, Plan, SourceSpec, Window
from streamveil.runtime.run import Pace, work_of
from tests.engines.embedded.test_group_by import BOUNDS, plan

HOUR = 3_600_000_000
NOISE = SeededNoise(5)
Arrays = dict[str, np.ndarray]


def days(bounding: Bounding) -> Plan:
    """Visits of three days, protected per user-day: scopes begin and end while a state is saved."""
    rng = np.random.default_rng(4)
    rows = pa.table({
        "user": rng.integers(0, 300, 2_400), "page": rng.geometric(0.4, 2_400),
        "ts": np.sort(rng.integers(0, 72 * HOUR, 2_400)),
    })  # fmt: skip
    return replace(
        plan(bounding), period_us=24 * HOUR, window=Window(kind="tumble", size_us=24 * HOUR),
        source=SourceSpec(name="m", kind="memory", options={"table": rows}, event_time="ts"),
        clock=Clock(kind="event", every=8 * HOUR, start_us=0, end_us=72 * HOUR),
        aggregates=(
            Aggregate(name="n", function="count"),
            Aggregate(name="users", function="count_distinct", expression="user"),
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Life:
    """An operator, its micro-batches, and what an unbroken run made of them."""

    operator: EmbeddedGroupBy
    batches: list[Batch]
    deltas: list[Arrays]
    released: list[list[dict[str, Any]]]


def close(operator: EmbeddedGroupBy, state: Any, batch: Batch) -> list[dict[str, Any]]:
    made = operator.release(state, batch.step, NOISE) if batch.closes_step else []
    return [release.table.to_pydict() for release in made]


def life(what: Plan, folder: Path, memory: int | None) -> Life:
    operator = embedded(compile_plan(what), Room(memory, folder))
    batches = list(work_of(what, pace=Pace(max_rows=100)).feed(None))
    state, deltas, released = operator.init(), [], []
    for batch in batches:
        delta = operator.fold(state, batch, NOISE)
        deltas.append({name: array.copy() for name, array in delta.items()})
        released.append(close(operator, state, batch))
    return Life(operator, batches, deltas, released)


def saved_gradually(one: Life, begin: int, pace: Callable[[], int]) -> tuple[Arrays, int]:
    """A state saved from micro-batch `begin` on, so many portions after each; and the last one."""
    state, arrays, later = one.operator.init(), dict[str, np.ndarray](), None
    for number, batch in enumerate(one.batches, 1):
        one.operator.fold(state, batch, NOISE)
        close(one.operator, state, batch)
        if number == begin:
            now, later = one.operator.portions(state)
            arrays |= {name: array.copy() for name, array in now.items()}
        for _ in range(pace() if later else 0):
            if later:
                arrays |= {name: array.copy() for name, array in later.pop(0)().items()}
        if later == []:
            return arrays, number
    for portion in later or ():
        arrays |= {name: array.copy() for name, array in portion().items()}
    return arrays, len(one.batches)


def resumed(one: Life, arrays: Arrays, begin: int) -> list[list[dict[str, Any]]]:
    """What the releases after `begin` are, from a saved state and the log."""
    state, released = one.operator.load(arrays), []
    for batch, delta in zip(one.batches[begin:], one.deltas[begin:], strict=True):
        one.operator.apply(state, delta)
        released.append(close(one.operator, state, batch))
    return released


PLANS = {f"{b.max_rows}/{b.quadratic}": plan(b) for b in BOUNDS} | {"days": days(BOUNDS[1])}
WAYS = [(what, memory) for what in PLANS for memory in (None, 1 << 30)]
WAYS += [("None/9", 5_000), ("days", 5_000)]  # units on disk, which takes ten times as long


@pytest.mark.parametrize(("what", "memory"), WAYS)
def test_any_portions_of_any_micro_batches_come_back(
    tmp_path: Path, what: str, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LARGE", 150)
    one, spread = life(PLANS[what], tmp_path, memory), 0
    assert any(release["n"] for made in one.released for release in made), "something is shown"
    rng = np.random.default_rng(1)
    for begin in range(1, len(one.batches) + 1, 4 if memory is None else 7):
        most = rng.integers(2, PARTS)
        arrays, until = saved_gradually(one, begin, lambda most=most: int(rng.integers(most)))
        assert resumed(one, arrays, begin) == one.released[begin:]
        spread += until > begin
    assert spread > (2 if memory is None else 1)


@given(begin=st.integers(2, 20), paces=st.lists(st.integers(0, PARTS), min_size=1, max_size=9))
def test_rows_after_the_last_portion_are_decided_as_ever(begin: int, paces: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", 150)
        one, pace = unbroken(), cycle([*paces, PARTS])
        arrays, until = saved_gradually(one, begin, lambda: next(pace))
        state = one.operator.load(arrays)
        for batch, delta in zip(one.batches[begin:until], one.deltas[begin:until], strict=True):
            one.operator.apply(state, delta)
            close(one.operator, state, batch)
        for batch, delta, made in zip(
            one.batches[until:], one.deltas[until:], one.released[until:], strict=True
        ):
            again = one.operator.fold(state, batch, NOISE)
            assert all(np.array_equal(again[name], delta[name]) for name in delta)
            assert close(one.operator, state, batch) == made


@cache
def unbroken() -> Life:
    return life(PLANS["6/None"], Path("unused"), None)


def test_a_scope_that_is_over_needs_no_more_portions(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", 1)
        one = life(PLANS["days"], tmp_path, None)
        arrays, until = saved_gradually(one, 3, lambda: 1)
    held = [name for name in arrays if name.endswith("/held")]
    assert 0 < len(held) < PARTS
    assert until > 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "LARGE", 1)
        assert resumed(one, arrays, 3) == one.released[3:]
