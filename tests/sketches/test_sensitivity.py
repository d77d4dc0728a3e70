"""What one change moves, by enumeration: never more than the noise was sized for."""

import contextlib

import numpy as np
import pytest

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise.bulk.gaussian import distance
from streamveil.sketches import HeavyHitters, LazySketch
from streamveil.sketches.privacy import squared_change
from tests.sketches.test_cells import dense
from tests.sketches.twin import increments

HORIZON = 24


def sketch(kind, relation, counter="blt-1", **fields):
    usual = dict(width=5, depth=3, horizon=HORIZON, round=6, block=2,
                 budget=Budget(epsilon=1, delta=1e-6))  # fmt: skip
    return LazySketch(kind=kind, protects=Neighbours(relation=relation), counter=counter,
                      **(usual | fields))  # fmt: skip


def moved(config, first, second):
    """Squared L2 distance of the encoded increments of two streams with None for blanks."""
    tables = []
    for stream in (first, second):
        times = [t + 1 for t, key in enumerate(stream) if key is not None]
        tables.append(increments(config, [key for key in stream if key is not None], times))
    difference = (tables[0] - tables[1]).reshape(-1, config.cell.pushes)
    _, encode = dense(config.cell.name, config.cell.pushes)
    return float(((difference @ encode.T) ** 2).sum())


def neighbours_of(stream, relation, keys):
    for position in range(len(stream)):
        others = [None] if relation == "event" else [k for k in keys if k != stream[position]]
        for other in others:
            yield [*stream[:position], other, *stream[position + 1 :]]


@pytest.mark.parametrize("kind", ["count-min", "count-sketch"])
@pytest.mark.parametrize("relation", ["event", "event-change"])
@pytest.mark.parametrize("counter", ["tree", "blt-1", "blt-2"])
def test_no_neighbour_moves_the_encoder_further_than_declared(kind, relation, counter):
    worst = 0.0
    for seed in range(3):
        config = sketch(kind, relation, counter, seed=seed)
        stream = np.random.default_rng(seed).integers(0, 12, HORIZON).tolist()
        for other in neighbours_of(stream, relation, range(6)):
            worst = max(worst, moved(config, stream, other))
    assert worst <= config.noise.l2**2
    assert worst >= 0.5 * config.noise.l2**2 / (2 if "change" in relation else 1)


def colliding_pair(config):
    """Two keys that share their cell in every row with opposite signs."""
    words = np.arange(200_000, dtype=np.uint32)
    places = config.layout.places(words)
    columns, signs = places >> 1, places & 1
    code = (columns * np.array([1, 5, 25])[:, None]).sum(axis=0)
    for cell in range(125):
        here = np.flatnonzero(code == cell)
        for sign in range(4):
            pattern = np.array([sign >> 1, sign & 1, 0])
            one = here[(signs[:, here] == pattern[:, None]).all(axis=0)]
            two = here[(signs[:, here] == 1 - pattern[:, None]).all(axis=0)]
            if len(one) and len(two):
                return int(one[0]), int(two[0])
    raise AssertionError("no such pair")


@pytest.mark.parametrize("counter", ["tree", "blt-1"])
def test_a_count_sketch_pair_reaches_four_times_the_depth(counter):
    config = sketch("count-sketch", "event-change", counter)
    one, two = colliding_pair(config)
    stream = [one] * HORIZON
    worst = max(moved(config, stream, [*stream[:p], two, *stream[p + 1 :]]) for p in range(HORIZON))
    _, encode = dense(counter, config.cell.pushes)
    assert worst == pytest.approx(4 * config.depth * (encode**2).sum(axis=0).max())
    assert worst > 2 * config.depth * config.cell.column_norm**2 * 1.2  # 2d would be too little
    assert worst <= config.noise.l2**2


@pytest.mark.parametrize(("horizon", "bound"), [(256, 36), (1024, 48)])
def test_closing_the_gap_of_a_deletion_is_not_covered(horizon, bound):
    # with a tree, d = 3, w = 8: every later push window slides, so change grows with the stream
    config = sketch("count-min", "event-change", "tree", width=8, round=8, block=1, horizon=horizon)
    stream = np.random.default_rng(1).integers(0, 30, horizon).tolist()
    shifted = [*stream[1:], None]
    replaced = [(stream[0] + 1) % 30, *stream[1:]]
    assert moved(config, stream, replaced) <= config.noise.l2**2
    assert config.noise.l2**2 == pytest.approx(bound, rel=1e-3)
    assert moved(config, stream, shifted) > 2 * bound


@pytest.mark.parametrize("max_weight", [1, 7])
@pytest.mark.parametrize("items", [1, 4])
def test_weights_and_items_scale_the_noise(max_weight, items):
    base = sketch("count-min", "event")
    unit = Neighbours("user", bound=items, relation="add-remove")
    config = LazySketch(kind="count-min", width=5, horizon=HORIZON, round=6, block=2,
                        protects=unit, budget=base.budget, max_weight=max_weight)  # fmt: skip
    assert config.sigma == pytest.approx(base.sigma * items * max_weight, rel=1e-3)


def test_a_unit_with_several_copies_attains_its_bound():
    config = LazySketch(kind="count-min", width=5, horizon=HORIZON, round=6, block=5,
                        protects=Neighbours("user", bound=3), counter="tree",
                        budget=Budget(epsilon=1, delta=1e-6))  # fmt: skip
    stream = [None] * HORIZON
    with_user = [4, 4, 4, *stream[3:]]
    assert moved(config, stream, with_user) == pytest.approx(9 * 3 * 3)  # C^2 d h, h = 3 levels
    assert config.noise.l2**2 == pytest.approx(9 * 3 * 3)


