"""Random and exhaustive update streams, and a plain table that says what the answer is."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Plain:
    """A list of (id, label, alive): the definition that every mechanism is compared with."""

    alive: list = field(default_factory=list)
    seen: set = field(default_factory=set)

    def insert(self, rid, label, *, ids):
        if ids and rid in self.seen:
            return
        self.seen.add(rid)
        self.alive.append((rid, label))

    def delete(self, rid, label, *, ids):
        for at in range(len(self.alive) - 1, -1, -1):
            if self.alive[at][0 if ids else 1] == (rid if ids else label):
                del self.alive[at]
                return

    def histogram(self, domain):
        return np.bincount([label for _, label in self.alive], minlength=domain).astype(np.int64)


def random_stream(seed, steps, domain, most=6):
    """Steps of (sign, id, label), with duplicates, unknown ids and same-step deletions."""
    rng = np.random.default_rng(seed)
    fresh = 0
    for _ in range(steps):
        updates = []
        for _ in range(rng.integers(0, most + 1)):
            if rng.random() < 0.55 or not fresh:
                if rng.random() < 0.1 and fresh:
                    rid = int(rng.integers(0, fresh))  # a duplicate
                else:
                    rid, fresh = fresh, fresh + 1
                updates.append((1, rid, int(rng.integers(0, domain))))
            else:
                updates.append((-1, int(rng.integers(0, fresh + 3)), int(rng.integers(0, domain))))
        yield updates


def arrays(updates):
    signs, ids, labels = (np.array([u[i] for u in updates], np.int64) for i in range(3))
    return signs, ids, labels
