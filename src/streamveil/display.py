"""Answers and explanations as people see them: as text, as HTML, as a frame, as a picture.

Each form shows the notes of an answer together with its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from html import escape
from io import BytesIO
from itertools import zip_longest
from math import floor, isfinite, log10
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import (
    PlanError,
    at_least,
    nearest,
    require_text,
    requires_extra,
    visible,
    visible_lines,
)
from streamveil.release_metadata import ENDS, SUFFIXES, numbers_of

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

SHOWN = 20  # rows as text, HTML or picture
DECIMALS = 3
MOST_DECIMALS = 12
LONG = 1e15  # numbers from here on are not written out
FOR_PROGRAMS = ("opened", "noise_weight", "window_end")  # columns that people do not see
LABEL = 30  # characters of one column of a key
RANKS = {"rank_best": "rank at best", "rank_worst": "rank at worst", "certain": "certain"}
STYLE = (
    "<style scoped>table.streamveil{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "table.streamveil td,table.streamveil th{padding:.2em .7em;text-align:left}"
    "table.streamveil .n{text-align:right}</style>"
)


class AnswerTable:
    """A table of answers (`table`) with notes about it (`notes`), for other packages.

    >>> class Example(AnswerTable):
    ...     table = pa.table({"page": ["a"], "n": [70], "n_sd": [10.0],
    ...                       "n_low": [50.4], "n_high": [89.6]})
    ...     notes = ("with noise",)
    >>> print(Example())
    page   n  interval
       a  70   50 … 90
    note: with noise
    """

    table: pa.Table
    notes: Sequence[str]

    @property
    def numbers(self) -> list[str]:
        """The columns that hold noisy numbers: those with a standard deviation and an interval."""
        return numbers_of(self.table.column_names)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas frame, with the notes in `frame.attrs["notes"]`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        with requires_extra("to_pandas()", "frames"):
            frame: pandas.DataFrame = as_frame(self.table)
        frame.attrs = {"notes": list(self.notes)}
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The rows as a Polars frame.

        Raises:
            MissingExtraError: Polars is not installed.
        """
        with requires_extra("to_polars()", "frames"):
            import polars
        return polars.DataFrame(self.table)

    def plot(self, name: str | None = None, *, most: int = SHOWN) -> Figure:
        """A matplotlib figure of one number and its intervals: the `most` largest groups.

        Args:
            name: a column of a noisy number; the first one if left out.
            most: groups to draw, at least 1.

        Raises:
            PlanError: there is no such number, or `most` is none.
            MissingExtraError: matplotlib is not installed.
        """
        at_least(1, most=most)
        return plotted(self.table, self.notes, self.number(name), most)

    def number(self, name: str | None) -> str:
        """The column of a noisy number: the one named, or else the first that is not null.

        Args:
            name: a column; None: the first one with an interval, unless it is null in all rows.

        Raises:
            PlanError: there is no such number.
        """
        if not self.numbers:
            raise PlanError("there is no number with an interval to plot")
        if name is not None:
            require_text(name=name)
        if name is not None and name not in self.numbers:
            raise PlanError(f"'{name}' is not a number here{nearest(name, self.numbers)}")
        return name or first_known(self.table, self.numbers)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for other packages: `polars.DataFrame(answer)`, `duckdb.sql("from answer")`."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __str__(self) -> str:
        return text_of(self.table, self.notes)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return STYLE + html_of(self.table, self.notes, most=SHOWN)


def first_known(table: pa.Table, numbers: Sequence[str]) -> str:
    """The first number that is not null in every row; if all are, the first number.

    >>> first_known(pa.table({"s": pa.nulls(2), "n": [1, None]}), ["s", "n"])
    'n'
    """
    known = (name for name in numbers if table[name].null_count < table.num_rows)
    return next(known, numbers[0])


def keys_of(table: pa.Table) -> list[str]:
    """The columns before the first noisy number: the key of a group."""
    names = list(table.column_names)
    numbers = numbers_of(names)
    return names[: names.index(numbers[0])] if numbers else names


