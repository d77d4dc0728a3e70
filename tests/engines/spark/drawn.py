"""Streams and queries drawn by a seed: windows, late data, units, keys and kinds vary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamveil.plan import Window
from tests.engines.spark.asked import ASKED, Asked
from tests.engines.spark.streams import GROW, HOP, HOUR, SPAN, TUMBLE, WHOLE, Case

HALF_LATE = Window(kind="tumble", size_us=2 * HOUR, lateness_us=HOUR // 2)
NEVER_LATE = Window(kind="tumble", size_us=3 * HOUR)
WINDOWS = (WHOLE, TUMBLE, HALF_LATE, NEVER_LATE, HOP, GROW)
KINDS = 3  # every third seed draws a sketch, a table or combined rows


def drawn(seed: int) -> Case | Asked:
    """The stream and the query of a seed; all kinds come up within thirty seeds."""
    rng = np.random.default_rng(seed)
    size = {"seed": seed, "rows": int(rng.integers(300, 900)), "shards": int(rng.integers(1, 5))}
    turn, third = divmod(seed, KINDS)
    if third == 0:
        asked = ASKED[turn % len(ASKED)]
        return replace(asked, name=f"{asked.name}_{seed}", **size)
    return Case(name=f"drawn_{seed}", **size, **varied(rng, WINDOWS[turn % len(WINDOWS)]))


def varied(rng: np.random.Generator, window: Window) -> dict[str, Any]:
    """What else may vary over a window."""

    def one(*of: Any) -> Any:
        return of[rng.integers(len(of))]

    clock = one("event", "rows", "once") if window is WHOLE else "event"
    rounds = clock == "event" and window.kind in ("tumble", "cumulate") and one(True, False, False)
    made = {
        "window": window, "clock": clock, "text": one(True, False), "every": one(2, 3) * HOUR,
        "late": one(0.0, 0.3, 0.8), "rows_per_unit": one(1, 8, 40), "skew": one(0.15, 0.25, 0.6),
        "quantile": one(True, False, False), "moments": one(True, False, False),
        "distinct": one(True, False, False), "mixed": True,
    }  # fmt: skip
    if window is not WHOLE:
        made["every"] = min(made["every"], window.size_us)  # else some windows have no release
    if rounds:
        return made | {"preset": "dp-sqlp", "per_group": None}
    made |= {
        "period": one(None, 2 * HOUR, SPAN) if clock == "event" else None,
        "per_group": one(1, 2, None), "public": one(True, False, False),
        "quadratic": one(None, None, 12),
    }  # fmt: skip
    return made if made["public"] else made | {"two_keys": one(True, False)}
