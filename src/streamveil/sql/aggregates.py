"""The aggregate functions of a private SELECT: their SQL forms and the aggregates they plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError
from streamveil.expressions import columns_of, normalize_expression
from streamveil.expressions.dialect import canonical
from streamveil.kinds import AGGREGATES
from streamveil.plan import Aggregate
from streamveil.plan.check import HABITS
from streamveil.sql import options
from streamveil.sql.parts import make_aggregate


@dataclass(frozen=True)
class Call:
    """One aggregate call of the SELECT list."""

    name: str  # of the function, in capitals
    output: str | None  # AS name
    unit: str  # the privacy unit, canonical
    arguments: list[exp.Expr]
    named: dict[str, exp.Expr] = field(default_factory=dict)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Contribution bounds of the kind that was given, if any."""
        for argument in BOUNDS:
            if argument in self.named:
                return _pair(self.named[argument], argument)
        return None

    @property
    def per_group(self) -> bool:
        """Whether the bounds apply to a unit's total in a group."""
        return BOUNDS[1] in self.named

    def column(self) -> str:
        """The single column or expression of the call."""
        if len(self.arguments) != 1:
            raise PlanError(f"{self.name} takes one column, not {len(self.arguments)}")
        return canonical(self.arguments[0])

    def plan(self, function: str, expression: str | None, **extra: Any) -> Aggregate:
        """The aggregate, with its bounds, quantum and a name."""
        quantum = self.named.get("quantum")
        return make_aggregate(
            self.output or default_name(self.name, expression),
            function,
            expression,
            bounds=self.bounds,
            quantum=None if quantum is None else options.real(quantum, "quantum"),
            options=extra,
        )


BOUNDS = ("contribution_bounds_per_row", "contribution_bounds_per_group")
VALUED = frozenset({*BOUNDS, "quantum", "report_format"})
ROWWISE = VALUED - {BOUNDS[1], "quantum"}
Form = Callable[[Call], list[Aggregate]]


def default_name(function: str, expression: str | None) -> str:
    """The column name of an aggregate without AS: 'count', 'sum_ms'."""
    columns = () if expression is None else columns_of(expression)
    return "_".join([function.lower(), *columns])


def _pair(tree: exp.Expr, what: str) -> tuple[float, float]:
    parts = tree.expressions if isinstance(tree, exp.Tuple) else []
    if len(parts) != 2:
        raise PlanError(f"{what} is a pair (low, high)")
    return options.real(parts[0], what), options.real(parts[1], what)


def _count(call: Call) -> list[Aggregate]:
    if not call.arguments or len(call.arguments) > 1:
        raise PlanError("COUNT takes *, a column, or DISTINCT column")
    argument = call.arguments[0]
    if isinstance(argument, exp.Star):
        return [call.plan("count", None)]
    if not isinstance(argument, exp.Distinct):
        return [call.plan("count", canonical(argument))]
    if len(argument.expressions) != 1:
        raise PlanError(
            "COUNT(DISTINCT ...) takes one column.\n  to fix  COUNT(DISTINCT CONCAT(a, '|', b))"
        )
    inner = canonical(argument.expressions[0])
    if normalize_expression(inner) == call.unit:
        return [call.plan("count_units", None)]
    return [call.plan("count_distinct", inner)]


def _count_if(call: Call) -> list[Aggregate]:
    return [call.plan("count", f"IF({call.column()}, TRUE, NULL)")]


def _any_row(negation: str) -> Form:
    """Counts the rows that decide: the interval shows whether there are any."""

    def form(call: Call) -> list[Aggregate]:
        return [call.plan("count", f"IF({negation}({call.column()}), TRUE, NULL)")]

    return form


def decided(name: str, column: str) -> exp.Expr | None:
    """The answer of LOGICAL_OR or LOGICAL_AND, from the count of rows that decide it."""
    if name not in ("LOGICAL_OR", "LOGICAL_AND"):
        return None
    certain = exp.GT(
        this=exp.column(f"{column}_low", quoted=True), expression=exp.Literal.number(0)
    )
    return exp.Paren(this=certain if name == "LOGICAL_OR" else exp.Not(this=certain))


def _one(function: str, **more: float) -> Form:
    def form(call: Call) -> list[Aggregate]:
        return [call.plan(function, call.column(), **more)]

    return form


def _percentile(call: Call) -> list[Aggregate]:
    if len(call.arguments) != 2:
        raise PlanError(
            f"{call.name} takes a column and a share between 0 and 1.\n"
            f"  to fix  {call.name}(x, 0.5, contribution_bounds_per_row => (0, 100))"
        )
    share = options.real(call.arguments[1], f"argument 2 of {call.name}")
    return [call.plan("quantile", canonical(call.arguments[0]), q=share)]


def _quantiles(call: Call) -> list[Aggregate]:
    """APPROX_QUANTILES(x, n): n + 1 columns NAME_0 .. NAME_n that share one tree."""
    if len(call.arguments) != 2:
        raise PlanError(f"{call.name} takes a column and a number of pieces")
    pieces = options.whole(call.arguments[1], f"argument 2 of {call.name}")
    if not 1 <= pieces <= 100:
        raise PlanError(f"{call.name} gives 1 to 100 pieces")
    inner = canonical(call.arguments[0])
    stem = call.output or default_name("quantiles", inner)
    named = [Call(call.name, f"{stem}_{i}", call.unit, [], call.named) for i in range(pieces + 1)]
    return [one.plan("quantile", inner, q=i / pieces) for i, one in enumerate(named)]


