"""Answers as text, HTML, frames and pictures: notes go with the numbers, names stay names."""

import builtins
import sys
import types
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil import display
from streamveil.commands.common import print_release
from streamveil.errors import MissingExtraError, NoiseWarning, OperatorWarning, PlanError

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
HOSTILE = "<b>$x$\x1b[2J"
CLICKS = {"user": np.arange(3000) % 500, "page": np.array(["a", "b", HOSTILE])[np.arange(3000) % 3]}
QUERY = """SELECT WITH DIFFERENTIAL_PRIVACY
             OPTIONS (epsilon = 5, delta = 1e-6, privacy_unit_column = user,
                      max_rows_contributed = 6)
           page, COUNT(*) AS n FROM clicks GROUP BY page"""


@pytest.fixture(scope="module")
def found():
    return sv.sql(QUERY, clicks=pd.DataFrame(CLICKS))


def test_sql_with_a_frame_answers_in_one_call(found):
    values = dict(zip(*(found.table[name].to_pylist() for name in ("page", "n")), strict=True))
    assert values.keys() == set(CLICKS["page"])
    assert all(abs(n - 1000) < 300 for n in values.values())


def test_a_state_answers_again_at_no_cost(tmp_path):
    state = str(tmp_path / "clicks.veil")
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoiseWarning)
        first = sv.sql(QUERY, clicks=CLICKS, state=state).table
    with pytest.warns(NoiseWarning, match="nothing left to do: .*later are in none"):
        assert sv.sql(QUERY, clicks=CLICKS, state=state).table.equals(first)
    other = {name: column[:600] for name, column in CLICKS.items()}
    with pytest.warns(NoiseWarning, match="give another state"):
        assert sv.sql(QUERY, {"clicks": other}).answer(state).table.equals(first)
    assert not sv.sql(QUERY, clicks=CLICKS).table.equals(first), "new noise"


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sv.sql(QUERY, {"clicks": CLICKS}, clicks=CLICKS),
        lambda: sv.sql(QUERY, [CLICKS]),
        lambda: sv.sql(QUERY, {"clicks": CLICKS}, state="s"),
        lambda: sv.sql("SELECT 1", ledger="l"),
    ],
)
def test_mistakes_name_the_way_out(wrong):
    with pytest.raises(PlanError, match="to fix"):
        wrong()


def test_frames_hold_the_released_numbers_and_the_notes(found):
    frame = found.to_pandas()
    assert frame["n"].tolist() == found.table["n"].to_pylist()
    assert frame.attrs["notes"] == list(found.notes)
    assert found.notes
    assert found.to_polars()["n"].to_list() == pl.DataFrame(found)["n"].to_list()


def test_html_shows_names_as_names_and_every_note(found):
    text = found._repr_html_()
    assert "<b>$x$" not in text
    assert "&lt;b&gt;$x$\\x1b[2J" in text
    assert all(note in text for note in found.notes)
    assert "interval" in text
    assert "n_low" not in text


def test_the_explanation_shows_itself_as_a_page():
    text = sv.sql(QUERY, {"clicks": CLICKS}).explain()._repr_html_()
    assert text.count("<table") == text.count("</table>") >= 5
    assert "zCDP" in text


def test_a_picture_of_one_release_has_a_dot_and_an_interval_a_group(found):
    axes = found.plot("n").axes[0]
    assert sorted(axes.lines[0].get_xdata()) == sorted(found.table["n"].to_pylist())
    low = [segment[0][0] for segment in axes.collections[0].get_segments()]
    assert sorted(low) == sorted(found.table["n_low"].to_pylist())
    with pytest.raises(PlanError, match="did you mean 'n'"):
        found.plot("N")


def test_a_picture_over_time_is_broken_where_a_group_is_not_shown():
    n = 6000
    table = pa.table({
        "user": np.arange(n) % 900, "page": [f"p{i % 3}" for i in range(n)],
        "ts": pa.array(np.arange(n) * 1_000_000, pa.timestamp("us")),
    })  # fmt: skip
    query = (
        sv.memory(table, event_time="ts").protect("user", per="20 minutes")
        .window(sv.tumble("20 minutes")).group_by("page").agg(n=sv.count()).bound(max_rows=4)
        .release(every="5 minutes", start="1970-01-01", steps=20,
                 budget=sv.Budget(epsilon=20, delta=1e-3))
    )  # fmt: skip
    answers = query.answer()
    assert answers.table.num_rows == 15, "the last release of each of five windows"
    panels = answers.plot().axes
    assert [axes.get_title("left") for axes in panels[:3]] == sorted(
        (axes.get_title("left") for axes in panels[:3]), key=lambda name: -last(answers, name)
    )


