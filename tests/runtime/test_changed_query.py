"""A query may be changed where no noise depends on it; whatever else changes is refused."""

from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.accounts.ledger import Charge, Ledger
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import NOTHING
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, StoreError
from streamveil.plan import Clock
from streamveil.runtime import changed_query
from streamveil.runtime.account import Account
from streamveil.runtime.run import run
from streamveil.sql.sql import parse_script
from tests.schedules import fixed_schedule

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
SEEDED = {"noise": SeededNoise(7), "insecure": True}
DAY, DAYS = 86_400_000_000, 5
FIRST = 1_767_225_600_000_000  # 2026-01-01
GIVEN = "epsilon = 4, delta = 1e-6, privacy_unit_column = person, max_rows_contributed = 4"
PUBLIC = "public_groups = ['page 0', 'page 1']"
DAILY = "FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY window_start, "


@pytest.fixture(autouse=True)
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng, size = np.random.default_rng(3), 1_500
    table = {"ts": pa.array(FIRST + np.arange(size) * (DAYS * DAY // size),
                            pa.timestamp("us", "UTC")),
             "person": rng.integers(0, 300, size),
             "page": [f"page {n}" for n in rng.integers(0, 3, size)]}  # fmt: skip
    pq.write_table(pa.table(table), "rows.parquet")


def plan(end="2026-01-04", key="page", n="n", sink="", options=PUBLIC, given=GIVEN, daily=DAILY,
         every="8 HOUR", start="2026-01-01"):  # fmt: skip
    name = key.split()[-1]
    into = f"CREATE SINK {sink} WITH (sink = 'files', path = '{sink}'); INSERT INTO {sink}"
    return parse_script(
        f"""CREATE STREAM visits WITH (source = 'files', path = 'rows.parquet', event_time = 'ts');
        {into if sink else ""}
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({given}, {options},
          start = '{start}', end = '{end}')
        {"window_start," if daily else ""} {key}, COUNT(*) AS {n}
        {daily or "FROM visits GROUP BY "} {name} EMIT EVERY INTERVAL {every}""", {},
    ).query.plan  # fmt: skip


def told(job):
    with job:
        return {(one.window, one.trigger): one.table for one in job}


def some(job, number):
    with job:
        return [next(job) for _ in range(number)]


def same(one, other):
    assert one.keys() == other.keys()
    assert all(one[place].equals(other[place]) for place in one)


def test_other_names_are_given_to_the_same_numbers():
    same_names = told(run(plan(), state="twin", **SEEDED))
    some(run(plan(), state="s", **SEEDED), 4)
    renamed = told(run(plan(key="page AS place", n="visits"), state="s", **SEEDED))
    assert len(renamed) > 4
    for place, table in renamed.items():
        old = same_names[place]
        assert table["place"].to_pylist() == old["page"].to_pylist()
        for end in ("", "_sd", "_low", "_high"):
            assert table[f"visits{end}"].to_pylist() == old[f"n{end}"].to_pylist()
    same(told(run(plan(), state="s", **SEEDED)), {max(same_names): same_names[max(same_names)]})


def test_a_job_goes_on_into_another_sink():
    some(run(plan(sink="first"), state="s"), 3)
    before = {path.name: path.read_bytes() for path in Path("first").rglob("*.parquet")}
    rest = told(run(plan(sink="second", n="visits"), state="s"))
    assert rest
    for path in Path("first").rglob("*.parquet"):
        assert before[path.name] == path.read_bytes()
    assert list(Path("second").rglob("*"))
    with Ledger.load("s/ledger") as ledger:
        assert len(ledger.entries()) == 1


def test_a_later_end_goes_on_as_if_it_had_always_been():
    whole = told(run(plan(end="2026-01-06"), state="twin", **SEEDED))
    first = told(run(plan(), state="s", **SEEDED))
    rest = told(run(plan(end="2026-01-06"), state="s", **SEEDED))
    assert (len(first), len(whole)) == (9, 15)
    again = {place for place in rest if place in first}
    assert len(again) <= 1, "of the last commit"
    same(first | rest, whole)


@pytest.mark.parametrize("stop", [4, 9])
def test_a_later_end_may_come_before_the_first_one(stop):
    options = "min_privacy_units_per_group = 2, look_share = 0"  # a look sees more until later
    whole = told(run(plan(end="2026-01-06", options=options), state="twin", **SEEDED))
    first = some(run(plan(options=options), state="s", **SEEDED), stop)
    rest = told(run(plan(end="2026-01-06", options=options), state="s", **SEEDED))
    same({(one.window, one.trigger): one.table for one in first} | rest, whole)


def test_the_ledgers_say_until_when_and_nothing_is_paid_twice():
    limit = Budget(epsilon=4, delta="1e-6")
    Ledger.open("clicks.ledger", limit, Neighbours("person")).close()
    told(run(plan(), state="s", ledger="clicks.ledger"))
    for _ in range(2):
        told(run(plan(end="2026-01-06", n="visits"), state="s", ledger="clicks.ledger"))
    told(run(plan(end="2026-01-07"), state="s", ledger="clicks.ledger"))
    for place in ("clicks.ledger", "s/ledger"):
        with Ledger.load(place) as ledger:
            first, *later = ledger.entries()
            assert [one.horizon for one in later] == [15, 18]
            assert ledger.spent() == first.loss, "the same unit loses no more"
    for end in ("2026-01-04", "2026-01-06"):
        with pytest.raises(StoreError, match=r"goes on until step 18"):
            run(plan(end=end), state="s")


def test_an_extension_that_is_cut_short_is_charged_once(monkeypatch):
    Ledger.open("clicks.ledger", Budget(epsilon=4, delta="1e-6"), Neighbours("person")).close()
    told(run(plan(), state="s", ledger="clicks.ledger"))
    real = Account.extend

    def half(self, own, charge):
        with Ledger.load(self.shared) as ledger:
            ledger.charge_all([charge])
        raise KeyboardInterrupt

    monkeypatch.setattr(Account, "extend", half)
    with pytest.raises(KeyboardInterrupt):
        run(plan(end="2026-01-06"), state="s", ledger="clicks.ledger")
    monkeypatch.setattr(Account, "extend", real)
    told(run(plan(end="2026-01-06"), state="s", ledger="clicks.ledger"))
    for place in ("clicks.ledger", "s/ledger"):
        with Ledger.load(place) as ledger:
            assert len(ledger.entries()) == 2


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"end": "2026-01-03 16:00:00"}, {"end": "2026-01-06"}),  # the last window was cut
        ({"daily": ""}, {"end": "2026-01-06"}),  # one window, released at every step
        ({"end": "2026-01-01 16:00:00"}, {"end": "2026-01-06"}),  # fewer triggers than a window's
    ],
)
def test_an_end_that_changes_noise_already_drawn_is_refused(first, then):
    some(run(plan(**first), state="s"), 1)
    with pytest.raises(PlanError, match="than its noise was made for"):
        run(plan(**(first | then)), state="s")
    with Ledger.load("s/ledger") as ledger:
        assert len(ledger.entries()) == 1


