"""The tutorials run as they are written, in an empty folder, and show what they say."""

import re
from pathlib import Path

import pytest

from tests.pages import play

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "tutorial.md"
SHOWN = {  # what each of the others must show
    "live-stream": r"^8 \d+ destinations",
    "changing-table": r"(RELEASED|EASY|HARD); after release 30",
    "choose": r"an even bet becomes \d+%",
    "top-and-trends": r"\d+ products grew and \d+ fell, of \d+",
    "spark": r"^True$",
}


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    shown = []
    for block in blocks:
        exec(compile(block, "tutorial.md", "exec"), names)
        shown.append(capsys.readouterr().out)
    assert len(blocks) == 6
    assert "plane" in shown[0]
    low, n, high = (
        [row[name] for row in names["table"].to_pylist()] for name in ("n_low", "n", "n_high")
    )
    assert all(a < b < c for a, b, c in zip(low, n, high, strict=True))
    assert len(n) > 50
    months = [int(line.split()[-2]) for line in shown[4].splitlines()]
    assert len(months) == 12
    assert min(months) > 30
    assert "ratio" in shown[5]


SLOW = {"choose", "top-and-trends", "spark"}  # ten seconds or more


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in SHOWN]
)
def test_a_further_tutorial_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    text = (DOCS / "tutorials" / f"{name}.md").read_text()
    assert re.match(r"# .+\n\nYou (get|learn|run) ", text), "what the reader gets comes first"
    assert play(text) > 4
    assert re.search(SHOWN[name], capsys.readouterr().out, re.M)


def test_each_tutorial_is_run_here():
    assert {page.stem for page in (DOCS / "tutorials").glob("*.md")} == set(SHOWN)
