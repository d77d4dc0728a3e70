"""What may leave: values over whose data noise was drawn, and what is computed from them.

`Noisy` holds such values. Sinks, results and releases accept nothing else, so a total that nobody
added noise to cannot leave: handing one over raises before anything is sent. There are four ways to
make one, and a test of the architecture lists who uses each:

- `drawn`: by the drawing functions of the core alone;
- `post_process`: by a function of values that may leave and of settings, nothing else;
- `public`: from values that depend on no row, such as public groups and variances of noise;
- `restored`: from values that were released before and have been read back.

Guarantee: post-processing costs no privacy. It holds for a function that does not see the data.
    `post_process` refuses arguments that could hold data (arrays, tables, states), and functions
    that carry values from the place where they were made.
Limits: the type finds mistakes, not intent. A plain number of Python passes for a setting, a
    function may read a global, an array may be changed after it was wrapped, and `public` and
    `restored` believe their callers, which is why the test counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from fractions import Fraction
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Generic, NoReturn, TypeVar

import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")
_KEY = object()  # only this module has it
PLAIN = frozenset((
    bool, int, float, str, bytes, type(None), Fraction, date, datetime, timedelta,
))  # fmt: skip  # not NumPy's: exact totals come as those
TYPES = (pa.DataType, pa.Field, pa.Schema, Enum, type)


class Noisy(Generic[T]):
    """Values that may leave. Not made by calling this class: see the module.

    >>> Noisy(1)
    Traceback (most recent call last):
    ...
    TypeError: only the core makes values that may leave.
      to fix  draw noise with a function of the core, or post-process what was drawn
    """

    __slots__ = ("_may_leave",)
    _may_leave: T

    def __init__(self, value: T, key: object = None) -> None:
        if key is not _KEY:
            raise TypeError(
                "only the core makes values that may leave.\n"
                "  to fix  draw noise with a function of the core, or post-process what was drawn"
            )
        self._may_leave = value

    def __repr__(self) -> str:
        return f"Noisy({type(self._may_leave).__name__})"

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("values that may leave are used by post_process(function, values, ...)")


def drawn(value: T) -> Noisy[T]:
    """Values over which a function of the core has drawn noise. The core alone calls this."""
    return Noisy(value, _KEY)


def public(value: T) -> Noisy[T]:
    """Values that are the same whatever the rows are: settings, public groups, variances."""
    return Noisy(value, _KEY)


def restored(value: T) -> Noisy[T]:
    """Values that were released before, kept in a state or read back from where they were put."""
    return Noisy(value, _KEY)


def post_process(function: Callable[..., R], *arguments: Any) -> Noisy[R]:
    """The result of a function of values that may leave and of settings.

    Settings are numbers, texts, types of columns, and tuples and frozen dataclasses of these.

    Raises:
        TypeError: an argument could hold data, or the function remembers values.

    >>> post_process(min, public(3), 4)
    Noisy(int)
    >>> import numpy as np
    >>> post_process(np.add, public(np.ones(2)), np.ones(2))
    Traceback (most recent call last):
    ...
    TypeError: argument 2 of the post-processing 'add' is of type ndarray, which may hold data ...
    """
    _require_pure(function)
    for place, argument in enumerate(arguments, 1):
        if not isinstance(argument, Noisy) and not is_setting(argument):
            raise TypeError(
                f"argument {place} of the post-processing '{_name(function)}' is of type"
                f" {type(argument).__name__}, which may hold data that no noise was drawn over.\n"
                "  to fix  pass values that a function of the core has drawn, or settings"
            )
    return Noisy(function(*[a._may_leave if isinstance(a, Noisy) else a for a in arguments]), _KEY)


def values(noisy: Noisy[T]) -> T:
    """Unwraps what may leave, for sinks, results, and the state that keeps it.

    Raises:
        TypeError: the argument is anything else.

    >>> values(3)
    Traceback (most recent call last):
    ...
    TypeError: only values that noise was drawn over may leave, not int.
      to fix  draw noise with a function of the core, or post-process what was drawn
    """
    return require_noisy(noisy)._may_leave


def require_noisy(value: Noisy[T]) -> Noisy[T]:
    """The value, if it may leave; raises TypeError otherwise."""
    if type(value) is not Noisy:
        raise TypeError(
            f"only values that noise was drawn over may leave, not {type(value).__name__}.\n"
            "  to fix  draw noise with a function of the core, or post-process what was drawn"
        )
    return value


def is_setting(value: object) -> bool:
    """Whether a value is made of what the caller of the library sets, as far as types tell.

    >>> import numpy as np
    >>> is_setting(("n", 0.95)), is_setting(np.float64(1)), is_setting([1]), is_setting(np.ones(1))
    (True, False, False, False)
    """
    kind: Any = type(value)
    if kind in PLAIN:
        return True
    if isinstance(value, tuple):
        return all(map(is_setting, value))
    names = _frozen_fields(kind)
    if names is None:
        return isinstance(value, TYPES)
    return all([is_setting(getattr(value, name)) for name in names])


@cache
def _frozen_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a frozen dataclass; None for everything else."""
    made: Any = kind
    if not is_dataclass(kind) or not made.__dataclass_params__.frozen:
        return None
    return tuple(field.name for field in fields(kind))


def _require_pure(function: Callable[..., Any]) -> None:
    """Refuses functions that carry values from the place where they were made."""
    plain: Any = function  # most are functions of a module, where nothing can hide
    if type(function) is FunctionType and not (plain.__closure__ or plain.__defaults__
        or plain.__kwdefaults__ or plain.__dict__):  # fmt: skip
        return
    called = isinstance(type(function).__call__, FunctionType)  # a class of Python
    kept = function.__reduce__() if type(function).__module__ == "operator" else None
    owner = getattr(function, "__self__", function if called else kept)
    named = tuple((getattr(function, "__kwdefaults__", None) or {}).values())
    carried = getattr(function, "__closure__", None) or hasattr(function, "keywords")
    bound = owner is not None and not isinstance(owner, ModuleType) and not is_setting(owner)
    if carried or bound or not is_setting((getattr(function, "__defaults__", None), *named)):
        raise TypeError(
            f"the post-processing '{_name(function)}' carries values of the place where it was"
            " made, which may be data.\n"
            "  to fix  pass them as arguments"
        )
    if hasattr(function, "__wrapped__"):  # a cached function has no closure of its own
        _require_pure(function.__wrapped__)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
