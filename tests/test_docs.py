"""The examples of the pages about tables run, in order, as a new user would run them."""

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize(("page", "commands"), [("dynamic-data.md", 5), ("growing-data.md", 0)])
def test_the_examples_run(page, commands, tmp_path, monkeypatch):
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
                command = shlex.split(line.removeprefix("$ "))
                done = subprocess.run(
                    [sys.executable, "-m", *command], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                ran += 1
    assert ran == commands
