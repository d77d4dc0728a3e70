"""Errors a caller can handle. No message ever holds a value taken from the data.

Nor does one hold a command to the terminal it is shown on: names in it are spelled out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, currentframe, signature
from math import inf
from numbers import Integral, Real
from operator import index
from os import PathLike, fsencode
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

INTERRUPTED = 130  # exit code after Ctrl-C
NOTHING_LEFT = "nothing left to do: all releases were made before; rows that came later are in none"
INNER = "streamveil "  # begins the names of columns that are added to a user's
P = ParamSpec("P")
R = TypeVar("R")

# C0, DEL and C1; marks of direction; ends of lines and paragraphs; halves of surrogate pairs
COMMANDS = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
)
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair
ONE_LINE, LINES = re.compile(f"[{COMMANDS}]"), re.compile(f"(?!\\n)[{COMMANDS}]")


def visible(text: str) -> str:
    r"""A name as one line that a terminal shows and does not obey.

    >>> visible("a\x1b[2J\n\u202e\x9b"), visible("größe 数 👩‍🚀")
    ('a\\x1b[2J\\n\\u202e\\x9b', 'größe 数 👩‍🚀')
    """
    return ONE_LINE.sub(spelled, text)


def visible_lines(text: str) -> str:
    """A text that may have several lines, as a terminal shows and does not obey it."""
    return LINES.sub(spelled, text)


def spelled(found: re.Match[str]) -> str:
    """A character as Python writes it in a text."""
    return found[0].encode("unicode_escape").decode()


PACKAGE = str(Path(__file__).parent)


def warn(text: str, category: type[Warning]) -> None:
    """Warns, pointing at the line of the caller's own code that led here."""
    level, frame = 1, currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


LONGEST_SHOWN = 40  # characters of a text that is refused
LONGEST_NAME = 200  # bytes, which leaves room for endings
LONGEST_PART = 255  # bytes of a name that a file system takes
PARENTS = ("", ".", "..")


class StreamveilError(Exception):
    """Base of every error this package raises on purpose: `except sv.StreamveilError`."""

    def __init__(self, message: str = "") -> None:
        super().__init__(visible_lines(str(message)))


class PlanError(StreamveilError, ValueError):
    """A query or a call that cannot be run, or must not be: says what, why and the way out."""


class BudgetError(StreamveilError):
    """A charge that would overspend a ledger. It is refused before anything is drawn."""

    def __init__(self, message: str, *, asked: object = None, left: object = None) -> None:
        super().__init__(message)
        self.asked = asked  # losses, when the ledger refused
        self.left = left


class HorizonError(StreamveilError):
    """More steps than the guarantee covers."""

    def __init__(self, horizon: int) -> None:
        super().__init__(
            f"the guarantee covers {horizon} steps and all are taken.\n"
            "  to fix  open the mechanism with a larger horizon, or one that needs none"
        )
        self.horizon = horizon


class ReusedNoiseError(StreamveilError, ValueError):
    """Noise asked for a second time at one address; nothing was drawn."""

    def __init__(self, purpose: str, path: Iterable[int | bytes]) -> None:
        parts = (
            part.decode("ascii", "ignore") if isinstance(part, bytes) else part for part in path
        )
        super().__init__(
            f"the noise at address {'/'.join(map(str, (purpose, *parts)))} was drawn before: two"
            " releases with the same noise reveal the difference of their data.\n"
            "  to fix  pass on the state that the last step returned, or use a place of its own for"
            " each run"
        )


class UncopiedNoiseError(StreamveilError, TypeError):
    """What owns its noise was copied, pickled or forked; nothing was drawn."""

    def __init__(self) -> None:
        super().__init__(
            "what owns its noise cannot be copied or pickled, nor used in a process that was forked"
            " since: both would draw the same noise, which reveals the difference of their data.\n"
            "  to fix  open it in the process that uses it; to go on later, save() and resume()"
        )


class StoreError(StreamveilError):
    """Durable state that cannot be read, written or trusted."""


class OperatorWarning(UserWarning):
    """A warning to the operator that depends on people's rows: never in a log line."""


class NoiseWarning(UserWarning):
    """A warning on noise, budget or rows of a job, from public facts or the results of a look."""


