"""A state names its mechanisms: a plan that is calibrated otherwise is another job."""

import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler import group_by as compiling
from streamveil.compiler import operator_of
from streamveil.engines import within
from streamveil.errors import StoreError
from streamveil.runtime.formats import calibration, words
from streamveil.runtime.run import run

ROWS = pa.table({"u": [1], "k": [2], "v": [0.5], "op": ["insert"], "id": [1], "c": ["Oslo"]})
UNIT, LIMIT = "privacy_unit_column = u, ", "max_rows_contributed = 4, "
ONCE, SIZE = "max_rows_contributed = 1, ", "expected_size = 5000, "
COUNTED = "k, COUNT(*) AS n FROM rows GROUP BY k EMIT EVERY 100 ROWS"
CITIES = "c, COUNT(*) AS n FROM people GROUP BY c EMIT EVERY 10 ROWS"
FROM = " FROM rows EMIT EVERY 100 ROWS"
RANGE = "contribution_bounds_per_row => (0, 1)"
QUERIES = {
    "open": (f"{UNIT}expected_rows = 3, expected_units = 1000, ", COUNTED),
    "bounded": (
        UNIT + LIMIT + "total_tests = 0, ",
        COUNTED.replace("COUNT(*)", f"AVG(v, {RANGE})"),
    ),
    "preset": (f"{UNIT}{LIMIT}preset = 'dp-sqlp', ", COUNTED),
    "gaussian": (f"{UNIT}{LIMIT}selection = 'gaussian', ", COUNTED),
    "quantile": (UNIT + LIMIT, f"PERCENTILE_CONT(v, 0.5, {RANGE}) AS q{FROM}"),
    "sketch": (UNIT + ONCE, f"HEAVY_HITTERS(k, k => 4, bits => 13) AS n{FROM}"),
    "frequency": (f"{UNIT}{ONCE}public_groups = [1, 2], ", f"APPROX_FREQUENCY(k) AS n{FROM}"),
    "table": (SIZE, CITIES),
    "asked": (f"{SIZE}ask_share = 0.5, ", CITIES),
}
TABLE = (
    "CREATE TABLE people (c CHECK (c IN ('Oslo', 'Rome'))) WITH (source = rows,"
    " changelog = 'insert-delete', operation = op, id = id);"
)


DAY = """
CREATE STREAM s (u BIGINT, k BIGINT, t TIMESTAMP)
  WITH (source = 'files', path = 'none', format = 'json', event_time = 't');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = u,
  privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 4,
  start = TIMESTAMP '2026-01-01', end = TIMESTAMP '2026-01-03')
  window_start, k, COUNT(*) AS n FROM TUMBLE(TABLE s, DESCRIPTOR(t), size => INTERVAL 1 DAY)
GROUP BY window_start, k EMIT EVERY INTERVAL 6 HOUR
"""


def planned(name):
    options, select = QUERIES[name]
    script = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({options}epsilon = 2, delta = 1e-9, steps = 8)"
        f" {select};"
    )
    return sv.sql((TABLE if "people" in select else "") + script, {"rows": ROWS}).plan


def operator(name):
    return operator_of(planned(name))


def test_every_kind_of_query_has_its_own_word():
    found = {name: calibration(operator(name)) for name in QUERIES}
    assert len(set(found.values())) == len(QUERIES)
    assert found == {name: calibration(operator(name)) for name in QUERIES}


def test_a_condition_is_the_plans_to_tell(monkeypatch):
    monkeypatch.setitem(QUERIES, "some", (SIZE, CITIES.replace("GROUP", "WHERE c = 'Oslo' GROUP")))
    assert planned("some").fingerprint != planned("table").fingerprint
    assert calibration(operator("some")) == calibration(operator("table"))


def test_periods_of_units_are_told():
    day = operator_of(sv.sql(DAY).plan)
    longer = operator_of(sv.sql(DAY.replace("period = INTERVAL 1", "period = INTERVAL 2")).plan)
    assert calibration(day) != calibration(longer)


def test_another_process_says_the_same():
    code = (
        "from tests.runtime.test_calibration import calibration, operator;"
        "print(calibration(operator('open')), calibration(operator('table')))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == [calibration(operator("open")), calibration(operator("table"))]


def test_a_memory_limit_is_no_mechanism(tmp_path):
    plain = operator("open")
    assert calibration(within(plain, 1 << 31, 0, tmp_path)) == calibration(plain)


def test_noise_bounds_and_schedules_are(tmp_path):
    plan, plain = planned("bounded"), operator("bounded")
    noises = plain.design.noises
    noisier = (*noises[:-1], noises[-1] * Fraction(101, 100))
    others = [
        replace(plain, design=replace(
            plain.design, limits=replace(plain.design.limits, max_rows=5))),
        operator_of(replace(plan, clock=replace(plan.clock, steps=9))),
        replace(plain, design=replace(plain.design, max_units=10**9)),
        replace(plain, design=replace(plain.design, noises=noisier)),
    ]  # fmt: skip
    assert calibration(plain) not in {calibration(other) for other in others}


def test_a_state_refuses_other_mechanisms_for_the_same_query(tmp_path, monkeypatch):
    plan = planned("bounded")
    list(run(plan, state=tmp_path / "a"))
    list(run(plan, state=tmp_path / "a"))
    monkeypatch.setattr(compiling, "PRECISION_BITS", 20)  # an upgrade that computes otherwise
    with pytest.raises(StoreError, match="other bounds or other noise"):
        run(plan, state=tmp_path / "a")


def test_last_bits_of_real_numbers_do_not_count():
    assert list(words(0.1 + 0.2)) == list(words(0.3))
    assert list(words(np.array([1.0, 2.5]))) != list(words(np.array([1.0, 2.6])))


def test_what_it_cannot_tell_is_refused():
    with pytest.raises(TypeError, match="of type object has no digest"):
        list(words({"scale": object()}))
