"""Cells of a calendar tile time, in every zone, by the zone's own rules."""

from datetime import UTC, datetime, timedelta
from random import Random

import numpy as np
import pytest

from streamveil.calendars import DAY, HOUR, Cells, follows_clocks, rules_of, zone_info, zone_names
from streamveil.errors import PlanError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FEW = ("Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca", "Asia/Kathmandu",
       "Australia/Lord_Howe", "America/Havana", "Asia/Manila", "UTC")  # fmt: skip
GRIDS = [
    {"months": 1}, {"months": 3, "origin_us": 40 * DAY}, {"months": 12},
    {"length_us": DAY}, {"length_us": 7 * DAY, "origin_us": 4 * DAY}, {"length_us": 6 * HOUR},
]  # fmt: skip


def us_of(*parts):
    return (datetime(*parts, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def times(zone, first=1926, last=2126):
    """Instants of 200 years: around every change of the clocks, and some between."""
    low, high = us_of(first, 1, 1), us_of(last, 1, 1)
    changes = rules_of(zone).starts[1:]
    changes = changes[(changes >= low) & (changes < high)]
    near = [changes + shift for shift in (-DAY, -HOUR, -1, 0, 1, HOUR, 2 * HOUR, DAY)]
    rng = Random(zone)
    some = [rng.randrange(low, high) for _ in range(300)]
    return np.unique(np.concatenate([*near, np.array(some, np.int64)]))


def check_zone(zone):
    rules, info, at = rules_of(zone), zone_info(zone), times(zone)
    shown = [(EPOCH + timedelta(microseconds=int(us))).astimezone(info) for us in at]
    wall = [(one.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1) for one in shown]
    assert rules.shown(at).tolist() == wall  # the standard library reads the same clocks
    for settings in GRIDS:
        grid = Cells(**settings, zone=zone)
        numbers = grid.numbers(at)
        assert (np.diff(numbers) >= 0).all()
        assert (grid.starts(numbers) <= at).all()
        assert (at < grid.starts(numbers + 1)).all()
        begins = grid.starts(np.arange(numbers[0], numbers[-1] + 2))
        assert (np.diff(begins) >= 0).all()
        full = np.flatnonzero(np.diff(begins) > 0) + numbers[0]
        assert grid.numbers(grid.starts(full)).tolist() == full.tolist()
        assert grid.numbers(grid.starts(full + 1) - 1).tolist() == full.tolist()


@pytest.mark.parametrize("zone", FEW)
def test_cells_tile_200_years_by_the_clocks_of_the_zone(zone):
    check_zone(zone)


@pytest.mark.slow
@pytest.mark.parametrize("zone", zone_names())
def test_cells_tile_200_years_in_every_zone(zone):
    check_zone(zone)


@pytest.mark.parametrize("zone", FEW)
def test_what_clocks_passed_for_good_is_the_least_they_show_from_then_on(zone):
    """By its definition, at every minute of the year of a change."""
    rules = rules_of(zone)
    changes = [at for at in rules.starts[1:].tolist() if at > us_of(1900, 1, 1)][-3:]
    for change in changes:
        at = np.arange(change - 2 * DAY, change + 2 * DAY, 60 * 10**6, dtype=np.int64)
        least = np.minimum.accumulate(rules.shown(at)[::-1])[::-1]
        inner = at < change + DAY
        assert rules.passed(at)[inner].tolist() == least[inner].tolist()
        for clock in rules.shown(at)[inner][::17].tolist():
            found = int(rules.instants(np.array([clock]))[0])
            assert rules.passed(np.array([found]))[0] >= clock
            assert rules.passed(np.array([found - 1]))[0] < clock


@pytest.mark.parametrize("zone", FEW)
def test_a_time_of_a_clock_is_first_shown_when_it_says(zone):
    """By its definition, at every minute of the year of a change."""
    rules = rules_of(zone)
    for change in [at for at in rules.starts[1:].tolist() if at > us_of(1900, 1, 1)][-3:]:
        at = np.arange(change - 2 * DAY, change + 2 * DAY, 60 * 10**6, dtype=np.int64)
        shown = rules.shown(at)
        for clock in range(int(shown[0]), int(shown[-1]), 17 * 60 * 10**6):
            found = rules.first(np.array([clock]))
            assert rules.shown(found)[0] >= clock
            assert (shown[at < found] < clock).all()


def test_an_hour_shown_twice_is_in_one_cell_and_a_day_left_out_is_an_empty_one():
    six = Cells(length_us=6 * HOUR, zone="Europe/Berlin")
    night = six.number(us_of(2026, 10, 25, 0, 30))  # 02:30 for the first time
    assert six.number(us_of(2026, 10, 25, 1, 30)) == night
    assert six.start(night + 1) - six.start(night) == 7 * HOUR
    day = Cells(length_us=DAY, zone="Pacific/Apia")
    left_out = day.number(us_of(2011, 12, 30, 9, 59))  # 29 December; the 30th did not take place
    assert day.empty(np.arange(left_out, left_out + 3)).tolist() == [False, True, False]
    assert day.number(us_of(2011, 12, 30, 10)) == left_out + 2


def test_months_have_their_lengths():
    grid = Cells(months=1, zone="Europe/Berlin")
    begins = grid.starts(np.arange(grid.number(us_of(2026, 1, 15)), 12 * 56 + 13))
    hours = (np.diff(begins) // HOUR).tolist()
    assert hours == [24 * d for d in (31, 28)] + [24 * 31 - 1] + [
        24 * d for d in (30, 31, 30, 31, 31, 30)
    ] + [24 * 31 + 1] + [24 * 30, 24 * 31]


@pytest.mark.parametrize(("fine", "coarse"), [
    ({"length_us": HOUR * 6}, {"length_us": DAY}),
    ({"length_us": DAY}, {"months": 1}),
    ({"length_us": DAY}, {"length_us": 7 * DAY, "origin_us": 4 * DAY}),
    ({"length_us": DAY}, {"length_us": 7 * DAY, "origin_us": 4 * DAY + HOUR}),
    ({"length_us": 7 * DAY}, {"months": 1}),
    ({"months": 1}, {"months": 3}),
    ({"months": 3}, {"months": 12}),
    ({"months": 3, "origin_us": 31 * DAY}, {"months": 12}),
    ({"months": 2}, {"months": 3}),
    ({"months": 1}, {"length_us": DAY}),
    ({"months": 1}, {"months": 1, "origin_us": DAY}),
])  # fmt: skip
@pytest.mark.parametrize("zone", ["", "Europe/Berlin"])
def test_refinement_is_what_the_boundaries_say(fine, coarse, zone):
    fine, coarse = Cells(**fine, zone=zone), Cells(**coarse, zone=zone)
    low, high = (coarse.number(us_of(year, 1, 1)) for year in (1990, 2050))
    begins = coarse.starts(np.arange(low, high))
    nested = fine.starts(fine.numbers(begins)).tolist() == begins.tolist()
    assert fine.refines(coarse) == nested


def test_cells_of_other_clocks_never_refine():
    berlin, utc = Cells(length_us=DAY, zone="Europe/Berlin"), Cells(length_us=DAY)
    assert not berlin.refines(utc)
    assert not utc.refines(berlin)
    assert not Cells(length_us=DAY, zone="Asia/Tokyo").refines(
        Cells(months=1, zone="Europe/Berlin")
    )
    assert not Cells(length_us=HOUR, zone="Europe/Berlin").refines(berlin)  # hours are real time


def test_what_is_no_zone_is_refused_by_its_nearest_name():
    with pytest.raises(PlanError, match="did you mean 'Europe/Berlin'"):
        rules_of("Europe/Berlim")


def test_short_lengths_are_real_time():
    assert [follows_clocks(n * HOUR) for n in (1, 2, 5, 6, 24, 36, 48)] == [
        False, True, False, True, True, False, True,
    ]  # fmt: skip
    grid = Cells(length_us=HOUR, zone="Europe/Berlin")
    assert grid.fixed
    assert grid.start(5) == 5 * HOUR
