"""What a job pays, once: to the ledger of its state, and to one it shares with other jobs."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from pathlib import Path
from typing import Any

from streamveil.accounts.ledger import Charge, Ledger, Where
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import NOTHING, Guarantee
from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import counter_facts, distinct_counters, lane_facts
from streamveil.dataflow.release import AggregationPlan
from streamveil.plan import Plan, plain
from streamveil.plan.options import HIDDEN_GROUPS, MAX_PER_GROUP, MAX_SQUARED, MAX_UNITS

PACKAGES = ("streamveil", "numpy", "scipy", "numba", "pyarrow", "cryptography")
LEFT_OUT = ("budget", "options", "sinks", "key_set")  # told elsewhere, or not about privacy


def describe(plan: Plan, operator: Operator, now: float) -> dict[str, Any]:
    """Query, bounds, mechanisms and versions. `now`: seconds since 1970."""
    return {
        "charged_at": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        **asked(plan),
        "mechanisms": mechanisms_of(operator),
        "versions": dict(versions()),
    }


def asked(plan: Plan) -> dict[str, Any]:
    """The settings of a query."""
    told = (f.name for f in fields(plan) if f.name not in LEFT_OUT)
    query = {name: plain(getattr(plan, name)) for name in told}
    return {
        "query": query | {"fingerprint": plan.fingerprint, "keys_are": keys_of(plan)},
        "options": plain(plan.options),
        "budget": plan.budget.to_dict(),
    }


def keys_of(plan: Plan) -> str:
    """How groups become known. Public groups are counted, not listed."""
    if not plan.keys:
        return "one group of all rows"
    if plan.key_set.public is not None:
        return f"public: {len(plan.key_set.public):,} groups"
    return f"discovered, well above {plan.key_set.min_units} privacy units"


def mechanisms_of(operator: Operator) -> dict[str, Any]:
    """The mechanisms that run, with their noise."""
    if not isinstance(operator, GroupBy):
        return {"kind": operator.kind}
    aggregation, bounds = operator.aggregation, operator.bounds
    return {
        "kind": operator.kind,
        "bounding": {
            "max_rows": bounds.max_rows,
            MAX_PER_GROUP.name: bounds.per_group,
            MAX_SQUARED.name: bounds.quadratic,
            "groups": bounds.groups,
            HIDDEN_GROUPS.name: bounds.slots,
            "l2_squared": bounds.l2_squared,
        },
        "selection": selection_of(aggregation),
        "counters": [counter_facts(counter) for counter in distinct_counters(operator)],
        "lanes": [facts for facts in lane_facts(operator) if facts["kind"] != "node"],
        "triggers": operator.schedule.triggers,
        "equal_fingerprints": {MAX_UNITS.name: operator.max_units, "bits": 64},
    }


def selection_of(aggregation: AggregationPlan) -> dict[str, Any]:
    """How groups are shown."""
    if aggregation.selection is None:
        return {"kind": "public"}
    asked = float(aggregation.selection.threshold(1))
    return {
        "kind": type(aggregation.selection).__name__,
        "threshold_at_first_trigger": None if asked == inf else asked,
        "weights": aggregation.rule is not None,
    }


@cache
def versions() -> dict[str, str]:
    """The versions of everything that computes the releases."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


MECHANISMS = "mechanisms"  # in the description of a job; absent until a look has chosen them


@dataclass(frozen=True, kw_only=True)
class Account:
    """The charge of a job, and its ledgers. The key of a charge is the state's epoch."""

    name: str
    limit: Budget  # of the ledger of its state
    guarantee: Guarantee
    about: Callable[[], dict[str, Any]]  # describes the job, for the ledger's export
    shared: Where | None = None  # a ledger that several jobs over the same data share

    def require_room(self) -> None:
        """Raises any error that charging the shared ledger would raise now; charges nothing."""
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.require(self.name, self.guarantee)

    def charge(self, own: Path, key: str) -> None:
        """Charges both ledgers, the shared one first. A restart finds its key and pays nothing."""
        about = self.about()
        with Ledger.open(own, self.limit, self.guarantee.protects) as ledger:
            if self.shared is not None:
                with Ledger.load(self.shared) as shared:
                    shared.charge(self.name, self.guarantee, key=key, about=about)
                    shared.charge_all(self._settings(shared, key, about))
            ledger.charge(self.name, self.guarantee, key=key, about=about)

    def charge_shared(self, key: str) -> None:
        """Charges the shared ledger alone: for a look, and for everything that it may choose."""
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.charge(self.name, self.guarantee, key=key, about=self.about())

    def _settings(self, shared: Ledger, key: str, about: dict[str, Any]) -> list[Charge]:
        """An entry that costs nothing: the settings that a look chose after its charge."""
        charged = next(one.about or {} for one in shared.entries() if one.key == key)
        if MECHANISMS in charged or MECHANISMS not in about:
            return []
        told = {name: about[name] for name in (MECHANISMS, "versions")}
        return [Charge(f"{self.name}, settings", NOTHING, key=f"{key}:settings", about=told)]

    def extend(self, own: Path, charge: Charge) -> None:
        """Charges both ledgers for a later end, the shared one first, before any of it is drawn."""
        for where in (self.shared, own):
            if where is not None:
                with Ledger.load(where) as ledger:
                    ledger.charge_all([charge])

    def require_charged(self, own: Path, key: str) -> None:
        """Raises StoreError unless both ledgers hold the job's charge."""
        with Ledger.open(own, self.limit, self.guarantee.protects) as ledger:
            ledger.require_charged(key)
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.require_charged(key)