@pytest.mark.parametrize("more", ["", ", COUNT(*) AS rows"])
def test_an_end_with_windows_beyond_a_bound_of_windows_is_refused(more):
    """Whoever was there until the first end would be missing in all later windows."""
    given = GIVEN.replace("= 4, d", "= 5, d").replace(" = 4", " = 20" if more else "")
    given = given if more else given.removesuffix(", max_rows_contributed")
    text = f"""CREATE STREAM visits
          WITH (source = 'files', path = 'rows.parquet', event_time = 'ts');
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({given}, look_share = 0, start = '2026-01-01',
          end = '2026-01-0{{}}') window_start, COUNT(DISTINCT person) AS n{more}
        FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY window_start
        EMIT EVERY INTERVAL 8 HOUR"""
    first, later = (parse_script(text.format(day), {}).query.plan for day in (4, 6))
    told(run(first, state="s", **SEEDED))
    with pytest.raises(PlanError, match="as many windows as there were"):
        run(later, state="s", **SEEDED)
    with Ledger.load("s/ledger") as ledger:
        assert len(ledger.entries()) == 1


BY_FORECAST = "expected_rows = 1.05, expected_units = 300, expected_groups = 3, look_share = 0"


@pytest.mark.parametrize(("options", "given", "more"), [
    ("max_rows_per_group = 2", GIVEN.replace("max_rows", "max_groups"),
     ", COUNT(DISTINCT person) AS people"),
    (BY_FORECAST, GIVEN.removesuffix(", max_rows_contributed = 4"), ""),
], ids=["given", "by forecast"])  # fmt: skip
def test_bounds_that_are_given_or_by_forecast_leave_room_for_a_later_end(options, given, more):
    first, later = (
        plan(end=end, options=options, given=given, n="n" + more)
        for end in ("2026-01-04", "2026-01-06")
    )
    operator = compile_plan(first)
    assert operator.bounds.groups == 4 if more else operator.bounds.max_rows
    told(run(first, state="s", **SEEDED))
    assert max(window for window, _ in told(run(later, state="s", **SEEDED))) == 20_458


