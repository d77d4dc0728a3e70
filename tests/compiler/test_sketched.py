"""Sketch aggregates through SQL and the durable engine."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.compiler import operator_of
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import PlanError
from streamveil.runtime.run import run

RNG = np.random.default_rng(3)
ROWS = 6000
TABLE = pa.table({"u": np.arange(ROWS), "k": RNG.zipf(1.4, ROWS) % 5000})


def query(select, extra=""):
    return sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9, "
        f"privacy_unit_column = u, max_rows_contributed = 1, steps = 3{extra}) {select} FROM t "
        "EMIT EVERY 2000 ROWS",
        {"t": TABLE},
    )


def last(query, path, noise):
    releases = list(run(query.plan, state=path, noise=noise, insecure=True))
    assert [release.trigger for release in releases] == [1, 2, 3]
    return releases[-1].table


def test_heavy_hitters_without_noise_are_the_most_frequent_keys(tmp_path):
    asked = query("HEAVY_HITTERS(k, k => 4, memory => 4000000, bits => 13) AS n")
    found = last(asked, tmp_path / "a", SilentNoise())
    keys, counts = np.unique(TABLE["k"].to_numpy(), return_counts=True)
    best = keys[np.argsort(-counts)[:4]]
    assert sorted(found["k"].to_pylist()) == sorted(best.tolist())
    truth = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    for key, value in zip(found["k"].to_pylist(), found["n"].to_pylist(), strict=True):
        assert value == pytest.approx(truth[key], rel=0.02)


def test_frequencies_are_shown_for_public_keys_only(tmp_path):
    asked = query("APPROX_FREQUENCY(k) AS n", ", public_groups = [1, 2, 4999]")
    found = last(asked, tmp_path / "a", SilentNoise())
    assert found["k"].to_pylist() == [1, 2, 4999]
    ones = int((TABLE["k"].to_numpy() == 1).sum())
    assert found["n"][0].as_py() == pytest.approx(ones, rel=0.02)


def test_answers_across_releases_say_that_collisions_are_not_in_the_interval(tmp_path):
    asked = query("APPROX_FREQUENCY(k) AS n", ", public_groups = [1, 2]")
    with run(asked.plan, state=tmp_path / "a", noise=SilentNoise(), insecure=True) as job:
        released = list(job)
    answers = sv.answers(released)
    changed = answers.difference("n")
    assert any("collisions" in note for note in changed.notes)
    assert any("collisions" in note for note in sv.answers(tmp_path / "a").difference("n").notes)
    before, after = (release.table["n"].to_pylist() for release in released[-2:])
    assert changed.table["n"].to_pylist() == [b - a for a, b in zip(before, after, strict=True)]


def test_the_job_keeps_its_budget_and_resumes_to_the_same_bytes(tmp_path):
    asked = query("HEAVY_HITTERS(k, k => 4, memory => 400000, bits => 13) AS n")
    guarantee = operator_of(asked.plan).guarantee
    assert guarantee.epsilon(1e-9) <= 2
    noise = SeededNoise(5)
    whole = last(asked, tmp_path / "a", noise)
    job = run(asked.plan, state=tmp_path / "b", noise=noise, insecure=True)
    next(iter(job))
    job.close()
    rest = list(run(asked.plan, state=tmp_path / "b", noise=noise, insecure=True))
    assert rest[-1].table.equals(whole)


@pytest.mark.parametrize(
    ("select", "extra", "words"),
    [
        ("HEAVY_HITTERS(k, kk => 4)", "", "did you mean 'k'"),
        ("APPROX_FREQUENCY(k)", "", "public_groups"),
        ("HEAVY_HITTERS(k, k => 4), COUNT(*) AS n", "", "stands alone"),
        ("HEAVY_HITTERS(k, memory => 10)", "", "bytes"),
        ("HEAVY_HITTERS(k, text_length => 2000)", "", "up to 1024"),
        (
            "HEAVY_HITTERS(k, text_length => 90, memory => 1000)",
            "",
            "at least 1,317,760.*\n.*memory => ",
        ),
        ("HEAVY_HITTERS(k, k => 0) AS n", "", "k must be a whole number of at least 1"),
        ("HEAVY_HITTERS(k, bits => 0) AS n", "", "bits must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_way_out(select, extra, words):
    with pytest.raises(PlanError, match=words):
        operator_of(query(select, extra).plan)


TEXTS = pa.table({"u": np.arange(ROWS), "t": [
    "/a/page/with/a/long/address/é" if n % 3 == 0 else "/" if n % 3 == 1 else f"/p/{n}"
    for n in range(ROWS)]})  # fmt: skip


def test_texts_of_any_length_are_found_in_one_call_and_explain_says_which_are_missed():
    asked = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-8, "
        "privacy_unit_column = u, max_rows_contributed = 1) "
        "HEAVY_HITTERS(t, k => 2, text_length => 60) AS n FROM texts"
    )
    found = sv.sql(asked, texts=TEXTS).table
    assert found["t"].to_pylist() == ["/", "/a/page/with/a/long/address/é"]
    deviation = found["n_sd"][0].as_py()
    assert all(abs(n - ROWS / 3) < 6 * deviation for n in found["n"].to_pylist())
    built = (
        sv.memory(TEXTS, name="texts").protect(unit="u").agg(n=sv.heavy_hitters("t", k=2,
        text_length=60)).bound(max_rows=1).release(budget=sv.Budget(epsilon=2, delta=1e-8))
    )  # fmt: skip
    assert built.plan.aggregates == sv.sql(asked, {"texts": TEXTS}).plan.aggregates
    said = str(built.explain())
    (missed,) = (line for line in said.splitlines() if "missed" in line)
    assert 100 < int(missed.split("fewer than about ")[1].split(" rows")[0].replace(",", "")) < 400


def test_python_and_sql_plan_the_same():
    finished = (
        sv.memory(TABLE, name="t").protect(unit="u").agg(n=sv.heavy_hitters("k", k=4, bits=13))
        .bound(max_rows=1)
        .release(every=sv.rows(2000), steps=3, budget=sv.Budget(epsilon=2, delta=1e-9))
    )  # fmt: skip
    assert (
        finished.plan.aggregates
        == query("HEAVY_HITTERS(k, k => 4, bits => 13) AS n").plan.aggregates
    )
    with pytest.raises(PlanError, match="did you mean 'bits'"):
        sv.heavy_hitters("k", bit=13)


@pytest.mark.parametrize("name", ["bits", "text_length", "k"])
def test_sizes_that_given_values_do_not_have_are_refused_as_in_sql(name):
    with pytest.raises(PlanError, match=f"unknown size '{name}'"):
        sv.approx_frequency("k", **{name: 2})


def test_given_values_are_counted_from_python_as_the_error_says():
    counted = sv.memory(TABLE).protect("u").agg(n=sv.approx_frequency("k")).bound(max_rows=1)
    with pytest.raises(PlanError, match=r"group_by\(keys=sv.public"):
        operator_of(counted.release(budget=sv.Budget(epsilon=2, delta=1e-9)).plan)
    given = counted.group_by(keys=sv.public([1, 2]))
    found = operator_of(given.release(budget=sv.Budget(epsilon=2, delta=1e-9)).plan)
    assert found.keys == (1, 2)


def test_explain_says_what_a_sketch_promises_and_costs():
    text = str(query("HEAVY_HITTERS(k, k => 4, bits => 13) AS n").explain())
    for words in ("PROMISE", "epsilon = 2", "4 most frequent", "memory", "standard deviation"):
        assert words in text


@pytest.mark.parametrize(("extra", "units"), [("", 10**8), (", max_units = 3000", 3000)])
@pytest.mark.parametrize("select", ["HEAVY_HITTERS(k, k => 4, bits => 13)", "APPROX_FREQUENCY(k)"])
def test_the_chance_that_two_of_all_units_look_alike_is_paid_for(select, extra, units):
    keys = ", public_groups = [1]" if "APPROX" in select else ""
    asked = query(f"{select} AS n", extra + keys)
    loss = operator_of(asked.plan).guarantee.loss
    assert loss.chance >= Fraction(units, 2**64)
    assert loss.fits(asked.plan.budget)


def test_a_delta_below_that_chance_is_refused():
    asked = query("APPROX_FREQUENCY(k) AS n", f", public_groups = [1], max_units = {10**12}")
    with pytest.raises(PlanError, match="max_units"):
        operator_of(asked.plan)


@pytest.mark.parametrize(("name", "column"), [("k", "k"), ("n", "n_low"), ("trigger", "k")])
def test_counts_that_would_take_the_place_of_the_values_are_refused(name, column):
    rows = pa.table({"u": [1], column: [1]})
    counted = sv.memory(rows).protect(unit="u").agg(**{name: sv.heavy_hitters(column, k=4)})
    with pytest.raises(PlanError, match=r"two output columns|goes with 'n'|every release"):
        counted.bound(max_rows=1).release(budget=sv.Budget(epsilon=1, delta=1e-6))


@pytest.mark.parametrize(("counted", "relation"), [
    ("tag", "t, UNNEST(SPLIT(tags, ',')) AS tag"), ("o.tag", "t JOIN o ON t.u = o.u"),
])  # fmt: skip
def test_columns_that_files_do_not_declare_are_counted(tmp_path, counted, relation):
    (tmp_path / "t.csv").write_text("u,tags\n" + "".join(f"{n},a\n" for n in range(900)))
    (tmp_path / "o.csv").write_text("u,tag\n" + "".join(f"{n},a\n" for n in range(900)))
    text = f"""
    CREATE STREAM t (u INT64, tags STRING) WITH (source = 'files', path = '{tmp_path}/t.csv');
    CREATE TABLE o (u INT64, tag STRING) WITH (source = 'files', path = '{tmp_path}/o.csv');
    SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = u,
        max_rows_contributed = 1) HEAVY_HITTERS({counted}, k => 2, text_length => 1) AS n
    FROM {relation}"""
    plan = sv.sql(text).plan
    [found] = run(plan, state=tmp_path / "s", noise=SilentNoise(), insecure=True)
    [row] = found.table.to_pylist()
    assert (row.get("tag", row.get("key")), row["n"]) == ("a", 900)
