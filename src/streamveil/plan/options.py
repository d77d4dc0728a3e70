"""Every option of the privacy clause, declared once: what it takes, its default, what it does.

SQL, Python, the checks, `explain` and the reference page all read this table. GoogleSQL's own
options keep their names and meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "amount", "real", "whole", "flag", "word", "strategy", "expression", "interval", "length",
    "instant", "steps", "groups", "text",
]  # fmt: skip
GOOGLE = "GoogleSQL"
NONE = "none: must be given"
GROUP_BY, TABLE = "GROUP BY", "changing table"
BOTH = (GROUP_BY, TABLE)


@dataclass(frozen=True)
class Limits:
    """The numbers that an option may be; each end says whether it is included."""

    low: float
    high: float = inf
    whole: bool = False
    with_low: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a value is such a number."""
        if isinstance(value, bool):
            return False
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return False
        if self.whole and (number in (inf, -inf) or number != int(number)):
            return False
        return (self.low <= number if self.with_low else self.low < number) and number < self.high

    def __str__(self) -> str:
        if self.whole:
            return f"a whole number of at least {self.low:g}"
        low = "at least" if self.with_low else "above"
        below = "" if self.high == inf else f" and below {self.high:g}"
        return f"a number {low} {self.low:g}{below}"


class Words(tuple[str, ...]):
    """The words that an option may be.

    >>> print(Words(("noise", "true")), Words(("noise", "true")).holds("nose"))
    'noise' or 'true' False
    """

    __slots__ = ()

    def holds(self, value: Any) -> bool:
        """Whether a value is one of them."""
        return value in self

    def __str__(self) -> str:
        *first, last = map(repr, self)
        return f"{', '.join(first)} or {last}"


