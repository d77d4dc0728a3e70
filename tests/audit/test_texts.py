"""The account of jobs that read raw rows: queries over the whole grammar, and the look before them.

Each planted fault is one that made-up rows behind the row functions (`tests/audit/test_planted.py`)
cannot see.
"""

import os
import time
from copy import copy
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamveil.compiler import group_by
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.unit_sample import LEVELS, UnitSample
from streamveil.compiler.value_sizes import ValueSizes
from streamveil.connectors.memory import MemorySource
from streamveil.errors import WitnessError
from streamveil.plan import combine, own_rows
from streamveil.plan.look import divided, with_look
from streamveil.runtime import look as look_module
from streamveil.runtime import survey
from tests.audit import looks, raw_rows, texts
from tests.planting import all_units_are_one, instead

SECONDS = float(os.environ.get("STREAMVEIL_ACCOUNT_SECONDS", "120"))


def test_units_of_raw_rows_lose_no_more_than_is_claimed():
    most = 0.0
    for seed in range(3):
        for text, found in texts.judged(seed, 3):
            assert found.stands, (seed, text, found.broken())
            most = max(most, found.tightness)
    assert most > 0.9


def test_looks_lose_no_more_than_is_claimed():
    most = 0.0
    for seed in range(2):
        for text, lost, claim, share in looks.judged(seed, 3):
            assert lost.stands(claim), (seed, text, lost)
            assert claim.fits(share)
            most = max(most, lost.tightness(claim))
    assert most > 0.6


def in_every_sample(self, names, each):
    return np.full(len(names) // each, LEVELS, np.uint8)


@pytest.mark.parametrize("is_planted", [False, True])
def test_looks_at_samples_lose_no_more_than_is_claimed(is_planted, monkeypatch):
    """Every unit is counted in the smallest sample. Planted: with a 64th of the noise."""
    honest = survey.sampled
    monkeypatch.setattr(survey, "most_units", lambda sigma: 3)
    monkeypatch.setattr(UnitSample, "levels", in_every_sample)
    if is_planted:
        monkeypatch.setattr(
            survey, "sampled",
            lambda asked, *given: honest(SimpleNamespace(sigma=asked.sigma / 64), *given),
        )  # fmt: skip
    stands = [
        lost.stands(claim) for seed in range(6) for _, lost, claim, _ in looks.judged(seed, 3)
    ]
    assert all(stands) is not is_planted


def test_what_a_look_chose_loses_with_it_no_more_than_is_claimed():
    most = 0.0
    for seed in (504, 510):
        for text, accounts, (epsilon, delta), claims in looks.sequels(seed, 1):
            assert all(one.stands for one in accounts), (seed, text)
            if delta is not None:
                [claim] = claims  # whatever the look said
                assert delta <= claim.delta_at(epsilon), (seed, text)
                most = max(most, delta / claim.delta_at(epsilon))
    assert most > 0.5


@pytest.mark.slow
def test_new_queries_and_looks_lose_no_more_than_is_claimed():
    """New seeds for STREAMVEIL_ACCOUNT_SECONDS; the seed of a failure is in its message."""
    begun, seed = time.monotonic(), int(np.random.SeedSequence().entropy % 10**12)
    while time.monotonic() - begun < SECONDS:
        seed += 1
        for text, found in texts.judged(seed, 12):
            assert found.stands, (seed, text, found.broken())
        for text, lost, claim, _ in looks.judged(seed, 4):
            assert lost.stands(claim), (seed, text, lost)
        for text, accounts, (epsilon, delta), claims in looks.sequels(seed, 1):
            assert all(one.stands for one in accounts), (seed, text)
            assert delta is None or all(delta <= one.delta_at(epsilon) for one in claims), text


# ---- unit-periods together


BEGIN = "privacy_unit_column = user, max_rows_contributed = 1, public_groups = ['a', 'b']"
TIMES = "start = '1970-01-01', end = '1970-01-05', privacy_unit_period = INTERVAL 1 DAY"
DAILY = (
    f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 0.5, delta = 1e-6, {BEGIN}, {TIMES}, {{}})"
    " window_start, page, SUM(ms, contribution_bounds_per_row => (0, 8)) AS s FROM TUMBLE(TABLE"
    " clicks, DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY window_start, page"
    " EMIT EVERY INTERVAL 1 DAY"
)