def _sketch(function: str) -> Form:
    """HEAVY_HITTERS(key, k => n) and APPROX_FREQUENCY(key), in bounded memory."""

    def form(call: Call) -> list[Aggregate]:
        sizes = {name: options.whole(tree, name) for name, tree in call.named.items()}
        return [call.plan(function, call.column(), **sizes)]

    return form


FORMS: dict[str, tuple[Form, frozenset[str]]] = {
    "HEAVY_HITTERS": (_sketch("heavy_hitters"), frozenset({"k", "memory", "bits", "text_length"})),
    "APPROX_FREQUENCY": (_sketch("approx_frequency"), frozenset({"memory"})),
    "COUNT": (_count, frozenset({BOUNDS[1], "report_format"})),
    "COUNTIF": (_count_if, frozenset({BOUNDS[1], "report_format"})),
    "LOGICAL_OR": (_any_row(""), frozenset()),
    "LOGICAL_AND": (_any_row("NOT "), frozenset()),
    **{
        name: (_one(function), VALUED if kind.combines else ROWWISE)
        for function, kind in AGGREGATES.items()
        for name in kind.sql
    },
    "PERCENTILE_CONT": (_percentile, ROWWISE),
    "APPROX_QUANTILES": (_quantiles, ROWWISE),
    "MEDIAN": (_one("quantile", q=0.5), ROWWISE),
    "APPROX_COUNT_DISTINCT": (_one("count_distinct"), frozenset({"report_format"})),
}
REFUSED: dict[str, str] = {
    "MIN": "one person can be the minimum.\n  to fix  PERCENTILE_CONT(x, 0.01) with bounds",
    "MAX": "one person can be the maximum.\n  to fix  PERCENTILE_CONT(x, 0.99) with bounds",
    **dict.fromkeys(
        ("ANY_VALUE", "ARRAY_AGG", "STRING_AGG", "MAX_BY", "MIN_BY", "ARRAY_CONCAT_AGG"),
        "it would publish somebody's value as it is.\n  to fix  GROUP BY x with COUNT(*): it shows"
        " the values that many have",
    ),
    **dict.fromkeys(
        ("APPROX_TOP_COUNT", "APPROX_TOP_SUM"),
        "values of people are groups here, which have to be found privately.\n  to fix  GROUP BY x"
        " with COUNT(*) or SUM(y), ORDER BY it DESC and LIMIT",
    ),
    **dict.fromkeys(
        ("CORR", "COVAR_POP", "COVAR_SAMP"),
        "no mechanism for it is built in.\n  to fix  SUM(x * y) with bounds, AVG(x) and AVG(y):"
        " the covariance is SUM(x * y) / COUNT(*) - AVG(x) * AVG(y)",
    ),
}  # fmt: skip


def is_aggregate(tree: exp.Expr) -> bool:
    """Whether a node calls an aggregate, known or refused."""
    return isinstance(tree, exp.Anonymous) and function_name(tree) in {*FORMS, *REFUSED}


def function_name(tree: exp.Expr) -> str:
    """The name of a call in capitals."""
    return str(tree.this if isinstance(tree.this, str) else tree.this.name).upper()


def read_aggregate(tree: exp.Expr, output: str | None, unit: str) -> tuple[list[Aggregate], bool]:
    """The aggregates of one call, and whether their bounds are per unit and group."""
    name = function_name(tree)
    if name in REFUSED:
        raise PlanError(f"{name} is not available: {REFUSED[name]}")
    form, allowed = FORMS[name]
    call = Call(name, output, unit, *_arguments(tree, name, allowed))
    if all(argument in call.named for argument in BOUNDS):
        raise PlanError(f"{name}: give contribution bounds per row or per group, not both")
    return form(call), call.per_group


def _arguments(
    tree: exp.Expr, name: str, allowed: frozenset[str]
) -> tuple[list[exp.Expr], dict[str, exp.Expr]]:
    plain: list[exp.Expr] = []
    named: dict[str, exp.Expr] = {}
    for argument in tree.expressions:
        if not isinstance(argument, exp.Kwarg):
            plain.append(argument)
            continue
        key = argument.this.name.lower()
        if key not in allowed:
            raise options.unknown_argument(name, key, allowed)
        if key in named:
            raise PlanError(f"argument '{key}' of {name} is given twice")
        named[key] = argument.expression
    _report_format(named, name)
    if name != "COUNT" and any(isinstance(part, exp.Distinct) for part in plain):
        raise HABITS["dedupe"].error()
    return plain, named


def _report_format(named: dict[str, exp.Expr], name: str) -> None:
    """Refuses other report formats: every number comes with columns of its noise and interval."""
    wanted = named.pop("report_format", None)
    if wanted is not None and options.word(wanted, "report_format").upper() != "DEFAULT":
        raise PlanError(
            f"{name}: report_format is DEFAULT only; the columns NAME_sd, NAME_low and NAME_high "
            "hold what the reports would.\n  to fix  leave report_format out"
        )
