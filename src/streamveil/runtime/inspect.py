"""What a state directory holds, for `streamveil inspect DIR`: sizes and places, no row value."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamveil.errors import StoreError
from streamveil.privacy.ledger import Ledger
from streamveil.runtime import checkpoint, disk, frame, wal
from streamveil.runtime.secret import SECRET
from streamveil.runtime.store import LEDGER, Header, read_header


@dataclass(frozen=True)
class Summary:
    """A state as it is on disk. Reading it needs neither the secret nor the lock."""

    job: str
    plan: str
    operator: str
    epoch: str
    secure: bool
    secret_kept: bool  # whether the secret lies in the directory
    batch: int  # micro-batches committed
    step: int
    closed: bool  # whether the last micro-batch closed its step
    position: str | None  # where the source resumes
    checkpoint_batch: int | None
    checkpoint_bytes: int
    log_records: int  # since the checkpoint
    log_bytes: int
    arrays: dict[str, int]  # bytes in the checkpoint, by the first word of their names
    limit: str
    spent: str
    charges: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def inspect(directory: str | Path) -> Summary:
    """Reads a state directory without changing it, also while a job is running in it."""
    folder = Path(directory)
    header = read_header(folder) if folder.is_dir() else None
    if header is None:
        raise StoreError(f"'{folder.name}' is not a state directory")
    saved = checkpoint.kept(folder)
    after, path = saved[-1] if saved else (0, None)
    first = None if path is None else head_of(path)
    heads = [] if first is None else [first]
    log = logged(folder, after)
    heads += [head for head, _ in log]
    place = wal.Place(**heads[-1]["place"]) if heads else wal.Place()
    identity = header.identity
    return Summary(
        identity.job, identity.plan, identity.operator, header.epoch, header.secure,
        (folder / SECRET).exists(), place.batch, place.step, place.closed, place.position,
        after if path else None, path.stat().st_size if path else 0,
        len(log), sum(size for _, size in log), sizes(first), *spending(folder, header),
    )  # fmt: skip


def head_of(path: Path) -> frame.Head:
    """The head of a file's first frame."""
    with disk.crash_only("read", path), path.open("rb") as file:
        return frame.read_head(file, path.stat().st_size)[0]


def logged(folder: Path, after: int) -> list[tuple[frame.Head, int]]:
    """Head and size of every record after a batch; a torn tail or one being written is left out."""
    found = []
    for _, path in wal.kept(folder):
        with disk.crash_only("read", path), path.open("rb") as file:
            offset, size = 0, path.stat().st_size
            while offset < size:
                file.seek(offset)
                try:
                    head, sizes = frame.read_head(file, size - offset)
                except frame.TornFrameError:
                    break
                offset += sizes.frame
                if head.get("batch", 0) > after:
                    found.append((head, sizes.frame))
    return found


def sizes(head: frame.Head | None) -> dict[str, int]:
    """Stored bytes of a checkpoint's arrays, summed by the part of the name before '/'."""
    total: dict[str, int] = {}
    for name, _, _, kept, size in head["arrays"] if head else ():
        word = str(name).split("/")[0]
        total[word] = total.get(word, 0) + size * int(kept[2:])
    return total


def spending(folder: Path, header: Header) -> tuple[str, str, int]:
    """The ledger's limit, what is spent, and how many charges there are."""
    path = folder / LEDGER
    if not header.ready and not path.exists():
        return "not charged yet", "nothing", 0
    ledger = Ledger.load(path)
    try:
        return str(ledger.limit), str(ledger.spent()), len(ledger.entries())
    finally:
        ledger.close()
