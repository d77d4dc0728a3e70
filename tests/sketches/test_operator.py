"""Sketch aggregates as operators: bounded, replayable, resumable."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest

from streamveil.batch import Batch
from streamveil.calendars import Cells
from streamveil.compiler.sketch import sized_finder, sized_sketch, sized_texts
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow import Operator
from streamveil.dataflow.rows import RowProgram
from streamveil.dataflow.windows import Schedule
from streamveil.errors import PlanError, StoreError
from streamveil.release_metadata import NOTE
from streamveil.sketches.operator import SketchQuery
from tests.schedules import fixed_schedule

BUDGET = Budget(epsilon=2, delta=1e-6)
STEPS = 6
WHOLE = Schedule(steps=STEPS)
TUMBLING = fixed_schedule(every_us=10, start_us=0, size_us=20, steps=STEPS)


def bind(_schema):
    return RowProgram(
        unit=lambda rows: rows["u"].combine_chunks(),
        event_us=lambda rows: rows["ts"].combine_chunks(),
        where=None,
        keys=(lambda rows: rows["k"].combine_chunks(),),
        values=(),
    )


def long_texts(length=10, memory=2_000_000, triggers=STEPS):
    return sized_texts(memory=memory, budget=BUDGET, triggers=triggers, length=length,
                       protects=Neighbours("u", bound=3))  # fmt: skip


def query(*, k=0, schedule=WHOLE, rows=3, keys=(1, 2, 3), **fields):
    options = dict(budget=BUDGET, triggers=schedule.triggers, protects=Neighbours("u", bound=rows))
    sketch = sized_sketch(memory=300_000, **options)
    if k:
        sketch = sized_finder(bits=16, memory=2_000_000, **options)
    usual = dict(
        job="job", bind=bind, schedule=schedule, periods=None, name="n", key_name="k", k=k,
        bounds=Bounds(max_rows=rows), sketch=sketch, keys=() if k else keys,
    )  # fmt: skip
    return SketchQuery(**(usual | fields))


def batches(n=3000, keys=None, seed=0):
    rng = np.random.default_rng(seed)
    for step in range(1, STEPS + 1):
        key = rng.choice([1, 2, 3, 500, 999], n, p=[0.5, 0.25, 0.15, 0.05, 0.05])
        table = pa.table({
            "u": rng.integers(0, 50_000, n),
            "ts": rng.integers(10 * (step - 1), 10 * step, n),
            "k": pa.array(key.tolist()) if keys is None else keys(key),
        })  # fmt: skip
        half = n // 2
        yield Batch(table.slice(0, half), step, False, "")
        yield Batch(table.slice(half), step, True, "")


def run(operator, noise, stream, hook=lambda state, _delta: state):
    state, out = operator.init(), []
    for batch in stream:
        delta = operator.fold(state, batch, noise)
        state = hook(state, delta)
        if batch.closes_step:
            out += operator.release(state, batch.step, noise)
    return out, state


def expected(schedule, rows=3, seed=0):
    """Counts by (window, key) with bounding in plain Python, and the rows over the bound."""
    seen, counts, over = {}, {}, 0
    for batch in batches(seed=seed):
        for u, ts, k in zip(
            *(batch.rows[name].to_pylist() for name in ("u", "ts", "k")), strict=True
        ):
            seen[u] = seen.get(u, 0) + 1
            if seen[u] > rows:
                over += 1
                continue
            at = (0 if schedule.whole else ts // 20, k)
            counts[at] = counts.get(at, 0) + 1
    return counts, over


NEVER_ANSWERED = {  # keys, how many to find, and what is said of them
    "a key that no row has": (("a", None), 0, "NULL is none"),
    "keys of several types": ((1, 1.5), 0, "all of one kind; not float, int"),
    "an integer beyond 64 bits": ((2**64,), 0, "must fit 64 bits"),
    "more keys than a search keeps": ((), 2**19 + 1, "524,288 keys at most"),
}


@pytest.mark.parametrize("name", NEVER_ANSWERED)
def test_what_could_never_be_answered_is_refused_before_it_is_paid(name):
    keys, k, said = NEVER_ANSWERED[name]
    with pytest.raises(PlanError, match=said):
        query(k=k, keys=keys)


@pytest.mark.parametrize("schedule", [WHOLE, TUMBLING], ids=["whole", "tumbling"])
def test_without_noise_it_counts_bounded_rows(schedule):
    operator = query(schedule=schedule)
    assert isinstance(operator, Operator)
    releases, state = run(operator, SilentNoise(), batches())
    counts, over = expected(schedule)
    final = {release.window: release for release in releases}
    for window, release in final.items():
        for key, value in zip(
            release.table["k"].to_pylist(), release.table["n"].to_pylist(), strict=True
        ):
            assert value == counts[window, key]
    assert operator.counters(state)["over the contribution bound"] == over
    assert over > 0
    names = ["k", "n", "n_sd", "n_low", "n_high"]
    names += [] if schedule.whole else ["window_start", "window_end"]
    assert releases[0].table.column_names == [*names, "trigger"]


def test_every_trigger_shows_every_public_key():
    releases, _ = run(query(keys=(7, 1, 123)), SeededNoise(1), batches())
    assert [release.table["k"].to_pylist() for release in releases] == [[1, 7, 123]] * STEPS
    assert [release.trigger for release in releases] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("k", [0, 3])
def test_estimates_lie_near_the_truth(k):
    counts, _ = expected(WHOLE)
    releases, _ = run(query(k=k), SeededNoise(1), batches())
    table = releases[-1].table
    found = dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert set(found) == {1, 2, 3}
    for key, value in found.items():
        assert abs(value - counts[0, key]) < 6 * table["n_sd"][0].as_py()


def test_intervals_of_little_noise_reach_whole_steps_of_it():
    """At a deviation of 0.58 an interval of 0.98 to each side missed one count in three."""
    finder = sized_finder(bits=12, memory=2_000_000, triggers=1, protects=Neighbours("u", bound=1),
                          budget=Budget(epsilon=16, delta=1e-6))  # fmt: skip
    asked = query(k=3, rows=1, schedule=Schedule(steps=1), sketch=finder, confidence=0.9)
    (release,), _ = run(asked, SeededNoise(1), [*batches()][:2])
    assert release.table["n_sd"][0].as_py() < 0.6
    reach = (release.table[name].to_numpy() for name in ("n_low", "n", "n_high"))
    assert (np.diff([*reach], axis=0) == 1).all()


@pytest.mark.parametrize("k", [0, 3])
def test_keys_may_be_missing_only_where_they_are_searched(k):
    (release, *_), _ = run(query(k=k), SilentNoise(), batches())
    assert ("keys of few rows are missing" in said(release)) == ("keys" in said(release)) == bool(k)
    # of 300 keys alike, three of thirty intervals held
    assert ("chosen by their noisy numbers" in said(release)) == bool(k)


def said(release):
    return release.table.schema.metadata[NOTE].decode()


def addresses(key):
    return pa.array([f"/é/{int(value) ** 3}" for value in key])


@pytest.mark.parametrize(
    ("k", "long", "schedule"),
    [(k, False, schedule) for k in (0, 3) for schedule in (WHOLE, TUMBLING)]
    + [(3, True, TUMBLING)],
    ids=["given", "given-windows", "found", "found-windows", "texts"],
)
def test_replay_and_resume_give_the_same_bytes(k, long, schedule):
    more, keys = {}, None
    if long:
        more = {"sketch": long_texts(triggers=schedule.triggers), "text_length": 10}
        keys = addresses
    operator = query(k=k, schedule=schedule, **more)
    whole, _ = run(operator, SeededNoise(3), batches(keys=keys))
    saved = {}

    def restart(state, _delta):
        return operator.load({n: a.copy() for n, a in operator.save(state).items()})

    resumed, _ = run(operator, SeededNoise(3), batches(keys=keys), restart)
    state = operator.init()
    replayed = []
    for batch in batches(keys=keys):
        twin = operator.load(operator.save(state)) if saved else operator.init()
        delta = operator.fold(twin, batch, SeededNoise(3))
        saved = {n: a.copy() for n, a in delta.items()}
        operator.apply(state, saved)
        if batch.closes_step:
            replayed += operator.release(state, batch.step, SeededNoise(3))
    for one, two, three in zip(whole, resumed, replayed, strict=True):
        assert one.table.equals(two.table)
        assert one.table.equals(three.table)


def test_windows_do_not_share_noise():
    releases, _ = run(query(schedule=TUMBLING, keys=(4_000, 4_001)), SeededNoise(1), batches(n=10))
    values = [tuple(r.table["n"].to_pylist()) for r in releases if r.trigger == 1]
    assert len(set(values)) == len(values) > 1


def test_text_keys_count_and_are_found_by_their_first_bytes():
    def names(key):
        return pa.array([f"k{int(value)}" for value in key])

    counted, _ = run(query(keys=("k1", "k9")), SilentNoise(), batches(keys=names))
    counts, _ = expected(WHOLE)
    assert counted[-1].table["n"].to_pylist()[0] == counts[0, 1]
    sketch = sized_finder(memory=3_000_000, bits=24, budget=BUDGET, triggers=STEPS,
                          protects=Neighbours("u", bound=3))  # fmt: skip
    finder = query(k=2, sketch=sketch, text_length=3)
    found, _ = run(finder, SeededNoise(1), batches(keys=names))
    assert found[-1].table["k"].to_pylist() == ["k1", "k2"]
    with pytest.raises(PlanError, match="text_length"):
        run(query(k=2), SeededNoise(1), batches(keys=names))
    finder = query(k=2, sketch=long_texts(), text_length=10)
    found, _ = run(finder, SeededNoise(1), batches(keys=addresses))
    assert found[-1].table["k"].to_pylist() == ["/é/1", "/é/8"]
    assert abs(found[-1].table["n"][0].as_py() - counts[0, 1]) < 6 * finder.sd(STEPS)
    with pytest.raises(PlanError, match="text_length"):
        query(k=2, sketch=long_texts(), text_length=11)


def test_bad_rows_are_counted_and_dropped():
    def odd(key):
        return pa.array([None if v == 500 else -5 if v == 999 else int(v) for v in key])

    releases, state = run(query(k=2), SeededNoise(1), batches(keys=odd))
    health = query(k=2).counters(state)
    assert health["null key"] > 0
    assert health["key out of range"] > 0
    assert set(releases[-1].table["k"].to_pylist()) == {1, 2}


def test_the_guarantee_covers_all_windows_and_memory_is_known_before():
    operator = query(schedule=TUMBLING)
    assert operator.guarantee.epsilon(1.001e-6) <= 2
    assert operator.guarantee.loss.chance > 0
    assert operator.nbytes >= operator.sketch.nbytes
    assert query().nbytes <= 300_000
    assert query(k=3).nbytes <= 2_000_000
    assert operator.sd(1) > 0


def test_periods_that_share_no_window_compose_and_others_are_a_group():
    from dataclasses import replace

    day = Neighbours("u", bound=3, period=timedelta(microseconds=40))
    shared = query(periods=Cells(length_us=40))
    shared = replace(shared, sketch=replace(shared.sketch, protects=day))
    apart = query(periods=Cells(length_us=40), schedule=TUMBLING)
    apart = replace(apart, sketch=replace(apart.sketch, protects=day))
    assert not shared.guarantee.separate
    assert apart.guarantee.separate
    year = [one.guarantee.over(365) for one in (shared, apart)]
    assert year[0].loss.rho() > 300 * year[1].loss.rho()
    assert year[1].loss.gaussian == 365 * apart.guarantee.loss.gaussian


@pytest.mark.parametrize(
    ("fields", "words"),
    [(dict(k=2, keys=(1,)), "given keys"), (dict(bounds=Bounds(max_rows=9)), "max_rows"),
     (dict(schedule=Schedule(steps=9)), "horizon")],
)  # fmt: skip
def test_plans_that_do_not_fit_are_refused(fields, words):
    from dataclasses import replace

    with pytest.raises(PlanError, match=words):
        replace(query(), **fields)


def test_too_little_memory_and_foreign_states_are_refused():
    with pytest.raises(PlanError, match="bytes"):
        sized_sketch(memory=10, budget=BUDGET, triggers=3, protects=Neighbours("u"))
    with pytest.raises(PlanError, match="bytes"):
        sized_finder(memory=10, budget=BUDGET, triggers=3, protects=Neighbours("u"))
    operator = query()
    _, state = run(operator, SilentNoise(), batches(n=10))
    saved = operator.save(state)
    del saved["step"]
    with pytest.raises(StoreError):
        operator.load(saved)