SHARE = Limits(0, 1)
COUNTED = Limits(1, whole=True, with_low=True)
PART = Limits(1e-6, 1 - 1e-6)  # of a budget: both sides get some
POSITIVE = Limits(0)
MECHANISMS = Words((
    "auto", "counter", "tree_of_mwem", "rerun", "continual_mwem", "interval_tree", "two_streams",
))  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of the clause.

    `value` is the default if it is a constant; `reason` explains the default, for `explain`.
    `part_of` names the queries whose plans keep the option under its name; empty: the option
    decides another part of the plan.
    """

    name: str
    kind: Kind
    default: str  # in words, for people
    meaning: str
    origin: str = "streamveil"
    value: Any = None
    reason: str = ""
    within: Limits | Words | None = None
    part_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def of(self, given: Mapping[str, Any]) -> Any:
        """The value given, or the constant default."""
        return given.get(self.name, self.value)

    def given_in(self, given: Mapping[str, Any]) -> bool:
        """Whether there is a value."""
        return given.get(self.name) is not None


EPSILON = Option(
    "epsilon", "amount", NONE, "privacy loss of one unit; or `rho`, or `mu`", origin=GOOGLE
)
DELTA = Option(
    "delta", "amount", "0 (pure; GROUP BY and sketches need one)",
    "probability that epsilon does not hold", origin=GOOGLE,
)  # fmt: skip
PRIVACY_UNIT = Option(
    "privacy_unit_column", "expression", NONE, "who is protected: a column or per-row expression",
    origin=GOOGLE,
)  # fmt: skip
MAX_GROUPS = Option(
    "max_groups_contributed", "whole", "by forecast; 1 with `contribution_bounds_per_group`",
    "groups one unit may count in; C = groups x rows per group", origin=GOOGLE,
)  # fmt: skip
MAX_ROWS = Option(
    "max_rows_contributed", "whole", "from `max_groups_contributed`",
    "C: the first C rows of a unit count", origin=GOOGLE,
)  # fmt: skip
MIN_UNITS = Option(
    "min_privacy_units_per_group", "whole", "1",
    "a discovered group is published only well above this many units", origin=GOOGLE,
)  # fmt: skip
STRATEGY = Option(
    "group_selection_strategy", "strategy", "LAPLACE_THRESHOLD",
    "LAPLACE_THRESHOLD: private threshold (ours is Gaussian); PUBLIC_GROUPS: needs a public list",
    origin=GOOGLE,
)  # fmt: skip
UNIT_PERIOD = Option(
    "privacy_unit_period", "length", "the whole stream",
    "protects each unit-period (user-day) separately; periods begin where windows do",
)  # fmt: skip
TIME_ZONE = Option(
    "time_zone", "text", "'UTC'",
    "whose clocks `start` and `end`, and windows, periods and releases of days and longer (or of "
    "2, 3, 4, 6, 8 or 12 hours) follow",
)  # fmt: skip
MAX_PER_GROUP = Option(
    "max_rows_per_group", "whole", "C (no bound per group)",
    "c: at most c rows of a unit in one (window, group)",
)  # fmt: skip
MAX_SQUARED = Option(
    "max_squared_rows", "whole",
    "not used; by forecast with `expected_rows` where no bound is given",
    "B: instead of c, accept while the sum of (rows per group)^2 <= B",
)  # fmt: skip
RHO = Option("rho", "amount", "not used", "budget in zCDP instead of epsilon")
MU = Option("mu", "amount", "not used", "budget in Gaussian DP instead of epsilon")
PUBLIC_GROUPS = Option(
    "public_groups", "groups", "groups are discovered",
    "a list of groups, or a public file of them",
)  # fmt: skip
CLOCK = Option(
    "clock", "word", "'event'; 'wall' for a source that never ends",
    "'event': replay by arrival time; 'wall': live",
)  # fmt: skip
START = Option("start", "instant", NONE, "first moment of step 1, public")
END = Option("end", "instant", "start + steps x interval", "rows before it count, public")
STEPS = Option(
    "steps", "steps", "from start and end",
    "releases the guarantee covers; 'unbounded': counters without a horizon",
)  # fmt: skip
ARRIVAL = Option(
    "arrival", "word", "the event time", "column with the time at which a replayed row arrives"
)
LATENESS = Option(
    "lateness", "interval", "0", "how long after its end a window still takes rows and triggers"
)
JOIN_ROWS = Option(
    "join_rows", "whole", "none: must be given where live data are joined by the privacy unit",
    "rows of each unit that a join keeps of the other relation, the newest ones, up to 1,000",
)  # fmt: skip
JOIN_WITHIN = Option(
    "join_within", "interval", "not used: the other relation is a table",
    "on live data: joins rows whose times are at most this far apart, whichever came first, if both"
    " relations have an event_time",
)  # fmt: skip
PRESET = Option(
    "preset", "word", "'default'",
    "'dp-sqlp': the published system, for comparison; 'theorem': a changing table is served by "
    "proved errors, not measured ones",
)  # fmt: skip
THRESHOLDS = Option(
    "thresholds", "word", "'rigorous'",
    "of preset 'dp-sqlp': 'rigorous', or 'published' (not proven)", value="rigorous",
    reason="hold for all triggers together", within=Words(("rigorous", "published")),
    part_of=(GROUP_BY,),
)  # fmt: skip
COUNTER = Option("counter", "word", "'auto'", "continual counter: chosen by horizon and budget")
NAME = Option("name", "word", "the sink's name, else 'query'", "the job in the ledger and state")
NON_NEGATIVE = Option(
    "non_negative", "flag", "FALSE", "post-processing: values below 0 become 0", part_of=BOTH
)
INTEGER = Option(
    "integer", "flag", "FALSE", "post-processing: values are rounded (within 64 bits)",
    part_of=BOTH,
)  # fmt: skip
MONOTONE = Option(
    "monotone", "flag", "FALSE", "post-processing: running counts never fall", part_of=(GROUP_BY,)
)
CONFIDENCE = Option(
    "confidence", "real", "0.95", "coverage of the interval of every number", value=0.95,
    reason="the usual choice for intervals", within=SHARE, part_of=BOTH,
)  # fmt: skip
INTERVALS = Option(
    "intervals", "word", "'noise'",
    "what intervals cover: the 'noise' alone, or the 'true' answer over all rows, with three times "
    "a group's share of those over the contribution bound",
    value="noise", reason="covers the noise; 'true' also the cut rows",
    within=Words(("noise", "true")), part_of=(GROUP_BY,),
)  # fmt: skip
CUT_SHARE = Option(
    "cut_share", "real", "0.02; 0.1 with `intervals = 'true'`",
    "share of mu^2 for a private count of the rows over the contribution bound", value=0.02,
    reason="of mu^2, for a private count of the rows that contribution bounding cut",
    within=Limits(0, PART.high, with_low=True), part_of=(GROUP_BY,),
)  # fmt: skip
LOOK_SHARE = Option(
    "look_share", "amount",
    "0.05 where rows can be read again and none are expected; 0.1 if values lack bounds",
    "share of mu^2 for a private look at the rows before the first release; 0: no look", value=0,
    part_of=(GROUP_BY,),
)  # fmt: skip
SELECTION = Option(
    "selection", "word", "'auto': by forecast",
    "how groups are discovered: 'table' of coins, 'gaussian' threshold, or 'totals' that are"
    " released",
    value="auto", reason="the design with the least forecast error: coins, a counter or totals",
    within=Words(("auto", "table", "gaussian", "totals")), part_of=(GROUP_BY,),
)  # fmt: skip
SELECTION_SHARE = Option(
    "selection_share", "real", "by the number of aggregates",
    "share of mu^2 for a 'gaussian' selection", reason="of mu^2, for deciding which keys to show",
    within=PART, part_of=(GROUP_BY,),
)  # fmt: skip
MU_SHARE = Option(
    "mu_share", "real", "by forecast", "share of mu for the values beside a 'table' selection",
    reason="of the Gaussian mu, for the values: by forecast", within=PART, part_of=(GROUP_BY,),
)  # fmt: skip
HIDDEN_GROUPS = Option(
    "hidden_groups", "whole", "by forecast",
    "hidden groups in which the 'table' selection counts one unit; its rows in others still count",
    reason="hidden groups where one unit is counted: by forecast", within=COUNTED,
    part_of=(GROUP_BY,),
)  # fmt: skip
TOTAL_TESTS = Option(
    "total_tests", "whole", "4",
    "releases (the last, the half, the quarter ...) at which a group is also published if its noisy"
    " total is large ('table' and 'totals' selection); 0: none",
    value=4,
    reason="releases at which a noisy total publishes a group, too: the last, the half ...",
    within=Limits(0, whole=True, with_low=True), part_of=(GROUP_BY,),
)  # fmt: skip
WEIGHTS = Option(
    "weights", "word", "'adaptive'",
    "large groups pay less and are counted less precisely; or 'flat'", value="adaptive",
    reason="large keys pay less and are counted less precisely", within=Words(("adaptive", "flat")),
    part_of=(GROUP_BY,),
)  # fmt: skip
ENTRY_WEIGHT = Option(
    "entry_weight", "real", "by forecast", "weight of a hidden group",
    reason="weight of hidden keys", within=POSITIVE, part_of=(GROUP_BY,),
)  # fmt: skip
WEIGHT_REFERENCE = Option(
    "weight_reference", "real", "by forecast", "total up to which a group keeps its entry weight",
    reason="total up to which a key keeps its entry weight", within=POSITIVE, part_of=(GROUP_BY,),
)  # fmt: skip
DELTA_SHARE = Option(
    "delta_share", "real", "0.5", "share of delta for the thresholds of discovered groups",
    value=0.5, reason="of delta for thresholds, the rest for the noise", within=PART,
    part_of=(GROUP_BY,),
)  # fmt: skip
MAX_UNITS = Option(
    "max_units", "whole", "100,000,000",
    "the most units expected: delta pays for the chance that two have equal fingerprints",
    value=10**8, reason="delta pays for the chance that two of them have equal fingerprints",
    within=COUNTED, part_of=(GROUP_BY,),
)  # fmt: skip
EXPECTED_ROWS = Option(
    "expected_rows", "real", "1.5, 6 and 30, where nothing bounds them",
    "publicly expected rows of one unit, on average: a forecast for such streams then chooses the "
    "settings, and the bounds that are not given",
    part_of=(GROUP_BY,),
)  # fmt: skip
EXPECTED_MOST_ROWS = Option(
    "expected_most_rows", "real", "a family of tails",
    "rows that 99 of 100 units are expected not to exceed", part_of=(GROUP_BY,),
)  # fmt: skip
EXPECTED_REPEATS = Option(
    "expected_repeats", "real", "0 and 0.3, both",
    "share of rows expected to repeat a group of their unit", part_of=(GROUP_BY,),
    within=Limits(0, 1, with_low=True),
)  # fmt: skip
EXPECTED_UNITS = Option(
    "expected_units", "real", "1,000,000", "units expected, with `expected_rows`",
    part_of=(GROUP_BY,),
)  # fmt: skip
EXPECTED_GROUPS = Option(
    "expected_groups", "real", "a group for every 50 rows",
    "groups of one window expected, with `expected_rows`", part_of=(GROUP_BY,),
)  # fmt: skip
EXPECTED_SIZE = Option(
    "expected_size", "whole", NONE + " for changing tables",
    "about how many records a changing table has (or different values, where those are counted): "
    "chooses the mechanism, forecasts the error",
    within=COUNTED, part_of=(TABLE,),
)  # fmt: skip
MAX_CHANGES = Option(
    "max_changes", "whole",
    "none: must be given with COUNT(DISTINCT x) of a changing table; 1 where nothing is deleted, "
    "and for one answer",
    "how often a value of x may come or go in a group of a changing table; then it stays as it is",
    within=Limits(1, 10**6, whole=True, with_low=True), part_of=(TABLE,),
)  # fmt: skip
EXPECTED_UPDATES = Option(
    "expected_updates", "whole", "2 x expected_size; 1 x when nothing is deleted",
    "about how many insertions and deletions a changing table has over all steps", within=COUNTED,
    part_of=(TABLE,),
)  # fmt: skip
ASK_SHARE = Option(
    "ask_share", "real", "0", "part of a changing table's budget for questions (ASK)", value=0,
    within=Limits(0, 1, with_low=True), part_of=(TABLE,),
)  # fmt: skip
MECHANISM = Option(
    "mechanism", "word", "'auto': least expected error",
    f"of a changing table: {', '.join(MECHANISMS[1:])}", value="auto", within=MECHANISMS,
    part_of=(TABLE,),
)  # fmt: skip
ACCEPT_ERROR = Option(
    "accept_error", "flag", "FALSE",
    "runs a changing table although the error is a quarter of it or more", part_of=(TABLE,),
)  # fmt: skip

OPTIONS: dict[str, Option] = {
    option.name: option for option in list(globals().values()) if isinstance(option, Option)
}
BUDGETS = (EPSILON.name, DELTA.name, RHO.name, MU.name)
OF_METHODS = (  # in Python, of protect(), bound() and group_by()
    PRIVACY_UNIT, UNIT_PERIOD, MAX_GROUPS, MAX_ROWS, MAX_PER_GROUP, MAX_SQUARED, MIN_UNITS,
    STRATEGY, PUBLIC_GROUPS,
)  # fmt: skip
EXPECTATIONS = (
    EXPECTED_UNITS, EXPECTED_ROWS, EXPECTED_MOST_ROWS, EXPECTED_GROUPS, EXPECTED_REPEATS,
)  # fmt: skip


def kept(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of a clause that a plan keeps under their names; a flag only if it is set."""
    for option in OPTIONS.values():
        value = values.get(option.name)
        if option.part_of and value is not None and (option.kind != "flag" or value):
            yield option.name, value if option.kind != "flag" else True


def of_query(kind: str) -> set[str]:
    """The names of the options that plans of a kind of query keep."""
    return {option.name for option in OPTIONS.values() if kind in option.part_of}
