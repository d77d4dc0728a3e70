"""Intervals for expressions over the answers of one release, whose noise is known.

A sum of answers with known factors and the ratio of two such sums have exact intervals (Gaussian
noise; Fieller's for the ratio). These, and every answer alone, are the leaves of an expression.

Proof: let an expression have k leaves, and give each an interval of confidence 1 - (1 - c) / k. By
    the union bound all of them hold at once with confidence c, and then the true value of the
    expression lies in what interval arithmetic makes of them. Where a condition may come out
    otherwise for the true numbers, the interval holds every branch.
Limits: intervals of means, variances and quantiles are known at the confidence of the query alone,
    so an expression of one of them and another leaf has none. Nor have functions that are not
    monotone, and rows whose intervals are not those of Gaussian noise alone (of groups that a
    Gaussian selection shows for the first time, or with the rows that were cut).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from sqlglot import exp

from streamveil.expressions.dialect import canonical, shown
from streamveil.expressions.expr import compile_expression
from streamveil.release_metadata import Facts
from streamveil.results.intervals import Interval, deviations, plain, ratio
from streamveil.types import Array

LINEAR = ("count", "count_units", "count_distinct", "sum")
SUFFIXES = ("_sd", "_low", "_high")
END = "end of an interval"  # a column beside those of a release
SLACK = 1e-3  # of a standard deviation: costs an interval a ten-thousandth of its coverage
ROUNDED = 2.0**-20  # of a number: corrected ends are rounded to 24 binary digits
RISING = {  # functions that never fall -> where they begin
    "SQRT": 0.0, "LN": 0.0, "LOG10": 0.0, "EXP": -np.inf, "ROUND": -np.inf, "FLOOR": -np.inf,
    "CEIL": -np.inf, "CEILING": -np.inf, "TRUNC": -np.inf,
}  # fmt: skip


class NoIntervalError(Exception):
    """Why an expression has no interval."""


@dataclass(frozen=True)
class Span:
    """What holds the true value of every row; sd of its noise, None where it is not known."""

    low: Array
    high: Array
    sd: Array | None = None


@dataclass(frozen=True)
class Sum:
    """A constant and answers times factors; numbers of all rows, or of each."""

    factors: Mapping[str, Array]
    constant: Array

    def times(self, number: Array) -> Sum:
        """The sum of all parts times a number."""
        return Sum({name: number * one for name, one in self.factors.items()},
                   number * self.constant)  # fmt: skip

    def plus(self, other: Sum) -> Sum:
        """Both together."""
        names = dict.fromkeys([*self.factors, *other.factors])
        none = np.zeros(1)
        both = {n: self.factors.get(n, none) + other.factors.get(n, none) for n in names}
        return Sum(both, self.constant + other.constant)


@dataclass(frozen=True)
class Answered:
    """The rows of a release and what is known of the noise of its answers."""

    table: pa.Table
    answers: Mapping[str, Facts]  # by column; no facts: nothing but the interval is known
    confidence: float = 0.95
    is_correlated: bool = False  # noise of different answers may go together, nobody knows how

    def column(self, name: str) -> Array:
        """A column as numbers, nulls as NaN."""
        return as_numbers(self.table.column(name))

    def reads(self, tree: exp.Expr) -> set[str]:
        """The answers that an expression computes with."""
        return {name for name in names_in(tree) if name in self.answers}

    @cached_property
    def ends(self) -> set[str]:
        """Columns that go with answers."""
        return {name + suffix for name in self.answers for suffix in SUFFIXES}

    @property
    def z(self) -> float:
        """Deviations of the released intervals."""
        return deviations(self.confidence)

    def centre(self, name: str) -> Array:
        """A number before post-processing; NaN where its interval is not that of its noise alone.

        Where an interval was cut at 0 its other end tells; where nothing is left of it, the number
        is at most the one taken, which is nearer to the truth.
        """
        low, high, sd = (self.column(name + end) for end in ("_low", "_high", "_sd"))
        reach, facts = self.z * sd, self.answers[name]
        off = SLACK * sd + ROUNDED * np.maximum(np.abs(low), np.abs(high))
        whole = np.abs(high - low - 2 * reach) <= off
        found = np.where(whole, (low + high) / 2, np.nan)
        if not facts.get("non_negative"):
            return np.asarray(found)
        cut = (low == 0) & (high <= 2 * reach) & ~self._may_be_new
        return np.where(cut & ~whole, np.where(high > 0, high - reach, -reach), found)

    @property
    def _may_be_new(self) -> Array:
        """Groups whose intervals may have been corrected for being shown for the first time."""
        if {"opened", "trigger"} <= set(self.table.column_names):
            return np.asarray(self.column("opened") == self.column("trigger"))
        return np.ones(self.table.num_rows, np.bool_)

    def covariance(self, one: str, two: str) -> tuple[Array, Array]:
        """Between which ends the covariance of the noise of two answers lies."""
        most = self.column(one + "_sd") * self.column(two + "_sd")
        if one == two:
            return most, most
        if self.is_correlated:
            return -most, most
        if self.answers[one]["lanes"] == self.answers[two]["lanes"]:
            return most, most  # the same total under two names
        return 0 * most, 0 * most

    def joint(self, left: Sum, right: Sum) -> tuple[Array, Array]:
        """The same of two sums."""
        low = high = np.zeros(self.table.num_rows)
        for one, a in left.factors.items():
            for two, b in right.factors.items():
                ends = [a * b * end for end in self.covariance(one, two)]
                low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return low, high

    def noise_of(self, part: Sum) -> tuple[Array, Array]:
        """Value and variance of a sum."""
        value = part.constant + np.zeros(self.table.num_rows)
        for name, factor in part.factors.items():
            value = value + factor * self.centre(name)
        return value, self.joint(part, part)[1]


def interval_of(tree: exp.Expr, answered: Answered) -> Span:
    """The interval of an expression, at the confidence of its release.

    Raises:
        NoIntervalError: there is none, and why.
    """
    if set(names_in(tree)) & answered.ends:
        raise NoIntervalError("it is computed from the ends or the deviation of an interval")
    leaves = {canonical(leaf) for leaf in leaves_in(tree, answered)}
    return enclose(tree, Leaves(answered, max(1, len(leaves))))


@dataclass(frozen=True)
class Leaves:
    """The leaves of an expression, each with its part of the chance of errors."""

    answered: Answered
    number: int

    def span(self, tree: exp.Expr) -> Span | None:
        """The interval of a leaf; None for any other expression."""
        answered = self.answered
        z = deviations(1 - (1 - answered.confidence) / self.number)
        parts = ratio_of(tree, answered)
        if parts is not None:
            top, bottom = parts
            noises, cov = [answered.noise_of(part) for part in parts], answered.joint(top, bottom)
            found = ratio(noises[0], noises[1], cov, z)
            return spanned(found, [*top.factors, *bottom.factors], answered)
        one = answer_of(tree, answered)
        if one is not None and self.number == 1:
            return Span(*(answered.column(one + end) for end in ("_low", "_high", "_sd")))
        part = sum_of(tree, answered)
        if part is not None and part.factors:
            return spanned(plain(*answered.noise_of(part), z), [*part.factors], answered)
        if one is None:
            return None
        raise NoIntervalError(
            f"the interval of '{one}' is known at the confidence of the query alone, and several"
            " that hold at once need more"
        )


def spanned(found: Interval, names: list[str], answered: Answered) -> Span:
    """The interval of a leaf, unbounded where that of an answer has other parts than noise."""
    unknown = np.any([np.isnan(answered.centre(name)) for name in names], axis=0)
    return Span(
        np.where(unknown, -np.inf, found.low), np.where(unknown, np.inf, found.high), found.sd
    )


# ---- what an expression is made of


def names_in(tree: exp.Expr) -> Iterator[str]:
    """The columns it names."""
    return (column.name for column in tree.find_all(exp.Column))


def leaves_in(tree: exp.Expr, answered: Answered) -> Iterator[exp.Expr]:
    """The largest parts whose intervals are known at once."""
    if not answered.reads(tree):
        return
    if is_leaf(tree, answered):
        yield tree
        return
    for part in operands(tree):
        yield from leaves_in(part, answered)


def is_leaf(tree: exp.Expr, answered: Answered) -> bool:
    """Whether an expression is an answer, a sum of several or a ratio of sums."""
    part = sum_of(tree, answered)
    return (
        answer_of(tree, answered) is not None
        or ratio_of(tree, answered) is not None
        or (part is not None and len(part.factors) > 1)
    )


def operands(tree: exp.Expr) -> list[exp.Expr]:
    """The parts that a value is made of; conditions are none of them."""
    if isinstance(tree, exp.If):
        return [part for part in (tree.args["true"], tree.args.get("false")) if part is not None]
    if isinstance(tree, exp.Case):
        last = tree.args.get("default")
        return [one.args["true"] for one in tree.args["ifs"]] + ([] if last is None else [last])
    if isinstance(tree, exp.Anonymous):
        return list(tree.expressions)
    parts = (tree.args.get("this"), tree.args.get("expression"))
    return [part for part in parts if isinstance(part, exp.Expr)]


def answer_of(tree: exp.Expr, answered: Answered) -> str | None:
    """The answer that an expression is, if it is nothing more."""
    tree = tree.unnest()
    return tree.name if isinstance(tree, exp.Column) and tree.name in answered.answers else None


def sum_of(tree: exp.Expr, answered: Answered) -> Sum | None:
    """An expression as a sum of answers whose noise is Gaussian; None where it is none."""
    tree = tree.unnest()
    if not answered.reads(tree):
        return constant(tree, answered)
    one = answer_of(tree, answered)
    if one is not None:
        known = answered.answers[one].get("function") in LINEAR
        return Sum({one: np.ones(1)}, np.zeros(1)) if known else None
    parts = [sum_of(part, answered) for part in operands(tree)]
    if any(part is None for part in parts):
        return None
    left, right = (parts[0], parts[-1])
    assert left is not None and right is not None  # noqa: S101, PT018  (looked at above)
    if isinstance(tree, exp.Neg):
        return left.times(-np.ones(1))
    if isinstance(tree, exp.Add):
        return left.plus(right)
    if isinstance(tree, exp.Sub):
        return left.plus(right.times(-np.ones(1)))
    return product_of(tree, left, right)


def product_of(tree: exp.Expr, left: Sum, right: Sum) -> Sum | None:
    """A sum times or divided by a number."""
    if isinstance(tree, exp.Mul) and not right.factors:
        return left.times(right.constant)
    if isinstance(tree, exp.Mul) and not left.factors:
        return right.times(left.constant)
    if isinstance(tree, exp.Div) and not right.factors:
        with np.errstate(divide="ignore"):
            return left.times(1 / right.constant)
    return None


def ratio_of(tree: exp.Expr, answered: Answered) -> tuple[Sum, Sum] | None:
    """Two sums of answers of which an expression is the ratio: a / b, SAFE_DIVIDE(a, b)."""
    tree = tree.unnest()
    if not isinstance(tree, exp.Div) and called(tree) != "SAFE_DIVIDE":
        return None
    top, bottom = operands(tree)
    if called(bottom.unnest()) == "NULLIF":  # of 0: there is no ratio then either
        bottom = operands(bottom.unnest())[0]
    parts = sum_of(top, answered), sum_of(bottom, answered)
    if parts[0] is None or parts[1] is None or not (parts[0].factors and parts[1].factors):
        return None
    return parts[0], parts[1]


def called(tree: exp.Expr) -> str:
    """The function that an expression calls, in capitals."""
    return str(tree.this).upper() if isinstance(tree, exp.Anonymous) else ""


def constant(tree: exp.Expr, answered: Answered) -> Sum | None:
    """Numbers in which no answer has a part."""
    compiled = compile_expression(canonical(tree), answered.table.schema)
    if compiled.kind not in ("int", "float"):
        return None
    return Sum({}, as_numbers(compiled(answered.table)))


def as_numbers(column: pa.Array | pa.ChunkedArray) -> Array:
    """A column as floating-point numbers, nulls as NaN."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), float)


