"""Names of windows: the time at which one begins, fit for a folder, a column or a command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from streamveil.calendars.cells import Cells, clock_of, instant_of
from streamveil.calendars.zones import DAY

SECOND = 1_000_000


def begins_days(cells: Cells) -> bool:
    """Whether every cell begins with a day of its zone."""
    return cells.origin_us % DAY == 0 and (bool(cells.months) or cells.length_us % DAY == 0)


def name_of(us: int, zone: str = "", *, days: bool = False) -> str:
    """An instant on the clocks of a zone; with `days` its date alone.

    Names are in the order of time, but where clocks are put back. No two instants have one name,
    no two beginnings of days of a zone have one date.

    >>> name_of(1_767_225_600_000_000, days=True), name_of(1_767_225_600_000_000)
    ('2026-01-01', '2026-01-01T0000Z')
    >>> name_of(1_792_886_400_000_000, "Europe/Berlin")
    '2026-10-25T0200+0200'
    >>> name_of(1_792_886_400_000_000 + 3_600_000_000, "Europe/Berlin")
    '2026-10-25T0200+0100'
    """
    clock = clock_of(us, zone)
    try:
        shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock)
    except OverflowError:  # a year that Python has no name for
        return str(us)
    if days:
        return f"{shown:%Y-%m-%d}"
    time = f"{shown:%Y-%m-%dT%H%M}"
    if clock % (60 * SECOND):
        time += f"{shown:%S}" + (f".{shown:%f}" if clock % SECOND else "")
    apart = (clock - us) // SECOND
    if not zone or not apart:
        return time + "Z"
    hours, seconds = divmod(abs(apart), 3600)
    minutes, seconds = divmod(seconds, 60)
    offset = f"{hours:02}{minutes:02}" + (f"{seconds:02}" if seconds else "")
    return f"{time}{'+' if apart > 0 else '-'}{offset}"


def instant_named(name: str, zone: str = "") -> int | None:
    """The instant of a name that `name_of` gives, in microseconds since 1970; None of another text.

    >>> instant_named("2026-10-25T0200+0100", "Europe/Berlin") - instant_named("2026-01-01")
    25664400000000
    """
    try:
        time = datetime.fromisoformat(name)
    except ValueError:
        return None
    apart = time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    clock = apart // timedelta(microseconds=1)
    if time.tzinfo is None:
        return instant_of(clock, zone)
    offset = time.utcoffset() or timedelta()
    return clock - offset // timedelta(microseconds=1)
