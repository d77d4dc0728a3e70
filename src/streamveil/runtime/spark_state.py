"""The state of a job on Spark: header, secret, ledger, mark, checkpoint and shards of one moment.

Noise is a function of (secret, epoch, window, key, step), so all parts are created together, and a
job refuses to go on when one is missing: the same noise on other data would reveal the difference.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from streamveil.core.noise import KeyedNoise, Noise
from streamveil.engines.spark.shards import Shards, share_of
from streamveil.errors import PlanError, StoreError
from streamveil.runtime import formats
from streamveil.runtime import secret as secrets
from streamveil.runtime.account import Account
from streamveil.runtime.formats import damaged
from streamveil.runtime.secret import Randomness, check
from streamveil.runtime.store import CALIBRATED_OTHERWISE, LEDGER, SECRET, new_epoch, require_empty
from streamveil.runtime.store import SPARK_HEADER as HEADER

MARK, CHECKPOINT, SHARDS = "committed", "checkpoint", "shards"
NEW_SHARDS = 8
INSECURE = "insecure"
PLACES = ("env", "file", "command")


@dataclass(frozen=True)
class SecretFrom:
    """Loads the job's noise where a task runs; carries where the secret is, never the secret."""

    place: str  # 'file:PATH', 'env:NAME' or 'command:PROGRAM ARGS'; 'insecure:HEX' in tests
    epoch: str

    def __call__(self) -> Noise:
        """The noise."""
        kind, _, where = self.place.partition(":")
        if kind == INSECURE:
            return KeyedNoise(bytes.fromhex(where), secure=False)
        found = secrets.given(self.place)
        if found is None:
            raise StoreError("the job's secret is not where the task was told to find it")
        return KeyedNoise(found, bytes.fromhex(self.epoch))


@dataclass(frozen=True, kw_only=True)
class SparkLayout:
    """How a job is spread. Shards and storage are fixed when its state is created; tasks are not.

    A task works on one or more shards, so a job with many shards grows and shrinks with the
    cluster.
    """

    shards: int | None = None  # hash partitions of the state; None: those of the state, or 8
    storage: str | None = None  # of shard state: a URI all executors reach; None: in the state
    tasks: int | None = None  # of each stage; None: two for each core, at most one for each shard

    @property
    def place(self) -> str | None:
        """The storage, under a name that means the same to any task and to the next start."""
        if self.storage is None or "://" in self.storage:
            return self.storage
        return everywhere(self.storage)


class Made(NamedTuple):
    """The identity of a state's job: digests of its query and of its mechanisms."""

    fingerprint: str
    calibration: str


@dataclass(frozen=True, kw_only=True)
class SparkHeader:
    """The header, which ties state, checkpoint, epoch and secret together."""

    fingerprint: str
    calibration: str  # of the mechanisms
    shards: int
    storage: str | None
    epoch: str
    noise_check: str
    ready: bool = False  # whether the charge was taken

    @classmethod
    def read(cls, path: Path) -> SparkHeader | None:
        """The header of a state, if it is one."""
        if not path.exists():
            return None
        return cls(**formats.read(path, "state on Spark"))


@dataclass(frozen=True, kw_only=True)
class PublishedStep:
    """The last step whose releases are all published, and what was read until then."""

    step: int = 0
    rows: int = 0
    rejected: dict[str, int] = field(default_factory=dict)  # operator-only
    tags: int = 0  # stands for the shards of that step


