"""The cut into three stages, without Spark: any number of shards equals the embedded engine.

Rows between stages are shuffled, because a real shuffle gives no order.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.files import FilesSource
from streamveil.core.noise import SeededNoise
from streamveil.dataflow import stages as dataflow_stages
from streamveil.engines.spark import stages
from streamveil.engines.spark.columns import pack, unpack
from streamveil.engines.spark.shards import Shards
from streamveil.engines.spark.shuffle import Piece, Rows, joined
from streamveil.engines.spark.source_offsets import FilesReading
from streamveil.engines.spark.splits import digest, footers, last_step, plan_step
from streamveil.errors import SourceError, StoreError, WitnessError
from streamveil.plan import Clock
from streamveil.runtime.run import run
from streamveil.runtime.spark import as_on_spark
from streamveil.sql.schema import needed_columns
from tests.engines.spark.streams import CASES, HOUR, Case

SEED = 5
AGAIN = 0.5  # share of steps whose state is that of their delta
PIECE = 60  # rows admitted at once
MORE = [replace(case, name=f"{case.name}{seed}", seed=seed, shards=1 + seed % 5)
        for seed in range(20, 50) for case in (CASES[seed % len(CASES)],)]  # fmt: skip


def embedded(plan, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(run(as_on_spark(plan), state=folder, noise=SeededNoise(SEED), insecure=True))


def staged(case, plan, rng):
    """What the Spark engine computes, stage by stage, in this process."""
    noise, operator = SeededNoise(SEED), compile_plan(as_on_spark(plan))
    source = FilesSource(**plan.source.options)
    schema = source.schema()
    wanted = pa.schema([schema.field(name) for name in needed_columns(plan, schema)])
    arrival = "seen" if case.clock == "event" else None
    reading, groups = FilesReading(wanted, plan.clock, arrival), footers(source, arrival)
    shards = range(case.shards)
    units, keys = [operator.init() for _ in shards], [operator.init() for _ in shards]
    kinds = types_of(operator, wanted, noise)
    for state in keys:
        state.types = kinds
    made = []
    for step in range(1, last_step(groups, plan.clock) + 1):
        sent = []
        for split in plan_step(groups, plan.clock, step):
            read = reading.rows(split.text(), step)
            for start in range(0, read.table.num_rows, PIECE):
                rows = read.table.slice(start, PIECE)
                parts, _ = stages.admit(operator, rows, step, noise, case.shards)
                sent.append([Piece(read.place + start, part) for part in parts])
        facts = [stages.published_facts(operator, state) for state in keys]
        known = {name: np.concatenate([f[name] for f in facts]) for name in facts[0]}
        shown = stages.PublishedGroups.of(operator, known)
        passed = []
        for shard in shards:
            mine = joined(carried([parts[shard] for parts in sent], rng))
            if mine is not None:
                twin = operator.load(stored(operator.save(units[shard])))
                made_of = stages.bound(operator, units[shard], mine, shown, case.shards)
                passed.append([Piece(shard, part) for part in made_of.rows])
                operator.expire(units[shard], step)
                if rng.random() < AGAIN:  # what its delta tells is all that was done
                    stages.bound_again(operator, twin, stored(made_of.delta), step)
                    units[shard] = twin
            operator.expire(units[shard], step)
        releases = []
        for shard in shards:
            mine = joined(carried([parts[shard] for parts in passed], rng))
            twin = operator.load(stored(operator.save(keys[shard])))
            place = shard, case.shards, step
            delta = stages.gather(operator, keys[shard], mine, noise, place)
            releases += operator.release(keys[shard], step, noise)
            if rng.random() < AGAIN:
                stages.gather_again(operator, twin, stored(delta), noise, place)
                keys[shard] = twin
        made += stages.merged(releases, len(plan.keys))
        units = [operator.load(operator.save(state)) for state in units]
        keys = [operator.load(operator.save(state)) for state in keys]
    return made


def stored(delta):
    """A delta as it is read again."""
    return unpack(b"".join(pack({}, delta)))[1]


def types_of(operator, schema, noise):
    from streamveil.batch import Batch

    state = operator.init()
    operator.arrive(state, Batch(schema.empty_table(), 1, True, "{}"), noise)
    return state.types


def carried(pieces, rng):
    """Pieces as bytes and back, in the order of a shuffle: any."""
    arrived = [Piece.from_bytes(piece.to_bytes()) for piece in pieces if len(piece.rows)]
    return [arrived[place] for place in rng.permutation(len(arrived))]


def assert_equal(found, wanted):
    assert [(r.window, r.trigger, r.step) for r in found] == [
        (r.window, r.trigger, r.step) for r in wanted
    ]
    for one, other in zip(found, wanted, strict=True):
        assert one.table.equals(other.table), (one.window, one.trigger)


@pytest.mark.parametrize("case", [*CASES, *MORE], ids=lambda case: case.name)
def test_any_shards_and_any_order_equal_the_embedded_engine(case, tmp_path):
    plan = case.plan(case.write(tmp_path / "data"))
    wanted = embedded(plan, tmp_path / "state")
    assert sum(r.table.num_rows for r in wanted) > 0
    assert_equal(staged(case, plan, np.random.default_rng(case.seed)), wanted)


def test_the_witness_stops_totals_that_are_added_twice(tmp_path, monkeypatch):
    case = CASES[5]
    plan = case.plan(case.write(tmp_path / "data"))

    def twice(*arguments):
        add_rows(*arguments)
        add_rows(*arguments)

    add_rows = stages.add_rows
    monkeypatch.setattr(stages, "add_rows", twice)
    for name in ("gather", "combined"):  # each stage of the two is stopped without the other
        with monkeypatch.context() as patch:
            patch.setattr(stages, name, lambda rows, _: rows)
            with pytest.raises(WitnessError, match="total of a group"):
                staged(case, plan, np.random.default_rng(case.seed))


def test_the_witness_turns_to_other_units_at_each_step(tmp_path, monkeypatch):
    case, turns = CASES[5], []
    plan = case.plan(case.write(tmp_path / "data"))
    look = dataflow_stages.look_before

    def looked(table_of, unit, turn):
        turns.append(turn)
        return look(table_of, unit, turn)

    monkeypatch.setattr(dataflow_stages, "look_before", looked)
    staged(case, plan, np.random.default_rng(case.seed))
    assert set(turns) == {0, 1, 2, 3}


def test_the_comparison_sees_a_lost_row(tmp_path):
    case = CASES[5]
    plan = case.plan(case.write(tmp_path / "data"))
    wanted = embedded(plan, tmp_path / "state")
    other = replace(case, seed=99)
    again = other.plan(other.write(tmp_path / "other"))
    with pytest.raises(AssertionError):
        assert_equal(staged(other, again, np.random.default_rng(0)), wanted)


def test_combining_loses_nothing():
    rng = np.random.default_rng(0)
    n = 500
    words = rng.integers(0, 2**63, (40, 2)).astype(np.uint64)
    pick = rng.integers(0, 40, n)
    columns = {
        "window": rng.integers(0, 3, n), "names": words[pick],
        "lanes": rng.integers(-9, 9, (n, 2)), "hits": np.zeros((n, 0), np.int64),
    }  # fmt: skip
    rows = Rows(columns, pa.array([bytes([p]) for p in pick], pa.large_binary()))
    one = stages.combined(rows, 0)
    wanted = {}
    for window, place, lanes in zip(columns["window"], pick, columns["lanes"], strict=True):
        key = (int(window), bytes([place]))
        wanted[key] = wanted.get(key, 0) + lanes
    found = dict(zip(zip(one["window"].tolist(), one.keys.to_pylist(), strict=True), one["lanes"],
                     strict=True))  # fmt: skip
    assert len(one) == len(found)
    assert found.keys() == wanted.keys()
    assert all((found[key] == wanted[key]).all() for key in wanted)


def test_every_row_belongs_to_one_step_and_keeps_its_place(tmp_path):
    case = Case(name="x", seed=1)
    source = FilesSource(str(case.write(tmp_path / "data")))
    groups = footers(source, "seen")
    clock = Clock(kind="event", every=HOUR, start_us=0, end_us=6 * HOUR, arrival="seen")
    columns = ["unit", "seen"]
    schema = pa.schema([source.schema().field(name) for name in columns])
    reading = FilesReading(schema, clock, "seen")
    found = [
        reading.rows(split.text(), step)
        for step in range(1, 7)
        for split in plan_step(groups, clock, step)
    ]
    found.sort(key=lambda read: read.place)  # stable: steps follow time, and rows are in its order
    whole = pa.concat_tables(chunk.rows for chunk in source.read(None, 10_000, columns))
    assert pa.concat_tables(read.table for read in found).equals(whole)
    assert any(len(plan_step(groups, clock, step)) < len(groups) for step in range(1, 7))


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_a_time_beyond_all_calendars_does_not_stop_the_plan(unit, tmp_path):
    seen = pa.array([0, 2**60], pa.int64()).cast(pa.timestamp(unit))
    pq.write_table(pa.table({"seen": seen}), tmp_path / "a.parquet")
    (group,) = footers(FilesSource(str(tmp_path)), "seen")
    assert (group.rows, group.low, group.high) == (2, None, None)


def test_a_changed_file_changes_the_digest(tmp_path):
    case = Case(name="x", seed=1)
    source = FilesSource(str(case.write(tmp_path / "data")))
    before = footers(source, None)
    (tmp_path / "data" / "b.parquet").rename(tmp_path / "data" / "c.parquet")
    assert digest(footers(source, None)) != digest(before)


def test_other_formats_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(SourceError, match="Parquet"):
        footers(FilesSource(str(tmp_path)), None)


def test_shard_versions_are_written_whole_dropped_and_missed(tmp_path):
    shards = Shards(str(tmp_path))
    assert shards.read("key", 0, 0) is None
    shards.write("key", 0, 1, 5, {"a": np.arange(3)})
    shards.write("key", 0, 1, 5, {"a": np.arange(3)})
    assert shards.read("key", 0, 1).arrays["a"].tolist() == [0, 1, 2]
    assert not list(tmp_path.rglob("*.partial"))
    assert shards.tags("key", 1, 2) == [5, None]
    shards.write("key", 0, 2, 6, {"a": np.arange(3)})
    shards.tidy(1)
    assert shards.tags("key", 1, 1) == [5]
    shards.tidy(2)
    with pytest.raises(StoreError, match="missing"):
        shards.read("key", 0, 1)


def test_a_damaged_shard_is_refused(tmp_path):
    shards = Shards(str(tmp_path))
    shards.write("key", 0, 1, 5, {"a": np.arange(300)})
    path = next(tmp_path.rglob("*.base"))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(StoreError, match="damaged"):
        shards.read("key", 0, 1)


def test_shards_live_behind_a_uri_too(tmp_path):
    shards = Shards(f"file://{tmp_path}")
    shards.write("unit", 3, 7, 5, {"a": np.arange(3)})
    assert Shards(str(tmp_path)).read("unit", 3, 7).arrays["a"].tolist() == [0, 1, 2]


def test_shards_live_in_file_systems_of_fsspec(tmp_path):
    pytest.importorskip("fsspec")
    shards = Shards("memory://bucket/state")
    assert not shards.started()
    for version in (1, 2):
        shards.write("unit", 0, version, version, {"a": np.arange(3) + version})
        shards.write("unit", 0, version, version, {"a": np.arange(3) + version})
    assert Shards("memory://bucket/state").read("unit", 0, 2).arrays["a"].tolist() == [2, 3, 4]
    with pytest.raises(StoreError, match="over other rows"):
        shards.write("unit", 0, 2, 7, {"a": np.arange(3)})
    assert shards.tags("unit", 2, 1) == [2]
    shards.claim()
    with pytest.raises(StoreError, match="another state"):
        Shards("memory://bucket/state", "other").claim()
    assert shards.newest() == 2
    assert shards.started()
    shards.tidy(2)
    with pytest.raises(StoreError, match="missing"):
        shards.read("unit", 0, 1)


def test_an_unknown_file_system_is_named(tmp_path):
    with pytest.raises(StoreError, match="nosuch://"):
        Shards("nosuch://bucket").write("unit", 0, 1, 5, {"a": np.arange(3)})
