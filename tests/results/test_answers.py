"""Derived answers: exact without noise, and with intervals that cover as often as they say."""

import json
import re
from fractions import Fraction
from unittest.mock import ANY

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from scipy import stats

import streamveil as sv
from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch, Moment
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.sinks import FilesSink
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.noisy import public
from streamveil.dashboard.view import tables_of
from streamveil.errors import PlanError, SourceError
from streamveil.release_metadata import FACTS, NOTE, missing, read_facts
from streamveil.results import noise as noises
from streamveil.results.answers import NOT_ALLOWED, UNKNOWN, Answers, WeightedSum
from streamveil.results.charts import bias_of
from streamveil.results.intervals import ratio
from streamveil.results.joint import Cell, Ends, Joint
from streamveil.results.releases import Releases
from tests.released import made
from tests.results.streams import DESIGNS, KEYS, TRIGGERS, query, released, truth
from tests.schedules import fixed_schedule
from tests.statistics import (
    ALPHA,
    assert_fits,
    assert_rate,
    assert_rejects,
    assert_rejects_rate,
    gaussian,
)

END, SINCE = (1, 6), (1, 5)


def scores(derived, exact, name):
    """Errors in units of the deviation that is stated for them."""
    table = derived.table
    error = table[name].to_numpy() - exact[table["k"].to_numpy()]
    return error / table[name + "_sd"].to_numpy()


@pytest.mark.parametrize("design", DESIGNS)
def test_differences_have_the_stated_noise(design, monkeypatch):
    answers = sv.answers(released(design))
    exact = truth("v")[END] - truth("v")[SINCE]
    found = scores(answers.difference("v", END, SINCE), exact, "v")
    assert len(found) > KEYS / 3
    assert_fits(found, gaussian(1), ALPHA)
    ignored = Joint.covariance
    monkeypatch.setattr(  # planted: releases taken for independent
        Joint, "covariance",
        lambda self, a, b: ignored(self, a, b) if a == b else ignored(
            self, a, b._replace(moment=b.moment._replace(window=-1))),
    )  # fmt: skip
    assert_rejects(scores(answers.difference("v", END, SINCE), exact, "v"), gaussian(1), ALPHA)


@pytest.mark.parametrize("design", ["gaussian", "honaker"])
def test_late_keys_have_less_noise_and_it_is_stated(design, monkeypatch):
    answers = sv.answers(released(design))
    last = answers.releases.table(answers.moments[-1])
    keys = last.filter(pa.compute.equal(last["opened"], 5))["k"].to_numpy()
    end, exact = (0, 6), truth("v")[END] - truth("v")[0, 6]
    found = answers.difference("v", END, end).table
    mine = np.isin(found["k"].to_numpy(), keys)
    error = (found["v"].to_numpy() - exact[found["k"].to_numpy()])[mine]
    assert_fits(error / found["v_sd"].to_numpy()[mine], gaussian(1), ALPHA)
    monkeypatch.setattr(Joint, "opened", lambda self, *_: np.ones(len(self.keys), np.int64))
    wrong = answers.difference("v", END, end).table["v_sd"].to_numpy()[mine]
    assert not np.allclose(wrong, found["v_sd"].to_numpy()[mine], rtol=0.01)


@pytest.mark.parametrize("design", DESIGNS)
def test_every_lane_of_the_query_is_right(design):
    answers = sv.answers(released(design))
    exact = truth("n")[END] - truth("n")[SINCE]
    derived = answers.difference("n", END, SINCE)
    sd = np.sqrt(derived.table["n_sd"].to_numpy() ** 2 + 1 / 12)
    error = derived.table["n"].to_numpy() - exact[derived.table["k"].to_numpy()]
    jitter = np.random.default_rng(0).uniform(-0.5, 0.5, len(error))  # of rounded numbers
    assert_fits((error + jitter) / sd, gaussian(1), ALPHA)
    same = answers.ratio("v", "w", END).table  # one lane: its noise cancels
    np.testing.assert_allclose(same["ratio"].to_numpy(), 1)
    np.testing.assert_allclose(same["ratio_sd"].to_numpy(), 0, atol=1e-6)


@pytest.mark.parametrize("design", ["gaussian", "weights"])
def test_sums_over_recent_triggers_cross_windows(design):
    answers = sv.answers(released(design))
    exact = truth("v")[1, 3] + truth("v")[0, TRIGGERS] - truth("v")[0, 2]
    derived = answers.last("v", 7, (1, 3))
    assert any("left out" in note for note in derived.notes)
    assert_fits(scores(derived, exact, "v"), gaussian(1), ALPHA)
    inside = truth("v")[1, 6] - truth("v")[1, 4]
    assert_fits(scores(answers.last("v", 2), inside, "v"), gaussian(1), ALPHA)
    assert (
        answers.last("v", 3, (1, 3))
        .table["v"]
        .equals(answers.releases.table(answers.moments[TRIGGERS + 2])["v"])
    )


