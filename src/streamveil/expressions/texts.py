"""Texts made of columns, and places in texts: kernels of functions that Arrow lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError
from streamveil.expressions.kernels import Column, as_cast, null_unless

BEFORE, MATCH, AFTER = "veil_before", "veil_match", "veil_after"  # groups that no query names
FOUND = "veil_found"
WIDEST = 1_000  # characters that a directive may ask for
DIRECTIVES = {"d": "int", "i": "int", "f": "float", "e": "float", "g": "float", "s": "string"}
_DIRECTIVE = re.compile(r"%([-+0 ]*)([0-9]*)(\.[0-9]+)?(.)?", re.DOTALL)


class Nth(NamedTuple):
    """Which match of a pattern is meant: the nth of those that begin at a character or later."""

    start: int = 1  # character from which on is searched, from 1
    turn: int = 1  # which of the matches, from 1
    overlapping: bool = False  # whether the next may begin inside the one before


FIRST = Nth()


class Matches(NamedTuple):
    """The match of each row: null where there is none."""

    place: Column  # its first character, from 1
    text: Column  # all of it
    found: Column  # its only group, or all of it


def matches(pattern: str, which: Nth, groups: Sequence[int] = ()) -> Callable[[Column], Matches]:
    """Finds one match of a pattern in each row; `groups`: where a group begins in the pattern.

    >>> found = matches("b+", Nth(turn=2))(pa.array(["éabbcb", "b", None]))
    >>> found.place.to_pylist(), found.text.to_pylist()
    ([6, None, None], ['b', None, None])
    """
    inner = f"(?P<{FOUND}>{pattern})"
    if groups:
        inner = f"{pattern[: groups[0]]}(?P<{FOUND}>{pattern[groups[0] + 1 :]}"
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
    """One piece of a format: text as it is, or how a value is written."""

    text: str
    kind: str | None = None  # of the value; 'any': as CAST writes it; None: there is none


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
    """Rows written by the pieces of a format; null where a value is, but for %t, which says NULL.

    >>> formatted(directives("FORMAT", "%03d:%.1f"))(pa.array([7, None]), pa.array([2.25, 1])
    ...     ).to_pylist()
    ['007:2.2', None]
    """
    kinds = [piece.kind for piece in pieces if piece.kind]
    whole = "".join(p.text if p.kind else p.text.replace("%", "%%") for p in pieces)

    def run(*columns: Column) -> Column:
        told = [
            pc.fill_null(as_cast(column), "NULL") if kind == "any" else column
            for kind, column in zip(kinds, columns, strict=True)
        ]
        rows = zip(*(column.to_pylist() for column in told), strict=True)
        return pa.array([None if None in row else whole % row for row in rows], pa.string())

    return run


MOST_MADE = 1 << 24  # bytes of a text that is written in place of another
MOST_TRIED = 1 << 30  # bytes that it may have had, before it is written


def rewritten(
    kernel: Callable[[Column], Column], most: Callable[[Column], Column]
) -> Callable[[Column], Column]:
    """A kernel that may write far longer texts than it reads; null where one is too long.

    `most`: the bytes that a result has at most. Arrow writes with offsets of 32 bits where it reads
    such, unchecked: 2 GiB of results would spoil those of other rows, or end the process.
    """

    def run(column: Column) -> Column:
        wide = column.cast(pa.large_string())
        found = kernel(null_unless(pc.less_equal(most(wide), MOST_TRIED), wide))
        return null_unless(pc.less_equal(bytes_of(found), MOST_MADE), found).cast(column.type)

    return run


def replaced(old: str, new: str) -> Callable[[Column], Column]:
    """A text in place of another, which is not empty.

    >>> replaced("a", "bc")(pa.array(["aha", None])).to_pylist()
    ['bchbc', None]
    """
    more = len(new.encode()) - len(old.encode())

    def most(column: Column) -> Column:
        times = pc.count_substring(column, pattern=old).cast(pa.int64())
        return pc.add(bytes_of(column), pc.multiply(times, more))

    return rewritten(lambda c: pc.replace_substring(c, pattern=old, replacement=new), most)


def replaced_matches(pattern: str, new: str) -> Callable[[Column], Column]:
    r"""A text in place of every match of a pattern, in which \1 is what a group of it found.

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
    """How many bytes a text has in UTF-8."""
    return pc.binary_length(column).cast(pa.int64())
