"""The account of joins, IN (SELECT), UNNEST and UNION ALL: their limits, and planted faults."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.plan import joins, own_rows
from tests.audit import raw_rows, texts
from tests.planting import all_units_are_one, instead

FEW = 1  # pairs of a row, in place of `joins.MATCHES`: then nearly every unit is cut
LATER = 20  # rows that all rows together may make
BUDGET = "mu = 0.5, delta = 1e-6, privacy_unit_column = user, look_share = 0"
QUERY = (
    "WITH own AS (SELECT {}) SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ("
    + BUDGET
    + ", max_rows_contributed = 2) page, COUNT(*) AS n FROM own GROUP BY page"
)
BY_UNIT = "v.user, p.page FROM clicks AS v JOIN visits AS p ON v.user = p.user"
QUERIES = {
    "unit": QUERY.format(BY_UNIT),
    "in": QUERY.format("user, page FROM clicks WHERE user IN (SELECT user FROM visits)"),
    "not in": QUERY.format("user, page FROM clicks WHERE user NOT IN (SELECT user FROM visits)"),
    "public": QUERY.format("v.user, r.region AS page FROM clicks AS v JOIN pages AS r"
                           " ON v.page = r.page"),
    "unnest": QUERY.format("user, part AS page FROM clicks, UNNEST(SPLIT(tags, ',')) AS part"),
    "union": QUERY.format("user, page FROM clicks UNION ALL SELECT user, page FROM visits"),
}  # fmt: skip


def accounts(name, pairs, seed=1):
    """Of so many pairs of neighbours of a query."""
    rng = np.random.default_rng(seed)
    plan = texts.plan_of(QUERIES[name])
    for _ in range(pairs):
        yield texts.account_of(raw_rows.neighbours_drawn(rng, plan, raw_rows.HOURS), seed)


@pytest.mark.parametrize("name", ["unit", "public"])
def test_pairs_beyond_the_limit_are_in_the_account(name, monkeypatch):
    """Pairs that are cut are cut in both runs: what the unit moves is what is left of them."""
    honest, cut = joins.matches, []

    def few(left, right):
        cut.append(len(honest(left, right)[0]) - len(honest(left, right, FEW)[0]))
        return honest(left, right, FEW)

    monkeypatch.setattr(joins, "matches", few)
    found = list(accounts(name, 8))
    assert all(one.stands for one in found)
    assert max(one.tightness for one in found) > 0.9
    assert max(cut) > 0


def test_units_of_generated_jobs_have_more_pairs_than_a_row_may():
    rng = np.random.default_rng(3)
    plan, most = texts.plan_of(QUERIES["unit"]), 0
    for _ in range(60):
        one = raw_rows.neighbours_drawn(rng, plan, raw_rows.HOURS).plans[0]
        [step] = [step for step in one.source.steps if isinstance(step, joins.OwnJoin)]
        users = step.other.options["table"]["user"].drop_null().to_numpy(zero_copy_only=False)
        most = max(most, *np.unique(users, return_counts=True)[1].tolist())
    assert most > joins.MATCHES


# ---- planted faults


def numbered_by_side(honest):
    """Each side numbers its units by itself, so that a number is not one unit's."""

    def codes(*given):
        return tuple(np.unique(side, return_inverse=True)[1] for side in honest(*given))

    return codes


def pairs_of_all_together(honest):
    def matches(left, right, most=FEW):
        rows, places = honest(left, right, len(left))
        return rows[: most * LATER], places[: most * LATER]

    return matches


def pairs_of_the_other_side(honest):
    """Each row of the other relation is joined with the first rows that match it."""

    def matches(left, right, most=FEW):
        places, rows = honest(right, left, most)
        at = np.argsort(rows, kind="stable")
        return rows[at], places[at]

    return matches


def parts_of_all_together(honest):
    return lambda columns: np.maximum(1, LATER - np.arange(len(columns[0]))) + 0 * honest(columns)


def units_of_other_rows(honest):
    """What is added from another relation takes the units of these rows, from the first on."""

    def added(step, table, units, other):
        made, persons = honest(step, table, units, other)
        return made, persons.take(pa.array(np.arange(len(persons)) % max(1, len(units))))

    return added


def in_beside(step, make):
    return lambda patch: patch.setitem(own_rows.BESIDE, step, make(own_rows.BESIDE[step]))


FAULTS = {
    "a join by the unit meets rows of everybody": (
        "unit", instead(joins, "numbered", all_units_are_one),
    ),
    "a unit is kept if another is in the other relation": (
        "in", instead(joins, "codes", numbered_by_side),
    ),
    "a unit is dropped if another is in the other relation": (
        "not in", instead(joins, "codes", numbered_by_side),
    ),
    "pairs of all rows together are limited": (
        "unit", instead(joins, "matches", pairs_of_all_together),
    ),
    "a row of a public table is joined with so many rows, and no more": (
        "public", instead(joins, "matches", pairs_of_the_other_side),
    ),
    "parts of all texts together are limited": (
        "unnest", instead(own_rows, "most_parts", parts_of_all_together),
    ),
    "rows that are added take the units of others": (
        "union", in_beside(joins.OwnUnion, units_of_other_rows),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_in_joins_are_caught(name, monkeypatch):
    query, plant = FAULTS[name]
    assert all(one.stands for one in accounts(query, 2))
    plant(monkeypatch)
    assert any(not one.stands for one in accounts(query, 80))
