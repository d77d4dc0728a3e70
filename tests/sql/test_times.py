"""Calendar arithmetic on columns against Python's own calendar, value by value."""

import calendar
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from streamveil.expressions import compile_expression, times
from streamveil.expressions.kernels import INSTANT, civil_days

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
EDGES = [  # about years, months and weeks that begin or end, leap days, and before 1970
    (y, m, d) for y in (1600, 1899, 1900, 1968, 1969, 1970, 1999, 2000, 2015, 2020, 2024, 2026)
    for m, d in ((1, 1), (1, 3), (1, 4), (2, 28), (3, 1), (3, 31), (8, 30), (12, 28), (12, 31))
]  # fmt: skip
CLOCKS = [timedelta(), timedelta(hours=11, minutes=59, seconds=59, microseconds=999_999)]
TIMES = [datetime(*day, tzinfo=UTC) + clock for day in EDGES for clock in CLOCKS]
TIMES += [datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)]
COLUMN = pa.array([*TIMES, None], INSTANT)


def midnight(at):
    return at.replace(hour=0, minute=0, second=0, microsecond=0)


def begun(at, weekday):
    """The last such weekday (from Sunday) until a time."""
    return midnight(at) - (at.isoweekday() - weekday) % 7 * DAY


STARTS = {
    "YEAR": lambda at: midnight(at).replace(month=1, day=1),
    "QUARTER": lambda at: midnight(at).replace(month=(at.month - 1) // 3 * 3 + 1, day=1),
    "MONTH": lambda at: midnight(at).replace(day=1),
    "DAY": midnight,
    "HOUR": lambda at: at.replace(minute=0, second=0, microsecond=0),
    "MILLISECOND": lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000),
    "WEEK": lambda at: begun(at, 0),
    "WEEK(WEDNESDAY)": lambda at: begun(at, 3),
    "ISOWEEK": lambda at: begun(at, 1),
    "ISOYEAR": lambda at: begun(
        datetime(at.isocalendar().year, 1, 4, tzinfo=UTC), 1),  # is in its first week
}  # fmt: skip


@pytest.mark.parametrize("unit", STARTS)
def test_a_time_is_cut_to_the_start_of_its_unit(unit):
    found = times.truncate(unit)(COLUMN).to_pylist()
    assert found == [STARTS[unit](at) for at in TIMES] + [None]


PARTS = {
    "YEAR": lambda at: at.year, "QUARTER": lambda at: (at.month + 2) // 3,
    "MONTH": lambda at: at.month, "DAY": lambda at: at.day,
    "DAYOFYEAR": lambda at: at.timetuple().tm_yday, "DAYOFWEEK": lambda at: at.isoweekday() % 7 + 1,
    "ISOYEAR": lambda at: at.isocalendar().year, "ISOWEEK": lambda at: at.isocalendar().week,
    "WEEK": lambda at: int(at.strftime("%U")), "WEEK(MONDAY)": lambda at: int(at.strftime("%W")),
    "HOUR": lambda at: at.hour, "MINUTE": lambda at: at.minute, "SECOND": lambda at: at.second,
    "MILLISECOND": lambda at: at.microsecond // 1000, "MICROSECOND": lambda at: at.microsecond,
}  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_time_are_those_that_python_has(part):
    found = times.extract(part)(COLUMN).to_pylist()
    assert found == [PARTS[part](at) for at in TIMES] + [None]


@pytest.mark.parametrize("months", [-13, -1, 0, 1, 12, 25])
@pytest.mark.parametrize("unit", ["MONTH", "QUARTER", "YEAR"])
def test_months_on_a_day_that_is_missing_is_the_last_one(unit, months):
    def moved(at):
        year, month = divmod(at.year * 12 + at.month - 1 + months * times.UNIT_MONTHS[unit], 12)
        day = min(at.day, calendar.monthrange(year, month + 1)[1])
        return at.replace(year=year, month=month + 1, day=day)

    found = times.shift_by(months, unit)(COLUMN).to_pylist()
    assert found == [moved(at) for at in TIMES] + [None]


def test_what_goes_too_far_is_null_and_what_is_as_far_as_may_be_is_not():
    first, last = times.FIRST_US, times.AFTER_US - 1
    ends = pa.array([last, last - 1, first, first + 1], pa.int64()).cast(INSTANT)
    on, back = (times.shift_by(by, "MICROSECOND")(ends).cast(pa.int64()) for by in (1, -1))
    assert on.to_pylist() == [None, last, first + 1, first + 2]
    assert back.to_pylist() == [last - 1, last - 2, None, first]
    months = times.shift_by(1, "MONTH")(ends)
    assert months.is_null().to_pylist() == [True, True, False, False]
    beyond = pa.array([last + 1, first - 1], pa.int64()).cast(INSTANT)
    assert times.shift_by(0, "DAY")(beyond).null_count == 2