class WitnessError(StreamveilError):
    """A compiled stage differed from its specification; nothing was committed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the witness stopped the job before its commit: {what}.\n"
            "  This is a fault of the program or of the machine's memory, not of the data. Nothing"
            " of this micro-batch was saved or released.\n"
            "  to fix  start the job again on its state; if it stops again, report it with the"
            " versions of streamveil, numba and Python"
        )


class SourceError(StreamveilError):
    """A source that cannot be read, or a sink that cannot be written: what is missing or away."""


class MissingExtraError(StreamveilError, ImportError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str, outdated: str = "") -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}'{outdated}.\n"
            f"  to fix  pip install 'streamveil[{extra}]'"
        )
        self.extra = extra


@contextmanager
def requires_extra(feature: str, extra: str, least: tuple[str, str] = ("", "")) -> Iterator[None]:
    """Says which extra a feature needs, if an import in the block finds no such package.

    `least`: a package and its oldest version with the feature; an older one is refused.

    >>> with requires_extra("this feature", "duckdb"):
    ...     import no_such_package
    Traceback (most recent call last):
    ...
    streamveil.errors.MissingExtraError: this feature needs the extra 'duckdb'.
      to fix  pip install 'streamveil[duckdb]'
    """
    try:
        yield
    except ImportError:
        raise MissingExtraError(feature, extra) from None
    package, oldest = least
    if not package:
        return
    from importlib.metadata import version  # takes longer to load than all of this

    if numbers_of(found := version(package)) < numbers_of(oldest):
        outdated = f" with {package} {oldest} or later: {found} loses rows"
        raise MissingExtraError(feature, extra, outdated)


def numbers_of(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version.

    >>> numbers_of("2.10.0rc1") > numbers_of("2.9")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def require_positive(**numbers: object) -> None:
    """Raises PlanError naming the first argument that is not a finite number above zero."""
    for name, value in numbers.items():
        if not (is_real(value) and 0 < value < inf):  # type: ignore[operator]
            raise PlanError(f"{name} must be a finite number above 0, not {got(value)}")


def is_real(value: object) -> bool:
    """Whether a value is an ordered number: not a truth value, nor a NumPy span of time."""
    return isinstance(value, Real) and type(value).__name__ not in ("bool", "timedelta64")


def whole(name: str, value: object, least: float = -inf) -> int:
    """A whole number of NumPy or any other class as Python's int, whose arithmetic is exact.

    Raises:
        PlanError: it is none, a truth value, or below `least`.

    >>> from enum import IntEnum
    >>> whole("horizon", IntEnum("Few", "ONE TWO").TWO)
    2
    >>> whole("horizon", 2.5)
    Traceback (most recent call last):
    ...
    streamveil.errors.PlanError: horizon must be a whole number, not 2.5
    """
    if least > -inf:
        at_least(least, **{name: value})
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__index__(value)  # whatever a subclass says
    if isinstance(value, Integral) and not isinstance(value, bool):
        with suppress(TypeError):  # a span of time of NumPy
            return index(value)
    raise PlanError(f"{name} must be a whole number, not {got(value)}")


def got(value: object) -> str:
    """A refused argument in words: a number or a text as it is, the class of anything else.

    >>> got("x"), got(2.5), got([3])
    ("'x'", '2.5', 'list')
    """
    if isinstance(value, str):
        return repr(value[:LONGEST_SHOWN])
    return str(value) if isinstance(value, Real | timedelta | None) else type(value).__name__


def at_least(least: float, **numbers: object) -> None:
    """Raises PlanError naming the first argument that is no whole number, or below `least`."""
    for name, value in numbers.items():
        if whole(name, value) < least:
            raise PlanError(f"{name} must be a whole number of at least {least}, not {value}")


def require_between(low: float, high: float, **numbers: float) -> None:
    """Raises PlanError naming the first argument outside the closed interval [low, high]."""
    for name, value in numbers.items():
        if not (is_real(value) and low <= value <= high):
            raise PlanError(f"{name} must be between {low:,} and {high:,}, not {got(value)}")


def require_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raises PlanError with the nearest known name when `value` is not one of `known`."""
    known = list(known)
    if not isinstance(value, str):
        words = ", ".join(map(repr, known))
        raise PlanError(f"{name} must be one of {words}, not {got(value)}")
    if value not in known:
        raise PlanError(f"unknown {name} '{value}'{nearest(value, known)}")


def require_with(name: str, value: object, has: str, such_as: str) -> None:
    """Raises PlanError naming an argument of another kind, recognised by a missing attribute."""
    if not hasattr(value, has):
        raise PlanError(f"{name} must be {such_as}, not {got(value)}")


def listed(name: str, value: object, such_as: str) -> list[Any]:
    """The elements of a list, an array or the like; raises PlanError where there are none.

    >>> listed("on", {"user": 1}, "columns such as ['user']")
    ['user']
    """
    try:
        return [*value]  # type: ignore[misc]  # what can be taken apart is seen by trying
    except TypeError:
        raise PlanError(f"{name} must be {such_as}, not {got(value)}") from None


