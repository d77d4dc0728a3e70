"""GoogleSQL as sqlglot reads it, with every function call kept as a name and its arguments.

sqlglot maps function names of thirty dialects to shared nodes. A whitelist is easier to trust if
nothing is mapped: here `LOG(a, 2)` stays the name LOG and two arguments, and `functions.FUNCTIONS`
decides what it means. Every failure becomes a PlanError with a line and a column.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar

from sqlglot import exp
from sqlglot.dialects.bigquery import BigQuery
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.generators.bigquery import BigQueryGenerator
from sqlglot.parsers.bigquery import BigQueryParser
from sqlglot.tokenizer_core import Token, TokenType

from streamveil.errors import PlanError
from streamveil.expressions import times

MAX_TEXT = 1_000_000  # characters of one script
MAX_ECHO = 40  # characters of the query repeated in a message
MAX_DEPTH = 120  # nesting: deeper queries are not written by people

WAY_OUT = (
    "\n  to fix  write GoogleSQL: AND, OR, NOT, =, 'texts', and `names` of columns as they are"
)
_NOT_WORDS = (
    "ALTER DESCRIBE DROP GLOB ILIKE LOCK NOTNULL PARTITIONED_BY REGEXP RETURNING REVOKE RLIKE "
    "ROLLBACK UNCACHE XOR"
)
NOT_WORDS = frozenset(_NOT_WORDS.split())

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns before we refuse
T = TypeVar("T")


class VeilParser(BigQueryParser):  # type: ignore[misc]  # sqlglot is untyped here
    """BigQuery's grammar; functions stay uninterpreted, unknown statements are errors."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: BigQueryParser.FUNCTION_PARSERS[name] for name in ("CAST", "SAFE_CAST", "EXTRACT")
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[str, Any]] = {}

    def _parse_column(self) -> Any:
        """Keeps a quoted name with dots as one column of a file; BigQuery's method cuts it.

        sqlglot has places for four parts of a name: if there are more, the third holds the middle.
        """
        tree = super(BigQueryParser, self)._parse_column()
        if not isinstance(tree, exp.Dot):
            return tree
        column, *fields = tree.flatten(unnest=False)
        if not isinstance(column, exp.Column) or {*map(type, fields)} != {exp.Identifier}:
            return tree
        catalog, db, *between, last = tree.parts
        table = exp.to_identifier(".".join(part.name for part in between), quoted=True)
        return exp.Column(this=last, table=table, db=db, catalog=catalog)

    def _parse_using_identifiers(self) -> Any:
        """Keeps each name whole; sqlglot's method keeps only the last word."""
        columns = self._parse_wrapped_csv(self._parse_column, optional=True)
        return [plain_names(column).this for column in columns]

    def _parse_as_command(self, start: Any) -> Any:
        self.raise_error("This is not a statement streamveil knows", start)


class VeilTokenizer(BigQuery.Tokenizer):  # type: ignore[misc]  # sqlglot is untyped here
    """BigQuery's tokens; EXPLAIN does not swallow the rest of its statement.

    Words of other databases are names here, as in GoogleSQL.
    """

    COMMANDS: ClassVar[set[Any]] = set()
    KEYWORDS: ClassVar[dict[str, Any]] = {
        word: kind for word, kind in BigQuery.Tokenizer.KEYWORDS.items() if word not in NOT_WORDS
    }


class VeilGenerator(BigQueryGenerator):  # type: ignore[misc]  # sqlglot is untyped here
    """BigQuery's texts; a time in a zone stays as it was written."""

    def attimezone_sql(self, node: exp.AtTimeZone) -> str:
        """Writes a time in a zone; BigQuery's method makes it a DATETIME, which no row has here."""
        return f"{self.sql(node.this)} AT TIME ZONE {self.sql(node.args['zone'])}"


