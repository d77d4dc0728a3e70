"""A campaign of damage to every file of a state: it is refused in words, or nothing comes of it.

Each mutation changes a state that was stopped in the middle of a run. Reads must give all releases
that were there, or refuse; a resume must end with the releases, the archive, the ledger and the
rejected rows of an unbroken run, or refuse. Only errors in words count as refusals.
"""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from streamveil.errors import StreamveilError
from streamveil.runtime.frame import MAGIC
from streamveil.runtime.inspect import inspect
from streamveil.runtime.job import Job
from streamveil.runtime.published import of_state
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import CheckpointPolicy
from streamveil.runtime.tables import to_bytes
from streamveil.runtime.verify import verify
from tests.crash import streams
from tests.crash.lives import archived, rejected_rows, spent

SEED = 20_261_123
POLICY = CheckpointPolicy(log_bytes=3_000, log_per_state=0)
STOPS = {"picky toy": (1, 3), "visits": (2,)}  # releases after which the runs are stopped
REFUSED = "refused"
Files = dict[str, bytes]
Random = np.random.Generator


def run(folder: Path, job: str, stop: int | None = None) -> None:
    """Runs a job to its end, or stops it after some releases."""
    work = replace(streams.work(job, folder), sink=None)
    with Job(folder / "state", work, Randomness(), policy=POLICY) as opened:
        for number, _ in enumerate(opened, start=1):
            if number == stop:
                return


def files(folder: Path) -> Files:
    return {
        str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*") if one.is_file()
    }


def restore(folder: Path, content: Files) -> None:
    """Makes a folder hold these files and no others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
        path.chmod(0o600)


def outcome(folder: Path) -> tuple[object, ...]:
    """All that a finished job leaves."""
    return (
        archived(folder),
        (folder / "state/releases").read_bytes(),
        spent(folder),
        rejected_rows(folder),
    )


def readable(folder: Path) -> dict[object, bytes]:
    """Every release that is read."""
    releases = of_state(folder / "state")
    return {place: bytes(to_bytes(releases.table(place))) for place in releases.moments}


# ---- mutations: each changes one file, or says that it cannot


def flip(data: bytes, random: Random) -> bytes:
    changed, place = bytearray(data), random.integers(len(data))
    changed[place] ^= 1 << random.integers(8)
    return bytes(changed)


def cut(data: bytes, random: Random) -> bytes:
    return data[: random.integers(len(data))]


def zero(data: bytes, random: Random) -> bytes:
    start, size = random.integers(len(data)), random.choice([8, 64, 512, 4096])
    end = min(start + size, len(data))
    return data[:start] + bytes(end - start) + data[end:]


def garble(data: bytes, random: Random) -> bytes:
    start = random.integers(len(data))
    end = min(start + random.integers(1, 40), len(data))
    return data[:start] + random.bytes(end - start) + data[end:]


def parts(data: bytes) -> list[bytes]:
    """The frames or the lines of a file."""
    if data[:4] != MAGIC:
        return data.splitlines(keepends=True)
    starts = [at for at in range(0, len(data), 8) if data[at : at + 4] == MAGIC]
    return [data[start:end] for start, end in pairwise([*starts, len(data)])]


def drop(data: bytes, random: Random) -> bytes:
    found = parts(data)
    del found[random.integers(len(found))]
    return b"".join(found)


def double(data: bytes, random: Random) -> bytes:
    found = parts(data)
    place = random.integers(len(found))
    return b"".join(found[: place + 1] + found[place:])


def swap(data: bytes, random: Random) -> bytes:
    found = parts(data)
    one, two = random.integers(len(found), size=2)
    found[one], found[two] = found[two], found[one]
    return b"".join(found)


CHANGES: list[Callable[[bytes, Random], bytes]] = [
    flip, flip, flip, cut, zero, garble, drop, double, swap
]  # fmt: skip


def mutated(now: Files, other: Files, random: Random) -> tuple[str, Files]:
    """The files with one change, and what it is; `other`: those of another run of the same job."""
    names = sorted(n for n in now if now[n] and "/batch-" not in n)  # these are never read back
    name = str(random.choice(names))
    kind = random.integers(len(CHANGES) + 4)
    if kind < len(CHANGES):
        change = CHANGES[kind]
        return f"{change.__name__} {name}", {**now, name: change(now[name], random)}
    match kind - len(CHANGES):
        case 0:
            return f"remove {name}", {key: data for key, data in now.items() if key != name}
        case 1:
            theirs = other.get(name, b"")
            return f"{name} of another run", {**now, name: theirs}
        case 2:  # a part of another run
            mine, theirs = parts(now[name]), parts(other.get(name, b""))
            place = random.integers(len(mine))
            mine[place] = theirs[min(place, len(theirs) - 1)] if theirs else b""
            return f"part {place} of {name} of another run", {**now, name: b"".join(mine)}
        case _:
            number = f"{name[:-1]}{(int(name[-1]) + 1) % 10}" if name[-1].isdigit() else f"{name}.1"
            moved = {number if key == name else key: data for key, data in now.items()}
            return f"{name} renamed", moved


def trial(what: str, action: Callable[[], object]) -> object:
    """What an action gives, or that it was refused in words; any other error is a fault."""
    try:
        return action()
    except StreamveilError as error:
        return REFUSED if str(error) else error
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}") from error


def campaign(folder: Path, job: str, stop: int, times: int) -> Counter[str]:
    """Damages a state so many times; how often it was refused, and how often nothing came of it."""
    warnings.simplefilter("ignore")
    home, random, seen = folder / "home", np.random.default_rng([SEED, stop]), Counter[str]()
    run(folder / "other", job, stop + 1)
    other = files(folder / "other")
    run(home, job, stop)
    before, there = files(home), readable(home)
    run(home, job)
    expected = outcome(home)
    for number in range(times):
        what, damaged = mutated(before, other, random)
        what = f"seed {SEED}, stop {stop}, number {number}: {what}"
        restore(home, damaged)
        trial(what, lambda: verify(home / "state"))
        trial(what, lambda: inspect(home / "state"))
        found = trial(what, lambda: readable(home))
        assert found in (there, REFUSED), what
        restore(home, damaged)
        refused = trial(what, lambda: run(home, job)) == REFUSED
        seen["refused" if refused else "as if nothing was"] += 1
        assert refused or outcome(home) == expected, what
    return seen


@pytest.mark.parametrize(("job", "stop"), [(job, stop) for job in STOPS for stop in STOPS[job]])
def test_damage_is_refused_or_nothing_comes_of_it(folder: Path, job: str, stop: int) -> None:
    seen = campaign(folder, job, stop, 60 if "toy" in job else 12)
    assert seen["refused"] > 5


@pytest.mark.slow
@pytest.mark.parametrize(("job", "stop"), [(job, stop) for job in STOPS for stop in STOPS[job]])
def test_thousands_of_damages_are_refused_or_nothing_comes_of_them(
    folder: Path, job: str, stop: int
) -> None:
    seen = campaign(folder, job, stop, 1000 if "toy" in job else 300)
    assert min(seen.values()) > 10