def require_path(name: str, value: object, what: str = "a directory") -> None:
    """Raises PlanError for anything that is not a path, and for names that no file can have."""
    if not isinstance(value, str | PathLike):
        raise PlanError(f"{name} must be the path of {what}, not {type(value).__name__}")
    try:
        possible = all(len(fsencode(part)) <= LONGEST_PART for part in Path(value).parts)
    except UnicodeEncodeError:  # half of a surrogate pair
        possible = False
    if not possible:
        raise PlanError(
            f"{name} is the path of {what}: each of its names has at most {LONGEST_PART} bytes, of"
            f" Unicode, and {got(str(value))} is none"
        )


def require_flag(**flags: object) -> None:
    """Raises PlanError naming the first argument that is not True or False, such as 'no'."""
    for name, value in flags.items():
        if type(value).__name__ not in ("bool", "bool_"):  # of Python, of NumPy
            raise PlanError(f"{name} must be True or False, not {got(value)}")


def require_text(**texts: object) -> None:
    """Raises PlanError naming the first argument that is no text, or has half a surrogate pair."""
    for name, value in texts.items():
        if not isinstance(value, str) or SURROGATE.search(value):
            raise PlanError(f"{name} must be text, not {got(value)}")


def require_budget(budget: object) -> None:
    """Raises PlanError for anything but a `Budget`."""
    require_with("budget", budget, "quoted_delta", "a Budget such as Budget(epsilon=1, delta=1e-9)")


def require_file_name(what: str, name: str) -> str:
    """A name, if a folder can have it and stay in its place; else raises PlanError.

    >>> require_file_name("query", "pages per day")
    'pages per day'
    """
    if not isinstance(name, str):
        raise PlanError(f"the name of a {what} must be text, not {got(name)}")
    plain = visible(name) == name and not {"/", "\\"} & set(name) and name.strip(" ") not in PARENTS
    if not plain or len(name.encode()) > LONGEST_NAME:
        raise PlanError(
            f"{name[:LONGEST_NAME]!a} cannot be the name of a {what}: a folder is named after it.\n"
            f"  to fix  use at most {LONGEST_NAME} bytes of text, not . or .., without / \\ or"
            " control characters"
        )
    return name


def require_outer(names: Iterable[str]) -> None:
    """Refuses names that are kept for columns added while an answer is computed.

    >>> require_outer(["streamveil_copy", "__step"])
    """
    for name in names:
        if name.lower().startswith(INNER):
            raise PlanError(
                f"a column is called '{visible(name)}': names that begin with '{INNER}' are those"
                " of columns that are added to rows.\n  to fix  give it another name"
            )


def nearest(word: str, known: Collection[str]) -> str:
    """The end of a sentence: '; did you mean X?' or the list of known names of users.

    >>> nearest("w", ["id", "day", "streamveil origin"])
    '; known: day, id'
    """
    known = sorted(name for name in known if not name.startswith(INNER))
    spelling = {name.lower(): name for name in known}
    close = get_close_matches(str(word).lower(), spelling, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{spelling[close[0]]}'?"
    return f"; known: {', '.join(known)}"


def fitting(form: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Refuses calls that do not fit a function, by the name of the argument and the right form.

    >>> @fitting("area(width=2, height=3)")
    ... def area(*, width: int, height: int) -> int:
    ...     return width * height
    >>> area(width=2, heigth=3)
    Traceback (most recent call last):
    ...
    streamveil.errors.PlanError: area() has no argument 'heigth'; did you mean 'height'?
      to fix  area(width=2, height=3)
    """

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        known = signature(function)

        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            try:
                known.bind(*args, **named)
            except TypeError:
                fault = misfit(known, len(args), named)
                name = form.partition("(")[0]
                raise PlanError(f"{name}() {fault}\n  to fix  {form}") from None
            return function(*args, **named)

        return call

    return wrap


def misfit(known: Signature, given: int, named: Collection[str]) -> str:
    """The fault of a call: an argument that is unknown, given by place, or missing."""
    arguments = [one for one in known.parameters.values() if one.name != "self"]
    given -= len(known.parameters) - len(arguments)
    names = [one.name for one in arguments if one.kind is not Parameter.VAR_KEYWORD]
    placed = [one.name for one in arguments if one.kind is Parameter.POSITIONAL_OR_KEYWORD]
    for name in named:
        if name not in names and len(names) == len(arguments):
            return f"has no argument '{name}'{nearest(name, names)}"
        if name in placed[:given]:
            return f"is given '{name}' twice, by place and by name"
    if given > len(placed):
        most = f"at most {len(placed)} arguments" if placed else "no argument"
        return f"takes {most} by place, and {given} are given: name them"
    needed = [one.name for one in arguments if one.default is Parameter.empty]
    missing = [n for n in needed if n in names and n not in named and n not in placed[:given]]
    return f"needs {', '.join(repr(name) for name in missing)}"
