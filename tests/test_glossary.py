"""One word for one thing: names that the glossary has replaced do not come back."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "streamveil"
ROWS = re.findall(
    r"^\| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", (ROOT / "docs/glossary.md").read_text(), re.M
)
# of the words in the last column, those that are gone from names in the code
GONE = {
    "turned", "aside", "pile", "saving", "feedback", "outlook", "grove", "chains", "ring",
}  # fmt: skip
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def names_in(path):
    """Names that a module gives: of itself, of classes, functions, parameters and fields."""
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def old_words(path):
    return {name for name in names_in(path) if GONE & {w.lower() for w in WORDS.findall(name)}}


def test_replaced_words_are_in_no_name():
    found = {str(path.relative_to(SOURCE)): old_words(path) for path in SOURCE.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_check_sees_an_old_word(tmp_path):
    (tmp_path / "ring_saving.py").write_text("class Aside: ...\ndef f(rows_turned): ...\n")
    assert old_words(tmp_path / "ring_saving.py") == {"ring_saving", "Aside", "rows_turned"}


def test_every_replaced_word_is_on_the_page():
    said = " ".join(row[2] for row in ROWS)
    assert all(f"`{word}`" in said for word in GONE)
    assert len({row[0] for row in ROWS}) == len(ROWS) > 25
