"""A field of JSON text: JSON_VALUE(text, path), each row read alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from streamveil.errors import PlanError
from streamveil.expressions.kernels import Column
from streamveil.json_text import MOST_DEPTH, is_excessive

Step = str | int  # the name of a field, or the place in a list
_STEP = re.compile(
    r"""\.(?P<name>[\w-]+)|\."(?P<quoted>[^"]*)"|\[(?P<place>[0-9]{1,9})\]"""
    r"""|\['(?P<single>[^']*)'\]|\["(?P<double>[^"]*)"\]"""
)


def steps_of(name: str, path: str) -> tuple[Step, ...]:
    """The fields and places that a path names; PlanError if it is not a path.

    >>> steps_of("JSON_VALUE", '$.user.ids[0]."a b"["c.d"]')
    ('user', 'ids', 0, 'a b', 'c.d')
    """
    found: list[Step] = []
    at = 1
    while path.startswith("$") and (step := _STEP.match(path, at)):
        at = step.end()
        ((kind, text),) = ((k, t) for k, t in step.groupdict().items() if t is not None)
        found.append(int(text) if kind == "place" else text)
    if not path.startswith("$") or at < len(path):
        raise PlanError(
            f"argument 2 of {name} is no path of one value: '{path[:40]}'.\n"
            "  to fix  $ is the whole text, .name a field (.\"a name\" or ['a name'] with quotes),"
            " [0] the first of a list: '$.user.ids[0]'"
        )
    return tuple(found)


def value_at(steps: Sequence[Step]) -> Callable[[Column], Column]:
    r"""The number, text or truth value at a path, as text; null for other values and if missing.

    Numbers are as they are written. If fields share a name, the first counts. A text that is not
    JSON, has half a surrogate pair at the path, or is excessive (`is_excessive`) gives null.

    >>> texts = ['{"a": {"b": [1.50, "x"]}}', '{"a": 1, "a": 2}', '{"a":', "[]", None]
    >>> value_at(["a", "b", 0])(pa.array(texts)).to_pylist()
    ['1.50', None, None, None, None]
    >>> value_at(["a"])(pa.array(texts)).to_pylist()
    [None, '1', None, None, None]
    """

    def value(text: str | None) -> str | None:
        if text is None or (len(text) > SHORT and is_excessive(text.encode())):
            return None
        try:
            text = text.strip(SPACE)
            found, end = _READER.raw_decode(text)
            if end < len(text):
                return None
        except (ValueError, RecursionError):
            return None
        for step in steps:
            if isinstance(found, dict if isinstance(step, str) else list):
                found = _inside(found, step)
            else:
                return None
        return _scalar(found)

    return lambda column: pa.array(map(value, column.to_pylist()), pa.string())


def _inside(found: Any, step: Step) -> Any:
    if isinstance(step, str):
        return found.get(step)
    return found[step] if step < len(found) else None


def _scalar(found: Any) -> str | None:
    """A value as text; null if it is null, an object, or a list."""
    if isinstance(found, bool):
        return "true" if found else "false"
    if not isinstance(found, str):
        return None
    whole = found.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in found)
    return found if whole else None


def _no_number(_: str) -> None:
    """Refuses NaN and Infinity, which are not JSON."""
    raise ValueError


SPACE = " \t\n\r"  # of JSON
SHORT = MOST_DEPTH // 2  # characters, of at most four bytes each: never excessive
_READER = json.JSONDecoder(
    object_pairs_hook=lambda pairs: dict(reversed(pairs)),  # the first of one name
    parse_int=str,
    parse_float=str,
    parse_constant=_no_number,
)
