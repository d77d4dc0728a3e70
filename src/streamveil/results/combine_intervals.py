"""Intervals for expressions over the answers of one release, whose noise is known.

A sum of answers with known factors and the ratio of two such sums have exact intervals (Gaussian
noise; Fieller's for the ratio). These, and every answer alone, are the leaves of an expression.

Proof: let an expression have k leaves, and give each an interval of confidence 1 - (1 - c) / k. By
    the union bound all of them hold at once with confidence c, and then the true value of the
    expression lies in the result of interval arithmetic on them. Where a condition may come out
    differently for the true numbers, the interval holds every branch.
Limits: intervals of means, variances and quantiles are known at the confidence of the query alone,
    so an expression of one of them and another leaf has none; nor have functions that are not
    monotone. Where a group was first seen by the very number that is added or divided, near its
    threshold, the interval of that row is wider (`apart`). A sum or ratio is unbounded where an
    answer's interval holds rows that were cut. The interval of a part of a number of rows is cut at
    0 and 1, that of a sum per row at the bounds of its values (`Answered.ratio_ends`), and the
    number itself is moved into its possible range (`possible`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlglot import exp

from streamveil.errors import INNER
from streamveil.expressions import compile_expression
from streamveil.expressions.dialect import canonical, shown
from streamveil.release_metadata import ENDS
from streamveil.results.answer_sums import (
    Answered,
    Sum,
    answer_of,
    as_numbers,
    called,
    constant,
    is_leaf,
    leaves_in,
    operands,
    ratio_of,
    sum_of,
    values_in,
)
from streamveil.results.intervals import Interval, deviations, open_ends, plain, ratio, room_of
from streamveil.types import Array

END = f"{INNER}end"  # a column beside those of a release
RISING = {  # functions that never fall -> where they begin
    "SQRT": 0.0, "LN": 0.0, "LOG10": 0.0, "EXP": -np.inf, "ROUND": -np.inf, "FLOOR": -np.inf,
    "CEIL": -np.inf, "CEILING": -np.inf, "TRUNC": -np.inf,
}  # fmt: skip


class NoIntervalError(Exception):
    """Why an expression has no interval."""


@dataclass(frozen=True)
class Span:
    """An interval for the true value of every row, and the sd of its noise; None: not known."""

    low: Array
    high: Array
    sd: Array | None = None


def interval_of(tree: exp.Expr, answered: Answered) -> Span:
    """The interval of an expression, at the confidence of its release.

    Raises:
        NoIntervalError: there is none, and why.
    """
    if set(values_in(tree)) & answered.ends:
        raise NoIntervalError(
            "it is computed from the ends or the deviation of an interval, or from a place or a"
            " text that follows from noisy numbers"
        )
    leaves = {canonical(leaf) for leaf in leaves_in(tree, answered)}
    return enclose(tree, Leaves(answered, max(1, len(leaves))))


def possible(tree: exp.Expr, answered: Answered) -> Span | None:
    """The possible range of shares, means and expressions of them, whatever the rows; or None.

    Interval arithmetic on larger intervals gives larger ones: so the range holds `interval_of`.
    """
    ratios = [ratio_of(leaf, answered) for leaf in leaves_in(tree, answered)]
    if not any(parts and answered.ratio_ends(*parts) is not None for parts in ratios):
        return None
    try:
        return enclose(tree, PossibleLeaves(answered))
    except NoIntervalError:
        return None


@dataclass(frozen=True)
class PossibleLeaves:
    """The leaves of an expression, each with its possible range: see `Answered.ratio_ends`."""

    answered: Answered

    def span(self, tree: exp.Expr) -> Span | None:
        """The possible range of a leaf; None for any other expression."""
        if not is_leaf(tree, self.answered):
            return None
        parts, end = ratio_of(tree, self.answered), np.full(self.answered.table.num_rows, np.inf)
        return within(Span(-end, end), self.answered.ratio_ends(*parts) if parts else None)


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
            rooms = room_of(answered.parts_of(top)), room_of(answered.parts_of(bottom))
            found = ratio(noises[0], noises[1], cov, z, rooms)
            return within(self.spanned(found, top, bottom), answered.ratio_ends(top, bottom))
        one = answer_of(tree, answered)
        if one is not None and self.number == 1:
            ends = (answered.column(one + end) for end in ENDS)
            return Span(*open_ends(*ends), answered.column(one + "_sd"))
        part = sum_of(tree, answered)
        if part is not None and part.factors:
            found = plain(*answered.noise_of(part), z, answered.parts_of(part))
            return self.spanned(found, part)
        if one is None:
            return None
        raise NoIntervalError(
            f"the interval of '{one}' is known at the confidence of the query alone, and several"
            " that hold at once need more"
        )

    def spanned(self, found: Interval, *sums: Sum) -> Span:
        """The interval of a leaf; where an answer's is not that of its noise alone, from its ends.

        Proof: each of the k answers of the leaf misses its ends with at most a k-th of the leaf's
            chance of errors, so by the union bound all are within theirs but for that chance.
        """
        names = dict.fromkeys(name for part in sums for name in part.factors)
        other = np.any([np.isnan(self.answered.centre(name)) for name in names], axis=0)
        if not other.any():
            return Span(found.low, found.high, found.sd)
        z = deviations(1 - (1 - self.answered.confidence) / (self.number * len(names)))
        parts = [self.apart(part, z) for part in sums]
        wide = parts[0] if len(parts) == 1 else quotient(*parts)
        return Span(
            np.where(other, wide.low, found.low), np.where(other, wide.high, found.high), found.sd
        )

    def apart(self, part: Sum, z: float) -> Span:
        """A sum while each of its answers is within its ends."""
        whole = part.constant + np.zeros(self.answered.table.num_rows)
        found = Span(whole, whole)
        for name, factor in part.factors.items():
            one = product(Span(factor, factor), Span(*self.answered.ends_at(name, z)))
            found = Span(found.low + one.low, found.high + one.high)
        return found


def within(span: Span, ends: tuple[Array, Array] | None) -> Span:
    """The part of an interval that lies between two ends."""
    if ends is None:
        return span
    return Span(np.clip(span.low, *ends), np.clip(span.high, *ends), span.sd)


# ---- interval arithmetic


def enclose(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
    """An interval that holds the true value if every leaf is in its own."""
    answered, tree = leaves.answered, tree.unnest()
    if not answered.reads(tree):
        part = constant(tree, answered)
        if part is None and not isinstance(tree, exp.Null):
            raise NoIntervalError(f"'{shown(canonical(tree))}' is not a number")
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
    """The error for an expression that is not understood."""
    what = called(tree) or type(tree).__name__.upper()
    return NoIntervalError(f"intervals are not carried through {what}")


def _both(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> tuple[Span, Span]:
    left, right = (enclose(part, leaves) for part in operands(tree))
    return left, right


def _add(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
    left, right = _both(tree, leaves)
    return Span(left.low + right.low, left.high + right.high, moved_sd(left, right))


def _subtract(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
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


def _negate(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
    span = enclose(operands(tree)[0], leaves)
    return Span(-span.high, -span.low, span.sd)


def _multiply(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
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


def _divide(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
    return quotient(*_both(tree, leaves))


def quotient(left: Span, right: Span) -> Span:
    """Left / right; unbounded where the right may be 0."""
    has_zero = (right.low <= 0) & (right.high >= 0)
    with np.errstate(divide="ignore"):
        low = np.where(has_zero, -np.inf, 1 / right.high)
        high = np.where(has_zero, np.inf, 1 / right.low)
    sd = np.zeros(len(low)) if is_exact(right) else None
    return product(left, Span(low, high, sd))


def _branches(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
    """Holds every branch that is a number: the true numbers may take another one."""
    return hull([enclose(part, leaves) for part in operands(tree)])


def hull(spans: list[Span]) -> Span:
    """The interval that holds all of these, ignoring missing ends."""
    return Span(np.fmin.reduce([one.low for one in spans]),
                np.fmax.reduce([one.high for one in spans]))  # fmt: skip


def _call(tree: exp.Expr, leaves: Leaves | PossibleLeaves) -> Span:
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
    """The interval of the distance from 0."""
    ends = np.abs([span.low, span.high])
    inside = (span.low <= 0) & (span.high >= 0)
    return Span(np.where(inside, 0.0, ends.min(axis=0)), ends.max(axis=0), None)


def _rising(tree: exp.Expr, leaves: Leaves | PossibleLeaves, name: str = "") -> Span:
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
    return Span(*open_ends(low, high))


def at(tree: exp.Expr, end: Array, leaves: Leaves | PossibleLeaves) -> Array:
    """A function of one end."""
    table = leaves.answered.table.append_column(END, pa.array(end))
    compiled = compile_expression(canonical(tree), table.schema)
    if compiled.kind not in ("int", "float"):
        raise no_interval(tree)
    return as_numbers(compiled(table))


Rule = Callable[[exp.Expr, Leaves | PossibleLeaves], Span]
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
