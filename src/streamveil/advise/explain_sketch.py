"""Explains the guarantee and the expected accuracy of a sketch query, before any row is read."""

from __future__ import annotations

from streamveil.compiler.sketch import usual_memory
from streamveil.plan import Plan
from streamveil.sketches import HeavyTexts
from streamveil.sketches.heavy_texts import SEEN
from streamveil.sketches.operator import SketchQuery

Row = tuple[str, ...]


def sketch_rows(operator: SketchQuery) -> tuple[Row, ...]:
    """The sketch that runs, and its bounds."""
    table = operator.tables[-1]
    shape = f"{table.layout.depth} rows of {table.layout.width:,} cells"
    levels = f", {len(operator.tables)} levels" if len(operator.tables) > 1 else ""
    return (
        ("bounding", f"the first {operator.bounds.max_rows:,} rows of a unit"),
        ("sketch", f"lazy {table.layout.kind} sketch: {shape}{levels}; pushed at every trigger"),
        ("memory", f"{operator.nbytes:,} bytes of sketches, however many keys there are; "
                   "and about 17 bytes a unit"),
        ("published", f"the {operator.k:,} most frequent keys, found in the published tables"
                  if operator.k else f"{len(operator.keys):,} public keys"),
        *((("missed", f"a text of fewer than about {smallest_text(operator):,.0f} rows: each of its"
                      f" {operator.text_length} bytes has to stand out of the noise"),)
          if isinstance(operator.sketch, HeavyTexts) else ()),
    )  # fmt: skip


def smallest_text(operator: SketchQuery) -> float:
    """The number of rows from which a text is found at the last release, collisions aside."""
    weight = operator.sketch.weight if isinstance(operator.sketch, HeavyTexts) else 1
    return SEEN * weight * operator.sd(operator.schedule.triggers or 1)


def sketch_defaults(plan: Plan) -> tuple[Row, ...]:
    """The settings that the query left open, their values, and why."""
    given = plan.aggregates[0].options
    rows: list[Row] = []
    if "memory" not in given:
        length = int(given.get("text_length", 0))
        mebibytes = usual_memory(length) / 2**20
        rows.append(("memory", f"{mebibytes:.3g} MiB",
                     "a quarter MiB for each byte of a text" if mebibytes > 4
                     else "a window's sketch fits the cache of a core"))  # fmt: skip
    if plan.aggregates[0].function == "heavy_hitters":
        if "k" not in given:
            rows.append(("k", "100", "how many keys are published"))
        if "bits" not in given and "text_length" not in given:
            rows.append(("bits", "32", "integer keys below 2^32; larger ones are counted apart"))
    return tuple(rows)
