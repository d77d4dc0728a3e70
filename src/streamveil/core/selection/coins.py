"""Keys published by coins on their numbers of units: the table, and the selection that runs it.

The selection needs this from the operator that runs it:
- a privacy unit counts at most once per key while the key is unopened (distinct units), and for at
  most `keys_per_unit` keys in all, a function of the unit's own rows and of what was released; a
  unit's place is not given back when the key opens;
- a key opens once, is public from then on, and is released at every later trigger.

`SelectionTable` (design V): needs no counter before a key opens, only its number of units S.
- when a key is first seen:  z = shift(noise.at("selection-shift", window), ids)
- when its S has changed before trigger t:
      at = next_opening(noise.at("selection-wait", window), ids, S, z, t)
  and the key opens at trigger `at` unless S changes again before it (then ask again; the new answer
  replaces the old one). NEVER means it does not open without more units. A key that nobody touches
  costs nothing. `ids` are the keys' 128-bit keyed fingerprints; draws are addressed by key and S,
  so a replay, another engine or another order of keys gives the same openings.
- silent draws: z = 0 and a key opens when S >= threshold.
`table_design.design_selection` chooses the table from public numbers only and certifies its delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streamveil.compiled import AHEAD, njit, prefetch
from streamveil.core.accounting import Number, exact, float_below, take_numbers
from streamveil.core.accounting.coin_table import (
    COIN,
    NEVER,
    WORDS,
    Coins,
    CoinTable,
    context,
    waits,
)
from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.noise import Address, Draws
from streamveil.core.selection import Counted, Held, Names, PerKey, Stepped
from streamveil.core.sensitivity import Bounds
from streamveil.errors import require_positive
from streamveil.types import Array, Float64, Int32, Int64, UInt64

FINE, COARSE = 100, 40  # lattice steps per shift_epsilon: all sound, more are tighter


@dataclass(frozen=True, kw_only=True)
class SelectionTable:
    """A key opens by a coin whose chance grows with the number of its units (design V).

    Algorithm: AboveThreshold on integers. A key with S units has the gap threshold + Z - S, with
        its own geometric Z, P(Z = j) = (1 - q) q^j, q = e^-shift_epsilon, and opens at each trigger
        with chance pi(gap), fresh coins. pi is a table: 1 up to gap 0, falling, 0 from threshold -
        1.
    Protects: all rows of one unit; it adds exactly 1 to S of at most `keys_per_unit` keys in all.
    Guarantee: `delta_at(epsilon, mu)` together with all Gaussian releases of total loss mu.
    Proof: one key; s is the first test after the unit's row. Tests before s have the same law with
        and without it, so let everything below be conditioned on the past: Z then has a law
        p'(z) proportional to p(z) G(z), where G, the chance of not opening before, grows with z.
        *Without against with* (gamma >= 1). With Z + 1 and the unit, all gaps from s on are what
        they are with Z and without it. So P0(t | z) = P1(t | z + 1) for every t >= s and for
        "never", and for any set of these, P0 - gamma P1 <= sum of [p'(z - 1) - gamma p'(z)]+ over
        z >= 1 <= [1 - gamma q]+, as p'(z) >= q p'(z - 1). This needs the unit to add exactly 1.
        *With against without* (gamma >= 1). For each z, the bound of `worst_openings`, which no
        path of the others' units can exceed; by joint convexity it holds for the mixture over z.
        Curves at gamma < 1 follow from the reverse direction: h(gamma) = 1 - gamma + gamma
        h'(1/gamma).
        *A key that only this unit has*: S <= 1, the gap is at least threshold - 1, pi = 0. It never
        opens in either world: unknown keys cost nothing (beta = 0).
        *A job*: all that differs between the worlds are the tests of at most keys_per_unit keys,
        entered by the unit one by one at times that depend on releases, and the Gaussian releases.
        Conditioned on its past, each entered key is an interactive mechanism with the curves above,
        whatever its past was; the other keys are the same in both worlds, so an adversary can play
        them. Hence the job is a concurrent composition of keys_per_unit such mechanisms and the
        Gaussian one (Vadhan & Zhang 2023, arXiv:2207.08335; Lyu 2022, arXiv:2207.10635; adaptively
        opened: Haney et al. 2023, arXiv:2309.05901), and loses at most what the product of the
        dominating pairs does, in each direction (`convert`).
    Error: see `compiler.table_design.opening_chance`.
    Memory: one Z and one opening time per unopened key.
    Numerics: coins are integers over 2^64; what 128-bit draws leave undecided is charged, see
        `CoinTable`.

    >>> from streamveil.compiler.table_design import TableShape
    >>> numbers = (Fraction(text) for text in ("0.55", "0.1172", "1", "1e-10"))
    >>> coins = TableShape(100, *numbers).coins()
    >>> selection = SelectionTable(
    ...     horizon=100, keys_per_unit=3, shift_epsilon=Fraction("0.765"), coins=coins
    ... )
    >>> selection.coins.threshold, selection.delta_at(6, 0.65) < 1e-9
    (27, True)
    """

    horizon: int  # triggers at which one key is tested
    keys_per_unit: int
    shift_epsilon: Fraction
    coins: Coins

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(
            horizon=self.horizon,
            keys_per_unit=self.keys_per_unit,
            shift_epsilon=self.shift_epsilon,
        )

    @property
    def threshold(self) -> int:
        """Units at which a key with Z = 0 opens surely."""
        return self.coins.threshold

    def certificate(self, epsilon: Number, places: int = FINE) -> CoinTable:
        """The record of the table's losses, for a job that is stated at an epsilon."""
        return CoinTable(
            horizon=self.horizon,
            keys_per_unit=self.keys_per_unit,
            shift_epsilon=self.shift_epsilon,
            coins=self.coins.coins,
            places=places,
            epsilon=exact("epsilon", epsilon),
        )

    def loss(self, epsilon: Number, mu: Number = 0, places: int = FINE) -> Loss:
        """The loss of selection and mu-GDP releases, for a job that is stated at an epsilon."""
        return Gdp(mu) + Loss(tables=((self.certificate(epsilon, places), 1),))

    def delta_at(self, epsilon: Number, mu: Number = 0, places: int = FINE) -> float:
        """A certified delta for selection and mu-GDP releases together."""
        at = float_below(exact("epsilon", epsilon))
        return self.loss(epsilon, mu, places).delta_at(at)

    def shift(self, draws: Draws, ids: Names) -> PerKey:
        """Z of each key, drawn once when it is first seen."""
        count = len(ids)
        if draws.silent:
            return np.zeros(count, np.int64)
        which, most = np.zeros(count, np.int64), int(NEVER) - 2
        return waits(draws.words_for(ids, WORDS), *self._shift_rate, which, most)

    @cached_property
    def _shift_rate(self) -> tuple[Float64[Array, " 1"], list[Any]]:
        """The rate of the geometric law of Z, as a float and exactly."""
        rate = context().mpf(self.shift_epsilon.numerator) / self.shift_epsilon.denominator
        return np.array([float(self.shift_epsilon)]), [rate]

    def next_opening(
        self, draws: Draws, ids: Names, units: PerKey, shift: PerKey, step: int
    ) -> PerKey:
        """The trigger >= step at which each key opens if its units do not change; NEVER if none."""
        gap = self.threshold + shift - units
        if draws.silent:
            return np.where(gap <= 0, np.int64(step), NEVER)
        own = np.ascontiguousarray(ids, np.uint64).copy()
        own[:, 0] ^= units.astype(np.uint64)  # one draw per key and count
        return self.next_opening_from(draws.words_for(own, WORDS), gap, step)

    def next_opening_from(
        self, words: UInt64[Array, "keys words"], gap: PerKey, step: int
    ) -> PerKey:
        """As `next_opening`, from words: step + floor(-ln U / -ln(1 - pi(gap)))."""
        found = waits(words, *self._rates, gap, self.horizon - step)
        found[found != NEVER] += step
        return found

    @cached_property
    def _rates(self) -> tuple[Float64[Array, " gaps"], list[Any]]:
        mp = context()
        inner = [-mp.log1p(-mp.mpf(coin) / COIN) for coin in self.coins.coins]
        rates = [mp.inf, *inner, mp.mpf(0)]
        return np.array([float(rate) for rate in rates]), rates


