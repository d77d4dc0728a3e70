"""Nothing that a row or a name holds reaches a terminal as a command to it."""

import json
import os
import pty
import re
import subprocess
import sys
from io import StringIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.cli import app
from streamveil.connectors.sinks import ConsoleSink
from streamveil.errors import PlanError, SourceError, visible, visible_lines
from streamveil.terminal import Terminal, label, say
from tests.released import made

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\x7f\nspent: nothing"
SPELLED = r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\x7f\nspent: nothing"
COLUMN, NUMBER = "gr\x1b[31m\u2066oup", "n\x1b[2J\u202e"
NEVER = re.compile(
    r"\x1b(?:\]|\[2J|\[31m.{0,2}oup)|[\x00-\x06\x07\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

QUERY = f"""
CREATE STREAM visits WITH (source = 'files', path = '{{folder}}/visits.parquet');
CREATE SINK out WITH (sink = 'console');
INSERT INTO out
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-6, privacy_unit_column = person,
         max_rows_contributed = 1, max_rows_per_group = 1)
       `{COLUMN}`, COUNT(*) AS `{NUMBER}`, COUNT(*) AS m
FROM visits GROUP BY `{COLUMN}`
"""

# every command that can show a group or a name: what is typed, and whether it shows the group
SHOWN = [
    (("explain", "q.sql"), None),
    (("explain", "q.sql", "--forecast"), None),
    (("run", "q.sql", "--state", "q.veil"), True),
    (("run", "wrong.sql", "--state", "w.veil"), False),
    (("inspect", "q.veil"), None),
    (("verify", "q.veil"), None),
    (("verify", HOSTILE), None),
    (("read", "q.veil"), True),
    (("read", "q.veil", "--key", f"{COLUMN}={HOSTILE[:-1]}"), False),
    (("read", "q.veil", "--key", f"{HOSTILE}=1"), False),
    (("read", HOSTILE), False),
    (("derive", "last", "q.veil", NUMBER, "--triggers", "1"), True),
    (("derive", "difference", "q.veil", NUMBER), None),
    (("derive", "moving", "q.veil", NUMBER, "--windows", "1"), True),
    (("derive", "ratio", "q.veil", NUMBER, "m"), True),
    (("derive", "top", "q.veil", NUMBER), True),
    (("derive", "top", "q.veil", HOSTILE), False),
    (("ledger", "create", "l", "--unit", HOSTILE, "--epsilon", "1", "--delta", "1e-6"), None),
    (("ledger", "show", "l"), None),
    (("ledger", "show", "q.veil"), None),
    (("ledger", "verify", "q.veil"), None),
    (("ledger", "convert", "l", "--to", HOSTILE), None),
    (("ledger", "export", "l"), None),
    (("ledger", "check", "q.veil", "--warn-below", "0.1"), None),
    (("ledger", "register", "q.veil"), None),
    (("backup", "q.veil", "b" + HOSTILE.replace("/", "")), None),
    (("restore", "b" + HOSTILE.replace("/", ""), "r.veil"), None),
    (("fork", "q.sql", "q.veil", "f" + HOSTILE.replace("/", "")), None),
    (("rekey", "q.veil", "--new", HOSTILE), None),
    (("tune", "q.sql", "--sample", "visits.parquet"), None),
    (("what-if", "q.sql", "--epsilon", "1"), None),
    (("ask", "q.sql", HOSTILE, "--state", "q.veil"), None),
    (("audit", "q.sql", "--alpha", "2"), None),
    (("verify-privacy", "q.sql", "--seconds", "0"), None),
    (("dashboard", "q.veil", "--out", HOSTILE.replace("/", "")), None),
]
CONSTANT = {("demo",)}  # print names of this package and numbers

RUN = """
import json, sys
from streamveil import cli
for line in json.loads(sys.argv[1]):
    print("=====", flush=True)
    sys.argv = ["streamveil", *line]
    try:
        cli.main()
    except SystemExit:
        pass
"""


def commands(group, before=()):
    for name, one in group.commands.items():
        yield from commands(one, (*before, name)) if hasattr(one, "commands") else [(*before, name)]


def test_every_command_is_driven():
    driven = {line[: len(name)] for line, _ in SHOWN for name in commands(app)}
    assert set(commands(app)) <= driven | CONSTANT


@pytest.fixture
def folder(tmp_path):
    people = 600
    pq.write_table(pa.table({"person": range(people), COLUMN: [HOSTILE] * people}),
                   tmp_path / "visits.parquet")  # fmt: skip
    text = QUERY.format(folder=tmp_path)
    (tmp_path / "q.sql").write_text(text)
    (tmp_path / "wrong.sql").write_text(
        text.replace(f"GROUP BY `{COLUMN}`", f"GROUP BY `{NUMBER}`")
    )
    return tmp_path


def parts(told):
    return told.split("=====")[1:]


def driven(folder, **streams):
    typed = json.dumps([line for line, _ in SHOWN])
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "300"}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, typed], cwd=folder, env=environment, **streams
    )


def test_no_command_hands_a_hostile_name_to_a_redirected_stream(folder):
    done = driven(folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    told = done.communicate()[0].decode()
    assert CONTROLS.findall(told) == []
    assert len(parts(told)) == len(SHOWN)
    for (line, shows), part in zip(SHOWN, parts(told), strict=True):
        if shows:
            assert SPELLED in part, (line, part)
        assert "unexpected failure" not in part, (line, part)


def test_no_command_hands_a_hostile_name_to_a_terminal(folder):
    own, its = pty.openpty()
    process = driven(folder, stdin=its, stdout=its, stderr=its)
    os.close(its)
    told = b""
    while True:
        try:
            told += os.read(own, 1 << 16)
        except OSError:  # the other end is closed
            break
    process.wait()
    text = told.decode()
    assert NEVER.findall(text) == []
    assert len(parts(text)) == len(SHOWN)
    assert text.count(SPELLED) >= 4
    assert "\x1b[" in text  # it was taken for a terminal


def test_the_sink_that_prints_spells_out_names_and_groups_in_one_line():
    table = pa.table({COLUMN: [HOSTILE, ":warning:", "[bold]"], NUMBER: [1, 2, 3]})
    for terminal in (False, True):
        out = StringIO()
        console = Terminal(file=out, width=300, force_terminal=terminal)
        sink = ConsoleSink()
        sink.console = console
        sink.write(HOSTILE, made(table, 0, 1))
        told = out.getvalue()
        assert not NEVER.search(told)
        assert told.count(SPELLED) == 2
        assert ":warning:" in told
        assert "[bold]" in told


@pytest.mark.parametrize("kind", [PlanError, SourceError])
def test_no_error_of_this_package_holds_a_command_whoever_shows_it(kind):
    told = str(kind(f"unknown column '{HOSTILE}'"))
    assert not CONTROLS.search(told)
    assert told.endswith("\nspent: nothing'")  # errors have lines of their own


def test_every_control_character_is_spelled_out_and_nothing_else(capsys):
    found = [chr(code) for code in range(0x11_0000) if visible(chr(code)) != chr(code)]
    codes = {ord(one) for one in found}
    assert codes >= {
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
    }
    assert codes - {*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)} == {
        0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
    }  # fmt: skip
    assert visible_lines("a\n\tb") == "a\n\\tb"
    assert label("[x]\x1b") == "\\[x]\\x1b"
    say("größe\x1b[2J")
    assert capsys.readouterr().out == "größe\\x1b[2J\n"
