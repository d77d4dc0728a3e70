"""Power and false alarms of the sequential audit of lanes, selection and bounding.

    python benchmarks/audit_power.py [--honest 1002] [--rounds 5]

Honest audits: the same reduced queries, each time with a new secret, all tests; an alarm is a stake
that passes 1 / alpha. Faults: how many groups it takes to refute each, the median of some rounds,
and the CPU time of a whole audit, relative to an attack by copies (10,000 copies a side of five
scenarios, with and without restarts). Results: results/audit_power.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import streamveil as sv
from saved import save
from streamveil.audit.reduced import halved, reduced
from streamveil.audit.residuals import (
    GROUPS,
    Expected,
    bare,
    cells_of,
    crowded,
    lane_tests,
    noise_tests,
)
from streamveil.audit.shown import bet_on, levels, selection_test, shown_tests, sized
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import KeyedNoise
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.plan import Plan

RESULTS = Path(__file__).parent / "results" / "audit_power.json"
ALPHA, LOOSE = 1e-6, 0.05
OLD = 10_000 * 2 * 10  # copies on both sides, of five scenarios, unbroken and restarted
ROWS = {"user": [1], "page": ["a"], "ms": [1.0], "ts": [0]}
KEYS = {"public": sv.public(["a", "b"]), "discovered": sv.discover()}
Change = Callable[[GroupBy], GroupBy]


def plan_of(keys: str, epsilon: int) -> Plan:
    """Counts, a mean and people, by the hour for two days."""
    measures = {"n": sv.count(), "ms": sv.avg("ms", bounds=(0, 9)), "people": sv.count_units()}
    stream = sv.memory(ROWS, event_time="ts").protect("user").group_by("page", keys=KEYS[keys])
    bounded = stream.agg(**measures).bound(max_rows=2, max_rows_per_group=1)
    budget = sv.Budget(epsilon=epsilon, delta=1e-9)
    return bounded.release(every="1 hour", start="2026-01-01", steps=48, budget=budget).plan


PLANS = {f"{keys}, epsilon {e}": plan_of(keys, e) for keys in KEYS for e in (1, 2, 6)}


def honest_audits(plan: Plan, count: int) -> Iterator[tuple[int, list[float]]]:
    """Alarms at ALPHA, and the largest stake of every test, of so many audits."""
    plan = replace(plan, options={**plan.options, "total_tests": 0})
    operator = compile_plan(reduced(plan, GROUPS))
    lanes, crowd, first = bare(operator), crowded(operator), KeyedNoise.fresh()
    expected = Expected.of(operator, crowd, first)
    folds = [(lanes, lanes.save(folded(lanes, crowd, first)))]
    sizes = levels(operator) if operator.aggregation.selection is not None else []
    if sizes:
        folds.append((operator, operator.save(folded(operator, sized(sizes), first))))
    for _ in range(count):
        noise = KeyedNoise.fresh()
        one, *more = (  # the state is as it was folded
            made.release(made.load({name: np.array(a) for name, a in saved.items()}), 1, noise)
            for made, saved in folds
        )
        tests = list(expected.tests(cells_of(one), ALPHA))
        for released in more:
            keys = released[0].table.column("key").to_numpy()
            shown = np.zeros((GROUPS, len(sizes)), np.bool_)
            shown[keys // 1000, keys % 1000] = True
            chances = np.tile([chance for _, chance in sizes], GROUPS)
            tests.append(bet_on(shown.reshape(-1), chances, ALPHA))
        yield sum(not test.stands for test in tests), [test.growth for test in tests]


def folded(operator: GroupBy, scenario: Any, noise: KeyedNoise) -> Any:
    """The state before the first release: nothing was drawn yet."""
    state = operator.init()
    operator.fold(state, scenario.batches(GROUPS, with_unit=False)[0], noise)
    return state


def one_lane(place: int, part: Fraction) -> Change:
    """A part of the noise of one lane."""

    def change(operator: GroupBy) -> GroupBy:
        noises = list(operator.design.noises)
        noises[place] = Fraction(noises[place]) * part
        return replace(operator, design=replace(operator.design, noises=tuple(noises)))

    return change


def looser(operator: GroupBy) -> GroupBy:
    """A row of a unit more in every group."""
    limits = operator.design.limits
    more = replace(limits, per_group=(limits.per_group or 0) + 1)
    return replace(operator, design=replace(operator.design, limits=more))


def half_selection(operator: GroupBy) -> GroupBy:
    """Half the noise of the counter that shows groups."""
    chosen = operator.design.selection
    less = replace(chosen, noise=Fraction(chosen.noise) / 2)  # type: ignore[type-var,union-attr]
    return replace(operator, design=replace(operator.design, selection=less))


def faults_of(plan: Plan) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Each with the tests that are made of it."""
    operator = compile_plan(reduced(plan, GROUPS))

    def tests(change: Change) -> list[Any]:
        noises = KeyedNoise.fresh(), KeyedNoise.fresh()
        return list(lane_tests(operator, change(operator), noises, ALPHA))

    def selected() -> list[Any]:
        return [selection_test(operator, half_selection(operator), KeyedNoise.fresh(), ALPHA)]

    yield "half of all noise", partial(tests, halved)
    for place in range(len(operator.design.noises)):
        for words, part in (("half", Fraction(1, 2)), ("three quarters of", Fraction(3, 4))):
            yield f"{words} the noise of sum {place}", partial(tests, one_lane(place, part))
    if isinstance(operator.aggregation.selection, GaussianSelection):
        yield "half the noise of the selection", selected
    yield "a row more of every unit", partial(rows_more, plan)


def rows_more(plan: Plan) -> list[Any]:
    """A bound that is off by one."""
    return list(shown_tests(plan, ALPHA, looser))


def power(plan: Plan, rounds: int) -> dict[str, Any]:
    """For every fault, groups until it is refuted."""
    found = {}
    for name, tests in faults_of(plan):
        after = []
        for _ in range(rounds):
            refuted = [test.refuted_after for test in tests() if test.refuted_after is not None]
            after.append(min(refuted, default=None))
        known = [one for one in after if one is not None]
        found[name] = {
            "refuted": len(known), "of": rounds, "groups": median(known) if known else None,
            "share of the copies of an attack": max(known) / OLD if known else None,
        }  # fmt: skip
    return found


def main() -> None:
    """Measures and keeps the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--honest", type=int, default=1002)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    content: dict[str, Any] = {"alpha": ALPHA, "groups": GROUPS, "queries": {}}
    alarms, audits, loose, tests = 0, 0, 0, 0
    for name, plan in PLANS.items():
        begun = time.process_time()
        list(noise_tests(plan, ALPHA, halved)) + list(shown_tests(plan, ALPHA, halved))
        seconds = time.process_time() - begun
        for alarm, growth in honest_audits(plan, given.honest // len(PLANS)):
            alarms, audits = alarms + bool(alarm), audits + 1
            loose += sum(stake > -log(LOOSE) for stake in growth)
            tests += len(growth)
        content["queries"][name] = {
            "cpu_seconds_of_an_audit_with_half_the_noise": round(seconds, 2),
            "faults": power(plan, given.rounds),
        }
        content["honest"] = {
            "audits": audits, "alarms": alarms, "tests": tests,
            f"tests whose stake passed 1 / {LOOSE}": loose,
        }  # fmt: skip
        print(name, json.dumps(content["queries"][name]), json.dumps(content["honest"]), flush=True)
        save(RESULTS, content)


if __name__ == "__main__":
    main()