class Veil(BigQuery):  # type: ignore[misc]  # sqlglot is untyped here
    """The dialect of this package. Function names are written in capitals."""

    NORMALIZE_FUNCTIONS = "upper"  # type: ignore[assignment]  # sqlglot infers bool
    Parser = VeilParser
    Tokenizer = VeilTokenizer
    Generator = VeilGenerator


def tokenize(text: str, what: str) -> list[Token]:
    """The tokens of a text; PlanError if it cannot be cut into tokens."""
    if len(text) > MAX_TEXT:
        raise PlanError(f"{what} has {len(text)} characters, more than {MAX_TEXT}")
    return list(guarded(lambda: Veil().tokenize(text), what))


def parse_tokens(tokens: list[Token], text: str, what: str) -> exp.Expr:
    """The single expression these tokens spell.

    They are never read as a statement: a column may be called COMMIT or LOAD.
    """
    check_depth(tokens, what)
    return _single(lambda: Veil().parser().parse_into(exp.Condition, tokens, text), what)


def parse_query(tokens: list[Token], text: str, what: str) -> exp.Expr:
    """The single SELECT these tokens spell, with its WITH."""
    check_depth(tokens, what)
    tree = _single(lambda: Veil().parser().parse(tokens, text), what)
    for column in [*tree.find_all(exp.Column)]:
        name = column.name
        spell_table(column, column.parent_select)
        if column.name != name and isinstance(column.parent, exp.Select):  # a field's own name
            column.replace(exp.alias_(column.copy(), name, quoted=True))
    return tree


def spell_table(column: exp.Column, select: exp.Expr | None) -> None:
    """Spells the table before a column as the nearest FROM with that table, in any case, does.

    A prefix that is not a table is a structure, and the column its field: one name with dots.

    >>> query = "SELECT T.a FROM t WHERE EXISTS (SELECT 1 FROM u AS V WHERE v.b = T.b AND x.c = 1)"
    >>> parse_query(tokenize(query, "it"), query, "it").sql(Veil)
    'SELECT t.a FROM t WHERE EXISTS(SELECT 1 FROM u AS V WHERE V.b = t.b AND `x.c` = 1)'
    """
    first, *field = column.parts
    while field and select is not None:
        clause, joins = select.args.get("from_"), select.args.get("joins") or ()
        names = {name for one in (clause, *joins) if one for name in names_of(one.this)}
        same = [name for name in names if name.lower() == first.name.lower()]
        if first.name in same or len(same) == 1:
            first.set("this", first.name if first.name in same else same[0])
            join_path(column, first)
            return
        if same:
            return
        select = select.parent_select
    join_path(column)


def join_path(column: exp.Column, table: exp.Expr | None = None) -> None:
    """Makes one name of a column and the structures that hold it, after its table if it has one.

    >>> column = parse_text("v.user.id")
    >>> join_path(column, column.parts[0])
    >>> column.sql(Veil)
    'v.`user.id`'
    """
    path = [part for part in column.parts if part is not table]
    if len(path) == 1 or isinstance(column.this, exp.Star):
        return
    name = ".".join(part.name for part in path)
    column.set("this", exp.to_identifier(name, quoted=True))
    for place in ("catalog", "db", "table"):
        column.set(place, table if place == "table" else None)


def spelled(unit: str, select: exp.Expr) -> str:
    """The privacy unit, with tables spelled as in the FROM of a query."""
    tree = parse_text(unit, "the privacy unit")
    for column in tree.find_all(exp.Column):
        spell_table(column, select)
    return canonical(tree)


def names_of(relation: exp.Expr) -> set[str]:
    """The names of a relation in FROM: its alias, or else the name of the table."""
    names = {relation.alias}
    if isinstance(relation, exp.Table) and not relation.alias:
        path = ".".join(part.name for part in relation.parts)
        call = relation.this if isinstance(relation.this, exp.Anonymous) else None
        of_call = [one.name for one in call.expressions[:1]] if call else []
        names |= {*of_call} if call else {path, PurePath(path).stem}
    return names - {""}


