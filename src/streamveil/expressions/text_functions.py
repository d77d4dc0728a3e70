"""The functions of texts: one table, name -> typing rule and kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError
from streamveil.expressions.convert import (
    Argument,
    Bound,
    Kernel,
    Kind,
    Rule,
    arity,
    fixed,
    same,
    written,
)
from streamveil.expressions.kernels import Column, as_cast, null_unless

# ---- texts made of columns, and places in texts: kernels of functions that Arrow lacks


BEFORE, MATCH, AFTER = "veil_before", "veil_match", "veil_after"  # group names of our own
FOUND = "veil_found"
WIDEST = 1_000  # characters that a directive may ask for
DIRECTIVES = {"d": "int", "i": "int", "f": "float", "e": "float", "g": "float", "s": "string"}
_DIRECTIVE = re.compile(r"%([-+0 ]*)([0-9]*)(\.[0-9]+)?(.)?", re.DOTALL)


class Nth(NamedTuple):
    """A choice among the matches of a pattern: the nth that begins at a character or later."""

    start: int = 1  # character at which the search begins, from 1
    turn: int = 1  # which of the matches, from 1
    overlapping: bool = False  # whether a match may begin inside the one before


FIRST = Nth()


class Matches(NamedTuple):
    """The match of each row: null where there is none."""

    place: Column  # its first character, from 1
    text: Column  # all of it
    found: Column  # its only group, or all of it


def matches(
    pattern: str, which: Nth, groups: Sequence[tuple[int, int]] = ()
) -> Callable[[Column], Matches]:
    """Finds one match of a pattern in each row; `groups`: the pattern's only group, if any.

    >>> found = matches("b+", Nth(turn=2))(pa.array(["éabbcb", "b", None]))
    >>> found.place.to_pylist(), found.text.to_pylist()
    ([6, None, None], ['b', None, None])
    """
    inner = f"(?P<{FOUND}>{pattern})"
    if groups:
        start, end = groups[0]
        inner = f"{pattern[:start]}(?P<{FOUND}>{pattern[end:]}"
    named = f"^(?P<{BEFORE}>(?s:.*?))(?P<{MATCH}>{inner})(?P<{AFTER}>(?s:.*))$"

    def run(column: Column) -> Matches:
        enough = pc.or_(pc.greater_equal(pc.utf8_length(column), which.start), which.start == 1)
        rest = null_unless(pc.fill_null(enough, fill_value=False), column)
        rest = pc.utf8_slice_codeunits(rest, which.start - 1)
        passed: Column = pa.array(np.full(len(column), which.start, np.int64))
        for turn in range(which.turn):
            parts = pc.extract_regex(rest, pattern=named)
            before, text, after = (pc.struct_field(parts, n) for n in (BEFORE, MATCH, AFTER))
            place = pc.add(passed, pc.utf8_length(before).cast(pa.int64()))
            if turn + 1 == which.turn:
                break
            whole = pc.binary_join_element_wise(text, after, "")
            one = pc.utf8_slice_codeunits(whole, 1)  # a match of nothing moves on by a character
            size = pc.utf8_length(text).cast(pa.int64())
            by_one = pc.or_(pc.equal(size, 0), which.overlapping)
            left = pc.fill_null(pc.not_equal(whole, ""), fill_value=False)
            rest = null_unless(left, pc.if_else(by_one, one, after))
            passed = pc.add(place, pc.if_else(by_one, 1, size))
        return Matches(place, text, pc.struct_field(parts, FOUND))

    return run


def place_of(pattern: str, which: Nth = FIRST, *, end: bool = False) -> Callable[[Column], Column]:
    """The character, from 1, at which a match of a pattern begins (or after it); 0 without one.

    >>> place_of("b+")(pa.array(["éabb", "x", None])).to_pylist()
    [3, 0, None]
    """
    search = matches(pattern, which)

    def run(column: Column) -> Column:
        place, text, _ = search(column)
        if end:
            place = pc.add(place, pc.utf8_length(text).cast(pa.int64()))
        return pc.if_else(pc.is_valid(column), pc.fill_null(place, 0), pa.scalar(None, pa.int64()))

    return run


def quoted(text: str) -> str:
    r"""The pattern that matches a text and nothing else.

    >>> quoted("a.b")
    '\\Qa.b\\E'
    """
    return "\\Q" + text.replace("\\E", "\\E\\\\E\\Q") + "\\E"


class Directive(NamedTuple):
    """One piece of a format: plain text, or the form of a value."""

    text: str
    kind: str | None = None  # of the value; 'any': as CAST writes it; None: no value


def directives(name: str, pattern: str) -> list[Directive]:
    """The pieces of a format of FORMAT; PlanError where one is unknown.

    >>> directives("FORMAT", "%05d of %s %%")
    [Directive(text='%05d', kind='int'), Directive(text=' of ', kind=None), \
Directive(text='%s', kind='string'), Directive(text=' ', kind=None), \
Directive(text='%', kind=None)]
    """
    found: list[Directive] = []
    at = 0
    for match in _DIRECTIVE.finditer(pattern):
        if match.start() > at:
            found.append(Directive(pattern[at : match.start()]))
        at = match.end()
        flags, width, digits, letter = match.groups()
        plain = not (flags or width or digits)
        if letter == "%" and plain:
            found.append(Directive("%"))
        elif letter == "t" and plain:
            found.append(Directive("%s", "any"))
        elif letter in DIRECTIVES and max(int(width or 0), int((digits or ".0")[1:])) <= WIDEST:
            found.append(Directive(match.group(), DIRECTIVES[letter]))
        else:
            raise PlanError(
                f"argument 1 of {name}: '{match.group()[:20]}' is not available.\n"
                "  to fix  %d %i %f %e %g %s with flags (-+0 and space), a width and digits up to"
                f" {WIDEST:,}; %t; %%"
            )
    return [*found, *([Directive(pattern[at:])] if at < len(pattern) else [])]


def formatted(pieces: Sequence[Directive]) -> Callable[..., Column]:
    """Rows written by the pieces of a format; null where a value is null, except %t: NULL.

    >>> formatted(directives("FORMAT", "%03d:%.1f"))(pa.array([7, None]), pa.array([2.25, 1])
    ...     ).to_pylist()
    ['007:2.2', None]
    """
    kinds = [piece.kind for piece in pieces if piece.kind]
    whole = "".join(p.text if p.kind else p.text.replace("%", "%%") for p in pieces)

    def run(*columns: Column) -> Column:
        told = [
            pc.fill_null(printed(column), "NULL") if kind == "any" else column
            for kind, column in zip(kinds, columns, strict=True)
        ]
        rows = zip(*(column.to_pylist() for column in told), strict=True)
        return pa.array([None if None in row else whole % row for row in rows], pa.string())

    return run


def printed(column: Column) -> Column:
    """Values as %t writes them: a float never looks like an integer.

    >>> printed(pa.array([2.0, 2.5, 1e20])).to_pylist()
    ['2.0', '2.5', '1e+20']
    """
    text = as_cast(column)
    if pa.types.is_floating(column.type):
        text = pc.replace_substring_regex(text, r"^(-?[0-9]+)$", r"\1.0")
    return text


MOST_MADE = 1 << 24  # most bytes of a text that replaces another
MOST_TRIED = 1 << 30  # most bytes by its bound, before it is written


def rewritten(
    kernel: Callable[[Column], Column], most: Callable[[Column], Column]
) -> Callable[[Column], Column]:
    """A kernel that may write far longer texts than it reads; null where one is too long.

    `most`: a bound on the bytes of a result. If Arrow reads offsets of 32 bits it also writes such,
    unchecked: 2 GiB of results would spoil those of other rows, or end the process.
    """

    def run(column: Column) -> Column:
        wide = column.cast(pa.large_string())
        found = kernel(null_unless(pc.less_equal(most(wide), MOST_TRIED), wide))
        return null_unless(pc.less_equal(bytes_of(found), MOST_MADE), found).cast(column.type)

    return run


def replaced(old: str, new: str) -> Callable[[Column], Column]:
    """The kernel that replaces a text, which is not empty, by another.

    >>> replaced("a", "bc")(pa.array(["aha", None])).to_pylist()
    ['bchbc', None]
    """
    more = len(new.encode()) - len(old.encode())

    def most(column: Column) -> Column:
        times = pc.count_substring(column, pattern=old).cast(pa.int64())
        return pc.add(bytes_of(column), pc.multiply(times, more))

    return rewritten(lambda c: pc.replace_substring(c, pattern=old, replacement=new), most)


def replaced_matches(pattern: str, new: str) -> Callable[[Column], Column]:
    r"""The kernel that replaces every match of a pattern by a text, where \1 is its first group.

    >>> replaced_matches("([ab])", r"\1\1")(pa.array(["abc", None])).to_pylist()
    ['aabbc', None]
    """
    groups = len(re.findall(r"\\\d", new))  # matches stand apart: each adds a text at most

    def most(column: Column) -> Column:
        size = bytes_of(column)
        often = pc.multiply(pc.add(size, 1), len(new.encode()))
        return pc.add(pc.multiply(size, 1 + groups), often)

    return rewritten(
        lambda c: pc.replace_substring_regex(c, pattern=pattern, replacement=new), most
    )


def bytes_of(column: Column) -> Column:
    """The number of bytes of a text in UTF-8."""
    return pc.binary_length(column).cast(pa.int64())


def capitals(column: Column) -> Column:
    """The first letter of each word as a capital, the rest small; GoogleSQL says where words end.

    >>> capitals(pa.array(["DON'T 3rd-éta x_y", None])).to_pylist()
    ["Don't 3rd-Éta X_Y", None]
    """
    rest = pc.utf8_lower(column).to_pylist()
    return pa.array(
        [None if t is None else _WORD.sub(lambda word: word[0].title(), t) for t in rest],
        column.type,
    )


_WORD = re.compile(r"(?<![^\s\[\](){}/|\\<>!?@\"^#$&~_,.:;*%+-])\w")


# ---- the functions of SQL


def _concat(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 99)
    return Bound("string", ("string",) * len(arguments), concatenate)


def concatenate(*columns: Column) -> Column:
    """Texts one after the other; null if one is null."""
    empty = pa.scalar("", columns[0].type)
    return pc.binary_join_element_wise(*columns, empty, null_handling="emit_null")


def _trim(all_sides: Kernel, of_characters: Kernel) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 1, 2)
        if len(arguments) == 1:
            return Bound("string", ("string",), all_sides)
        characters = written(name, arguments, 1, "string")
        return Bound("string", ("string", None), lambda c: of_characters(c, characters=characters))

    return rule


def _substring(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 2, 3)
    start = written(name, arguments, 1, "int")
    begin = start - 1 if start > 0 else start
    if len(arguments) == 2:
        return Bound("string", ("string", None), _slice(begin, None))
    length = written(name, arguments, 2, "int")
    if length < 0:
        raise PlanError(f"argument 3 of {name} must not be negative")
    if begin < 0:  # from the end: cut there first, then take the length
        head, tail = _slice(begin, None), _slice(0, length)
        return Bound("string", ("string", None, None), lambda c: tail(head(c)))
    return Bound("string", ("string", None, None), _slice(begin, begin + length))


def _slice(start: int, stop: int | None) -> Kernel:
    limit = 2**31 - 1
    begin = max(-limit, min(start, limit))
    end = None if stop is None else max(-limit, min(stop, limit))
    return lambda c: pc.utf8_slice_codeunits(c, begin, end)


def _ends(side: str) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        length = written(name, arguments, 1, "int")
        if length < 0:
            raise PlanError(f"argument 2 of {name} must not be negative")
        if side == "left":
            return Bound("string", ("string", None), _slice(0, length))
        kernel = _slice(-length, None) if length else _slice(0, 0)
        return Bound("string", ("string", None), kernel)

    return rule


def _replace(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 3)
    old, new = (written(name, arguments, place, "string") for place in (1, 2))
    kernel: Kernel = replaced(old, new) if old else same
    return Bound("string", ("string", None, None), kernel)


def _with_text(kernel: Callable[[Column, str], Column]) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2)
        text = written(name, arguments, 1, "string")
        return Bound("bool", ("string", None), lambda c: kernel(c, text))

    return rule


def _regexp_contains(name: str, arguments: Sequence[Argument]) -> Bound:
    bound = _with_text(lambda c, text: pc.match_substring_regex(c, pattern=text))(name, arguments)
    try:
        bound.kernel(pa.array([""]))
    except pa.ArrowInvalid:
        raise PlanError(f"argument 2 of {name} is not a valid regular expression") from None
    return bound


def _regexp_extract(name: str, arguments: Sequence[Argument]) -> Bound:
    """A match of a pattern, or of its only group; null where there is none."""
    arity(name, arguments, 2, 4)
    pattern = _pattern(name, arguments)
    groups = group_places(pattern)
    if len(groups) > 1:
        raise PlanError(
            f"argument 2 of {name} has {len(groups)} groups, and one is extracted.\n"
            "  to fix  write the others as (?:...)"
        )
    search = matches(pattern, _which(name, arguments, pattern), groups)
    wanted = ("string", *[None] * (len(arguments) - 1))
    return Bound("string", wanted, lambda column: search(column).found)


def _regexp_instr(name: str, arguments: Sequence[Argument]) -> Bound:
    """The character at which a match begins, or after it; 0 where there is none."""
    arity(name, arguments, 2, 5)
    pattern = _pattern(name, arguments)
    if group_places(pattern):
        raise PlanError(
            f"argument 2 of {name} has groups; here it is the whole match that is found.\n"
            "  to fix  write them as (?:...)"
        )
    after = written(name, arguments, 4, "int") if len(arguments) > 4 else 0
    if after not in (0, 1):
        raise PlanError(f"argument 5 of {name} is 0 for where a match begins, or 1 for after it")
    kernel = place_of(pattern, _which(name, arguments, pattern), end=after == 1)
    return Bound("int", ("string", *[None] * (len(arguments) - 1)), kernel)


def _pattern(name: str, arguments: Sequence[Argument]) -> str:
    """The regular expression in a function's argument; PlanError if it is not one."""
    _regexp_contains(name, arguments[:2])
    return str(written(name, arguments, 1, "string"))


