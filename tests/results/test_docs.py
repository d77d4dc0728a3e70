"""The example of the page runs as it is written, Python and commands alike."""

import re
import shlex
from collections import Counter
from pathlib import Path

from click.testing import CliRunner

from streamveil import cli

PAGE = Path(__file__).parents[2] / "docs" / "answers.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)

COLUMNS = "url", "n", "n_sd", "n_low", "n_high"


def first_rows(clicks, most):
    """How many rows each page has among the first few of every user."""
    seen, kept = Counter(), Counter()
    for user, url in zip(clicks["user_id"].to_pylist(), clicks["url"].to_pylist(), strict=True):
        kept[url] += seen[user] < most
        seen[user] += 1
    assert sum(kept.values()) < len(clicks)
    return kept


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
    exact = first_rows(names["clicks"], most=8)
    last = found.last("n", 24).table  # the whole day
    for url, n, sd, low, high in zip(*(last[c].to_pylist() for c in COLUMNS), strict=True):
        assert low < n < high
        assert abs(n - exact[url]) < 6 * sd  # fails by chance once in 10^8 runs
    three = found.last("n", 3).table["n_sd"].to_numpy()
    alone = found.releases.table(found.moments[-1])["n_sd"].to_numpy()
    assert (three < 1.3 * alone).all()  # as independent numbers: 1.41 of one
    assert Path("mean.csv").read_text().startswith('"url","ratio"')
    assert Path("pages.html").stat().st_size > 10_000
