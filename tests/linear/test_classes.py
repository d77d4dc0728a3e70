"""Query classes and strategies of structure are the matrices that they stand for."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.core.noise import SeededNoise
from streamveil.linear import (
    Additive,
    Direct,
    Marginals,
    Mwem,
    Place,
    Points,
    Ranges,
    Residuals,
    Share,
)
from streamveil.linear.budget_shares import GRID


@st.composite
def classes(draw):
    """Marginals or ranges over a small domain of up to three attributes."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    axes = st.sets(st.integers(0, len(shape) - 1)).map(lambda one: tuple(sorted(one)))
    if draw(st.booleans()):
        return Marginals(shape, tuple(draw(st.lists(axes, min_size=1, max_size=4))))
    ends = [st.lists(st.integers(0, size), min_size=2, max_size=2).map(sorted) for size in shape]
    boxes = np.array(draw(st.lists(st.tuples(*ends), min_size=1, max_size=5)))
    return Ranges.of(shape, boxes[:, :, 0], boxes[:, :, 1])


def matrix_of(queries):
    return np.array([queries.weights(index) for index in range(queries.size)])


@given(classes(), st.data())
def test_answers_and_norms_are_those_of_the_matrix(queries, data):
    matrix = matrix_of(queries)
    counts = st.lists(st.integers(-9, 9), min_size=queries.domain, max_size=queries.domain)
    histogram = np.array(data.draw(counts))
    assert (queries.exact(histogram) == matrix @ histogram).all()
    np.testing.assert_allclose(queries.answers(histogram / 7), matrix @ (histogram / 7))
    assert queries.l1 >= np.abs(matrix).sum(axis=0).max()
    assert queries.l2_squared >= (matrix**2).sum(axis=0).max()


def strategies_of(queries):
    yield Direct(queries)
    yield Points(queries)
    if isinstance(queries, Marginals):
        yield Residuals(queries)


@settings(max_examples=25)
@given(classes(), st.sampled_from(["pure", "zcdp"]))
def test_strategies_are_their_matrices(queries, kind):
    """Of every record: what is measured, recovered, moved, and how far off each answer is."""
    norm = 1 if kind == "pure" else 2
    for strategy in strategies_of(queries):
        records = np.eye(queries.domain, dtype=int)
        measured = np.array([strategy.measure(one) for one in records]).T
        recovery = np.array([strategy.recover(one) for one in np.eye(strategy.rows)]).T
        np.testing.assert_allclose(recovery @ measured, matrix_of(queries), atol=1e-9)
        scales = strategy.scales(kind)
        assert not measured[scales == 0].any()  # of an empty range
        moved = measured[scales > 0] / scales[scales > 0, None]
        assert np.linalg.norm(moved, norm, axis=0).max(initial=0) <= 1
        deviations = np.sqrt((recovery**2) @ scales**2)
        np.testing.assert_allclose(strategy.units(kind), deviations, rtol=1e-6)
        assert strategy.unit(kind) == pytest.approx(deviations.max())


@given(st.fractions(Fraction(1, 10**9), 100, max_denominator=10**9))
def test_what_a_share_pays_for_is_rounded_to_the_safe_side(amount):
    share, unit = Share("zcdp", amount), Fraction(1, GRID)
    assert share.epsilon**2 / 2 <= amount < (share.epsilon + unit) ** 2 / 2
    assert share.choice_epsilon**2 / 8 <= amount < (share.choice_epsilon + unit) ** 2 / 8
    sigma = share.spread(1, 1)
    assert (sigma - 2 * unit) ** 2 * 2 * amount < 1 <= sigma**2 * 2 * amount
    parts = share.split(1, 2, 4)
    assert amount - 3 * unit < sum(part.amount for part in parts) <= amount


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), ("x",)])
def test_a_share_is_split_by_weights_or_refused_in_words(weights):
    with pytest.raises(ValueError, match=r"weight|amount"):
        Share("zcdp", Fraction(1)).split(*weights)


@pytest.mark.parametrize("kind", ["pure", "zcdp", "gdp"])
def test_a_share_loses_what_its_noise_does(kind):
    share = Share(kind, Fraction(3, 7))
    scale, loss = share.spread(1, 1), share.loss
    lost = {"pure": loss.pure_total, "zcdp": 2 * loss.zcdp, "gdp": loss.gaussian}[kind]
    true = 1 / scale if kind == "pure" else 1 / scale**2
    assert true <= lost <= true * (1 + Fraction(1, 10**20))


@settings(max_examples=25)
@given(classes(), st.sampled_from(["pure", "zcdp", "gdp"]))
def test_a_record_that_is_replaced_moves_what_is_measured_as_far_as_said(queries, kind):
    norm, records = 1 if kind == "pure" else 2, np.eye(queries.domain, dtype=int)
    for strategy in strategies_of(queries):
        scales = strategy.scales(kind)
        measured = np.array([strategy.measure(one) for one in records])[:, scales > 0]
        moved = (measured[:, None] - measured[None]) / scales[scales > 0]
        most = np.linalg.norm(moved, norm, axis=2).max(initial=0)
        assert most <= Additive(strategy, replaced=True).sensitivity(kind)


@pytest.mark.parametrize("kind", ["pure", "zcdp"])
def test_all_choices_and_measurements_of_mwem_together_cost_its_share(kind, monkeypatch):
    spent = []
    for name in ("choose", "noisy"):
        real = getattr(Share, name)

        def paid(self, *given, real=real):
            spent.append(self.amount)
            return real(self, *given)

        monkeypatch.setattr(Share, name, paid)
    share, place = Share(kind, Fraction(5)), Place(SeededNoise(3), "test")
    Mwem(queries=Marginals.ways((2,) * 4, 2), rounds=6).release(np.full(16, 90), share, place)
    assert len(spent) == 1 + 2 * 6  # the number of records, then a choice and a number a round
    assert share.amount * (1 - Fraction(1, 10**9)) < sum(spent) <= share.amount
