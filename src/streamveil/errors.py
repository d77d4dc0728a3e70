"""Errors a caller can handle. No message ever holds a value taken from the data.

Nor does one hold a command to the terminal it is shown on: names in it are spelled out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from itertools import islice
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# C0, DEL and C1; marks of direction; ends of lines and paragraphs; halves of surrogate pairs
COMMANDS = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff"
)
ONE_LINE, LINES = re.compile(f"[{COMMANDS}]"), re.compile(f"(?!\\n)[{COMMANDS}]")


def visible(text: str) -> str:
    r"""A name as one line that a terminal shows and does not obey.

    >>> visible("a\x1b[2J\n\u202e\x9b"), visible("größe 数 👩‍🚀")
    ('a\\x1b[2J\\n\\u202e\\x9b', 'größe 数 👩‍🚀')
    """
    return ONE_LINE.sub(spelled, text)


def visible_lines(text: str) -> str:
    """The same of text that may have several lines."""
    return LINES.sub(spelled, text)


def spelled(found: re.Match[str]) -> str:
    """A character as Python writes it in a text."""
    return found[0].encode("unicode_escape").decode()


LONGEST_NAME = 200  # bytes; a file system takes 255
PARENTS = ("", ".", "..")


class StreamveilError(Exception):
    """Base of every error this package raises on purpose: `except sv.StreamveilError`."""

    def __init__(self, message: str = "") -> None:
        super().__init__(visible_lines(str(message)))


class PlanError(StreamveilError, ValueError):
    """A query that cannot be run, or must not be: says what, why and the way out."""


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


class StoreError(StreamveilError):
    """Durable state that cannot be read, written or trusted."""


class OperatorWarning(UserWarning):
    """Tells the operator of something that depends on people's rows: never in a log line."""


class NoiseWarning(UserWarning):
    """An answer that is forecast to be little but noise: public, or said by a look."""


class WitnessError(StreamveilError):
    """A compiled stage did something else than its specification; nothing was committed."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the witness stopped the job before its commit: {what}.\n"
            "  This is a fault of the program or of the machine's memory, not of the data. Nothing"
            " of this micro-batch was saved or released.\n"
            "  to fix  start the job again on its state; if it stops again, report it with the"
            " versions of streamveil, numba and Python"
        )


class SourceError(StreamveilError):
    """A source that cannot be read: missing files, missing columns, wrong types."""


class MissingExtraError(StreamveilError, ImportError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}'.\n  to fix  pip install 'streamveil[{extra}]'"
        )
        self.extra = extra


def require_positive(**numbers: object) -> None:
    """Raises ValueError naming the first argument that is not a finite number above zero."""
    for name, value in numbers.items():
        if not (isinstance(value, int | float) or hasattr(value, "numerator")):
            raise ValueError(f"{name} must be a number above 0, not {type(value).__name__}")
        if not 0 < value < float("inf"):  # type: ignore[operator]
            raise ValueError(f"{name} must be a finite number above 0, not {value}")


def require_between(low: float, high: float, **numbers: float) -> None:
    """Raises ValueError naming the first argument outside the closed interval [low, high]."""
    for name, value in numbers.items():
        if not low <= value <= high:
            raise ValueError(f"{name} must be between {low} and {high}, not {value}")


def require_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raises ValueError with the nearest known name when `value` is not one of `known`."""
    known = list(known)
    if value not in known:
        raise ValueError(f"unknown {name} '{value}'{nearest(value, known)}")


def require_file_name(what: str, name: str) -> str:
    """The name, if a folder of that name lies where it is put; else raises PlanError.

    >>> require_file_name("query", "pages per day")
    'pages per day'
    """
    plain = visible(name) == name and not {"/", "\\"} & set(name) and name.strip(" ") not in PARENTS
    if not plain or len(name.encode()) > LONGEST_NAME:
        raise PlanError(
            f"{name[:LONGEST_NAME]!a} cannot be the name of a {what}: a folder is named after it.\n"
            f"  to fix  use at most {LONGEST_NAME} bytes of text, not . or .., without / \\ or"
            " control characters"
        )
    return name


