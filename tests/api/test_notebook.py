"""In a notebook a job shows how far it is, by public facts alone, and leaves nothing behind."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.api import notebook
from streamveil.core.noise import SeededNoise

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")


@pytest.fixture
def cell(monkeypatch):
    """What stands in the output of a cell, one after the other, of an IPython that is none."""
    shown = []
    shell, module, display = (ModuleType(name) for name in ("shell", "IPython", "IPython.display"))
    shell.kernel = object()
    module.get_ipython, module.display = lambda: shell, display
    display.HTML = str
    display.display = lambda text, display_id: (
        shown.append(text), SimpleNamespace(update=shown.append)
    )[1]  # fmt: skip
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "PAUSE", -1)
    return shown


def query():
    rows = pa.table(
        {"u": np.arange(400), "ts": pa.array(np.arange(400) * 10**7, pa.timestamp("us"))}
    )
    return (
        sv.memory(rows, event_time="ts").protect("u").agg(n=sv.count()).bound(max_rows=1)
        .release(every="20 min", start="1970-01-01", steps=4,
                 budget=sv.Budget(epsilon=9, delta=1e-6))
    )  # fmt: skip


def test_a_job_shows_its_steps_and_no_rows(cell, tmp_path):
    key = {"noise": SeededNoise(1), "insecure": True}
    assert len(list(query().run(state=str(tmp_path / "s"), **key))) == 4
    assert cell[-1] == ""
    assert any('max="4"' in text for text in cell)
    assert not any("400" in text or "rows" in text for text in cell)
    before = len(cell)
    list(query().run(state=str(tmp_path / "t"), progress=lambda _: None, **key))
    assert len(cell) == before  # who listens sees to it


def test_a_query_says_what_it_is_in_a_line():
    assert repr(query()) == "Query('query': n of memory)"


def test_figures_are_pictures_also_before_a_notebook_has_a_backend():
    answer = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6, look_share = 0,"
        " privacy_unit_column = u, max_rows_contributed = 1, public_groups = [0, 1, 2]) g,"
        " COUNT(*) AS n FROM t GROUP BY g",
        t={"u": list(range(300)), "g": [0, 1, 2] * 100},
    )
    assert vars(answer.plot("n"))["_repr_png_"]().startswith(b"\x89PNG")


def test_outside_of_notebooks_nothing_is_shown(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not notebook.in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not notebook.in_notebook()
