"""The warning that an answer will be little but noise: from public numbers or from a look alone."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.errors import NoiseWarning
from streamveil.release_metadata import sentences
from streamveil.runtime.published import of_state

ROWS = {"user": list(range(300)), "page": ["a", "b", "c"] * 100}
PUBLIC = ", public_groups = ['a', 'b', 'c'], max_rows_contributed = 1"
GAUSSIAN = ", selection = 'gaussian'"
KNOWN = ", expected_rows = 1, expected_groups = 3, expected_units = "


def asked(options, budget="epsilon = 1, delta = 1e-9", rows=ROWS):
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({budget}, privacy_unit_column = user"
        f"{options if PUBLIC in options else GAUSSIAN + options})"
        " page, COUNT(*) AS n FROM t GROUP BY page"
    )
    return sv.sql(text, {"t": rows})


def test_a_warning_names_the_line_of_the_caller(tmp_path):
    query = asked(KNOWN + "5")
    with pytest.warns(NoiseWarning) as found:
        list(query.run(str(tmp_path / "state")))
    assert {one.filename for one in found if one.category is NoiseWarning} == {__file__}


def warned(query, state):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        list(query.run(str(state)))
    return [str(one.message) for one in found if one.category is NoiseWarning]


@pytest.mark.parametrize(
    ("options", "units", "says"),
    [
        (KNOWN, 5, "100%"),
        (KNOWN, 100_000, None),
        (PUBLIC + KNOWN, 10, "% of the rows"),
        (PUBLIC + KNOWN, 10_000, None),
    ],
)
def test_what_is_expected_decides_and_no_row_does(options, units, says, tmp_path):
    other = {name: column[:7] for name, column in ROWS.items()}
    for place, rows in enumerate((ROWS, other)):
        query = asked(f"{options}{units}", rows=rows)
        found = warned(query, tmp_path / str(place))
        assert ("WARNING" in str(query.explain())) == bool(found) == (says is not None)
        assert all(says in text and "noise" in text for text in found), found


def test_a_look_that_finds_nothing_says_how_large_a_group_must_be(tmp_path):
    few = asked("", rows={name: column[:3] for name, column in ROWS.items()})
    [text] = warned(few, tmp_path / "s")
    assert "the look at the rows found too few privacy units" in text
    [text] = warned(few, tmp_path / "s")  # the job is old: it was told
    assert text.startswith("nothing left to do")
    many = {"user": list(range(60_000)), "page": ["a", "b", "c"] * 20_000}
    assert warned(asked("", rows=many), tmp_path / "t") == []


def test_rows_that_the_bounds_leave_out_are_no_noise(tmp_path):
    known = ", expected_rows = 50, expected_groups = 3, expected_units = 100000"
    [text] = warned(asked(f"{known}, max_rows_contributed = 1"), tmp_path / "s")
    assert "leave out" in text
    assert "expected_rows are those of one unit" in text
    assert "noise" not in text
    assert warned(asked(f"{known}, max_rows_contributed = 200"), tmp_path / "t") == []


def test_nothing_is_said_of_noise_where_nothing_is_known(tmp_path):
    [text] = warned(asked(", look_share = 0"), tmp_path / "s")
    assert text.startswith("nothing is known of the rows")
    assert "WARNING" not in str(asked("").explain())


def test_the_command_line_says_it_without_a_line_of_code(tmp_path):
    (tmp_path / "q.sql").write_text(
        "CREATE STREAM t WITH (source = 'files', path = 't.csv');"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,"
        " privacy_unit_column = user, public_groups = ['a', 'b'], max_rows_contributed = 1,"
        " expected_rows = 1, expected_units = 2) page, COUNT(*) AS n FROM t GROUP BY page"
    )
    (tmp_path / "t.csv").write_text("user,page\n1,a\n2,b\n")
    done = subprocess.run(
        [sys.executable, "-m", "streamveil", "run", "q.sql", "--state", "s"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "warning: the answer is forecast to be little but noise" in done.stderr
    assert ".py" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", []),
        (", look_share = 0", ["look_share = 0.05"]),
        (", max_rows_contributed = 2", []),
        (", expected_rows = 1", []),
        (", look_share = 0.05", []),
    ],
)
def test_bounds_that_nobody_gave_and_no_row_tells_are_said_to_be_a_guess(options, says, tmp_path):
    rows = {"user": list(range(3_000)), "ts": [1_767_225_600_000_000] * 3_000}
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6, privacy_unit_column ="
        " user, privacy_unit_period = INTERVAL 1 DAY, start = '2026-01-01', end = '2026-01-02'"
        f"{options}) window_start, COUNT(*) AS n FROM TUMBLE(TABLE t, DESCRIPTOR(ts), size =>"
        " INTERVAL 1 DAY) GROUP BY window_start EMIT EVERY INTERVAL 1 DAY",
        {"t": pa.table(rows).set_column(1, "ts", pa.array(rows["ts"], pa.timestamp("us", "UTC")))},
    )
    told = warned(query, tmp_path / "s")
    assert len(told) == len(says)
    assert all(text in one for text, one in zip(says, told, strict=True))
    kept = of_state(tmp_path / "s")
    beside = [one for one in sentences(kept.table(kept.moments[-1])) if "rows of any shape" in one]
    assert len(beside) == len(says)
    assert all(text in one for text, one in zip(says, beside, strict=True))
