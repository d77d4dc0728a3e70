"""Joins on live data: what a row meets, what is kept of each person, and after a restart."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil import compiler
from streamveil.connectors import Chunk
from streamveil.errors import PlanError, StoreError
from streamveil.expressions import compile_key, compile_predicate
from streamveil.plan import joins
from streamveil.runtime import live_joins
from streamveil.runtime.combined import MappedSource
from streamveil.runtime.live_joins import LiveRows, NewestRows, Waiting
from streamveil.runtime.schedule import open_rows

HOUR_US = 3_600_000_000
UNITS, STEPS = 5, 4
PRIVATE = (
    "WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 0.5, delta = 1e-6, privacy_unit_column = user,"
    " max_rows_contributed = 3, start = '1970-01-01', steps = 4, clock = 'wall', {})"
)
DECLARED = """
CREATE STREAM clicks (user INT64, page INT64, ts TIMESTAMP)
  WITH (source = 'files', path = 'clicks/', follow = TRUE, event_time = 'ts');
CREATE {} (user INT64, kind INT64, at TIMESTAMP)
  WITH (source = 'files', path = 'seen/', follow = TRUE{});
"""
TABLE, STREAM = DECLARED.format("TABLE seen", ""), DECLARED.format(
    "STREAM seen", ", event_time = 'at'"
)  # fmt: skip
RELATIONS = {  # what is declared, how long rows are close, and the relation
    "table": (TABLE, 0, "SELECT c.user, page, kind FROM clicks c JOIN seen s ON c.user = s.user"),
    "left": (TABLE, 0, "SELECT user, page, kind FROM clicks LEFT JOIN seen USING (user)"),
    "latest": (STREAM, 0, "SELECT c.user, page, kind FROM clicks c JOIN seen s USING (user)"),
    "filtered": (TABLE, 0, "SELECT user, page, kind FROM clicks JOIN (SELECT user, kind FROM seen"
                           " WHERE kind > 0) AS s USING (user) WHERE page > 0"),
    "in": (TABLE, 0, "SELECT user, page, page AS kind FROM clicks WHERE user IN"
                     " (SELECT user FROM seen WHERE kind > 0)"),
    "not in": (TABLE, 0, "SELECT user, page, page AS kind FROM clicks WHERE user NOT IN"
                         " (SELECT user FROM seen)"),
    "events": (STREAM, 1, "SELECT c.user, page, kind FROM clicks c JOIN seen s ON c.user = s.user"),
    "later": (STREAM, 3, "SELECT c.user, page, kind FROM clicks c JOIN seen s ON c.user = s.user"
                         " AND s.at > c.ts WHERE page > 0"),
    "left events": (STREAM, 1, "SELECT c.user, page, kind FROM clicks c LEFT JOIN seen s"
                               " ON c.user = s.user"),
    "left later": (STREAM, 1, "SELECT c.user, page, kind FROM clicks c LEFT JOIN seen s"
                              " ON c.user = s.user AND s.at > c.ts AND s.kind > 0 WHERE page > 0"),
    "union": (TABLE, 0, "SELECT user, page, page AS kind FROM clicks UNION ALL"
                        " SELECT user, kind, kind AS same FROM seen WHERE kind > 0"),
}  # fmt: skip


def planned(name, kept=2):
    declared, within, relation = RELATIONS[name]
    limits = [f"join_rows = {kept}"] * (name != "union")
    limits += [f"join_within = INTERVAL {within} HOUR"] * (within > 0)
    text = (
        f"{declared} SELECT {PRIVATE.format(', '.join(limits) or 'integer = FALSE')} page, kind,"
        f" COUNT(*) AS n FROM ({relation}) GROUP BY page, kind EMIT EVERY INTERVAL 1 HOUR"
    )
    return sv.sql(text).plan


@pytest.mark.parametrize("name", ["table", "events"])
def test_spark_refuses_them_and_names_the_engine_that_runs_them(name):
    spark = pytest.importorskip("streamveil.runtime.spark")
    plan = planned(name)
    with pytest.raises(
        PlanError, match=r"a join on live data is not supported on Spark.*\n.*--engine embedded"
    ):
        spark.operator_of(plan)
    assert compiler.operator_of(plan)


class Dripping:
    """Rows of a table that come step by step, in chunks of a few rows; a position is a number."""

    bounded = False

    def __init__(self, table, steps, few):
        self.table, self.steps, self.few, self.step = table, steps, few, 0

    def schema(self):
        return self.table.schema

    def read(self, position, max_rows, columns=None):
        at, end = int(position or 0), int(np.searchsorted(self.steps, self.step, "right"))
        table = self.table if columns is None else self.table.select(columns)
        while at < end:
            rows = table.slice(at, min(self.few, end - at))
            at += rows.num_rows
            yield Chunk(rows, str(at))


def drawn(seed, rows=40):
    """Clicks and rows of the other relation, and the step at which each comes; some are odd."""
    rng = np.random.default_rng(seed)

    def relation(count, names):
        steps = np.sort(rng.integers(1, STEPS + 1, count))
        late = rng.integers(0, 3, count) * (rng.random(count) < 0.3)
        times = (steps - rng.random(count) - late) * HOUR_US
        null = rng.random(count) < 0.08
        return pa.table({
            "user": pa.array(rng.integers(0, UNITS, count), mask=rng.random(count) < 0.08),
            names[0]: pa.array(rng.integers(0, 3, count)),
            names[1]: pa.array(times.astype(np.int64), pa.timestamp("us", "UTC"), mask=null),
        }), steps  # fmt: skip

    return relation(rows, ("page", "ts")), relation(rows, ("kind", "at"))


def opened(plan, found, few=(7, 7), folder=None):
    """The source of a plan over tables that drip."""
    clicks, seen = (Dripping(*one, size) for one, size in zip(found, few, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_joins, "open_source", lambda *_: seen)
        made = LiveRows(plan.source, clicks)
    if folder is not None:
        made.keep_in(folder)
    return made, (clicks, seen)


def counted(plan, table):
    """Who is counted where."""
    if plan.where is not None:
        passes = compile_predicate(plan.where, table.schema)(table)
        table = table.filter(pc.fill_null(passes, fill_value=False))
    texts = [plan.unit, *(key.expression for key in plan.keys)]
    columns = (compile_key(text, table.schema)(table).to_pylist() for text in texts)
    return list(zip(*columns, strict=True))


def run(plan, found, few=(7, 7), folder=None, dies_after=()):
    """(step, user, page, kind) of all rows; `dies_after`: so many chunks a process ends."""
    source, inner = opened(plan, found, few, folder)
    position, rows, chunks = None, [], 0
    step = 1
    while step <= STEPS:
        for one in inner:
            one.step = step
        source.begin_step((step - 1) * HOUR_US)
        for chunk in source.read(position, 100):
            chunks += 1
            if chunks in dies_after:  # it is written, and nobody counts on it
                source, inner = opened(plan, found, few, folder)
                source.committed(position)
                break
            position = chunk.position
            source.committed(position)
            rows += [(step, *row) for row in counted(plan, chunk.rows)]
        else:
            step += 1
    return rows


def rows_told(name, found, kept=2):
    """The same by the words of the page, one row at a time, without arrays."""
    told = Told(name, kept)
    (clicks, click_steps), (seen, seen_steps) = found
    rows, kinds = [], ((seen, seen_steps, told.other), (clicks, click_steps, told.own))
    for step in range(1, STEPS + 1):
        start = (step - 1) * HOUR_US
        rows += [(step, *row) for row in told.begin(start)]
        for table, steps, comes in kinds:
            for row, came in zip(table.to_pylist(), steps, strict=True):
                rows += [(step, *made) for made in (comes(row, start) if came == step else [])]
    return rows


def micros(time):
    return -joins.FAR_US if time is None else round(time.timestamp() * 1e6)


class Told:
    """What is kept of each person, as lists of (time, row)."""

    def __init__(self, name, kept):
        self.name, self.kept = name, kept
        self.timed, self.within = RELATIONS[name][0] is STREAM, RELATIONS[name][1] * HOUR_US
        self.others, self.mine = defaultdict(list), defaultdict(list)
        self.met, self.out = set(), set()  # rows of the stream: that met one, and that came out
        self.waits = name.startswith("left ")

    def newest(self, some, user, start):
        held = sorted(some[user], key=lambda one: one[0])[-self.kept :]  # of equal ones the last
        return [row for time, row in held if not self.within or time >= start - 2 * self.within]

    def begin(self, start):
        """Rows that waited for twice the interval come out at the begin of a step."""
        return [alone for user in self.mine for alone in self.gone(user, start)]

    def gone(self, user, start):
        """Rows of a person that met nothing and are no longer kept, each once."""
        kept = {id(row) for row in self.newest(self.mine, user, start)}
        rows = [row for _, row in self.mine[user]
                if self.waits and not {id(row)} & (kept | self.met | self.out)]  # fmt: skip
        self.out |= {id(row) for row in rows}
        return [(user, row["page"], None) for row in rows
                if self.name == "left events" or row["page"] > 0]  # fmt: skip

    def other(self, row, start):
        user = row["user"]
        if self.name == "union":
            return [(user, row["kind"], row["kind"])] * (row["kind"] > 0)
        if user is None or (self.name in ("filtered", "in", "left later") and row["kind"] <= 0):
            return []
        self.others[user].append((micros(row["at"]) if self.timed else 0, row))
        return [pair for own in self.newest(self.mine, user, start) for pair in self.pair(own, row)]

    def own(self, row, start):
        user, page = row["user"], row["page"]
        met = [] if user is None else self.newest(self.others, user, start)
        if self.within and user is not None:
            self.mine[user].append((micros(row["ts"]), row))
        if self.name == "union":
            return [(user, page, page)]
        if self.name in ("in", "not in"):
            return [(user, page, page)] * (bool(met) == (self.name == "in"))
        if user is None and self.waits:
            return [(user, page, None)] * (self.name == "left events" or page > 0)
        if self.name == "left" and not met:
            return [(user, page, None)]
        pairs = [pair for other in met for pair in self.pair(row, other)]
        return pairs + (self.gone(user, start) if self.waits else [])

    def pair(self, own, other):
        times = micros(own["ts"]), micros(other["at"])
        fits = not self.within or abs(times[0] - times[1]) <= self.within
        if self.name in ("later", "left later"):
            fits = fits and -joins.FAR_US < times[0] < times[1]
        if fits:
            self.met.add(id(own))
        if self.name in ("filtered", "later", "left later"):
            fits = fits and own["page"] > 0
        return [(own["user"], own["page"], other["kind"])] * fits


def sorted_rows(rows):
    return sorted(rows, key=lambda row: tuple(-1 if value is None else value for value in row))


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize("kept", [1, 2, 50])
def test_rows_meet_what_the_page_says(name, kept):
    some = 0
    for seed in range(3):
        found = drawn(seed)
        rows = run(planned(name, kept), found)
        assert sorted_rows(rows) == sorted_rows(rows_told(name, found, kept))
        some += len(rows)
    assert some > 10


FEW = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from([*RELATIONS]), seed=st.integers(0, 999), few=FEW)
def test_where_chunks_end_decides_nothing(name, seed, few):
    found = drawn(seed)
    assert by_unit(run(planned(name), found, few)) == by_unit(run(planned(name), found))


def by_unit(rows):
    """The rows of each unit in their order, of which bounding lets the first ones pass."""
    return {unit: [row for row in rows if row[1] == unit] for unit in (*range(UNITS), None)}


def test_a_planted_order_by_chunks_is_seen(monkeypatch):
    """Pairs that stood as they came, a chunk at a time, would be bounded by what others have."""
    plan, honest = planned("events"), live_joins.joined
    monkeypatch.setattr(live_joins, "joined", lambda *given, late: honest(*given))
    assert not all(
        by_unit(run(plan, found, (7, 1))) == by_unit(run(plan, found, (7, 40)))
        for found in map(drawn, range(12))
    )


def at_the_end_of_a_chunk(honest):
    """What met nothing stands behind all pairs of a chunk, whatever took its place."""

    def come(self, rows, meets):
        alone, by = honest(self, rows, meets)
        return alone, 0 * by + rows[0].num_rows

    return come


def test_a_planted_place_at_the_end_of_a_chunk_is_seen(monkeypatch):
    plan = planned("left events")
    monkeypatch.setattr(Waiting, "come", at_the_end_of_a_chunk(Waiting.come))
    assert not all(
        by_unit(run(plan, found, (7, 7))) == by_unit(run(plan, found, (2, 7)))
        for found in map(drawn, range(12))
    )


@pytest.mark.parametrize("name", RELATIONS)
def test_a_restart_after_any_chunk_gives_the_same_rows(name, tmp_path):
    """At every eighth place, each relation from another one on."""
    found, plan = drawn(3), planned(name)
    expected = run(plan, found)
    for dies in range(1 + 2 * ([*RELATIONS].index(name) % 4), 18, 8):
        (tmp_path / f"{dies}").mkdir()
        deaths = (dies, dies + 1, dies + 5)
        assert run(plan, found, folder=tmp_path / f"{dies}", dies_after=deaths) == expected


def test_a_file_of_rows_that_are_no_longer_kept_is_followed_by_a_shorter_one(tmp_path, monkeypatch):
    monkeypatch.setattr(live_joins, "LEAST_BYTES", 3000)
    for name in ("table", "events"):
        folder = tmp_path / name
        folder.mkdir()
        found, plan = drawn(4, rows=200), planned(name)
        assert run(plan, found, folder=folder, dies_after=(9, 21, 40)) == run(plan, found)
        [kept] = (folder / "joined-0").glob("others-*")
        assert int(kept.name.rpartition("-")[2]) > 1
        assert kept.stat().st_size < 20_000


def without(found, unit):
    """The rows as they would be without a unit: their places stay, and nobody is there."""
    made = []
    for table, steps in found:
        gone = np.asarray(table["user"].fill_null(-1)) == unit
        users = pa.array(np.asarray(table["user"].fill_null(-1)), mask=gone | np.asarray(
            table["user"].is_null()))  # fmt: skip
        made.append((table.set_column(0, "user", users), steps))
    return made


def left_alone(plan, found, unit, **how):
    """Whether the rows of all others come out as they would without a unit, in their order."""
    mine, theirs = run(plan, found, **how), run(plan, without(found, unit), **how)
    kept, rest = ([row for row in rows if row[1] not in (unit, None)] for rows in (mine, theirs))
    return kept == rest


@settings(max_examples=12, deadline=None)
@given(name=st.sampled_from([*RELATIONS]), seed=st.integers(0, 999), unit=st.integers(0, UNITS),
       few=FEW)  # fmt: skip
def test_without_a_unit_the_rows_of_all_others_are_the_same(name, seed, unit, few):
    assert left_alone(planned(name), drawn(seed), unit, few=few)


# ---- planted faults


def all_are_one(honest):
    return lambda columns: honest([pa.array([0] * len(columns[0])), *columns[1:]])


def so_many_of_all(honest):
    """The newest rows stay, whoever they are of: memory that people share."""

    def newest(units, times, most):
        return honest(pa.array([0] * len(units)), times, 3 * most)

    return newest


def so_many_wait(honest):
    """Rows wait for what they may meet, until rows of anybody take their place."""
    return lambda units, *rest: honest(pa.array([0] * len(units)), *rest)


FAULTS = {
    "a row meets kept rows of other people": (joins, "numbered", all_are_one),
    "people share what is kept": (live_joins, "newest", so_many_of_all),
    "people take each other's place": (live_joins, "replaced", so_many_wait),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["table", "left events"])
def test_planted_faults_that_mix_people_are_seen(fault, name, monkeypatch):
    module, what, plant = FAULTS[fault]
    if what == "replaced" and name == "table":
        pytest.skip("no row of a table waits")
    plan = planned(name)
    cases = [(seed, unit) for seed in range(3) for unit in range(UNITS)]
    assert all(left_alone(plan, drawn(seed), unit) for seed, unit in cases)
    monkeypatch.setattr(module, what, plant(getattr(module, what)))
    assert not all(left_alone(plan, drawn(seed), unit) for seed, unit in cases)


def test_a_limit_that_a_restart_forgets_is_seen(tmp_path, monkeypatch):
    found, plan = drawn(3), planned("table", kept=1)
    expected = run(plan, found)
    honest = NewestRows.resume

    def all_of_them(self, folder, size):
        honest(self, folder, size)
        self._held = pa.concat_tables([self._empty, *self._entries()])

    monkeypatch.setattr(NewestRows, "resume", all_of_them)
    assert run(plan, found, folder=tmp_path, dies_after=(8, 14)) != expected


@pytest.mark.parametrize("part", ["what has met a row", "what came out"])
def test_what_a_waiting_row_did_before_a_restart_counts(part, tmp_path, monkeypatch):
    found, plan = drawn(3), planned("left events", kept=50)
    expected = run(plan, found)
    deaths, honest = range(5, 40, 2), Waiting.resume
    assert run(plan, found, folder=tmp_path, dies_after=deaths) == expected

    def forgetful(self, folder, size):
        if part == "what came out":
            self.since = None
        honest(self, folder, size)
        if part == "what has met a row":
            self._held = self._held.set_column(3, "3", pa.array(np.zeros(len(self._held), bool)))

    monkeypatch.setattr(Waiting, "resume", forgetful)
    assert run(plan, found, folder=tmp_path, dies_after=deaths) != expected


def test_kept_rows_that_are_lost_or_changed_are_refused(tmp_path):
    found, plan = drawn(1), planned("table")
    source, inner = opened(plan, found, folder=tmp_path)
    inner[0].step = inner[1].step = 2
    position = [chunk.position for chunk in source.read(None, 100)][-1]
    [path] = (tmp_path / "joined-0").glob("others-*")
    whole = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    for data in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        path.write_bytes(data)
        again, _ = opened(plan, found, folder=tmp_path)
        with pytest.raises(StoreError, match="lost or of another moment"):
            next(again.read(position, 100))


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int32(), pa.float64(), pa.string()])
def test_what_is_no_time_is_refused_by_its_type_before_a_row_comes(kind):
    """A number of 64 bits without a sign stopped a job, if one row of one person was large."""
    clicks, (seen, steps) = drawn(1)
    odd = seen.set_column(2, "at", pa.nulls(len(seen), kind))
    with pytest.raises(PlanError, match="must be timestamp"):
        opened(planned("events"), (clicks, (odd, steps)))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_that_no_calendar_has_stops_nothing(unit):
    at = pa.array([2**63 - 1, -(2**63), 2**62, None, 0]).cast(pa.timestamp(unit, "UTC"))
    found = joins.times_of(pa.table({"at": at}), "at")
    assert found[-1] == 0
    assert np.abs(found).max() <= joins.FAR_US


# ---- what is asked


def asked(options, relation="clicks c JOIN seen s ON c.user = s.user", declared=STREAM):
    return sv.sql(
        f"{declared} SELECT {PRIVATE.format(options)} kind, COUNT(*) AS n FROM {relation}"
        " GROUP BY kind EMIT EVERY INTERVAL 1 HOUR"
    )


WINDOWED = (
    "TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 HOUR) c JOIN seen s ON c.user = s.user"
)
REFUSED = [
    ("integer = TRUE", {}, "join_rows = 1"),
    ("join_rows = 0", {}, "from 1 to 1,000"),
    ("join_rows = 1001", {}, "from 1 to 1,000"),
    ("join_within = INTERVAL 1 HOUR", {}, "give join_rows"),
    ("join_rows = 1, join_within = INTERVAL 1 HOUR", {"declared": TABLE}, "has no times"),
    ("join_rows = 1, join_within = INTERVAL 1 HOUR",
     {"relation": "clicks c JOIN seen s ON c.user = s.user JOIN seen q ON c.user = q.user"},
     "one join of a query"),
    ("join_rows = 1, join_within = INTERVAL 1 HOUR, lateness = INTERVAL 30 MINUTE",
     {"relation": WINDOWED}, "lateness as long as join_within"),
    ("join_rows = 1, join_within = INTERVAL 1 HOUR, lateness = INTERVAL 179 MINUTE",
     {"relation": WINDOWED.replace("JOIN", "LEFT JOIN")}, "as long as twice join_within"),
    ("join_rows = 1, privacy_unit_period = INTERVAL 1 DAY", {}, "leave out privacy_unit_period"),
    ("join_rows = 1", {"relation": "clicks c JOIN (SELECT user, COUNT(*) AS kind FROM seen GROUP BY"
                                   " user) s ON c.user = s.user"}, "columns and WHERE"),
    ("join_rows = 1", {"relation": "clicks c JOIN seen s ON c.page = s.kind"}, "a join before"),
    ("join_rows = 1", {"relation": "(SELECT user, page AS kind FROM clicks)"}, "leave both out"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "more", "reason"), REFUSED)
def test_what_a_join_on_live_data_needs_is_said(options, more, reason):
    with pytest.raises(PlanError, match=reason):
        asked(options, **more)


def test_pairs_in_windows_come_with_enough_lateness():
    options = "join_rows = 1, join_within = INTERVAL 1 HOUR, lateness = INTERVAL 1 HOUR"
    assert "newest row that is kept" in str(asked(options, WINDOWED).explain())
    options = options.replace("lateness = INTERVAL 1", "lateness = INTERVAL 3")
    said = str(asked(options, WINDOWED.replace("JOIN", "LEFT JOIN")).explain())
    assert "comes alone, once twice that time has passed" in said


def test_explain_says_what_is_kept_in_memory():
    options = "join_rows = 2, join_within = INTERVAL 1 HOUR"
    said = str(asked(options).explain())
    assert "per unit in 'seen'" in said
    assert "up to 2 rows in all columns, and as many of the stream; also on disk" in said
    assert "other relation when it comes, at most 1 hour apart" in said


def test_join_rows_is_for_live_data():
    t = pa.table({"user": [1]})
    with pytest.raises(PlanError, match="a join has all rows"):
        sv.sql("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, join_rows = 1,"
               " privacy_unit_column = user) COUNT(*) AS n FROM t JOIN u USING (user)",
               {"t": t, "u": t})  # fmt: skip


def test_python_says_the_same_as_sql():
    columns = {"user": "INT64", "page": "INT64", "ts": "TIMESTAMP"}
    others = {"user": "INT64", "kind": "INT64", "at": "TIMESTAMP"}

    def query(how):
        return (
            sv.files("clicks/", event_time="ts", name="clicks", follow=True, columns=columns)
            .protect("user")
            .join(sv.files("seen/", event_time="at", name="seen", follow=True, columns=others),
                  on="user", how=how)
            .group_by("page").agg(n=sv.count()).bound(max_rows=3)
            .release(budget=sv.Budget(mu=0.5, delta=1e-6), every="1 hour", start="1970-01-01",
                     steps=4, clock="wall", join_rows=2, join_within="1 hour")
        )  # fmt: skip

    for how in ("inner", "left"):
        [step] = query(how).plan.source.steps
        relation = f"clicks c {how} JOIN seen s ON c.user = s.user"
        options = "join_rows = 2, join_within = INTERVAL 1 HOUR"
        [other] = asked(options, relation).plan.source.steps
        assert (step.kept, step.within_us) == (other.kept, other.within_us) == (2, HOUR_US)
        assert step.how == other.how == how
    with pytest.raises(PlanError, match="JOIN or LEFT JOIN of two"):
        assert query("semi").plan


def test_plans_without_limits_are_called_as_before():
    step = joins.OwnJoin(other=sv.memory(pa.table({"user": [1]})).source)
    plan = planned("union")
    same = replace(plan, source=replace(plan.source, steps=(step,)))
    other = replace(plan, source=replace(plan.source, steps=(replace(step, kept=1),)))
    assert "kept" not in str(same.fingerprint)
    assert same.fingerprint != other.fingerprint


def test_a_source_whose_rows_change_alone_hears_where_the_state_is(tmp_path):
    heard = []

    class Hearing(Dripping):
        def keep_in(self, folder):
            heard.append(folder)

        def committed(self, position):
            heard.append(position)

    inner = Hearing(pa.table({"user": [1]}), np.array([1]), 1)
    source = MappedSource(inner, lambda rows: rows, lambda schema, _: schema.names)
    source.keep_in(tmp_path)
    source.committed("3")
    assert heard == [tmp_path, "3"]


@pytest.mark.parametrize("declared", ["", "(user STRING, page STRING, ts TIMESTAMP)"])
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "starts again"])
@pytest.mark.parametrize("header", ["page,note,user,ts", "user,more,note,page,ts"])
def test_another_first_file_changes_no_column_that_is_kept(tmp_path, declared, again, header):
    """What is kept was taken by the places of columns, which the first file decides."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "5.csv").write_text("user,page,note,ts\nu1,p,n,2026-01-01 00:10:00\n")
    streams = (
        f"CREATE STREAM {name} {declared} WITH (source = 'files', path = '{tmp_path / name}',"
        " format = 'csv', follow = TRUE, event_time = 'ts');"
        for name in "ab"
    )
    plan = sv.sql(
        f"{' '.join(streams)} SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
        " privacy_unit_column = user, join_rows = 2, join_within = INTERVAL 1 HOUR, steps = 9,"
        " clock = 'wall', start = '2026-01-01') page, COUNT(*) AS n FROM"
        " (SELECT x.user, y.page FROM a AS x JOIN b AS y ON x.user = y.user) GROUP BY page"
        " EMIT EVERY INTERVAL 1 HOUR"
    ).plan
    source = open_rows(plan.source)
    source.keep_in(tmp_path / "state")
    position = list(source.read(None, 9))[-1].position
    row = {"user": "u1", "page": "q", "note": "o", "more": "m", "ts": "2026-01-01 00:20:00"}
    for name in "ab":
        line = ",".join(row[column] for column in header.split(","))
        (tmp_path / name / "1.csv").write_text(f"{header}\n{line}\n")
    if again:
        source = open_rows(plan.source)
        source.keep_in(tmp_path / "state")
    chunks = source.read(position, 9)
    found = [(row["x:page"], row["y:page"]) for one in chunks for row in one.rows.to_pylist()]
    assert sorted(found) == [("p", "q"), ("q", "p"), ("q", "q")]