@pytest.mark.parametrize("expression", [
    "DATE_SUB(first, INTERVAL 1 DAY)", "first - 1",
    "DATE_TRUNC(first, WEEK)", "UNIX_DATE(DATE_SUB(first, INTERVAL 1 QUARTER))",
    "TIMESTAMP(first, 'Asia/Tokyo')", "TIMESTAMP_TRUNC(start, DAY, 'America/New_York')",
    "CAST(CONCAT(CAST(first AS STRING), ' 00:00:00+14') AS TIMESTAMP)",
    "TIMESTAMP_SUB(start, INTERVAL 1 MICROSECOND)", "DATETIME(start, 'America/New_York')",
    "DATE_ADD(last, INTERVAL 1 DAY)", "last + 1", "LAST_DAY(last, WEEK)", "last + INTERVAL 1 DAY",
    "DATE(TIMESTAMP_ADD(last, INTERVAL 23 HOUR), 'Asia/Tokyo')", "last + INTERVAL 24 HOUR",
    "TIMESTAMP_SECONDS(253402300800)", "DATE_FROM_UNIX_DATE(2932897)", "DATE(10000, 1, 1)",
])  # fmt: skip
def test_no_time_is_outside_the_years_1_to_9999(expression):
    rows = pa.table({
        "first": [date(1, 1, 1)], "last": [date(9999, 12, 31)],
        "start": pa.array([datetime(1, 1, 1, tzinfo=UTC)], INSTANT),
    })  # fmt: skip
    assert compile_expression(expression, rows.schema)(rows).to_pylist() == [None]


@pytest.mark.parametrize("unit", ["DAY", "WEEK", "ISOWEEK", "WEEK(FRIDAY)", "HOUR", "ISOYEAR",
                                  "MONTH", "QUARTER", "YEAR"])  # fmt: skip
def test_a_difference_counts_the_borders_between(unit):
    left, right = TIMES, TIMES[::-1]
    count = times.difference(unit, borders=True)
    found = count(pa.array(left, INSTANT), pa.array(right, INSTANT)).to_pylist()

    def number(at):
        """Of the unit that holds a time."""
        start = times.truncate(unit)(pa.array([at], INSTANT))[0].as_py()
        months = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}.get(unit)
        if unit == "ISOYEAR":
            return at.isocalendar().year
        if months:
            return (start.year * 12 + start.month) // months
        length = {"HOUR": DAY / 24, "DAY": DAY}.get(unit, 7 * DAY)
        first = times.truncate(unit)(pa.array([EPOCH], INSTANT))[0].as_py()
        return (start - first) // length

    assert found == [number(a) - number(b) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("unit", ["HOUR", "SECOND", "DAY"])
def test_whole_units_between_two_times_are_cut_toward_zero(unit):
    left, right = TIMES, TIMES[::-1]
    count = times.difference(unit, borders=False)
    found = count(pa.array(left, INSTANT), pa.array(right, INSTANT)).to_pylist()
    length = {"HOUR": DAY / 24, "SECOND": DAY / 86_400, "DAY": DAY}[unit]

    def whole(gap):
        return gap // length if gap >= timedelta() else -(-gap // length)

    assert found == [whole(a - b) for a, b in zip(left, right, strict=True)]


def test_the_calendar_has_the_days_that_python_has():
    years, months, days = (grid.ravel() for grid in np.meshgrid(
        [0, 1, 4, 100, 400, 1900, 1970, 2000, 2024, 2026, 9999, 10_000],
        np.arange(-1, 14), np.arange(-1, 33), indexing="ij",
    ))  # fmt: skip
    found, fine = civil_days(years, months, days)
    for y, m, d, day, there in zip(years, months, days, found, fine, strict=True):
        try:
            real = date(int(y), int(m), int(d))
        except ValueError:
            assert not there, (y, m, d)
        else:
            assert there, (y, m, d)
            assert real.toordinal() - EPOCH.toordinal() == day


@pytest.mark.parametrize("sign", [1, -1])
def test_days_that_are_added_to_a_date_move_it(sign):
    dates = pa.array([date(2024, 2, 28), date(1969, 12, 31), None, date(2000, 1, 1)])
    days = pa.array([2, -40_000, 1, 2**62])
    found = times.move_days(sign)(dates, days).to_pylist()
    assert found == [date(2024, 2, 28) + sign * 2 * DAY,
                     date(1969, 12, 31) - sign * 40_000 * DAY, None, None]  # fmt: skip


def test_numbers_become_times_and_dates_and_times_become_numbers():
    seconds = pa.array([0, -1, 86_400, None, times.AFTER_US // 1_000_000])
    found = times.from_epoch(1_000_000)(seconds)
    assert found.to_pylist()[:3] == [EPOCH, EPOCH - DAY / 86_400, EPOCH + DAY]
    assert found.is_null().to_pylist() == [False, False, False, True, True]
    assert times.to_epoch(1_000_000)(COLUMN).to_pylist()[:-1] == [
        (at - EPOCH) // (DAY / 86_400) for at in TIMES
    ]
    assert times.from_days(pa.array([-1, 59])).to_pylist() == [date(1969, 12, 31), date(1970, 3, 1)]
    assert times.to_date(COLUMN).to_pylist() == [*(at.date() for at in TIMES), None]
    assert times.to_instant(pa.array([date(1969, 12, 31)])).to_pylist() == [EPOCH - DAY]


def test_times_and_dates_are_read_in_the_years_1_to_9999():
    first, after = times.FIRST_US, times.AFTER_US
    ends = pa.array([first, first - 1, after - 1, after], pa.int64())
    assert times.to_epoch(1)(ends.cast(INSTANT)).to_pylist() == [first, None, after - 1, None]
    begin, end = first // times.DAY_US, after // times.DAY_US
    days = pa.array([begin, begin - 1, end - 1, end], pa.int32()).cast(pa.date32())
    assert times.to_epoch(times.DAY_US)(days).to_pylist() == [begin, None, end - 1, None]


def test_a_day_in_milliseconds_that_32_bits_do_not_hold_is_null():
    rows = pa.table({"d": pa.array([86_400_000, -1, 2**62, None], pa.int64()).cast(pa.date64())})
    found = compile_expression("d", rows.schema)(rows).cast(pa.int32()).to_pylist()
    assert found == [1, -1, None, None]