def columns_of(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns that people see, and which of them are numbers with an interval.

    >>> columns_of(["page", "n", "n_sd", "n_low", "n_high", "opened"])
    (['page', 'n'], ['n'])
    """
    numbers = [name for name in names if all(name + end in names for end in ENDS)]
    hidden = {name + end for name in numbers for end in SUFFIXES}.union(FOR_PROGRAMS)
    return [name for name in names if name not in hidden], numbers


def heads_of(columns: Sequence[str], numbers: Sequence[str]) -> list[tuple[str, bool]]:
    """The heads of the shown columns, each with whether it holds figures."""
    found: list[tuple[str, bool]] = []
    for name in columns:
        found.append((visible(RANKS.get(name, name)), name in numbers or name in RANKS))
        found += [("interval", True)] * (name in numbers)
    return found


def cells_of(row: dict[str, Any], columns: Sequence[str], numbers: Sequence[str]) -> list[str]:
    """The cells of one row: a number and its interval, whole or as precise as its noise.

    >>> row = {"page": None, "n": 1234, "n_sd": 8.2, "n_low": 1217.93, "n_high": 1250.07}
    >>> cells_of(row, ["page", "n"], ["n"])
    ['none', '1,234', '1,217.9 … 1,250.1']
    >>> cells_of(row | {"n_low": 1218.0, "n_high": 1250.0}, ["n"], ["n"])
    ['1,234', '1,218 … 1,250']
    """
    made = []
    for name in columns:
        value = row[name]
        if name in numbers:
            low, high = ends = [row[name + end] for end in ENDS]
            if isinstance(value, int) and all(one is not None and one % 1 == 0 for one in ends):
                low, high = map(int, ends)
            form = partial(figure, sd=row.get(f"{name}_sd"))
            made += [form(value), "none" if low is high is None else f"{form(low)} … {form(high)}"]
        elif name in RANKS and not isinstance(value, bool):
            made.append("open" if value is None else f"{value:,}")
        else:
            made.append(name_of(value))
    return made


def text_of(table: pa.Table, notes: Sequence[str]) -> str:
    """The first rows in columns, then the notes."""
    columns, numbers = columns_of(table.column_names)
    rows = [[head for head, _ in heads_of(columns, numbers)]]
    rows += [cells_of(row, columns, numbers) for row in rows_of(table.slice(0, SHOWN))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in rows]
    more = table.num_rows - SHOWN
    lines += [f"… and {more:,} more rows"] if more > 0 else []
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def html_of(table: pa.Table, notes: Sequence[str], most: int | None = None) -> str:
    """Rows with a heading, each interval in one cell, and the notes below.

    >>> html_of(pa.table({"page": ["<a>"]}), ["noise"])
    '<table class="streamveil"><tr><th>page</th></tr><tr><td>&lt;a&gt;</td></tr></table>\
<p class="note">noise.</p>'
    """
    columns, numbers = columns_of(table.column_names)
    heads = heads_of(columns, numbers)
    sides = [' class="n"' * is_figure for _, is_figure in heads]
    shown = table if most is None else table.slice(0, most)
    body = row_html([head for head, _ in heads], "th", sides) + "".join(
        row_html(cells_of(row, columns, numbers), "td", sides) for row in rows_of(shown)
    )
    more = table.num_rows - shown.num_rows
    said = [*([f"{more:,} more rows are not shown"] if more else []), *notes]
    below = "".join(f'<p class="note">{escape(visible(note))}.</p>' for note in said)
    return f'<table class="streamveil">{body}</table>{below}'


def figure(value: Any, sd: float | None = None) -> str:
    """A number for people, with two digits of its deviation, if that is known.

    >>> figure(1234.5), figure(0.12345), figure(None), figure(1234.567, sd=0.42)
    ('1,234', '0.123', 'none', '1,234.57')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if not isinstance(value, float):
        return name_of(value)
    if not abs(value) < LONG:
        return f"{value:.{DECIMALS}g}"
    if sd and isfinite(sd):
        return f"{value:,.{min(max(1 - floor(log10(sd)), 0), MOST_DECIMALS)}f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.{DECIMALS}g}"


def name_of(value: Any) -> str:
    """The text for a group; different groups have different texts.

    >>> name_of(2026), name_of(1e300), name_of(None)
    ('2026', '1e+300', 'none')
    >>> name_of(datetime(960, 1, 1, 0, 0, 1)), name_of(datetime(2026, 1, 1))
    ('0960-01-01 00:00:01', '2026-01-01')
    >>> name_of(datetime(2026, 2, 28, 23, tzinfo=UTC))  # where March begins in Berlin
    '2026-02-28 23:00 UTC'
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else " UTC"
        at = value.astimezone(UTC).replace(tzinfo=None) if zone else value
        day, clock = at.isoformat(" ").split(" ")
        return day if clock == "00:00:00" else f"{day} {clock.removesuffix(':00')}{zone}"
    return visible(str(value))


def plotted(table: pa.Table, notes: Sequence[str], name: str, most: int) -> Figure:
    """A dot and an interval for each of the largest groups; the notes below."""
    with requires_extra("plot()", "plots"):
        from matplotlib.figure import Figure
    order = pa.compute.sort_indices(table[name], sort_keys=[("", "descending")])
    shown = table.take(order.slice(0, min(most, len(order))))
    rows, keys = rows_of(shown), keys_of(table)
    labels = [literal(key_label(row, keys)) for row in rows]
    made = Figure(figsize=(8, 1.2 + 0.28 * max(len(rows), 2)), layout="constrained")
    axes = made.subplots()
    places = range(len(rows), 0, -1)
    value, low, high = (shown[name + end].to_numpy() for end in ("", *ENDS))  # nulls as NaN
    axes.hlines(places, low, high, color="#1b6ca8", alpha=0.35, lw=5)
    axes.plot(value, places, "o", color="#1b6ca8", ms=4)
    axes.set_yticks(list(places), labels)
    axes.set_xlabel(literal(name))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6", lw=0.6)
    more = table.num_rows - len(rows)
    said = [*([f"{more:,} smaller groups are not shown"] if more else []), *notes]
    if said:
        made.supxlabel(literal(".\n".join(wrapped(said))), fontsize=8, color="#5b6570")
    return shown_in_cells(made)


def shown_in_cells(made: Figure) -> Figure:
    """A figure that a notebook shows as a picture, also before it has chosen a backend."""
    vars(made)["_repr_png_"] = partial(png, made)
    return made


def png(made: Figure) -> bytes:
    """A figure as a picture."""
    page = BytesIO()
    made.savefig(page, format="png")
    return page.getvalue()


def wrapped(texts: Sequence[str], width: int = 110) -> list[str]:
    """Each text in lines of at most `width` characters."""
    import textwrap

    return ["\n".join(textwrap.wrap(text, width)) for text in texts]


def key_label(row: dict[str, Any], keys: Sequence[str]) -> str:
    """The key of a row as a short text."""
    parts = ["none" if row[key] is None else str(row[key])[:LABEL] for key in keys]
    return ", ".join(parts) or "all rows"


def literal(text: str) -> str:
    """A text escaped so that matplotlib sees no formula."""
    return "\n".join(map(visible, text.split("\n"))).replace("$", r"\$")


def as_frame(table: pa.Table) -> Any:
    """A table as a pandas frame; dates that Python cannot hold (after the year 9999) as text.

    >>> as_frame(pa.table({"d": pa.array([0, 2932897], pa.date32())}))["d"].tolist()
    ['1970-01-01', '10000-01-01']
    """
    try:
        return table.to_pandas()
    except (OverflowError, ValueError):
        dates = [place for place, one in enumerate(table.schema) if pa.types.is_date(one.type)]
        for place in dates:
            table = table.set_column(place, table.field(place).name, table[place].cast(pa.string()))
        return table.to_pandas()


# after the year 9999; or of a zone that Python does not know; or a text that is not UTF-8
NOT_OF_PYTHON = OverflowError, KeyError, ValueError


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values, whatever their content; see `value_of`.

    >>> rows_of(pa.table({"t": pa.array([0, 1 << 61]).cast(pa.timestamp("us"))}))[1]
    {'t': '<value out of range: 2305843009213693952>'}
    """
    try:
        return list(table.to_pylist())
    except NOT_OF_PYTHON:
        columns = [[value_of(cell) for cell in column] for column in table.columns]
        return [
            dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)
        ]