# ---- compiled loops


@njit(cache=True)
def take_units(
    pending: Int64[Array, " keys"],
    held: tuple[Array, Array, Array],
    trigger: int,
    least: int,
    undrawn: Int32[Array, " keys"],
    able: Int32[Array, " keys"],
) -> tuple[int, int]:
    """Adds the pending units of keys that are not shown to their totals, and clears them.

    `held`: units, shifts and opening times of all keys. Changed keys with at least `least` units
    are listed in `undrawn` if they have no shift, and in `able` if they have at least `least` more
    units than their shift. Returns the lengths of both lists.
    """
    units, shift, opens = held
    new = known = 0
    for row in range(len(pending)):
        more = pending[row]
        if more == 0:
            continue
        pending[row] = 0
        if opens[row] < trigger:
            continue
        units[row] += more
        spare = units[row] - least
        if spare < 0:
            continue
        if shift[row] < 0:
            undrawn[new] = row
            new += 1
        elif spare >= shift[row]:
            able[known] = row
            known += 1
    return new, known


@njit(cache=True)
def take_asked(
    names: UInt64[Array, " words"],
    held: tuple[Array, Array],
    rows: Int32[Array, " some"],
    ids: UInt64[Array, "some 2"],
    counts: Int64[Array, "2 some"],
) -> None:
    """Names, units and shifts of some keys; `held` has the units and shifts of all."""
    units, shift = held
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            ahead = np.int64(rows[i + AHEAD])
            prefetch(names, 2 * ahead)
            prefetch(units, ahead)
            prefetch(shift, ahead)
        row = np.int64(rows[i])
        ids[i, 0], ids[i, 1] = names[2 * row], names[2 * row + 1]
        counts[0, i], counts[1, i] = units[row], shift[row]


