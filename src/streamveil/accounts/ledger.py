"""The ledger: the losses charged for one data set, and the rest of its limit."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from streamveil import accounts
from streamveil.accounts import START, Amounts, Cost, Journal, Periods, PeriodTotals, Record
from streamveil.core.accounting import Budget, Neighbours, take_numbers
from streamveil.core.accounting.guarantee import (
    NOTHING,
    Guarantee,
    Loss,
    days_of,
    most_periods,
    rounded_up,
)
from streamveil.errors import (
    BudgetError,
    PlanError,
    StoreError,
    got,
    require_path,
    require_with,
    whole,
)

if TYPE_CHECKING:
    from streamveil.accounts.server_journal import ServerJournal

FORMAT = 1
SCHEMES = ("postgresql://", "postgres://")  # of the addresses of servers
SLACK = ("delta", "distance")  # of `accounts.KINDS`
Where = str | Path  # a file, or the address of a server with the ledger's name behind #


@dataclass(frozen=True)
class Charge:
    """A charge for a mechanism, taken before it draws anything."""

    name: str
    loss: Loss
    range: Periods | None = None  # unit-periods [first, end) whose rows it may read; None: all rows
    key: str | None = None  # the same key is charged once
    separate: bool = False  # every unit-period enters mechanisms of its own
    horizon: int | None = None
    about: Record | None = field(default=None, compare=False, repr=False)  # for the export
    given_past: bool = False  # the loss bounds what follows any past without rows of the unit

    def __post_init__(self) -> None:
        take_numbers(self)
        for name, text in {"name": self.name, "key": "" if self.key is None else self.key}.items():
            if not isinstance(text, str):
                raise PlanError(f"{name} must be text, not {got(text)}")
        if self.range is not None:
            object.__setattr__(self, "range", whole_periods(self.range))
        if self.loss.group_size > 1:
            raise PlanError("a charge is the loss of one unit; the ledger converts it to groups")

    def to_dict(self) -> Record:
        """A JSON-able record; only what is set."""
        record: Record = {"charge": self.name, "loss": self.loss.to_dict()}
        if self.range is not None:
            record["range"] = list(self.range)
        named = {"key": self.key, "separate": self.separate or None, "horizon": self.horizon,
                 "about": self.about, "given_past": self.given_past or None}  # fmt: skip
        return record | {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_dict(cls, saved: Record) -> Charge:
        """The inverse of `to_dict`."""
        first_end = saved.get("range")
        return cls(
            saved["charge"],
            Loss.from_dict(saved["loss"]),
            None if first_end is None else (first_end[0], first_end[1]),
            saved.get("key"),
            saved.get("separate", False),
            saved.get("horizon"),
            saved.get("about"),
            saved.get("given_past", False),
        )

    def held(self, periods: int) -> int:
        """The most of `periods` consecutive unit-periods that it may read."""
        return periods if self.range is None else min(self.range[1] - self.range[0], periods)

    def cost(self, caps: Loss) -> Cost:
        """The amounts that it takes from each cap, within its range and everywhere.

        Without a range, all of it is taken everywhere and rounded up once: a charge that fits the
        limit exactly has room.
        """
        if self.range is None:
            return accounts.ZERO, accounts.cost(self.loss, caps)
        ranged, everywhere = accounts.split(self.loss, given_past=self.given_past)
        return accounts.cost(ranged, caps), accounts.cost(everywhere, caps)


def whole_periods(range: Periods) -> Periods:
    """The two ends of a range, in whole periods: parts of one period would be charged apart."""
    pair = isinstance(range, list | tuple) and len(range) == 2
    first, end = (whole("an end of range", one) for one in range) if pair else (0, 0)
    if not first < end:
        raise PlanError(f"range must be [first, end) with first < end, not {range}")
    return first, end


class Ledger:
    """Charges against a limit that many jobs over the same data share.

    A charge is refused before anything is drawn, or it is durable.

    Algorithm: a filter. The limit is turned into one cap per kind of loss (`accounts.caps_for`),
        and a charge is taken if no cap is exceeded for any unit-period. If a charge has a range,
        its pure epsilon counts only for the unit-periods in the range, and all else for all; with
        `given_past`, all of it counts only for those in the range.
    Protects: `protects`; the limit holds for everything charged here, for each unit, or for each
        unit-period when `protects.period` is set.
    Guarantee: all charges together stay inside the limit, whoever chose which charge after seeing
        which release.
    Proof: caps are fixed before the first release. Charges of one kind are a valid filter each:
        Gaussian mechanisms by the sum of mu^2 (Smith & Thakurta 2022, arXiv:2206.07716), zCDP by
        the sum of rho (Whitehouse et al. 2023, arXiv:2203.05481), pure ones by the sum of epsilon,
        slack by its sum. The group of one kind is thus one interactive mechanism with the cap as
        its loss, and the groups run concurrently (Vadhan & Zhang 2023, arXiv:2207.08335; Haney et
        al. 2023, arXiv:2309.05901), so the whole loses at most the composition of the caps, which
        fits the limit (checked at opening).
        A rule that compared the *converted total* with an (epsilon, delta) limit after each charge
        would not be one: the mix of kinds could then be steered by what was released.
        Ranges: the unit is a unit-period (u, p), and an adversary writes the stream: having seen
        what was released it chooses the next rows, and at some point p itself, by rows of (u, p)
        that only one of two neighbours gets. Let h be what was released before. Up to h both have
        the same law, so H_eps of all releases is the expectation over h of H_eps of what follows.
        Mechanisms whose range does not hold p follow one law on both. *Given the past*: if charge c
        loses at most L_c after every h, what follows loses the composition of the L_c whose range
        holds p, whichever p was chosen: disjoint ranges cost their maximum. A pure mechanism does,
        as its bound holds on every transcript. *Otherwise* what c may lose after h depends on h: a
        mechanism that with probability delta says "now I hide nothing" is (0, delta)-DP, and of k
        such mechanisms with disjoint ranges the adversary picks one that said so, with probability
        1 - (1 - delta)^k (Henzinger, Safavi & Vadhan 2026, arXiv:2411.03299v4: parallel composition
        fails for approximate privacy and adaptive updates). If c is (eps_c, delta_c)-DP then after
        h it is (eps_c, d_c(h))-DP, where the expectation of d_c(h) is at most delta_c for every
        choice of when to stop: an adversary against c alone plays all else itself. So what follows
        is (sum of eps_c, sum of d_c(h)) over the c whose range holds p, and everything (max over p
        of sum of eps_c, sum over all c of delta_c): epsilons count in their range, deltas
        everywhere. Of mu, rho and distances no such split is proved: they count everywhere, as if
        all ranges held p, which is sequential composition.
        Without a period a unit may have rows in every range and ranges gain nothing, so they are
        then refused. The caller must enforce the range, and answers for `given_past`.
    Memory: one entry per charge key and per distinct range end; the journal holds the charges.
    Numerics: integers (multiples of 10^-60, charges rounded up, caps down).

    >>> from streamveil.core.accounting.guarantee import Zcdp
    >>> ledger = Ledger.open(None, Budget(rho=1), Neighbours("user"))
    >>> ledger.charge("daily visits", Zcdp(0.75))
    >>> ledger.charge("weekly visits", Zcdp(0.5))
    Traceback (most recent call last):
    ...
    streamveil.errors.BudgetError: charging 'weekly visits' would overspend the ledger 'in memory'.
      asked for  rho=0.5 zCDP
      left       rho=0.25 zCDP   of rho=1, unit user
      to fix     use more noise, a shorter horizon, fewer mechanisms, or a larger limit
    """

    def __init__(
        self, journal: Journal | ServerJournal, limit: Budget, protects: Neighbours
    ) -> None:
        self.limit = limit
        self.protects = protects
        self.caps: Loss | None = None  # None: fixed by the first charge
        self._journal = journal
        self._totals = PeriodTotals()
        self._charges: list[Charge] = []
        self._by_key: dict[str, Charge] = {}

    def __reduce_ex__(self, _: object) -> NoReturn:
        """Copies by copy and pickle are refused: each would take charges up to the limit."""
        raise PlanError(
            "a ledger is not copied: each copy would take charges up to the whole limit.\n"
            "  to fix  pass the ledger itself on; processes share one by the path of its file"
        )

    @classmethod
    def open(
        cls, path: Where | None, limit: Budget, protects: Neighbours, *, caps: Loss | None = None
    ) -> Ledger:
        """Opens or creates a ledger.

        Args:
            path: a file, or `postgresql://user@host/database#name` for a ledger of that database;
                None keeps it in this process's memory.
            limit: the most that all charges together may lose.
            protects: the privacy unit, with its period if it has one.
            caps: how an (epsilon, delta) limit is shared between kinds of loss, for jobs of
                different kinds; by default the first charge decides.

        Raises:
            PlanError: an argument is of another kind, or the caps do not fit the limit.
            StoreError: the ledger has another limit or unit, was altered, or cannot be written.
        """
        require_with("limit", limit, "quoted_delta", "a Budget such as Budget(epsilon=6)")
        require_with("protects", protects, "covers", "a Neighbours such as Neighbours('user_id')")
        if caps is None:
            caps = accounts.own_caps(limit)
        else:
            require_with("caps", caps, "pure_total", "a Loss such as Gdp(0.5)")
            if not (one := accounts.joined(caps)).fits(limit):
                raise PlanError(f"caps of {one} do not fit the limit {limit}")
        ledger = cls(journal_at(path), limit, protects)
        with ledger._journal.locked():
            ledger._catch_up()
        if ledger._journal.head == START:
            ledger._journal.make()
        with ledger._journal.locked():
            ledger._catch_up()
            if ledger._journal.head == START:
                ledger._journal.append([ledger._header(caps)])
                ledger.caps = caps
        return ledger

    @classmethod
    def load(cls, path: Where) -> Ledger:
        """Opens an existing ledger with the limit and the unit it was created with.

        Args:
            path: a file, or the address of a ledger in a database, as for `open`.

        Raises:
            StoreError: there is no ledger, or it was altered.
        """
        journal = journal_at(path)
        if not journal.exists():
            where = f"'{journal.name}' in its database" if on_server(path) else f"at {path}"
            raise StoreError(
                f"there is no ledger {where}.\n"
                "  to fix  correct the name; `streamveil ledger create` makes one that jobs share;"
                " a state that lost its own is restored from a backup"
            )
        with closing(journal):
            records = journal.unread()
        if not records:
            raise StoreError(f"{path} is not a ledger.\n  to fix  name the ledger's own file")
        header = records[0]
        limit = Budget.from_dict(header["limit"])
        return cls.open(path, limit, Neighbours.from_dict(header["protects"]))

    def charge(
        self,
        name: str,
        loss: Loss | Guarantee,
        *,
        range: Periods | None = None,
        key: str | None = None,
        about: Record | None = None,
    ) -> None:
        """Takes one charge, durably, before anything is drawn.

        Args:
            name: the charge's name in the ledger.
            loss: the loss of the mechanism. Give a `Guarantee` with `given_past` if its loss holds
                given any past; a bare loss is not assumed to.
            range: the unit-periods [first, end) whose rows it reads, counted from 1970 UTC; None:
                all rows.
            key: the same key with the same content is charged once.
            about: describes the mechanisms, for `streamveil ledger export`.

        Raises:
            BudgetError: it would pass the limit. Nothing is charged.
            PlanError: the guarantee is about another privacy unit.
            PlanError: the range is empty or the unit has no period, or the key had other content.
            StoreError: the ledger was altered, or cannot be written.
        """
        charge = self.make_charge(name, loss, range=range, key=key)
        self.charge_all([replace(charge, about=about)])

    def require(self, name: str, loss: Loss | Guarantee) -> None:
        """Raises the error that `charge` would raise now; takes nothing."""
        charge = self.make_charge(name, loss)
        with self._journal.locked():
            self._catch_up()
            caps = self._caps(charge)
            self._require_room([charge], [charge.cost(caps)], caps)

    def make_charge(
        self,
        name: str,
        loss: Loss | Guarantee,
        *,
        range: Periods | None = None,
        key: str | None = None,
    ) -> Charge:
        """A charge for `charge_all`; a guarantee must protect what the ledger protects."""
        if isinstance(loss, Loss):
            return Charge(name, loss, range, key)
        require_with("loss", loss, "protects", "a Loss such as Gdp(0.5), or a Guarantee")
        ours, theirs = self.protects, loss.protects
        if not ours.covers(theirs):
            raise PlanError(
                f"the ledger protects {ours.phrase}; the guarantee is about {theirs.phrase}.\n"
                "  to fix  give a ledger made for this privacy unit and period"
            )
        if loss.periods != 1:
            raise PlanError("charge the guarantee of one unit-period")
        about, given_past = None, loss.given_past
        return Charge(name, loss.loss, range, key, loss.separate, loss.horizon, about, given_past)

    def charge_all(self, charges: Sequence[Charge]) -> None:
        """Takes several charges at once: all of them or none.

        A power failure may leave only the first ones: nothing was drawn for them, and charging all
        again takes the rest.
        """
        with self._journal.locked():
            self._catch_up()
            fresh: list[Charge] = []
            known = ChainMap({}, self._by_key)
            for charge in charges:
                if not self._is_known(charge, known):
                    fresh.append(charge)
                    known |= {charge.key: charge} if charge.key is not None else {}
            if not fresh:
                return
            caps = self._caps(fresh[0])
            costs = [charge.cost(caps) for charge in fresh]
            self._require_room(fresh, costs, caps)
            records = [charge.to_dict() for charge in fresh]
            if self.caps is None:
                records[0]["caps"] = caps.to_dict()
            self._journal.append(records)
            self.caps = caps
            for charge, cost in zip(fresh, costs, strict=True):
                self._book(charge, cost)

    def require_charged(self, key: str) -> None:
        """Refuses a job whose charge is not here: nothing would limit its loss."""
        self._refresh()
        if key not in self._by_key:
            raise StoreError(
                f"the ledger '{self.name}' does not hold this job's charge.\n"
                "  to fix  name the ledger that the job was created with, if there was one; or "
                "restore ledger and state from a backup of one moment"
            )

    def spent(self) -> Loss:
        """The loss of all charges for one unit, or for the unit-period that lost most.

        It is exact for charges without a range; with ranges it is the most, kind by kind. If
        charges were chosen after seeing releases, only the limit holds, not this.
        """
        return _lost(self.entries(), 1)

    def so_far(self) -> list[Loss]:
        """The value of `spent` after each charge, oldest first."""
        entries = self.entries()
        return [_lost(entries[: place + 1], 1) for place, _ in enumerate(entries)]

    def left(self, range: Periods | None = None) -> Loss:
        """The most that a charge could still take; nothing before the first charge fixes the caps.

        Args:
            range: the unit-periods [first, end) of that charge; None: all.
        """
        self._refresh()
        if self.caps is None:
            return NOTHING
        return self._left(self.caps, self._totals, range)

    def entries(self) -> list[Charge]:
        """All charges, oldest first."""
        self._refresh()
        return list(self._charges)

    def verify(self, head: str | None = None) -> str:
        """Reads the whole journal again; returns the hash that vouches for all records.

        Args:
            head: a hash that `verify` returned earlier. Only that shows whether whole records were
                cut off the end.

        Raises:
            PlanError: the head is no hash.
            StoreError: a record was altered, dropped or torn.
        """
        if head is not None and not (len(head) == len(START) and {*head} <= {*"0123456789abcdef"}):
            raise PlanError(
                f"head='{head}' is no hash of a ledger.\n"
                f"  to fix  give the {len(START)} digits that `streamveil ledger verify` printed"
            )
        hashes = self._journal.reread()
        if not hashes or (head is not None and head not in hashes):
            raise StoreError(
                f"the ledger '{self.name}' has lost records that were in it.\n"
                "  to fix  restore it from a copy that has them; nothing more may be charged before"
            )
        return hashes[-1]

    def convert(self, to: str) -> Guarantee:
        """The most that one unit may lose in a longer time, by all charges.

        Args:
            to: 'user-week', 'user-month' or 'user-year'.

        Raises:
            PlanError: it is none of these, or the unit has no period.

        Algorithm: a charge with `separate` mechanisms counts once for each of the unit's periods in
            its range; any other is raised to the group of those periods (`Guarantee.over`). The
            worst placing of the span is taken, kind by kind. If a mechanism that several of the
            periods share has slack, all charges of the worst period are raised together
            (`Loss.group`).
        """
        span, period = days_of(to), self.protects.period
        if period is None:
            raise PlanError("the ledger already covers the whole stream of a unit")
        periods, charges = most_periods(span, self.protects), self.entries()
        shared = (one for one in charges if not one.separate and one.held(periods) > 1)
        if any(charge.loss.has_slack for charge in shared):
            loss = _lost(charges, 1).group(periods)
        else:
            loss = _lost(charges, periods)
        return Guarantee(self.protects, loss, periods=periods)

    @property
    def head(self) -> str:
        """The hash that vouches for all records read so far."""
        return self._journal.head

    def close(self) -> None:
        """Gives the file back."""
        self._journal.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The name of the ledger in messages."""
        return self._journal.name

    def _header(self, caps: Loss | None) -> Record:
        header: Record = {
            "ledger": FORMAT,
            "limit": self.limit.to_dict(),
            "protects": self.protects.to_dict(),
        }
        return header if caps is None else header | {"caps": caps.to_dict()}

    def _refresh(self) -> None:
        with self._journal.locked():
            self._catch_up()

    def _catch_up(self) -> None:
        for record in self._journal.unread():
            self._replay(record)

    def _replay(self, record: Record) -> None:
        """Repeats a record from the journal in memory."""
        if "caps" in record:
            self.caps = Loss.from_dict(record["caps"])
        if "ledger" in record:
            self._require_same(record)
            return
        if self.caps is None:
            raise StoreError(
                f"the ledger '{self.name}' has a charge before its caps, which no version writes.\n"
                "  to fix  restore it from a copy"
            )
        charge = Charge.from_dict(record)
        self._book(charge, charge.cost(self.caps))

    def _book(self, charge: Charge, cost: Cost) -> None:
        self._totals.book(cost, charge.range)
        self._charges.append(charge)
        if charge.key is not None:
            self._by_key[charge.key] = charge

    def _require_same(self, header: Record) -> None:
        if header["ledger"] != FORMAT:
            raise StoreError(
                f"the ledger '{self.name}' has format {header['ledger']}, not {FORMAT}.\n"
                "  to fix  use the streamveil version that wrote it, or a newer one"
            )
        limit, protects = header["limit"], header["protects"]
        if limit != self.limit.to_dict() or protects != self.protects.to_dict():
            raise StoreError(
                f"the ledger '{self.name}' was created with the limit {Budget.from_dict(limit)}"
                f" for {Neighbours.from_dict(protects).phrase}.\n"
                "  to fix  open it with these, or start another ledger for other data"
            )

    def _is_known(self, charge: Charge, known: Mapping[str, Charge]) -> bool:
        if charge.range is not None and self.protects.period is None:
            raise PlanError(
                "a range needs a privacy unit with a period: a whole-stream unit may have rows in"
                " every range"
            )
        if charge.key is None or charge.key not in known:
            return False
        if known[charge.key] != charge:
            raise PlanError(f"the key '{charge.key}' was charged before with another content")
        return True

    def _caps(self, first: Charge) -> Loss:
        """The caps of the ledger, or those that a first charge fixes.

        Caps made for many pure losses may not fit the limit as one loss, but one charge in another
        period could take all of them.
        """
        caps = self.caps or accounts.caps_for(self.limit, first.loss)
        if self.caps is None and first.range and not accounts.joined(caps).fits(self.limit):
            caps = accounts.caps_for(self.limit, accounts.joined(first.loss))
        return caps

    def _left(self, caps: Loss, totals: PeriodTotals, periods: Periods | None) -> Loss:
        limit, worst = accounts.limits(caps), totals.worst(periods)
        return accounts.as_loss(tuple(max(0, a - b) for a, b in zip(limit, worst, strict=True)))

    def _require_room(self, charges: list[Charge], costs: list[Cost], caps: Loss) -> None:
        limit = accounts.limits(caps)
        totals = self._totals if len(charges) == 1 else self._totals.copy()
        for charge, cost in zip(charges, costs, strict=True):
            if not totals.has_room(cost, charge.range, limit):
                raise self._refusal(
                    charge, _way_out(cost, limit), self._left(caps, totals, charge.range)
                )
            if totals is not self._totals:
                totals.book(cost, charge.range)

    def _refusal(self, charge: Charge, way_out: str, left: Loss) -> BudgetError:
        return BudgetError(
            f"charging '{charge.name}' would overspend the ledger '{self.name}'.\n"
            f"  asked for  {_in_epsilon(charge.loss, self.limit)}\n"
            f"  left       {_in_epsilon(left, self.limit)}   of {self.limit}, unit"
            f" {self.protects.unit}\n"
            f"  to fix     {way_out}",
            asked=charge.loss,
            left=left,
        )


