"""Schedules for tests."""

from streamveil.calendars import Cells
from streamveil.dataflow.windows import Schedule, hopping


def fixed_schedule(
    *,
    every_us: int,
    start_us: int = 0,
    size_us: int = 0,
    slide_us: int = 0,
    lateness_us: int = 0,
    steps: int | None = None,
) -> Schedule:
    """A schedule of steps and windows that are equally long; `slide_us`: size_us if left out."""
    ticks = Cells(length_us=every_us, origin_us=start_us)
    if not size_us:
        return Schedule(ticks=ticks, lateness_us=lateness_us, steps=steps)
    parts, stride, cells = hopping(Cells(length_us=size_us), Cells(length_us=slide_us or size_us))
    return Schedule(
        ticks=ticks, cells=cells, parts=parts, stride=stride, lateness_us=lateness_us, steps=steps
    )