def _single(parse: Callable[[], list[exp.Expr | None]], what: str) -> exp.Expr:
    trees = [tree for tree in guarded(parse, what) if tree is not None]
    if len(trees) != 1:
        raise PlanError(f"{what} must be one expression, not {len(trees)}")
    called = guarded(lambda: trees[0].transform(as_call, copy=False), what)
    return guarded(lambda: called.transform(as_unit, copy=False), what)


def as_call(node: Any) -> exp.Expr:
    """The function that some other grammar is a spelling of.

    >>> for text in ("SPLIT(a, '/')[OFFSET(1)]", "EXTRACT(DATE FROM t AT TIME ZONE 'UTC')",
    ...              "RANGE_BUCKET(x, [1, 2])"):
    ...     parse_text(text).sql(Veil)
    "SPLIT_PART(a, '/', 2)"
    "DATE(t, 'UTC')"
    'RANGE_BUCKET(x, 1, 2)'
    """
    if isinstance(node, exp.Bracket) and isinstance(node.this, exp.Anonymous):
        return element_of(node)
    if isinstance(node, exp.Filter):
        raise PlanError(
            "FILTER (WHERE ...) is not GoogleSQL.\n"
            "  to fix  COUNTIF(condition), or SUM(IF(condition, x, NULL))"
        )
    if isinstance(node, exp.SafeFunc):  # no function here raises
        return node.this.transform(as_call, copy=False)  # type: ignore[no-any-return]
    if isinstance(node, exp.Extract) and node.name.upper() in ("DATE", "DATETIME"):
        inner = node.expression
        if isinstance(inner, exp.AtTimeZone):
            return call_of(node.name.upper(), inner.this, inner.args["zone"])
        return call_of(node.name.upper(), inner)
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == "RANGE_BUCKET":
        return call_of("RANGE_BUCKET", *(
            end for one in node.expressions
            for end in (one.expressions if isinstance(one, exp.Array) else [one])
        ))  # fmt: skip
    return node  # type: ignore[no-any-return]  # sqlglot is untyped here


def element_of(node: exp.Bracket) -> exp.Expr:
    """One element of the result of SPLIT or APPROX_QUANTILES; any other node unchanged.

    >>> parse_text("APPROX_QUANTILES(x, 4)[OFFSET(1)]").sql(Veil)
    'PERCENTILE_CONT(x, 0.25)'
    """
    call, at = node.this, place_of(node)
    name, (first, *rest) = str(call.this).upper(), call.expressions or [None]
    if at is None or first is None:
        return node
    if name == "SPLIT" and len(rest) <= 1:
        between = rest[0] if rest else exp.Literal.string(",")
        return call_of("SPLIT_PART", first, between, exp.Literal.number(at + 1))
    if name == "APPROX_QUANTILES" and rest and isinstance(rest[0], exp.Literal) and rest[0].is_int:
        pieces = int(rest[0].this)
        if not 0 <= at <= pieces or not pieces:
            raise PlanError(
                f"{shown(canonical(node))}: there are {pieces + 1} numbers.\n"
                f"  to fix  [OFFSET(0)] to [OFFSET({pieces})]"
            )
        return call_of("PERCENTILE_CONT", first, exp.Literal.number(repr(at / pieces)), *rest[1:])
    return node


def place_of(node: exp.Bracket) -> int | None:
    """The element that [OFFSET(1)], [ORDINAL(2)] or [1] names, from 0; None if not a number."""
    places = node.expressions
    if len(places) != 1 or not isinstance(places[0], exp.Literal) or not places[0].is_int:
        return None
    return int(places[0].this) - int(node.args.get("offset") or 0)


