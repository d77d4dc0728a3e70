"""Notes of a state, and the fingerprint of a query's mechanisms.

Notes are small JSON files of a state, each with its kind, its format and a checksum. Frames, logs,
checkpoints and archives have formats of their own. A state of any other format than `VERSION` is
refused before anything is read or drawn; `tests/states` keeps states of it, and how they went on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from streamveil import disk
from streamveil.dataflow import Operator
from streamveil.disk import crc32
from streamveil.errors import StoreError
from streamveil.runtime.frame import require_version

Content = dict[str, Any]
VERSION = 1  # of notes

# ---- the fingerprint of a query's mechanisms
#
# A plan leaves settings open: a forecast chooses bounds, a search calibrates noise. Another version
# may choose or calibrate differently for the same plan. A state that resumed with other mechanisms
# would have some releases from each, and nothing proves that both together keep the budget; so
# durable state names its mechanisms as well as its plan.

DIGITS = 9  # of real numbers: last bits differ between processors, and no guarantee needs them
LEFT_OUT = ("public", "keys", "defaults")  # in the plan already; explanations
PLAIN = (Fraction, str, bytes, int, bool, type(None), Enum, timedelta, np.integer, np.bool_)


def calibration(operator: Operator) -> str:
    """A digest of every field of an operator that takes part in its equality.

    Other fields (compiled expressions, memory limits, explanations) decide no mechanism. The lists
    of public keys are part of the plan and left out.

    Raises TypeError for a field of a type that it does not know.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in decisive(operator):
        for word in words(getattr(operator, part.name), part.name):
            digest.update(word.encode() + b"\0")
    return digest.hexdigest()


def decisive(value: Any) -> list[Field[Any]]:
    """The fields of a dataclass to include; fields added later (`plan.LATER`) only where set."""
    told = [part for part in fields(value) if part.compare and part.name not in LEFT_OUT]
    return [part for part in told if not part.metadata.get("unsaid") or getattr(value, part.name)]


def words(value: Any, name: str = "") -> Iterator[str]:
    """A value and its parts in words, depth first.

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


def write(path: Path, kind: str, content: Content) -> None:
    """Writes a note durably."""
    whole = {"format": f"streamveil {kind}", "version": VERSION, **content}
    text = json.dumps({**whole, "crc32": crc(whole)}, indent=2) + "\n"
    disk.create(path, [memoryview(text.encode())])


def read(path: Path, kind: str) -> Content:
    """The content of a note; refuses one that is damaged, or of another format."""
    try:
        content: Content = json.loads(disk.read(path))
        if content and "format" not in content:
            raise StoreError(
                f"'{path.name}' in '{path.parent.name}' is a file of another program.\n"
                "  to fix  name the state of a job, or a new directory"
            )
        require_version(f"file '{path.name}'", content["version"], VERSION)
        if content.pop("crc32") != crc(content) or content["format"] != f"streamveil {kind}":
            raise damaged(path)
        del content["format"], content["version"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path) from None
    return content


def crc(content: Content) -> int:
    """A checksum that does not depend on how the JSON is laid out."""
    return crc32(json.dumps(content, sort_keys=True).encode())


def damaged(path: Path) -> StoreError:
    """The error for bytes that are neither whole nor a torn tail."""
    return StoreError(
        f"'{path.name}' in the state directory is damaged: a part that was once durable does not"
        " match its checksum.\n"
        "  to fix  restore the whole directory from a backup of one moment; nothing was changed"
    )
