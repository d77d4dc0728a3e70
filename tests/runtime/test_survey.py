"""A survey of private rows: what one unit moves, what is charged, what it says."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import streamveil as sv
from streamveil.accounts.ledger import Ledger
from streamveil.compiler.by_unit import UnitFacts, middle_of_each, shape_of
from streamveil.compiler.group_sizes import (
    BUCKET_WEIGHT,
    BUCKETS,
    SIZES,
    WEIGHT,
    groups_by_size,
    rows_by_bucket,
)
from streamveil.compiler.numbering import Numbering, taken
from streamveil.compiler.unit_sample import LEVELS, UnitSample
from streamveil.core.accounting import Neighbours
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import BudgetError, PlanError
from streamveil.plan.look import HISTOGRAM, LAWS
from streamveil.runtime.noisy_bins import SHARE_QUANTA, VAGUE, BinsOf, learn, learned, likely
from streamveil.runtime.survey import ROW_EDGES, SAMPLE_WEIGHT, Survey, histograms, survey
from tests.advise.test_tune import clicks, plan
from tests.statistics import ALPHA, DETECTABLE, SAMPLES, assert_fits, assert_rejects

PRICE = sv.Budget(epsilon=1, delta=1e-9)
SUMMED = {"s": sv.sum("ms", bounds=(0, 100))}


def asked(table):
    return plan(table, aggregates=SUMMED)


def exact(made, table, *, valued=True):
    """The histograms of all rows, whichever row of a unit is chosen."""
    groups, _ = taken(made, made, [], [table])
    shape = shape_of(groups.rows, np.zeros(groups.rows.units, np.uint64))
    return histograms(shape, groups.first if valued else None)


def moved(table, without):
    both = [exact(asked(t), t) for t in (table, without)]
    each = (1, SHARE_QUANTA, 1)  # what a unit may add at most
    return [float((((a - b) / one) ** 2).sum()) for a, b, one in zip(*both, each, strict=True)]


@pytest.mark.parametrize("unit", [0, 7, 33, 149])
def test_one_unit_moves_each_histogram_by_one(unit):
    table = clicks(150)
    user = table["user"].to_numpy()
    without = table.filter(pa.array(user != unit))
    rows, shares, values = moved(table, without)
    assert rows == values == (user == unit).any()
    assert 0 <= shares <= rows
    loss = Survey(PRICE, 3, Neighbours(unit="user"))
    moved_by = 3 + Fraction(1, WEIGHT**2) + Fraction(1, BUCKET_WEIGHT**2)
    assert loss.guarantee.loss.gaussian >= moved_by / loss.sigma**2
    assert loss.guarantee.epsilon(1e-9) <= 1


def test_no_time_of_one_unit_moves_another(tmp_path):
    users, far = np.arange(300), 1 << 62
    table = pa.table({"user": users, "ts": np.zeros(300, np.int64), "ms": users})
    odd = pa.table({"user": [999, 999], "ts": [-far, far - 1], "ms": [1, 1]})
    query = (
        sv.memory(table, event_time="ts", name="t").protect("user", per="1 microsecond")
        .agg(**SUMMED).bound(max_rows=1)
        .release(every="1 day", start="1970-01-01", end="1970-01-02", budget=PRICE)
    )  # fmt: skip
    both = [exact(query.plan, t) for t in (table, pa.concat_tables([table, odd]))]
    assert both[0][0][0] == 300  # each unit has one row
    moves = [np.abs(whole - without).sum() for without, whole in zip(*both, strict=True)]
    assert moves == [2, 0, 2]  # one for each period of the odd unit, which repeats nothing


def test_bins_are_fixed_and_hold_every_unit():
    table = clicks(400)
    rows, repeats, values = exact(asked(table), table)
    per_unit = np.bincount(np.unique(table["user"].to_numpy(), return_inverse=True)[1])
    assert rows.sum() == values.sum() == len(per_unit)
    assert rows[0] == (per_unit == 1).sum()
    assert repeats[0] == 0 < repeats.sum()  # a unit with one row repeats nothing
    assert (repeats <= rows * SHARE_QUANTA).all()
    assert len(rows) == len(ROW_EDGES)
    nothing = exact(asked(table), table.slice(0, 0), valued=False)
    assert [len(one) for one in nothing] == [len(ROW_EDGES), len(ROW_EDGES)]


def test_without_noise_it_says_what_is_there():
    table = clicks(20_000)
    learned, _ = survey(asked(table), table, sv.Budget(mu=50, delta=1e-9), SilentNoise())
    user = table["user"].to_numpy()
    per_unit = np.unique(user, return_counts=True)[1]
    assert learned.sure
    assert learned.units.value == pytest.approx(len(per_unit), rel=0.01)
    assert learned.most.value == pytest.approx(np.quantile(per_unit, 0.99), rel=0.35)
    pages = table["key"].combine_chunks().dictionary_encode().indices.to_numpy()
    groups = np.unique(np.unique([user, pages], axis=1)[0], return_counts=True)[1]
    capped = np.minimum(per_unit, learned.cap)
    truth = (capped * (1 - groups / per_unit)).sum() / capped.sum()
    assert learned.repeats.low <= truth <= learned.repeats.high
    assert learned.repeats.value == pytest.approx(truth, abs=0.05)
    high = np.quantile(table["ms"].to_numpy().clip(0, 100), 0.99)
    assert high <= learned.high.value <= 2 * high


def test_the_ledger_pays_before_anything_is_drawn():
    table = clicks(300)
    limit = sv.Budget(epsilon="1.2", delta="2e-9")
    ledger = Ledger.open(None, limit, Neighbours(unit="user"))
    survey(asked(table), table, PRICE, SeededNoise(1), ledger)
    [charge] = ledger.entries()
    assert charge.name == "survey for query"
    assert ledger.spent().gaussian == pytest.approx(charge.loss.gaussian)
    with pytest.raises(BudgetError):
        survey(asked(table), table, PRICE, SeededNoise(2), ledger)


def test_a_quiet_survey_says_nothing_and_data_raise_nothing():
    table = clicks(20)
    nothing, _ = survey(asked(table), table, sv.Budget(epsilon="0.01", delta=1e-9), SeededNoise(3))
    assert nothing.rows is None
    assert nothing.options == {}
    empty, promise = survey(asked(table), table.slice(0, 0), PRICE, SeededNoise(3))
    assert empty.units is None
    assert promise.epsilon(1e-9) <= 1
    with pytest.raises(PlanError, match="delta"):
        survey(asked(table), table, sv.Budget(epsilon=1), SeededNoise(1))


HEARD: list[np.ndarray] = []  # what a survey said, as post-processing may not hold anything


def heard(sigma, _expressions, *noisy):
    """Keeps what was said, the numbers and buckets of groups among them."""
    HEARD.append(np.concatenate(noisy))
    return learn([*noisy[:-2]], sigma)


def test_the_noise_has_the_declared_scale(monkeypatch):
    sigma = float(Survey(PRICE, 2, Neighbours(unit="user")).sigma)
    table, made = clicks(5), plan(clicks(5))
    held, _ = taken(made, made, [], [table])
    bins = exact(made, table, valued=False)
    lengths = [len(ROW_EDGES), len(ROW_EDGES), len(SIZES), BUCKETS]
    each = np.repeat([1, SHARE_QUANTA, WEIGHT, BUCKET_WEIGHT], lengths)
    errors = []
    monkeypatch.setattr("streamveil.runtime.survey.learned", heard)
    for seed in range(-(-SAMPLES // len(each))):
        survey(made, table, PRICE, SeededNoise(seed))
        noise = SeededNoise(seed)
        words = noise.at("rows to survey").words(held.rows.units)
        cells = shape_of(held.rows, words).cell
        buckets = rows_by_bucket(cells, noise.at("buckets to survey").words(held.groups))
        truth = np.concatenate([*bins, groups_by_size(cells), buckets])
        errors.append((HEARD.pop() - truth) / each)
    found = np.concatenate(errors)
    from scipy.stats import norm

    assert_fits(found + uniform(len(found)), norm(0, (sigma**2 + 1 / 12) ** 0.5), alpha=ALPHA)
    assert_rejects(found + uniform(len(found)), norm(0, DETECTABLE * sigma), alpha=ALPHA)
    for some in (slice(-len(SIZES) - BUCKETS, -BUCKETS), slice(-BUCKETS, None)):
        part = np.concatenate([one[some] for one in errors])
        assert np.std(part) == pytest.approx(sigma, rel=0.1)  # of thousands: beyond 6 deviations


def uniform(n):
    return np.random.default_rng(8).random(n) - 0.5


@pytest.mark.parametrize("texts", [["1", "2", "3"], ["1", "jane.doe", "3"]])
def test_texts_are_refused_by_their_type_and_never_quoted(texts):
    table = pa.table({"user": [1, 2, 3], "page": ["a", "a", "b"], "ms": texts})
    asked = sv.memory(table).protect("user").group_by("page").agg(**SUMMED).bound(max_rows=2)
    made = asked.release(every=sv.rows(3), steps=1, budget=PRICE)
    with pytest.raises(PlanError, match="adds up values of type string") as refused:
        survey(made.plan, table, PRICE, SeededNoise(1))
    assert "jane" not in str(refused.value)


def rows_of_units(kind, units, rng):
    """How many rows each unit has: Zipf's tail, a few heavy units, or all alike."""
    if kind == "tail":
        return np.minimum(rng.zipf(1.7, units), 5_000)
    return np.where(rng.random(units) < 0.03, 900, 1) if kind == "heavy" else np.full(units, 27)


