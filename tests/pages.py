"""Runs a page of documentation as it stands: its SQL, its Python and its commands, in order."""

import re
import shlex
import subprocess
from pathlib import Path

from click.testing import CliRunner

from streamveil import cli

BLOCK = re.compile(r"^(?:<!-- not run: (.+) -->\n)?```(\w+)\n(.*?)^```", re.M | re.S)
KEPT = re.compile(r"(.*?)(?: (2?)> (\S+))?")  # a line, and what of it goes into which file
CODE = re.compile(r"# exit code (\d)$")


def command(line):
    """Runs one line of a console, which ends as it says it does."""
    wanted = int(found[1]) if (found := CODE.search(line)) else 0
    line = CODE.sub("", line.removeprefix("$ ")).strip()
    if not line.startswith("streamveil "):
        done = subprocess.run(line, shell=True, check=False)
        assert done.returncode == wanted, line
        return
    line, stream, kept = KEPT.fullmatch(line).groups()
    done = CliRunner().invoke(cli.app, shlex.split(line)[1:])
    code = next((n for kind, n in cli.CODES.items() if isinstance(done.exception, kind)), None)
    assert (done.exit_code if code is None else code) == wanted, (line, done.output, done.exception)
    if kept:
        Path(kept).write_text(done.stderr if stream else done.stdout)


def play(text):
    """Runs the blocks of a page in order; how many ran."""
    names, ran = {}, 0
    for reason, language, block in BLOCK.findall(text):
        if reason or language == "sh":
            continue
        if language == "sql":
            Path(block.splitlines()[0].removeprefix("-- ")).write_text(block)
        elif language == "python":
            exec(compile(block, "recipe", "exec"), names)
        else:
            assert language == "console"
            for line in block.splitlines():
                command(line)
        ran += 1
    return ran
