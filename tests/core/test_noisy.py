"""What nobody drew noise over cannot leave: the type, and mistakes planted all over the library."""

from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter, methodcaller

import numpy as np
import pyarrow as pa
import pytest

from streamveil.batch import Batch, Moment, Release
from streamveil.changing_tables.operator import Attribute, ChangingTable
from streamveil.changing_tables.questions import QuestionAnswer
from streamveil.connectors.sinks import ConsoleSink, FilesSink, MemorySink
from streamveil.core.counters.cell_kernels import ReleasedCells
from streamveil.core.counters.restarting_trees import RestartingTrees
from streamveil.core.noise import Place, SeededNoise
from streamveil.core.noisy import Noisy, drawn, post_process, public, restored, values
from streamveil.dataflow import cut_rows, group_by, release
from streamveil.dataflow.cut_rows import CutBands
from streamveil.dynamic import pmwg, signed_counter
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.dynamic.protocol import Changes
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.engines.spark.stages import in_key_order
from streamveil.errors import PlanError
from streamveil.linear import additive, sparse_vector
from streamveil.linear.additive import Additive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.sparse_vector import SparseAnswer
from streamveil.linear.strategies import Direct
from streamveil.linear.structured import Marginals
from streamveil.plan import Aggregate
from streamveil.results.releases import Releases
from streamveil.sketches import table
from streamveil.sketches.table import SketchTable
from tests.dataflow.streams import AGGREGATES, LOOSE, batches, compiled, run
from tests.dataflow.test_release import DESIGNS
from tests.sketches import test_operator as sketched

UNITS = (Aggregate(name="people", function="count_units"),)
EXACT = np.array([3, 5])
TABLE = pa.table({"k": ["a"], "n": [3]})
REFUSED = "may hold data|may leave|must be Noisy"
REFUSALS = TypeError, PlanError  # of the class, or of what says it where a public call fails


def test_values_that_may_leave_are_made_by_functions_alone():
    for wrong in (lambda: Noisy(EXACT), lambda: Noisy(EXACT, object())):
        with pytest.raises(TypeError, match="only the core makes"):
            wrong()
    for made in (drawn(EXACT), public(EXACT), restored(EXACT)):
        assert values(made) is EXACT
        assert "3" not in repr(made)
        with pytest.raises(TypeError, match="post_process"):
            np.asarray(made)
        with pytest.raises(TypeError):
            made + EXACT


def test_post_processing_is_a_function_of_noisy_values_and_settings():
    @dataclass(frozen=True)
    class Scale:
        factor: float

        def of(self, array):
            return array * self.factor

    doubled = post_process(Scale(2.0).of, public(EXACT))
    assert values(doubled).tolist() == [6, 10]
    assert values(post_process(np.add, doubled, public(1))).tolist() == [7, 11]
    assert values(post_process(lambda x, y: x[y[0]], doubled, (1, "n", None))) == 10


@dataclass
class State:
    total: int = 3

    def scaled(self, array):
        return array * self.total


@dataclass(frozen=True)
class Held:
    total: object


WRONG = [
    EXACT, EXACT[0], np.float64(3), [3], {"n": 3}, {3}, bytearray(3), TABLE, TABLE["n"],
    pa.scalar(3), State(), Held(EXACT), (1, EXACT), (Held((EXACT[0],)),), object(),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
def test_what_may_hold_data_is_no_argument(wrong):
    with pytest.raises(TypeError, match=r"argument 2 .* may hold data"):
        post_process(lambda noisy, other: other, public(EXACT), wrong)
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}"):
        values(wrong)


def carrying(exact):
    return lambda noisy: noisy + exact


def by_default(noisy, exact=EXACT):
    return noisy + exact


def by_name(noisy, *, exact=EXACT):
    return noisy + exact


class Adds:
    """An object that is called."""

    exact = EXACT

    def __call__(self, noisy):
        return noisy + self.exact


@pytest.mark.parametrize("wrong", [
    carrying(EXACT), carrying(3), partial(np.add, EXACT), State().scaled, EXACT.take, by_default,
    by_name, Adds(), {"a": 1}.get, cache(carrying(EXACT)), methodcaller("__add__", EXACT),
    methodcaller("dot", b=EXACT), itemgetter(EXACT),
])  # fmt: skip
def test_functions_that_remember_values_are_refused(wrong):
    with pytest.raises(TypeError, match="carries values"):
        post_process(wrong, public(EXACT))


# ---- mistakes planted where numbers pass


ROWS = [(unit, "abcd"[unit % 4], 3, 9 * unit % 60, 0) for unit in range(120)]
SHARED = {"options": {"selection": "gaussian"}, "aggregates": UNITS}
TREES = {
    "budget": LOOSE, "options": {"selection": "gaussian"}, "counter": "honaker",
    "aggregates": AGGREGATES[3:],
}  # fmt: skip
CUT = {"options": {"cut_share": 0.5}}


def exact_step(counter, state, increments, *_):
    """A counter's step without the noise."""
    return np.asarray(increments), counter.init(np.shape(increments)[-1], state.t + 1)


def exact_shared(aggregation, state):
    units = state.table.pending[state.published_rows, 0]
    return units, public(np.array(0.0))


def exact_bands(self, cut, at):
    return self.pending


def exact_keys(state, types):
    rows = np.arange(state.table.keys)
    return release.PublishedKeys((), rows.astype(np.int32), rows)


def exact_trees(self, trees, rows, index, increments, at):
    return increments


def exact_sizes(aggregation, state, increments, at):
    return release.Totals(increments.astype(float), np.ones(increments.shape))


