"""Questions between steps: what is free stays free, and what was said stays said."""

import numpy as np
import pytest

from streamveil.changing_tables.questions import Questions
from streamveil.core.noise import Place, SeededNoise
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.dynamic.protocol import Changes
from streamveil.linear import Marginals
from streamveil.linear.budget_shares import Share

CELLS = Marginals((4, 4), ((0,),))
FOLLOWS = np.repeat([True, False, False, False], 4)


def place():
    """What the operator makes for each call."""
    return Place(SeededNoise(3), "questions")


def made(wide):
    """Questions, and a closed step whose cells reach so much further than an EASY answer."""
    live = LivePmw(share=Share("pure", 1), start=4000, domain=16, halts=4)
    asked = Questions(CELLS, 0, live, 0.95)
    labels = np.repeat(np.arange(16), 250)
    closed = 1, np.full(4, 1000.0), np.zeros(4)
    state = asked.step(None, Changes(labels), closed, place())
    state.reach = np.full(4, wide * asked._easy(state))
    return asked, state


def other(number):
    """A question that follows from no release."""
    return np.arange(16) % 7 == number % 7


def test_what_follows_from_a_release_is_still_answered_when_nothing_is_left_to_pay_with():
    asked, state = made(wide=1.5)
    state.inner.run, state.inner.meter.spent = None, state.inner.meter.limit.amount
    assert asked.ask(state, other(1), place())[0].kind == "EXHAUSTED"
    found, delta = asked.ask(state, FOLLOWS, place())
    assert (found.kind, found.value, delta) == ("RELEASED", 1000.0, None)
    assert np.isfinite(found.reach)


def test_a_repeated_question_keeps_its_answer_when_later_ones_would_be_worse():
    asked, state = made(wide=1.05)
    first, _ = asked.ask(state, FOLLOWS, place())
    assert first.kind == "EASY"
    for number in range(7):
        asked.ask(state, other(number), place())
    assert asked._easy(state) > state.reach[0]  # by now the release would do
    again, delta = asked.ask(state, FOLLOWS, place())
    assert (again.kind, again.value, again.reach) == ("EASY", first.value, first.reach)
    assert delta is None


@pytest.mark.parametrize("wide", [0.5, 1.0])
def test_a_release_that_is_as_good_answers_for_free(wide):
    asked, state = made(wide)
    assert asked.ask(state, FOLLOWS, place())[0].kind == "RELEASED"


def test_two_copies_of_a_state_give_other_questions_other_noise():
    noises, thresholds = set(), set()
    for number in range(3):  # each asked of the same state, as of a backup that is restored
        asked, state = made(wide=1.5)
        state.inner.histogram = np.where(other(number), 250_000, 250)
        answer, _ = asked.ask(state, other(number), place())
        assert answer.kind == "HARD"
        noises.add(answer.value - state.inner.histogram @ other(number))
        thresholds.add(state.inner.run.offset)  # of the run that follows
    assert len(noises) == len(thresholds) == 3


def test_a_copy_that_is_asked_after_a_later_step_has_noise_of_its_own():
    """Else the difference of both answers would be that of the table, exactly."""
    noises, thresholds, nothing = set(), set(), Changes(np.zeros(0, np.int64))
    for later in range(3):  # each goes on from the same state, as a backup that is restored
        asked, state = made(wide=1.5)
        state.inner.histogram = np.where(other(1), 250_000, 250)
        for t in range(state.t + 1, state.t + 1 + later):
            state = asked.step(state, nothing, (t, state.values, state.reach), place())
        answer, _ = asked.ask(state, other(1), place())
        assert answer.kind == "HARD"
        noises.add(answer.value - state.inner.histogram @ other(1))
        thresholds.add(state.inner.run.offset)
    assert len(noises) == len(thresholds) == 3
