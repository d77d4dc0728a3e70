"""Every example runs on a small part, by the command of its page, and draws its picture."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PARTS = {"flights": "--days 14"}
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
