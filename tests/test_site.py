"""The site builds strictly, loads nothing from elsewhere, and refers to every public name."""

import ast
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import streamveil as sv
from streamveil.api import RUN_OPTIONS, Query
from streamveil.api.builder import Stream
from streamveil.api.table_builder import Table
from streamveil.results.answers import Answers
from streamveil.runtime.run import prepared
from tools import site_versions
from tools.site_docstrings import told_whole

ROOT = Path(__file__).parents[1]
MODULES = ("counters", "sketches", "linear", "dynamic")
PAPER = {  # what a colour is read on
    "--md-primary-fg-color": "#ffffff", "--md-accent-fg-color": "#ffffff",
    "--md-typeset-a-color": "#1e2129", "--md-code-hl-number-color": "#272a35",
    "--md-code-hl-constant-color": "#272a35",
}  # fmt: skip
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=[\"']?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages: those that `.ci/run` has built of this code, where it says so, else built here."""
    if built := os.environ.get("STREAMVEIL_SITE"):
        return Path(built)
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


@pytest.mark.slow(landing=True)  # of pages that are built
def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert not [page for page in pages if LOADED.search(page.read_text())]
    assert LOADED.search('<script src="https://example.org/a.js">')
    assert all(f"streamveil {sv.__version__}\n" in page.read_text() for page in pages)
    for name in ("assets/site.css", "assets/site.js"):
        assert (site / name).exists()
        assert name in (site / "index.html").read_text()


def contrast(one, other):
    """The ratio of WCAG 2 between two colours."""

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_page_begins_with_what_the_reader_gets():
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    first = {str(page): page.read_text().split("\n\n")[1] for page in pages}
    assert [name for name, words in first.items() if not words.startswith("You ")] == []


def test_colours_can_be_read():
    style = (ROOT / "docs" / "assets" / "site.css").read_text()
    colour = {name: re.search(rf"{name}: (#\w{{6}})", style)[1] for name in PAPER}
    assert {name for name, paper in PAPER.items() if contrast(colour[name], paper) < 4.5} == set()
    assert contrast("#009485", "#ffffff") < 4.5, "teal, as the theme has it"


@pytest.mark.slow(landing=True)  # of pages that are built
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


def members(kind):
    """A class and the methods that its own module gives it."""
    own = {name: what for name, what in vars(kind).items() if inspect.isfunction(what)}
    yield f"{kind.__module__}.{kind.__name__}", kind
    yield from ((f"{kind.__name__}.{n}", what) for n, what in own.items() if not n.startswith("_"))


def queries():
    """All that a user calls to build, run and read a query."""
    yield from ((name, getattr(sv, name)) for name in sv.__all__)
    for kind in (Stream, Table, Query, Answers):
        yield from members(kind)


def lacking(what):
    """What the docstring of a function or class does not tell, though it should."""
    text = inspect.getdoc(what) or ""
    if isinstance(what, type) and issubclass(what, Exception):
        return []
    _, _, told = text.partition("\nArgs:\n")
    told = re.match(r"(?: +.*\n|\n(?= ))*", told)[0]
    named = set(re.findall(r"^ {4}\**(\w+): \S", told, re.MULTILINE))
    dataclass = isinstance(what, type) and what is not sv.Budget  # its fields are no arguments
    known = {} if dataclass else inspect.signature(what).parameters
    found = [name for name in known if name != "self" and name not in named]
    found += sorted(raised(bare(what)) - named_errors(text) - NOT_FOR_USERS)
    found += ["Raises"] * (known.keys() - {"self"} != set() and "\nRaises:\n" not in text)
    method = inspect.isfunction(what) and "." in what.__qualname__  # its class has the example
    return found + ["an example"] * (">>> " not in text and not method)


# a fault of ours; what Python raises for every name that an object does not have
NOT_FOR_USERS = {"WitnessError", "AttributeError"}


def test_queries_are_told_whole():
    found = {name: lacking(what) for name, what in queries()}
    assert len(found) > 60
    assert {name: lacks for name, lacks in found.items() if lacks} == {}
    assert lacking(lacking) == ["what", "Raises", "an example"]


def described(kind):
    """Fields of a dataclass that a comment or a docstring of its line of classes tells of."""
    for one in kind.__mro__:
        if dataclasses.is_dataclass(one):
            text, said = inspect.getsource(one), inspect.getdoc(one) or ""
            for name in one.__annotations__:
                if re.search(rf"^    {name}: .*#\s*\S", text, re.M) or re.search(
                    rf"\b{name}\b", said
                ):
                    yield name


def bare(what):
    """A function or class without what wraps it."""
    return inspect.unwrap(what) if callable(what) else what


def sources(what):
    """A function or class with the code of its line of classes."""
    line = what.__mro__ if isinstance(what, type) else [what]
    for one in line:
        if one.__module__.startswith("streamveil."):
            yield one, ast.parse(textwrap.dedent(inspect.getsource(one)))


def made_by(call, what, module):
    """The function of this package that a call runs, where its name tells it."""
    match call:
        case ast.Name(id=name):
            found = getattr(module, name, None)
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            found = getattr(what, name, None)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            found = getattr(getattr(module, owner, None), name, None)
        case _:
            return []
    parts = [found]
    if isinstance(found, type):  # only what runs when one is made
        parts = [vars(found).get(name) for name in ("__init__", "__post_init__")]
    bared = [bare(part) for part in parts if part is not None]
    written = [f for f in bared if inspect.isfunction(f) and "<" not in f.__code__.co_filename]
    ours = [f for f in written if f.__module__.startswith("streamveil.")]
    return [f for f in ours if f.__qualname__.split(".")[0] not in WITHIN]


def raised(what, further=2, seen=()):
    """Names of errors that a function or class raises, itself or so many calls further."""
    names = set()
    for one, code in sources(what):
        for node in ast.walk(code):
            match node:
                case ast.Raise(exc=ast.Call(func=ast.Name(id=kind))):
                    names.add(kind)
                case ast.Call(func=called) if further:
                    for helper in made_by(called, what, sys.modules[one.__module__]):
                        if helper not in seen:
                            names |= raised(helper, further - 1, (*seen, helper))
    return names - {"NotImplementedError", "AssertionError", "TypeError"}


WITHIN = {  # they refuse what only our own code could hand them
    "Bounds", "post_process", "Meter", "Place", "zcdp_rho", "Guarantee", "SignedCounter",
    "_largest", "combine",
}  # fmt: skip


def named_errors(text):
    """Errors under "Raises:" in a docstring."""
    _, _, told = text.partition("Raises:\n")
    return set(re.findall(r"^    (\w+Error): \S", told, re.M))


def untold(what):
    """What the reference does not tell of a name of the library."""
    text = inspect.getdoc(what) or ""
    found = ["an example"] * (">>> " not in text) if callable(what) else []
    if callable(what):
        found += sorted(raised(bare(what)) - named_errors(text))
    if dataclasses.is_dataclass(what) and isinstance(what, type):
        known = {field.name for field in dataclasses.fields(what) if field.init}
    elif getattr(what, "_is_protocol", False) or not callable(what):
        known = ()  # nobody calls it
    else:
        known = inspect.signature(what).parameters.keys() - {"args", "kwargs"}
    said = {*described(what)} if isinstance(what, type) else set()
    return sorted(n for n in known if n not in said and not re.search(rf"\b{n}\b", text)) + found


def said():
    """The docstring of every method of ours, by class and name."""
    for path in (ROOT / "src" / "streamveil").rglob("*.py"):
        for kind in ast.walk(ast.parse(path.read_text())):
            if isinstance(kind, ast.ClassDef):
                for one in kind.body:
                    if isinstance(one, ast.FunctionDef) and (text := ast.get_docstring(one)):
                        yield f"{kind.name}.{one.name}", text


def untold_methods(kind, known):
    """What the methods of a public class do not tell, by name: parameters and errors."""
    for one in kind.__mro__:
        if not one.__module__.startswith("streamveil."):
            continue
        for name, what in vars(one).items():
            what = getattr(what, "__func__", what)
            if name.startswith("_") or not inspect.isfunction(what):
                continue
            text = told_whole(inspect.cleandoc(what.__doc__ or ""), name, known)
            params = inspect.signature(what).parameters.keys() - {"self", "cls"}
            lacks = sorted(one for one in params if not re.search(rf"\b{one}\b", text))
            lacks += sorted(raised(bare(what)) - named_errors(text) - NOT_FOR_USERS)
            if lacks:
                yield f"{one.__name__}.{name}", lacks


def test_methods_of_public_classes_are_told_with_every_parameter_and_error():
    known = dict(said())
    kinds = [what for _, what in public() if isinstance(what, type)]
    found = dict(pair for kind in kinds for pair in untold_methods(kind, known))
    assert found == {}
    assert len(kinds) > 70


class Silent:
    """See `Queries`."""

    def label(self, index):
        """See `Queries`."""
        raise ValueError("no")

    def more(self, index):
        """Something."""


Silent.__module__ = "streamveil.silent"


def test_the_check_sees_what_a_method_does_not_tell(monkeypatch):
    monkeypatch.setitem(sys.modules, Silent.__module__, sys.modules[__name__])
    known = {"Queries.label": "A name.\n\nArgs:\n    index: from 0."}
    monkeypatch.setitem(globals(), "raised", lambda _: {"ValueError"})
    assert dict(untold_methods(Silent, known)) == {
        "Silent.label": ["ValueError"], "Silent.more": ["index", "ValueError"],
    }  # fmt: skip


RANGE = re.compile(r">=? |\d to \d|1 to rows|in \(0|in \[0|units of|any |of the noise|odd")
NUMBERS = ("int", "float", "Exact", "Fraction")


def unmeasured(kind):
    """Numbers among the fields of a dataclass whose comment tells no range and no unit."""
    for one in kind.__mro__ if dataclasses.is_dataclass(kind) else ():
        if dataclasses.is_dataclass(one):
            text = inspect.getsource(one)
            for name, annotated in one.__annotations__.items():
                comment = re.search(rf"^    {name}: .*?  # (.+)$", text, re.M)
                if str(annotated).split(" ")[0] in NUMBERS and not (
                    comment and RANGE.search(comment[1])
                ):
                    yield name


def test_every_number_is_told_with_its_range():
    found = {name: [*unmeasured(what)] for name, what in public()
             if isinstance(what, type) and name.count(".") == 2}  # fmt: skip
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


def test_mechanisms_are_told_with_every_parameter_error_and_an_example():
    found = {name: untold(what) for name, what in public() if name.count(".") == 2}
    assert len(found) > 75
    assert {name: lacks for name, lacks in found.items() if lacks} == {}
    assert untold(contrast) == ["one", "other", "an example"]
    assert raised(sv.counters.BltCounter) == {"PlanError", "HorizonError", "StoreError"}
    assert named_errors("Raises:\n    HorizonError: too late.") == {"HorizonError"}


def test_a_query_runs_with_every_option_of_a_job():
    named = inspect.signature(prepared).parameters.keys() - {"plan", "state", "look"}
    assert set(RUN_OPTIONS) == {*named, "progress"}


def test_versions_stand_side_by_side_the_newest_first(tmp_path):
    for name in ("0.9.1", "0.10.0", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    site_versions.main(tmp_path)
    told = json.loads((tmp_path / "versions.json").read_text())
    assert [one["version"] for one in told] == ["0.10.0", "0.9.1"]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text()
