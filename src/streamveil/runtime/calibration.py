"""One word for the mechanisms that a query was turned into, to be kept with its state.

A plan leaves settings open: a forecast chooses bounds, a search calibrates noise. Another version
may choose or calibrate otherwise, for the same plan. A state that resumed with the other mechanism
would have one half of its releases from each, and nothing proves that both halves together keep the
budget; so durable state names its mechanisms as well as its plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.dataflow.protocol import Operator
from streamveil.runtime.formats import FIRST

DIGITS = 9  # of real numbers: last bits differ between processors, and no guarantee hangs on them
LEFT_OUT = ("public", "keys", "defaults")  # told by the plan; explanations
PLAIN = (Fraction, str, bytes, int, bool, type(None), Enum, timedelta, np.integer, np.bool_)


def calibration(operator: Operator) -> str:
    """A digest of every field of an operator that takes part in its equality.

    What does not (compiled expressions, memory limits, explanations) decides no mechanism. The
    lists of public keys are part of the plan and left out. In which format a state is kept decides
    none either: every version counts as the first one.

    Raises TypeError for a field of a type whose content it cannot tell.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in decisive(operator):
        value = FIRST if part.name == "version" else getattr(operator, part.name)
        for word in words(value, part.name):
            digest.update(word.encode() + b"\0")
    return digest.hexdigest()


def decisive(value: Any) -> list[Field[Any]]:
    """The fields of a dataclass that are told."""
    return [part for part in fields(value) if part.compare and part.name not in LEFT_OUT]


def words(value: Any, name: str = "") -> Iterator[str]:
    """A value and all it consists of, depth first.

    >>> list(words((Fraction(1, 3), 0.1 + 0.2, None)))
    ['tuple 3', '1/3', '0.3', 'None']
    """
    if is_dataclass(value):
        yield f"{name} {type(value).__name__}"
        for part in decisive(value):
            yield from words(getattr(value, part.name), part.name)
    elif isinstance(value, float | np.floating):
        yield f"{float(value):.{DIGITS}g}"
    elif isinstance(value, PLAIN):
        yield str(value)
    elif isinstance(value, tuple | list):
        yield f"{type(value).__name__} {len(value)}"
        for part in value:
            yield from words(part)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}"
        for key in sorted(value):
            yield str(key)
            yield from words(value[key])
    elif isinstance(value, np.ndarray):
        yield f"array {value.shape}"
        yield from (word for item in value.ravel().tolist() for word in words(item))
    else:
        raise TypeError(f"{name or 'a value'} of type {type(value).__name__} has no digest")
