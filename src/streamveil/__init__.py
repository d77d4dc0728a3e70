"""streamveil: differentially private answers over data that never stops changing.

>>> import streamveil as sv
>>> pages = (sv.files("clicks/*.parquet", event_time="ts").protect(unit="user_id", per="1 day")
...            .window(sv.tumble("1 day")).group_by("url", keys=sv.discover(min_units=20))
...            .agg(n=sv.count()).bound(max_rows=32, max_rows_per_group=1)
...            .release(every="15 min", start="2026-01-01", end="2026-02-01",
...                     budget=sv.Budget(epsilon=6, delta=1e-9)))
>>> pages.plan.clock.steps
2976
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from streamveil.errors import (
    BudgetError,
    HorizonError,
    MissingExtraError,
    PlanError,
    SourceError,
    StoreError,
    StreamveilError,
    nearest,
)

if TYPE_CHECKING:
    from streamveil.api.answers import answers
    from streamveil.api.builder import files, memory, source
    from streamveil.api.query_parts import (
        approx_frequency,
        avg,
        count,
        count_distinct,
        count_if,
        count_units,
        cumulate,
        discover,
        heavy_hitters,
        hop,
        median,
        public,
        quantile,
        rows,
        stddev,
        sum,
        tumble,
        variance,
    )
    from streamveil.api.script import sql
    from streamveil.api.table_builder import table
    from streamveil.api.what_if import what_if
    from streamveil.batch import Release
    from streamveil.core.accounting import Budget
    from streamveil.runtime.on_spark import spark
    from streamveil.runtime.published import read

__version__ = "0.1.0"

# mechanisms for use with NumPy arrays alone
_MECHANISMS = ("counters", "sketches", "linear", "dynamic")

# the modules of names outside `api.query_parts`; all are loaded when first used
_ELSEWHERE = {
    "Budget": "streamveil.core.accounting", "Release": "streamveil.batch",
    "answers": "streamveil.api.answers", "files": "streamveil.api.builder",
    "memory": "streamveil.api.builder", "read": "streamveil.runtime.published",
    "source": "streamveil.api.builder", "spark": "streamveil.runtime.on_spark",
    "sql": "streamveil.api.script", "table": "streamveil.api.table_builder",
    "what_if": "streamveil.api.what_if",
}  # fmt: skip

# what pandas and the like call it
_OTHER_NAMES = {"mean": "avg", "std": "stddev", "var": "variance", "nunique": "count_distinct"}


def __getattr__(name: str) -> Any:
    """Loads a name when it is first used: numpy, Arrow and the parser of SQL take half a second."""
    if name in _MECHANISMS:
        return _loaded(f"streamveil.{name}")
    if name not in __all__:
        known = [*__all__, *_MECHANISMS]
        hint = nearest(_OTHER_NAMES.get(name, name), known)
        raise AttributeError(f"module 'streamveil' has no attribute '{name}'{hint}")
    found = getattr(_loaded(_ELSEWHERE.get(name, "streamveil.api.query_parts")), name)
    return globals().setdefault(name, found)


def _loaded(module: str) -> ModuleType:
    """Imports a module without a search for garbage in it, which takes 0.1 s.

    All objects then count as old: the next full collection looks at them, as usual.
    """
    if not gc.isenabled() or gc.get_freeze_count():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.unfreeze()
        gc.enable()


def __dir__() -> list[str]:
    """The names for users, and nothing else."""
    return sorted([*__all__, *_MECHANISMS])


class _Package(ModuleType):
    """This module; its function `sql` stays when the package of the same name is loaded."""

    @property
    def sql(self) -> Any:
        return import_module("streamveil.api.script").sql

    @sql.setter
    def sql(self, package: ModuleType) -> None:
        """Does nothing: loading `streamveil.sql` puts the package here."""


sys.modules[__name__].__class__ = _Package

__all__ = [
    "Budget", "BudgetError", "HorizonError", "MissingExtraError", "PlanError", "Release",
    "SourceError", "StoreError", "StreamveilError", "answers", "approx_frequency", "avg", "count",
    "count_distinct", "count_if", "count_units", "cumulate", "discover", "files", "heavy_hitters",
    "hop", "median", "memory", "public", "quantile", "read", "rows", "source", "spark", "sql",
    "stddev", "sum", "table", "tumble", "variance", "what_if",
]  # fmt: skip