@pytest.mark.parametrize("design", ["gaussian", "weights"])
def test_the_release_before_the_first_of_a_window_is_the_last_of_the_window_before(design):
    answers = sv.answers(released(design))
    exact = truth("v")[1, 1] - truth("v")[0, TRIGGERS]
    assert_fits(scores(answers.difference("v", (1, 1)), exact, "v"), gaussian(1), ALPHA)
    with pytest.raises(PlanError, match="no release is just before the first"):
        answers.difference("v", (0, 1))


@pytest.mark.parametrize("design", ["gaussian", "weights"])
def test_means_over_windows_have_the_noise_of_each(design, monkeypatch):
    answers = sv.answers(released(design))
    exact = (truth("v")[0, TRIGGERS] + truth("v")[END]) / 2
    derived = answers.moving("v", 2)
    assert_fits(scores(derived, exact, "v"), gaussian(1), ALPHA)
    once = answers.moving("v", 1, END)
    released_sd = answers.releases.table(answers.moments[-1])["v_sd"]
    np.testing.assert_allclose(once.table["v_sd"], released_sd)
    real = WeightedSum.covariance
    monkeypatch.setattr(  # planted: as if both windows had one noise
        WeightedSum, "covariance",
        lambda self, joint, part: Ends(*(2 * end for end in real(self, joint, part))),
    )  # fmt: skip
    assert_rejects(scores(answers.moving("v", 2), exact, "v"), gaussian(1), ALPHA)
    with pytest.raises(sv.StreamveilError, match="window"):
        answers.moving("v", 3)


@pytest.mark.parametrize("design", ["gaussian", "public"])
def test_ratios_cover_as_often_as_they_say(design):
    answers, level = sv.answers(released(design)), 0.9
    for call, exact in (
        (lambda: answers.ratio("v", "n", END, confidence=level), truth("v")[END] / truth("n")[END]),
        (lambda: answers.ratio("v", "v", END, SINCE, confidence=level),
         truth("v")[END] / truth("v")[SINCE]),
    ):  # fmt: skip
        table = call().table
        true = exact[table["k"].to_numpy()]
        low, high = table["ratio_low"].to_numpy(), table["ratio_high"].to_numpy()
        kept = np.isfinite(true)
        hits = int(((low <= true) & (true <= high))[kept].sum())
        bounded = np.isfinite(low[kept]).mean()
        assert bounded > 0.5
        share = hits / kept.sum()
        assert share > level - 0.03
        if bounded == 1:
            assert_rate(hits, int(kept.sum()), level)


def test_fieller_covers_exactly_and_naive_intervals_do_not():
    rng, n, level = np.random.default_rng(5), 40_000, 0.9
    x, y = 2.0, 8.0  # the bottom is two deviations from 0
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    noise = rng.multivariate_normal([0, 0], cov, n)
    bottom, top = x + noise[:, 0], y + noise[:, 1]
    ones, z = np.ones(n), stats.norm.ppf((1 + level) / 2)
    both = 0.6 * ones, 0.6 * ones
    found = ratio((top, 2 * ones), (bottom, ones), both, z)
    # by its definition the set holds the true ratio with exactly this probability; an unbounded
    # interval is its hull and can only hold more
    inside = (found.low <= y / x) & (y / x <= found.high)
    r = y / x
    in_set = (top - r * bottom) ** 2 <= z**2 * (2 - 2 * r * 0.6 + r**2)
    assert_rate(int(in_set.sum()), n, level)
    assert (inside >= in_set).all()
    assert (inside == in_set)[np.isfinite(found.low)].all()
    naive = np.abs(found.value - y / x) <= z * found.sd
    assert_rejects_rate(int(naive.sum()), n, level)
    wide = ratio((top, 2 * ones), (bottom, ones), (-ones, ones), z)
    assert (wide.low <= found.low).all()
    assert (wide.high >= found.high).all()


def test_sums_over_recent_triggers_need_the_release_before_them():
    some = [one for one in released("gaussian") if (one.window, one.trigger) >= (0, 3)]
    with pytest.raises(PlanError, match="no release 2 of window 1970-01-01"):
        sv.answers(some).last("v", 7, (1, 3))