# ---- interval arithmetic


def enclose(tree: exp.Expr, leaves: Leaves) -> Span:
    """What holds the true value, while every leaf is in its interval."""
    answered, tree = leaves.answered, tree.unnest()
    if not answered.reads(tree):
        part = constant(tree, answered)
        if part is None and not isinstance(tree, exp.Null):
            raise NoIntervalError(f"'{shown(canonical(tree))}' is no number")
        number = np.full(answered.table.num_rows, np.nan) if part is None else part.constant
        return Span(number, number, np.zeros(len(number)))
    if is_leaf(tree, answered):
        found = leaves.span(tree)
        assert found is not None  # noqa: S101  (it is a leaf)
        return found
    rule = RULES.get(type(tree))
    if rule is None:
        raise no_interval(tree)
    return rule(tree, leaves)


def no_interval(tree: exp.Expr) -> NoIntervalError:
    """For an expression that is not understood."""
    what = called(tree) or type(tree).__name__.upper()
    return NoIntervalError(f"intervals are not carried through {what}")


def _both(tree: exp.Expr, leaves: Leaves) -> tuple[Span, Span]:
    left, right = (enclose(part, leaves) for part in operands(tree))
    return left, right


def _add(tree: exp.Expr, leaves: Leaves) -> Span:
    left, right = _both(tree, leaves)
    return Span(left.low + right.low, left.high + right.high, moved_sd(left, right))


