"""The site builds strictly, loads nothing from elsewhere, and refers to every public name."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import streamveil as sv

ROOT = Path(__file__).parents[1]
MODULES = ("counters", "sketches", "linear", "dynamic")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


def public():
    """Every public name with what it stands for."""
    yield from ((f"streamveil.{name}", getattr(sv, name)) for name in sv.__all__)
    for module in MODULES:
        found = getattr(sv, module)
        yield from ((f"streamveil.{module}.{name}", getattr(found, name)) for name in found.__all__)


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not [page for page in pages if LOADED.search(page.read_text())]
    assert LOADED.search('<script src="https://example.org/a.js">')


def test_the_reference_holds_every_public_name(site):
    text = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    there = set(re.findall(r'id="(streamveil\.[\w.]+)"', text))
    missing = {
        name for name, what in public()
        if not {name, f"{getattr(what, '__module__', '')}.{name.split('.')[-1]}"} & there
    }  # fmt: skip
    assert len(there) > 500
    assert not missing


def test_every_public_callable_says_what_it_is():
    silent = [name for name, what in public() if callable(what) and not inspect.getdoc(what)]
    assert not silent


def test_every_function_of_the_front_door_explains_its_arguments_and_has_an_example():
    poor = []
    for name in sv.__all__:
        what = getattr(sv, name)
        if inspect.isfunction(what):
            said = inspect.getdoc(what)
            silent = [one for one in inspect.signature(what).parameters if one not in said]
            poor += [(name, silent)] if silent or ">>>" not in said else []
    assert not poor
