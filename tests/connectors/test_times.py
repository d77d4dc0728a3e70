"""Time columns of every unit as microseconds: order is kept, nothing wraps."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.connectors.base import FAR_US, micros
from streamveil.errors import SourceError

EXTREMES = [-(2**63), -(2**63) + 1, -(2**62), -1501, -1500, -1, 0, 1, 999, 1500, 2**62, 2**63 - 1]
FACTORS = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


def read(values, kind):
    column = pa.chunked_array([pa.array([*values, None], pa.int64()).cast(pa.int64()).view(kind)])
    return micros(column, "t").to_pylist()


@pytest.mark.parametrize("unit", FACTORS)
def test_every_unit_is_rounded_down_and_never_wraps(unit):
    times, per = FACTORS[unit]
    *found, null = read(EXTREMES, pa.timestamp(unit))
    assert null is None
    assert found == sorted(found)
    for value, got in zip(EXTREMES, found, strict=True):
        exact = value * times // per
        assert got == exact if abs(exact) < FAR_US else got * np.sign(exact) > FAR_US - 10**6


def test_days_far_away_stay_in_order():
    days = pa.array(np.array([-(2**31), -1, 0, 1, 2**31 - 1], np.int32)).view(pa.date32())
    found = micros(pa.chunked_array([days]), "t").to_pylist()
    assert found[1:4] == [-86_400_000_000, 0, 86_400_000_000]
    assert found[0] == -found[4] < -FAR_US + 86_400_000_000


def test_days_in_milliseconds_need_not_be_whole():
    times = pa.array([86_400_000, 86_400_005, -7], pa.int64()).view(pa.date64())
    found = micros(pa.chunked_array([times]), "t").to_pylist()
    assert found == [86_400_000_000, 86_400_005_000, -7_000]


def test_a_column_of_text_is_refused_by_name():
    with pytest.raises(SourceError, match="'t' must hold timestamps"):
        micros(pa.chunked_array([["2026-01-01"]]), "t")
