from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil import connectors
from streamveil.connectors.files import FilesSource
from streamveil.connectors.memory import MemorySource
from streamveil.connectors.rejected_rows import MALFORMED, MISFIT
from streamveil.dataflow import total
from streamveil.errors import SourceError
from streamveil.plan import Clock
from streamveil.runtime import schedule as module
from streamveil.runtime.schedule import MicroBatches, in_steps


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


@pytest.mark.parametrize(("before", "after"), [(20, 3), (3, 20), (7, 4), (4, 4)])
def test_what_is_rejected_is_told_once_where_a_restart_reads_other_chunks(tmp_path, before, after):
    lines = "".join(f"{n}\n" + "odd\n" * (n % 3) + "no,row\n" for n in range(9))
    (tmp_path / "t.csv").write_text(f"n\n{lines}odd\n")
    source = FilesSource(str(tmp_path / "t.csv"), columns={"n": "INT64"})
    begun, other = (MicroBatches(source, Clock(kind="rows", every=5), max_rows=size)
                    for size in (before, after))  # fmt: skip
    batches = list(begun.batches())
    for stop in range(len(batches)):
        rest = other.batches(batches[stop].position)
        told = total([one.rejected for one in (*batches[: stop + 1], *rest)])
        assert told == {MALFORMED: 9, MISFIT: 10}


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
            monkeypatch.setattr(connectors, "MOST_BYTES", most)
            batches, *shape = run(s)
            found.append(shape)
            fits = [b.rows.nbytes <= most or b.rows.num_rows == 1 for b in batches]
            assert all(fits)
            for place, batch in enumerate(batches):
                assert rows_of(run(s, batch.position)[0]) == rows_of(batches[place + 1 :])
        assert len(batches) > 5
        assert found[0] == found[1]


def test_codes_take_as_much_as_the_texts_that_they_stand_for(monkeypatch):
    """A long text that stands once in a file ended the job where many rows had it."""
    monkeypatch.setattr(connectors, "MOST_BYTES", 1_000)
    texts = pa.table({"row": pa.array(["x" * 100] * 50)})
    codes = pa.table({"row": texts["row"].dictionary_encode()})
    for table in (texts, codes):
        parts = [*connectors.slices(table, 50)]
        assert sum(part.num_rows for part in parts) == 50
        assert all(connectors.decoded(part).nbytes <= 1_000 for part in parts)


def test_a_large_replay_is_sorted_on_disk_with_the_same_result(monkeypatch):
    rng = np.random.default_rng(1)
    times = [int(t) for t in rng.integers(90, 160, 500)]
    s = MicroBatches(source(times), EVENT, event_time="at", max_rows=7)
    small = run(s)
    monkeypatch.setattr(module, "SPILL_BYTES", 100)
    large = run(s)
    assert small[1:] == large[1:]


@pytest.mark.parametrize("name", ["__step", "step", ""])
def test_a_replay_on_disk_takes_columns_of_any_name(name, monkeypatch):
    monkeypatch.setattr(module, "SPILL_BYTES", 100)
    at = pa.array(range(100, 150), pa.timestamp("us", tz="UTC"))
    table = pa.table({"at": at, name: pa.array(range(50))})
    batches = MicroBatches(MemorySource(table), EVENT, event_time="at", max_rows=30).batches()
    rows = pa.concat_tables([batch.rows for batch in batches])
    assert rows.schema.names == ["at", name]
    assert sorted(rows.column(1).to_pylist()) == [*range(50)]


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


def test_a_run_that_stops_at_once_ends_though_steps_end_faster_than_they_are_made():
    time = [6.5]

    def slow():
        time[0] += 10
        return time[0]

    clock = Clock(kind="wall", every=2_000_000, start_us=0)
    s = MicroBatches(source([1, 2]), clock, now=slow, sleep=time.append, once=True)
    assert run(s)[1:] == ([*range(1, 9)], {1: [0, 1]} | {step: [] for step in range(2, 9)})
    assert len(time) == 1, "it never waits"