MISTAKES = {
    "a total of a group-by": (DESIGNS["table"], (release, "count_weighted", exact_step)),
    "a total of another counter": (TREES, (release, "count", exact_step)),
    "a total that the selection counts": (SHARED, (release, "_shared", exact_shared)),
    "totals that decide weights": (DESIGNS["table"], (release, "_advance", exact_sizes)),
    "the rows that were cut": (CUT, (CutBands, "release", exact_bands)),
    "bands of the rows that were cut": (CUT, (cut_rows, "count", exact_step)),
    "keys that nobody published": (DESIGNS["counter"], (group_by, "published_keys", exact_keys)),
    "a total of the preset": (DESIGNS["rounds"], (RestartingTrees, "advance", exact_trees)),
}


def exact_cells(tables):
    blocks = np.zeros(len(tables.pushes), np.int64)
    return ReleasedCells(tables.pending.astype(np.int64), blocks, blocks, 0)


def exact_sketch(self, tables):
    return values(SHOWN(self, tables))


SHOWN = SketchTable.published


@pytest.mark.parametrize("plant", [
    (table, "released", exact_cells), (SketchTable, "published", exact_sketch),
], ids=["cells", "tables"])  # fmt: skip
def test_an_exact_count_stops_the_release_of_a_sketch(plant, monkeypatch):
    monkeypatch.setattr(*plant)
    with pytest.raises(REFUSALS, match=REFUSED):
        sketched.run(sketched.query(), SeededNoise(1), sketched.batches(30))


def test_an_answer_to_a_question_is_made_of_nothing_else():
    for wrong in (3.0, EXACT[0]):
        with pytest.raises(REFUSALS, match=REFUSED):
            QuestionAnswer("HARD", wrong, 0.0, 1)
        with pytest.raises(REFUSALS, match=REFUSED):
            SparseAnswer("HARD", wrong)
    with pytest.raises(REFUSALS, match=REFUSED):
        QueryAnswers(EXACT)


def exact_value(exact, scale, draws):
    return np.atleast_1d(exact)


@pytest.mark.parametrize("module", [sparse_vector, pmwg])
def test_an_exact_count_stops_the_answer_to_a_question(module, monkeypatch):
    share, domain, place = Share("zcdp", 1), 4, Place(SeededNoise(1), "q")
    live = LivePmw(share=share, start=100, domain=domain)
    state = live.init(place)
    live.step(state, Changes(born=np.zeros(1000, np.int64)), 1000.0, place)
    monkeypatch.setattr(module, "with_laplace", exact_value)
    with pytest.raises(REFUSALS, match=REFUSED):
        live.ask(state, np.array([1.0, 0, 0, 0]), place.inside(b"first"))


def exact_rows(exact, scales, draws, *, laplace):
    return exact.astype(float)


def exact_sums(whole, rest, scales, draws):
    return whole + rest


def exact_release(self, histogram, share, place, size_hat=None):
    return QueryAnswers(self.strategy.recover(self.strategy.measure(histogram)))


def exact_answers(self, state):
    return QueryAnswers(np.zeros(self.queries.size))


@pytest.mark.parametrize("plant", [
    (additive, "rows_with_noise", exact_rows), (signed_counter, "sums_with_noise", exact_sums),
    (SignedCounter, "answers", exact_answers), (Additive, "release", exact_release),
], ids=["rows", "sums", "answers", "release"])  # fmt: skip
def test_an_exact_answer_stops_the_release_of_a_table(plant, monkeypatch):
    share = Share("zcdp", 1)
    strategy = Direct(Marginals((2,), ((0,),)))
    mechanism = TreeCounter if plant[0] in (additive, Additive) else SignedCounter
    operator = ChangingTable(
        mechanism=mechanism(strategy=strategy, share=share, horizon=4),
        attributes=(Attribute("a", (0, 1)),), cells=strategy.queries,
    )  # fmt: skip
    state, noise = operator.init(), SeededNoise(1)
    operator.fold(state, Batch(pa.table({"a": [0, 1, 1]}), 1, True, ""), noise)
    monkeypatch.setattr(*plant)
    with pytest.raises(REFUSALS, match=REFUSED):
        operator.release(state, 1, noise)


def streamed(design):
    operator = compiled(**{"aggregates": AGGREGATES[:1], **design})
    return run(operator, batches(ROWS), SeededNoise(1))[0]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_exact_number_stops_the_release(mistake, monkeypatch):
    design, plant = MISTAKES[mistake]
    assert any(one.table.num_rows for one in streamed(design))
    monkeypatch.setattr(*plant)
    with pytest.raises(REFUSALS, match=REFUSED):
        streamed(design)


def test_a_release_is_made_of_nothing_else():
    for wrong in (TABLE, None, TABLE["n"]):
        with pytest.raises(REFUSALS, match=REFUSED):
            Release(wrong, 0, 1, 1)
    assert Release(public(TABLE), 0, 1, 1).table is TABLE


@pytest.mark.parametrize("sink", ["files", "memory", "console"])
def test_a_sink_takes_nothing_but_releases(sink, tmp_path):
    made = {"files": lambda: FilesSink(str(tmp_path)), "memory": MemorySink, "console": ConsoleSink}
    for wrong in (TABLE, public(TABLE), EXACT):
        with pytest.raises(TypeError, match="publishes releases, not"):
            made[sink]().write("job", wrong)
    assert not list(tmp_path.iterdir())


def test_results_read_nothing_else():
    with pytest.raises(REFUSALS, match=REFUSED):
        Releases({Moment(0, 1): lambda: TABLE})


def test_shards_put_nothing_else_together():
    with pytest.raises(REFUSALS, match=REFUSED):
        post_process(in_key_order, 1, TABLE)