def encoded(z_change, config, rng):
    """Change of the noise that hides a unit increment, with buffers rounded as they are."""
    omega, theta = config.cell.coefficients
    n, unit = config.cell.pushes, 2.0**-config.noise.bits
    at = int(rng.integers(0, n))
    noise = rng.normal(0, config.sigma, n)
    out = []
    for shift in (0, z_change):
        buffers, centres = np.zeros(len(theta)), []
        for k in range(n):
            centres.append(-(omega * buffers).sum() * unit)
            step = np.rint(noise[k]) + (shift if k == at else 0)
            limit = 2.0**30
            kept = buffers - np.floor((1 - theta) * buffers)
            buffers = np.clip(kept + step / unit, -limit, limit)
        out.append(np.array(centres))
    change = out[1] - out[0]
    change[at] += z_change
    return np.linalg.norm(change)


@pytest.mark.parametrize("counter", ["blt-1", "blt-2"])
@pytest.mark.parametrize("epsilon", [1.0, 0.001])
def test_rounding_of_buffers_stays_within_its_charge(counter, epsilon):
    config = sketch("count-min", "event", counter, horizon=128, round=1,
                    budget=Budget(epsilon=epsilon, delta=1e-9))  # fmt: skip
    rng = np.random.default_rng(0)
    cell = config.cell
    bound = cell.column_norm + cell.rounding_norm(2.0**-config.noise.bits)
    worst = max(encoded(1, config, rng) for _ in range(300))
    assert 0.9 * cell.column_norm < worst <= bound


def test_calibration_is_tight_and_reproduces_the_known_multipliers():
    # smallest sigma over sensitivity of a Gaussian (Balle & Wang 2018), and the textbook one
    for epsilon, delta, kappa, textbook in (
        (0.05, 1e-3, 30.01, 75.53), (0.1, 1e-3, 17.40, 37.76), (0.3, 1e-3, 7.071, 12.588),
        (0.3, 1e-6, 12.992, 17.663), (1, 1e-3, 2.575, None), (1, 1e-6, 4.225, None),
    ):  # fmt: skip
        budget = Budget(epsilon=epsilon, delta=delta)
        config = sketch("count-min", "event", budget=budget)
        assert config.noise.sigma / config.noise.l2 == pytest.approx(kappa, rel=1e-3)
        assert config.guarantee.delta_at(epsilon) == pytest.approx(delta, rel=1e-6)
        assert config.noise.loss.fits(budget)
        if textbook:
            config = sketch("count-min", "event", budget=budget, calibration="textbook")
            assert config.noise.sigma / config.noise.l2 == pytest.approx(textbook, rel=1e-3)


@pytest.mark.parametrize("horizon", [2**16, None])
def test_textbook_noise_keeps_its_budget_or_is_refused(horizon):
    kept = 0
    for delta in (1e-3, 1e-6, 1e-9, 1e-12):
        budget = Budget(epsilon=0.1, delta=delta)
        try:
            config = sketch("count-sketch", "event-change", horizon=horizon, round=16,
                            budget=budget, calibration="textbook")  # fmt: skip
        except ValueError as refused:
            assert "sampler" in str(refused)  # noqa: PT017
            continue
        assert config.guarantee.loss.fits(budget)
        kept += 1
    assert 1 <= kept < 4


def test_the_paper_changes_count_sketch_too_little():
    layout = sketch("count-sketch", "event-change").layout
    assert squared_change(layout, Neighbours(relation="event-change")) == 4 * layout.depth


@pytest.mark.parametrize("counter", ["tree", "blt-1", "blt-2"])
@pytest.mark.parametrize(("epsilon", "horizon", "round_"), [
    (0.01, 2**20, 1), (0.01, 64, 16), (0.01, 1, 1), (1.0, 4096, 16), (20.0, 64, 1),
])  # fmt: skip
@pytest.mark.parametrize("items", [1, 1000])
def test_the_distance_charged_is_that_of_the_noise_that_is_drawn(
    counter, epsilon, horizon, round_, items
):
    """Rounding of buffers can make sigma many times what the budget alone would ask for."""
    unit = Neighbours("user", bound=items)
    plan = None
    with contextlib.suppress(ValueError):  # a budget that no noise can keep
        plan = LazySketch(
            kind="count-min", width=10, horizon=horizon, round=round_, clock="ticks", protects=unit,
            budget=Budget(epsilon=epsilon, delta=1e-6), counter=counter,
        ).noise  # fmt: skip
    if plan is None:
        assert epsilon != 1.0
        pytest.skip("no noise of this sampler keeps this budget")
    draws = plan.touched * items * plan.counter.pushes
    assert plan.loss.distance >= draws * distance(plan.sigma)
    assert plan.loss.epsilon(1e-6) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("max_weight", [0.5, 0, -3, 2**31])
@pytest.mark.parametrize("finder", [True, False])
def test_no_weight_and_no_bound_buys_less_noise_than_one_item_needs(finder, max_weight):
    def make(**options):
        whole = {"width": 10, "horizon": 100, "budget": Budget(epsilon=1, delta=1e-6), **options}
        return HeavyHitters(bits=16, **whole) if finder else LazySketch(kind="count-min", **whole)

    with pytest.raises(ValueError, match="max_weight"):
        make(protects=Neighbours(relation="event"), max_weight=max_weight)
    for bound in (0.5, 2.5):
        with pytest.raises(ValueError, match="whole number of items"):
            make(protects=Neighbours("user", bound=bound))