def test_a_clock_that_is_set_back_is_told_and_every_step_closes_once_at_its_time(caplog):
    """Set back by three steps within a life, and by two between two lives."""
    time, back = [0.0], [(5.0, 6.0)]  # when, and by how much

    def sleep(seconds):
        time[0] += seconds
        if back and time[0] >= back[0][0]:
            time[0] -= back.pop(0)[1]

    clock = Clock(kind="wall", every=2_000_000, start_us=0, steps=4)

    def on_clock():
        return MicroBatches(source([1, 2]), clock, now=lambda: time[0], sleep=sleep)

    closed, places = [], []
    for batch in on_clock().batches(None):
        places.append(batch.position)
        if batch.closes_step:
            closed.append((batch.step, time[0]))
    assert closed == [(1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0)]
    assert caplog.text.count("set back") == 1
    assert "before step 3 begins" in caplog.text
    assert "rows of windows that closed too early are late" in caplog.text
    caplog.clear()
    time[0] = 1.0
    rest = [batch.step for batch in on_clock().batches(places[-2])]
    assert (rest, time[0]) == ([4], 8.0)
    assert "the job waits 7 s" in caplog.text
    caplog.clear()
    time[0] = -5.0  # before its start: nothing is odd
    assert next(on_clock().batches(None)).step == 1
    assert not caplog.text


def test_a_time_column_of_another_type_is_refused_by_name():
    s = MicroBatches(MemorySource(pa.table({"at": ["secret"]})), EVENT, event_time="at")
    with pytest.raises(SourceError, match="column 'at' must hold timestamps") as error:
        run(s)
    assert "secret" not in str(error.value)


def in_files(folder, times, cuts, group=3, written=pq.write_table):
    """The rows of `source`, as Parquet files of small row groups."""
    table = source(times).table
    folder.mkdir(exist_ok=True)
    edges = [0, *sorted(cuts), len(times)]
    for number, (start, end) in enumerate(pairwise(edges)):
        part = table.slice(start, end - start)
        written(part, folder / f"{number}.parquet", row_group_size=group)
    return FilesSource(str(folder / "*.parquet"))


def ways_of(schedule, monkeypatch):
    """What it gives in order, if it can, and by way of the disk; and whether it could."""
    begun = []
    for most in (1 << 22, 0):
        monkeypatch.setattr(module, "MOST_WAITING", most)
        batches, *found = run(schedule)
        rejected = {}
        for batch in batches:
            for reason, n in batch.rejected.items():
                rejected[reason] = rejected.get(reason, 0) + n
        begun.append((found, rejected, batches))
    monkeypatch.setattr(module, "MOST_WAITING", 1 << 22)
    in_order = "in_order" in begun[0][2][0].position
    assert "in_order" not in begun[1][2][0].position
    return begun[0][:2], begun[1][:2], in_order


