"""Calls of query classes, shares and mechanisms: what they cannot take is said in words."""

import numpy as np
import pytest

from streamveil.core.noise import Place, SeededNoise
from streamveil.errors import PlanError
from streamveil.linear import (
    Marginals,
    Matrix,
    Meter,
    Mwem,
    Points,
    Ranges,
    Share,
    Sums,
    functions,
    noisy_queries,
)

ALL = Share("pure", 1)
CELLS = Marginals.ways((2, 2), 1)
ROWS = Matrix.of([[1, 1, 1, 1]])
CLASSES = [CELLS, ROWS, Ranges.of((4,), [[0]], [[4]]), Sums.of((2, 2), [((0,), np.eye(2) > 0)])]
FULL = np.full(4, 2**62)  # its sum wraps around to 0


def noisy(exact):
    return ALL.noisy(exact, Place(SeededNoise(1), "calls").draws(1), 1, 1)


REFUSED = [
    ("shape", lambda: Marginals((2.5, 2), ((0,),))),
    ("shape", lambda: Marginals(5, ((0,),))),
    ("shape", lambda: Ranges.of((0,), [[0]], [[1]])),
    ("a set", lambda: Marginals((2, 2), ((0.5,),))),
    ("a set", lambda: Marginals((2, 2), ((True,),))),
    ("sets", lambda: Marginals((2, 2), 5)),
    ("names", lambda: Marginals((2, 2), ((0,),), names=("a",))),
    ("ways", lambda: Marginals.ways((2, 2), 0.5)),
    ("low", lambda: Ranges.of((4,), [[0.5]], [[2]])),
    ("high", lambda: Ranges.of((4,), [[0]], [[2], [1, 2]])),
    ("weights", lambda: Matrix.of("abc")),
    ("weights", lambda: Matrix.of([[1j]])),
    ("shift", lambda: Matrix.of([[0.5]], shift="abc")),
    ("query returns", lambda: functions([lambda x: "abc"], np.ones((2, 1)))),
    ("beta", lambda: noisy_queries(CELLS).error.alpha(ALL, 100, 7)),
    ("beta", lambda: Mwem(queries=CELLS).error.alpha(ALL, 100, 0)),
    ("queries", lambda: noisy_queries(5)),
    ("queries", lambda: Mwem(queries=None)),
    ("l1", lambda: ALL.spread(-1, 1)),
    ("share", lambda: noisy_queries(CELLS).release(np.zeros(4, int), 5, None)),
    ("share", lambda: Meter(ALL).charge(5)),
    ("share", lambda: Meter(5)),
    ("spent", lambda: Meter(ALL, spent="abc")),
    ("exact", lambda: noisy(2**70)),
    ("exact", lambda: noisy(1.5)),
    ("histogram", lambda: Points(CELLS).measure(np.full(4, 0.5))),
    *(
        (says, lambda made=made, given=given: made.exact(given))
        for made in CLASSES
        for says, given in (("histogram", FULL), ("histogram", np.ones(4)), ("4 entries", [1, 2]))
    ),
    *(("histogram", lambda made=made: made.answers(["a"] * 4)) for made in CLASSES),
    *(("index", lambda made=made: made.weights(made.size)) for made in CLASSES),
    *(("index", lambda made=made: made.weights(0.5)) for made in CLASSES),
]


@pytest.mark.parametrize(("says", "call"), REFUSED)
def test_what_cannot_be_taken_is_refused_in_words(says, call):
    with pytest.raises(PlanError, match=says) as refused:
        call()
    assert str(2**62) not in str(refused.value)  # no value from the data
    assert str(2**70) not in str(refused.value)