def _subtract(tree: exp.Expr, leaves: Leaves) -> Span:
    left, right = _both(tree, leaves)
    return Span(left.low - right.high, left.high - right.low, moved_sd(left, right))


def moved_sd(left: Span, right: Span) -> Array | None:
    """The deviation of a sum or difference of which one part has no noise."""
    for one, other in ((left, right), (right, left)):
        if is_exact(one):
            return other.sd
    return None


def is_exact(span: Span) -> bool:
    """Whether there is no noise in it."""
    return span.sd is not None and not span.sd.any()


def _negate(tree: exp.Expr, leaves: Leaves) -> Span:
    span = enclose(operands(tree)[0], leaves)
    return Span(-span.high, -span.low, span.sd)


def _multiply(tree: exp.Expr, leaves: Leaves) -> Span:
    return product(*_both(tree, leaves))


def product(left: Span, right: Span) -> Span:
    """The least and the largest product of ends; 0 times an unbounded end is 0."""
    with np.errstate(invalid="ignore"):
        ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    ends = [np.where(np.isnan(end), 0.0, end) for end in ends]
    sd = None
    for one, other in ((left, right), (right, left)):
        if is_exact(one) and other.sd is not None:
            sd = np.abs(one.low) * other.sd
    return Span(np.min(ends, axis=0), np.max(ends, axis=0), sd)