def value_of(cell: Any) -> Any:
    """One value of an Arrow column: times that Python cannot hold as text, broken text as bytes."""
    try:
        return cell.as_py()
    except NOT_OF_PYTHON:
        if isinstance(cell, pa.ListScalar):  # also of other lists, and maps
            return [value_of(one) for one in cell.values]
        if isinstance(cell, pa.StructScalar):
            return {name: value_of(one) for name, one in cell.items()}
        if isinstance(cell, pa.BinaryScalar):  # also a text
            return cell.as_buffer().to_pybytes()
        if isinstance(inner := getattr(cell, "value", None), pa.Scalar):  # of a dictionary
            return value_of(inner)
        if getattr(cell.type, "tz", None):
            cell = cell.cast(pa.timestamp(cell.type.unit, "UTC"))
            return time_texts(pa.chunked_array([[cell.value]], cell.type))[0].as_py()
        return cell.cast(pa.string()).as_py()


def time_texts(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times in UTC as texts. With a zone, Arrow writes those beyond the year 32767 as others.

    >>> time_texts(pa.chunked_array([[0, 1 << 61]], pa.timestamp("us", "UTC"))).to_pylist()
    ['1970-01-01 00:00:00.000000Z', '<value out of range: 2305843009213693952>']
    """
    texts = times.cast(pa.timestamp(times.type.unit)).cast(pa.string())
    return pc.if_else(
        pc.starts_with(texts, "<"), texts, pc.binary_join_element_wise(texts, "Z", "")
    )


# ---- explanations of queries

Row = tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A titled table of texts; the first row may be a heading."""

    title: str
    rows: tuple[Row, ...]
    heading: Row | None = None

    def html(self) -> str:
        """The table for a page."""
        head = row_html(self.heading, "th") if self.heading else ""
        body = "".join(row_html(row, "td") for row in self.rows)
        title = escape(visible_lines(self.title))
        table = f'<table class="streamveil">{head}{body}</table>'
        return f"<details open><summary><b>{title}</b></summary>{table}</details>"


def row_html(row: Sequence[str], kind: str, sides: Sequence[str] = ()) -> str:
    """The cells of one row, each with its own attributes."""
    cells = (escape(visible_lines(text)).replace("\n", "<br>") for text in row)
    made = (
        f"<{kind}{side}>{cell}</{kind}>" for cell, side in zip_longest(cells, sides, fillvalue="")
    )
    return f"<tr>{''.join(made)}</tr>"


@dataclass(frozen=True)
class Explanation:
    """The description of one query. `str` of it is what `streamveil explain` prints."""

    promise: str
    sections: tuple[Section, ...]
    facts: dict[str, Any] = field(default_factory=dict, compare=False)  # its content as numbers

    def __str__(self) -> str:
        parts = [f"PROMISE\n  {self.promise}"]
        parts += [_text(section) for section in self.sections]
        return visible_lines("\n\n".join(parts)) + "\n"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        tables = "".join(section.html() for section in self.sections)
        return f"{STYLE}<p><b>{escape(visible_lines(self.promise))}</b></p>{tables}"


def _text(section: Section) -> str:
    rows = ([section.heading] if section.heading else []) + list(section.rows)
    if not rows:
        return f"{section.title}\n  none"
    columns = max(len(row) for row in rows)
    widths = [
        max((len(row[i]) for row in rows if i < len(row) - 1), default=0) for i in range(columns)
    ]
    lines = [
        "  " + "  ".join(
            cell.ljust(widths[i]) if i < len(row) - 1 else cell for i, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]  # fmt: skip
    return "\n".join([section.title, *lines])