def nearest(word: str, known: Collection[str]) -> str:
    """A sentence end: '; did you mean X?' or the list of what is known."""
    spelling = {name.lower(): name for name in sorted(known)}
    close = get_close_matches(word.lower(), spelling, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{spelling[close[0]]}'?"
    return f"; known: {', '.join(sorted(known))}"


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
    """What is wrong with a call: an argument that is unknown, given by place, or missing."""
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


SCALARS = {int: Integral, float: Real}
FEW = 20  # elements of a sequence that are looked at


def answered(public: T) -> T:
    """A public function or class whose calls say which argument does not fit, where they fail.

    Nothing is checked before a call. Where one fails with an error of Python or NumPy, the
    arguments are compared with the annotations, and the first that does not fit is named by its
    kind, never by its value, which may be data.

    >>> def half(of: int, *, down: bool = True) -> int:
    ...     return of // 2 if down else -(-of // 2)
    >>> answered(half)("3")
    Traceback (most recent call last):
    ...
    streamveil.errors.PlanError: half(): of must be int, not str
      to fix  half(of: int, down=...)
    """
    if inspect.isclass(public):
        init = public.__init__  # type: ignore[misc]
        plain = getattr(public, "_is_protocol", False) or issubclass(public, (BaseException, tuple))
        if inspect.isfunction(init) and not plain and not hasattr(init, "__answered__"):
            public.__init__ = _answering(init, public)  # type: ignore[misc,method-assign]
        return public
    if callable(public) and not hasattr(public, "__answered__"):
        return _answering(public, public)  # type: ignore[return-value]
    return public


def _answering(call: Callable[..., Any], public: Any) -> Callable[..., Any]:
    """The call, and words where it fails."""

    @wraps(call)
    def wrapped(*args: Any, **named: Any) -> Any:
        try:
            return call(*args, **named)
        except Exception as error:
            if isinstance(error, StreamveilError) and not getattr(error, "misfit", False):
                raise
            fault = _fault(call, public, args, named)
            if fault is None or (type(error) is ValueError and fault[0] in str(error)):
                raise
            told = PlanError(fault[1])
            told.misfit = True  # type: ignore[attr-defined]  # a call around it may say it better
            raise told from None

    wrapped.__answered__ = True  # type: ignore[attr-defined]
    return wrapped


def _fault(call: Any, public: Any, args: Any, named: Any) -> tuple[str, str] | None:
    """The first argument that does not fit, and what to say of it; None if all of them do."""
    known, what = signature(call), public.__name__
    inner = [one for one in known.parameters.values() if one.name != "self"]
    fix = f"\n  to fix  {what}({', '.join(map(_form, inner))})"
    try:
        bound = known.bind(*args, **named).arguments
    except TypeError:
        return "", f"{what}() {misfit(known, len(args), named)}{fix}"
    hints = _hints(call)
    for name, value in bound.items():
        parameter = known.parameters[name]
        values = [value]
        if parameter.kind is parameter.VAR_POSITIONAL:
            values = list(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            values = list(value.values())
        for one in values if name in hints else ():
            if not fits(one, hints[name]):
                wanted = _plain(str(parameter.annotation))
                return name, f"{what}(): {name} must be {wanted}, not {_kind(one)}{fix}"
    return None


def _plain(annotation: str) -> str:
    """An annotation as a user reads it: without the quotes of postponed ones."""
    return annotation.replace("'", "").replace("collections.abc.", "")


def _form(one: Parameter) -> str:
    """An argument as a call that works has it."""
    if one.default is not one.empty:
        return f"{one.name}=..."
    return _plain(str(one))


def _kind(value: object) -> str:
    """What a value is, in a word, and never which."""
    if isinstance(value, float) and value != value:
        return "a float that is no number"
    if isinstance(value, list | tuple) and value:
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return "None" if value is None else type(value).__name__


@cache
def _hints(call: Any) -> dict[str, Any]:
    """What annotations name; none of those that need a module that is read for typing alone."""
    plain = inspect.unwrap(call)
    try:
        return get_type_hints(plain)
    except NameError:
        scope, found = getattr(plain, "__globals__", {}), {}
        for name, text in getattr(plain, "__annotations__", {}).items():
            try:
                found[name] = eval(text, scope) if isinstance(text, str) else text  # noqa: S307
            except NameError:
                continue
        return found


def fits(value: object, hint: Any) -> bool:
    """Whether a value may be of an annotation, as far as can be told without its meaning.

    >>> fits(3, int | None), fits("3", int), fits([1, "2"], list[int]), fits(float("nan"), int)
    (True, False, False, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if hint is None or hint is NoneType:
        return value is None
    if isinstance(hint, TypeVar):
        return hint.__bound__ is None or fits(value, hint.__bound__)
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in parts)
    if origin is Literal:
        return value in parts
    if hint in SCALARS:
        number = isinstance(value, SCALARS[hint]) and not isinstance(value, bool)
        return number and value == value
    if origin is Callable:
        return callable(value)
    if hasattr(hint, "array_type"):  # an array with its shape
        return hasattr(value, "__array__")
    if hint is Any or not inspect.isclass(origin or hint):
        return True
    return _is_one(value, origin or hint) and _holds(value, origin, parts)


def _is_one(value: object, kind: type) -> bool:
    """Whether a value is of a class, or has what a protocol asks for."""
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    if isinstance(value, str | bytes) and issubclass(kind, Collection):
        return kind in (str, bytes) and isinstance(value, kind)
    return isinstance(value, kind)


def _holds(value: Any, origin: Any, parts: tuple[Any, ...]) -> bool:
    """Whether the first elements of a sequence or mapping fit."""
    if isinstance(value, Mapping) and len(parts) == 2:
        return all(fits(v, parts[1]) for v in list(value.values())[:FEW])
    if origin is tuple and parts and Ellipsis not in parts:
        return len(value) == len(parts) and all(map(fits, value, parts))
    if isinstance(value, Collection) and parts:
        return all(fits(one, parts[0]) for one in islice(value, FEW))
    return True