def _which(name: str, arguments: Sequence[Argument], pattern: str) -> Nth:
    """The choice of a match, by arguments that may follow: where to begin, and which match."""
    start, turn = (
        written(name, arguments, place, "int") if len(arguments) > place else 1 for place in (2, 3)
    )
    if not 1 <= start <= FARTHEST or not 1 <= turn <= MOST_TURNS:
        raise PlanError(
            f"{name} begins at a character from 1 to {FARTHEST:,}, and finds one of the first"
            f" {MOST_TURNS} matches"
        )
    if (start, turn) != (1, 1) and ANCHORS.search(pattern):
        raise PlanError(
            f"argument 2 of {name} looks at what stands before a match (^, \\A, \\b or \\B), which"
            " is cut off where a search begins later.\n"
            "  to fix  leave it out, or search from the first character for the first match"
        )
    return Nth(start, turn)


FARTHEST, MOST_TURNS = 2**31 - 1, 100
ANCHORS = re.compile(r"(?<!\\)(?:\\\\)*(?:(?<!\[)\^|\\[AbB])")  # neither [^...] nor escaped ones


def _place(most: int) -> Rule:
    """STRPOS and INSTR: the character at which one text begins in another; 0 where it does not."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2, most)
        pattern = quoted(written(name, arguments, 1, "string"))
        which = _which(name, arguments, "")._replace(overlapping=True)
        kernel = place_of(pattern, which)
        return Bound("int", ("string", *[None] * (len(arguments) - 1)), kernel)

    return rule


def _printf(name: str, arguments: Sequence[Argument]) -> Bound:
    """FORMAT(format, values): a text by the directives of C."""
    arity(name, arguments, 2, 99)
    pieces = directives(name, written(name, arguments, 0, "string"))
    kinds = [piece.kind for piece in pieces if piece.kind]
    if len(kinds) != len(arguments) - 1:
        raise PlanError(
            f"argument 1 of {name} writes {len(kinds)} value(s), and {len(arguments) - 1} follow"
        )
    wanted = [a.kind if k == "any" else k for k, a in zip(kinds, arguments[1:], strict=True)]
    return Bound("string", (None, *wanted), formatted(pieces))


def group_places(pattern: str) -> list[tuple[int, int]]:
    r"""Where the brackets of capturing groups begin and end, with the names of named groups.

    >>> group_places(r"a\((b)[]([:digit:]](?:c)(?P<d>e)\Q(\E")
    [(3, 4), (24, 30)]
    """
    return [found.span() for found in _PIECE.finditer(pattern) if found[0].startswith("(")]


_PIECE = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\[:.*?:\]|\\.|[^]\\])*\]|\((?:\?P?<\w+>|(?!\?))", re.DOTALL
)  # of a regular expression: quoted texts, classes of characters, brackets of capturing groups


def _regexp_replace(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 3)
    kernel = replaced_matches(_pattern(name, arguments), written(name, arguments, 2, "string"))
    try:
        kernel(pa.array(["a"]))
    except pa.ArrowInvalid:
        raise PlanError(
            f"argument 3 of {name} names a group that its pattern does not have"
        ) from None
    return Bound("string", ("string", None, None), kernel)


def _split_part(name: str, arguments: Sequence[Argument]) -> Bound:
    """One part of a text, from 1: SPLIT(s, between)[OFFSET(n - 1)]; null where there is none."""
    arity(name, arguments, 3)
    between, place = written(name, arguments, 1, "string"), written(name, arguments, 2, "int")
    if not between or place < 1:
        raise PlanError(
            f"{name} takes the text between the parts, and the number of the part, from 1.\n"
            "  to fix  SPLIT(path, '/')[SAFE_OFFSET(1)]"
        )

    def kernel(column: Column) -> Column:
        parts = pc.split_pattern(column, pattern=between, max_splits=place)
        there = pc.fill_null(pc.greater_equal(pc.list_value_length(parts), place), False)  # noqa: FBT003
        starts = np.asarray(parts.offsets)[:-1] + place - 1
        values = parts.values.take(pa.array(np.where(there, starts, 0), mask=~np.asarray(there)))
        return values.cast(column.type)

    return Bound("string", ("string", None, None), kernel)


def _json_value(name: str, arguments: Sequence[Argument]) -> Bound:
    """A field of JSON text, as text."""
    from streamveil.expressions.json_values import steps_of, value_at  # where a query asks for it

    arity(name, arguments, 1, 2)
    path = written(name, arguments, 1, "string") if len(arguments) > 1 else "$"
    wanted: tuple[Kind | None, ...] = ("string", *[None] * (len(arguments) - 1))
    return Bound("string", wanted, value_at(steps_of(name, path)))


def _pad(kernel: Callable[..., Column]) -> Rule:
    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2, 3)
        width = written(name, arguments, 1, "int")
        padding = written(name, arguments, 2, "string") if len(arguments) > 2 else " "
        if not 0 <= width <= MOST_PADDED or len(padding) != 1:
            raise PlanError(
                f"{name} takes a width of 0 to {MOST_PADDED:,} and one character to pad with"
            )
        cut = _slice(0, width)
        wanted: tuple[Kind | None, ...] = ("string", *[None] * (len(arguments) - 1))
        return Bound("string", wanted, lambda c: kernel(cut(c), width=width, padding=padding))

    return rule


MOST_PADDED = 1_000  # characters


TEXTS: dict[str, Rule] = {
    "CONCAT": _concat,
    "LOWER": fixed("string", "string", kernel=pc.utf8_lower),
    "UPPER": fixed("string", "string", kernel=pc.utf8_upper),
    "TRIM": _trim(pc.utf8_trim_whitespace, pc.utf8_trim),
    "LTRIM": _trim(pc.utf8_ltrim_whitespace, pc.utf8_ltrim),
    "RTRIM": _trim(pc.utf8_rtrim_whitespace, pc.utf8_rtrim),
    "LENGTH": fixed("int", "string", kernel=lambda c: pc.utf8_length(c).cast(pa.int64())),
    "CHAR_LENGTH": fixed("int", "string", kernel=lambda c: pc.utf8_length(c).cast(pa.int64())),
    "SUBSTR": _substring,
    "SUBSTRING": _substring,
    "LEFT": _ends("left"),
    "RIGHT": _ends("right"),
    "REVERSE": fixed("string", "string", kernel=pc.utf8_reverse),
    "REPLACE": _replace,
    "INITCAP": fixed("string", "string", kernel=capitals),
    "LPAD": _pad(pc.utf8_lpad),
    "RPAD": _pad(pc.utf8_rpad),
    "SPLIT_PART": _split_part,
    "STRPOS": _place(2),
    "INSTR": _place(4),
    "BYTE_LENGTH": fixed("int", "string", kernel=bytes_of),
    "OCTET_LENGTH": fixed("int", "string", kernel=bytes_of),
    "FORMAT": _printf,
    "STARTS_WITH": _with_text(lambda c, text: pc.starts_with(c, pattern=text)),
    "ENDS_WITH": _with_text(lambda c, text: pc.ends_with(c, pattern=text)),
    "CONTAINS_SUBSTR": _with_text(
        lambda c, text: pc.match_substring(
            pc.utf8_lower(c), pattern=pc.utf8_lower(pa.scalar(text)).as_py()
        )
    ),
    "JSON_VALUE": _json_value,
    "JSON_EXTRACT_SCALAR": _json_value,
    "REGEXP_CONTAINS": _regexp_contains,
    "REGEXP_EXTRACT": _regexp_extract,
    "REGEXP_SUBSTR": _regexp_extract,
    "REGEXP_REPLACE": _regexp_replace,
    "REGEXP_INSTR": _regexp_instr,
}
