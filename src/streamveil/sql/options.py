"""Every option of the privacy clause: one table that the parser, the builder and the docs read.

GoogleSQL's own options keep their names and meaning. Options of streamveil are marked as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, shown
from streamveil.expressions.nodes import interval_of
from streamveil.sql.parts import UNIT_US

Value = Any
Reader = Callable[[exp.Expr, str], Value]
GROUP_STRATEGIES = ("LAPLACE_THRESHOLD", "PUBLIC_GROUPS")


def echo(tree: exp.Expr) -> str:
    """What stands in the query, for a message."""
    return shown(canonical(tree))


def number_text(tree: exp.Expr, what: str) -> str:
    """A privacy number exactly as written: 1e-9 stays 1e-9."""
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return str(tree.this)
    raise PlanError(
        f"{what} must be a positive number written out, such as 1 or 1e-9, not {echo(tree)}"
    )


def real(tree: exp.Expr, what: str) -> float:
    """A number, possibly negative."""
    sign = -1.0 if isinstance(tree, exp.Neg) else 1.0
    inner = tree.this if isinstance(tree, exp.Neg) else tree
    try:
        return sign * float(number_text(inner, what))
    except ValueError:
        raise PlanError(f"{what} must be a number, not {echo(tree)}") from None


def whole(tree: exp.Expr, what: str) -> int:
    """A whole number."""
    text = number_text(tree, what)
    if not text.isdecimal() or len(text) > 18:
        raise PlanError(f"{what} must be a whole number of at most 18 digits, not {echo(tree)}")
    return int(text)


def text(tree: exp.Expr, what: str) -> str:
    """A quoted text."""
    if isinstance(tree, exp.Literal) and tree.is_string:
        return str(tree.this)
    raise PlanError(f"{what} must be a text in quotes, not {echo(tree)}")


def word(tree: exp.Expr, what: str) -> str:
    """A word, quoted or not."""
    if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier) and not tree.table:
        return str(tree.name)
    if isinstance(tree, exp.Var):
        return str(tree.name)
    return text(tree, what)


def flag(tree: exp.Expr, what: str) -> bool:
    """TRUE or FALSE."""
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    raise PlanError(f"{what} is TRUE or FALSE, not {echo(tree)}")


def row_value(tree: exp.Expr, what: str) -> str:
    """A column or per-row expression, as text."""
    if isinstance(tree, exp.Literal | exp.Null | exp.Boolean):
        raise PlanError(f"{what} must be a column or an expression over columns")
    return canonical(tree)


def interval(tree: exp.Expr, what: str) -> int:
    """INTERVAL n UNIT, in microseconds."""
    if not isinstance(tree, exp.Interval):
        raise PlanError(
            f"{what} must be written INTERVAL n UNIT, such as INTERVAL 15 MINUTE, not {echo(tree)}"
        )
    amount, unit = interval_of(tree)
    if unit.lower() not in UNIT_US:
        raise PlanError(f"{what}: {unit} has no fixed length; use days or weeks")
    total = amount * UNIT_US[unit.lower()]
    if not 0 < total < 2**62:
        raise PlanError(
            f"{what} must be longer than zero and shorter than 100,000 years, not {echo(tree)}"
        )
    return total


def instant(tree: exp.Expr, what: str) -> str:
    """A time: a text, or TIMESTAMP 'text'."""
    if isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal):
        return text(tree.this, what)
    return text(tree, what)


def steps(tree: exp.Expr, what: str) -> int | str:
    """A number of steps, or 'unbounded'."""
    if isinstance(tree, exp.Literal) and not tree.is_string:
        return whole(tree, what)
    chosen = word(tree, what).lower()
    if chosen != "unbounded":
        raise PlanError(f"{what} is a whole number or 'unbounded'")
    return chosen


def constant(tree: exp.Expr, what: str) -> Value:
    """A constant of any type a group can have."""
    if isinstance(tree, exp.Null):
        return None
    if isinstance(tree, exp.Boolean):
        return bool(tree.this)
    if isinstance(tree, exp.Literal) and tree.is_string:
        return str(tree.this)
    number = real(tree, what)
    return int(canonical(tree)) if canonical(tree).lstrip("-").isdecimal() else number


def groups(tree: exp.Expr, what: str) -> str | tuple[tuple[Value, ...], ...]:
    """A list of groups, or the path of a public file that holds one group per row."""
    if isinstance(tree, exp.Literal):
        return text(tree, what)
    if not isinstance(tree, exp.Array):
        raise PlanError(f"{what} is a list such as ['a', 'b'], or the path of a file in quotes")
    return tuple(_group(item, what) for item in tree.expressions)


def _group(tree: exp.Expr, what: str) -> tuple[Value, ...]:
    parts = tree.expressions if isinstance(tree, exp.Tuple) else [tree]
    for part in parts:
        if isinstance(part, exp.Cast | exp.RawString | exp.Anonymous):  # DATE '...', r'...', f(...)
            raise PlanError(
                f"{what} holds texts, numbers, TRUE, FALSE and NULL, not {echo(part)}.\n"
                f"  to fix  a Parquet file of groups, {what} = 'groups.parquet', holds every type"
            )
    return tuple(constant(part, what) for part in parts)


def strategy(tree: exp.Expr, what: str) -> str:
    """How groups are chosen."""
    chosen = word(tree, what).upper()
    if chosen not in GROUP_STRATEGIES:
        raise PlanError(f"unknown {what}{nearest(chosen[:40], GROUP_STRATEGIES)}")
    return chosen


@dataclass(frozen=True)
class Option:
    """One option: how its value is read, and what the documentation says of it."""

    read: Reader
    origin: str  # 'GoogleSQL' or 'streamveil'
    default: str
    meaning: str


G, S = "GoogleSQL", "streamveil"
NONE = "none: must be given"
OPTIONS: dict[str, Option] = {
    "epsilon": Option(number_text, G, NONE, "privacy loss of one unit; or `rho`, or `mu`"),
    "delta": Option(
        number_text, G, "0 (pure; GROUP BY and sketches need one)",
        "probability that epsilon does not hold",
    ),
    "privacy_unit_column": Option(
        row_value, G, NONE, "who is protected: a column or per-row expression"
    ),
    "max_groups_contributed": Option(
        whole, G, "by forecast; 1 with `contribution_bounds_per_group`",
        "groups one unit may count in; C = groups x rows per group",
    ),
    "max_rows_contributed": Option(
        whole, G, "from `max_groups_contributed`", "C: the first C rows of a unit count"
    ),
    "min_privacy_units_per_group": Option(
        whole, G, "1", "a discovered group is shown only well above this many units"
    ),
    "group_selection_strategy": Option(
        strategy, G, "LAPLACE_THRESHOLD",
        "LAPLACE_THRESHOLD: private threshold (ours is Gaussian); PUBLIC_GROUPS: needs a public "
        "list",
    ),
    "privacy_unit_period": Option(
        interval, S, "the whole stream", "protects each unit-period (user-day) separately"
    ),
    "max_rows_per_group": Option(
        whole, S, "C (no bound per group)", "c: at most c rows of a unit in one (window, group)"
    ),
    "max_squared_rows": Option(
        whole, S, "not used; by forecast with `expected_rows` where no bound is given",
        "B: instead of c, accept while the sum of (rows per group)^2 <= B",
    ),
    "rho": Option(number_text, S, "not used", "budget in zCDP instead of epsilon"),
    "mu": Option(number_text, S, "not used", "budget in Gaussian DP instead of epsilon"),
    "public_groups": Option(
        groups, S, "groups are discovered", "a list of groups, or a public file of them"
    ),
    "clock": Option(
        word, S, "'event'; 'wall' for a source that never ends",
        "'event': replay by arrival time; 'wall': live",
    ),
    "start": Option(instant, S, NONE, "first moment of step 1, public"),
    "end": Option(instant, S, "start + steps x interval", "end of the last step, public"),
    "steps": Option(
        steps, S, "from start and end",
        "releases the guarantee covers; 'unbounded': counters without a horizon",
    ),
    "arrival": Option(
        word, S, "the event time", "column with the time at which a replayed row arrives"
    ),
    "lateness": Option(
        interval, S, "0", "how long after its end a window still takes rows and triggers"
    ),
    "preset": Option(
        word, S, "'default'",
        "'dp-sqlp': the published system, for comparison; 'theorem': a changing table is served by "
        "proved errors, not measured ones",
    ),
    "thresholds": Option(
        word, S, "'rigorous'", "of preset 'dp-sqlp': 'rigorous', or 'published' (not proven)"
    ),
    "counter": Option(word, S, "'auto'", "continual counter: chosen by horizon and budget"),
    "name": Option(word, S, "the sink's name, else 'query'", "the job in the ledger and state"),
    "non_negative": Option(flag, S, "FALSE", "post-processing: values below 0 become 0"),
    "integer": Option(flag, S, "FALSE", "post-processing: values are rounded (within 64 bits)"),
    "monotone": Option(flag, S, "FALSE", "post-processing: running counts never fall"),
    "confidence": Option(real, S, "0.95", "coverage of the interval of every number"),
    "intervals": Option(
        word, S, "'noise'", "what intervals cover: the 'noise' alone, or the 'true' answer over "
        "all rows, those over the contribution bound too",
    ),
    "cut_share": Option(
        real, S, "0.02", "share of mu^2 for a private count of the rows over the contribution bound"
    ),
    "look_share": Option(
        number_text, S, "0.05 where all rows are there at the start and none are expected",
        "share of the budget that asks the rows for their shape before the first release; 0: none",
    ),
    "selection": Option(
        word, S, "'auto': by forecast",
        "how groups are discovered: 'table' of coins or 'gaussian' threshold",
    ),
    "selection_share": Option(
        real, S, "by the number of aggregates", "share of mu^2 for a 'gaussian' selection"
    ),
    "mu_share": Option(
        real, S, "by forecast",
        "share of mu for the values beside a 'table' selection",
    ),
    "hidden_groups": Option(
        whole, S, "by forecast",
        "groups not yet shown in which the 'table' selection counts one unit; its rows in others"
        " still count",
    ),
    "total_tests": Option(
        whole, S, "4",
        "releases (the last, the half, the quarter ...) at which a group is also shown if its noisy"
        " total is large ('table' selection); 0: none",
    ),
    "weights": Option(
        word, S, "'adaptive'", "large groups pay less and are counted less precisely; or 'flat'"
    ),
    "entry_weight": Option(
        real, S, "by forecast", "weight of a group not yet shown"
    ),
    "weight_reference": Option(
        real, S, "by forecast", "total up to which a group keeps its entry weight",
    ),
    "delta_share": Option(
        real, S, "0.5", "share of delta for the thresholds of discovered groups"
    ),
    "max_units": Option(
        whole, S, "100,000,000", "units expected at most: sets the chance of equal fingerprints"
    ),
    "expected_rows": Option(
        real, S, "1.5, 6 and 30, where nothing bounds them",
        "rows of one unit, on average, publicly expected: settings and, where no bound is given, "
        "bounds come from a forecast for streams like this",
    ),
    "expected_most_rows": Option(
        real, S, "a family of tails", "rows that 99 of 100 units are expected not to exceed"
    ),
    "expected_repeats": Option(
        real, S, "0 and 0.3, both", "share of rows expected to repeat a group of their unit"
    ),
    "expected_units": Option(real, S, "1,000,000", "units expected, with `expected_rows`"),
    "expected_groups": Option(
        real, S, "a group for every 50 rows", "groups of one window expected, with `expected_rows`"
    ),
    "expected_size": Option(
        whole, S, NONE + " for changing tables",
        "records of a changing table, about: chooses the mechanism, forecasts the error",
    ),
    "expected_updates": Option(
        whole, S, "2 x expected_size; 1 x when nothing is deleted",
        "insertions and deletions of a changing table over all steps, about",
    ),
    "ask_share": Option(
        real, S, "0", "part of a changing table's budget for questions (ASK)"
    ),
    "mechanism": Option(
        word, S, "'auto': least expected error",
        "of a changing table: counter, tree_of_mwem, rerun, snapshot_delta, continual_mwem, "
        "interval_tree, triggered_snapshots, two_streams",
    ),
    "accept_error": Option(
        flag, S, "FALSE", "runs a changing table although the error is a quarter of it or more"
    ),
    "watermark": Option(word, S, "'schedule'", "what closes windows: only the public clock can"),
    "late_data": Option(
        word, S, "'drop'", "rows after the allowed lateness: counted for the operator and dropped"
    ),
    "metrics": Option(word, S, "'off'", "exact counters in logs: never"),
    "rerun_on_growth": Option(
        real, S, "not used", "always refused unless the size is public (`public_size`)"
    ),
    "public_size": Option(flag, S, "FALSE", "declares the number of source rows public"),
    "budget_refresh": Option(
        interval, S, "not used", "refused unless it equals `privacy_unit_period`"
    ),
}  # fmt: skip

# options a GoogleSQL query may hold that have no meaning here, with the way out
REFUSED_OPTIONS: dict[str, str] = {
    "k_threshold": "a fixed k does not come with a proof over releases; give delta, and "
    "min_privacy_units_per_group = k if groups need at least k units",
    "kappa": "WITH ANONYMIZATION's kappa is called max_groups_contributed now",
    "contribution_bounding_rows": "use max_rows_contributed",
    "privacy_budget_weight": "not available: aggregates share the budget by forecast",
}


def read_options(pairs: list[tuple[str, exp.Expr]]) -> dict[str, Value]:
    """The values of a clause by option name; unknown names fail with the nearest known one."""
    found: dict[str, Value] = {}
    for written, tree in pairs:
        name = written.lower()
        if name in REFUSED_OPTIONS:
            raise PlanError(f"option '{name}' is not supported: {REFUSED_OPTIONS[name]}")
        if name not in OPTIONS:
            raise PlanError(f"unknown option '{shown(name)}'{nearest(name, OPTIONS)}")
        if name in found:
            raise PlanError(f"option '{name}' is given twice")
        found[name] = OPTIONS[name].read(tree, name)
    return found


PYTHON: dict[Reader, tuple[tuple[type, ...], str]] = {  # how each option is written in Python
    whole: ((int,), "a whole number"),
    real: ((int, float), "a number"),
    flag: ((bool,), "True or False"),
    word: ((str,), "a text"),
    row_value: ((str,), "SQL text: a column or a per-row expression"),
    strategy: ((str,), "a text"),
}


def require_kinds(values: Mapping[str, Value]) -> None:
    """PlanError for an option whose value is of another kind than its reader in SQL gives."""
    for name, value in values.items():
        option = OPTIONS.get(name)
        kinds, meant = PYTHON.get(option.read, ((), "")) if option is not None else ((), "")
        fits = isinstance(value, kinds) and isinstance(value, bool) <= (bool in kinds)
        if value is not None and kinds and not fits:
            raise PlanError(f"{name} must be {meant}, not {type(value).__name__}")
