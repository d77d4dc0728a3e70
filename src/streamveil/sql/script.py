"""A script cut into statements, before sqlglot sees the SELECTs.

The words that no SQL dialect of sqlglot knows (the privacy clause, EMIT, CREATE STREAM, TABLE as an
argument) are removed here by their tokens, so that nothing depends on the inside of its parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import parse_query, parse_tokens, shown, tokenize

Pairs = list[tuple[str, exp.Expr]]
PRIVATE = "the private answer"  # the name that replaces it in the FROM of an outer SELECT
STAND_IN = f"SELECT * FROM `{PRIVATE}`"  # noqa: S608  (a fixed text)
NAMES = {TokenType.VAR, TokenType.IDENTIFIER}
STARTS = ("CREATE", "INSERT", "SELECT", "EXPLAIN", "ASK", "WITH")
_AFTER_A_COLUMN = "AND AS BETWEEN DIV EMIT FROM GROUP HAVING IN IS LIKE LIMIT NOT OR ORDER WHERE"
AFTER_A_COLUMN = frozenset(_AFTER_A_COLUMN.split())  # distinguish a column emit from the word EMIT
KINDS = ("STREAM", "TABLE", "SINK", "VIEW")


@dataclass(frozen=True)
class Create:
    """CREATE STREAM | TABLE | SINK name (columns) WITH (options)."""

    kind: str
    name: str
    columns: tuple[tuple[str, str], ...]  # columns with a type
    checks: tuple[tuple[str, exp.Expr], ...]  # column -> condition of its CHECK
    pairs: Pairs


@dataclass(frozen=True)
class Private:
    """A private SELECT: its tree without the added words, and those words."""

    tree: exp.Expr
    pairs: Pairs
    emit: list[Token] = field(default_factory=list)
    sinks: tuple[str, ...] = ()
    explain: bool = False
    outer: exp.Expr | None = None  # the SELECTs around it, which read from `PRIVATE`
    view: str | None = None  # the view that holds it, which names the job


@dataclass(frozen=True)
class PrivateSelects:
    """Several private SELECTs and the SELECT around them, which reads from `stand_in(i)`."""

    parts: tuple[Private, ...]  # each named by its `view`
    outer: exp.Expr
    sinks: tuple[str, ...] = ()
    explain: bool = False


@dataclass(frozen=True)
class Ask:
    """ASK table COUNT(*) WHERE ...: a question to a changing table."""

    name: str
    condition: exp.Expr | None


@dataclass(frozen=True)
class View:
    """CREATE VIEW name AS SELECT ...: a name for a query, private or not."""

    name: str
    tokens: tuple[Token, ...]


Statement = Create | Private | PrivateSelects | Ask
Views = dict[str, View]  # by name in small letters


STEPS = {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}
BRACKETS = {TokenType.L_BRACKET: 1, TokenType.R_BRACKET: -1}


def depths(tokens: Sequence[Token], steps: Mapping[TokenType, int] = STEPS) -> Iterator[int]:
    """The depth of each token in parentheses. An opening one is inside, a closing one is not."""
    return accumulate(steps.get(token.token_type, 0) for token in tokens)


class Cursor:
    """A place in the tokens of one statement."""

    def __init__(self, tokens: Sequence[Token], source: str) -> None:
        self.tokens, self.source, self.at = list(tokens), source, 0

    def peek(self, ahead: int = 0) -> str:
        """The next word in capitals, '' at the end. Quoted names and texts are not words."""
        place = self.at + ahead
        if place >= len(self.tokens):
            return ""
        token = self.tokens[place]
        quoted = token.token_type in (TokenType.IDENTIFIER, TokenType.STRING)
        return "" if quoted else str(token.text).upper()

    def take(self, *words: str) -> bool:
        """Steps over these words if they come next."""
        if any(self.peek(i) != word for i, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def need(self, *words: str) -> None:
        """Steps over these words; PlanError if they do not come next."""
        if not self.take(*words):
            raise PlanError(f"expected {' '.join(words)}{self.place()}")

    def name(self, what: str) -> str:
        """A name, possibly quoted."""
        if self.at >= len(self.tokens) or not self.is_name(self.tokens[self.at]):
            raise PlanError(f"expected {what}{self.place()}")
        self.at += 1
        return str(self.tokens[self.at - 1].text)

    @staticmethod
    def is_name(token: Token) -> bool:
        """Whether a token can be a name: quoted, or a word of any kind."""
        return token.token_type in NAMES or str(token.text).replace("_", "a").isalnum()

    def inside(self, what: str) -> list[Token]:
        """The tokens between the parentheses that come next."""
        self.need("(")
        start, end = self.at, _closing(self.tokens, self.at)
        if end == len(self.tokens):
            raise PlanError(f"{what} has an opening parenthesis without its end")
        self.at = end + 1
        return self.tokens[start:end]

    def place(self) -> str:
        """Where we are, for a message."""
        if self.at >= len(self.tokens):
            return " at the end of the statement"
        token = self.tokens[self.at]
        return f" (line {token.line}, column {token.col}), found '{shown(str(token.text))}'"


def split_script(source: str) -> list[Statement]:
    """All statements of a script, in order."""
    if not isinstance(source, str):
        raise PlanError(f"a query must be SQL text, not {type(source).__name__}")
    statements, current, views = list[Statement](), list[Token](), Views()
    for token in [*tokenize(source, "the query"), None]:
        if token is not None and token.token_type != TokenType.SEMICOLON:
            current.append(token)
            continue
        if current:
            made = _statement(Cursor(current, source), views)
            statements += [] if made is None else [made]
        current = []
    if not statements:
        raise PlanError(
            "the query is empty.\n"
            "  to fix  SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (...) COUNT(*) FROM ..."
        )
    return statements


def _statement(cursor: Cursor, views: Views) -> Statement | None:
    """A statement; None for a view, which is only kept."""
    if cursor.take("CREATE"):
        return _create(cursor, views)
    if cursor.take("ASK"):
        name = cursor.name("the name of a changing table")
        return Ask(name, _question(cursor))
    explain = cursor.take("EXPLAIN")
    if explain:
        cursor.take("PRIVACY")
    sinks = _targets(cursor)
    if not explain and cursor.peek() not in ("SELECT", "WITH"):
        word = cursor.peek()
        raise PlanError(
            f"no statement starts like this{nearest(word[:30], STARTS)}{cursor.place()}"
        )
    return _private(cursor, views, sinks, explain=explain)


def read_question(text: str) -> exp.Expr | None:
    """The condition of a question: [SELECT] COUNT(*) WHERE ...; None: all are counted."""
    tokens = [t for t in tokenize(text, "the question") if t.token_type != TokenType.SEMICOLON]
    return _question(Cursor(tokens, text))


def _question(cursor: Cursor) -> exp.Expr | None:
    cursor.take("SELECT")
    if not cursor.take("COUNT", "(", "*", ")"):
        raise PlanError(f"a question is COUNT(*) WHERE condition{cursor.place()}")
    if cursor.at == len(cursor.tokens):
        return None
    cursor.need("WHERE")
    if cursor.at == len(cursor.tokens):
        raise PlanError(f"a question is COUNT(*) WHERE condition{cursor.place()}")
    return parse_tokens(cursor.tokens[cursor.at :], cursor.source, "the question")


def _targets(cursor: Cursor) -> tuple[str, ...]:
    """The sinks of INSERT INTO."""
    if not cursor.take("INSERT"):
        return ()
    cursor.need("INTO")
    names = [cursor.name("the name of a sink")]
    while cursor.take(","):
        names.append(cursor.name("the name of a sink"))
    return tuple(names)


def _view(cursor: Cursor, views: Views) -> None:
    """Keeps a named query for the statements that follow."""
    name = cursor.name("a name")
    if cursor.peek() == "OPTIONS":
        raise PlanError(
            "a view has no OPTIONS: the query that reads it names whom it protects.\n"
            f"  to fix  CREATE VIEW {shown(name)} AS SELECT ..., and privacy_unit_column = <column>"
            " in the OPTIONS of the query"
        )
    cursor.need("AS")
    if name.lower() in views:
        raise PlanError(f"'{shown(name)}' is declared twice")
    if cursor.peek() not in ("SELECT", "WITH"):
        raise PlanError(f"CREATE VIEW {shown(name)} AS is followed by a SELECT{cursor.place()}")
    views[name.lower()] = View(name, tuple(cursor.tokens[cursor.at :]))


def _with_views(tokens: list[Token], views: Views) -> tuple[list[Token], tuple[View, ...]]:
    """A SELECT with the views that it names as named subqueries, and these views."""
    used, todo = dict[str, View](), [*pairwise(tokens)]
    while todo:
        before, token = todo.pop()
        found = views.get(str(token.text).lower())
        if found is None or found.name.lower() in used:
            continue
        if str(before.text).upper() in ("FROM", "JOIN", "TABLE"):
            used[found.name.lower()] = found
            todo += pairwise(found.tokens)
    if not used:
        return tokens, ()
    with_, comma, open_, close, as_ = tokenize("WITH , ( ) AS", "the query")
    added = [with_]
    for view in [view for name, view in views.items() if name in used]:  # as declared
        name = tokenize(f"`{view.name}`", "the query")
        added += [*name, as_, open_, *view.tokens, close, comma]
    is_with = bool(tokens) and tokens[0].token_type == TokenType.WITH
    return [*added, *tokens[1:]] if is_with else [*added[:-1], *tokens], tuple(used.values())


def _create(cursor: Cursor, views: Views) -> Create | None:
    cursor.take("OR", "REPLACE")
    kind = cursor.peek()
    if cursor.take("VIEW"):
        _view(cursor, views)
        return None
    if kind not in KINDS:
        raise PlanError(f"CREATE is followed by {', '.join(KINDS)}{nearest(kind[:30], KINDS)}")
    cursor.at += 1
    name = cursor.name("a name")
    found = []
    if cursor.peek() == "(":
        found = [_column(part, cursor.source) for part in commas(cursor.inside("CREATE"))]
    cursor.need("WITH")
    pairs = read_pairs(cursor.inside("WITH"), cursor.source)
    if cursor.at < len(cursor.tokens):
        raise PlanError(f"nothing follows WITH (...){cursor.place()}")
    columns = tuple((column, type_) for column, type_, _ in found if type_)
    checks = tuple((column, check) for column, _, check in found if check is not None)
    return Create(kind, name, columns, checks, pairs)


def _column(tokens: list[Token], source: str) -> tuple[str, str, exp.Expr | None]:
    """Name, type ('' if there is only a CHECK) and the condition of CHECK (...)."""
    cursor = Cursor(tokens, source)
    name = cursor.name("a column")
    type_ = "" if cursor.peek() in ("CHECK", "") else cursor.name("a type").upper()
    check = None
    if cursor.take("CHECK"):
        check = parse_tokens(cursor.inside("CHECK"), source, "CHECK")
    if cursor.at < len(tokens) or not (type_ or check is not None):
        raise PlanError(
            f"'{shown(name)}': a column of CREATE is a name and a type, such as user_id STRING;"
            " of a changing table also its public values, such as city STRING CHECK (city IN"
            " ('a', 'b')).\n"
            "  to fix  an object or a list in JSON lines is a STRING, its text"
        )
    return name, type_, check


def commas(tokens: Sequence[Token]) -> list[list[Token]]:
    """Cuts at the commas that are in no parentheses."""
    parts: list[list[Token]] = [[]]
    for token, depth in zip(tokens, depths(tokens, STEPS | BRACKETS), strict=True):
        if token.token_type == TokenType.COMMA and depth == 0:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part] if tokens else []


def read_pairs(tokens: Sequence[Token], source: str) -> Pairs:
    """Reads `name = value, name = value, ...`."""
    pairs = []
    for part in commas(tokens):
        cursor = Cursor(part, source)
        name = cursor.name("an option")
        cursor.need("=")
        if cursor.at >= len(part):
            raise PlanError(f"option '{shown(name)}' has no value")
        pairs.append((name, parse_tokens(part[cursor.at :], source, f"option '{shown(name)}'")))
    return pairs


def _private(
    cursor: Cursor, views: Views, sinks: tuple[str, ...], *, explain: bool
) -> Private | PrivateSelects:
    """Separates a private SELECT from its statement, then its privacy clause and EMIT from it."""
    source = cursor.source
    rest, emit = _cut_emit(cursor.tokens[cursor.at :])
    rest, used = _with_views(rest, views)
    spans = list(_private_spans(rest))
    if not spans:
        raise PlanError(
            "this SELECT is not private.\n"
            "  to fix  SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = ..., delta = ..., "
            "privacy_unit_column = ...)"
        )
    if len(spans) > 1:
        return _joint(rest, source, emit, PrivateSelects((), exp.Null(), sinks, explain))
    [(start, end, depth)] = spans
    if not depth:
        tree, pairs = _without_clause(rest, source)
        return Private(tree, pairs, emit, sinks, explain)
    inner, own = _cut_emit(rest[start:end])
    if emit and own:
        raise PlanError("EMIT is given twice: inside the private SELECT and at the end")
    tree, pairs = _without_clause(inner, source)
    stand_in = tokenize(STAND_IN, "the query")
    outer = parse_query([*rest[:start], *stand_in, *rest[end:]], source, "the query")
    _hand_down(outer, tree)
    view = next((view.name for view in used if any(_private_spans(view.tokens))), None)
    return Private(tree, pairs, emit or own, sinks, explain, outer, view)


def _joint(
    rest: list[Token], source: str, emit: list[Token], empty: PrivateSelects
) -> PrivateSelects:
    """Every private SELECT of a statement on its own, and the SELECT around them."""
    parts, outer, place = list[Private](), list[Token](), 0
    for start, end, depth in _private_spans(rest):
        if start < place:
            raise PlanError(
                "a private SELECT stands inside another one.\n"
                "  to fix  side by side: WITH a AS (...), b AS (...) SELECT ... FROM a JOIN b"
            )
        end = _end_of_part(rest, start, end, depth)
        inner, own = _cut_emit(rest[start:end])
        tree, pairs = _without_clause(inner, source)
        name = _name_of(rest, start, end) or f"answer_{len(parts) + 1}"
        parts.append(Private(tree, pairs, own or emit, view=name))
        outer += [*rest[place:start], *tokenize(stand_in(len(parts) - 1), "the query")]
        place = end
    around = parse_query([*outer, *rest[place:]], source, "the query")
    for part in parts:
        _hand_down(around, part.tree)
    return replace(empty, parts=tuple(parts), outer=around)


def stand_in(part: int) -> str:
    """The name that replaces one of several private answers in the FROM of an outer SELECT."""
    return f"SELECT * FROM `{PRIVATE} {part}`"  # noqa: S608  (a fixed text and a number)


def _end_of_part(tokens: Sequence[Token], start: int, end: int, outside: int) -> int:
    """Where one of several private SELECTs ends: at UNION, or before what follows the last one."""
    before = zip(tokens[:start], depths(tokens[:start]), strict=True)
    united = any(one.token_type == TokenType.UNION and depth == outside for one, depth in before)
    ends = (TokenType.UNION, *((TokenType.ORDER_BY, TokenType.LIMIT) if united else ()))
    own = enumerate(depths(tokens[start:end]), start)
    return next((at for at, depth in own if not depth and tokens[at].token_type in ends), end)


def _name_of(tokens: Sequence[Token], start: int, end: int) -> str | None:
    """The name of a private SELECT in parentheses: `name AS (...)` or `(...) AS name`."""
    before = [str(token.text) for token in tokens[max(0, start - 3) : start]]
    if len(before) == 3 and before[1].upper() == "AS" and before[2] == "(":
        return before[0]
    after = [token for token in tokens[end : end + 3] if str(token.text).upper() != "AS"]
    named = len(after) > 1 and str(after[0].text) == ")" and after[1].token_type in NAMES
    return str(after[1].text) if named else None


def _private_spans(tokens: Sequence[Token]) -> Iterator[tuple[int, int, int]]:
    """Where private SELECTs begin and end, and their depth in parentheses."""
    cursor = Cursor(tokens, "")
    for place, depth in enumerate(depths(tokens)):
        if cursor.peek(place) == "SELECT" and cursor.peek(place + 1) == "WITH":
            yield place, _closing(tokens, place), depth


def _closing(tokens: Sequence[Token], start: int) -> int:
    """Where the parentheses around a token close; the end if there are none."""
    own = enumerate(depths(tokens[start:]), start)
    return next((place for place, depth in own if depth < 0), len(tokens))


def _hand_down(outer: exp.Expr, inner: exp.Expr) -> None:
    """Gives the private SELECT the named subqueries of the statement that it may read from."""
    with_, own = outer.args.get("with_"), inner.args.get("with_")
    known = {cte.alias.lower() for cte in (own.expressions if own else ())}
    handed = [
        cte.copy() for cte in (with_.expressions if with_ else ())
        if cte.alias.lower() not in known
        and not any(table.name.startswith(PRIVATE) for table in cte.find_all(exp.Table))
    ]  # fmt: skip
    if handed:
        inner.set("with_", exp.With(expressions=[*handed, *(own.expressions if own else ())]))


def _without_clause(tokens: Sequence[Token], source: str) -> tuple[exp.Expr, Pairs]:
    """A private SELECT without the words that sqlglot does not know, and its options."""
    kept: list[Token] = []
    pairs: Pairs = []
    cursor = Cursor(_renamed(tokens), source)
    while cursor.at < len(cursor.tokens):
        token = cursor.tokens[cursor.at]
        if cursor.peek() == "SELECT" and cursor.peek(1) == "WITH":
            kept.append(token)
            cursor.at += 2
            pairs = _clause(cursor)
            continue
        if not _is_table_word(cursor, kept):
            kept.append(token)
        cursor.at += 1
    return parse_query(kept, source, "the query"), pairs


ANON = {  # old names of functions -> new names, and the argument for CLAMPED BETWEEN
    "ANON_COUNT": ("COUNT", "contribution_bounds_per_group"),
    "ANON_SUM": ("SUM", "contribution_bounds_per_group"),
    "ANON_AVG": ("AVG", "contribution_bounds_per_group"),
    "ANON_VAR_POP": ("VAR_POP", "contribution_bounds_per_row"),
    "ANON_STDDEV_POP": ("STDDEV_POP", "contribution_bounds_per_row"),
    "ANON_PERCENTILE_CONT": ("PERCENTILE_CONT", "contribution_bounds_per_row"),
    "ANON_QUANTILES": ("APPROX_QUANTILES", "contribution_bounds_per_row"),
}


def _renamed(tokens: Sequence[Token]) -> list[Token]:
    """The functions of WITH ANONYMIZATION under their present names."""
    found: list[Token] = []
    cursor = Cursor(tokens, "")
    while cursor.at < len(tokens):
        name = cursor.peek()
        if name not in ANON or cursor.peek(1) != "(":
            found.append(tokens[cursor.at])
            cursor.at += 1
            continue
        new, bounds = ANON[name]
        cursor.at += 1
        opening, inside = tokens[cursor.at], cursor.inside(name)
        found += [*tokenize(new, name), opening, *_clamped(inside, bounds), tokens[cursor.at - 1]]
    return found


def _clamped(arguments: list[Token], bounds: str) -> list[Token]:
    """`x CLAMPED BETWEEN a AND b` as `x, bounds => (a, b)`."""
    words = [str(token.text).upper() for token in arguments]
    if "CLAMPED" not in words:
        return arguments
    place = words.index("CLAMPED")
    rest = words[place:]
    if rest[1:2] != ["BETWEEN"] or "AND" not in rest:
        raise PlanError("CLAMPED is followed by BETWEEN low AND high")
    middle = place + rest.index("AND")
    comma, arrow, opening, closing = tokenize(", => ( )", "CLAMPED")
    return [
        *arguments[:place], comma, *tokenize(bounds, "CLAMPED"), arrow, opening,
        *arguments[place + 2 : middle], comma, *arguments[middle + 1 :], closing,
    ]  # fmt: skip


def _clause(cursor: Cursor) -> Pairs:
    word = cursor.peek()
    if word not in ("DIFFERENTIAL_PRIVACY", "ANONYMIZATION"):  # the second is an old name
        raise PlanError(
            f"SELECT WITH is followed by DIFFERENTIAL_PRIVACY"
            f"{nearest(word[:30], ['DIFFERENTIAL_PRIVACY'])}{cursor.place()}"
        )
    cursor.at += 1
    cursor.need("OPTIONS")
    return read_pairs(cursor.inside("OPTIONS"), cursor.source)


def _is_table_word(cursor: Cursor, kept: Sequence[Token]) -> bool:
    """Whether this token is the word TABLE before a table argument, as in TUMBLE(TABLE t, ...)."""
    following = cursor.tokens[cursor.at + 1 : cursor.at + 2]
    return (
        cursor.peek() == "TABLE"
        and bool(kept)
        and kept[-1].token_type in (TokenType.L_PAREN, TokenType.COMMA)
        and any(cursor.is_name(one) or one.token_type == TokenType.STRING for one in following)
    )


def _cut_emit(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    for place, (token, depth) in enumerate(zip(tokens, depths(tokens), strict=True)):
        is_word = token.token_type == TokenType.VAR and str(token.text).upper() == "EMIT"
        after = str(tokens[place + 1].text).upper() if place + 1 < len(tokens) else ""
        if is_word and depth == 0 and place and after.isalnum() and after not in AFTER_A_COLUMN:
            return list(tokens[:place]), list(tokens[place + 1 :])
    return list(tokens), []


def values_of(pairs: Pairs, read: Any) -> dict[str, Any]:
    """Option values, each name once."""
    found: dict[str, Any] = {}
    for name, tree in pairs:
        if name.lower() in found:
            raise PlanError(f"option '{shown(name)}' is given twice")
        found[name.lower()] = read(tree, f"option '{shown(name)}'")
    return found
