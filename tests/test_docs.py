"""The examples of the pages about tables run, in order, as a new user would run them."""

import doctest
import re
from pathlib import Path

import pytest

from tests.pages import command
from tools import site_figures, site_typed

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("dynamic-data.md", 5),
        ("growing-data.md", 0),
        ("calendar-time.md", 0),
        ("post-processing.md", 0),
        ("lakes.md", 0),
        ("sources.md", 0),
        ("counters.md", 0),
    ],
)
def test_the_examples_run(page, commands, tmp_path, monkeypatch):
    if page == "lakes.md":
        pytest.importorskip("deltalake")
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(DOCS / page), module_relative=False, encoding="utf-8")
    assert found.failed == 0
    assert found.attempted > 5
    ran = 0
    for language, text in BLOCK.findall((DOCS / page).read_text()):
        if language == "sql":
            Path("people.sql").write_text(text)
        elif language == "console":
            for line in text.splitlines():
                command(line)
                ran += 1
    assert ran == commands


def test_numbers_in_sentences_are_those_of_the_results():
    known = site_figures.figures()
    texts = {page: page.read_text() for page in site_figures.pages()}
    named = {name for text in texts.values() for _, name in site_figures.FIGURE.findall(text)}
    assert named == known.keys(), "each is made, and each is on a page"
    assert [name for name, text in texts.items() if site_figures.filled(text, known) != text] == []
    assert (
        site_figures.filled("0.3<!-- = noise word --> ns", known) == "1.3<!-- = noise word --> ns"
    )


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    old = "7<!-- = noise word --> ns"
    page.write_text(old)
    other.write_text("no number")
    before = other.stat().st_ino
    monkeypatch.setattr(site_figures, "pages", lambda: [page, other])
    monkeypatch.setattr(site_figures, "figures", lambda: {"noise word": "8"})
    write = Path.write_text

    def killed(path, text):
        write(path, text[:3])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            site_figures.main()
    assert page.read_text() == old
    site_figures.main()
    assert page.read_text() == "8<!-- = noise word --> ns"
    assert other.stat().st_ino == before, "a page without news stays as it is"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.md", "page.md"]


def test_no_measurement_is_typed():
    assert site_typed.unknown() == {}, "make it in tools/site_figures.py, or list it as a setting"
    for name, known in site_typed.SETTINGS.items():
        assert {*known} <= {*site_typed.typed((DOCS / name).read_text())}, name
    page = (
        "A step takes 3.2 ms and 5<!-- = counters worst -->% of `7 s`; twice 1,000 to 2,000 bytes."
    )
    assert [*site_typed.typed(page)] == ["3.2 ms", "1,000 to 2,000 bytes"]


ROOT = DOCS.parent
SOURCE = ROOT / "src" / "streamveil"
DOTTED = re.compile(r"`(?:streamveil\.)?([a-z_]+(?:\.[A-Za-z_]+)+)")
FILE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)")


def missing(text):
    """Modules, files and names in modules that a text names in backticks and that are not there."""
    for name in DOTTED.findall(text):
        parts, place = name.split("."), SOURCE
        while parts and (place / parts[0]).is_dir():
            place /= parts.pop(0)
        if place != SOURCE and parts:
            if (place / f"{parts[0]}.py").is_file():
                place /= f"{parts.pop(0)}.py"
            else:
                place /= "__init__.py"
            if parts and not re.search(rf"\b{parts[0]}\b", place.read_text()):
                yield name
    for name in FILE.findall(text):
        if not any((top / name).is_file() for top in (ROOT, SOURCE)):
            yield name


def test_modules_and_files_that_are_named_are_there():
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *SOURCE.rglob("*.py")]
    found = {str(page.relative_to(ROOT)): set(missing(page.read_text())) for page in pages}
    assert {page: names for page, names in found.items() if names} == {}
    planted = "`core.nowhere`, `core.noise.Nowhere`, `engines/nowhere.py`, `core.noise`"
    assert set(missing(planted)) == set(re.findall("`(.+?)`", planted)[:3])


def test_the_tests_that_hold_a_finding_are_still_there():
    named = re.findall(r"`(tests/[\w/]+\.py)`", (DOCS / "review.md").read_text())
    assert len(named) > 22
    assert [name for name in named if not (DOCS.parent / name).exists()] == []


def test_decisions_have_numbers_of_their_own():
    folder = DOCS / "decisions"
    numbers = [path.name[:4] for path in folder.glob("*.md")]
    assert len(numbers) == len({*numbers})
    assert all(
        path.read_text().startswith(f"# {int(path.name[:4])}. ") for path in folder.glob("0*.md")
    )
