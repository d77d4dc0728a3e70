"""The layers import only along the arrows of the architecture; purity stays where it belongs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "streamveil"
BASE = {"batch", "errors", "types"}  # importable by all, import nothing

ARROWS = {
    "privacy": set(),
    "mechanisms": {"privacy"},
    "operators": {"mechanisms", "privacy"},
    "queries": {"mechanisms", "privacy"},
    "engines": {"operators", "queries", "mechanisms", "privacy", "connectors"},
    "connectors": set(),
    "runtime": {"engines", "connectors", "queries", "operators", "privacy", "derived"},
    "audit": {"privacy", "mechanisms", "operators", "queries", "engines", "runtime", "connectors",
              "datasets"},
    "datasets": set(),
    "derived": {"operators", "mechanisms", "privacy"},  # reads releases, wherever they are
}  # fmt: skip
TOP = {"__init__", "__main__", "cli", "commands", "demo", "dashboard"}  # may import everything


def layer(path):
    part = path.relative_to(ROOT).parts[0]
    return part.removesuffix(".py")


def imports(path):
    """Layers that a module imports when it is loaded (not inside functions or for typing only)."""
    todo = list(ast.parse(path.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            todo += node.body + node.orelse
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module + "." + alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("streamveil."):
                yield name.split(".")[1]


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    own = layer(path)
    if own in TOP:
        return
    allowed = (set() if own in BASE else ARROWS[own] | BASE) | {own}
    assert set(imports(path)) <= allowed


def test_the_check_sees_a_forbidden_arrow(tmp_path):
    module = tmp_path / "x.py"
    module.write_text("from streamveil.runtime.job import run\nimport streamveil.queries.plan\n")
    assert set(imports(module)) == {"runtime", "queries"}
