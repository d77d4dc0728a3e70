"""The memory that a query will take, and the number of units that fit below a limit."""

from __future__ import annotations

from dataclasses import dataclass

from streamveil.engines import WORK

PROGRAM = 250 << 20  # bytes of the running program with its libraries, about
UNLIMITED_WORK = 300 << 20  # as `WORK` where memory has no limit: micro-batches are larger
GROUPS_ENTERED = 4  # groups of a unit, if the query does not say


@dataclass(frozen=True)
class Limit:
    """The memory that a user has, in bytes, and the groups and privacy units they expect."""

    memory: int | None = None
    groups: int | None = None
    units: int | None = None


@dataclass(frozen=True)
class MemorySizes:
    """Bytes of one privacy unit, of each group it is in, and of one shown group.

    A unit in at most `inside` groups takes no bytes for them.
    """

    unit: int
    entry: int
    group: int
    inside: int = 0

    @property
    def whole_unit(self) -> int:
        """Bytes of a unit with all its groups."""
        return self.unit + (self.inside < GROUPS_ENTERED) * GROUPS_ENTERED * self.entry

    def groups_in(self, memory: int) -> int:
        """The number of groups that fit next to the program, if units take nothing."""
        return state_in(memory) // (2 * self.group)  # their tables double


def state_in(memory: int) -> int:
    """The bytes that a limit leaves for units and groups."""
    return max(0, memory - PROGRAM - WORK)


def unit_rows(sizes: MemorySizes, limit: Limit) -> list[tuple[str, str]]:
    """The memory of the expected units, and the fate of those that do not fit."""
    groups = 2 * sizes.group * (limit.groups or 0)  # their tables double
    rows = []
    if limit.units is not None:
        state = sizes.whole_unit * limit.units
        whole = mebi(PROGRAM + UNLIMITED_WORK + groups + state)
        text = f"about {mebi(state)}; without a limit {whole} with the program"
        rows.append((f"{limit.units:,} units", text))
    if limit.memory is not None:
        left = max(0, state_in(limit.memory) - groups)
        fit = left // sizes.whole_unit
        text = f"about {fit:,}; more are swept from disk by `run --memory`, with the same releases"
        rows.append((f"units in {mebi(limit.memory)}", text))
        if limit.units is not None and limit.units > fit:
            share = 1 - fit / limit.units
            text = f"about {share:.0%} of their table is read and written for each micro-batch"
            rows.append((f"{limit.units:,} units do not fit", text))
    return rows


def mebi(size: float) -> str:
    """A size as text."""
    return f"{size / 2**20:,.0f} MiB" if size < 10 * 2**30 else f"{size / 2**30:,.1f} GiB"
