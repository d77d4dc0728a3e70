"""The account of sketch queries: no claim is passed, and every planted fault is caught."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from streamveil.audit.worst import accounts, search
from streamveil.calendars import Cells
from streamveil.core.counters.cells import CellCounter
from streamveil.sketches import HeavyTexts, privacy, table
from streamveil.sketches import operator as module
from streamveil.sketches.operator import SketchQuery
from streamveil.sketches.table import SketchTable
from tests.audit import sketch_texts
from tests.planting import forced
from tests.sketches.test_operator import TUMBLING, long_texts, query

PAIRS = 16


def freq():
    return query()


def windows():
    return query(schedule=TUMBLING)


def periods():
    return query(schedule=TUMBLING, periods=Cells(length_us=20))


def finder():
    return query(k=4)


def texts():
    return query(k=4, sketch=long_texts(12, 4_000_000), text_length=12)


def caught(operator, change=lambda one: one):
    """What the account says of a fault; None if it sees none."""
    for one in accounts(operator, 3, PAIRS, change):
        if not one.account.stands:
            return one.account.broken()
    return None


@pytest.mark.parametrize("make", [freq, windows, periods, finder, texts])
def test_no_unit_loses_more_than_is_claimed(make):
    found = list(accounts(make(), 1, 4 if make is texts else PAIRS))
    assert [one.account.broken() for one in found if not one.account.stands] == []
    assert max(one.account.tightness for one in found) > 0.9  # 1 but for how noise is measured


def test_a_search_goes_through_whole_windows_and_repeats_the_worst():
    *_, worst = islice(search(windows(), 60.0, 1), 14)
    assert worst.stands
    assert worst.tightness > 0.9
    assert worst.pairs > 10
    assert "rows in" in worst.words


def test_units_of_sketches_over_calendars_lose_no_more_than_is_claimed():
    texts, most = set(), 0.0
    for seed in range(1, 6):
        for text, found in sketch_texts.judged(seed, 6):
            assert found.stands, (seed, text, found.broken())
            texts, most = texts | {text}, max(most, found.tightness)
    assert any("Berlin" in text or "York" in text for text in texts)
    assert most > 0.9


def bounded(rows):
    return lambda one: forced(one, bounds=replace(one.bounds, max_rows=rows))


RUNS = {  # name -> (query, what changes in the operator that runs)
    "a sketch takes a row more of a unit": (freq, bounded(4)),
    "a sketch bounds units by half a period": (
        periods, lambda one: forced(one, periods=Cells(length_us=10))),
}  # fmt: skip


def law_with(**changes):
    """Every table's law with other numbers."""

    def plant(patch):
        honest = SketchTable.law.func
        patch.setattr(SketchTable, "law", property(lambda self: honest(self)._replace(
            **{name: made(honest(self)) for name, made in changes.items()})))  # fmt: skip

    return plant


def one_address(patch):
    honest = module.key_schedule
    kept = []

    def first(address):
        kept.append(honest(address))
        return kept[0]

    patch.setattr(module, "key_schedule", first)


def counts_twice(patch):
    honest = SketchTable.count

    def count(self, tables, words, *rest):
        honest(self, tables, words, *rest)
        honest(self, tables, words, *rest)

    patch.setattr(SketchTable, "count", count)


def counts_twice_at(level):
    def plant(patch):
        honest = HeavyTexts.counted

        def counted(self, items, weights):
            for one in honest(self, items, weights):
                yield one
                if one.number == level:
                    yield one

        patch.setattr(HeavyTexts, "counted", counted)

    return plant


def forgets_units(patch):
    honest = SketchQuery.release

    def release(self, state, step, noise):
        state.units.clear()
        return honest(self, state, step, noise)

    patch.setattr(SketchQuery, "release", release)


def all_rows_pass(patch):
    patch.setattr(SketchQuery, "accept", lambda _self, _state, unit, _periods: unit >= 0)


def shows_pending(patch):
    honest = table.released

    def late(tables):
        return honest(tables._replace(shown=tables.shown + tables.pending))

    patch.setattr(table, "released", late)
    patch.setattr(SketchTable, "tick", lambda _self, _tables, _ticks, _keys: None)


CODE = {
    "half the noise of a sketch": (freq, law_with(sigmas=lambda law: law.sigmas / 2)),
    "a tenth less noise of a sketch": (windows, law_with(sigmas=lambda law: law.sigmas * 0.9)),
    "half the noise of the levels of a finder": (
        finder, law_with(sigmas=lambda law: law.sigmas / 2)),
    "all windows and levels of sketches draw at one address": (finder, one_address),
    "windows of a sketch draw at one address": (windows, one_address),
    "a key counts twice in a sketch": (freq, counts_twice),
    "a level of texts counts them twice": (texts, counts_twice_at(3)),
    "a sketch forgets its units at each trigger": (freq, forgets_units),
    "a sketch bounds nobody": (windows, all_rows_pass),
    "a sketch shows its counts without noise": (freq, shows_pending),
}  # fmt: skip


def counted_once(plan):
    return sum(layout.depth for layout in plan.layouts)


CLAIMS = {
    "whole texts are charged as if they counted once": (
        texts, lambda patch: patch.setattr(privacy.NoisePlan, "change", property(counted_once))),
    "a sketch is charged for one row of its table": (
        freq, lambda patch: patch.setattr(privacy, "squared_change", lambda *_: 1)),
    "a finder is charged for one of its levels": (
        finder, lambda patch: patch.setattr(privacy.NoisePlan, "change", property(lambda _: 1))),
    "a sketch is charged for one item of a unit": (
        freq, lambda patch: patch.setattr(privacy.NoisePlan, "items", property(lambda _: 1))),
    "the encoder of a cell is shorter than it is": (
        freq, lambda patch: patch.setattr(CellCounter, "column_norm", property(lambda _: 1.0))),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_fault_in_the_operator_that_runs_is_caught(name):
    make, change = RUNS[name]
    assert caught(make(), change)


@pytest.mark.parametrize("name", CODE)
def test_a_fault_in_the_code_is_caught(name, monkeypatch):
    make, plant = CODE[name]
    operator = make()
    assert operator.guarantee
    plant(monkeypatch)
    assert caught(operator)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_leaves_something_out_is_caught(name, monkeypatch):
    make, plant = CLAIMS[name]
    plant(monkeypatch)
    assert caught(make())


def test_the_page_for_reviewers_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "review-mechanisms.md").read_text()
    assert [name for name in [*RUNS, *CODE, *CLAIMS] if f"| {name} |" not in page] == []