def binned(rows, rng, sigma, times=1):
    """The noisy histograms of one in so many units: a third of all rows but the first repeat."""
    rows = rows[rng.random(len(rows)) * times < 1]
    exact = [np.bincount(np.searchsorted(ROW_EDGES, rows, side="right") - 1,
                         minlength=len(ROW_EDGES))]  # fmt: skip
    exact.append(0.35 * exact[0])
    noisy = [one + rng.normal(0, sigma, len(one)) for one in exact]
    return [np.round(one * each).astype(np.int64) for one, each in zip(noisy, (1, SHARE_QUANTA),
                                                                      strict=True)]  # fmt: skip


@pytest.mark.parametrize("kind", ["tail", "heavy", "alike"])
@pytest.mark.parametrize("units", [2_000, 100_000])
@pytest.mark.parametrize("sigma", [1.0, 30.0, 1_000.0])
def test_the_truth_lies_in_the_intervals(kind, units, sigma):
    """60 surveys, each wrong with 5 % at most: 20 misses have a chance below 1e-11."""
    rng, missed, said = np.random.default_rng(7), 0, 0
    for _ in range(60):
        rows = rows_of_units(kind, units, rng)
        found = learn(binned(rows, rng, sigma), sigma)
        truths = {"units": units}
        if found.cap is not None:
            capped = np.minimum(rows, found.cap).mean()
            truths |= {"rows": capped, "repeats": 0.35 * (1 - 1 / capped),
                       "most": np.quantile(rows, 0.99, method="inverted_cdf")}  # fmt: skip
        known = [(getattr(found, name), truth) for name, truth in truths.items()]
        known = [(one, truth) for one, truth in known if one is not None]
        missed += any(not one.low <= truth <= one.high for one, truth in known)
        assert all(one.low <= one.value <= one.high for one, _ in known if one is not found.units)
        said += bool(found.options)
        if found.options:  # and what is chosen from is within the factor that is promised
            assert VAGUE**-1 <= found.options["expected_rows"] / truths["rows"] <= VAGUE
    assert missed < 20
    if sigma == 1.0 and units == 100_000:
        assert said == 60  # a quiet survey does answer
    if sigma == 1_000.0 and units == 2_000:
        assert said == 0  # and a loud one does not


