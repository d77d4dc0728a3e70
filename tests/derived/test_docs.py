"""The example of the page runs as it is written, Python and commands alike."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from streamveil import cli

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names, commands = {}, 0
    for language, text in BLOCK.findall(PAGE.read_text()):
        if language == "python":
            exec(compile(text, "answers.md", "exec"), names)
        elif language == "console":
            for line in text.splitlines():
                arguments = shlex.split(line.removeprefix("$ streamveil "))
                done = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
                assert done.exit_code == 0, (line, done.stdout)
                commands += 1
    assert commands >= 6
    found = names["answers"]
    exact = names["clicks"].group_by("url").aggregate([([], "count_all")])
    last = found.last("n", 24).table  # the whole day
    for url, n, low, high in zip(*(last[c].to_pylist() for c in ("url", "n", "n_low", "n_high")),
                                 strict=True):  # fmt: skip
        assert low < n < high
        true = dict(zip(exact["url"].to_pylist(), exact["count_all"].to_pylist(), strict=True))[url]
        assert abs(n - true) < 4 * (high - low)
    three = found.last("n", 3).table["n_sd"].to_numpy()
    alone = found.releases.table(found.moments[-1])["n_sd"].to_numpy()
    assert (three < 1.3 * alone).all()  # as independent numbers: 1.41 of one
    assert Path("mean.csv").read_text().startswith('"url","ratio"')
    assert Path("pages.html").stat().st_size > 10_000
