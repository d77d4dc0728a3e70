"""The compiler of expressions: one builder per kind of tree node, each with its typing rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.calendars import require_zone
from streamveil.errors import PlanError, nearest
from streamveil.expressions import times
from streamveil.expressions.convert import (
    CASTS,
    TYPES,
    Bound,
    Node,
    Rule,
    TypeMismatchError,
    arity,
    constant,
    convert,
    numeric,
    require_readable,
    seen,
    unify,
    wrong,
)
from streamveil.expressions.dialect import AGGREGATES, UNITS, canonical, shown
from streamveil.expressions.kernels import (
    INT_MAX,
    INT_MIN,
    Column,
    float_divide,
    float_op,
    int_negate,
    int_op,
)

Reader = Callable[[str], Node]
Builder = Callable[[exp.Expr, Reader], Node]


def build(tree: exp.Expr, read: Reader) -> Node:
    """Compiles one tree; `read` resolves columns."""
    builder = BUILDERS.get(type(tree))
    if builder is None:
        raise no_row_expression(tree)
    try:
        return builder(tree, read)
    except TypeMismatchError as error:
        raise PlanError(f"'{shown(canonical(tree))}': {error}") from None


def no_row_expression(tree: exp.Expr) -> PlanError:
    """The error for a tree that is not an expression of one row."""
    if isinstance(tree, exp.AtTimeZone):
        return PlanError(
            "AT TIME ZONE is part of EXTRACT(part FROM time AT TIME ZONE 'zone') alone.\n"
            "  to fix  DATE(time, 'zone'), TIMESTAMP_TRUNC(time, DAY, 'zone')"
        )
    if isinstance(tree, exp.Dot | exp.NetFunc):
        return PlanError(
            f"'{shown(canonical(tree))}': fields and functions with a dot are not read.\n"
            "  to fix  of an address REGEXP_EXTRACT(url, r'://([^/:?#]+)')"
        )
    reason = REFUSED.get(type(tree), "is not part of per-row expressions")
    return PlanError(f"'{shown(canonical(tree))}' {reason}")


def check_shape(tree: exp.Expr) -> exp.Expr:
    """Refuses a tree that is no per-row expression under any schema; by names, not types."""
    for node in tree.walk():
        inside = isinstance(node.parent, exp.Extract)
        if isinstance(node, _HELPERS) or (inside and isinstance(node, exp.AtTimeZone)):
            continue
        if type(node) not in BUILDERS:
            raise no_row_expression(node)
        if isinstance(node, exp.In) and node.args.get("unnest"):
            raise PlanError(
                f"'{shown(canonical(node))}': lists are read by UNNEST in FROM alone.\n"
                "  to fix  x IN (1, 2); of a column of lists FROM t, UNNEST(tags) AS tag"
                " WHERE tag = 'a'"
            )
        if isinstance(node, exp.In) and node.args.get("query"):
            raise PlanError(f"'{shown(canonical(node))}' {_OTHER_ROWS}")
        if isinstance(node, exp.Anonymous):
            require_function(node)
    return tree


_HELPERS = (exp.Identifier, exp.Var, exp.DataType)


# -- constants -----------------------------------------------------------------------------------


def _literal(tree: exp.Expr, _: Reader) -> Node:
    return constant("string", tree.this) if tree.is_string else _number(tree.this, 1)


def _number(text: str, sign: int) -> Node:
    try:
        whole = sign * int(text)
    except ValueError:
        try:
            real = float(text)
        except ValueError:
            raise PlanError(f"'{shown(text)}' is not a number") from None
        if real == inf:
            raise PlanError(f"'{shown(text)}' is beyond all FLOAT64") from None
        return constant("float", sign * real)
    if not INT_MIN <= whole <= INT_MAX:
        raise PlanError("an integer in the query needs more than 64 bits")
    return constant("int", whole)


def _no_value(_: pa.Table) -> Column:
    raise PlanError("an interval is not a value of a row")


def interval_of(tree: exp.Expr) -> tuple[int, str]:
    """(amount, UNIT) of INTERVAL n UNIT with a constant n."""
    amount, unit = tree.this, tree.args.get("unit")
    sign = -1 if isinstance(amount, exp.Neg) else 1
    amount = amount.this if isinstance(amount, exp.Neg) else amount
    text = amount.this if isinstance(amount, exp.Literal) else ""
    word = unit.name.upper() if isinstance(unit, exp.Var) else ""
    if not text.lstrip("+-").isdecimal() or len(text) > 12:
        raise PlanError("write an interval as INTERVAL n UNIT with a whole number n")
    if word.endswith("S") and word[:-1] in UNITS:
        word = word[:-1]
    if word not in UNITS:
        raise PlanError(f"unknown time unit '{shown(word)}'{nearest(word, UNITS)}")
    return sign * int(text), word


# -- columns and conversion ----------------------------------------------------------------------


def _column(tree: exp.Expr, read: Reader) -> Node:
    if not isinstance(tree.this, exp.Identifier):
        raise PlanError("* stands for no single column here")
    return read(tree.name)


def _cast(tree: exp.Expr, read: Reader) -> Node:
    node, kind = build(tree.this, read), TYPES.get(tree.args["to"].this)
    if kind is None or tree.args["to"].expressions:
        raise PlanError(
            f"CAST to {shown(tree.args['to'].sql('bigquery'))} is not supported; known: "
            "INT64, FLOAT64, BOOL, STRING, BYTES, DATE, TIMESTAMP"
        )
    if node.kind == "null" or node.kind == kind:
        return convert(node, kind, "CAST")
    kernel = CASTS.get((node.kind, kind))
    if kernel is None:
        raise PlanError(f"CAST from {node.kind} to {kind} is not defined")
    if node.kind == "string" and node.constant is not None and not isinstance(tree, exp.TryCast):
        require_readable(node.constant, kind, "CAST")
    return Node(kind, lambda table: kernel(node.run(table)))


# -- operators -----------------------------------------------------------------------------------


def _arithmetic(word: str, on_int: str | None, on_float: Callable[..., Column]) -> Builder:
    def builder(tree: exp.Expr, read: Reader) -> Node:
        left, right = build(tree.this, read), build(tree.expression, read)
        if "interval" in (left.kind, right.kind):
            return _moved(word, left, right)
        if word in "+-" and (left.kind, right.kind) == ("date", "int"):
            days = times.move_days(1 if word == "+" else -1)
            return Node("date", lambda table: days(left.run(table), right.run(table)))
        kind = "float" if on_int is None else numeric(word, [seen(left), seen(right)])
        a, b = (convert(node, kind, f"a side of {word}") for node in (left, right))
        kernel = int_op(on_int) if kind == "int" and on_int else on_float
        return Node(kind, lambda table: kernel(a.run(table), b.run(table)))

    return builder


def _moved(word: str, left: Node, right: Node) -> Node:
    """A time plus or minus an interval."""
    if word == "+" and left.kind == "interval":
        left, right = right, left
    if word not in "+-" or left.kind not in ("date", "timestamp"):
        raise PlanError(f"an interval can only be added to or taken from a time, not {left.kind}")
    amount, unit = right.constant
    base = convert(left, "timestamp", "the time")
    kernel = times.shift_by(amount if word == "+" else -amount, unit)
    return Node("timestamp", lambda table: kernel(base.run(table)))


def _compare(word: str, function: Callable[[Column, Column], Column]) -> Builder:
    def builder(tree: exp.Expr, read: Reader) -> Node:
        return compared(word, function, build(tree.this, read), build(tree.expression, read))

    return builder


def compared(word: str, function: Callable[[Column, Column], Column], a: Node, b: Node) -> Node:
    """A comparison of two values of one kind."""
    left, right = unify(word, a, b)
    if left.kind == "null":
        return Node("bool", lambda table: pa.nulls(table.num_rows, pa.bool_()))
    return Node("bool", lambda table: function(left.run(table), right.run(table)))


def _not_distinct(left: Column, right: Column) -> Column:
    """Whether a GROUP BY would treat two values as one, including two nulls and two NaN."""
    same = pc.fill_null(pc.equal(left, right), fill_value=False)
    for alike in (pc.is_null, pc.is_nan) if left.type == pa.float64() else (pc.is_null,):
        both = pc.and_(alike(left), alike(right))
        same = pc.or_(same, pc.fill_null(both, fill_value=False))
    return same


def _logic(word: str, function: Callable[[Column, Column], Column]) -> Builder:
    def builder(tree: exp.Expr, read: Reader) -> Node:
        left, right = (
            convert(build(side, read), "bool", f"a side of {word}")
            for side in (tree.this, tree.expression)
        )
        return Node("bool", lambda table: function(left.run(table), right.run(table)))

    return builder


def _not(tree: exp.Expr, read: Reader) -> Node:
    inner = convert(build(tree.this, read), "bool", "the operand of NOT")
    return Node("bool", lambda table: pc.invert(inner.run(table)))


def _negative(tree: exp.Expr, read: Reader) -> Node:
    if isinstance(tree.this, exp.Literal) and not tree.this.is_string:
        return _number(tree.this.this, -1)
    inner = build(tree.this, read)
    kind = numeric("-", [seen(inner)])
    value = convert(inner, kind, "the operand of -")
    kernel = int_negate if kind == "int" else float_op(np.negative)
    return Node(kind, lambda table: kernel(value.run(table)))


def _is(tree: exp.Expr, read: Reader) -> Node:
    inner, what = build(tree.this, read), tree.expression
    if isinstance(what, exp.Null):
        return Node("bool", lambda table: pc.is_null(inner.run(table)))
    if not isinstance(what, exp.Boolean):
        raise PlanError("IS is followed by NULL, TRUE or FALSE")
    truth = convert(inner, "bool", "the operand of IS")
    wanted = pa.scalar(bool(what.this))
    return Node(
        "bool", lambda table: pc.fill_null(pc.equal(truth.run(table), wanted), fill_value=False)
    )


def _in_list(tree: exp.Expr, read: Reader) -> Node:
    if tree.args.get("query") or tree.args.get("unnest") or not tree.expressions:
        raise PlanError(
            "IN takes a list of values here. A subquery would let one person's rows decide what "
            "happens to another's; write the values out, or declare public keys"
        )
    tests = [
        compared("IN", pc.equal, build(tree.this, read), build(item, read))
        for item in tree.expressions
    ]
    return Node("bool", lambda table: reduce(pc.or_kleene, (test.run(table) for test in tests)))


def _between(tree: exp.Expr, read: Reader) -> Node:
    value = build(tree.this, read)
    low = compared("BETWEEN", pc.greater_equal, value, build(tree.args["low"], read))
    high = compared("BETWEEN", pc.less_equal, value, build(tree.args["high"], read))
    return Node("bool", lambda table: pc.and_kleene(low.run(table), high.run(table)))


def _like(tree: exp.Expr, read: Reader) -> Node:
    text = convert(build(tree.this, read), "string", "the left side of LIKE")
    pattern = build(tree.expression, read)
    if pattern.kind != "string" or pattern.constant is None:
        raise PlanError("the pattern of LIKE must be a constant text")
    match = pattern.constant
    positive = Node("bool", lambda table: pc.match_like(text.run(table), pattern=match))
    if not tree.args.get("negate"):
        return positive
    return Node("bool", lambda table: pc.invert(positive.run(table)))


def _join_texts(tree: exp.Expr, read: Reader) -> Node:
    from streamveil.expressions.text_functions import concatenate  # where a query calls functions

    parts = tree.expressions if isinstance(tree, exp.Concat) else [tree.this, tree.expression]
    texts = [convert(build(part, read), "string", "a part of ||") for part in parts]
    return Node("string", lambda table: concatenate(*(text.run(table) for text in texts)))


def _case(tree: exp.Expr, read: Reader) -> Node:
    subject = tree.args.get("this")
    pairs = [
        (exp.EQ(this=subject.copy(), expression=branch.this.copy()) if subject else branch.this,
         branch.args["true"])
        for branch in tree.args["ifs"]
    ]  # fmt: skip
    return _choose(pairs, tree.args.get("default"), read)


def _choose(
    pairs: Sequence[tuple[exp.Expr, exp.Expr]], default: exp.Expr | None, read: Reader
) -> Node:
    tests = [convert(build(test, read), "bool", "a condition") for test, _ in pairs]
    last = build(default if default is not None else exp.Null(), read)
    *values, final = unify("CASE", *(build(value, read) for _, value in pairs), last)

    def run(table: pa.Table) -> Column:
        result = final.run(table)
        for test, value in zip(reversed(tests), reversed(values), strict=True):
            chosen = pc.fill_null(test.run(table), fill_value=False)
            result = pc.if_else(chosen, value.run(table), result)
        return result

    return Node(final.kind, run)


def _extract(tree: exp.Expr, read: Reader) -> Node:
    inner, zone = tree.expression, None
    if isinstance(inner, exp.AtTimeZone):
        inner, zone = inner.this, inner.args.get("zone")
    node = build(inner, read)
    if node.kind not in ("date", "timestamp") or (zone is not None and node.kind == "date"):
        raise wrong("EXTRACT", seen(node), 1, "a timestamp" if zone else "a date or timestamp")
    part = canonical(tree.this).upper()
    if part == "TIME":
        raise PlanError(NO_TIME.format("TIME"))
    kernel = times.extract(part)
    if zone is None:
        return Node("int", lambda table: kernel(node.run(table)))
    if not isinstance(zone, exp.Literal) or not zone.is_string:
        raise PlanError("the time zone of EXTRACT is a text written in the query")
    clocks = times.on_clocks(require_zone(zone.this))
    return Node("int", lambda table: kernel(clocks(node.run(table))))


# -- function calls ------------------------------------------------------------------------------


_NOT_FIXED = "CURRENT_DATE CURRENT_DATETIME CURRENT_TIME CURRENT_TIMESTAMP RAND GENERATE_UUID NOW"
NOT_FIXED = frozenset(_NOT_FIXED.split())


def functions() -> Mapping[str, Rule]:
    """The functions that a row may call, loaded if a query calls one."""
    from streamveil.expressions.functions import FUNCTIONS

    return FUNCTIONS


def require_function(tree: exp.Expr) -> str:
    """The name of a function a row may call; PlanError with the nearest known name."""
    name = str(tree.this).upper() if isinstance(tree.this, str) else tree.this.name.upper()
    if name in functions() or (
        name == "WEEK" and isinstance(tree.parent, exp.Anonymous | exp.Extract)
    ):
        return name
    if name in AGGREGATES:
        raise PlanError(
            f"{name} is an aggregate and cannot stand inside a row expression; "
            "aggregates belong in the SELECT list of the private query"
        )
    if name in NOT_FIXED:
        raise PlanError(
            f"{name}() has another value in every run: a row would count today and not tomorrow,"
            " and a step that is repeated would differ.\n"
            "  to fix  write the value: DATE '2026-01-31', TIMESTAMP '2026-01-31 12:00:00'"
        )
    if name in OF_TIME:
        raise PlanError(NO_TIME.format(name))
    if name.partition("_")[0] in WINDOWS:
        raise PlanError(
            f"{name}: windows are made in FROM.\n"
            "  to fix  FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL 1 DAY)"
            " GROUP BY window_start"
        )
    if name in ELSEWHERE:
        raise PlanError(f"{name} is not GoogleSQL.\n  to fix  {ELSEWHERE[name]}")
    raise PlanError(f"unknown function '{shown(name)}'{nearest_function(name)}")


ELSEWHERE = {  # functions of other dialects, and what to write instead
    name: text for names, text in (
        ("YEAR QUARTER MONTH DAY HOUR MINUTE DAYOFWEEK DATE_PART", "EXTRACT(HOUR FROM t)"),
        ("STRFTIME DATE_FORMAT TO_CHAR DAYNAME MONTHNAME", "FORMAT_TIMESTAMP('%Y-%m', t)"),
        ("TIME_BUCKET TIMESTAMP_BUCKET DATE_BUCKET DATETIME_BUCKET TIME_SLICE",
         "TIMESTAMP_TRUNC(t, DAY); of 6 hours"
         " TIMESTAMP_SECONDS(DIV(UNIX_SECONDS(t), 21600) * 21600)"),
        ("DATEDIFF", "TIMESTAMP_DIFF(later, earlier, DAY)"),
        ("DATEADD", "TIMESTAMP_ADD(t, INTERVAL 1 DAY)"),
        ("EPOCH", "UNIX_SECONDS(t)"),
        ("TO_DATE", "PARSE_DATE('%Y-%m-%d', s)"),
        ("WIDTH_BUCKET", "RANGE_BUCKET(x, [10, 20]), or FLOOR(x / 10) * 10"),
        ("NVL ZEROIFNULL", "IFNULL(x, 0)"),
        ("IFF", "IF(x > 1, 'more', 'less')"),
        ("DECODE", "CASE x WHEN 1 THEN 'one' END"),
        ("LEN", "LENGTH(s)"),
        ("TRY_CAST", "SAFE_CAST(s AS INT64)"),
        ("POSITION CONTAINS", "STRPOS(s, 'x') > 0"),
        ("REGEXP_MATCHES", "REGEXP_CONTAINS(s, 'x')"),
        ("CONCAT_WS", "CONCAT(s, '-', s)"),
        ("ISNULL", "x IS NULL"),
        ("EQUAL_NULL", "x IS NOT DISTINCT FROM 1"),
    ) for name in names.split()
}  # fmt: skip

WINDOWS = frozenset({"TUMBLE", "HOP", "CUMULATE"})
_OF_TIME = "TIME TIME_TRUNC TIME_ADD TIME_SUB TIME_DIFF FORMAT_TIME PARSE_TIME"
OF_TIME = frozenset(_OF_TIME.split())
NO_TIME = (
    "{}: a time of day without its day is not supported.\n"
    "  to fix  EXTRACT(HOUR FROM t), or FORMAT_TIMESTAMP('%H:%M', t)"
)


def _call(tree: exp.Expr, read: Reader) -> Node:
    name = require_function(tree)
    if name not in functions():
        raise PlanError(f"{name} stands only where a time unit is expected")
    rule = functions()[name]
    inputs = [_argument(argument, read) for argument in tree.expressions]
    bound = rule(name, [seen(node) for node in inputs])
    return _apply(name, bound, inputs)


def nearest_function(name: str) -> str:
    """A hint of at most one name: the list is long."""
    hint = nearest(name, functions())
    return hint if hint.startswith("; did") else "; docs/sql.md lists every function"


def _argument(tree: exp.Expr, read: Reader) -> Node:
    if isinstance(tree, exp.Var):
        return Node("unit", _no_value, tree.name)
    if isinstance(tree, exp.Anonymous) and str(tree.this).upper() == "WEEK":
        arity("WEEK", tree.expressions, 1)
        return Node("unit", _no_value, f"WEEK({tree.expressions[0].name.upper()})")
    return build(tree, read)


def _apply(name: str, bound: Bound, inputs: Sequence[Node]) -> Node:
    columns = [
        convert(node, wanted, f"argument {place} of {name}")
        for place, (node, wanted) in enumerate(zip(inputs, bound.wanted, strict=True), start=1)
        if wanted is not None
    ]
    return Node(bound.result, lambda table: bound.kernel(*(c.run(table) for c in columns)))


BUILDERS: dict[type, Builder] = {
    exp.Literal: _literal,
    exp.RawString: lambda tree, _: constant("string", tree.this),
    exp.Boolean: lambda tree, _: constant("bool", bool(tree.this)),
    exp.Null: lambda *_: Node("null", lambda table: pa.nulls(table.num_rows)),
    exp.Interval: lambda tree, _: Node("interval", _no_value, interval_of(tree)),
    exp.Column: _column,
    exp.Paren: lambda tree, read: build(tree.this, read),
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Add: _arithmetic("+", "add", float_op(np.add)),
    exp.Sub: _arithmetic("-", "subtract", float_op(np.subtract)),
    exp.Mul: _arithmetic("*", "multiply", float_op(np.multiply)),
    exp.Div: _arithmetic("/", None, float_divide),
    exp.Mod: _arithmetic("%", "mod", float_op(np.fmod)),
    exp.Neg: _negative,
    exp.EQ: _compare("=", pc.equal),
    exp.NEQ: _compare("<>", pc.not_equal),
    exp.LT: _compare("<", pc.less),
    exp.LTE: _compare("<=", pc.less_equal),
    exp.GT: _compare(">", pc.greater),
    exp.GTE: _compare(">=", pc.greater_equal),
    exp.NullSafeEQ: _compare("IS NOT DISTINCT FROM", _not_distinct),
    exp.NullSafeNEQ: _compare("IS DISTINCT FROM", lambda a, b: pc.invert(_not_distinct(a, b))),
    exp.And: _logic("AND", pc.and_kleene),
    exp.Or: _logic("OR", pc.or_kleene),
    exp.Not: _not,
    exp.Is: _is,
    exp.In: _in_list,
    exp.Between: _between,
    exp.Like: _like,
    exp.DPipe: _join_texts,
    exp.Concat: _join_texts,
    exp.If: lambda tree, read: _choose(
        [(tree.this, tree.args["true"])], tree.args.get("false"), read
    ),
    exp.Case: _case,
    exp.Extract: _extract,
    exp.Anonymous: _call,
}
_OTHER_ROWS = (
    "reads other rows. Before bounding that would let one person's rows change another's; "
    "write it as a per-row expression"
)
_NUMBER = (
    "reads other rows. Before bounding that would let one person's rows change another's\n"
    "  to fix  COUNT(*) / SUM(COUNT(*)) OVER () is the share of a group; where rows are compared"
    " with a number, ask for it first and write it out"
)
REFUSED: dict[type, str] = {
    exp.Subquery: _NUMBER,
    exp.Select: _NUMBER,
    exp.Exists: _OTHER_ROWS,
    exp.Window: _OTHER_ROWS,
    exp.Distinct: _OTHER_ROWS,
    exp.Star: "stands for no single column here",
    exp.Alias: "gives a name where a value is wanted",
    exp.Parameter: "is a query parameter; write the value out",
    exp.Placeholder: "is a query parameter; write the value out",
}
