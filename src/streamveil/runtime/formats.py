"""The formats of what a state holds: a version of each kind, and how one becomes the next.

The version of a kind is one more than its upgrades: there is no new format without a way to it. An
upgrade is a pure function, from what was written in one format to what the next one would hold. It
runs when something is read, so what was written before stays as it is and readable:

- notes (`state.json` and others): content to content;
- an operator's checkpoint and the changes of its log: arrays to arrays. Every checkpoint and
  segment of the log says in which version of the operator it was written.

Frames, logs, checkpoints and archives as such have versions of their own, whose readers stand in
their modules; a ledger is read in every format and never written again, for its chain vouches for
what was written.

Once, and atomically: `Store.upgrade` runs under the lock of a job that has started, replaces
`state.json` by a file that says the new versions, and then begins a new segment. Until that file
has its name, all is as it was, and the earlier streamveil goes on. From then on an earlier one
refuses the state by its header, before it could read records that it does not know. A crash in
between leaves records of the old version behind a header of the new one, which are read as what
they say they are.

Noise, epoch and position are never touched: the upgraded job draws at the addresses at which the
old one would have drawn. `tests/states` keeps states of every format and how they went on.

Notes are small JSON files of a state, each with its format, its version and a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
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
from streamveil.types import Array

Content = dict[str, Any]
Arrays = Mapping[str, Array]
FIRST = 1  # of every kind; what does not say its version is of it


@dataclass(frozen=True)
class OperatorUpgrade:
    """From one version of an operator's state to the next."""

    state: Callable[[Arrays], dict[str, Array]]  # of a checkpoint
    delta: Callable[[Arrays], dict[str, Array]]  # of one micro-batch in the log


def with_key(header: Content) -> Content:
    """`state.json` 2 holds the noise key, sealed; in 1 the secret itself is the noise key."""
    return {**header, "key": ""}


def in_groups(header: Content) -> Content:
    """Under `state.json` 3 a frame of the log may hold several micro-batches; in 2 each holds one.

    So an earlier streamveil, which would miscount them, refuses the state.
    """
    return header


NOTES: dict[str, tuple[Callable[[Content], Content], ...]] = {"state": (with_key, in_groups)}
OPERATORS: dict[str, tuple[OperatorUpgrade, ...]] = {}


def current(kind: str) -> int:
    """The version in which a kind of note is written.

    >>> current("state"), current("look")
    (3, 1)
    """
    return FIRST + len(NOTES.get(kind, ()))


def upgraded(what: str, kind: str, content: Content, version: object) -> Content:
    """A note as the present version writes it."""
    for step in steps(what, NOTES.get(kind, ()), version):
        content = step(content)
    return content


def of_operator(kind: str) -> int:
    """The version of an operator's state."""
    return FIRST + len(OPERATORS.get(kind, ()))


def require_upgrades(kind: str, found: int, known: int) -> None:
    """Refuses an operator's state of a version from which no upgrade leads to the known one."""
    if found != known and known != of_operator(kind):
        raise unreadable("operator's state", found, known)
    if found != known:
        steps("operator's state", OPERATORS.get(kind, ()), found)


def upgraded_state(kind: str, arrays: dict[str, Array], version: object) -> dict[str, Array]:
    """The arrays of a checkpoint as the present version writes them."""
    for step in steps("operator's state", OPERATORS.get(kind, ()), version):
        arrays = step.state(arrays)
    return arrays


def upgraded_delta(kind: str, arrays: dict[str, Array], version: object) -> dict[str, Array]:
    """The changes of one micro-batch as the present version logs them."""
    for step in steps("operator's state", OPERATORS.get(kind, ()), version):
        arrays = step.delta(arrays)
    return arrays


def steps(what: str, known: tuple[Any, ...], version: object) -> tuple[Any, ...]:
    """The upgrades that a version still needs; refuses one that nobody here has written.

    >>> steps("file", ("1 to 2", "2 to 3"), 2)
    ('2 to 3',)
    """
    newest = FIRST + len(known)
    if not isinstance(version, int) or not FIRST <= version <= newest:
        raise unreadable(what, version, newest)
    return known[version - FIRST :]


def unreadable(what: str, version: object, newest: int) -> StoreError:
    """What to say of a format that nobody here knows, newer or older."""
    return StoreError(
        f"the {what} has format version {version}; this streamveil reads up to {newest}.\n"
        "  to fix  use the streamveil version that wrote it, or a newer one"
    )


# ---- the fingerprint of a query's mechanisms
#
# A plan leaves settings open: a forecast chooses bounds, a search calibrates noise. Another version
# may choose or calibrate otherwise, for the same plan. A state that resumed with the other
# mechanism would have one half of its releases from each, and nothing proves that both halves
# together keep the budget; so durable state names its mechanisms as well as its plan.

DIGITS = 9  # of real numbers: last bits differ between processors, and no guarantee hangs on them
LEFT_OUT = ("public", "keys", "defaults")  # told by the plan; explanations
LATER = ("groups", "heaviest", "begins")  # fields that older states do not know: told where set
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
    told = [part for part in fields(value) if part.compare and part.name not in LEFT_OUT]
    return [p for p in told if p.name not in LATER or getattr(value, p.name) not in (None, "")]


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


def write(path: Path, kind: str, content: Content) -> None:
    """Writes a note durably."""
    whole = {"format": f"streamveil {kind}", "version": current(kind), **content}
    text = json.dumps({**whole, "crc32": crc(whole)}, indent=2) + "\n"
    disk.create(path, [memoryview(text.encode())])


def read(path: Path, kind: str) -> Content:
    """What a note says, in the present format; refuses one that is damaged, or of no known one."""
    try:
        content: Content = json.loads(disk.read(path))
        version, what = content["version"], f"file '{path.name}'"
        steps(what, NOTES.get(kind, ()), version)
        if content.pop("crc32") != crc(content) or content["format"] != f"streamveil {kind}":
            raise damaged(path)
        del content["format"], content["version"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path) from None
    return upgraded(what, kind, content, version)


def version_of(path: Path) -> int:
    """The format in which a note was written."""
    found: int = json.loads(disk.read(path))["version"]
    return found


def crc(content: Content) -> int:
    """A checksum that does not depend on how the JSON is laid out."""
    return crc32(json.dumps(content, sort_keys=True).encode())


def damaged(path: Path) -> StoreError:
    """What to say about bytes that are neither whole nor a torn tail."""
    return StoreError(
        f"'{path.name}' in the state directory is damaged: a part that was once durable does not"
        " match its checksum.\n"
        "  to fix  restore the whole directory from a backup of one moment; nothing was changed"
    )
