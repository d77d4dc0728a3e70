"""docs/sql.md says what the code does."""

import re
from pathlib import Path

import pytest

from streamveil.errors import PlanError
from streamveil.expressions.functions import FUNCTIONS
from streamveil.plan.options import OPTIONS
from streamveil.sql.aggregates import FORMS
from streamveil.sql.sql import parse_script
from tools.document_sql import AGGREGATE_NOTES, SIGNATURES, render

PAGE = Path(__file__).parents[1] / "docs" / "sql.md"


def test_the_page_is_generated():
    assert PAGE.read_text() == render()


def test_every_function_is_on_the_page():
    listed = [call.split("(")[0] for text in SIGNATURES.values() for call in text.split()]
    assert sorted(listed) == sorted(FUNCTIONS)
    assert FORMS.keys() <= AGGREGATE_NOTES.keys()


def test_every_option_is_on_the_page():
    assert all(f"`{name}`" in PAGE.read_text() for name in OPTIONS)


@pytest.mark.parametrize("text", re.findall(r"```sql\n(.*?)```", render(), flags=re.DOTALL))
def test_the_examples_are_queries(text, tmp_path, monkeypatch):
    (tmp_path / "regions.csv").write_text("country,region\nfi,north\n")  # public: read at once
    monkeypatch.chdir(tmp_path)
    try:
        parse_script(text)
    except PlanError as error:
        pytest.fail(str(error))
