"""An option of the clause is declared once: its name is written in one module."""

import ast
import re
from math import inf, nan
from pathlib import Path

import pytest

import streamveil as sv
from streamveil.errors import PlanError
from streamveil.plan import options
from streamveil.plan.options import ASK_SHARE, BUDGETS, MAX_CHANGES, OPTIONS, TABLE, Limits, Option

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


def test_every_option_is_read():
    """One that is declared alone would be taken, and do nothing."""
    text = "".join(path.read_text() for path in PATHS)
    found = {name: what for name, what in vars(options).items() if isinstance(what, Option)}
    assert len(found) == len(OPTIONS)
    names = {name for name, what in found.items() if what.name not in BUDGETS}  # `Budget` reads it
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


@pytest.mark.parametrize(("within", "good", "bad"), [
    (Limits(0, 1), (0.5, "0.1"), (0, 1, -1, "x", None, True, float("nan"))),
    (Limits(0, 1, with_low=True), (0, 0.9), (1, -0.1)),
    (Limits(1, whole=True, with_low=True), (1, 7), (0, 1.5, float("inf"))),
])  # fmt: skip
def test_a_range_says_what_it_holds(within, good, bad):
    assert all(within.holds(value) for value in good)
    assert not any(within.holds(value) for value in bad)


LEAN = {"epsilon": 2, "delta": 1e-6, "selection": "'gaussian'", "look_share": 0,
        "expected_rows": 3, "expected_units": 1000, "expected_groups": 20}  # fmt: skip
OF_COINS = ("mu_share", "hidden_groups", "total_tests", "entry_weight", "weight_reference")
NUMBERS = [
    option.name for option in OPTIONS.values()
    if option.kind in ("real", "whole", "amount") and option.part_of != (TABLE,)
]  # fmt: skip
NUMBERS_OF_TABLES = [
    option.name for option in OPTIONS.values()
    if option.kind in ("real", "whole", "amount") and TABLE in (option.part_of or (TABLE,))
]  # fmt: skip
EXTREMES = (0, -1, 5e-324, 1e-12, 1e-5, 0.9999, 1 - 1e-10, 1 - 2**-53, 10**12, 2**63 - 1,
            2**64, 1e19, 1e300, 10**400, inf, -inf, nan)  # fmt: skip


def texts_of(given):
    """Options as a text."""
    return ", ".join(
        f"{one} = CAST('{held}' AS FLOAT64)" if held in (inf, -inf) or held != held
        else f"{one} = {held}" for one, held in given.items()
    )  # fmt: skip


def explained(name, value):
    """Explains a query with an option of this value, and with little to search for."""
    given = {**LEAN, name: value}
    if name in BUDGETS[2:]:
        del given["epsilon"]
    if name in OF_COINS:
        given |= {"selection": "'table'", "max_squared_rows": 8}
    rows = sv.memory({"u": [1], "k": [1]})
    sv.sql("SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (privacy_unit_column = u,"
           f" {texts_of(given)})"
           " k, COUNT(*) AS n FROM t GROUP BY k", {"t": rows}).explain()  # fmt: skip


def explained_table(name, value):
    """Explains questions to a changing table, and how many values there are where it is asked."""
    given = {"epsilon": 2, "delta": 1e-6, "steps": 10, "expected_size": 3000, name: value}
    answer = "COUNT(*)"
    if name == MAX_CHANGES.name:
        answer = "COUNT(DISTINCT age)"
    elif name not in (ASK_SHARE.name, "mu"):
        given[ASK_SHARE.name] = 0.3
    if name in BUDGETS[2:]:
        del given["epsilon"]
    rows = sv.memory({"op": ["+"], "id": [1], "city": ["a"], "age": [1]})
    sv.sql("CREATE TABLE people (city CHECK (city IN ('a', 'b')), age CHECK (age BETWEEN 0 AND 9))"
           " WITH (source = 'rows', changelog = 'insert-delete', operation = op, id = id);"
           f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({texts_of(given)}) city, {answer} AS n"
           " FROM people GROUP BY city EMIT EVERY 10 ROWS", {"rows": rows}).explain()  # fmt: skip


def said_of(name, value, explained=explained):
    """What a query says of such a value, or nothing but its name where it works."""
    try:
        explained(name, value)
    except PlanError as error:
        return str(error)
    return name


@pytest.mark.parametrize("name", NUMBERS)
def test_an_extreme_number_works_or_is_refused_by_its_name(name):
    for value in EXTREMES:
        assert re.search(rf"^refused: |\b{name}\b", said_of(name, value)), value


@pytest.mark.parametrize("name", NUMBERS_OF_TABLES)
def test_an_extreme_number_of_a_changing_table_works_or_is_refused_by_its_name(name):
    belongs = "" if TABLE in OPTIONS[name].part_of or name in BUDGETS else "|belong to streams"
    for value in EXTREMES:
        said = said_of(name, value, explained_table)
        assert re.search(rf"^refused: |\b{name}\b{belongs}", said), value
