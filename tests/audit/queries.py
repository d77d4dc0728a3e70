"""Queries over as much of the grammar as there is, from a seed."""

from fractions import Fraction

from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.errors import BudgetError, PlanError
from streamveil.plan import (
    Aggregate,
    Bounding,
    Clock,
    KeySet,
    SourceSpec,
    Window,
    combined_plan,
)
from tests.dataflow.streams import plan_of

EVERY, STEPS = 10, 4
END = STEPS * EVERY
BUDGETS = (
    Budget(epsilon=2, delta=Fraction("1e-6")), Budget(epsilon=6, delta=Fraction("1e-9")),
    Budget(mu=Fraction(1, 2), delta=Fraction("1e-6")),
    Budget(rho=Fraction(1, 8), delta=Fraction("1e-6")),
)  # fmt: skip
WINDOWS = (
    Window(), Window(kind="tumble", size_us=20), Window(kind="tumble", size_us=20, lateness_us=10),
    Window(kind="tumble", size_us=15, lateness_us=10), Window(kind="hop", size_us=20, slide_us=10),
    Window(kind="hop", size_us=20, slide_us=10, lateness_us=20),
    Window(kind="cumulate", size_us=30, slide_us=10, lateness_us=5),
)  # fmt: skip
BOUNDINGS = (
    Bounding(max_rows=1), Bounding(max_rows=4, max_rows_per_group=1),
    Bounding(max_rows=5, max_rows_per_group=2), Bounding(max_rows=3), Bounding(quadratic=6),
    Bounding(quadratic=9, max_rows=5), Bounding(quadratic=20, max_rows_per_group=3),
    Bounding(max_rows=8, max_rows_per_group=8), Bounding(),
    Bounding(max_rows=6, max_rows_per_group=3, max_groups=2),
)  # fmt: skip
AGGREGATES = (
    Aggregate(name="n", function="count"),
    Aggregate(name="nv", function="count", expression="v"),
    Aggregate(name="people", function="count_units"),
    Aggregate(name="kinds", function="count_distinct", expression="w"),
    Aggregate(name="up", function="sum", expression="v", low=0.0, high=8.0),
    Aggregate(name="down", function="sum", expression="v", low=-9.0, high=2.0),
    Aggregate(name="mean", function="avg", expression="v", low=-3.0, high=5.0),
    Aggregate(name="spread", function="variance", expression="w", low=1.0, high=1.5),
    Aggregate(name="sd", function="stddev", expression="v", low=0.0, high=100.0),
    Aggregate(name="half", function="quantile", expression="v", low=0.0, high=4.0,
              options={"fan": 2, "levels": 2}),
)  # fmt: skip
KEYS = tuple((name,) for name in "abcdefgh")
BESIDE = 12  # pairs in one run
OPTIONS = (
    {}, {}, {"selection": "gaussian"}, {"selection": "table"}, {"selection": "totals"},
    {"cut_share": 0.1},
    {"cut_share": 0}, {"total_tests": 0}, {"hidden_groups": 2}, {"weights": "flat"},
    {"entry_weight": 0.5}, {"monotone": True, "non_negative": True}, {"confidence": 0.8},
    {"hidden_groups": 3, "entry_weight": 0.3}, {"selection_share": 0.3},
)  # fmt: skip


def pick(rng, some):
    return some[int(rng.integers(len(some)))]


def public_keys(pairs):
    """Of so many pairs: eight of their own each."""
    return tuple((name + "." * place,) for place in range(pairs) for (name,) in KEYS)


def plan_drawn(rng, pairs=1):
    """A plan, which may be refused.

    Of several pairs at once: with groups, and without the count of cut rows, which has no groups.
    """
    chosen = rng.permutation(len(AGGREGATES))[: int(rng.integers(1, 5))]
    unknown_end = rng.random() < 0.1
    keys = float(rng.random())
    changes = {"keys": ()} if keys < 0.1 and pairs == 1 else {}
    public, more = KeySet(public=public_keys(pairs)), {"cut_share": 0} if pairs > 1 else {}
    return plan_of(
        source=SourceSpec(name="s", kind="memory", event_time="ts"),
        aggregates=tuple(AGGREGATES[place] for place in chosen),
        window=Window() if unknown_end else pick(rng, WINDOWS),
        bounding=pick(rng, BOUNDINGS),
        key_set=public if 0.1 < keys < 0.4 else KeySet(min_units=pick(rng, (1, 1, 3))),
        options={**pick(rng, OPTIONS), **more},
        clock=Clock(kind="event", every=EVERY, start_us=0, end_us=None if unknown_end else END,
                    steps=None),
        period_us=pick(rng, (None, None, 30, 20)),
        budget=pick(rng, BUDGETS),
        **changes,
    )  # fmt: skip


def compiled(rng, pairs=1):
    """A plan and its operator; plans that are refused are drawn again."""
    while True:
        plan = plan_drawn(rng, pairs)
        try:
            return plan, compile_plan(combined_plan(plan))
        except (PlanError, BudgetError):
            continue
