"""Faults that were found once, planted again: the test that was written for each still sees it."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from streamveil import accounts, connectors, expressions
from streamveil.accounts.ledger import Charge
from streamveil.calendars import Cells
from streamveil.changing_tables.questions import Questions
from streamveil.connectors import database_sources, rejected_rows
from streamveil.core.accounting import Budget
from streamveil.dataflow import hashing
from streamveil.dataflow.windows import periods_met
from streamveil.dynamic.schedulers import Reruns
from streamveil.linear.budget_shares import Meter
from streamveil.plan import check_own_rows, combine, own_rows
from streamveil.runtime import secret
from streamveil.sql import joins
from tests.accounts import test_ledger
from tests.changing_tables import test_questions
from tests.connectors import test_database_sources, test_rejected_rows
from tests.dataflow import test_hashing, test_windows
from tests.dynamic import test_schedulers
from tests.planting import instead
from tests.runtime import test_job, test_schedule
from tests.sql import test_expr, test_joins, test_joint, test_own_rows


def again_and_again(honest):
    """Lists are repeated beside their parts whatever comes later."""
    return lambda step, table, units, **_: honest(step, table, units, again=True)


def covered_too(honest):
    """What a null list covers counts among its parts."""
    of = lambda lists: pa.array(np.diff(lists.offsets))  # noqa: E731
    return SimpleNamespace(**{**vars(honest), "list_value_length": of})


def as_codes(honest):
    """Codes stay codes."""
    return lambda kind: kind if pa.types.is_dictionary(kind) else honest(kind)


def of_days(honest):
    """Milliseconds are read as days."""
    return lambda kind: pa.date32() if pa.types.is_date64(kind) else honest(kind)


def with_warnings(honest):
    """NumPy says what it wants."""
    return SimpleNamespace(**{**vars(honest), "errstate": lambda **_: nullcontext()})


def of_no_step(honest):
    """The noise of an answer is that of its question, whenever it is asked."""

    def adaptive(self, state, *given):
        step, state.t = state.t, 0
        try:
            return honest(self, state, *given)
        finally:
            state.t = step

    return adaptive


def part_by_part(_):
    """What a charge takes within its range, and everywhere, is rounded up twice."""
    return lambda self, caps: tuple(
        accounts.cost(part, caps)
        for part in accounts.split(self.loss, given_past=self.given_past)
    )  # fmt: skip


def forgetful(honest):
    """A meter of runs is new after a restart."""

    def made(self):
        honest(self)
        self.meter = Meter(self.meter.limit)

    return made


def of_decimals(tmp_path):
    """Files of which one has decimals."""
    tmp_path.mkdir()
    test_rejected_rows.test_whole_numbers_of_another_type_are_the_same_or_null("decimals", tmp_path)


def made(folder):
    """The folder, which is there."""
    folder.mkdir()
    return folder


def of_a_database(tmp_path):
    """A column of long decimals in DuckDB."""
    tmp_path.mkdir()
    test_database_sources.test_numbers_of_more_digits_than_reals_hold_name_no_unit(
        {"kind": "duckdb", "path": str(tmp_path / "x.duckdb")}, "v", tmp_path
    )


def as_reals(_):
    """Decimals pass for reals."""
    return lambda name, *_: pa.field(name, pa.float64())


CODES = "t, UNNEST(SPLIT(tags)) AS part", test_own_rows.SHIFTED
FAULTS = {
    "long lists are repeated beside their parts": (
        instead(own_rows, "unnested", again_and_again),
        lambda: test_own_rows.test_a_long_list_is_not_repeated_beside_each_of_its_parts(False),
    ),
    "what a null list covers is a part": (
        instead(own_rows, "pc", covered_too),
        test_own_rows.test_what_a_null_list_covers_is_no_part,
    ),
    "codes of several chunks are put together": (
        instead(combine, "wide_type", as_codes),
        lambda: test_own_rows.test_codes_of_several_chunks_need_not_fit_into_one(*CODES),
    ),
    "keys of sets are repeated with offsets of 32 bits": (
        instead(own_rows, "wide", lambda _: combine.plain),
        test_own_rows.test_keys_of_grouping_sets_are_repeated_with_offsets_of_64_bits,
    ),
    "decimals of a database pass for reals": (
        instead(database_sources, "rounded", as_reals),
        of_a_database,
    ),
    "whole numbers of another type are rounded": (
        instead(rejected_rows, "whole_or_null", lambda _: rejected_rows.cast_or_null),
        of_decimals,
    ),
    "a unit in milliseconds is its day": (
        instead(expressions, "plain_type", of_days),
        test_expr.test_days_in_milliseconds_are_no_privacy_unit,
    ),
    "a long text that stands once in a dictionary is small": (
        instead(connectors, "coded_bytes", lambda _: lambda table: 0),
        test_schedule.test_codes_take_as_much_as_the_texts_that_they_stand_for,
    ),
    "a NaN that signals writes a warning": (
        instead(hashing, "np", with_warnings),
        test_hashing.test_a_nan_that_signals_is_named_in_silence,
    ),
    "the noise of an answer is that of its question at every step": (
        instead(Questions, "_adaptive", of_no_step),
        test_questions.test_a_copy_that_is_asked_after_a_later_step_has_noise_of_its_own,
    ),
    "a charge is rounded up part by part": (
        instead(Charge, "cost", part_by_part),
        lambda: test_ledger.test_a_charge_that_fits_its_limit_exactly_has_room(
            Budget(mu=1, delta="1e-6"), known=True
        ),
    ),
    "noise is secure that says so": (
        instead(secret, "is_keyed", lambda _: lambda noise: noise.secure),
        test_job.test_insecure_noise_must_be_asked_for_and_is_announced,
    ),
    "runs before a restart are not charged": (
        instead(Reruns, "__post_init__", forgetful),
        test_schedulers.test_runs_that_go_on_after_a_restart_know_what_was_charged,
    ),
    "windows that late rows reach are not counted": (
        instead(test_windows, "most_windows", lambda _: periods_met),
        test_windows.test_no_unit_meets_more_windows_than_a_bound_that_cuts_nobody_says,
    ),
    "one table is read by two people's columns": (
        instead(check_own_rows, "of_two_people", lambda _: lambda _: ()),
        lambda: test_joins.test_no_row_is_of_two_people(test_joins.OF_TWO[0]),
    ),
    "rows that were combined by one unit go on by another": (
        instead(own_rows, "require_person", lambda _: lambda *_: None),
        lambda: test_joins.test_rows_are_combined_by_one_unit(test_joins.ANEW[0]),
    ),
    "rows are told apart by how they are declared": (
        instead(check_own_rows, "_rows_of", lambda _: lambda source: {source.name, id(source)}),
        test_joins.test_the_same_frame_under_two_names_is_of_one_person,
    ),
    "one row is of several periods": (
        instead(check_own_rows, "may_have_several_times", lambda _: lambda _: False),
        lambda: test_own_rows.test_one_row_is_of_one_period(test_own_rows.SEVERAL[0]),
    ),
    "periods of other times pass for one in several answers": (
        instead(check_own_rows, "of_two_times", lambda _: lambda _: ()),
        lambda: test_joint.test_each_row_is_of_one_period_in_all_answers(
            *test_joint.OWN_TIMES[0], "seen"
        ),
    ),
    "periods are told apart by their length alone": (
        instead(Cells, "begins", lambda _: ""),
        lambda: test_ledger.test_periods_that_begin_at_other_times_share_no_limit(
            *test_ledger.OTHER_GRIDS[1][:2], one=False
        ),
    ),
    "a ledger is whichever file was opened": (
        instead(accounts.Journal, "_require_same_file", lambda _: lambda *_: None),
        lambda tmp_path: test_ledger.test_nothing_is_charged_to_a_file_that_lost_its_name(
            made(tmp_path), "replaced"
        ),
    ),
    "what the other relation of a join protects is not asked": (
        instead(joins, "require_one_unit", lambda _: lambda *_: None),
        lambda: test_joins.test_a_join_is_by_what_both_protect(lambda u: u.unnest(id="SPLIT(a)")),
    ),
}


def seen(sight, tmp_path, patch):
    """Whether a test fails."""
    given = {"tmp_path": tmp_path, "monkeypatch": patch}
    code = getattr(sight, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            sight(**{name: given[name] for name in names if name in given})
        except (Exception, pytest.fail.Exception):
            return True
    return False


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_was_found_is_seen_again(name, tmp_path, monkeypatch):
    plant, sight = FAULTS[name]
    assert not seen(sight, tmp_path / "honest", monkeypatch)
    plant(monkeypatch)
    assert seen(sight, tmp_path / "planted", monkeypatch)


def test_the_page_for_reviewers_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "review-mechanisms.md").read_text()
    assert [name for name in FAULTS if f"| {name} |" not in page] == []
