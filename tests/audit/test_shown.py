"""Selection and bounding are tested by themselves: faults are refuted at any budget."""

from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import streamveil as sv
from streamveil.audit.reduced import reduced
from streamveil.audit.residuals import GROUPS
from streamveil.audit.shown import (
    bet_on,
    bounding_test,
    levels,
    selection_chance,
    selection_test,
    which_are_shown,
)
from streamveil.cli import app
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from tests.audit.test_planted import coins_of, flatter_shift, half_noise, selection
from tests.audit.test_reduced import FOUND, PUBLIC, query
from tests.audit.test_residuals import MEASURES

ALPHA = 1e-6
FAR_BELOW = 6  # deviations by which a frequency may miss its chance: once in 10^9
KINDS = {
    f"{kind} {epsilon}": query(
        FOUND, sv.Budget(epsilon=epsilon, delta=1e-9), measures=MEASURES, max_rows=2,
        max_rows_per_group=1,
    ).plan
    for kind in ("table", "gaussian")
    for epsilon in (1, 2, 6)
}  # fmt: skip


def made(name):
    options = {"selection": name.split()[0], "total_tests": 0}
    plan = replace(KINDS[name], options={**KINDS[name].options, **options})
    return compile_plan(reduced(plan, GROUPS))


@pytest.mark.parametrize("name", KINDS)
def test_groups_are_shown_with_the_chances_that_are_claimed(name):
    operator = made(name)
    sizes = levels(operator)
    assert len(sizes) >= 2
    shown = which_are_shown(operator, sizes, SeededNoise(3)).reshape(GROUPS, -1).mean(axis=0)
    for (units, chance), seen in zip(sizes, shown, strict=True):
        assert chance == selection_chance(operator, units)
        assert abs(seen - chance) < FAR_BELOW * np.sqrt(chance * (1 - chance) / GROUPS)
    test = selection_test(operator, operator, SeededNoise(4), ALPHA)
    assert test.stands
    assert test.groups == GROUPS * len(sizes)


FAULTS = {
    "gaussian": selection(half_noise),
    "table": selection(coins_of(0)),
}


@pytest.mark.parametrize("name", KINDS)
def test_faults_of_selections_are_refuted_at_any_budget(name):
    operator = made(name)
    test = selection_test(operator, FAULTS[name.split()[0]](operator), SeededNoise(5), ALPHA)
    assert test.refuted_after < 1_200


def test_shorter_shifts_of_groups_are_refuted():
    operator = made("table 2")
    test = selection_test(operator, selection(flatter_shift)(operator), SeededNoise(6), ALPHA)
    assert not test.stands


@pytest.mark.parametrize("limits", [
    {"max_rows": 3, "max_rows_per_group": 2}, {"max_squared_rows": 9}, {"max_rows": 4},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("keys", [PUBLIC, FOUND], ids=["public", "found"])
def test_a_bound_off_by_one_is_seen_without_any_statistics(keys, limits):
    plan = query(keys, sv.Budget(epsilon=2, delta=1e-9), measures=MEASURES, **limits).plan
    operator = compile_plan(reduced(plan, 2))
    assert bounding_test(operator, operator).stands
    names = {"max_rows": 1, "per_group": 1, "quadratic": 40}
    more = {name: getattr(operator.design.limits, name) for name in names}
    more = {name: names[name] + limit for name, limit in more.items() if limit is not None}
    loose = replace(operator.design, limits=replace(operator.design.limits, **more))
    assert not bounding_test(operator, replace(operator, design=loose)).stands


def test_more_rows_may_pass_in_a_hidden_group_where_they_weigh_less():
    """Their number was taken for that of full weight, and an honest query was called refuted."""
    plan = query(
        FOUND, sv.Budget(epsilon=2, delta=1e-9), measures=MEASURES, max_squared_rows=2
    ).plan
    plan = replace(plan, options={**plan.options, "entry_weight": 0.1})
    operator = compile_plan(reduced(plan, 2))
    assert operator.aggregation.rule.entry < operator.bounds.scale / 5
    assert bounding_test(operator, operator).stands
    loose = replace(operator.design, limits=replace(operator.design.limits, quadratic=4))
    assert not bounding_test(operator, replace(operator, design=loose)).stands


def test_the_stake_on_honest_chances_passes_a_limit_no_more_often_than_it_may():
    rng, alpha, runs = np.random.default_rng(1), 0.05, 2_000
    chances = np.tile([0.1, 0.5, 0.9], 100)
    wrong = sum(not bet_on(rng.random(300) < chances, chances, alpha).stands for _ in range(runs))
    assert wrong <= alpha * runs  # Ville: the chance is at most alpha


@pytest.mark.parametrize("keys", ["", ", public_groups = ['a', 'b']"])
def test_half_of_the_noise_ends_the_command_at_once(keys, tmp_path):
    text = f"""CREATE STREAM clicks (u STRING, k STRING, ts TIMESTAMP) WITH (source = 'files',
        path = 'x.csv', event_time = 'ts');
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9,
        max_rows_contributed = 2, privacy_unit_column = u, start = '2026-01-01',
        end = '2026-01-03', look_share = 0{keys})
        k, COUNT(*) AS n FROM clicks GROUP BY k EMIT EVERY INTERVAL 1 HOUR"""
    (tmp_path / "q.sql").write_text(text)
    result = CliRunner().invoke(app, ["audit", str(tmp_path / "q.sql"), "--plant"])
    assert result.exit_code == 0, result.output
    assert "REFUTED after" in result.output
    assert "bounding" in result.output