NEARLY = st.lists(st.integers(-4, 4), min_size=1, max_size=40).map(
    lambda moves: [95 + i * 60 // len(moves) + by for i, by in enumerate(moves)]
)


@given(NEARLY | st.lists(st.integers(90, 160) | st.none(), min_size=1, max_size=40),
       st.integers(1, 5), st.integers(1, 5), st.sets(st.integers(1, 39), max_size=3))  # fmt: skip
def test_a_replay_of_files_in_order_gives_the_rows_of_every_step(
    tmp_path_factory, times, size, group, cuts
):
    cuts = {cut for cut in cuts if cut < len(times)}
    with pytest.MonkeyPatch.context() as patch:
        files = in_files(tmp_path_factory.mktemp("files"), times, cuts, group)
        s = MicroBatches(files, EVENT, event_time="at", max_rows=size)
        ordered, sorted_on_disk, in_order = ways_of(s, patch)
        assert in_order  # few rows: they may wait in any order
        assert ordered == sorted_on_disk
        shape = [(b.step, b.rows.to_pylist(), b.rejected, b.position) for b in s.batches()]
        for i, (*_, position) in enumerate(shape):
            again = [(b.step, b.rows.to_pylist(), b.rejected, b.position)
                     for b in s.batches(position)]  # fmt: skip
            assert again == shape[i + 1 :]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_row_groups_of_any_unit_of_time_tell_their_order(tmp_path, monkeypatch, unit):
    def written(table, path, row_group_size):
        at = table["at"].cast(pa.timestamp(unit, tz="UTC"))
        pq.write_table(table.set_column(0, "at", at), path, row_group_size=row_group_size)

    clock = Clock(kind="event", every=10_000, start_us=100_000, end_us=150_000, steps=5)
    times = [n * 1000 for n in range(96, 160, 2)]
    files = in_files(tmp_path / "in", times, (), 4, written)
    s = MicroBatches(files, clock, event_time="at", max_rows=3)
    ordered, sorted_on_disk, in_order = ways_of(s, monkeypatch)
    assert in_order
    assert ordered == sorted_on_disk
    assert len(ordered[0][1]) == 5


def test_rows_without_proof_of_their_order_go_by_way_of_the_disk(tmp_path, monkeypatch):
    times = [*range(100, 150)]

    def unstated(table, path, row_group_size):
        pq.write_table(table, path, row_group_size=row_group_size, write_statistics=False)

    def as_dates(table, path, row_group_size):
        dated = table.set_column(0, "at", table["at"].cast(pa.int64()).cast(pa.int32())
                                 .cast(pa.date32()))  # fmt: skip
        pq.write_table(dated, path, row_group_size=row_group_size)

    monkeypatch.setattr(module, "MOST_WAITING", 12)
    day = 86_400_000_000
    dates = Clock(kind="event", every=10 * day, start_us=100 * day, end_us=150 * day, steps=5)
    for name, clock, some, written, fine in (
        ("sorted", EVENT, times, pq.write_table, True),
        ("back", EVENT, times[::-1], pq.write_table, False),
        ("unstated", EVENT, times, unstated, False),
        ("dates", dates, times, as_dates, False),
    ):
        files = in_files(tmp_path / name, some, (20,), 5, written)
        s = MicroBatches(files, clock, event_time="at", max_rows=7)
        batches, closed, rows = run(s)
        assert ("in_order" in batches[0].position) == fine, name
        assert closed == [1, 2, 3, 4, 5]
        assert [len(rows[step]) for step in closed] == [10] * 5


def test_a_file_in_order_is_read_as_its_steps_come(tmp_path, monkeypatch):
    files = in_files(tmp_path / "in", [*range(100, 150)], (10, 20, 30, 40), 5)
    read = []
    rows = FilesSource._rows

    def noted(self, name, *asked):
        read.append(name)
        return rows(self, name, *asked)

    monkeypatch.setattr(FilesSource, "_rows", noted)
    s = MicroBatches(files, EVENT, event_time="at", max_rows=100)
    seen = [len(read) for _batch in s.batches()]
    assert seen == [1, 2, 3, 4, 5]


def test_statistics_that_are_not_those_of_the_rows_stop_a_replay(tmp_path, monkeypatch):
    files = in_files(tmp_path / "in", [*range(100, 150)], (), 10)
    groups = FilesSource.row_groups(files, "at")
    wrong = [group._replace(span=(group.span[0] + 20, group.span[1])) for group in groups]
    monkeypatch.setattr(FilesSource, "row_groups", lambda *_: wrong)
    with pytest.raises(SourceError, match="statistics"):
        run(MicroBatches(files, EVENT, event_time="at", max_rows=100))


def test_a_job_that_began_by_way_of_the_disk_goes_on_by_it(tmp_path, monkeypatch):
    times = [99, *range(100, 150), 150]
    files = in_files(tmp_path / "in", times, (), 5)
    s = MicroBatches(files, EVENT, event_time="at", max_rows=100)
    monkeypatch.setattr(module, "MOST_WAITING", 0)
    first = next(iter(s.batches()))
    monkeypatch.setattr(module, "MOST_WAITING", 1 << 22)
    rest = [*s.batches(first.position)]
    assert first.rejected == {"arrival outside the schedule": 2}
    assert not any(batch.rejected for batch in rest)
    assert not any("in_order" in batch.position for batch in rest)


def test_rows_of_one_step_keep_their_order():
    steps = np.array([2, 1, 2, 1, 3])
    table, found = in_steps(pa.table({"row": range(5)}), steps)
    assert (table["row"].to_pylist(), found.tolist()) == ([1, 3, 0, 2, 4], [1, 1, 2, 2, 3])
    ordered = pa.table({"row": range(3)})
    assert in_steps(ordered, np.array([1, 1, 2]))[0] is ordered, "nothing is copied"
