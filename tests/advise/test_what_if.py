"""What if: forecasts are those of the compiled queries, and odds hold for the mechanism."""

import re
from itertools import pairwise
from math import exp

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil import cli
from streamveil.advise.what_if import compiled, posterior
from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.plan_forecast import lane_sd, published_chance
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError

ROWS = pa.table({
    "user": [1], "page": ["a"], "ms": [1], "ts": pa.array([0], pa.timestamp("us", "UTC")),
})  # fmt: skip
DELTA = 1e-9


def query(rows=4, epsilon=1, measure=None, **release):
    stream = sv.memory(ROWS, event_time="ts", name="t").protect("user").group_by("page")
    return (
        stream.agg(n=measure or sv.count())
        .bound(max_rows=rows)
        .release(budget=sv.Budget(epsilon=epsilon, delta=DELTA), **release)
    )


def test_every_row_is_the_forecast_of_the_query_with_that_setting():
    found = sv.what_if(query(), units=50, epsilons=[2], max_rows=[1, 3]).table.to_pylist()
    tried = [query(), query(epsilon=2), query(rows=1), query(rows=3)]
    assert [row["varied"] for row in found] == ["as asked", "epsilon", "max_rows", "max_rows"]
    for row, one in zip(found, tried, strict=True):
        operator = compiled(one.plan)
        assert row["sd"] == lane_sd(operator, operator.outputs[0].lanes[0], 1)
        assert row["error"] == row["sd"] / 50
        assert row["epsilon"] == operator.guarantee.epsilon(DELTA)
    assert max(found[1]["sd"], found[2]["sd"]) < found[0]["sd"]


def test_releases_are_tried_where_time_can_be_cut_so(tmp_path):
    asked = query(every="6 hours", start="2026-01-01", end="2026-01-03")
    found = sv.what_if(asked, epsilons=[], max_rows=[], releases=[1, 4, 16])
    assert found.table["value"].to_pylist() == [None, 1, 4, 16]
    errors = dict(zip(found.table["value"].to_pylist(), found.table["sd"].to_pylist(), strict=True))
    assert errors[1] < errors[4] < errors[None] < errors[16]
    found.plot().savefig(tmp_path / "w.png")
    with pytest.raises(PlanError, match="evenly"):
        sv.what_if(asked, releases=[7])
    once = sv.memory({"user": [1], "page": ["a"]}).protect("user").group_by("page")
    once = once.agg(n=sv.count()).bound(max_rows=4).release(budget=sv.Budget(epsilon=1, delta=1e-9))
    with pytest.raises(PlanError, match="answers once"):
        sv.what_if(once, releases=[7])


def test_odds_are_those_that_the_guarantee_allows():
    row = sv.what_if(query(), epsilons=[], max_rows=[]).table.to_pylist()[0]
    guarantee = compiled(query().plan).guarantee
    epsilon = guarantee.epsilon(DELTA)
    assert row["posterior"] == pytest.approx(exp(epsilon) / (1 + exp(epsilon)))
    assert row["posterior_rare"] == pytest.approx(posterior(epsilon, 1e-3))
    assert row["guess"] == (1 + guarantee.delta_at(0)) / 2


def test_no_attack_on_the_noise_guesses_better_than_said():
    """The best guess of presence from a count with this noise: false alarms below 1e-6."""
    asked = query(rows=1)
    row = sv.what_if(asked, epsilons=[], max_rows=[]).table.to_pylist()[0]
    rng, trials = np.random.default_rng(0), 200_000
    present = rng.random(trials) < 0.5
    right = ((present + rng.normal(0, row["sd"], trials) > 0.5) == present).mean()
    most = row["guess"]
    assert right < most + 5 * 0.5 / trials**0.5
    weak = ((present + rng.normal(0, row["sd"] / 6, trials) > 0.5) == present).mean()
    assert weak > most + 5 * 0.5 / trials**0.5  # a planted fault: a sixth of the noise


def test_a_public_sample_says_what_bounds_keep():
    rng = np.random.default_rng(1)
    public = {"user": rng.integers(0, 2_000, 9_000), "page": rng.integers(0, 5, 9_000).astype(str),
              "ms": rng.integers(0, 9, 9_000)}  # fmt: skip
    asked = query(measure=sv.sum("ms", bounds=(0, 9)))
    found = sv.what_if(asked, sample=public, epsilons=[], max_rows=[1]).table.to_pylist()
    assert found[0]["error"] is None
    assert found[0]["kept"] > 2 * found[1]["kept"]
    assert found[0]["sample_error"] < found[1]["sample_error"]


def test_rows_that_are_one_contribution_of_their_unit_and_group_are_forecast_as_one():
    public = {"user": np.arange(9_000) % 1_000, "page": (np.arange(9_000) % 1_000 % 3).astype(str),
              "ms": np.ones(9_000)}  # fmt: skip
    asked = query(rows=1, measure=sv.count("ms", per_unit=(0, 3)))
    one, three = sv.what_if(asked, sample=public, epsilons=[], max_rows=[3]).table.to_pylist()
    assert three["kept"] == one["kept"] == 1.0  # of a user, one contribution to its only page
    assert three["sd"] < 2 * one["sd"]  # three of them add up as squares do