def test_the_last_end_is_that_of_the_charges_of_one_state():
    charges = [
        Charge("n", NOTHING, key=key, horizon=horizon)
        for key, horizon in (("a", 3), ("a:5", 5), ("a:9", 9), ("a:7", None), ("ab:12", 12),
                             (None, 30))
    ]  # fmt: skip
    assert changed_query.last_end(charges, "a") == 9
    assert changed_query.last_end(charges[:1], "a") is None


@pytest.mark.parametrize(("kind", "end", "steps", "wanted"), [
    ("event", 10, None, 4), ("event", 9, None, 3), ("event", 10, 2, 2), ("event", 10, 9, 4),
    ("event", None, 7, 7), ("wall", 10, 7, 7), ("wall", 10, None, None),
])  # fmt: skip
def test_steps_of_a_clock_end_with_its_time_or_its_number(kind, end, steps, wanted):
    clock = Clock(kind=kind, every=3, start_us=0, end_us=end, steps=steps)
    assert changed_query.steps_of(clock) == wanted


def is_prefix(short, long):
    """The same by enumeration: steps of the short one release, and end, the same windows."""
    steps = range(1, short.steps + 1)
    ends = all(short.last_step(w) == long.last_step(w) for s in steps for w in short.active(s))
    return ends and all(short.active(step) == long.active(step) for step in steps)


def test_schedules_are_compared_as_an_enumeration_does():
    taken = refused = 0
    for every, size, slide, late, start in product((2, 3), (4, 6), (0, 2), (0, 3), (0, 1)):
        made = {"every_us": every, "size_us": size, "slide_us": slide, "lateness_us": late,
                "start_us": start}  # fmt: skip
        for steps, more in product(range(1, 9), (1, 3)):
            short = fixed_schedule(**made, steps=steps)
            long = fixed_schedule(**made, steps=steps + more)
            try:
                changed_query.require_prefix(short, long)
                taken += 1
                assert is_prefix(short, long)
                assert short.triggers == long.triggers
            except PlanError:
                refused += 1
                assert not is_prefix(short, long) or short.triggers != long.triggers
    assert min(taken, refused) > 20


@pytest.mark.parametrize(
    "change",
    [
        {"given": GIVEN.replace("epsilon = 4", "epsilon = 5")},
        {"given": GIVEN.replace("contributed = 4", "contributed = 5")},
        {"options": "public_groups = ['page 0', 'page 2']"},
        {"every": "12 HOUR"},
        {"end": "2026-01-03"},
        {"n": "person"},  # a name, and one more change
    ],
)
def test_all_other_changes_are_refused(change):
    some(run(plan(), state="s"), 2)
    if change == {"n": "person"}:
        change |= {"given": GIVEN.replace("epsilon = 4", "epsilon = 3")}
    with pytest.raises(StoreError):
        run(plan(**change), state="s")


@pytest.mark.parametrize(("looks", "change", "said"), [
    (False, {"given": GIVEN.replace("epsilon = 4", "epsilon = 5")},
     "changed budget epsilon was '4' and is '5'"),
    (False, {"given": GIVEN.replace("contributed = 4", "contributed = 3")},
     "changed query bounding max_rows was 4 and is 3"),
    (False, {"key": "LOWER(page) AS page"},
     "changed query keys 1 expression was 'page' and is 'LOWER(page)'"),
    (True, {"given": GIVEN.replace("epsilon = 4", "epsilon = 5")},
     "changed budget epsilon was '4' and is '5'"),
])  # fmt: skip
def test_what_changed_of_a_query_is_named_and_nothing_else(looks, change, said):
    """Also of a job whose settings a look chose: they did not change."""
    few = {"options": "public_groups = ['page 0']"} if not looks else {}
    given = GIVEN if not looks else GIVEN.replace(", max_rows_contributed = 4", "")
    if looks:
        change = {
            name: text.replace(", max_rows_contributed = 4", "") for name, text in change.items()
        }
    told(run(plan(given=given, **few), state="s", **SEEDED))
    with pytest.raises(StoreError) as refused:
        run(plan(**{"given": given, **few, **change}), state="s", **SEEDED)
    assert str(refused.value).splitlines()[1].strip() == said
