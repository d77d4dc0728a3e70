"""A copy of a state from one moment, and its restoration: each whole, or not there at all.

    backup.json       in the copy alone: marks a backup, in which no job runs

A copy is made under the lock of the state, while no job writes; every file is synced and verified
before the copy gets its name. `run` refuses a backup: two jobs on one state draw the same noise,
for other rows if the source went on. A backup may be read, inspected and verified.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from streamveil import disk
from streamveil.disk import LOCK, Lock, sync_directory
from streamveil.errors import StoreError
from streamveil.runtime import formats
from streamveil.runtime.store import BACKUP, SCRATCH, require_header, require_outside
from streamveil.runtime.verify import examined

LEFT = frozenset([LOCK, SCRATCH, BACKUP])  # no part of a state


def backup(state: str | Path, copy: str | Path) -> None:
    """Copies the state of a job that is not running to a new place."""
    home, place = Path(state).absolute(), Path(copy).absolute()
    require_header(home)
    if (home / BACKUP).exists():
        raise StoreError(f"'{home.name}' is a backup itself: copy it as you like")
    made = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds")  # noqa: TID251
    copied(home, place, {"made": made})


def restore(copy: str | Path, state: str | Path) -> str:
    """Makes a state from a backup, in a new place; returns when the backup was made."""
    home, place = Path(copy).absolute(), Path(state).absolute()
    if not (home / BACKUP).is_file():
        raise StoreError(
            f"'{home.name}' is not a backup that `streamveil backup` made.\n"
            "  to fix  a state that was copied otherwise needs no `restore`"
        )
    made: str = formats.read(home / BACKUP, "backup")["made"]
    copied(home, place, None)
    return made


def copied(home: Path, place: Path, note: formats.Content | None) -> None:
    """A verified copy, with a note or without one; it gets its name once it is durable.

    The draft has a lock of its own: of two copies to one place the second is refused.
    """
    if place.exists():
        raise StoreError(f"'{place.name}' exists already; name a place where there is nothing")
    require_outside(place, home)
    draft = place.with_name(place.name + disk.TEMPORARY)
    disk.make_directory(draft)
    with closing(Lock(draft)) as lock, whole_or_gone(draft, place):
        lock.require_own()  # it has not been given its name meanwhile
        fill(draft, home, place)
        own = [one for one in examined(draft) if one.part != "sink"]  # whose folder is not copied
        faults = [one for one in own if not one.is_whole]
        if faults:
            words = faults[0].words.replace(str(draft), str(home)).replace(draft.name, home.name)
            raise StoreError(f"{faults[0].part}: {words}")
        if note is not None:
            formats.write(draft / BACKUP, "backup", note)
        sync_directory(draft)
        draft.rename(place)
        sync_directory(place.parent)


def fill(draft: Path, home: Path, place: Path) -> None:
    """Copies a state into a draft, under the lock of the state."""

    def copy(source: str, target: str) -> None:
        with whole_or_gone(draft, place):  # else `copytree` goes on, and tells no reason
            shutil.copy2(source, target)

    with closing(Lock(home, reads=True)):
        for path in draft.iterdir():  # of a copy that was cut off
            if path.name != LOCK:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        left = shutil.ignore_patterns(*LEFT)
        shutil.copytree(home, draft, ignore=left, copy_function=copy, dirs_exist_ok=True)
        for path in [*draft.rglob("*")]:
            sync_directory(path)


@contextmanager
def whole_or_gone(draft: Path, place: Path) -> Iterator[None]:
    """Removes the parts of a copy that fails, and says why it cannot be written."""
    try:
        yield
    except (OSError, StoreError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot copy to '{place}': {error.strerror or 'a folder cannot be made'}.\n"
            "  to fix  make room there, or name another place, and copy again; what is copied stays"
            " as it is"
        ) from None
