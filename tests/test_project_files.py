"""What a reader of the repository is told beside the code agrees with it."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert cited["title"].startswith(PROJECT["name"])
    assert [one["name"] for one in cited["authors"]] == [one["name"] for one in PROJECT["authors"]]


def test_forms_are_whole_and_ask_for_no_data():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    asked = [yaml.safe_load(form.read_text()) for form in forms if form.stem != "config"]
    assert len(asked) == 3
    for form in asked:
        assert {"name", "description", "body"} <= form.keys()
        names = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(names) == len(set(names)) > 0
    (fault,) = [form for form in forms if form.stem == "fault"]
    assert "Post no rows of people" in fault.read_text()


def test_the_security_policy_names_commands_and_pages_that_are_there():
    from streamveil.cli import app

    text = (ROOT / "SECURITY.md").read_text()
    commands = set(app.commands)
    named = re.findall(r"`streamveil ([a-z-]+)`", text)
    assert len(named) > 1
    assert set(named) <= commands
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_the_public_workflow_runs_what_is_here():
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    assert len(commands) > 4
    for command in commands:
        kind, name = command.split()[:2]
        assert (kind == "make" and name in targets) or (kind == "bash" and (ROOT / name).is_file())
    assert flow["permissions"] == {"contents": "read"}
    versions = flow["jobs"]["build"]["strategy"]["matrix"]["python"]
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    assert all(re.fullmatch(r"[\w/-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
