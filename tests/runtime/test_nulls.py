"""Groups of null keys: a job that stops and goes on makes the same releases, to the last byte."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.core.noise import SeededNoise
from streamveil.runtime.job import Job
from streamveil.runtime.run import Pace, work_of
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import CheckpointPolicy
from streamveil.runtime.tables import nulls_as_zero, settled
from tests.released import made

ROWS, STEPS = 3_000, 12
VALUES = np.random.default_rng(0).integers(0, 1000, ROWS) % (1 + np.arange(ROWS) * 40 // ROWS)
NUMBERS = [None if value == 0 else int(value) for value in VALUES]
COLUMNS = {
    "int64": pa.array(NUMBERS),
    "bool": pa.array([None if at > ROWS // 3 and value % 3 == 0 else at > ROWS * 2 // 3
                      and value % 3 == 1 for at, value in enumerate(VALUES)]),
    "timestamp": pa.array(NUMBERS, pa.timestamp("us")),
    "double": pa.array(NUMBERS, pa.float64()),
    "date": pa.array(NUMBERS, pa.date32()),
    "text": pa.array([None if value == 0 else f"k{value}" for value in VALUES]),
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
OFTEN = CheckpointPolicy(log_bytes=5_000, log_per_state=0)


def job(column, folder):
    table = pa.table({"user": np.arange(ROWS), "key": column})
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, delta = 1e-6,"
        " privacy_unit_column = user, max_rows_contributed = 1, min_privacy_units_per_group = 2,"
        f" steps = {STEPS})"
        f" key, COUNT(*) AS n FROM t GROUP BY key EMIT EVERY {ROWS // STEPS} ROWS",
        {"t": table},
    )
    work = work_of(query.plan, pace=Pace(max_rows=100))
    return Job(folder, work, Randomness(noise=SeededNoise(3), insecure=True), policy=OFTEN)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_stopped_job_with_null_keys_goes_on(name, tmp_path):
    with job(COLUMNS[name], tmp_path / "whole") as whole:
        expected = {one.trigger: settled(one)[1].crc for one in whole}
        last = one_of(whole)
    assert None in last.column("key").to_pylist()
    for stop in range(1, STEPS, 3):
        folder = tmp_path / f"stop{stop}"
        with job(COLUMNS[name], folder) as first:
            for _ in zip(range(stop), first, strict=False):
                pass
        with job(COLUMNS[name], folder) as second:
            for one in second:
                assert settled(one)[0].table.equals(one.table)
        assert one_of(second).equals(last)
    assert len(expected) == STEPS


def one_of(ended):
    return ended.read(trigger=STEPS).table


def dirty(kind):
    """A column with and one without other bytes where it is null."""
    values = np.arange(1, 14, dtype=f"i{kind.bit_width // 8}")
    null = values % 3 == 0
    clean = np.where(null, 0, values)
    return [pa.array(some, mask=null).view(kind) for some in (values, clean)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.float32(), pa.timestamp("s"),
                                  pa.date32(), pa.uint16()])  # fmt: skip
def test_bytes_of_nulls_do_not_count(kind):
    releases = [made(pa.table({"k": column})) for column in dirty(kind)]
    assert len({settled(one)[1] for one in releases}) == 1
    parts = pa.chunked_array([dirty(kind)[0].slice(0, 5), dirty(kind)[0].slice(5)])
    assert nulls_as_zero(parts).equals(dirty(kind)[1])
