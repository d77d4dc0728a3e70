import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.connectors import base
from streamveil.connectors.files import FilesSource
from streamveil.connectors.memory import MemorySource
from streamveil.errors import SourceError
from streamveil.plan.plan import Clock
from streamveil.runtime import schedule as module
from streamveil.runtime.schedule import MicroBatches


def source(times):
    at = pa.array(times, pa.timestamp("us", tz="UTC"))
    return MemorySource(pa.table({"at": at, "row": pa.array(range(len(times)), pa.int64())}))


def run(schedule, position=None):
    batches = list(schedule.batches(position))
    closed = [batch.step for batch in batches if batch.closes_step]
    rows = {}
    for batch in batches:
        rows.setdefault(batch.step, []).extend(batch.rows.column("row").to_pylist())
    return batches, closed, rows


EVENT = Clock(kind="event", every=10, start_us=100, end_us=150, steps=5)


def test_a_replay_closes_every_step_in_order_with_the_rows_of_that_step():
    s = MicroBatches(source([100, 131, 105, 149, 99, 150, None, 119]), EVENT, event_time="at")
    batches, closed, rows = run(s)
    assert closed == [1, 2, 3, 4, 5]
    assert rows == {1: [0, 2], 2: [7], 3: [], 4: [1], 5: [3]}
    assert batches[0].rejected == {"null in at": 1, "arrival outside the schedule": 2}


@given(st.lists(st.integers(90, 160), max_size=40), st.integers(1, 5))
def test_a_row_never_moves_another_row(times, size):
    whole = run(MicroBatches(source(times), EVENT, event_time="at", max_rows=size))[2]
    for gone in range(len(times)):
        rest = [t if i != gone else None for i, t in enumerate(times)]
        without = run(MicroBatches(source(rest), EVENT, event_time="at", max_rows=size))[2]
        assert without == {step: [r for r in rows if r != gone] for step, rows in whole.items()}


@given(st.lists(st.integers(90, 160), max_size=30), st.integers(1, 4), st.sampled_from("erw1"))
def test_resuming_anywhere_gives_the_rest(times, size, kind):
    clock = {
        "e": EVENT,
        "r": Clock(kind="rows", every=3),
        "w": Clock(kind="wall", every=10, start_us=0, steps=2),
        "1": Clock(kind="once"),
    }[kind]
    s = MicroBatches(source(times), clock, event_time="at", max_rows=size, now=lambda: 1e9,
                 sleep=lambda _: None)  # fmt: skip
    shape = [(b.step, b.closes_step, b.rows.to_pylist(), b.position) for b in s.batches()]
    for i, (*_, position) in enumerate(shape):
        again = [(b.step, b.closes_step, b.rows.to_pylist(), b.position)
                 for b in s.batches(position)]  # fmt: skip
        assert again == shape[i + 1 :]


