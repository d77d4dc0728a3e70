"""An option of the clause is declared once: its name is written in one module."""

import ast
from pathlib import Path

import pytest

from streamveil.plan.options import OPTIONS, Limits

ROOT = Path(__file__).parents[1] / "src" / "streamveil"
HOME = ROOT / "plan" / "options.py"
ROOMS = ("plan", "sql", "compiler", "advise", "api", "audit", "runtime", "engines", "commands")
READERS = {"get", "setting", "_option", "pop"}  # what looks a name up


def written(path):
    """Option names that a module writes: those of two words anywhere, any where one is looked up.

    Words such as 'name' or 'counter' mean other things elsewhere.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in OPTIONS and "_" in node.value:
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
            if node.func.attr in READERS and (owner == "self" or owner.endswith("plan.options")):
                yield from (
                    one.value
                    for one in node.args[:1]
                    if isinstance(one, ast.Constant) and one.value in OPTIONS
                )


PATHS = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path != HOME)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_option_is_named_in_one_module(path):
    assert sorted(written(path)) == []


@pytest.mark.parametrize("text", [
    'x = plan.options.get("selection")',
    'x = self.setting("weights", 1)',
    'x = {"hidden_groups": 1}',
    'x = given["cut_share"]',
])  # fmt: skip
def test_the_check_sees_a_second_place(text, tmp_path):
    (tmp_path / "one.py").write_text(text)
    assert list(written(tmp_path / "one.py"))


@pytest.mark.parametrize(("within", "good", "bad"), [
    (Limits(0, 1), (0.5, "0.1"), (0, 1, -1, "x", None, True, float("nan"))),
    (Limits(0, 1, with_low=True), (0, 0.9), (1, -0.1)),
    (Limits(1, whole=True, with_low=True), (1, 7), (0, 1.5, float("inf"))),
])  # fmt: skip
def test_a_range_says_what_it_holds(within, good, bad):
    assert all(within.holds(value) for value in good)
    assert not any(within.holds(value) for value in bad)