def test_people_counted_by_what_they_did_are_forecast_from_raw_public_rows():
    t = pa.table({"user": [1], "page": ["a"]})
    own = sv.memory(t).protect("user").per_unit(times="COUNT(*)").group_by("times")
    asked = (
        own.agg(n=sv.count()).bound(max_rows=1).release(budget=sv.Budget(epsilon=1, delta=DELTA))
    )
    public = {"user": np.arange(3_000) % 1_000, "page": ["a"] * 3_000}
    row = sv.what_if(asked, sample=public, epsilons=[], max_rows=[]).table.to_pylist()[0]
    assert row["kept"] == 1.0
    assert row["sample_error"] < 20


def test_what_is_noise_is_called_so_and_what_cannot_be_is_left_out():
    found = sv.what_if(query(epsilon=0.1), units=10, epsilons=[], max_rows=[])
    assert any("mostly noise" in note for note in found.notes)
    with pytest.raises(PlanError, match="counts and sums"):
        sv.what_if(query(measure=sv.median("ms", bounds=(0, 9))))


def test_the_command_line_says_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("user,page\n1,a\n")
    (tmp_path / "q.sql").write_text(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column ="
        " user, max_rows_contributed = 4) page, COUNT(*) AS n FROM 'rows.csv' GROUP BY page"
    )
    for typed, given in (
        (["--epsilon", "2", "--max-rows", "1"], {"epsilons": [2], "max_rows": [1]}),
        (["--max-rows", "1"], {"max_rows": [1]}),
        ([], {}),  # what is not given is tried at settings around the query's
    ):
        told = CliRunner().invoke(cli.app, ["what-if", "q.sql", *typed])
        assert told.exit_code == 0, told.output
        told_of = re.findall(r"^│ +([a-z_ ]+) │ .* │ +(\S+) │(?: +\S+ │){5}$", told.output, re.M)
        table = sv.what_if(query(), **given).table.to_pylist()
        assert told_of == [(one["varied"], f"{one['sd']:,.4g}") for one in table]
    assert "50% likely" in told.output


@pytest.mark.parametrize(("selection", "rows"), [("table", 1), ("table", 8), ("totals", 1)])
def test_groups_that_their_totals_show_are_forecast_as_shown(selection, rows):
    """Coins alone were forecast: an eighth of the groups where half were shown, 3 of 110."""
    groups, steps, size = 400, 6, {1: 30, 8: 60}[rows]
    rng = np.random.default_rng(0)
    page = rng.permutation(np.repeat(np.arange(groups), size))
    step = np.sort(rng.integers(0, steps, len(page)))
    came = pa.table({"user": np.arange(len(page)) // rows, "page": page,
                     "ts": pa.array(step, pa.timestamp("us", "UTC"))})  # fmt: skip
    asked = (
        sv.memory(came, event_time="ts", name="t").protect("user")
        .group_by("page", keys=sv.discover()).agg(n=sv.count()).bound(max_rows=rows)
        .release(every="1 microsecond", start="1970-01-01", steps=steps, selection=selection,
                 budget=sv.Budget(epsilon=rows ** (2 / 3), delta=1e-4))
    )  # fmt: skip
    ends = np.searchsorted(step, np.arange(steps + 1))
    batches = [Batch(came.slice(a, b - a), n, True, "{}")
               for n, (a, b) in enumerate(pairwise(ends), start=1)]  # fmt: skip
    last = [unbroken(compiled(asked.plan), batches, SeededNoise(seed))[-1] for seed in range(3)]
    shown = np.mean([release.table.num_rows for release in last])
    assert 0.2 * groups < shown < 0.95 * groups
    [row] = sv.what_if(
        asked, units=size, epsilons=[], max_rows=[], releases=[], sample=came
    ).table.to_pylist()
    assert row["groups"] == pytest.approx(shown, rel=0.15)
    if rows == 1:  # `units` people with a row each
        assert row["shown"] * groups == pytest.approx(shown, rel=0.15)


def test_totals_that_no_release_tested_yet_show_nothing():
    """EXPLAIN asked for the test of a release that has none, and ended in a ValueError."""
    day = {"every": "1 hour", "start": "2026-01-01", "end": "2026-01-02"}
    asked = query(rows=1, selection="totals", **day)
    operator = compiled(asked.plan)
    assert operator.aggregation.test.triggers == (3, 6, 12, 24)
    chances = [published_chance(operator, 100, trigger) for trigger in (2, 10, 24)]
    assert chances[0] == 0
    assert 0 < chances[1] < chances[2]
    assert "published 0.0%" in str(asked.explain(forecast=True))