def days_of_one(days, daily=1):
    """Rows of one unit, the same on each of some days; and rows of others."""
    rng = np.random.default_rng(1)
    others = [raw_rows.other_row(rng, raw_rows.HOURS) for _ in range(20)]
    mine = [{**others[0], "user": "Z", "page": "a", "ms": 8.0, "ts": day * raw_rows.DAY,
             "at": day * raw_rows.DAY} for day in days for _ in range(daily)]  # fmt: skip
    return others, [*others, *mine]


@pytest.mark.parametrize("share", [0, 0.5, None])
def test_a_unit_of_several_days_loses_no_more_than_its_lifetime_is_said_to_cost(share):
    asked = "name = 'days'" if share is None else f"look_share = {share}"
    text, days = DAILY.format(asked), 4
    if share is None:
        text = text.replace(", max_rows_contributed = 1", "")
    plan = with_look(texts.plan_of(text))
    operator = compile_plan(plan)
    if share == 0:
        without, rows = days_of_one(range(days))
        pair = raw_rows.Neighbours(tuple(texts.plan_of(text, some) for some in (rows, without)), 4)
        lost = texts.account_of(pair, 3).parts[0].realised
    else:
        lost = lost_in_days(text, range(days))
    whole = operator.guarantee.over(days).loss
    assert operator.look is None if share == 0 else operator.look is not None
    assert operator.guarantee.separate
    assert whole == operator.guarantee.loss.times(days)
    assert 0.3 * float(whole.gaussian) < lost <= float(whole.gaussian) * (1 + 1e-9)


PERIODS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column ="
    f" user, {TIMES}, {{}}) window_start, page, COUNT(*) AS n FROM TUMBLE(TABLE clicks,"
    " DESCRIPTOR(ts), size => INTERVAL 1 DAY) GROUP BY window_start, page"
    " EMIT EVERY INTERVAL {}"
)


EPSILON, *BY_MU = "epsilon = 1, delta = 1e-6", "mu = 0.25, delta = 1e-6", "rho = 0.03, delta = 1e-6"
FOUND = "name = 'found'"


@pytest.mark.parametrize(
    ("budget", "groups", "every"),
    [(EPSILON, FOUND, "1 DAY"), (EPSILON, "public_groups = ['a', 'b']", "1 DAY"),
     *((one, FOUND, every) for one in BY_MU for every in ("1 DAY", "1 HOUR"))],
)  # fmt: skip
def test_a_look_by_itself_costs_a_person_in_many_periods_nothing(budget, groups, every):
    """Under mu and rho all of delta was set aside for thresholds, which left no epsilon to say."""
    with_one, without = (
        compile_plan(
            with_look(texts.plan_of(PERIODS.format(asked, every).replace(EPSILON, budget)))
        )
        for asked in (groups, f"{groups}, look_share = 0")
    )
    assert with_one.look is not None
    assert without.look is None
    for days in (2, 7, 365):
        one, none = (made.guarantee.over(days).quoted(1e-6) for made in (with_one, without))
        assert one[0] <= 1.02 * none[0], days


@pytest.mark.parametrize("budget", BY_MU)
@pytest.mark.parametrize("every", ["1 DAY", "1 HOUR"])
def test_thresholds_after_a_look_fail_no_more_often_than_is_set_aside(budget, every):
    """All that is set aside is used, whichever way groups are shown. Planted: a little less."""
    text = PERIODS.format(FOUND, every).replace(EPSILON, budget)
    made = compile_plan(with_look(texts.plan_of(text)))
    chosen, look = replace(made.design, look=None), made.look
    used, after = replace(made, design=chosen).loss.delta, look.after.delta
    assert 0.99 * after < used <= after
    less = replace(look, after=replace(look.after, delta=used * Fraction(999, 1000)))
    with pytest.raises(ValueError, match="more than was set aside"):
        _ = replace(made, design=replace(made.design, look=less)).loss


def test_no_look_by_itself_blurs_what_is_said_of_many_periods():
    """Windows with many releases need tables, and after a look one curve stands for all of them."""
    hourly = texts.plan_of(PERIODS.format("name = 'found'", "1 HOUR"))
    assert compile_plan(with_look(hourly)).look is None
    asked = texts.plan_of(PERIODS.format("look_share = 0.05", "1 HOUR"))
    looks_first = compile_plan(with_look(asked))
    assert looks_first.look is not None
    blurred = looks_first.guarantee.over(30).quoted(1e-6)
    assert blurred[0] > compile_plan(hourly).guarantee.over(30).quoted(1e-6)[0]