def _in_epsilon(loss: Loss, limit: Budget) -> str:
    """A loss in its own measure, and in epsilon if the limit is; tables as they count."""
    if loss.tables:
        return f"{loss}, which counts as {loss.stated()}"
    if limit.epsilon is None or not (loss.gaussian or loss.zcdp):
        return str(loss)
    epsilon = loss.epsilon(limit.quoted_delta)
    told = f"epsilon={rounded_up(epsilon)} at delta={float(limit.quoted_delta):.3g}"
    return f"{loss}, by itself {told}" if isfinite(epsilon) else str(loss)


def on_server(where: object) -> bool:
    """Whether a ledger is named by the address of a server.

    >>> on_server("postgresql://writer@db/stats#clicks"), on_server("clicks.ledger")
    (True, False)
    """
    return isinstance(where, str) and where.startswith(SCHEMES)


def journal_at(where: Where | None) -> Journal | ServerJournal:
    """The journal of a file, of a server, or of this process's memory."""
    if isinstance(where, str) and on_server(where):
        from streamveil.accounts.server_journal import ServerJournal

        return ServerJournal(where)
    if where is not None:
        require_path("path", where, "a file, or the address of a server")
    return Journal(None if where is None else Path(where))


def _way_out(asked: Cost, limit: Amounts) -> str:
    kinds = zip(accounts.KINDS, *asked, limit, strict=True)
    missing = [  # more noise does not lower delta and distance
        kind for kind, ranged, all_over, cap in kinds
        if (ranged or all_over) and (not cap or (kind in SLACK and ranged + all_over > cap))
    ]  # fmt: skip
    if missing:
        return (
            f"the ledger has no cap for {', '.join(missing)} loss of this size; a new one takes"
            " caps for every kind its jobs use (Ledger.open), or a limit in rho and delta"
        )
    return "use more noise, a shorter horizon, fewer mechanisms, or a larger limit"


def _lost(charges: Sequence[Charge], periods: int) -> Loss:
    """The loss of charges for a unit present in `periods` consecutive periods."""
    totals, whole = PeriodTotals(), NOTHING
    for charge in charges:
        times = charge.held(periods)
        loss = charge.loss.times(times) if charge.separate else charge.loss.group(times)
        if charge.range is None:
            whole += loss
            continue
        # a span [s, s + periods) meets [first, end) exactly when s is in (first - periods, end)
        met = charge.range[0] - periods + 1, charge.range[1]
        ranged, everywhere = accounts.split(loss, given_past=charge.given_past)
        totals.add(accounts.amounts(ranged.stated()), met)
        whole += everywhere
    return whole + accounts.as_loss(totals.worst())
