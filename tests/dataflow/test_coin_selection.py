"""The table selection of the group-by: keys open as if every key were asked at every trigger."""

from dataclasses import replace

import numpy as np
import pytest

from streamveil.core.accounting import Budget
from streamveil.core.accounting.coin_table import NEVER
from streamveil.core.noise import Address, SeededNoise, SilentNoise
from streamveil.plan import Bounding
from tests.dataflow.streams import compiled

TRIGGERS, KEYS = 6, 4_000
NAMES = np.random.default_rng(2).integers(1, 2**63, (KEYS, 2)).astype(np.uint64)


def selection(offset=0):
    operator = compiled(budget=Budget(epsilon=8, delta=0.01), bounding=Bounding(max_rows=3),
                        options={"selection": "table"})  # fmt: skip
    return replace(operator.aggregation.selection, offset=offset)


def arrivals():
    """New units of the keys met so far, by trigger."""
    rng = np.random.default_rng(4)
    for trigger in range(1, TRIGGERS + 1):
        here = KEYS * trigger // TRIGGERS
        yield trigger, rng.poisson(rng.gamma(0.4, 6, here)) * rng.integers(0, 2, here)


def plainly(chosen, noise):
    """The definition: all shifts at once, all keys with new units asked."""
    shift = chosen.table.shift(noise.at("group-by/shift", b"job", 0), NAMES)
    total, opens = np.zeros(KEYS, np.int64), np.full(KEYS, NEVER)
    for trigger, units in arrivals():
        total[: len(units)] += units
        asked = np.flatnonzero((np.append(units, np.zeros(KEYS - len(units))) > 0)
                               & (opens >= trigger))  # fmt: skip
        opens[asked] = chosen.table.next_opening(
            noise.at("group-by/wait", b"job", 0), NAMES[asked],
            np.maximum(total[asked] - chosen.offset, 0), shift[asked], trigger,
        )  # fmt: skip
        yield np.flatnonzero(opens == trigger)


@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("noise", [SeededNoise(3), SilentNoise()], ids=["noise", "silent"])
def test_keys_open_when_the_definition_says(noise, offset):
    chosen, late = selection(offset), 0
    state, at = chosen.init(1), Address(noise, b"job", 0)
    for (trigger, units), wanted in zip(arrivals(), plainly(chosen, noise), strict=True):
        touched = set(np.flatnonzero(units).tolist())
        state = {name: part.copy() for name, part in state.items()}  # as after a restart
        state, found = chosen.step(state, units, NAMES[: len(units)], trigger, at)
        np.testing.assert_array_equal(found, wanted)
        assert not units.any()  # taken
        assert len(found)
        late += len(set(found.tolist()) - touched)
    assert (late > 0) == (noise == SeededNoise(3))  # some open by earlier draws


def test_shards_open_the_same_keys():
    chosen, at = selection(), Address(SeededNoise(9), b"job", 2)
    units = np.random.default_rng(1).integers(0, 12, 900)
    _, whole = chosen.step(chosen.init(1), units.copy(), NAMES[:900], 1, at)
    parts = []
    for mine in (np.arange(0, 900, 2), np.arange(1, 900, 2)):
        _, found = chosen.step(chosen.init(1), units[mine], NAMES[mine], 1, at)
        parts += mine[found].tolist()
    assert sorted(parts) == whole.tolist()
    assert 0 < len(whole) < 900
