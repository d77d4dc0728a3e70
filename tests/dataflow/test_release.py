"""The release stage on any partition of the keys gives every key the same totals."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.core.accounting import Budget
from streamveil.core.noise import Address, SeededNoise
from streamveil.core.noisy import values
from streamveil.core.release import WeightRule
from streamveil.dataflow.aggregate import KeyRows, add_rows, key_stage
from streamveil.dataflow.dp_sqlp import RoundPlan
from streamveil.dataflow.release import new_window, release_stage
from streamveil.plan import Bounding
from tests.dataflow.streams import AGGREGATES, LOOSE, compiled

DESIGNS = {
    "counter": {"budget": LOOSE, "options": {"selection": "gaussian"}},
    "table": {
        "budget": Budget(epsilon=30, delta=0.01), "bounding": Bounding(quadratic=20),
        "options": {"selection": "table", "weight_reference": 4},
    },
    "rounds": {
        "preset": "dp-sqlp", "bounding": Bounding(max_rows=2),
        "budget": Budget(epsilon=100, delta=0.1),
    },
}  # fmt: skip


def totals(operator, names, batches):
    """{name: totals at every trigger} of the keys in one shard."""
    aggregation, seen = operator.aggregation, {}
    state = new_window(aggregation, 1)
    for batch in batches:
        mine = np.flatnonzero(np.isin(batch, np.arange(len(names))[names[:, 0] > 0]))
        found = key_stage(state.table, names[batch[mine]])
        width = aggregation.width
        rows = KeyRows(np.ones((len(mine), width), np.int64), np.zeros((len(mine), 0), np.int64))
        add_rows(state.table, found.rows, rows)
        at = Address(SeededNoise(4), b"job", 0)
        if isinstance(aggregation, RoundPlan):
            released = aggregation.release(state, at)
        else:
            released = release_stage(aggregation, state, at)
        for place, row in enumerate(released.rows):
            name = state.table.names[row].tobytes()
            found = values(released.totals)
            value = found.estimate[:, place].tolist()
            seen.setdefault(name, []).append((value, found.variance[:, place].tolist()))
    return seen


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("shards", [2, 5])
def test_any_partition_of_the_keys_agrees(design, shards):
    operator = compiled(aggregates=AGGREGATES[:1], **DESIGNS[design])
    rng = np.random.default_rng(8)
    names = rng.integers(1, 2**63, (40, 2)).astype(np.uint64)
    batches = [rng.integers(0, 40, 300) for _ in range(6)]
    whole = totals(operator, names, batches)
    assert whole
    parts = {}
    for shard in range(shards):
        mine = names.copy()
        mine[np.arange(40) % shards != shard, 0] = 0  # elsewhere
        parts |= totals(operator, mine, batches)
    assert parts == whole


@pytest.mark.parametrize("monotone", [False, True])
def test_rounded_sums_beyond_64_bits_stay_at_the_largest(tmp_path, monotone):
    values = {"u": np.arange(100), "k": np.arange(100) % 2, "v": np.full(100, 10**18)}
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, privacy_unit_column = u, "
        f"public_groups = [0, 1], integer = TRUE, monotone = {monotone}, delta = 1e-6) k, "
        "SUM(v, contribution_bounds_per_row => (0, 1e18)) AS s, "
        "SUM(-v, contribution_bounds_per_row => (-1e18, 0)) AS less, COUNT(*) AS n FROM t "
        "GROUP BY k",
        {"t": sv.memory(pa.table(values))},
    )
    with query.run(state=tmp_path / "s") as job:
        (release,) = job
    found = release.table.to_pydict()
    for name, sign in (("s", 1), ("less", -1)):
        assert [sign * n for n in found[name]] == [2**63 - 1024] * 2
        assert min(sign * found[f"{name}_low"][0], sign * found[f"{name}_high"][0]) > 2**63
    assert (
        release.table.schema.field("s").type == release.table.schema.field("n").type == pa.int64()
    )


def test_an_interval_holds_its_rounded_mean(tmp_path):
    values = {"u": np.arange(10**5), "k": np.arange(10**5) % 20, "v": np.arange(10**5) % 20 / 3}
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 20, privacy_unit_column = u, "
        f"public_groups = {[*range(20)]}, integer = TRUE, delta = 1e-6) k, "
        "AVG(v, contribution_bounds_per_row => (0, 10)) AS m FROM t GROUP BY k",
        {"t": sv.memory(pa.table(values))},
    )
    with query.run(state=tmp_path / "s") as job:
        (release,) = job
    found = release.table.to_pandas()
    assert (found.m_high - found.m_low).median() < 0.5
    assert (found.m_low <= found.m).all()
    assert (found.m <= found.m_high).all()


def test_more_quanta_of_weight_than_a_byte_holds_are_refused():
    """A weight of 256 quanta would be one of none, and its noise without end."""
    assert WeightRule(scale=255, entry=255, reference=10.0).entry == 255
    with pytest.raises(ValueError, match="at most 255"):
        WeightRule(scale=256, entry=256, reference=10.0)


@pytest.mark.parametrize("reference", [0.0, np.nan, np.inf])
def test_no_weight_is_nothing(reference):
    """Keys without rows lost their weight: rows in them were charged nothing, and the job ended."""
    rule, full = WeightRule(scale=10, entry=3, reference=reference), np.full(3, 3, np.uint8)
    with np.errstate(invalid="ignore"):
        assert rule.next(full, np.array([0.0, 1e6, np.nan]), 0.5).min() >= 1


def test_weights_foresee_a_few_times_what_came_however_early():
    """Rows that came in the first of 100,000 releases may be all of them."""
    rule = WeightRule(scale=100, entry=100, reference=10.0)
    totals, full = np.array([1.0, 10, 80, 5e4]), np.full(4, 100, np.uint8)
    early = rule.next(full, totals, 1e-5)
    wanted = np.floor(100 * np.cbrt(10 / np.maximum(rule.growth * totals, 10)))
    np.testing.assert_array_equal(early, wanted)
    np.testing.assert_array_equal(early, rule.next(full, totals, 1 / rule.growth))
    late = rule.next(full, totals, 1.0)
    assert (late[1:] > early[1:]).all()  # nothing more is expected
    np.testing.assert_array_equal(rule.next(early, totals, 1.0), early)  # none rises again
