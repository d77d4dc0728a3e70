"""Power loss at any moment, with unsynced writes lost in any combination: nothing promised is lost.

Every disk that a power loss may leave must resume to the releases and the ledger of an unbroken
run; no release that anyone could have seen may be ahead of the durable log; no release file may be
there by half. Leaving out one kind of sync must be noticed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from streamveil.errors import StreamveilError
from streamveil.runtime import checkpoint, store, wal
from tests.crash.lives import SURVIVED, Server, archived, published, rejected_rows, spent
from tests.crash.power import Omitted, Power

SEED = 20_261_120
FAST = Power(images="", seed=SEED, each=4, every=7)


@pytest.mark.parametrize("job", ["toy", "picky toy", "large toy", "grouped toy"])
def test_power_may_fail_at_any_moment(server: Server, folder: Path, job: str) -> None:
    assert lose_power(server, folder, job, FAST) > 30


def test_power_may_fail_while_portions_are_written(server: Server, folder: Path) -> None:
    power = Power(images="", seed=SEED, each=1, every=9)
    assert lose_power(server, folder, "divided visits", power) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    ["toy", "long toy", "large toy", "visits", "divided visits", "grouped toy", "grouped visits"],
)
def test_power_may_fail_at_every_moment(server: Server, folder: Path, job: str) -> None:
    power = Power(images="", seed=SEED + 1, each=2 if job in ("toy", "large toy") else 1)
    least = 60 if job == "grouped toy" else 100  # folders of a group become durable together
    assert lose_power(server, folder, job, power, again=True) > least


@pytest.mark.parametrize("omitted", [kind for kind in get_args(Omitted) if kind != "none"])
def test_a_missing_sync_is_noticed(server: Server, folder: Path, omitted: Omitted) -> None:
    power = Power(images="", seed=SEED, each=2, every=5, omitted=omitted)
    with pytest.raises(AssertionError, match="image"):
        lose_power(server, folder, "toy", power)


def lose_power(server: Server, folder: Path, job: str, power: Power, *, again: bool = False) -> int:
    """Runs a job once and resumes it from every image; the number of images."""
    assert server.run(folder / "unbroken", job) == SURVIVED
    expected, charged = published(folder / "unbroken"), spent(folder / "unbroken")
    kept, rejected = archived(folder / "unbroken"), rejected_rows(folder / "unbroken")
    (folder / "life").mkdir()
    recorded = Power(**{**vars(power), "images": str(folder / "images")})
    assert server.run(folder / "life", job, power=recorded) == SURVIVED
    images = sorted((folder / "images").iterdir())
    for number, image in enumerate(images):
        disk, about = image / "disk", json.loads((image / "about").read_text())
        what = f"seed {power.seed}, image {number} before call {about['call']}"
        seen = published(disk) if (disk / "out").exists() else {}
        assert {name: expected.get(name) for name in seen} == seen, what
        assert committed(disk / "state") >= about["visible"], what
        if again and number % 3 == 0:  # the power fails again while it resumes
            twice = Power(images=str(image / "twice"), seed=number, each=1, every=number % 11 + 1)
            assert server.run(disk, job, power=twice) == SURVIVED, what
            later = sorted((image / "twice").glob("*"))
            disk = later[len(later) // 2] / "disk" if later else disk
        assert server.run(disk, job) == SURVIVED, what
        assert published(disk) == expected, what
        assert spent(disk) == charged, what
        assert archived(disk) == kept, what
        assert rejected_rows(disk) == rejected, what
        shutil.rmtree(image)
    return len(images)


def committed(folder: Path) -> int:
    """Steps that the log and the checkpoint of a state hold whole."""
    if not folder.exists():
        return 0
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    try:
        header = store.read_header(copy)
        return steps(copy, header.epoch) if header is not None and header.ready else 0
    except StreamveilError as error:
        raise AssertionError(f"an image does not resume: {error}") from None
    finally:
        shutil.rmtree(copy)


def steps(folder: Path, epoch: str) -> int:
    """The last closed step; cuts a torn tail."""
    saved = checkpoint.read(folder, epoch)
    places = [saved.record.place] if saved else []
    log = wal.Log(folder, epoch)
    places += [one.place for one in log.replay(places[0].batch if places else 0)]
    log.close()
    return max((place.step - (not place.closed) for place in places), default=0)