def _divide(tree: exp.Expr, leaves: Leaves) -> Span:
    left, right = _both(tree, leaves)
    has_zero = (right.low <= 0) & (right.high >= 0)
    with np.errstate(divide="ignore"):
        low = np.where(has_zero, -np.inf, 1 / right.high)
        high = np.where(has_zero, np.inf, 1 / right.low)
    sd = np.zeros(len(low)) if is_exact(right) else None
    return product(left, Span(low, high, sd))


def _branches(tree: exp.Expr, leaves: Leaves) -> Span:
    """Holds every branch that is a number: the true numbers may take another one."""
    return hull([enclose(part, leaves) for part in operands(tree)])


def hull(spans: list[Span]) -> Span:
    """What holds all of them, where they are."""
    return Span(np.fmin.reduce([one.low for one in spans]),
                np.fmax.reduce([one.high for one in spans]))  # fmt: skip


def _call(tree: exp.Expr, leaves: Leaves) -> Span:
    name = called(tree)
    if name in ("COALESCE", "IFNULL"):
        return _branches(tree, leaves)
    if name == "SAFE_DIVIDE":
        return _divide(tree, leaves)
    if name == "NULLIF":
        return enclose(tree.expressions[0], leaves)
    if name == "ABS":
        return magnitude(enclose(tree.expressions[0], leaves))
    if name in ("GREATEST", "LEAST"):
        spans = [enclose(part, leaves) for part in tree.expressions]
        chosen = np.maximum if name == "GREATEST" else np.minimum
        return Span(chosen.reduce([one.low for one in spans]),
                    chosen.reduce([one.high for one in spans]))  # fmt: skip
    return _rising(tree, leaves, name)


def magnitude(span: Span) -> Span:
    """Of the distance from 0."""
    ends = np.abs([span.low, span.high])
    inside = (span.low <= 0) & (span.high >= 0)
    return Span(np.where(inside, 0.0, ends.min(axis=0)), ends.max(axis=0), None)


def _rising(tree: exp.Expr, leaves: Leaves, name: str = "") -> Span:
    """A function that never falls, or a CAST to numbers, at both ends."""
    first = tree.expressions[0] if name else tree.this
    others = tree.expressions[1:] if name else []
    if (name and name not in RISING) or any(leaves.answered.reads(part) for part in others):
        raise no_interval(tree)
    span = enclose(first, leaves)
    copy = tree.copy()
    place = copy.expressions[0] if name else copy.this
    place.replace(exp.column(END, quoted=True))
    least = RISING.get(name, -np.inf)
    low, high = (at(copy, np.maximum(end, least), leaves) for end in (span.low, span.high))
    return Span(np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high))


def at(tree: exp.Expr, end: Array, leaves: Leaves) -> Array:
    """A function of one end."""
    table = leaves.answered.table.append_column(END, pa.array(end))
    compiled = compile_expression(canonical(tree), table.schema)
    if compiled.kind not in ("int", "float"):
        raise no_interval(tree)
    return as_numbers(compiled(table))


Rule = Callable[[exp.Expr, Leaves], Span]
RULES: dict[type, Rule] = {
    exp.Add: _add,
    exp.Sub: _subtract,
    exp.Neg: _negate,
    exp.Mul: _multiply,
    exp.Div: _divide,
    exp.If: _branches,
    exp.Case: _branches,
    exp.Anonymous: _call,
    exp.Cast: _rising,
    exp.TryCast: _rising,
}