@njit(cache=True)
def put_times(
    opens: Int32[Array, " keys"],
    rows: Int32[Array, " some"],
    times: Int64[Array, " some"],
    far: int,
    soon: Int64[Array, " some"],
) -> int:
    """Writes opening times, at most `far`; lists the keys that had none before."""
    found = 0
    for i in range(len(rows)):
        row, time = rows[i], min(times[i], far)
        if time < far and opens[row] == far:
            soon[found] = row
            found += 1
        opens[row] = time
    return found


# ---- the coin selection

FAR = np.int32(2**31 - 1)  # later than any trigger, more than any number of units
UNDRAWN = np.int32(-1)
TESTED = 2  # units, less the shift and the offset, from which on a key may open


@dataclass(frozen=True, kw_only=True)
class CoinSelection:
    """Opens a key by coins on its number of distinct units (design V).

    Algorithm, Proof: `SelectionTable`. What it asks of the operator: a unit counts at most once per
        key (`COUNTED` of `Passed.first`) and for at most `keys_per_unit` keys that are not
        published. Its places are never given back (`Bounds.slots`), and a published key stays so.
        A unit's rows in a key that has no place for it are no part of S, and so of no test. They
        are part of the key's exact totals, which nobody sees before the key is published. From then
        on the Gaussian counters hide them, and their L2 bound holds for all accepted rows on every
        path (`Bounds`). So the joint bound of tests and Gaussian releases is as it was: the tests
        of `keys_per_unit` keys, and one Gaussian mechanism of loss mu over all keys.
        With an offset m the coins see max(S - m, 0): to others it is as if the unit had come when
        the key's other units reached m, and from then on it adds exactly 1.
    Guarantee: `loss`, which a job states at `epsilon` together with its Gaussian releases.
    Memory: 12 bytes per key. A key's shift is drawn when it first matters: it has an address.
    """

    bounds: Bounds  # its `slots` are the most keys of a unit
    horizon: int  # triggers of a window
    coins: Coins
    shift_epsilon: Fraction
    epsilon: Fraction  # at which the guarantee of the whole job is stated
    offset: int = 0  # units that do not count: keys need that many more
    half: float = 0.0  # units beyond the offset with which half of all keys are published
    places: int = field(default=FINE, compare=False)  # lattice steps per shift, for `loss`

    def __post_init__(self) -> None:
        if self.bounds.slots is None or self.offset < 0:
            raise ValueError("coins count a unit in some slots, from its first on or later")

    @cached_property
    def table(self) -> SelectionTable:
        """The coins of one key, and the loss of those of all keys of one unit."""
        assert self.bounds.slots is not None  # noqa: S101  (a type narrowing, never data)
        return SelectionTable(
            horizon=self.horizon,
            keys_per_unit=self.bounds.slots,
            shift_epsilon=self.shift_epsilon,
            coins=self.coins,
        )

    @property
    def loss(self) -> Loss:
        """The table's certified losses.

        Every lattice gives a sound bound; on that of the design the job is inside the budget.
        """
        return self.table.loss(self.epsilon, 0, self.places)

    def threshold(self, trigger: int) -> float:
        """Units with which a key is published surely at any trigger when its shift is 0."""
        return float(self.table.threshold + self.offset)

    @property
    def usual(self) -> float:
        """Units with which half of all keys are published, including those that do not count."""
        return self.half + self.offset

    once: ClassVar[bool] = True
    restarts: ClassVar[bool] = False

    def init(self, trigger: int) -> Held:
        """See `Selection.init`."""
        none = np.zeros(0, np.int32)
        return {"units": none, "shift": none, "opens": none, "due": np.zeros(0, np.int64)}

    def step(self, state: Held, units: PerKey, names: Names, trigger: int, at: Address) -> Stepped:
        """See `Selection.step`, in place. A key whose units did not change keeps its opening time.

        Only keys with a coin that could be heads are visited: no coin can with a gap of threshold -
        1 or more, which every key with one unit has.
        """
        if not len(units):
            return state, np.zeros(0, np.int64)
        state = _with_room(state, len(units))
        opens, shift, least = state["opens"], state["shift"], self.offset + TESTED
        undrawn, able = np.empty((2, len(units)), np.int32)
        held = state["units"], shift, opens
        new, known = take_units(units, held, trigger, least, undrawn, able)
        rows, fresh = able[:known], undrawn[:new]
        if new:
            draws = at.noise.at("group-by/shift", at.job, at.window)
            ids, (counted, _) = _asked(names, held[:2], fresh)
            drawn = np.minimum(self.table.shift(draws, ids), FAR)
            shift[fresh] = drawn
            rows = np.append(rows, fresh[counted - drawn >= least])
        due = np.append(state["due"], self._ask(state, rows, names, trigger, at))
        when = opens[due]
        state["due"] = due[(when > trigger) & (when < FAR)]
        return state, np.sort(due[when <= trigger])

    def _ask(
        self, state: Held, rows: Int32[Array, " changed"], names: Names, trigger: int, at: Address
    ) -> Int64[Array, " some"]:
        """Gives keys that may open their times anew; returns those that had none before."""
        if not len(rows):
            return np.zeros(0, np.int64)
        draws, soon = at.noise.at("group-by/wait", at.job, at.window), np.empty(len(rows), np.int64)
        ids, (units, shift) = _asked(names, (state["units"], state["shift"]), rows)
        found = self.table.next_opening(draws, ids, units - self.offset, shift, trigger)
        return soon[: put_times(state["opens"], rows, found, int(FAR), soon)]


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """The settings of coins that discover groups, beside bounds and triggers."""

    slots: int  # hidden groups in which a unit is counted
    coins: Coins
    shift_epsilon: Fraction
    epsilon: Fraction
    offset: int = 0
    half: float = 0.0
    places: int = field(default=FINE, compare=False)

    def over(self, counted: Counted, bounds: Bounds, triggers: int | None) -> CoinSelection:
        """See `core.mechanism.Discovery`."""
        if triggers is None:
            raise ValueError("coins need to know the number of triggers")
        own = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "slots"}
        return CoinSelection(bounds=bounds, horizon=triggers, **own)


def withdrawn(state: Held, rows: Int64[Array, " some"], trigger: int) -> Held:
    """The state without coins for keys that were published at a trigger by other means."""
    state["opens"][rows] = trigger
    due = state["due"]
    return state | {"due": due[state["opens"][due] > trigger]}


def _asked(
    names: Names, held: tuple[Array, Array], rows: Int32[Array, " some"]
) -> tuple[UInt64[Array, "some 2"], Int64[Array, "2 some"]]:
    """The names, and the units and shifts, of some keys."""
    ids, counts = np.empty((len(rows), 2), np.uint64), np.empty((2, len(rows)), np.int64)
    take_asked(names.reshape(-1), held, rows, ids, counts)
    return ids, counts


def _with_room(state: Held, keys: int) -> Held:
    """The state with room for `keys` keys; new ones have no units and no shift, and do not open."""
    room = len(state["units"])
    if room >= keys:
        return state
    more = keys + keys // 4 - room
    blank = {"units": 0, "shift": UNDRAWN, "opens": FAR}
    wider = {n: np.append(state[n], np.full(more, v, np.int32)) for n, v in blank.items()}
    return state | wider
