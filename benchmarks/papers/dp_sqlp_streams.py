"""The streams of `dp_sqlp.py`: the published workload, variants of it, and others; or a file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.clicks import Clicks, drawn
from benchmarks.clicks import repeated as repeated_keys

CODES = 10  # largest value of the third stream; its sums are bounded by it
FULL = (10_000_000, 1_000_000)  # users, keys
STREAMS = ("plain", "clumpy", "other", "bursty", "reddit")
REDDIT = (1_430_000, 29_650)  # users and keys of the corpus of Table 2
# what is publicly said of a stream: rows of a user on average, and of all but 1 % of them at most
SAID = {"plain": (5.9, 32), "clumpy": (5.9, 32), "other": (4.3, 32), "bursty": (8.0, 35),
        "reddit": (2.7, 17)}  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """The records of one day, as codes, and the true answers."""

    users: np.ndarray
    keys: np.ndarray
    size: int  # keys of the universe
    name: str = ""
    values: np.ndarray | None = None  # summed, if there are any; else rows are counted
    said: tuple[float, int, int] = (5.9, 32, 10_000_000)  # mean and 99 % of rows, users: public
    known: dict[int, np.ndarray] = field(default_factory=dict)

    def truth(self, upto: int) -> np.ndarray:
        """Over the first rows of the stream; remembered."""
        if upto not in self.known:
            part = None if self.values is None else self.values[:upto]
            self.known[upto] = np.bincount(self.keys[:upto], part, minlength=self.size + 1)
        return self.known[upto]

    @property
    def expected(self) -> dict[str, Any]:
        """What a query over this stream would publicly expect."""
        mean, most, users = self.said
        return {"expected_rows": mean, "expected_most_rows": most, "expected_units": users,
                "expected_groups": self.size}  # fmt: skip


def load(name: str, users: int, keys: int, cache: Path | None, seed: int = 7) -> Stream:
    """A stream, made from its seed or read from where it was kept."""
    if name == "reddit":
        scale = users / FULL[0]
        users, keys = int(REDDIT[0] * scale), int(REDDIT[1] * scale)
    place = None if cache is None else cache / f"{name}-{users}-{keys}-{seed}.npy"
    if place is not None and place.exists():
        columns = list(np.load(place, mmap_mode="r"))
    elif name in MADE:
        columns = MADE[name](users, keys, seed)
    else:
        clumpy = 0.5 if name == "clumpy" else 0.0
        columns = list(Clicks(users=users, keys=keys, clumpy=clumpy, seed=seed).arrays())
    if place is not None and not place.exists():
        np.save(place, np.stack([column.astype(np.int32) for column in columns]))
    values = columns[2] if len(columns) > 2 else None
    return Stream(columns[0], columns[1], keys, name, values, (*SAID[name], users))


def read(path: Path, unit: str, key: str, most: int | None) -> Stream:
    """A stream of the user's own, in the order of its file; rows without unit or key are left out.

    What is said of it is read off the rows themselves: the figures are for streams that are public.
    """
    table = pq.read_table(path, columns=[unit, key]).drop_null()
    who, which = (
        np.asarray(pc.dictionary_encode(table[name].combine_chunks()).indices).astype(np.int64)
        for name in (unit, key)
    )
    per_unit = np.bincount(who)
    said = most or int(np.quantile(per_unit, 0.99))
    mean = float(np.minimum(per_unit, said).mean())  # a few enormous users say little of the rest
    size = int(which.max()) + 1
    return Stream(who, which + 1, size, path.stem, None, (round(mean, 1), said, len(per_unit)))


def sample(name: str, users: int, keys: int, seed: int) -> Stream:
    """A part of the workload's users and keys that leaves each key as many rows as at full size.

    Drawn from the published law, for choosing settings; `clumpy` as in `Clicks`.
    """
    rng = np.random.default_rng(seed)
    rows = drawn(rng, (np.arange(1, 100_001) + 25.0) ** -6.738, users) + 1
    who = np.repeat(np.arange(users), rows)
    shift = 1000 * keys / 1_000_000 - 1
    which = drawn(rng, (np.arange(1, keys + 1) + shift) ** -1.4, len(who)) + 1
    if name == "clumpy":
        which = repeated_keys(rng, which, rows, 0.5)
    order = rng.permutation(len(who))
    return Stream(who[order], which[order], keys, name, None, (*SAID[name], users))


def other(users: int, keys: int, seed: int) -> list[np.ndarray]:
    """A third stream: heavier users, steeper keys, favourites that come back, values to be summed.

    A user has n rows, weight (n + 4)^-3.2; keys have weight (k + 29)^-1.15; a quarter of the rows
    repeat an earlier key of their user; values are 1 + geometric, at most `CODES`.
    """
    rng = np.random.default_rng(seed)
    rows = drawn(rng, (np.arange(1, 10_001) + 4.0) ** -3.2, users) + 1
    who = np.repeat(np.arange(users), rows)
    which = drawn(rng, (np.arange(1, keys + 1) + 29.0) ** -1.15, len(who)) + 1
    first = np.repeat(np.cumsum(rows) - rows, rows)
    earlier = first + (rng.random(len(who)) * (np.arange(len(who)) - first)).astype(np.int64)
    which = np.where(rng.random(len(who)) < 0.25, which[earlier], which)
    values = np.minimum(rng.geometric(0.3, len(who)), CODES)
    order = rng.permutation(len(who))
    return [who[order], which[order], values[order]]


def bursty(users: int, keys: int, seed: int) -> list[np.ndarray]:
    """A fourth stream: sessions instead of shuffled rows, keys that come and go, no power law.

    A user has 1 + geometric rows (mean 8), all within a fiftieth of the day; keys have lognormal
    weights (sigma 2), each key is active in one half of the day only; a tenth of the rows repeat
    the row before.
    """
    rng = np.random.default_rng(seed)
    rows = rng.geometric(1 / 8, users)
    n = int(rows.sum())
    who = np.repeat(np.arange(users), rows)
    start = np.repeat(rng.random(users), rows)
    when = start + rng.random(n) / 50
    weights = np.exp(2 * rng.standard_normal(keys))
    late = (rng.random(keys) < 0.5).astype(bool)
    early_keys, late_keys = np.flatnonzero(~late), np.flatnonzero(late)
    which = np.where(
        when < 0.5,
        early_keys[drawn(rng, weights[early_keys], n)],
        late_keys[drawn(rng, weights[late_keys], n)],
    )
    again = (rng.random(n) < 0.1) & (np.r_[-1, who[:-1]] == who)
    which = np.where(again, np.r_[which[0], which[:-1]], which) + 1
    order = np.argsort(when, kind="stable")
    return [who[order], which[order]]


def reddit(users: int, keys: int, seed: int) -> list[np.ndarray]:
    """Of the shape of Table 2's corpus (posts by author and subreddit), which is not shipped.

    A user has n rows, weight (n + 2)^-3.3 (mean 2.7, 99th percentile 17, the paper's C); keys have
    weight (k + 1.5)^-1.35; half of the rows repeat an earlier key of their user; one account that
    stands for all deleted ones has a twelfth of all rows.
    """
    rng = np.random.default_rng(seed)
    rows = drawn(rng, (np.arange(1, 10_001) + 2.0) ** -3.3, users) + 1
    rows[0] = int(rows.sum() / 11)
    who = np.repeat(np.arange(users), rows)
    which = drawn(rng, (np.arange(1, keys + 1) + 1.5) ** -1.35, len(who)) + 1
    repeats = repeated_keys(rng, which, rows, 0.5)
    which = np.where(who == 0, which, repeats)  # that account is many people
    order = rng.permutation(len(who))
    return [who[order], which[order]]


MADE = {"other": other, "bursty": bursty, "reddit": reddit}
