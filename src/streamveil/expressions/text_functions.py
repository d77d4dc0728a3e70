"""The functions of texts: one table, name -> typing rule and kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError
from streamveil.expressions import texts
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
from streamveil.expressions.kernels import Column


def _concat(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 1, 99)
    return Bound("string", ("string",) * len(arguments), concatenate)


def concatenate(*columns: Column) -> Column:
    """Texts one after the other; null when one is null."""
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
    kernel: Kernel = texts.replaced(old, new) if old else same
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
    search = texts.matches(pattern, _which(name, arguments, pattern), groups)
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
    kernel = texts.place_of(pattern, _which(name, arguments, pattern), end=after == 1)
    return Bound("int", ("string", *[None] * (len(arguments) - 1)), kernel)


def _pattern(name: str, arguments: Sequence[Argument]) -> str:
    """The regular expression of a function; PlanError if it is none."""
    _regexp_contains(name, arguments[:2])
    return str(written(name, arguments, 1, "string"))


def _which(name: str, arguments: Sequence[Argument], pattern: str) -> texts.Nth:
    """Which match is meant, by the character to begin at and the number that may follow."""
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
    return texts.Nth(start, turn)


FARTHEST, MOST_TURNS = 2**31 - 1, 100
ANCHORS = re.compile(r"(?<!\\)(?:\\\\)*(?:(?<!\[)\^|\\[AbB])")  # not [^...], nor what is escaped


def _place(most: int) -> Rule:
    """STRPOS and INSTR: the character at which one text begins in another; 0 where it does not."""

    def rule(name: str, arguments: Sequence[Argument]) -> Bound:
        arity(name, arguments, 2, most)
        pattern = texts.quoted(written(name, arguments, 1, "string"))
        which = _which(name, arguments, "")._replace(overlapping=True)
        kernel = texts.place_of(pattern, which)
        return Bound("int", ("string", *[None] * (len(arguments) - 1)), kernel)

    return rule


def _printf(name: str, arguments: Sequence[Argument]) -> Bound:
    """FORMAT(format, values): a text by the directives of C."""
    arity(name, arguments, 2, 99)
    pieces = texts.directives(name, written(name, arguments, 0, "string"))
    kinds = [piece.kind for piece in pieces if piece.kind]
    if len(kinds) != len(arguments) - 1:
        raise PlanError(
            f"argument 1 of {name} writes {len(kinds)} value(s), and {len(arguments) - 1} follow"
        )
    wanted = [a.kind if k == "any" else k for k, a in zip(kinds, arguments[1:], strict=True)]
    return Bound("string", (None, *wanted), texts.formatted(pieces))


def group_places(pattern: str) -> list[int]:
    r"""Where the groups of a regular expression begin that have no name and are extracted.

    >>> group_places(r"a\((b)[(](?:c)(d)")
    [3, 14]
    """
    found, inside, at = [], False, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            at += 1
        elif letter == "[":
            inside = True
        elif letter == "]":
            inside = False
        elif letter == "(" and not inside and pattern[at + 1 : at + 2] != "?":
            found.append(at)
        at += 1
    return found


def _regexp_replace(name: str, arguments: Sequence[Argument]) -> Bound:
    arity(name, arguments, 3)
    kernel = texts.replaced_matches(
        _pattern(name, arguments), written(name, arguments, 2, "string")
    )
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
    "INITCAP": fixed("string", "string", kernel=pc.utf8_title),
    "LPAD": _pad(pc.utf8_lpad),
    "RPAD": _pad(pc.utf8_rpad),
    "SPLIT_PART": _split_part,
    "STRPOS": _place(2),
    "INSTR": _place(4),
    "BYTE_LENGTH": fixed("int", "string", kernel=texts.bytes_of),
    "OCTET_LENGTH": fixed("int", "string", kernel=texts.bytes_of),
    "FORMAT": _printf,
    "STARTS_WITH": _with_text(lambda c, text: pc.starts_with(c, pattern=text)),
    "ENDS_WITH": _with_text(lambda c, text: pc.ends_with(c, pattern=text)),
    "CONTAINS_SUBSTR": _with_text(
        lambda c, text: pc.match_substring(pc.utf8_lower(c), pattern=text.lower())
    ),
    "JSON_VALUE": _json_value,
    "JSON_EXTRACT_SCALAR": _json_value,
    "REGEXP_CONTAINS": _regexp_contains,
    "REGEXP_EXTRACT": _regexp_extract,
    "REGEXP_SUBSTR": _regexp_extract,
    "REGEXP_REPLACE": _regexp_replace,
    "REGEXP_INSTR": _regexp_instr,
}