def lost_in_days(text, days):
    """The mu^2 that a unit on some days loses by a look, and the most by what follows it."""
    after = divided(with_look(texts.plan_of(text))).after
    return lost_by_look(text, days) + len(days) * float(after.gaussian)


def lost_by_look(text, days):
    """The same by the look alone, whatever the job's start and end let pass.

    A unit of one row moves no share of repeats: with two rows of one group it moves all it can.
    """
    without, rows = days_of_one(days, daily=2)
    plans = tuple(texts.plan_of(text, some) for some in (rows, without))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(look_module, "within", lambda plan, rows: rows)
        return looks.look_lost(plans, 1)[0].mu_squared


def any_day(patch):
    patch.setattr(survey, "rows_within", lambda plan, rows, within: rows)


def noise_for(days):
    def fault(patch):
        patch.setattr(look_module, "periods_seen", lambda plan: (0, days - 1))
        any_day(patch)

    return fault


TOO_LITTLE = noise_for(1), noise_for(3)


@pytest.mark.parametrize("fault", [None, any_day, *TOO_LITTLE])
@pytest.mark.parametrize("days", [range(4), range(-13, 17)])
def test_a_look_has_noise_for_the_days_that_it_takes(days, fault):
    """A unit is there on the four days of the job, or on thirty, four of which are the job's."""
    text = DAILY.format("look_share = 0.3")
    share = float(divided(with_look(texts.plan_of(text))).looking.mu) ** 2
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        lost = lost_by_look(text, days)
    is_caught = fault in TOO_LITTLE or (fault is any_day and len(days) > 4)
    assert (lost <= 4 * share * (1 + 1e-9)) == (not is_caught)
    assert fault is not None or lost > 0.99 * 4 * share


# ---- planted faults


def unit_of_the_row_before(honest):
    def compiled(text, schema):
        unit = honest(text, schema)
        return lambda table: pc.fill_null_forward(unit(table))

    return compiled


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_row_that_names_nobody_is_not_of_the_unit_before(is_planted, monkeypatch):
    """The witness stops a job that gives such a row to somebody, where it chooses that row."""
    text = OWN.format("look_share = 0, max_rows_contributed = 2")
    text += "page, COUNT(*) AS n FROM clicks GROUP BY page"
    if is_planted:
        instead(group_by, "compile_unit", unit_of_the_row_before)(monkeypatch)
    rng, caught = np.random.default_rng(4), False
    for seed in range(40 if is_planted else 6):
        pair = raw_rows.neighbours_drawn(rng, texts.plan_of(text), raw_rows.HOURS)
        try:
            caught |= not texts.account_of(pair, seed).stands
        except WitnessError:
            caught = True
    assert caught == is_planted


def without_gaps(honest):
    """Rows without a unit are left out as they are read."""

    def read(self, *given):
        kept = copy(self)
        kept.table = self.table.filter(pc.is_valid(self.table["user"]))
        return honest(kept, *given)

    return read