@pytest.mark.parametrize(
    ("then", "fine"),
    [
        ([101, 102, 103, 104, 105, 120], True),
        ([99, 101, 102, 103, 104, 105, 106, 121, 131], True),  # what was taken is there as it was
        ([100, 101, 102, 103, 104, 105], False),  # the third row would be counted twice
        ([101, 103, 104, 105], False),  # and here the fourth not at all
        ([101, 102], False),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_step_that_was_taken_in_part_goes_on_only_with_the_rows_it_began_with(then, fine, size):
    taken = next(MicroBatches(source([101, 102, 103, 104, 105]), EVENT, event_time="at",
                          max_rows=3).batches())  # fmt: skip
    rest = MicroBatches(source(then), EVENT, event_time="at", max_rows=size)
    if fine:
        times = [
            t.microsecond for b in rest.batches(taken.position) for t in b.rows["at"].to_pylist()
        ]
        assert times == [t for t in then if t > 103]
        return
    with pytest.raises(SourceError, match="taken in part"):
        list(rest.batches(taken.position))


def test_a_step_that_is_closed_does_not_care_what_becomes_of_its_rows():
    closed = next(MicroBatches(source([101, 102, 115]), EVENT, event_time="at").batches())
    rest = MicroBatches(source([100, 101, 103, 109, 115, 119]), EVENT, event_time="at")
    assert run(rest, closed.position)[2] == {2: [4, 5], 3: [], 4: [], 5: []}


def rows_of(batches):
    return [(batch.step, row) for batch in batches for row in batch.rows.to_pylist()]


@pytest.mark.parametrize("kind", ["event", "rows", "once"])
def test_wide_rows_come_few_at_a_time(monkeypatch, tmp_path, kind):
    clock = {"event": EVENT, "rows": Clock(kind="rows", every=7), "once": Clock(kind="once")}[kind]
    table = pa.table({"at": pa.array(range(100, 120), pa.timestamp("us", tz="UTC")),
                      "row": ["x" * 10 * n for n in range(20)]})  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet")
    pa.csv.write_csv(table, tmp_path / "t.csv")
    columns = {"at": "TIMESTAMP", "row": "STRING"}
    for made in (MemorySource(table), FilesSource(str(tmp_path / "t.parquet")),
                 FilesSource(str(tmp_path / "t.csv"), columns=columns)):  # fmt: skip
        s = MicroBatches(made, clock, event_time="at")
        found = []
        for most in (1 << 30, 500):
            monkeypatch.setattr(base, "MOST_BYTES", most)
            batches, *shape = run(s)
            found.append(shape)
            fits = [b.rows.nbytes <= most or b.rows.num_rows == 1 for b in batches]
            assert all(fits)
            for place, batch in enumerate(batches):
                assert rows_of(run(s, batch.position)[0]) == rows_of(batches[place + 1 :])
        assert len(batches) > 5
        assert found[0] == found[1]


def test_a_large_replay_is_sorted_on_disk_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(1)
    times = [int(t) for t in rng.integers(90, 160, 500)]
    s = MicroBatches(source(times), EVENT, event_time="at", max_rows=7)
    small = run(s)
    monkeypatch.setattr(module, "SPILL_BYTES", 100)
    large = run(s)
    assert small[1:] == large[1:]


@pytest.mark.parametrize("spill", [1 << 30, 100])
def test_a_replay_takes_more_words_than_one_dictionary_holds(monkeypatch, spill):
    monkeypatch.setattr(module, "SPILL_BYTES", spill)
    words = [[f"{part}{n}" for n in range(100)] for part in "ab"]
    at = pa.array(range(100, 150), pa.timestamp("us", tz="UTC"))
    chunks = [pa.array(some).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
              for some in words]  # fmt: skip
    table = pa.table({"at": pa.concat_arrays([at] * 4), "word": pa.chunked_array(chunks)})
    batches = MicroBatches(MemorySource(table), EVENT, event_time="at", max_rows=30).batches()
    found = {word for batch in batches for word in batch.rows["word"].to_pylist()}
    assert found == {*words[0], *words[1]}


def test_steps_of_rows_stop_at_the_horizon_and_close_a_last_short_step():
    s = MicroBatches(source(range(8)), Clock(kind="rows", every=3), max_rows=2)
    assert run(s)[1:] == ([1, 2, 3], {1: [0, 1, 2], 2: [3, 4, 5], 3: [6, 7]})
    s = MicroBatches(source(range(8)), Clock(kind="rows", every=3, steps=2), max_rows=2)
    assert run(s)[1:] == ([1, 2], {1: [0, 1, 2], 2: [3, 4, 5]})


def test_one_shot_is_one_step_even_without_rows():
    assert run(MicroBatches(source([]), Clock(kind="once")))[1:] == ([1], {1: []})
    assert run(MicroBatches(source([5, 6, 7]), Clock(kind="once"), max_rows=2))[1] == [1]


def test_a_one_shot_that_is_done_reads_no_rows_that_came_later():
    done = run(MicroBatches(source([5, 6]), Clock(kind="once")))[0][-1].position
    assert run(MicroBatches(source([5, 6, 7]), Clock(kind="once")), done) == ([], [], {})


def test_the_wall_clock_closes_a_step_at_its_public_time_only():
    slept, time = [], [0.0]

    def sleep(seconds):
        slept.append(seconds)
        time[0] += seconds

    clock = Clock(kind="wall", every=2_000_000, start_us=0, steps=2)
    s = MicroBatches(source([1, 2]), clock, now=lambda: time[0], sleep=sleep)
    assert run(s)[1:] == ([1, 2], {1: [0, 1], 2: []})
    assert time[0] == 4.0


def test_a_time_column_of_another_type_is_refused_by_name():
    s = MicroBatches(MemorySource(pa.table({"at": ["secret"]})), EVENT, event_time="at")
    with pytest.raises(SourceError, match="column 'at' must hold timestamps") as error:
        run(s)
    assert "secret" not in str(error.value)
