"""Sketch queries as texts: windows and periods of hours, and of the calendar."""

import numpy as np

from streamveil.audit.worst import accounts
from streamveil.errors import BudgetError, PlanError
from streamveil.runtime.run import work_of
from tests.audit.raw_rows import SPANS, pick
from tests.audit.texts import BUDGETS, plan_of

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
    source, window = "clicks", rng.random() < 0.7
    if window:
        size = pick(rng, span.sizes)
        source = f"TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => {size})"
    more = [
        pick(rng, BUDGETS), "privacy_unit_column = user", pick(rng, BOUNDS),
        f"start = '{span.start}', end = '{span.end}'",
        span.zone and f"time_zone = '{span.zone}'", *(f"public_groups = {one}" for one in shown),
        pick(rng, ("", f"privacy_unit_period = {size or pick(rng, span.periods)}")),
        pick(rng, ("", f"lateness = {span.every.replace('MONTH', 'DAY')}")) if window else "",
    ]  # fmt: skip
    return (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(filter(None, more))})"
        f" {'window_start, ' * window}{sketch} AS n FROM {source}"
        f"{' GROUP BY window_start' * window} EMIT EVERY {span.every}"
    )


def query_drawn(rng):
    """A text and its operator; what is refused is drawn again."""
    while True:
        text = text_of(rng)
        try:
            return text, work_of(plan_of(text)).operator
        except (PlanError, BudgetError):
            continue


def judged(seed, pairs):
    """(text, account) of pairs of neighbours of one query."""
    text, operator = query_drawn(np.random.default_rng(seed))
    for one in accounts(operator, seed, pairs):
        yield text, one.account
