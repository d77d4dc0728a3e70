"""The noise that a job at rest holds is what is claimed, however often it was stopped."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.audit.pipeline import unbroken
from streamveil.audit.reduced import halved, reduced
from streamveil.audit.residuals import GROUPS, buffer_covariance, crowded, running_tests, standard
from streamveil.cli import app
from streamveil.compiler.group_by import compile_plan
from streamveil.core.counters.blt import BltCounter
from streamveil.core.noise import Place, SeededNoise
from tests.audit.test_reduced import FOUND, PUBLIC, query
from tests.audit.test_residuals import MEASURES

ALPHA = 1e-6
KEYS = {"public": PUBLIC, "found": FOUND}


def held(operator, steps, seed=1):
    """The state after so many releases of a crowd."""
    state, noise = operator.init(), SeededNoise(seed)
    for batch in crowded(operator).batches(GROUPS, with_unit=False)[:steps]:
        operator.fold(state, batch, noise)
        operator.release(state, batch.step, noise)
        state = operator.load({name: np.array(a) for name, a in operator.save(state).items()})
    return state


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_buffers_are_gaussian_with_the_stated_covariance(steps):
    counter, keys = BltCounter(horizon=50, sigma=1000), 20_000
    state, place = counter.init(keys), Place(SeededNoise(steps), "t")
    for _ in range(steps):
        _, state = counter.step(state, np.arange(keys), place)
    numbers = standard(counter, state, 1, keys).reshape(keys, -1)
    assert abs(numbers.std() - 1) < 0.03  # six deviations: once in 10^9
    seen = state.real @ state.real.T / keys
    np.testing.assert_allclose(seen, buffer_covariance(counter, steps), rtol=0.1)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("keys", KEYS)
def test_half_of_the_noise_of_a_state_is_refuted_and_honest_noise_stands(keys, steps):
    plan = query(KEYS[keys], sv.Budget(epsilon=6, delta=1e-9), measures=MEASURES,
                 max_rows=2, max_rows_per_group=1).plan  # fmt: skip
    plan = replace(plan, options={**plan.options, "weights": "flat"})
    operator = compile_plan(reduced(plan, GROUPS))
    tests = list(running_tests(operator, held(operator, steps), ALPHA))
    assert all(test.stands and test.groups >= GROUPS for test in tests)
    less = list(running_tests(operator, held(halved(operator), steps), ALPHA))
    assert len(less) >= 3
    assert all(test.refuted_after < 150 for test in less)


def test_nothing_is_said_where_nothing_is_open():
    operator = compile_plan(reduced(query(PUBLIC, sv.Budget(epsilon=6, delta=1e-9)).plan, 3))
    assert not any(test.is_tested for test in running_tests(operator, operator.init(), ALPHA))
    assert unbroken(operator, [], SeededNoise(1)) == []


def test_the_command_tests_a_job_that_was_stopped_twice(tmp_path):
    keys = [f"k{place}" for place in range(300)]
    hours = np.repeat(np.arange(6), len(keys))
    pq.write_table(pa.table({
        "u": np.arange(len(hours)), "k": np.tile(keys, 6),
        "ts": pa.array(1_767_225_600_000_000 + hours * 3_600_000_000, pa.timestamp("us", "UTC")),
    }), tmp_path / "x.parquet")  # fmt: skip
    text = f"""CREATE STREAM s WITH (source = 'files', path = '{tmp_path}/x.parquet',
        event_time = 'ts');
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, look_share = 0,
        privacy_unit_column = u, max_rows_contributed = 1, start = '2026-01-01',
        end = '2026-01-01 06:00:00', public_groups = {keys}) k, COUNT(*) AS n FROM s GROUP BY k
        EMIT EVERY INTERVAL 1 HOUR"""
    (tmp_path / "q.sql").write_text(text)
    for stops in (2, 2):
        job = sv.sql(text).run(state=str(tmp_path / "state"))
        for _ in range(stops):
            next(job)
        job.close()
    asked = ["audit", str(tmp_path / "q.sql"), "--state", str(tmp_path / "state")]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert "the claim stands" in result.output
    assert "0 (rows)" in result.output
    assert "do not publish this" in result.output
    *_, last = sv.sql(text).run(state=str(tmp_path / "state"))
    assert last.table.num_rows == len(keys)
    wrong = CliRunner().invoke(app, [*asked[:3], str(tmp_path / "no")])
    assert "is not a state directory" in str(wrong.exception or wrong.output)