@pytest.mark.parametrize("design", DESIGNS)
def test_without_noise_answers_are_plain_arithmetic(design):
    answers = sv.answers(released(design, silent=True))
    n, v = truth("n"), truth("v")
    table = answers.difference("n", END, SINCE).table
    keys = table["k"].to_numpy()
    np.testing.assert_array_equal(table["n"].to_numpy(), (n[END] - n[SINCE])[keys])
    table = answers.last("n", 8).table
    keys = table["k"].to_numpy()
    np.testing.assert_array_equal(table["n"].to_numpy(), (n[1, 6] + n[0, TRIGGERS] - n[0, 4])[keys])
    table = answers.ratio("v", "n", END).table
    keys = table["k"].to_numpy()
    np.testing.assert_allclose(table["ratio"].to_numpy(), (v[END] / n[END])[keys], atol=1e-6)


def test_what_is_not_known_is_bounded_and_said(monkeypatch):
    answers = sv.answers(released("weights")[-2:])  # weights of earlier triggers are missing
    found = answers.difference("v")
    assert UNKNOWN in found.notes
    whole = sv.answers(released("weights")).difference("v")
    assert UNKNOWN not in whole.notes
    assert (found.table["v_sd"].to_numpy() > whole.table["v_sd"].to_numpy()).all()
    assert found.table["v"].equals(whole.table["v"])


def test_means_change_by_the_delta_method():
    answers = sv.answers(released("gaussian"))
    found = answers.difference("mean", END, SINCE)
    assert any("delta method" in note for note in found.notes)
    mean = {at: truth("v")[at] / np.maximum(truth("n")[at], 1) for at in (END, SINCE)}
    error = scores(found, mean[END] - mean[SINCE], "mean")
    assert 0.8 < np.median(np.abs(error)) / stats.norm.ppf(0.75) < 1.25


