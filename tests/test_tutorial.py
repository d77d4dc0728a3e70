"""The tutorial runs as it is written, in an empty folder, and shows what it says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    shown = []
    for block in blocks:
        exec(compile(block, "tutorial.md", "exec"), names)
        shown.append(capsys.readouterr().out)
    assert len(blocks) == 6
    assert "plane" in shown[0]
    low, n, high = (
        [row[name] for row in names["table"].to_pylist()] for name in ("n_low", "n", "n_high")
    )
    assert all(a < b < c for a, b, c in zip(low, n, high, strict=True))
    assert len(n) > 50
    months = [int(line.split()[2]) for line in shown[4].splitlines()]
    assert len(months) == 12
    assert min(months) > 30
    assert "low" in shown[5]