@pytest.mark.parametrize("kind", ["tail", "heavy", "alike"])
@pytest.mark.parametrize(("units", "times", "sigma"), [(10**5, 16, 1.0), (10**5, 4, 30.0)])
def test_the_truth_lies_in_the_intervals_of_a_sample(kind, units, times, sigma):
    """60 surveys, as above. Intervals that knew of the noise alone missed the units in all 60."""
    rng, missed, known = np.random.default_rng(11), 0, 0
    for _ in range(60):
        rows = rows_of_units(kind, units, rng)
        bins = [times * some for some in binned(rows, rng, sigma, times)]
        found = learn(bins, times * sigma, times)
        capped = np.minimum(rows, found.cap or 1).mean()
        most = np.quantile(rows, 0.99, method="inverted_cdf")
        said = [(found.units, units), (found.repeats, 0.35 * (1 - 1 / capped)),
                (found.rows, capped), (found.most, most)]  # fmt: skip
        missed += any(one and not one.low <= truth <= one.high for one, truth in said)
        known += found.rows is not None
    assert missed < 20
    assert known == 60


@pytest.fixture
def few(monkeypatch):
    """A look keeps a sample where there are more units than this."""
    monkeypatch.setattr("streamveil.runtime.survey.most_units", lambda sigma: 300)
    return 300


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_sample_of_units_is_all_of_their_rows(few, text, threads):
    """Whatever was kept before it was small enough: as of the rows of these units alone."""
    rng = np.random.default_rng(4)
    table = pa.table({"user": rng.integers(0, 2_000, 9_000), "key": rng.integers(0, 40, 9_000),
                      "ms": rng.exponential(50.0, 9_000)})  # fmt: skip
    if text:
        table = table.set_column(0, "user", table["user"].cast(pa.string()))
    made, words = asked(table), np.arange(7, 13, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    parts = [table.slice(start, 500) for start in range(0, len(table), 500)]
    sample = UnitSample(words, few)
    groups, [values] = taken(made, made, ["ms"], parts, threads, sample)
    units = table["user"].unique()
    numbers = Numbering(sample.key)
    names = numbers.words(units)
    levels = sample.levels(names.names, names.each)
    assert sample.level >= 2
    assert few < (levels >= sample.level - 1).sum()
    assert (levels >= sample.level).sum() <= few
    assert groups.units.least[0] == (levels == LEVELS).sum()
    for level in (sample.level, sample.level + 1):
        inside = pc.is_in(table["user"], units.filter(pa.array(levels >= level)))
        kept, own = groups.units.kept(level), values.units.kept(level)
        shape = shape_of(groups.rows, np.zeros(groups.rows.units, np.uint64), threads)
        found = histograms(UnitFacts(*(one[kept] for one in shape)), groups.first[kept])
        alone = table.filter(inside)
        for ours, theirs in zip(found, exact(made, alone), strict=True):
            assert ours.tolist() == theirs.tolist()
        _, [whole] = taken(made, made, ["ms"], [alone])
        for ours, theirs in zip(
            middle_of_each(values.rows), middle_of_each(whole.rows), strict=True
        ):
            assert ours[own].tolist() == theirs.tolist()


def test_a_survey_of_a_sample_says_what_is_there(monkeypatch):
    """Of 60,000 units one in 16 is counted; without noise, the draw of these is left."""
    monkeypatch.setattr("streamveil.runtime.survey.most_units", lambda sigma: 6_000)
    rng = np.random.default_rng(2)
    rows = rng.permutation(np.repeat(np.arange(60_000), rng.integers(1, 6, 60_000)))
    table = pa.table({"user": rows, "key": rng.integers(0, 40, len(rows))})
    made, mu = plan(table, steps=1), sv.Budget(mu=50, delta=1e-9)
    said, promise = survey(made, table, mu, SilentNoise())
    sampled = Survey(mu, 2, Neighbours(unit="user"), sampled=True)
    assert promise.loss == sampled.guarantee.loss
    counted = 2 + Fraction(1, WEIGHT**2) + Fraction(1, BUCKET_WEIGHT**2)
    assert promise.loss.gaussian >= (counted + Fraction(1, SAMPLE_WEIGHT**2)) / sampled.sigma**2
    assert said.units.low < 60_000 < said.units.high < 1.2 * said.units.low
    assert said.rows.value == pytest.approx(3.0, rel=0.05)
    whole, _ = survey(made, iter([table]), mu, SilentNoise())
    for name, value in whole.options.items():
        assert said.options[name] == pytest.approx(value, rel=0.05, abs=0.02)
        assert said.likely[name] == pytest.approx(whole.likely[name], rel=0.05, abs=0.02)


def test_rows_are_read_again_where_a_larger_sample_is_asked_for(few, monkeypatch):
    table, read = clicks(4_000), []

    def again():
        read.append(1)
        return iter([table.slice(start, 500) for start in range(0, len(table), 500)])

    made, mu = asked(table), sv.Budget(mu=5, delta=1e-9)
    whole = survey(made, iter([table]), mu, SilentNoise())[0]
    for level, times in ((0, 2), (6, 1)):
        read.clear()
        monkeypatch.setattr("streamveil.runtime.survey.level_for", LEVELS_FOR[level])
        said, _ = survey(made, again, mu, SilentNoise())
        assert len(read) == times
        assert (said.likely == whole.likely) is (level == 0)


LEVELS_FOR = {0: lambda noisy, most: 0, 6: lambda noisy, most: 6}


def test_noise_that_hides_heavy_units_chooses_no_bound():
    """Means of 27.2 rows were printed as 2.01, since bins with few units counted as empty."""
    rng = np.random.default_rng(1)
    rows = np.where(rng.random(3_000) < 0.03, 840, 2)
    assert rows.mean() == pytest.approx(27.2, abs=4)
    for _ in range(20):
        found = learn(binned(rows, rng, 80.0), 80.0)
        assert found.options == {}
        assert found.rows is None or found.rows.high >= rows.mean()


def test_a_bin_of_noise_alone_does_not_make_rows_many():
    """With 3 deviations for a bin, 4 looks of 100 took noise far out for units of 1,000 rows.

    False alarms: noise of 41 bins and of 41 sums of two beyond 4 deviations, in 400 looks, 1 on
    average; more than 5 of them with probability below 1e-3.
    """
    rng, sigma = np.random.default_rng(5), 20.0
    exact = [np.zeros(len(ROW_EDGES)), np.zeros(len(ROW_EDGES))]
    exact[0][:3] = (5000, 3000, 2000)
    means = [
        likely([np.round(bins + sigma * rng.normal(size=len(bins))) for bins in exact], sigma)[
            "expected_rows"
        ]
        for _ in range(400)
    ]
    assert sum(not 1.5 < mean < 2.0 for mean in means) <= 5


def test_few_units_of_many_rows_stand_out_by_what_they_repeat_too():
    """Of 100 units one had half of all rows, and three looks of ten took it for noise.

    Units alone, 32 with noise of 7, stand out beyond 28 with probability 0.71; with 30 more that
    repeat, beyond 40 of noise 10, in 0.986. Misses of 200 looks: 2.8 on average, above 20 never.
    """
    rng, sigma = np.random.default_rng(6), 7.0
    exact = [np.zeros(len(ROW_EDGES)), np.zeros(len(ROW_EDGES))]
    exact[0][1], exact[0][19] = 3_200, 32
    exact[1][19] = 30 * SHARE_QUANTA
    scales = np.array([sigma, sigma * SHARE_QUANTA])[:, None]
    means = [
        likely([*np.round(exact + scales * rng.normal(size=(2, len(ROW_EDGES))))], sigma)[
            "expected_rows"
        ]
        for _ in range(200)
    ]
    assert sum(mean < 6 for mean in means) <= 20


def test_repeats_are_a_share_of_rows_and_not_a_mean_over_units():
    """Half of the units have one row; the other half eight, of which three quarters repeat."""
    users = np.r_[np.arange(5_000), np.repeat(np.arange(5_000, 10_000), 8)]
    pages = np.r_[np.zeros(5_000, int), np.tile([0, 0, 0, 0, 1, 1, 1, 1], 5_000)]
    table = pa.table({"user": users, "page": pages})
    query = sv.memory(table, name="t").protect("user").group_by("page").agg(n=sv.count())
    made = query.release(every=sv.rows(1), steps=1, budget=PRICE).plan
    found, _ = survey(made, table, sv.Budget(mu=5, delta=1e-9), SeededNoise(2))
    assert found.likely["expected_repeats"] == pytest.approx(2 / 3, abs=0.03)
    assert found.repeats.low <= 2 / 3 <= found.repeats.high


@pytest.mark.parametrize("repeating", [False, True])
def test_pairs_of_rows_tell_whether_they_repeat(repeating):
    """Of 2,000 units 100 have two rows: the share that repeats was hidden by the noise of others.

    Told is one for each unit, not half of one, and units with one row add no noise to it.
    """
    users = np.r_[np.arange(2_000), np.arange(100)]
    pages = np.r_[np.arange(2_000) % 50, (np.arange(100) + (0 if repeating else 1)) % 50]
    table = pa.table({"user": users, "page": pages})
    query = sv.memory(table, name="t").protect("user").group_by("page").agg(n=sv.count())
    made = query.release(every=sv.rows(1), steps=1, budget=PRICE).plan
    truth = 100 / 2_100 if repeating else 0.0
    for seed in range(5):
        found, _ = survey(made, table, sv.Budget(mu=0.15, delta=1e-9), SeededNoise(seed))
        sigma, off = found.seen.sigma, found.seen.off
        assert off == pytest.approx(sigma / 2_100, rel=0.1)
        assert abs(found.seen.again - truth) < 4 * off
        assert off < truth / 4 or not repeating


def test_the_histogram_is_told_where_a_twentieth_of_units_would_stand_out():
    """Where it would not, the few bins that do say nothing of the tail."""
    bins = [np.zeros(len(ROW_EDGES), np.int64), np.zeros(len(ROW_EDGES), np.int64)]
    bins[0][:3] = (6_000, 3_000, 1_000)
    sizes = np.zeros(len(SIZES), np.int64), np.zeros(BUCKETS, np.int64)
    told = learned(124.0, BinsOf(), *bins, *sizes).likely[HISTOGRAM]
    assert [share for *_, share in told[:3]] == pytest.approx([0.6, 0.3, 0.1], rel=0.05)
    assert sum(share for *_, share in told[3:]) < 0.05  # what the noise may hide
    assert HISTOGRAM not in learned(130.0, BinsOf(), *bins, *sizes).likely
    assert LAWS in learned(130.0, BinsOf(), *bins, *sizes).likely
