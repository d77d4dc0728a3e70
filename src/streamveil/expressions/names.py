"""Names inside expressions: time units, reserved words, and quotes that are not needed."""

from __future__ import annotations

from sqlglot import exp

from streamveil.expressions import times

UNITS = frozenset({*times.UNIT_US, *times.UNIT_MONTHS, "ISOWEEK", "ISOYEAR"})
_AGGREGATES = (
    "COUNT SUM AVG MIN MAX VARIANCE VAR_SAMP VAR_POP STDDEV STDDEV_SAMP STDDEV_POP ANY_VALUE "
    "ARRAY_AGG STRING_AGG APPROX_QUANTILES PERCENTILE_CONT MEDIAN COUNTIF"
)
AGGREGATES = frozenset(_AGGREGATES.split())


def is_unit_word(column: exp.Expr) -> bool:
    """Whether a column node is a time unit in a function's argument list, as in (ts, HOUR)."""
    parent = column.parent
    if not isinstance(parent, exp.Anonymous):
        return False
    name = str(parent.this).upper()
    if name == "WEEK":
        return column.name.upper() in times.WEEKDAYS
    if column.name.upper() not in UNITS:
        return False
    for ending, place in (
        ("_TRUNC", 1),
        ("_DIFF", 2),
        ("LAST_DAY", 1),
    ):  # a time zone may follow, to be refused
        if name.endswith(ending):
            return len(parent.expressions) > place and parent.expressions[place] is column
    return False


def plain_names(tree: exp.Expr) -> exp.Expr:
    """Drops quotes around names that need none, and writes unit words in capitals."""
    for name in list(tree.find_all(exp.Identifier)):
        if name.parent is not None and is_unit_word(name.parent):
            name.set("this", name.this.upper())
        elif name.this.isascii() and name.this.isidentifier() and name.this.upper() not in KEYWORDS:
            name.set("quoted", None)
    return tree


_KEYWORDS = (
    "ALL AND ANY ARRAY AS ASC BETWEEN BY CASE CAST COLLATE CREATE CROSS CUBE CURRENT DEFAULT "
    "DEFINE DESC DISTINCT ELSE END ENUM ESCAPE EXCEPT EXISTS EXTRACT FALSE FETCH FOLLOWING FOR "
    "FROM FULL GROUP GROUPING GROUPS HASH HAVING IF IGNORE IN INNER INTERSECT INTERVAL INTO IS "
    "JOIN LATERAL LEFT LIKE LIMIT LOOKUP MERGE NATURAL NEW NO NOT NULL NULLS OF ON OR ORDER OUTER "
    "OVER PARTITION PRECEDING PROTO QUALIFY RANGE RECURSIVE RESPECT RIGHT ROLLUP ROWS SELECT SET "
    "SOME STRUCT TABLE TABLESAMPLE THEN TO TREAT TRUE UNBOUNDED UNION UNNEST USING WHEN WHERE "
    "WINDOW WITH WITHIN DATE TIMESTAMP TIME DATETIME VALUES INSERT"
)
KEYWORDS = frozenset(_KEYWORDS.split())


def key_name(expression: str | None) -> str:
    """The name of the key column of a sketch: the column's own, or 'key'.

    >>> key_name("`url`"), key_name("LOWER(url)")
    ('url', 'key')
    """
    text = (expression or "").strip("`")
    return text if text.isidentifier() else "key"
