"""`sv.what_if`: errors and odds of a query under other settings, before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from streamveil.advise.what_if import WhatIf
from streamveil.advise.what_if import what_if as forecast_settings
from streamveil.api import Query
from streamveil.batch import as_table
from streamveil.errors import PlanError, fitting


@fitting("what_if(query), or what_if(query, units=500, epsilons=[0.5, 1, 2], sample=public_rows)")
def what_if(  # noqa: PLR0913  (what may be varied, each by name)
    query: Query,
    *,
    units: int = 100,
    epsilons: Iterable[float] | None = None,
    max_rows: Iterable[int] | None = None,
    releases: Iterable[int] | None = None,
    sample: Any = None,
    fraction: float = 1.0,
) -> WhatIf:
    """Forecasts errors and odds under other settings. Spends nothing, and reads no private row.

    Args:
        query: the query.
        units: people in the group whose count is forecast, at least 1.
        epsilons: budgets to try; a quarter to four times the query's own if left out.
        max_rows: bounds to try; likewise.
        releases: numbers of releases to try; likewise.
        sample: PUBLIC rows, from which the rows that the bounds cut are counted.
        fraction: the share of all units that the sample holds, above 0 and at most 1.

    Raises:
        PlanError: an argument is out of range, or the query itself cannot be compiled.
        BudgetError: the budget of the query cannot pay for what it asks.
        SourceError: `sample` cannot be read as a table.

    >>> import streamveil as sv
    >>> query = (sv.memory({"user": [1], "page": ["a"]}).protect("user").group_by("page")
    ...          .agg(n=sv.count()).bound(max_rows=4)
    ...          .release(budget=sv.Budget(epsilon=1, delta=1e-9)))
    >>> found = sv.what_if(query, units=500, epsilons=[2])
    >>> found.table["varied"].to_pylist()[:2], found.table["error"][1].as_py() < 0.1
    (['as asked', 'epsilon'], True)
    """
    if not isinstance(query, Query):
        raise PlanError(
            f"what_if takes a query, not {type(query).__name__}.\n"
            "  to fix  what_if(stream. ... .release(budget=...)), or what_if(sv.sql(text, tables))"
        )
    rows = None if sample is None else as_table(sample)
    return forecast_settings(
        query.plan, units=units, epsilons=epsilons, max_rows=max_rows, releases=releases,
        sample=rows, fraction=fraction,
    )  # fmt: skip