def last(answers, page):
    rows = answers.releases.table(answers.moments[-1]).to_pylist()
    return next(row["n"] for row in rows if row["page"] == page)


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [("polars", "to_polars", "frames"), ("matplotlib", "plot", "plots")],
)
def test_a_missing_package_is_named(found, monkeypatch, package, call, extra):
    real = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=rf"streamveil\[{extra}\]"):
        getattr(found, call)()


def test_dir_lists_what_there_is_and_nothing_else():
    assert {"counters", "sketches", "linear", "dynamic", "answers", "read", "sql"} <= set(dir(sv))
    assert all(hasattr(sv, name) for name in dir(sv))
    assert not {"api", "import_module", "nearest", "annotations", "Any"} & set(dir(sv))
    assert "KaryTreeCounter" in dir(sv.counters)
    assert "import_module" not in dir(sv.counters)


@pytest.mark.parametrize(
    ("value", "shown"), [(12345.6, "12,346"), (1.23456, "1.23"), (7, "7"), (-0.5, "-0.5")]
)
def test_numbers_are_for_people(value, shown):
    assert display.figure(value) == shown


def test_people_see_neither_facts_for_programs_nor_digits_of_the_noise(tmp_path, capsys):
    """On paper, in a notebook and on the terminal alike; the title of a release has its trigger."""
    sums = "SUM(user / 7.0, contribution_bounds_per_row => (0, 80)) AS s"
    text = QUERY.replace("COUNT(*) AS n", f"COUNT(*) AS n, {sums}")
    release = next(iter(sv.sql(text, {"clicks": CLICKS}).run(tmp_path / "clicks.veil")))
    print_release(release)
    terminal = capsys.readouterr().out
    assert "trigger" not in terminal
    assert "release 1 (95% intervals)" in terminal
    low, high = (release.table[name][0].as_py() for name in ("n_low", "n_high"))
    ends = [release.table[name][0].as_py() for name in ("s_low", "s_high")]
    assert all(f"{end:.1f}" != f"{end}" for end in ends), "there are digits to leave out"
    for shown in (str(release), release._repr_html_(), terminal):
        assert f" {low:,.0f} … {high:,.0f}" in shown.replace(">", "> "), "whole, as the count is"
        assert not any(f"{end:,}" in shown for end in ends)
        for hidden in ("opened", "noise_weight", "n_sd", "n_low"):
            assert hidden not in shown


def test_an_answer_without_groups_says_what_it_takes_to_be_shown(tmp_path):
    """In the answer, in a notebook, and in each release."""
    rows = {"user": [1, 2, 3], "page": ["a", "b", "a"]}
    made = (
        sv.memory(rows).protect("user").group_by("page").agg(n=sv.count()).bound(max_rows=2)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9), name="few")
    )  # fmt: skip
    answer = made.answer(state=tmp_path / "few.veil")
    said = "no group is published: one appears at the latest when "
    assert any(note.startswith(said) for note in answer.notes)
    assert said in repr(answer)
    assert said in answer._repr_html_()
    assert said in repr(next(iter(made.run(state=tmp_path / "few.veil"))))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("COUNT(x) AS c, COUNT(*) AS n", None),
        ("COUNT(*) AS n, COUNT(x) AS c", None),
        ("COUNT(x) AS c", "its noisy number of rows that have a value for 'c' exceeds"),
    ],
)
def test_a_column_without_values_hides_a_group_only_where_its_rows_are_not_counted(columns, said):
    """20,000 rows in three groups: some 200 of a group show it."""
    rows, empty = np.arange(20_000), pa.nulls(20_000, pa.float64())
    table = pa.table({"user": rows % 3_000, "page": rows // 7 % 3, "x": empty})
    found = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column ="
        f" user, max_rows_contributed = 7) page, {columns} FROM t GROUP BY page",
        t=table,
    )
    assert len(found.table) == (3 if said is None else 0)
    assert said is None or any(said in note for note in found.notes)


def test_an_answer_warns_of_rows_that_could_not_be_used(monkeypatch):
    """But not in a notebook, which is shared with what stands in it."""
    rows = {"user": [None] * 5 + [1, 2, 3], "page": ["a"] * 8}
    query = (
        sv.memory(rows).protect("user").agg(n=sv.count()).bound(max_rows=2)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9))
    )  # fmt: skip
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    with pytest.warns(OperatorWarning, match=r"could not be used: null unit \(5\)"):
        query.answer()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", OperatorWarning)
        query.answer()
