"""What a job pays, once: to the ledger of its state, and to one it shares with other jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamveil.accounts.ledger import Charge, Ledger, Where
from streamveil.core.accounting.budget import Budget
from streamveil.core.accounting.guarantee import NOTHING, Guarantee

MECHANISMS = "mechanisms"  # in the description of a job; not there before a look chose them


@dataclass(frozen=True, kw_only=True)
class Account:
    """What a job is charged with, and where. A charge is known by its key, the state's epoch."""

    name: str
    limit: Budget  # of the ledger of its state
    guarantee: Guarantee
    about: Callable[[], dict[str, Any]]  # describes the job, for the ledger's export
    shared: Where | None = None  # a ledger that several jobs over the same data share

    def require_room(self) -> None:
        """Raises what a charge of the shared ledger would raise now; takes nothing."""
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.require(self.name, self.guarantee)

    def charge(self, own: Path, key: str) -> None:
        """Charges both, the shared one first. A restart finds its key and pays nothing."""
        about = self.about()
        with Ledger.open(own, self.limit, self.guarantee.protects) as ledger:
            if self.shared is not None:
                with Ledger.load(self.shared) as shared:
                    shared.charge(self.name, self.guarantee, key=key, about=about)
                    shared.charge_all(self._settings(shared, key, about))
            ledger.charge(self.name, self.guarantee, key=key, about=about)

    def charge_shared(self, key: str) -> None:
        """Charges the shared one alone: for a look, and for all that it may choose."""
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.charge(self.name, self.guarantee, key=key, about=self.about())

    def _settings(self, shared: Ledger, key: str, about: dict[str, Any]) -> list[Charge]:
        """Of a charge before a look: what the look chose, which takes nothing more."""
        charged = next(one.about or {} for one in shared.entries() if one.key == key)
        if MECHANISMS in charged or MECHANISMS not in about:
            return []
        told = {name: about[name] for name in (MECHANISMS, "versions")}
        return [Charge(f"{self.name}, settings", NOTHING, key=f"{key}:settings", about=told)]

    def extend(self, own: Path, charge: Charge) -> None:
        """Charges both with a later end, the shared one first, before anything of it is drawn."""
        for where in (self.shared, own):
            if where is not None:
                with Ledger.load(where) as ledger:
                    ledger.charge_all([charge])

    def require_charged(self, own: Path, key: str) -> None:
        """Raises StoreError unless both hold the job's charge."""
        with Ledger.open(own, self.limit, self.guarantee.protects) as ledger:
            ledger.require_charged(key)
        if self.shared is not None:
            with Ledger.load(self.shared) as shared:
                shared.require_charged(key)