def by_size(honest):
    """Combined rows in the order of their totals: of a unit's own, bounding takes the largest."""

    def combined(plan, table):
        rows, unusable = honest(plan, table)
        return combine.Combined(rows.slice(rows.num_rows // 2), unusable)

    return combined


OWN = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 0.5, delta = 1e-6, privacy_unit_column = user,"
    " {}) "
)
FAULTS = {
    "totals of a person's rows are those of everybody": (
        instead(own_rows, "numbered", all_units_are_one),
        "WITH own AS (SELECT user, COUNT(*) OVER (PARTITION BY user) AS page, ms FROM clicks) "
        + OWN.format("look_share = 0, max_rows_contributed = 2")
        + "page, COUNT(*) AS n FROM own GROUP BY page",
    ),
    "of combined rows the later half counts": (
        instead(combine, "combine_rows", by_size),
        OWN.format("look_share = 0, max_groups_contributed = 2")
        + "page, SUM(ms, contribution_bounds_per_group => (0, 8)) AS s FROM clicks GROUP BY page",
    ),
    "rows without a unit take no place": (
        instead(MemorySource, "read", without_gaps),
        OWN.format("look_share = 0, max_rows_contributed = 2, steps = 4")
        + "page, COUNT(*) AS n FROM clicks GROUP BY page EMIT EVERY 60 ROWS",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_in_row_functions_are_caught(name, monkeypatch):
    plant, text = FAULTS[name]
    plant(monkeypatch)
    rng = np.random.default_rng(1)
    plan = texts.plan_of(text)
    pairs = (raw_rows.neighbours_drawn(rng, plan, raw_rows.HOURS) for _ in range(20))
    assert any(not texts.account_of(pair, 1).stands for pair in pairs)


LOOKS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 0.5, delta = 1e-6, privacy_unit_column = user,"
    " look_share = 0.3) page, SUM(ms) AS s, COUNT(*) AS n FROM clicks GROUP BY page"
)
BARE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 40, delta = 1e-6, privacy_unit_column = user,"
    " look_share = 0.3) page, SUM(ms) AS s, AVG(ms * 3) AS a, COUNT(*) AS n FROM clicks"
    " GROUP BY page"
)


@pytest.mark.parametrize("is_planted", [False, True])
def test_what_a_look_chooses_follows_from_what_it_released_alone(is_planted, monkeypatch):
    """Bounds by forecast too. Planted: sizes that move with the exact number of values."""
    if is_planted:
        monkeypatch.setattr(look_module, "look", number_of_values(look_module.look))
    rng, differ = np.random.default_rng(7), 0
    for seed in range(4):
        pair = raw_rows.neighbours_drawn(rng, texts.plan_of(BARE), raw_rows.HOURS)
        one, other = looks.choices(pair.plans, seed)
        assert one["looked"]["bounds"]
        differ += one != other
    assert bool(differ) is is_planted


def number_of_values(honest):
    def look(plan, noise, *given):
        learned = honest(plan, noise, *given)
        rows = pa.concat_tables(look_module.rows_of(plan))["ms"]
        octaves = (len(rows) - rows.null_count) % 7
        moved = {text: ValueSizes(np.roll(one.below, octaves), np.roll(one.above, octaves))
                 for text, one in learned.sizes.items()}  # fmt: skip
        return replace(learned, sizes=moved)

    return look


MEANS = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 0.5, delta = 1e-6, privacy_unit_column = user,"
    " look_share = 0.3) page, AVG(ms, contribution_bounds_per_row => (0, 9)) AS a,"
    " PERCENTILE_CONT(ms, 0.5, contribution_bounds_per_row => (0, 9)) AS q"
    " FROM clicks GROUP BY page"
)


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_look_for_means_and_quantiles_loses_no_more_than_is_claimed(is_planted, monkeypatch):
    """Planted: half of the noise that is charged."""
    if is_planted:
        LOOK_FAULTS["the look has less noise than it is charged for"](monkeypatch)
    rng, stands, most = np.random.default_rng(3), [], 0.0
    for seed in range(6):
        pair = raw_rows.neighbours_drawn(rng, texts.plan_of(MEANS), raw_rows.HOURS)
        lost, claim, share = looks.look_lost(pair.plans, seed, pair.periods)
        stands.append(lost.stands(claim))
        assert claim.fits(share)
        most = max(most, lost.tightness(claim))
    assert all(stands) is not is_planted
    assert most > 0.6


def twice_no(sizes):
    """Sizes, each of a middle row."""
    return sizes, np.zeros(len(sizes), np.bool_)


LOOK_FAULTS = {
    "shares of rows that repeat are shown in quanta": instead(
        survey, "quanta_at", lambda honest: lambda place: 1
    ),
    "every value of a unit chooses bounds": instead(
        survey, "middle_of_each", lambda honest: lambda values: twice_no(np.concatenate(
            [honest(values)[0][:0], *(part.held for part in values.parts())]))
    ),
    "a unit votes on both ballots of values": instead(
        survey, "two_ballots", lambda honest: lambda sizes, other: honest(
            np.append(sizes, np.where(other, 0.0, sizes)),
            np.append(other, np.zeros_like(other)))
    ),
    "all rows of a unit are counted in its groups": instead(
        survey, "shape_of", lambda honest: lambda groups, *given: honest(groups, *given)._replace(
            cell=np.concatenate([honest(groups, *given).cell[:0],
                                 *(part.held for part in groups.parts())]))
    ),
    "the look has less noise than it is charged for": instead(
        survey, "quanta_at", lambda honest: lambda place: honest(place) / 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOK_FAULTS)
def test_planted_faults_in_the_look_are_caught(name):
    rng = np.random.default_rng(2)
    for seed in range(12):
        pair = raw_rows.neighbours_drawn(rng, texts.plan_of(LOOKS), raw_rows.HOURS)
        with pytest.MonkeyPatch.context() as patch:
            LOOK_FAULTS[name](patch)
            lost, claim, _ = looks.look_lost(pair.plans, seed)
        if not lost.stands(claim):
            return
    raise AssertionError(name)
