"""What a user who is there all year loses: finite, close to the best, and one answer everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil import cli
from streamveil.accounts import deployment
from streamveil.accounts.ledger import Ledger
from streamveil.api import Query
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Gdp, rounded_up
from streamveil.dashboard import page
from streamveil.plan import combined_plan
from streamveil.runtime.account import Account

DAY = sv.tumble("1 day")
PUBLIC = sv.public(["/home", "/cart"])
README = Budget(epsilon=2, delta=1e-7)


def query(window, keys, budget=README, per="1 day", **options):
    """The query of the README, with other windows, groups and budgets."""
    return (
        sv.files("clicks.parquet", event_time="ts")
        .protect(unit="user_id", per=per)
        .window(window)
        .group_by("url", keys=keys)
        .agg(n=sv.count(), seconds=sv.sum("ms / 1000.0", bounds=(0, 60)))
        .bound(max_rows=8)
        .release(every="6 hours", start="2026-01-01", end="2026-01-02", budget=budget, **options)
    )


def guarantee_of(made: Query):
    return compile_plan(combined_plan(made.plan)).guarantee


def test_the_readme_promises_at_most_epsilon_90_for_a_year():
    guarantee = guarantee_of(query(DAY, sv.discover(min_units=20)))
    year = guarantee.over(365)
    assert year.epsilon(365e-7) <= 90
    releases = Gdp.squared(guarantee.loss.gaussian).times(365)
    assert year.epsilon(365e-7) > releases.epsilon(365e-7)  # the selection is not free
    text = guarantee.lifetime("user-year").sentence(366e-7)
    assert float(re.search(r"epsilon = ([\d.]+)", text)[1]) <= 90


@pytest.mark.parametrize("window", [
    sv.hop("1 day", slide="6 hours"), sv.cumulate("1 day", step="6 hours"), sv.tumble("2 days"),
    None,
], ids=["hop", "cumulate", "two-days", "whole"])  # fmt: skip
def test_a_year_of_shared_windows_is_that_of_its_gaussian_part(window):
    made = query(window, PUBLIC) if window else query_of_the_whole_stream()
    guarantee = guarantee_of(made)
    assert not guarantee.separate
    assert guarantee.loss.chance > 0
    found, best = (
        one.epsilon(365e-7) for one in (guarantee.over(365), Gdp(guarantee.loss.mu() * 365))
    )
    assert best <= found <= 1.05 * best


def query_of_the_whole_stream():
    return (
        sv.files("clicks.parquet", event_time="ts").protect(unit="user_id", per="1 day")
        .group_by("url", keys=PUBLIC).agg(n=sv.count()).bound(max_rows=8)
        .release(every="6 hours", start="2026-01-01", end="2026-01-02", budget=README)
    )  # fmt: skip


CASES = {
    "readme": lambda: query(DAY, sv.discover(min_units=20)),
    "public": lambda: query(DAY, PUBLIC),
    "thresholds": lambda: query(DAY, sv.discover(), selection="gaussian", look_share=0),
    "hop": lambda: query(sv.hop("1 day", slide="6 hours"), PUBLIC, Budget(epsilon=1, delta=1e-8)),
    "hop-discovered": lambda: query(sv.hop("1 day", slide="6 hours"), sv.discover()),
    "rho": lambda: query(DAY, PUBLIC, Budget(rho="0.1", delta=1e-9)),
    "periods-of-12-hours": lambda: query(sv.tumble("6 hours"), PUBLIC, per="12 hours"),
}


@pytest.mark.parametrize("name", CASES)
def test_everything_that_states_a_year_says_the_same(name, tmp_path: Path):
    made = CASES[name]()
    guarantee, budget = guarantee_of(made), made.plan.budget
    own, shared = tmp_path / "own.ledger", tmp_path / "shared.ledger"
    Ledger.open(shared, budget, guarantee.protects).close()
    account = Account(name="job", limit=budget, guarantee=guarantee, about=dict, shared=shared)
    account.charge(own, "epoch")
    epsilon, delta = guarantee.lifetime("user-year").quoted(budget.quoted_delta)
    wanted = "no finite epsilon" if epsilon == float("inf") else f"epsilon = {rounded_up(epsilon)}"
    assert f"year: {wanted}, delta = {float(delta):.3g}." in made.explain().promise
    for ledger in (own, shared):
        with Ledger.load(ledger) as opened:
            assert opened.convert("user-year").loss == guarantee.lifetime("user-year").loss
            record = json.loads(json.dumps(deployment.record(opened), allow_nan=False))
        year = record["lifetime"]["user-year"]
        assert year["epsilon"] == (None if epsilon == float("inf") else epsilon)
        assert f" {wanted}, delta = {float(delta):.3g}." in page.spending("", record, drawn=False)
        said = call("ledger", "convert", ledger, "--to", "user-year")
        assert wanted.lower() in said.lower()
        day = rounded_up(guarantee.epsilon(budget.quoted_delta))
        assert f"epsilon = {day}" in made.explain().promise
        assert f"epsilon = {day}" in page.promise({"": record})
        assert f"spent: epsilon = {day} " in call("ledger", "show", ledger)
        assert record["epsilon"] == guarantee.epsilon(budget.quoted_delta)


def call(*arguments) -> str:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments], catch_exceptions=False).stdout
