"""Pages that the site takes from the code: every error and every command is in them."""

import re
from pathlib import Path

from benchmarks.papers import remake
from streamveil import cli, errors
from tests.pages import play
from tools import site_pages

DOCS = Path(__file__).parents[1] / "docs"
PAGES = DOCS / "reference"
COLUMNS = "(ts TIMESTAMP, user_id INT64, url STRING)"


def test_every_class_of_errors_is_on_the_page_with_its_code():
    text = (PAGES / "errors.md").read_text()
    found = {name: what for name, what in vars(errors).items() if isinstance(what, type)}
    kinds = {n for n, what in found.items() if issubclass(what, errors.StreamveilError)}
    assert all(f"`{name}`" in text for name in kinds)
    for kind, code in cli.CODES.items():
        assert re.search(rf"^\| `{kind.__name__}` \| {code} \|", text, re.M)
        assert site_pages.KINDS[kind.__name__] == code
    assert kinds - {"StreamveilError"} == site_pages.KINDS.keys()


def test_messages_are_found_where_they_are_raised():
    told = site_pages.all_errors()
    assert len(told) > 500
    [horizon] = [
        one for one in told if one.says.startswith("cut_share and intervals = 'true' need")
    ]
    assert (horizon.kind, horizon.room) == ("PlanError", "Running a job")
    assert horizon.fix == "leave them out, or run on the embedded engine"
    [nats] = [one for one in told if one.says.startswith("the stream '<stream>' cannot be read")]
    assert (nats.kind, nats.fix[:17]) == ("SourceError", "check the address")
    assert any(one.says == "NATS needs the extra 'nats'." for one in told)
    page = site_pages.errors()
    written = ("PlanError", "BudgetError", "StoreError", "SourceError", "WitnessError")
    assert all(f"## Messages of {kind}\n" in page for kind in written)


def test_every_command_and_option_is_in_the_page():
    text, seen = site_pages.commands(), 0

    def walk(command, name):
        nonlocal seen
        for part, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {part}")
        if hasattr(command, "commands"):
            return
        [section] = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        seen += 1
        for one in command.params:
            wanted = one.name.upper() if site_pages.is_argument(one) else one.opts[0]
            row = re.search(rf"^\| `{wanted}`.* \| (.+) \|", section, re.M)
            assert one.name == "help" or (row and re.search(r"\w", row[1])), (name, wanted)

    walk(cli.app, "streamveil")
    assert seen > 20


def test_pages_of_the_reference_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert play((PAGES / "formats.md").read_text()) == 2
    assert play((PAGES / "errors.md").read_text()) == 1


def test_the_page_of_trust_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes = (DOCS / "how-to" / "index.md").read_text()
    [query] = re.findall(r"^```sql\n(-- daily.sql\n.*?)^```", recipes, re.M | re.S)
    Path("daily.sql").write_text(query.replace("clicks WITH", f"clicks {COLUMNS} WITH"))
    assert play((DOCS / "trust.md").read_text()) == 2


def test_numbers_of_the_papers_come_from_result_files():
    pages = {page: page.read_text() for page in (DOCS / "papers").glob("*.md")}
    marks = [name for text in pages.values() for name in site_pages.MARK.findall(text)]
    assert sorted(marks) == ["classifiers", "dp_sqlp", "dynamic", "growing", "lazysketch"]
    depth = [page for page in DOCS.glob("*.md") if page.name not in ("errors.md", "commands.md")]
    marks += [name for page in depth for name in site_pages.MARK.findall(page.read_text())]
    assert set(marks) == site_pages.MADE.keys() - {"errors", "commands"}
    for name in marks:
        lines = [line for line in site_pages.MADE[name]().split("\n") if line.startswith("|")]
        assert len(lines) > 3
        assert len({line.count("|") for line in lines}) == 1
        assert all(re.search(r"\d", line) for line in lines[2:]), "a row without a number"
    named = {n for text in pages.values() for n in re.findall(r"remake\.py ([\w-]+)", text)}
    assert named == {page.stem for page in pages} - {"index"} == remake.PAGES.keys()
    scripts = [command[0] for one in remake.PAGES.values() for command in one.measure + one.draw]
    assert all((Path(remake.__file__).parent / script).is_file() for script in scripts)


def test_the_hook_puts_what_is_made_in_its_place():
    page = "a\n<!-- from the code: errors -->\nb"
    assert "## Messages of PlanError" in site_pages.filled(page)
    assert not site_pages.filled(page).count("<!--")
    for name in ("errors", "commands"):
        assert site_pages.MARK.findall((PAGES / f"{name}.md").read_text()) == [name]
