"""A toy operator and a feed: enough of a private job to test the runtime by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.connectors import Sink
from streamveil.connectors.rejected_rows import MALFORMED, rejected_lines
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp, Guarantee
from streamveil.core.noise import Noise, SeededNoise
from streamveil.errors import StoreError
from streamveil.runtime.job import Work
from streamveil.runtime.secret import Randomness
from tests.released import made

SEEDED = Randomness(noise=SeededNoise(7), insecure=True)
LIMIT = Budget(mu=1)
COLUMNS = pa.schema([("key", pa.int64())])


@dataclass
class State:
    """Rows per key."""

    totals: np.ndarray
    steps: int = 0


@dataclass(frozen=True)
class Toy:
    """Counts rows per key; a release adds a few noise bits to each running total."""

    keys: int = 8
    kind: str = "toy"
    weight: int = 1

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(Neighbours("user"), Gdp(0.5), horizon=None)

    def init(self) -> State:
        return State(np.zeros(self.keys, np.int64))

    def fold(self, state: State, batch: Batch, noise: Noise) -> dict[str, np.ndarray]:
        keys = batch.rows.column("key").to_numpy()
        touched, counts = np.unique(keys, return_counts=True)
        delta = {"touched": touched, "counts": counts * self.weight}
        self.apply(state, delta)
        return delta

    def apply(self, state: State, delta: dict[str, np.ndarray]) -> None:
        state.totals[delta["touched"]] += delta["counts"]

    def release(self, state: State, step: int, noise: Noise) -> list[Release]:
        state.steps += 1
        bits = noise.at("toy", step).words(self.keys) % np.uint64(1000)
        table = pa.table({"key": np.arange(self.keys), "n": state.totals + bits.astype(np.int64)})
        return [made(table, 0, step, step)]

    def save(self, state: State) -> dict[str, np.ndarray]:
        return {"totals": state.totals, "steps": np.array([state.steps])}

    def load(self, arrays: dict[str, np.ndarray]) -> State:
        if len(arrays["totals"]) != self.keys:
            raise StoreError("the state holds another number of keys")
        return State(arrays["totals"], int(arrays["steps"][0]))

    def counters(self, state: State) -> dict[str, int]:
        return {"keys": int((state.totals > 0).sum())}


@dataclass(frozen=True)
class Stream:
    """Micro-batches that are a function of their number: `per_step` of them make one step."""

    batches: int = 12
    rows: int = 20
    per_step: int = 2
    keys: int = 8

    def __call__(self, position: str | None) -> Iterator[Batch]:
        start = json.loads(position)["next"] if position else 0
        for number in range(start, self.batches):
            yield self.batch(number)

    def batch(self, number: int) -> Batch:
        keys = np.random.default_rng(number).integers(0, self.keys, self.rows)
        closes = number % self.per_step == self.per_step - 1
        position = json.dumps({"next": number + 1})
        rejected = {"malformed row": 1} if number % 3 == 0 else {}
        lines = [b"malformed in micro-batch %d" % number]
        rejected_rows = [rejected_lines(COLUMNS, "toy", MALFORMED, np.array([number]), lines)]
        return Batch(
            pa.table({"key": keys}), number // self.per_step + 1, closes, position, rejected,
            rejected_rows if rejected else (),
        )  # fmt: skip


def work(stream: Any = None, sink: Sink | None = None, operator: Any = None) -> Work:
    """A toy job."""
    return Work(
        name="toy",
        fingerprint="f00d",
        operator=operator or Toy(),
        feed=stream or Stream(),
        limit=LIMIT,
        sink=sink,
    )