@dataclass(frozen=True)
class Home:
    """The state directory of a job, locked by its owner."""

    path: Path

    @property
    def mark(self) -> PublishedStep:
        """The last committed step."""
        path = self.path / MARK
        return PublishedStep(**(formats.read(path, "mark on Spark") if path.exists() else {}))

    def commit(self, mark: PublishedStep) -> None:
        """Marks a step as published, durably."""
        formats.write(self.path / MARK, "mark on Spark", asdict(mark))

    def step_of(self, batch: int) -> int:
        """The step that Spark logged for a batch before running it."""
        log = self.path / CHECKPOINT / "offsets" / str(batch)
        try:
            return int(json.loads(log.read_text().splitlines()[-1])["step"])
        except (ValueError, KeyError, TypeError, IndexError):
            raise damaged(log) from None

    def logged(self) -> int:
        """The last step in Spark's offset log."""
        offsets = self.path / CHECKPOINT / "offsets"
        batches = [int(path.name) for path in offsets.iterdir() if path.name.isdecimal()]
        return self.step_of(max(batches)) if batches else 0

    # ---- creation and checks

    @property
    def is_new(self) -> bool:
        """Whether there is no header yet."""
        return not (self.path / HEADER).exists()

    def require_empty(self) -> None:
        """Refuses to create a state among files that are not its own, or are the rest of one."""
        require_empty(self.path, HEADER, (LEDGER, MARK, CHECKPOINT, SHARDS))

    def open(
        self, made: Made, layout: SparkLayout, keys: Randomness
    ) -> tuple[SparkHeader, SecretFrom]:
        """Creates header, epoch and secret together, or checks that all are still there."""
        header = SparkHeader.read(self.path / HEADER) or self._create(made, layout, keys)
        secret = SecretFrom(place_of(keys, self.path), header.epoch)
        self._require_same(header, made, layout)
        if secret.place.startswith("file:"):
            require_present(Path(secret.place.removeprefix("file:")), "secret")
        if header.noise_check != check(secret()):
            raise StoreError(
                "the secret is not the one this state was created with.\n"
                "  to fix  give that secret; other noise on the same data would reveal it"
            )
        if header.storage is not None:
            self._require_owned(Shards(header.storage, header.epoch), header)
        return header, secret

    def _create(self, made: Made, layout: SparkLayout, keys: Randomness) -> SparkHeader:
        self.require_empty()
        if layout.place:
            storage = Shards(layout.place)
            if storage.started() or storage.owner() is not None:
                raise StoreError(
                    "the storage already holds the shards of another state.\n"
                    "  to fix  give each state a storage of its own"
                )
        place = place_of(keys, self.path)
        if place == f"file:{self.path / SECRET}":
            fresh = not (self.path / SECRET).exists()
            (secrets.create if fresh else secrets.kept)(self.path)
        secret = SecretFrom(place, new_epoch().hex())
        header = SparkHeader(
            fingerprint=made.fingerprint, calibration=made.calibration,
            shards=layout.shards or NEW_SHARDS,
            storage=layout.place, epoch=secret.epoch, noise_check=check(secret()),
        )  # fmt: skip
        self._write(header)
        return header

    def _require_owned(self, shards: Shards, header: SparkHeader) -> None:
        """Claims the storage for a new state; later it must still be this state's."""
        if not header.ready:
            shards.claim()
        elif shards.owner() is None:
            raise missing("storage")
        elif shards.owner() != header.epoch:
            raise StoreError(
                "the storage belongs to another state.\n"
                "  to fix  restore state and storage from backups of one moment"
            )

    def _require_same(self, header: SparkHeader, made: Made, layout: SparkLayout) -> None:
        if header.fingerprint != made.fingerprint:
            raise StoreError(
                "this state was created by another query.\n"
                "  to fix  use a state directory of its own for each query"
            )
        if header.calibration != made.calibration:
            raise StoreError(CALIBRATED_OTHERWISE)
        if layout.shards not in (None, header.shards):
            raise StoreError(
                f"this state has {header.shards} shards, which stay as they are; {layout.shards}"
                " were asked for.\n  to fix  leave the number of shards out: tasks and executors"
                " may change at every start, shards may not"
            )
        if header.storage not in (layout.storage, layout.place):
            raise StoreError(
                "the shards of this state are in another storage.\n"
                "  to fix  name the storage that the state was created with"
            )

    def require_charged(self, header: SparkHeader, account: Account) -> None:
        """Refuses a job that was charged and has lost its charge."""
        if header.ready:
            require_present(self.path / LEDGER, "ledger")
            account.require_charged(self.path / LEDGER, header.epoch)

    def charge(self, header: SparkHeader, account: Account) -> SparkHeader:
        """Charges a new job, once."""
        if not header.ready:
            account.charge(self.path / LEDGER, header.epoch)
            header = replace(header, ready=True)
            self._write(header)
        return header

    def _write(self, header: SparkHeader) -> None:
        formats.write(self.path / HEADER, "state on Spark", asdict(header))

    def require_logged(self) -> None:
        """Refuses a mark without a checkpoint that leads to it, and a checkpoint without a mark."""
        offsets, committed = self.path / CHECKPOINT / "offsets", self.mark.step
        if committed and (not offsets.exists() or self.logged() < committed):
            raise missing("checkpoint")
        if not committed and offsets.exists() and self.logged() > 1:
            raise missing("mark of committed steps")

    def require_whole(self, shards: Shards, kept: dict[str, int]) -> None:
        """Refuses to go on when a part is missing or of another moment.

        `kept`: the number of shards of each stage.
        """
        self.require_logged()
        offsets, committed = self.path / CHECKPOINT / "offsets", self.mark.step
        if committed:
            self._require_published(shards, kept)
        elif shards.started() and not offsets.exists():
            raise missing("checkpoint")
        logged = self.logged() if offsets.exists() else 0
        if shards.newest() > max(logged, committed + 1):  # a lost log of one step may be made again
            raise StoreError(
                "the shards are ahead of this state: another job went on with them.\n"
                "  to fix  restore state and storage from backups of one moment"
            )

    def _require_published(self, shards: Shards, kept: dict[str, int]) -> None:
        """The shards must be those that the last committed step left."""
        found = 0
        for stage, number in kept.items():
            for shard, tag in enumerate(shards.tags(stage, self.mark.step, number)):
                if tag is None:
                    raise missing("shards' state")
                found += share_of(stage, shard, tag)
        if found != self.mark.tags:
            raise StoreError(
                f"the shards of step {self.mark.step} are not those that were published.\n"
                "  to fix  restore the directory from a backup of one moment"
            )


def place_of(keys: Randomness, home: Path) -> str:
    """Where tasks find the secret; refuses to send a secret itself to them."""
    if isinstance(keys.noise, KeyedNoise) and not keys.noise.secure:
        secrets.warn_insecure()
        return f"{INSECURE}:{keys.noise.secret.hex()}"
    if keys.noise is None and keys.secret is None:
        known = os.environ.get(secrets.ENVIRONMENT)
        return f"env:{secrets.ENVIRONMENT}" if known else f"file:{home / SECRET}"
    text = keys.secret if isinstance(keys.secret, str) else ""
    if keys.noise is not None or text.partition(":")[0] not in PLACES:
        raise PlanError(
            "on Spark a secret is named by its place, so that it never travels with the tasks.\n"
            "  to fix  give env:NAME, file:PATH or command:PROGRAM"
        )
    kind, _, where = text.partition(":")
    return f"file:{everywhere(where)}" if kind == "file" else text


def everywhere(path: str) -> str:
    """A path that means the same to any task and to the next start."""
    return str(Path(path).expanduser().absolute())


def missing(what: str) -> StoreError:
    """The error for a part of a state that is not there."""
    return StoreError(
        f"the state has lost its {what}; going on could use noise twice.\n"
        "  to fix  restore the directory from one moment; a new start needs a new state and budget"
    )


def require_present(path: Path, what: str) -> None:
    """Raises StoreError when a part of a state is gone."""
    if not path.exists():
        raise missing(what)
