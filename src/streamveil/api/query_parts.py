"""What is handed to the steps of a query in Python: aggregates, keys, windows and distances."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamveil.errors import (
    PlanError,
    at_least,
    fitting,
    got,
    nearest,
    require_between,
    require_flag,
    whole,
)
from streamveil.plan import Aggregate, Window
from streamveil.sql.parts import (
    Duration,
    Instant,
    duration_us,
    length_of,
    make_aggregate,
    window_of,
)
from streamveil.types import own

Ends = tuple[float, float]  # the least and the largest value that counts as it is


@dataclass(frozen=True)
class Measure:
    """An aggregate that has no name yet."""

    function: str
    expression: str | None = None
    bounds: tuple[float, float] | None = None
    quantum: float | None = None
    per_group: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> Aggregate:
        """The aggregate of one output column."""
        return make_aggregate(
            name,
            self.function,
            self.expression,
            bounds=self.bounds,
            quantum=self.quantum,
            options=self.options,
        )


def outputs(measures: Mapping[str, Measure], such_as: str) -> tuple[Aggregate, ...]:
    """The output columns of measures by name. Raises PlanError where one is something else."""
    for name, measure in measures.items():
        if not isinstance(measure, Measure):
            raise PlanError(f"'{name}' must be an aggregate such as {such_as}, not {got(measure)}")
    return tuple(measure.named(name) for name, measure in measures.items())


@fitting('count(), or count("column")')
def count(column: str | None = None, *, per_unit: tuple[float, float] | None = None) -> Measure:
    """Rows, or rows where a column is not null.

    Args:
        column: counts rows where this column or per-row expression is not null; all if left out.
        per_unit: the most rows of one unit that count in a group, as (0, k).

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count())
    """
    return Measure("count", column, per_unit, per_group=per_unit is not None)


@fitting('count_if("ms > 100")')
def count_if(condition: str) -> Measure:
    """Rows for which a per-row SQL condition holds.

    Args:
        condition: SQL over the columns of one row.

    Raises:
        PlanError: the condition is not text, or is empty.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_if('ms > 100'))
    """
    if not isinstance(condition, str) or not condition.strip():
        raise PlanError(
            "count_if takes a condition as SQL text, such as count_if('ms > 100'),"
            f" not {got(condition)}"
        )
    return Measure("count", f"IF({condition}, TRUE, NULL)")


@fitting("count_units()")
def count_units() -> Measure:
    """The number of different privacy units.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_units())
    """
    return Measure("count_units")


@fitting('count_distinct("url")')
def count_distinct(column: str) -> Measure:
    """The number of different values; for columns other than the unit, with twice the noise.

    In a changing table: the values that its records have now, with `max_changes` in `release`.

    Args:
        column: a column or a per-row SQL expression.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_distinct("url"))
    """
    return Measure("count_distinct", column)


@fitting('sum("ms", bounds=(0, 60_000))')
def sum(  # reads as streamveil.sum
    column: str, *, bounds: Ends | None = None, quantum: float | None = None
) -> Measure:
    """The sum of values clamped to the bounds.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column; values beyond count as these.
            Left out, they are the ends of the expression, if it has any (IF(paid, 1, 0)). Otherwise
            a look at the rows chooses them, paid from the budget, if all rows are there when the
            job begins.
        quantum: the step to which values are rounded, in the unit of the column; chosen
            from the bounds if left out.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.sum("ms / 1000.0", bounds=(0, 60)))
    """
    return Measure("sum", column, bounds, quantum)


@fitting('avg("ms", bounds=(0, 60_000))')
def avg(column: str, *, bounds: Ends | None = None, quantum: float | None = None) -> Measure:
    """The mean of values clamped to the bounds.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        quantum: the step to which values are rounded, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.avg("ms", bounds=(0, 60_000)))
    """
    return Measure("avg", column, bounds, quantum)


@fitting('variance("ms", bounds=(0, 60_000))')
def variance(column: str, *, bounds: Ends | None = None, population: bool = False) -> Measure:
    """The sample variance of values clamped to the bounds, in the column's unit squared.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        population: the variance of the values themselves, without the factor n / (n - 1).

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.variance("ms", bounds=(0, 60_000)))
    """
    require_flag(population=population)
    return Measure("var_pop" if population else "variance", column, bounds)


@fitting('stddev("ms", bounds=(0, 60_000))')
def stddev(column: str, *, bounds: Ends | None = None, population: bool = False) -> Measure:
    """The standard deviation of values clamped to the bounds, in the column's unit.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        population: the deviation of the values themselves, without the factor n / (n - 1).

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.stddev("ms", bounds=(0, 60_000)))
    """
    require_flag(population=population)
    return Measure("stddev_pop" if population else "stddev", column, bounds)


@fitting('quantile("ms", 0.5, bounds=(0, 60_000))')
def quantile(column: str, q: float, *, bounds: Ends | None = None) -> Measure:
    """The value below which a share q of the values lies, in the column's unit.

    Args:
        column: a column or a per-row SQL expression.
        q: the share, between 0 and 1.
        bounds: least and largest value, in the unit of the column, as for `sum`.

    Raises:
        PlanError: q is not a number.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.quantile("ms", 0.9, bounds=(0, 60_000)))
    """
    require_between(0, 1, q=q)
    return Measure("quantile", column, bounds, options={"q": float(q)})


@fitting('median("ms", bounds=(0, 60_000))')
def median(column: str, *, bounds: Ends | None = None) -> Measure:
    """The value in the middle, in the column's unit: `quantile` at 0.5.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.median("ms", bounds=(0, 60_000)))
    """
    return quantile(column, 0.5, bounds=bounds)


@fitting('heavy_hitters("url", k=100)')
def heavy_hitters(column: str, k: int = 100, **sizes: int) -> Measure:
    """The k most frequent values, in bounded memory; stands alone in its query.

    Args:
        column: a column or a per-row SQL expression.
        k: how many, at least 1.
        **sizes: `memory` (bytes of one window), `bits` (of integer values) or `text_length` (bytes
            of texts that count, at most 1,024; fewer mean less noise).

    Raises:
        PlanError: a size is unknown or not a whole number of at least 1.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.heavy_hitters("url", k=10))
    """
    known = ("k", "memory", "bits", "text_length")
    return Measure("heavy_hitters", column, options=sketch_sizes({"k": k, **sizes}, known))


@fitting('approx_frequency("url")')
def approx_frequency(column: str, **sizes: int) -> Measure:
    """How often given public values occur, in bounded memory; stands alone in its query.

    Args:
        column: a column or a per-row SQL expression.
        **sizes: `memory` (bytes of one window).

    Raises:
        PlanError: a size is unknown or not a whole number of at least 1.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> given = visits.protect("user_id").group_by(keys=sv.public(["/a", "/c"]))
    >>> query = given.agg(answer=sv.approx_frequency("url", memory=1 << 20))
    """
    return Measure("approx_frequency", column, options=sketch_sizes(sizes, ("memory",)))


def sketch_sizes(sizes: dict[str, int], known: tuple[str, ...]) -> dict[str, int]:
    """Checked sizes of a sketch, in the order that makes equal plans equal."""
    for name in sizes:
        if name not in known:
            raise PlanError(f"unknown size '{name}'{nearest(name, known)}")
    at_least(1, **sizes)
    return {name: whole(name, value) for name, value in sizes.items()}


# ---- groups, windows and distances


@dataclass(frozen=True)
class Keys:
    """Which groups may be published."""

    min_units: int | None = None
    public: tuple[tuple[Any, ...], ...] | str | None = None


@dataclass(frozen=True)
class RowCount:
    """A number of source rows, as a distance between releases."""

    n: int


@fitting('tumble("1 month", tz="Europe/Berlin")')
def tumble(
    size: Duration,
    *,
    tz: str = "",
    origin: Instant | None = None,
    offset: Duration | None = None,
    week_start: str | None = None,
) -> Window:
    """Windows side by side, of one length: "1 day", "1 week", "1 month", "1 quarter".

    They follow the clocks of a time zone, which the whole query uses. A window begins at midnight
    of 1970-01-01 (weeks begin on Mondays, or on `week_start`), unless `origin` or `offset` says
    otherwise.

    Args:
        size: the length, "15 min", "1 day", "1 month", or a timedelta.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.
        offset: how much later windows begin than without it.
        week_start: the weekday on which weeks begin, such as "sunday"; Monday if left out.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.tumble("1 month", tz="Europe/Berlin").size_months
    1
    """
    return window_of(
        "tumble", length_of(size, "size"), zone=tz, origin=origin, week_start=week_start,
        offset=None if offset is None else duration_us(offset, "offset"),
    )  # fmt: skip


@fitting('hop("1 day", "1 hour")')
def hop(size: Duration, slide: Duration, *, tz: str = "", origin: Instant | None = None) -> Window:
    """Overlapping windows: one of `size` starts every `slide`. A row counts in each of its windows.

    Each time it counts against the bound on the rows of its unit.

    Args:
        size: the length, "15 min", "1 day", "1 month", or a timedelta.
        slide: the distance between starts, likewise.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.hop("1 day", "1 hour").slide_us // 1_000_000  # seconds
    3600
    """
    lengths = length_of(size, "size"), length_of(slide, "slide")
    return window_of("hop", *lengths, zone=tz, origin=origin)


@fitting('cumulate("1 day", "1 hour")')
def cumulate(
    size: Duration, step: Duration, *, tz: str = "", origin: Instant | None = None
) -> Window:
    """Windows that share a start and grow by `step` up to `size`.

    Args:
        size: the length of the last window, "15 min", "1 day", "1 month", or a timedelta.
        step: the length of the first window, and by how much each one is longer than the last.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.cumulate("1 day", "6 hours").kind
    'cumulate'
    """
    lengths = length_of(size, "size"), length_of(step, "step")
    return window_of("cumulate", *lengths, zone=tz, origin=origin)


@fitting("discover(min_units=20)")
def discover(min_units: int = 1) -> Keys:
    """Groups found in the data, published once they have well above `min_units` privacy units.

    Args:
        min_units: the number of units that a group must certainly exceed, at least 1.

    Raises:
        PlanError: an argument is unknown.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"]}).protect("user_id")
    >>> query = visits.group_by("url", keys=sv.discover(min_units=20))
    """
    return Keys(min_units=min_units)


@fitting('public(["a", "b"])')
def public(groups: Iterable[Any] | str) -> Keys:
    """Groups that are public anyway: values (tuples for several columns), or a file of them.

    Every release has each of them, even an empty one. Never take them from private rows.

    Args:
        groups: the values, or the path of a file of them.

    Raises:
        PlanError: `groups` is no list, or a group is not a value or a tuple of values.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"]}).protect("user_id")
    >>> query = visits.group_by("url", keys=sv.public(["/a", "/b", "/c"]))
    """
    if isinstance(groups, str):
        return Keys(public=groups)
    one_list = isinstance(groups, Iterable) and getattr(groups, "ndim", 1) == 1  # no frame
    if not one_list or isinstance(groups, bytes | Mapping):
        raise PlanError(
            "public takes a list of groups, or the path of a file of them,"
            f" not {got(groups)}.\n"
            "  to fix  public(['a', 'b']), for two columns public([('a', 1), ('b', 1)])"
        )
    groups = groups.to_pylist() if hasattr(groups, "to_pylist") else groups  # of Arrow
    found = tuple(tuple(map(own, g)) if isinstance(g, tuple | list) else (own(g),) for g in groups)
    for value in itertools.chain.from_iterable(found):
        try:
            hash(value)
        except TypeError:
            raise PlanError(
                f"a public group is a value, or a tuple of one for each column, not a "
                f"{type(value).__name__}.\n  to fix  public([('a', 1), ('b', 1)])"
            ) from None
    return Keys(public=found)


def require_first(method: str, first: bool) -> None:  # noqa: FBT001  (asked in one place a method)
    """Refuses a second call of what is said once: it would silently replace the first."""
    if not first:
        raise PlanError(f"{method} was called before.\n  to fix  say all of it in one call")


@fitting("rows(1000)")
def rows(n: int) -> RowCount:
    """Makes a release every n source rows. Row positions are then public.

    Args:
        n: rows between releases, at least 1.

    Raises:
        PlanError: n is not a whole number of at least 1.

    >>> import streamveil as sv
    >>> sv.rows(1000)
    RowCount(n=1000)
    """
    at_least(1, n=n)
    return RowCount(whole("n", n))
