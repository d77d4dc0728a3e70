"""Sketch queries as texts: windows and periods of hours, and of the calendar, over raw rows."""

from dataclasses import replace

import numpy as np

from streamveil.audit.account import MechanismLoss
from streamveil.audit.laid_open_sketches import CellNoise, run_sketch, sketch_account
from streamveil.audit.worst import accounts, world_of
from streamveil.errors import BudgetError, PlanError
from streamveil.runtime.run import work_of
from tests.audit.raw_rows import SPANS, neighbours_drawn, pick
from tests.audit.texts import BUDGETS, CONDITIONS, JOINED, MANY, OWN, PLAIN, STEPS, plan_of

SKETCHES = (
    "APPROX_FREQUENCY(kind, memory => 200000)", "APPROX_FREQUENCY(page, memory => 200000)",
    "HEAVY_HITTERS(kind, k => 3, bits => 12, memory => 1000000)",
    "HEAVY_HITTERS(page, k => 3, text_length => 1, memory => 1000000)",
    "HEAVY_HITTERS(page, k => 3, text_length => 12, memory => 1500000)",
)  # fmt: skip
BOUNDS = ("max_rows_contributed = 1", "max_rows_contributed = 3", "max_rows_contributed = 7")


def text_of(rng):
    """One query, which may be refused."""
    span, sketch, size = pick(rng, SPANS), pick(rng, SKETCHES), ""
    shown = ["['a', 'b', 'c']" if "page" in sketch else "[0, 1, 2]"] * ("APPROX" in sketch)
    source, window, apart = "own", rng.random() < 0.7, rng.spawn(1)[0]
    rows = pick(apart, pick(apart, (STEPS, OWN, JOINED)))
    if window:
        size = pick(rng, span.sizes)
        source = f"TUMBLE(TABLE own, DESCRIPTOR(ts), size => {size})"
    more = [
        pick(rng, BUDGETS), "privacy_unit_column = user", pick(rng, BOUNDS),
        f"start = '{span.start}', end = '{span.end}'",
        span.zone and f"time_zone = '{span.zone}'", *(f"public_groups = {one}" for one in shown),
        pick(rng, ("", f"privacy_unit_period = {size or pick(rng, span.periods)}")),
        pick(rng, ("", f"lateness = {span.every.replace('MONTH', 'DAY')}")) if window else "",
        pick(apart, ("", "arrival = at")),
    ]  # fmt: skip
    text = (
        f"WITH own AS ({rows.format(many=MANY, unit='user', plain=PLAIN)})"
        f" SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(filter(None, more))})"
        f" {'window_start, ' * window}{sketch} AS n FROM {source}"
        f"{pick(apart, CONDITIONS)}{' GROUP BY window_start' * window} EMIT EVERY {span.every}"
    )
    return text, span


def query_drawn(rng):
    """A text, when it runs, its plan and its operator; what is refused is drawn again."""
    while True:
        text, span = text_of(rng)
        try:
            plan = plan_of(text)
            return text, span, plan, work_of(plan).operator
        except (PlanError, BudgetError):
            continue


def judged(seed, pairs):
    """(text, account) of pairs of one query: of made-up rows, and half as many of raw rows."""
    rng = np.random.default_rng(seed)
    text, span, plan, operator = query_drawn(rng)
    for one in accounts(operator, seed, pairs):
        yield text, one.account
    world = world_of(operator)
    bound = replace(operator, bind=world.bind)
    noise = CellNoise.of(bound, world, operator.schedule.steps)
    for nth in range(pairs // 2):
        pair = neighbours_drawn(rng, plan, span, several=nth % 4 == 3)
        without = ran(pair.plans[1], operator, seed)
        with_unit = ran(pair.plans[0], operator, seed, without)
        found = sketch_account(operator, (without, with_unit), noise)
        [part] = found.parts
        loss = operator.guarantee.over(pair.periods).loss if pair.periods > 1 else None
        claim = part.claimed if loss is None else float(loss.gaussian) * loss.group_size**2
        found.parts = [MechanismLoss(part.name, part.currency, part.realised, claim)]
        yield text, found


def ran(plan, operator, seed, leader=None):
    work = work_of(plan, lambda _: operator)
    return run_sketch(operator, work.feed(None), seed, leader)
