import numpy as np
import pytest

from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dynamic.protocol import Changes
from streamveil.dynamic.schedulers import Founded, PublicSizes, best_arity, growing
from streamveil.dynamic.trees import Tree, levels
from streamveil.errors import HorizonError
from streamveil.linear import Marginals, Mwem, Place, Share, noisy_queries

CELLS, SHARE = Marginals.ways((2, 3, 2), 2), Share("pure", 1)
BATCHES = [np.random.default_rng(i).integers(0, 12, 400 if i == 0 else 60) for i in range(13)]


def run(table, noise, batches=BATCHES):
    place = Place(noise, "t")
    state = table.init(place)
    out = []
    for batch in batches:
        table.step(state, Changes(born=batch, updates=len(batch)), place)
        out.append(table.answers(state).values)
    return out


@pytest.mark.parametrize("steps", [None, 12])
def test_without_noise_answers_are_exact_after_every_batch(steps):
    table = growing(noisy_queries(CELLS), SHARE, steps=steps)
    seen = np.zeros(12, np.int64)
    for batch, values in zip(BATCHES, run(table, SilentNoise()), strict=True):
        seen += np.bincount(batch, minlength=12)
        np.testing.assert_array_equal(values, CELLS.exact(seen))


def test_a_record_meets_one_share_in_all(monkeypatch):
    spent = []
    release = PublicSizes.release

    def watched(self, histogram, share, place, size_hat=None):
        spent.append((histogram.copy(), share.amount))
        return release(self, histogram, share, place, size_hat)

    monkeypatch.setattr(PublicSizes, "release", watched)
    marked = [np.full(3, i % 12) for i in range(12)]  # a point that only this batch has
    run(growing(Mwem(queries=CELLS, rounds=1), SHARE, steps=11, arity=3), SeededNoise(1), marked)
    for point in range(12):
        cost = sum(amount for histogram, amount in spent if histogram[point])
        assert 0 < cost <= SHARE.amount
    first = [amount for histogram, amount in spent if histogram[0]]
    assert first == [1]  # the first batch is read once, with everything


def test_sizes_are_not_paid_for_and_totals_are_exact():
    told = PublicSizes(Mwem(queries=CELLS, rounds=2))
    histogram = np.bincount(BATCHES[0], minlength=12)
    values = told.release(histogram, SHARE, Place(SeededNoise(1), "t")).values
    assert values[:6].sum() == pytest.approx(400)


def test_replaced_records_cost_twice_the_noise():
    table = growing(noisy_queries(CELLS), SHARE, steps=3)
    assert table.static.static.replaced
    assert table.guarantee.epsilon(0) == 1


def test_an_accumulator_of_another_price_is_refused():
    told = PublicSizes(Mwem(queries=CELLS))
    with pytest.raises(ValueError, match="same share"):
        Founded(told, SHARE, Tree(told, Share("pure", 2), 4))
    with pytest.raises(HorizonError):
        run(growing(Mwem(queries=CELLS), SHARE, steps=3), SeededNoise(1))


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 63, 64, 365, 1000])
def test_the_arity_is_the_best_of_all(steps):
    costs = {a: (a - 1) * levels(steps, a) ** 2 for a in range(2, steps + 2)}
    assert costs[best_arity(steps)] == min(costs.values())
