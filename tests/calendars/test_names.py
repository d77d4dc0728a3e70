"""A window has one name, and a name leads back to one window."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.calendars import Cells, begins_days, instant_named, name_of
from streamveil.dataflow.windows import Schedule

HOUR, DAY = 3_600_000_000, 86_400_000_000
ZONES = ["", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Kathmandu",
         "Africa/Monrovia", "Pacific/Apia"]  # fmt: skip


@given(st.integers(-(2**52), 2**52), st.sampled_from(ZONES))
def test_a_name_leads_back_to_its_instant(us, zone):
    assert instant_named(name_of(us, zone), zone) == us


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("months", [1, 3, 0])
def test_dates_of_all_days_and_months_differ_and_lead_back(zone, months):
    cells = Cells(length_us=0 if months else DAY, months=months, zone=zone)
    assert begins_days(cells)
    every = np.arange(cells.number(-30 * 365 * DAY), cells.number(70 * 365 * DAY))
    there = every[~cells.empty(every)]
    names = [name_of(us, zone, days=True) for us in cells.starts(there).tolist()]
    assert len(set(names)) == len(names)
    back = np.array([instant_named(name, zone) for name in names])
    assert (cells.numbers(back) == there).all()


@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
@pytest.mark.parametrize(("parts", "grows"), [(1, False), (3, False), (1, True)])
def test_every_window_of_a_schedule_has_a_name_of_its_own(zone, parts, grows):
    hours = Cells(length_us=6 * HOUR, zone=zone)
    spans = Cells(length_us=DAY, zone=zone) if grows else None
    schedule = Schedule(ticks=Cells(length_us=HOUR), cells=hours, parts=parts, spans=spans)
    first = hours.number(1_792_800_000_000_000)  # clocks are put back in this night
    windows = [w for w in range(first - 8, first + 8) if not hours.empty(np.array([w]))[0]]
    names = [schedule.name(window) for window in windows]
    assert len(set(names)) == len(names)
    assert [schedule.window_named(name) for name in names] == windows
    assert schedule.window_named("yesterday") is None
    assert schedule.window_named("1970-01-01T0001Z") is None


def test_folders_reads_and_answers_go_by_the_time(tmp_path):
    n, begin = 4000, 1_792_800_000_000_000 - 3 * HOUR
    rows = {"user": np.arange(n) % 700, "page": np.arange(n) % 2,
            "ts": (begin + np.arange(n) * 40_000_000).astype("datetime64[us]")}  # fmt: skip
    query = (
        sv.memory(rows, event_time="ts").protect("user", per="1 day")
        .window(sv.tumble("1 day", tz="Europe/Berlin")).group_by("page", keys=sv.public([0, 1]))
        .agg(n=sv.count()).bound(max_rows=9).to("files", path=str(tmp_path / "out"))
        .release(every="1 day", start="2026-10-24", steps=3, name="pages",
                 budget=sv.Budget(epsilon=20, delta=1e-6))
    )  # fmt: skip
    list(query.run(str(tmp_path / "s")))
    folders = sorted(folder.name for folder in (tmp_path / "out" / "pages").iterdir())
    assert folders == ["window=2026-10-24", "window=2026-10-25", "window=2026-10-26"]
    for source in (tmp_path / "out", tmp_path / "s"):
        release = sv.read(source, window="2026-10-25")
        assert release.table.equals(sv.read(source, window=release.window).table)
        found = sv.answers(source).difference("n", ("2026-10-25", 1), ("2026-10-24", 1))
        assert found.table.num_rows == 2
        with pytest.raises(sv.PlanError, match="no window '2026-10-27'; did you mean"):
            sv.read(source, window="2026-10-27")
