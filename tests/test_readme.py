"""Every command and every line of Python of the README runs, in order, as a new user would."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from streamveil import compiled

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def test_the_readme_runs(tmp_path, monkeypatch, capsys):
    """No command compiles, where compiled functions are shipped: Numba's own cache stays empty."""
    monkeypatch.chdir(tmp_path)
    apart = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    names = {}
    ran = {"python": 0, "console": 0}
    for language, text in BLOCK.findall((ROOT / "README.md").read_text()):
        if language == "sql":
            Path("clicks.sql").write_text(text)
        elif language == "python":
            exec(compile(text, "README.md", "exec"), names)
            ran["python"] += 1
        elif language == "console":
            for line in text.splitlines():
                command = shlex.split(line.removeprefix("$ "))
                assert command[0] == "streamveil"
                done = subprocess.run(
                    [sys.executable, "-m", *command],
                    env=apart, capture_output=True, text=True, check=False,
                )  # fmt: skip
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                compiles = [file.stem for file in Path("numba").rglob("*.nbi")]
                assert compiles == [] or not (compiled.made() and compiled.fits()), (line, compiles)
                ran["console"] += 1
    assert ran["python"] >= 4
    assert ran["console"] >= 4
    shown = capsys.readouterr().out
    assert "PROMISE" in shown
    assert "n_low" in shown
    assert list(Path("out").rglob("*.csv"))


MOST_MODULES = 110  # of ours that the first query of the README loads, `explain` included
LOADED = """
import sys
from streamveil import compiled
ours = [name for name in sys.modules if name.split(".")[0] == "streamveil"]
full = [name for name in ("numba.np.arraymath", "numba.cpython.unicode") if name in sys.modules]
print("ours", len(ours), compiled.made() and compiled.fits(), full, file=sys.stderr)
"""


def test_the_first_query_loads_few_modules_and_compiles_nothing(tmp_path):
    """A part that a query does not name is not loaded: other connectors, SQL, tables, sketches.

    Nor is what Numba compiles with, where compiled functions of this code are shipped.
    """
    blocks = [text for language, text in BLOCK.findall((ROOT / "README.md").read_text())
              if language == "python"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", blocks[0] + blocks[1] + LOADED], cwd=tmp_path, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    ours, shipped, full = done.stderr.rsplit("ours ", 1)[1].split(maxsplit=2)
    assert int(ours) <= MOST_MODULES
    assert full.strip() == "[]" or shipped == "False", full


COLLECTOR = """
import gc
import streamveil as sv
{first}
sv.count
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(("first", "left"), [
    ("", "True False"), ("gc.disable()", "False False"), ("gc.freeze()", "True True"),
])  # fmt: skip
def test_loading_leaves_the_garbage_collector_as_it_was(first, left):
    done = subprocess.run(
        [sys.executable, "-c", COLLECTOR.format(first=first)], check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.strip() == left


def test_links_in_the_documents_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_make_targets_named_exist():
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"make ([a-z]+)", (ROOT / page).read_text()):
            assert target in [*targets, "on"] or target in ("make",), target
