"""The known facts on the answers of one release, and their sums and ratios in an expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.errors import INNER
from streamveil.expressions import compile_expression
from streamveil.expressions.dialect import canonical
from streamveil.kinds import COUNTS, TOTALS
from streamveil.release_metadata import SUFFIXES, UNBOUNDED, Facts
from streamveil.results.intervals import (
    RoundedPart,
    deviations,
    open_ends,
    reach_by,
    rounded_parts,
)
from streamveil.types import Array

PARTS = ("valid", "units")  # kinds of sums to which a row adds 0 or 1
SHIFT = "shift"  # among the facts of a number of another row: the column that says which row
TOTAL = "total"  # among the facts of a total over rows: the columns that `TotalParts` names
REPEATED = "repeated"  # among the facts of a number that may stand in several rows, as one draw
ROW = f"{INNER}row"  # a column of row numbers, for joined numbers of other rows
SLACK = 1e-3  # of a standard deviation: costs an interval a ten-thousandth of its coverage
ROUNDED = 2.0**-20  # of a number: corrected ends are rounded to 24 binary digits
HALF = 0.5  # by which a released count may lie below the number it was rounded from


class TotalParts(NamedTuple):
    """Columns beside a total over rows."""

    own: str  # the deviation of the row's own number
    least: str  # the total without the groups that were chosen by these numbers
    least_sd: str
    most: str  # the total with all of them


@dataclass(frozen=True)
class Sum:
    """A constant plus answers times factors; one number for all rows, or one for each."""

    factors: Mapping[str, Array]
    constant: Array

    def times(self, number: Array) -> Sum:
        """The sum of all parts times a number."""
        return Sum({name: number * one for name, one in self.factors.items()},
                   number * self.constant)  # fmt: skip

    def plus(self, other: Sum) -> Sum:
        """The sum of both."""
        names = dict.fromkeys([*self.factors, *other.factors])
        none = np.zeros(1)
        both = {n: self.factors.get(n, none) + other.factors.get(n, none) for n in names}
        return Sum(both, self.constant + other.constant)


@dataclass(frozen=True)
class Answered:
    """The rows of a release and the known facts on the noise of its answers."""

    table: pa.Table
    answers: Mapping[str, Facts]  # by column; no facts: nothing but the interval is known
    confidence: float = 0.95
    is_correlated: bool = False  # noise of different answers may be correlated in an unknown way
    holds_cut_rows: bool = False  # intervals hold the rows over the bound too (intervals = 'true')
    lanes: tuple[Facts, ...] = ()  # the release's sums, by place; none where rows were paired
    follow: frozenset[str] = frozenset()  # other columns that follow from answers: places, texts

    def column(self, name: str) -> Array:
        """A column as numbers, nulls as NaN."""
        return as_numbers(self.table.column(name))

    def reads(self, tree: exp.Expr) -> set[str]:
        """The answers that an expression reads."""
        return {name for name in names_in(tree) if name in self.answers}

    @cached_property
    def ends(self) -> set[str]:
        """Columns that go with answers, or follow from them without an interval."""
        return {name + suffix for name in self.answers for suffix in SUFFIXES} | self.follow

    @property
    def z(self) -> float:
        """Deviations of the released intervals."""
        return deviations(self.confidence)

    def centre(self, name: str) -> Array:
        """A number before post-processing; NaN where its interval is not that of its noise alone.

        Where an interval was cut at 0 its other end gives the number. Where nothing is left of the
        interval, the number is at most minus its reach, which is taken: it is nearer to the truth.
        """
        if TOTAL in self.answers[name]:
            parts: TotalParts = self.answers[name][TOTAL]
            is_plain = self.column(parts.least_sd) == self.column(name + "_sd")
            return np.where(is_plain, self.column(parts.least), np.nan)
        low, high, sd = (self.column(name + end) for end in ("_low", "_high", "_sd"))
        facts = self.answers[name]
        reach = reach_by(facts, sd, self.z)
        off = SLACK * sd + ROUNDED * np.maximum(np.abs(low), np.abs(high))
        with np.errstate(invalid="ignore"):  # of ends that are infinite
            whole = np.abs(high - low - 2 * reach) <= off
            found = np.where(whole, (low + high) / 2, np.nan)
        if not facts.get("non_negative") or SHIFT in facts:
            return np.asarray(found)
        cut = (low == 0) & (high <= 2 * reach) & ~self._may_be_chosen(facts)
        return np.where(cut & ~whole, np.where(high > 0, high - reach, -reach), found)

    def _may_be_chosen(self, facts: Facts) -> Array:
        """Groups that this number may have shown, so that its interval may have been corrected.

        All groups, if a lane holds the counts that show groups at every trigger, or if the release
        does not say; else those that are shown for the first time.
        """
        told = {"opened", "trigger"} <= set(self.table.column_names)
        at_each = (lane in range(len(self.lanes)) and self.lanes[lane].get("rounded")
                   for lane in facts.get("lanes", ()))  # fmt: skip
        if any(at_each) or not told:
            return np.ones(self.table.num_rows, np.bool_)
        return np.asarray(self.column("opened") == self.column("trigger"))

    def chosen(self, name: str) -> Array:
        """The groups that this number itself may have shown: its interval is not that of its noise.

        Only for counts, which are at least 0; see `ends_at`.
        """
        facts = self.answers[name]
        may_be = facts.get("function") in COUNTS and not {SHIFT, TOTAL} & set(facts)
        here = np.isfinite(self.column(name)) & (may_be and not self.holds_cut_rows)
        return np.asarray(np.isnan(self.centre(name)) & here)

    def ends_at(self, name: str, z: float) -> tuple[Array, Array]:
        """The ends between which the true number lies, with the confidence of z deviations.

        Proof: the noise of a group that its own numbers showed tends to be larger than without that
            condition (`since_published`): it is below -z deviations at most as often, and the upper
            end holds. The lower end is 0. Noise of different rows is independent, so the same is
            true of the sum of several, and leaving such groups out takes nothing negative from a
            sum. All of this is true of any count whose released number is not below the noisy one.
        """
        facts, sd = self.answers[name], self.column(name + "_sd")
        reach = reach_by(facts, sd, z)
        if TOTAL in facts:
            parts: TotalParts = facts[TOTAL]
            least_sd = self.column(parts.least_sd)
            low = self.column(parts.least) - reach_by(facts, least_sd, z)
            high = self.column(parts.most) + reach
        else:
            chosen, centre = self.chosen(name), self.centre(name)
            low = np.where(chosen, 0.0, centre - reach)
            high = np.where(chosen, self.column(name) + HALF, centre) + reach
        return open_ends(low, high)

    def covariance(self, one: str, two: str) -> tuple[Array, Array]:
        """The ends between which the covariance of the noise of two answers lies."""
        most = self.column(one + "_sd") * self.column(two + "_sd")
        if one == two:
            return most, most
        if self.is_correlated:
            return -most, most
        left, right = self.answers[one], self.answers[two]
        if not any(lane in right["lanes"] for lane in left["lanes"]):
            return 0 * most, 0 * most
        if REPEATED in left or REPEATED in right:
            return -most, most
        if left["lanes"] != right["lanes"]:
            return self._of_parts(one, two, most)
        if TOTAL in left or TOTAL in right:
            return self._of_totals(one, two, most)
        same = most * (self._row(one) == self._row(two))
        return same, same  # the same total under two names

    def _of_parts(self, one: str, two: str, most: Array) -> tuple[Array, Array]:
        """The covariance of two numbers with lanes in common, by the factors of both.

        The variance of a lane is that of an answer which is this lane alone. Without such an
        answer, it is at least 0; likewise in totals, which share it in unknown rows.
        """
        left, right = self.answers[one], self.answers[two]
        totals = TOTAL in left or TOTAL in right
        low = high = 0 * most
        for lane, a in parts_of(left):
            for b in (factor for other, factor in parts_of(right) if other == lane):
                alone = None if totals else self._alone(lane, one, two)
                ends = (0 * most, most * np.sign(a * b)) if alone is None else (a * b * alone,) * 2
                low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        together = totals | (self._row(one) == self._row(two))
        return np.maximum(low * together, -most), np.minimum(high * together, most)

    def _alone(self, lane: Any, one: str, two: str) -> Array | None:
        """The variance of a lane that both share, in their row; None if no answer is just it."""
        own = [one, two]
        if all(SHIFT not in self.answers[name] for name in own):
            plain = (name for name, facts in self.answers.items()
                     if not {SHIFT, TOTAL, REPEATED} & set(facts))  # fmt: skip
            own += plain
        found = (name for name in own if self.answers[name].get("lanes") == [lane]
                 and self.answers[name].get("function") in TOTALS)  # fmt: skip
        name = next(found, None)
        return None if name is None else self.column(name + "_sd") ** 2

    def _of_totals(self, one: str, two: str, most: Array) -> tuple[Array, Array]:
        """The covariance of a total and a number: the total includes the number of its own row.

        Two totals, and a total and a number of another row, may share any of their rows.
        """
        total, other = (one, two) if TOTAL in self.answers[one] else (two, one)
        facts = self.answers[other]
        if TOTAL in facts or SHIFT in facts:
            return -most, most
        own = self.column(self.answers[total][TOTAL].own) * self.column(other + "_sd")
        return own, own

    def _row(self, name: str) -> Array:
        """The row of the release to which each number of a column belongs; -1 for none."""
        shift = self.answers[name].get(SHIFT)
        column = ROW if shift is None else shift
        if column not in self.table.column_names:
            return np.zeros(1)
        return np.asarray(pc.fill_null(self.table.column(column), -1))

    def ratio_ends(self, top: Sum, bottom: Sum) -> tuple[Array, Array] | None:
        """The ends between which a ratio of two sums must lie, whatever the rows; None: not known.

        For COUNTIF(x) / COUNT(*), COUNT(x) / COUNT(*), COUNT(DISTINCT unit) / COUNT(*),
        SUM(x) / COUNT(x) and SUM(x) / COUNT(*), and each times a number.

        Proof: a row that counts in a number of rows adds 1 to it, and 0 or 1 to numbers of rows
            with a property and of units, before bounding and after it. So these are at most the
            number of rows of the same group and release, and at least 0. To a sum it adds its
            value, within the bounds, or nothing if it has none; only rows with a value count in
            COUNT(x).
        """
        names = *top.factors, *bottom.factors
        if len(names) != 2 or top.constant.any() or bottom.constant.any():
            return None
        ends = self._per_row(*names)
        if ends is None:
            return None
        factor = top.factors[names[0]] / bottom.factors[names[1]]
        if not np.isfinite(factor).all():
            return None
        low, high = (factor * end for end in ends)
        return np.minimum(low, high), np.maximum(low, high)

    def _per_row(self, top: str, bottom: str) -> tuple[float, float] | None:
        """The ends of a number per row that another number counts."""
        over, under = self._lane_of(top), self._lane_of(bottom)
        if over is None or under is None or under["kind"] not in ("rows", "valid"):
            return None
        if UNBOUNDED in self.answers[top]:
            return None
        if over["kind"] == "sum":
            low, high = self.answers[top]["low"], self.answers[top]["high"]
            if under["kind"] == "rows":
                return min(low, 0.0), max(high, 0.0)
            return (low, high) if over["value"] == under["value"] else None
        return (0.0, 1.0) if over["kind"] in PARTS and under["kind"] == "rows" else None

    def _lane_of(self, name: str) -> Facts | None:
        """The sum of an answer; None for others, and for one of another row or of several.

        A sum that is moved back by a count is the last of its lanes.
        """
        facts = self.answers[name]
        lanes = [] if SHIFT in facts or TOTAL in facts else facts.get("lanes", ())
        known = lanes and isinstance(lanes[-1], int) and lanes[-1] < len(self.lanes)
        return self.lanes[lanes[-1]] if known and facts.get("function") in TOTALS else None

    def joint(self, left: Sum, right: Sum) -> tuple[Array, Array]:
        """The ends between which the covariance of the noise of two sums lies."""
        low = high = np.zeros(self.table.num_rows)
        for one, a in left.factors.items():
            for two, b in right.factors.items():
                ends = [a * b * end for end in self.covariance(one, two)]
                low, high = low + np.minimum(*ends), high + np.maximum(*ends)
        return low, high

    def parts_of(self, part: Sum) -> list[RoundedPart]:
        """The rounded parts of a sum, as far as releases state them."""
        return rounded_parts(
            (facts, name if TOTAL in facts else facts.get(SHIFT), factor, self.column(name + "_sd"))
            for name, factor in part.factors.items()
            for facts in [self.answers[name]]
        )

    def noise_of(self, part: Sum) -> tuple[Array, Array]:
        """Value and variance of a sum; the released number replaces an unknown centre."""
        value = part.constant + np.zeros(self.table.num_rows)
        for name, factor in part.factors.items():
            centre = self.centre(name)
            value = value + factor * np.where(np.isnan(centre), self.column(name), centre)
        return value, self.joint(part, part)[1]


def parts_of(facts: Facts) -> Iterator[tuple[Any, float]]:
    """The lanes that a count or sum adds up, each with its factor."""
    return zip(facts["lanes"], facts.get("factors", [1.0]), strict=True)


def names_in(tree: exp.Expr) -> Iterator[str]:
    """The columns that an expression names."""
    return (column.name for column in tree.find_all(exp.Column))


def values_in(tree: exp.Expr) -> Iterator[str]:
    """The columns that a value is made of, without those of conditions that choose it."""
    if isinstance(tree, exp.Column):
        yield tree.name
    branches = isinstance(tree, exp.If | exp.Case)
    for part in operands(tree) if branches else tree.iter_expressions():
        yield from values_in(part)


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
    """The parts that a value is made of, without conditions."""
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
        known = answered.answers[one].get("function") in TOTALS
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
    """Numbers that depend on no answer."""
    compiled = compile_expression(canonical(tree), answered.table.schema)
    if compiled.kind not in ("int", "float"):
        return None
    return Sum({}, as_numbers(compiled(answered.table)))


def as_numbers(column: pa.Array | pa.ChunkedArray) -> Array:
    """A column as floating-point numbers, nulls as NaN."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), float)
