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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