def small_groups(measure, **options):
    """Two windows of two releases of 1,000 small groups, and the values of each window."""
    keys, units = 1_000, 40
    rng = np.random.default_rng(5)
    values = np.minimum(rng.exponential(1.0, (4, keys, units // 2)), 10)
    key = np.broadcast_to(np.arange(keys)[None, :, None], values.shape)
    at = np.broadcast_to(np.arange(4)[:, None, None] * 10, values.shape)
    rows = pa.table({"u": np.arange(values.size), "k": key.ravel(), "v": values.ravel(),
                     "at": pa.array(at.ravel(), pa.timestamp("us"))})  # fmt: skip
    asked = (
        sv.memory(rows, event_time="at", name="small").protect("u")
        .window(sv.tumble("20 microseconds")).group_by("k", keys=sv.public(list(range(keys))))
        .agg(x=measure, n=sv.count()).bound(max_rows=1)
        .release(every="10 microseconds", start="1970-01-01", steps=4, **options)
    )  # fmt: skip
    batches = [
        Batch(rows.slice(step * rows.num_rows // 4, rows.num_rows // 4), step + 1, True, "{}")
        for step in range(4)
    ]
    found = sv.answers(unbroken(compile_plan(asked.plan), batches, SeededNoise(7)))
    return found, [np.concatenate(pair, axis=1) for pair in (values[:2], values[2:])]


def share_held(derived, name, exact):
    """How many intervals hold the exact number."""
    low, high = (derived.table[name + end].to_numpy() for end in ("_low", "_high"))
    return np.mean((low <= exact) & (exact <= high))


@pytest.mark.parametrize(
    ("measure", "exact"),
    [
        (sv.quantile("v", 0.9, bounds=(0, 10)), lambda v: np.quantile(v, 0.9, axis=1)),
        (sv.stddev("v", bounds=(0, 10)), lambda v: v.std(axis=1, ddof=1)),
    ],
)
def test_errors_that_are_not_centred_do_not_average_out(measure, exact):
    answers, (before, now) = small_groups(measure, budget=sv.Budget(epsilon=4, delta=1e-6))
    one, two = exact(before), exact(now)
    assert share_held(answers.moving("x", 2), "x", (one + two) / 2) > 0.97
    assert (
        share_held(answers.moving("x", 2, confidence=Fraction(1, 2)), "x", (one + two) / 2) > 0.97
    )
    assert share_held(answers.difference("x", (1, 2), (0, 2)), "x", two - one) > 0.97
    assert share_held(answers.ratio("x", "n"), "ratio", two / 40) > 0.96


@pytest.mark.parametrize(
    ("measure", "exact"),
    [
        (sv.avg("v", bounds=(0, 10)), lambda v: v.mean(axis=1)),
        (sv.sum("v / 100", bounds=(0, 0.1)), lambda v: v.sum(axis=1) / 100),
    ],
)
def test_rounding_is_within_what_is_said_of_rounded_numbers(measure, exact):
    """Of 1,000 true intervals at 95 %, fewer than 925 hold with a chance below 3e-4."""
    answers, (_, now) = small_groups(
        measure, budget=sv.Budget(epsilon=60, delta=1e-6), integer=True
    )
    arrived = exact(now) - exact(now[:, :20])
    assert share_held(answers.difference("x", (1, 2), (1, 1)), "x", arrived) > 0.925


def test_nothing_is_said_of_thresholds_where_groups_are_public_or_of_rows_that_are_not_in_it():
    budget = sv.Budget(epsilon=2, delta=1e-6)
    raised, _ = small_groups(sv.count("v"), budget=budget, monotone=True)
    assert not any("threshold" in note for note in raised.last("n", 1).notes)
    wide, _ = small_groups(sv.count("v"), budget=budget, intervals="true")
    assert any("three times its share" in note for note in wide.notes)
    notes = wide.last("n", 1).notes
    assert any(NOT_ALLOWED in note for note in notes)
    assert not any("three times its share" in note for note in notes)


GROUPS = [
    ["007", "7", "12"], ["2026-01-01", "2026-01-02", None], ["true", "false"], ["", None, "NA"],
    ["null", None], ["1.0", "1.00"], ["2026-01-01 10:00:00", "x\n\"y"], [None, -7, 2**62],
    [float("nan"), float("inf"), None, 0.1], [True, None],
]  # fmt: skip


@pytest.mark.parametrize("groups", GROUPS, ids=str)
@pytest.mark.parametrize("kind", ["csv", "json"])
def test_groups_are_read_from_files_as_they_were(kind, groups, tmp_path):
    """A text that looks like another type became it: groups 007 and 7 were one."""
    table = pa.table({"place": groups, "n": [*range(len(groups))]})
    FilesSink(str(tmp_path), kind).write("job", made(table))
    found = sv.read(tmp_path).table
    assert found.column_names == ["place", "n"]
    assert str(found["place"].to_pylist()) == str(groups)


def test_times_are_read_from_csv_as_they_were(tmp_path):
    times = pa.array([-(10**15), None, 10**15], pa.timestamp("us", "UTC"))
    days = times.cast(pa.date32(), safe=False)
    table = pa.table({"window_start": times, "time": times, "day": days, "n": [1, 2, 3]})
    FilesSink(str(tmp_path), "csv").write("job", made(table))
    found = sv.read(tmp_path).table
    assert [found[name].to_pylist() for name in ("time", "day")] == [
        times.to_pylist(), days.to_pylist()
    ]  # fmt: skip


@pytest.mark.parametrize("measure", [sv.count(), sv.sum("u")], ids=["noise", "bounds"])
def test_a_query_does_not_tell_what_a_look_chose(measure, tmp_path):
    rows = {"u": np.arange(6_000) % 600, "k": ["a", "b"] * 3_000}
    looking = (
        sv.memory(rows).protect("u").group_by("k").agg(n=measure)
        .release(every=sv.rows(1_000), steps=6, budget=sv.Budget(epsilon=4, delta=1e-6), name="job")
    )  # fmt: skip
    sink = FilesSink(str(tmp_path / "csv"), "csv")
    for release in looking.run(state=tmp_path / "state"):
        sink.write("job", release)
    place = tmp_path / "csv" / "job"
    plain = sv.answers(tmp_path / "state").last("n", 3).table
    for where in (tmp_path / "state", place):
        told = sv.answers(where, query=looking).last("n", 3).table
        assert told["n_sd"].to_pylist() == plain["n_sd"].to_pylist()
    for about in place.rglob("metadata=*"):
        about.unlink()
    with pytest.raises(PlanError, match="a look at the rows chose the noise"):
        sv.answers(place, query=looking)


@pytest.mark.parametrize("design", ["gaussian", "public"])
def test_files_of_a_sink_answer_like_releases(design, tmp_path):
    memory = sv.answers(released(design))
    for kind in ("parquet", "csv"):
        sink = FilesSink(str(tmp_path / kind), kind)
        for release in released(design):
            sink.write("job", release)
    parquet = sv.answers(tmp_path / "parquet")
    assert parquet.difference("v", END, SINCE).table.equals(
        memory.difference("v", END, SINCE).table
    )
    beside = sv.answers(tmp_path / "csv")
    assert beside.difference("v", END, SINCE).notes == memory.difference("v", END, SINCE).notes
    told = []
    for about in (tmp_path / "csv").rglob("metadata=*"):
        told.append(json.loads(about.read_text())["notes"])
        about.unlink()
    assert sorted(told) == sorted(missing(one.table.schema) for one in released(design))
    bare = sv.answers(tmp_path / "csv" / "job").difference("v", END, SINCE)
    assert UNKNOWN in bare.notes
    told = sv.answers(tmp_path / "csv" / "job", query=query(design)).difference("v", END, SINCE)
    np.testing.assert_allclose(told.table["v_sd"], memory.difference("v", END, SINCE).table["v_sd"])
    assert (bare.table["v_sd"].to_numpy() > told.table["v_sd"].to_numpy()).all()
    both = sv.answers(tmp_path / "csv" / "job", query=query(design))
    assert set(memory.top("n", 3).notes) - set(both.top("n", 3).notes) == {
        missing(released(design)[-1].table.schema, ["n"])[0]
    }
    spans = [each.last("v", 7, (1, 3)).table["v"].to_numpy() for each in (both, memory)]
    np.testing.assert_allclose(*spans)


def test_questions_without_an_answer_say_why(tmp_path):
    answers = sv.answers(released("gaussian"))
    name = answers.releases.named(answers.moments[-1])
    assert name.startswith("1970-01-01T")
    for ask, words in (
        (lambda: answers.difference("m"), "is not a number here"),
        (lambda: answers.difference("n", (1, 9)), f"window {name} has triggers 1 to 6"),
        (lambda: answers.difference("n", (0, 1)), "just before the first of window 1970-01-01"),
        (lambda: answers.moving("n", 3), f"of 2 windows in a row up to {name}, not of 3"),
        (lambda: answers.difference("n", 3), "name a release by"),
        (lambda: answers.last("n", 0), "at least 1"),
        (lambda: answers.last("n", 99), "at most 12"),
        (lambda: answers.last("mean", 2), "not a total"),
        (lambda: answers.last("n", 10**20), "at most 12"),
        (lambda: answers.top("n", 0), "at least 1"),
        (lambda: answers.top("n", 1, hidden=10**19), "hidden must be at most"),
        (lambda: answers.difference("n", confidence=1.0), "confidence"),
    ):
        with pytest.raises(PlanError, match=words):
            ask()
    with pytest.raises(SourceError, match="no folder"):
        sv.answers(tmp_path / "nothing")
    with pytest.raises(SourceError, match="no release"):
        sv.answers([])


def test_clamped_numbers_are_read_back(monkeypatch):
    plain = sv.answers(released("public")).difference("v", END, SINCE).table
    clamped = []
    for release in released("public"):
        table = release.table
        for name in ("v", "v_low", "v_high"):
            cells = np.maximum(table[name].to_numpy(), 0)
            table = table.set_column(table.column_names.index(name), name, pa.array(cells))
        clamped.append(made(table, release.window, release.trigger, release.step))
    answers = sv.answers(clamped)
    next(one for one in answers.releases.facts["outputs"] if one["name"] == "v")["non_negative"] = (
        True
    )
    back = answers.difference("v", END, SINCE).table["v"].to_numpy()
    np.testing.assert_allclose(np.median(np.abs(back - plain["v"].to_numpy())), 0, atol=1e-9)
    naive = clamped[-2].table["v"].to_numpy() - clamped[-4].table["v"].to_numpy()
    assert np.abs(naive - plain["v"].to_numpy()).max() > 1


def test_known_mixes_refuse_steps_beyond_the_horizon():
    counter = sv.counters.BltCounter(horizon=4, sigma=1)
    with pytest.raises(ValueError, match="between 1 and 4"):
        noises.known_mix(counter, 5)


def test_a_query_without_groups_is_one_row():
    table = pa.table({"u": np.arange(900), "v": np.linspace(0, 1, 900)})
    query = (
        sv.memory(table, name="all").protect("u").agg(n=sv.count(), v=sv.sum("v", bounds=(0, 1)))
        .bound(max_rows=1)
        .release(every=sv.rows(300), steps=3, budget=sv.Budget(mu=1, delta=1e-6))
    )  # fmt: skip
    batches = [Batch(table.slice(300 * i, 300), i + 1, True, "{}") for i in range(3)]
    answers = sv.answers(unbroken(compile_plan(query.plan), batches, SilentNoise()))
    found = answers.difference("n", 3, 1).table
    assert found.column_names == ["n", "n_sd", "n_low", "n_high"]
    assert found["n"].to_pylist() == [600]
    assert answers.ratio("v", "n").table.num_rows == 1
    assert answers.top("n", 1).table["certain"].to_pylist() == [True]


def in_a_row(lateness, windows):
    """Releases without rows of windows of three steps, and the moments that were read."""
    schedule = fixed_schedule(every_us=10, size_us=30, slide_us=30, lateness_us=lateness)
    table = pa.table({"k": ["a"], **{f"n{end}": [0.0] for end in ("", "_sd", "_low", "_high")}})
    facts = {"version": 1, "keys": ["k"], "windows": {"whole": False, "overlap": 1},
             "outputs": [{"name": "n", "function": "count", "lanes": [0]}]}  # fmt: skip
    read, loads = [], {}
    for step in range(1, 3 * windows + 1):
        for window in schedule.active(step):
            moment = Moment(window, schedule.trigger(window, step))

            def load(moment=moment, step=step):
                read.append(moment)
                said = {FACTS: json.dumps(facts | {"step": step})}
                return public(table.replace_schema_metadata(said))

            loads[moment] = load
    return Answers(Releases(loads)), schedule, read


@pytest.mark.parametrize("lateness", [0, 10, 50])
def test_sums_over_recent_triggers_take_every_release_in_them_once(lateness):
    answers, schedule, _ = in_a_row(lateness, 8)
    for end in answers.moments:
        until = schedule.first_step(end.window) + end.trigger - 1
        for triggers in range(end.trigger + 1, until + 1):
            expected = set()
            for window in {moment.window for moment in answers.moments}:
                made = [m.trigger for m in answers.moments if m.window == window]
                steps = [schedule.first_step(window) + trigger - 1 for trigger in made]
                upto = [step for step in steps if step <= until]
                inside = [step for step in upto if step > until - triggers]
                if inside:
                    expected.add((Cell(Moment(window, len(upto)), "n"), 1.0))
                if inside and len(inside) < len(upto):
                    before = len(upto) - len(inside)
                    expected.add((Cell(Moment(window, before), "n"), -1.0))
            assert set(answers._span("n", end, triggers)) == expected


def test_sums_over_recent_triggers_read_no_window_that_is_far():
    answers, _, read = in_a_row(0, 1_000)
    read.clear()
    answers._span("n", Moment(500, 2), 7)
    assert {moment.window for moment in read} <= {497, 498, 499, 500, 501}


def test_clamped_values_are_told_beside_their_sum_and_not_beside_a_count():
    table = pa.table({"user": range(40), "ms": [float(i) for i in range(40)]})
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6,
              privacy_unit_column = user) COUNT(*) AS n,
              SUM(ms, contribution_bounds_per_row => (0, 10)) AS s FROM t"""
    answers = sv.sql(text, t=table)
    told = "s: values beyond [0, 10] count as the nearer end; no interval covers that"
    assert told in answers.notes
    assert told in answers.ratio("s", "n").notes
    assert "nearer end" not in bias_of(answers.releases, "n")
    assert "nearer end" in bias_of(answers.releases, "s")


def test_a_column_of_a_release_says_what_its_facts_say_of_it():
    table = pa.table({"user": [*range(40)] * 2, "ms": [float(i) for i in range(80)]})
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6,
              privacy_unit_column = user, max_rows_contributed = 1) COUNT(*) AS n,
              SUM(IF(ms > 9, 1, 0)) AS late, SUM(ms, contribution_bounds_per_row => (0, 10)) AS s
              FROM t"""
    schema = sv.sql(text, t=table).table.schema
    outputs = read_facts(schema)["outputs"]
    assert ["clamped" in one for one in outputs] == [False, False, True]
    for one in outputs:
        told = schema.field(one["name"]).metadata[b"bias"].decode()
        assert told == "; ".join(one[part] for part in ("bias", "clamped") if part in one)
        assert "rows of one unit beyond" in told


COMPUTED = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6,
    privacy_unit_column = user, public_groups = [0, 1], {}) MOD(user, 2) AS k, COUNT(*) AS n,
    SUM(ms, contribution_bounds_per_row => (0, 10)) AS s,
    AVG(ms, contribution_bounds_per_row => (0, 20)) AS a FROM t GROUP BY k"""


@pytest.mark.parametrize(
    ("select", "said_of"),
    [
        ("s / n AS x", {"x": "[0, 10]"}),
        ("a * 2 + 1 AS x, n AS m", {"x": "[0, 20]"}),
        ("n - 3 AS x", {}),
        ("CASE WHEN a > 3 THEN n END AS x", {"x": "[0, 20]"}),
        ("SUM(s) OVER () AS x, n AS m", {"x": "[0, 10]"}),
        ("SUM(a) OVER () AS x, n AS m", {"x": "[0, 20]"}),
        ("LAG(a) OVER (ORDER BY k) AS x, n AS m", {"x": "[0, 20]"}),
        ("s - 10 * a AS x, s AS y", {"x": "[0, 20]", "y": "[0, 10]"}),
        ("x, m FROM (SELECT s / n AS x, n AS m FROM answer)", {"x": "[0, 10]"}),
        ("n AS x FROM answer UNION ALL SELECT a FROM answer", {"x": "[0, 20]"}),
        ("one.n AS m, two.s / one.n AS x FROM answer AS one JOIN answer AS two USING (k)",
         {"x": "[0, 10]"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut_share", ["cut_share = 0", "max_rows_contributed = 2"])
def test_what_no_interval_holds_is_told_beside_what_is_computed_from_it(select, said_of, cut_share):
    table = pa.table({"user": list(range(40)) * 2, "ms": [float(i) for i in range(80)]})
    select += "" if "FROM" in select else " FROM answer"
    answers = sv.sql(f"WITH answer AS ({COMPUTED.format(cut_share)}) SELECT {select}", t=table)
    facts = read_facts(answers.table.schema)
    outputs = {one["name"]: one for one in facts["outputs"]}
    told = {name: one["clamped"] for name, one in outputs.items() if "clamped" in one}
    assert told.keys() == said_of.keys()
    for name, bounds in said_of.items():
        assert bounds in told[name]
        assert f"{bounds} count as the nearer end" in "; ".join(answers.notes)
    cut = "over the contribution bound" in "; ".join(answers.notes)
    assert cut or all("bias" in one for one in outputs.values())


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Four weeks of releases of rows that end after two."""
    monday, day = 1_767_571_200_000_000, 86_400_000_000  # 5 January 2026
    rows = {
        "user": list(range(400)) * 2, "page": ["a", "b"] * 400,
        "ts": pa.array([monday] * 400 + [monday + 7 * day] * 400, pa.timestamp("us")),
    }  # fmt: skip
    query = (
        sv.memory(pa.table(rows), event_time="ts").protect("user").window(sv.tumble("1 week"))
        .group_by("page").agg(n=sv.count()).bound(max_rows=2)
        .release(every="1 week", start="2026-01-05", end="2026-02-02", name="ended",
                 budget=sv.Budget(epsilon=8, delta=1e-6))
    )  # fmt: skip
    state = tmp_path_factory.mktemp("ended") / "ended.veil"
    return sv.answers(query.run(state=state))


def test_a_window_names_its_last_release(ended):
    by_window = ended.difference("n", at="2026-01-12")
    assert by_window.table == ended.difference("n", at=("2026-01-12", 1)).table
    assert by_window.table["page"].to_pylist() == ["a", "b"]
    assert ended.moving("n", 2, at="2026-01-12").table.num_rows == 2
    with pytest.raises(PlanError, match="no window '2026-01-13'; did you mean"):
        ended.moving("n", 2, at="2026-01-13")


def test_an_answer_about_an_empty_end_names_the_last_release_that_shows_a_group(ended):
    assert ended.last_shown == ended.releases.moments[1]
    for found in (ended.difference("n"), ended.moving("n", 2), ended.top("n", 1)):
        assert found.table.num_rows == 0
        assert "the last release with a group is at = ('2026-01-12', 1)" in found.notes
    assert not any("the last release" in note for note in ended.moving("n", 2, "2026-01-12").notes)
    _, (heading, table, _) = tables_of(ended)
    assert heading == "What changed at 2026-01-12 · 1: no release since then shows any group"
    assert table.num_rows == 2


def test_notes_tell_of_each_window_what_is_true_of_it_alone():
    """The last window's cut rows stood below the numbers of all, and an empty one went unsaid."""
    day, users = 86_400_000_000, np.arange(6000)
    rows = {
        "ts": pa.array(np.repeat([0, day, 3 * day], 2000), pa.timestamp("us", "UTC")),
        "user": users % 1000, "page": np.where(users < 4000, "a", "b"),
    }  # fmt: skip
    made = (
        sv.memory(rows, event_time="ts").protect("user", per="1 day").window(sv.tumble("1 day"))
        .group_by("page").agg(n=sv.count(), x=sv.sum("1.0", bounds=(0, 1))).bound(max_rows=1)
        .release(every="1 day", start="1970-01-01", end="1970-01-06",
                 budget=sv.Budget(epsilon=4, delta=1e-6))
    )  # fmt: skip
    answers = made.answer()
    assert answers.table.num_rows == 3
    shared, *own = answers.notes
    assert "count as the nearer end" in shared
    assert [note.partition(":")[0] for note in own[:3]] == [
        f"window 1970-01-0{day}" for day in (5, 4, 3)
    ]
    assert "no group is published" in own[0]
    assert "over the contribution bound" in own[1]
    assert "no group is published" in own[2]
    assert own[3] == "earlier windows with notes of their own: 2 (read(window=...) has them)"


@pytest.mark.parametrize("most", [1, 2])  # with more rows than one, noise begins with a group
def test_a_release_without_groups_is_read_from_json_lines_too(tmp_path, most):
    """Nothing is in its file: all answers of the folder were refused, or ended in a bug."""
    rows = {"user": [*range(90)], "page": ["a"] * 90, "ts": [1] * 2 + [50_000 * 10**6] * 88}
    made = (
        sv.memory(rows, event_time="ts").protect("user").window(sv.tumble("1 day"))
        .group_by("page").agg(n=sv.count()).bound(max_rows=most)
        .release(every="12 hours", start="1970-01-01", end="1970-01-03",
                 budget=sv.Budget(epsilon=2, delta=1e-6))
    )  # fmt: skip
    releases = list(made.run(tmp_path / "state", noise=SeededNoise(1), insecure=True))
    assert {release.table.num_rows for release in releases} == {0, 1}
    found = []
    for kind in ("parquet", "json"):
        sink = FilesSink(str(tmp_path / kind), kind)
        for release in releases:
            sink.write("job", release)
        read = sv.answers(tmp_path / kind)
        asked = [read.last("n", 2), read.last("n", 3), read.moving("n", 2), read.top("n", 1)]
        asked += [read.difference("n", (0, 2), (0, 1)), read.top("n", 1, (0, 2), since=(0, 1))]
        found.append((read.notes, [one.table.to_pylist() for one in asked]))
    assert found[0] == found[1]


def test_a_release_without_groups_and_facts_is_read_from_json_lines_too(tmp_path):
    """One whose document holds notes alone: reading it ended in a KeyError."""
    table = pa.table({"page": pa.array([], pa.string()), "n": pa.array([], pa.float64())})
    table = table.replace_schema_metadata({NOTE: b"said"})
    FilesSink(str(tmp_path), "json").write("job", made(table))
    assert list(tmp_path.rglob("metadata=*"))
    assert sv.read(tmp_path).table.num_rows == 0


def test_what_every_window_cut_is_told_beside_an_answer_of_several():
    """Only the last window's was: a mean of two days had at most 300 rows missing, not 50,000."""
    rng, day = np.random.default_rng(0), 86_400_000_000
    user = np.concatenate([np.repeat(np.arange(2_000), rows) for rows in (30, 4)])
    at = np.concatenate([np.sort(rng.integers(0, day, rows)) for rows in (60_000, 8_000)])
    at[60_000:] += day
    clicks = pa.table({"user": user, "k": rng.choice(["a", "b"], len(user)),
                       "at": pa.array(at, pa.timestamp("us"))})  # fmt: skip
    asked = (
        sv.memory(clicks, event_time="at", name="t").protect("user", per="1 day")
        .window(sv.tumble("1 day")).group_by("k").agg(n=sv.count()).bound(max_rows=5)
        .release(every="1 day", start="1970-01-01", steps=2,
                 budget=sv.Budget(epsilon=4, delta=1e-6))
    )  # fmt: skip
    batches = [Batch(clicks.slice(0, 60_000), 1, True, "{}"),
               Batch(clicks.slice(60_000), 2, True, "{}")]  # fmt: skip
    answers = sv.answers(unbroken(compile_plan(asked.plan), batches, SeededNoise(3)))
    days = "1970-01-02", "1970-01-01"
    for derived in (
        answers.difference("n"), answers.moving("n", 2), answers.last("n", 2),
        answers.ratio("n", "n", *days), answers.ratio("n", "n", *reversed(days)),
        answers.top("n", 1, since=days[1]),
    ):  # fmt: skip
        last, first = (note for note in derived.notes if note.startswith("window "))
        assert last.startswith("window 1970-01-02: 0 to "), last
        assert first.startswith("window 1970-01-01: about "), first
        assert "83." in first
    (alone,) = answers.difference("n", days[0], days[0]).notes
    assert alone.startswith("0 to "), "of one window there is nothing to tell apart"


def test_rows_that_were_cut_are_told_of_the_span_that_was_asked_for(tmp_path):
    """All rows since noon were cut, and the note said half: as much as of the whole window."""
    users = np.repeat(np.arange(4000), 8)
    rows = {
        "ts": pa.array(np.tile(np.repeat([1, 50_000 * 10**6], 4), 4000), pa.timestamp("us", "UTC")),
        "user": users, "page": np.where(users % 2, "a", "b"),
    }  # fmt: skip
    made = (
        sv.memory(rows, event_time="ts").protect("user").window(sv.tumble("1 day"))
        .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count()).bound(max_rows=4)
        .release(every="6 hours", start="1970-01-01", end="1970-01-02",
                 budget=sv.Budget(epsilon=8, delta=1e-6))
    )  # fmt: skip
    answers = sv.answers(made.run(str(tmp_path / "s"), noise=SeededNoise(1), insecure=True))
    form = re.compile(
        r"(about|0 to) ([0-9,]+) (?:or more )?rows( since the e)?[^(]*\((?:at most )?(.*?)%"
    )

    def told(derived):
        [note] = [note for note in derived.notes if "over the contribution bound" in note]
        word, many, since, share = form.match(note).groups()
        return word, int(many.replace(",", "")), bool(since), float(share)

    assert told(answers.last("n", 4))[2:] == (False, pytest.approx(50, abs=5))
    word, many, since, share = told(answers.last("n", 2))
    assert (word, since) == ("about", True)
    assert many == pytest.approx(16_000, rel=0.1)
    assert share > 95
    assert told(answers.difference("n")) == ("0 to", pytest.approx(500, abs=500), True, ANY)
