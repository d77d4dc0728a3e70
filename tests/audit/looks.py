"""The look at the rows before a job: what it draws on rows of neighbours, against its charge."""

import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from streamveil.audit.laid_open import OpenNoise
from streamveil.audit.laid_open_look import OneWord
from streamveil.audit.laid_open_measures import (
    MeasuresSeen,
    MeasureTranscript,
    lost_by,
    measures_laid_open,
)
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.accounting.sequel import Sequel
from streamveil.errors import BudgetError, PlanError
from streamveil.plan import combined_plan
from streamveil.plan.look import (
    CLAMPED,
    CONCENTRATION,
    HISTOGRAM,
    LAWS,
    VALUES,
    divided,
    look_share,
    with_look,
)
from streamveil.plan.look import told as told_by
from streamveil.runtime.look import look, looked, periods_seen, rows_of
from streamveil.runtime.schedule import open_rows
from streamveil.runtime.survey import survey
from tests.audit import raw_rows, texts

SAID = (
    {},
    {"expected_rows": 1.0, "expected_units": 1e5},
    {"expected_rows": 3.0, "expected_units": 1e5, "expected_repeats": 0.5},
    {
        "expected_rows": 20.0, "expected_units": 3e3, "expected_most_rows": 300.0,
        HISTOGRAM: [(1, 1, 0.6), (8, 15, 0.3), (256, 511, 0.1)], CONCENTRATION: (0.3, 0.6, 0.1),
        LAWS: [(40.0, 1.2, 0.1, 0.5), (900.0, 0.5, 0.0, 2.0)],
        **{said: dict.fromkeys(("ms", "ms * kind", "kind", "ms - 4"), share)
           for said, share in ((VALUES, 0.01), (CLAMPED, 0.05))},
    },
)  # fmt: skip
BARE = re.compile(r",? contribution_bounds_per_row => \([^)]*\)")


def looking_query(rng):
    """A query that looks at its rows first, and when it runs; some values have no bounds."""
    while True:
        text, span = texts.text_of(rng)
        share = raw_rows.pick(rng, ("look_share = 0.1", "look_share = 0.3", "name = 'looks'"))
        text = text.replace("look_share = 0", share, 1)
        if rng.random() < 0.5 and "quantum" not in text:
            text = BARE.sub("", text)
        try:
            plan = with_look(texts.plan_of(text))
            if look_share(plan):
                look(plan, OpenNoise(1))
                texts.work_of(told_by(plan, {}, []))
                return text, span
        except (PlanError, BudgetError):
            continue


def look_lost(plans, seed, periods=1):
    """What two inputs lose by the look, and what it claims: of the survey, and of the budget.

    `periods`: of one unit, in which the inputs differ.
    """
    wanted = [with_look(plan) for plan in plans]

    def release(plan, noise):
        made = OneWord(seed)
        return [np.array(repr(look(plan, made)))]

    share, within = divided(wanted[0]).looking, periods_seen(wanted[0])
    _, guarantee = survey(wanted[0], rows_of(wanted[0]), share, OpenNoise(1), within=within)
    claim = guarantee.loss if periods == 1 else guarantee.over(periods).loss
    several = share if periods == 1 else Budget(mu=share.mu * periods)  # as one group, at most
    return lost_by(release, (wanted[0], wanted[1]), seed=seed), claim, several


PRICE = Budget(epsilon=2, delta="1e-9")


def survey_lost(plans, seed):
    """The same of a survey that somebody pays for by itself (`tune --private`)."""

    def release(plan, _):
        return [np.array(repr(survey(plan, all_rows(plan), PRICE, OneWord(seed))[0]))]

    claim = survey(plans[1], all_rows(plans[1]), PRICE, OpenNoise(1))[1].loss
    return lost_by(release, plans, seed=seed), claim, PRICE


def all_rows(plan):
    """What a source has, also beyond the schedule of a job."""
    source = open_rows(plan.source, plan.clock.arrival)
    chunks = [chunk.rows for chunk in source.read(None, 1_000_000)]
    return pa.concat_tables([source.schema().empty_table(), *chunks])


def choices(plans, seed):
    """What a look chooses for each of two inputs where it says the same of both."""
    wanted, told, made = [with_look(plan) for plan in plans], MeasureTranscript(), []
    for plan in wanted:
        with measures_laid_open(MeasuresSeen(), told):
            made.append(looked(plan, OneWord(seed))[1])
    return made


def judged(seed, pairs):
    """(text, loss, claim, budget) of pairs of neighbours of one query."""
    rng = np.random.default_rng(seed)
    text, span = looking_query(rng)
    plan = texts.plan_of(text)
    for _ in range(pairs):
        pair = raw_rows.neighbours_drawn(rng, plan, span, several=rng.random() < 0.5)
        yield text, *look_lost(pair.plans, seed, pair.periods)
        if pair.periods == 1:
            yield text, *survey_lost(pair.plans, seed)


def compiled(plan):
    return compile_plan(combined_plan(plan))


def chosen(text, rows):
    """Some looks, what a query runs after each without their loss, and what all of it claims.

    Where what a look said is refused, the job runs as if it had said nothing: as after the first.
    """
    plan, heard, made = with_look(texts.plan_of(text, rows)), [], []
    for known in SAID:
        with suppress(PlanError, BudgetError):
            made.append(compiled(told_by(plan, known, [])))
            heard.append(known)
    after = [replace(one, design=replace(one.design, look=None)) for one in made]
    return divided(plan), heard, after, {one.loss for one in made}


def joint_delta(mu, epsilon, losses):
    """Of a Gaussian look and the worst of some mechanisms for each thing it may say.

    By trapezes over the look's privacy loss: what is smooth is exact to many digits.
    """
    z = np.linspace(-9, 9, 181)
    left = epsilon - (mu**2 / 2 + mu * z)
    found = np.array([max(loss.delta_at(abs(x)) for loss in losses) for x in left])
    found = np.where(left < 0, 1 - np.exp(left) * (1 - found), found)  # as both ways lose the same
    return float(np.trapezoid(norm.pdf(z) * found, z))


def sequels(seed, pairs):
    """(text, accounts, (epsilon, delta), claims) of queries after their look, whatever it said.

    The delta is of the look and the worst that may follow.
    """
    rng = np.random.default_rng(seed)
    text, span = looking_query(rng)
    for _ in range(pairs):
        pair = raw_rows.neighbours_drawn(rng, texts.plan_of(text), span)
        division, heard, after, claims = chosen(text, [])
        accounts = []
        for known in heard:
            plans = [told_by(with_look(plan), known, []) for plan in pair.plans]
            accounts.append(texts.account_of(replace(pair, plans=tuple(plans)), seed))
        losses = [replace(one.loss, chance=0) for one in after]
        if not isinstance(division.after, Sequel):
            yield text, accounts, (0.0, None), claims
            continue
        epsilon = float(division.after.epsilon)
        delta = joint_delta(float(division.looking.mu), epsilon, losses)
        yield text, accounts, (epsilon, delta), claims
