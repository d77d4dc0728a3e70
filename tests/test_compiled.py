"""Compiled functions that are shipped are used where they fit, and nowhere else."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamveil import compiled

ROOT = Path(__file__).parents[1]
MODULE = """
from streamveil.compiled import njit


@njit(cache=True)
def twice(x):
    return 2 * x
"""


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder for what is shipped, with a module of one function, and how to load it anew."""
    monkeypatch.setattr(compiled, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(compiled, "stamp", lambda: "now")
    monkeypatch.setattr(compiled, "LEVELS", dict.fromkeys(compiled.LEVELS, "toy"))
    monkeypatch.setattr(compiled, "NEEDED", {"toy": ("sse2",)})
    monkeypatch.setattr(compiled, "ON_COMPILING", [])
    compiled.fits.cache_clear()
    (tmp_path / "shipped").mkdir()
    path = tmp_path / "toy_kernels.py"
    path.write_text(MODULE)

    def load():
        compiled.fits.cache_clear()
        spec = importlib.util.spec_from_file_location("toy_kernels", path)
        module = sys.modules["toy_kernels"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.twice

    monkeypatch.setenv(compiled.MAKING, "1")
    assert load()(3) == 6
    monkeypatch.delenv(compiled.MAKING)
    yield load
    compiled.fits.cache_clear()


def hits(function):
    return sum(function.stats.cache_hits.values())


def test_what_is_shipped_is_used_and_nothing_is_compiled(shipped, tmp_path):
    asked = []
    compiled.ON_COMPILING.append(lambda: asked.append(1))
    twice = shipped()
    assert (twice(3), hits(twice), asked) == (6, 1, [])
    assert not list(tmp_path.glob("__pycache__/*.nbi"))  # numba's own cache was not asked


APART = """
import os, pathlib, sys
from streamveil import compiled
folder = pathlib.Path.cwd()
compiled.SHIPPED, compiled.stamp = folder / "shipped", lambda: "now"
compiled.LEVELS, compiled.NEEDED = dict.fromkeys(compiled.LEVELS, "toy"), {"toy": ("sse2",)}
sys.path.insert(0, str(folder))
from toy_kernels import twice


@compiled.njit()
def thrice(x):
    return twice(x) + x


print(twice(4), thrice(4), sum(twice.stats.cache_hits.values()))
"""


def test_what_is_shipped_runs_and_is_linked_in_another_process(shipped, tmp_path):
    found = subprocess.run(
        [sys.executable, "-c", APART], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["8", "12", "1"]


def test_other_types_are_compiled_and_that_is_said_once(shipped):
    asked = []
    compiled.ON_COMPILING.append(lambda: asked.append(1))
    twice = shipped()
    assert (twice(1.5), hits(twice), asked) == (3.0, 0, [1])
    assert (twice(True), asked) == (2, [1])


@pytest.mark.parametrize("change", [
    {"stamp": lambda: "later"}, {"NEEDED": {"toy": ("no such feature",)}}, {"LEVELS": {}},
], ids=["code", "processor", "machine"])  # fmt: skip
def test_nothing_stale_or_foreign_is_used(shipped, monkeypatch, change):
    for name, value in change.items():
        monkeypatch.setattr(compiled, name, value)
    twice = shipped()
    assert (twice(3), hits(twice)) == (6, 0)


def test_a_change_of_any_compiled_module_changes_the_stamp(tmp_path, monkeypatch):
    found = []
    for text in ("njit", "njit #", "no kernel", "no kernel at all"):
        compiled.stamp.cache_clear()
        monkeypatch.setattr(compiled, "HERE", tmp_path)
        (tmp_path / "one.py").write_text(text)
        found.append(compiled.stamp())
    compiled.stamp.cache_clear()
    assert len(set(found[:3])) == 3
    assert found[2] == found[3]


def test_python_is_told_on_stderr_that_it_compiles():
    fresh = "from streamveil import compiled; compiled.ON_COMPILING.pop()()"
    done = subprocess.run([sys.executable, "-c", fresh], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == compiled.COMPILING


PAGES = ("readme", "tutorial", "how_to")  # which run as they stand, in this process and in others
LONG = ("choose", "top-and-trends", "spark")  # tutorials of minutes, with no query that others lack


def kept_by_numba(command, folder):
    """What Numba compiled and kept while a command ran: its own cache is empty before."""
    apart = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=apart, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted({path.stem for path in folder.rglob("*.nbi")})


@pytest.fixture
def made():
    if not (compiled.made() and compiled.fits()):
        pytest.skip("no compiled functions of this code are shipped for this processor")


@pytest.mark.usefixtures("made")
def test_no_sketch_compiles_at_a_users_machine(tmp_path):
    assert kept_by_numba(["-W", "ignore", "-c", compiled.SKETCHES], tmp_path) == []


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_no_command_of_a_page_compiles_at_a_users_machine(tmp_path):
    pages = [f"tests/test_{page}.py" for page in PAGES]
    left = [f"tests/test_tutorial.py::test_a_further_tutorial_runs[{name}]" for name in LONG]
    options = ["-q", "-p", "no:cacheprovider", "-m", "", *(f"--deselect={one}" for one in left)]
    assert kept_by_numba(["-m", "pytest", *options, *pages], tmp_path) == []