def call_of(name: str, *arguments: exp.Expr) -> exp.Expr:
    """A call of a function."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def parse_text(text: str, what: str = "the expression") -> exp.Expr:
    """The tree of one expression.

    >>> parse_text("log(a, 2)").sql(Veil)
    'LOG(a, 2)'
    """
    if not isinstance(text, str):
        raise PlanError(f"{what} must be SQL text, not {type(text).__name__}")
    return parse_tokens(tokenize(text, what), text, what)


def canonical(node: exp.Expr) -> str:
    """One spelling per tree, so that equal queries have equal plans."""
    return str(guarded(lambda: node.sql(Veil, comments=False), "the expression"))


def guarded(step: Callable[[], T], what: str) -> T:
    """Runs a sqlglot step; any error becomes a PlanError that says where."""
    try:
        return step()
    except PlanError:
        raise
    except ParseError as error:
        raise PlanError(f"{what} is not valid SQL: {_place(error)}{WAY_OUT}") from None
    except (SqlglotError, RecursionError, ValueError, TypeError, AttributeError, LookupError):
        # sqlglot answers some malformed texts with Python's own errors
        reason = "it cannot be parsed"
        raise PlanError(f"{what} is not valid SQL: {reason}{WAY_OUT}") from None


def check_depth(tokens: list[Token], what: str) -> None:
    """Refuses nesting that would exhaust the stack of a recursive parser."""
    depth, chain = 0, 0
    for token in tokens:
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        chain = chain + 1 if token.token_type in _PREFIX else 0
        if max(depth, chain) > MAX_DEPTH:
            raise PlanError(f"{what} is nested deeper than {MAX_DEPTH} levels (line {token.line})")


def shown(text: str) -> str:
    """A piece of the query, short enough for a message."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_ECHO else text[: MAX_ECHO - 1] + "…"


_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_PREFIX = {TokenType.NOT, TokenType.DASH, TokenType.PLUS, TokenType.TILDE}


def _place(error: ParseError) -> str:
    first = error.errors[0] if error.errors else {}
    message = str(first.get("description") or "unexpected text").rstrip(".")
    near = shown(str(first.get("highlight") or ""))
    where = f" (line {first.get('line')}, column {first.get('col')})" if first.get("line") else ""
    said = f"{shown(message)}{where}" + (f", near '{near}'" if near else "")
    if near.upper() in VeilTokenizer.KEYWORDS and near.isidentifier():
        said += f"; '{near}' is a word of SQL: where it is a name, write `{near}`"
    return said


UNITS = frozenset({*times.UNIT_US, *times.UNIT_MONTHS, "ISOWEEK", "ISOYEAR"})
_AGGREGATES = (
    "COUNT SUM AVG MIN MAX VARIANCE VAR_SAMP VAR_POP STDDEV STDDEV_SAMP STDDEV_POP ANY_VALUE "
    "ARRAY_AGG STRING_AGG APPROX_QUANTILES PERCENTILE_CONT MEDIAN COUNTIF"
)
AGGREGATES = frozenset(_AGGREGATES.split())


def as_unit(node: Any) -> exp.Expr:
    """A time unit among a function's arguments, as in (ts, HOUR): a word in capitals, no column.

    >>> [column.name for column in parse_text("DATE_TRUNC(day, week(monday))").find_all(exp.Column)]
    ['day']
    """
    parent = node.parent
    if not isinstance(node, exp.Column) or not isinstance(parent, exp.Anonymous):
        return node  # type: ignore[no-any-return]  # sqlglot is untyped here
    word, name = node.name.upper(), str(parent.this).upper()
    ends = {"_TRUNC": 1, "_DIFF": 2, "LAST_DAY": 1}  # a time zone may follow, to be refused
    places = [at for end, at in ends.items() if name.endswith(end)]
    named = word in UNITS and node.arg_key == "expressions" and node.index in places
    return exp.var(word) if named or (name == "WEEK" and word in times.WEEKDAYS) else node


def plain_names(tree: exp.Expr) -> exp.Expr:
    """Drops quotes around names that need none; a field of a structure is one name with dots."""
    for column in tree.find_all(exp.Column):
        join_path(column)
    for name in list(tree.find_all(exp.Identifier)):
        if name.this.isascii() and name.this.isidentifier() and name.this.upper() not in KEYWORDS:
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
