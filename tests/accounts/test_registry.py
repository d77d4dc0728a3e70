"""Entries for the public registry of deployments are valid under its schema, and of tier 3.

`registry_schema.json` holds the structure of that schema (names, types, choices, what is required)
as it was in November 2026, without its texts.
"""

import json
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from jsonschema import Draft7Validator

import streamveil as sv
from streamveil.accounts.ledger import Ledger
from streamveil.accounts.registry import SECTORS, STATUS, Publisher, entry
from streamveil.cli import app
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp, Guarantee, Pure, Zcdp
from streamveil.errors import PlanError
from tests.losses import approx

SCHEMA = json.loads((Path(__file__).parent / "registry_schema.json").read_text())
VALID = Draft7Validator(SCHEMA, format_checker=Draft7Validator.FORMAT_CHECKER)
TOLD = Publisher(
    name="Pages, per day", description="Visits of pages.", curators=("Example Ltd",),
    intended_use="Which pages to mend.", region="Europe", published="2026-11-01", authors=("A.",),
)  # fmt: skip
DAY = Neighbours("user_id", period=timedelta(days=1))
LEDGERS = {
    "pure": (Budget(epsilon=1), Pure("0.5"), Neighbours("user_id")),
    "approximate": (Budget(epsilon=2, delta=1e-6), approx(1, 1e-9), DAY),
    "zcdp": (Budget(rho=1), Zcdp("0.5"), DAY),
    "gaussian": (Budget(mu=1, delta=1e-6), Gdp("0.5"), DAY),
}


def wanted(schema, path=()):
    """Every field of the schema, with its tier."""
    for name, one in schema.get("properties", {}).items():
        yield (*path, name), int(one.get("$comment", "tier 0").split()[-1])
        yield from wanted(one, (*path, name))


def found(made, path):
    for name in path:
        made = made.get(name) if isinstance(made, dict) else None
    return made


def check(made):
    assert [error.message for error in VALID.iter_errors(made)] == []
    for path, tier in wanted(SCHEMA):
        if tier and path[-1] != "sources" and "privacy_parameters" not in path[:-1]:
            assert found(made, path), path  # tier 3 says everything


@pytest.mark.parametrize("name", LEDGERS)
def test_an_entry_is_valid_and_says_all_that_tier_3_asks_for(name):
    limit, loss, protects = LEDGERS[name]
    ledger = Ledger.open(None, limit, protects)
    ledger.charge("job", Guarantee(protects, loss, 3))
    made = json.loads(json.dumps(entry(ledger, TOLD), allow_nan=False))
    check(made)
    parameters = made["deployment"]["privacy_loss"]["privacy_parameters"]
    if limit.epsilon is not None:
        assert parameters["epsilon"] == float(limit.epsilon)
    assert parameters.get("rho") == (None if limit.rho is None else float(limit.rho))
    assert made["url_slug"] == "pages_per_day"


def test_an_empty_ledger_has_an_entry():
    for limit, _, protects in LEDGERS.values():
        check(entry(Ledger.open(None, limit, protects), TOLD))


def test_an_entry_of_a_state_tells_its_query_bounds_and_noise(tmp_path):
    t = pa.table({"user": ["a", "b"] * 40, "page": ["x", "y"] * 40, "ms": [1.0, 2.0] * 40})
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-6,
        privacy_unit_column = user, max_rows_contributed = 3, look_share = 0.1,
        non_negative = TRUE) page, SUM(ms, contribution_bounds_per_row => (0, 10)) AS s
        FROM clicks WHERE ms > 0 GROUP BY page"""
    list(sv.sql(text, {"clicks": sv.memory(t)}).run(state=str(tmp_path / "s")))
    asked = ["--name", "Pages", "--about", "x", "--use", "y", "--curator", "B", "--region", "z",
             "--published", "2026-11-01", "--author", "A"]  # fmt: skip
    result = CliRunner().invoke(app, ["ledger", "register", str(tmp_path / "s"), *asked])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    check(made)
    said = made["deployment"]
    assert "s = sum(ms in [0, 10])" in said["dp_variant"]["data_domain"]
    assert "max_rows = 3" in said["implementation"]["mechanisms"]
    assert "noisy histograms" in said["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert "non_negative" in said["accounting"]["post_processing"]
    assert said["deployment_model"]["release_type"] == "One release"
    assert said["deployment_model"]["data_source_type"] == "Static"


def test_choices_are_those_of_the_registry():
    basic = SCHEMA["properties"]["deployment"]["properties"]["basic"]["properties"]
    assert set(SECTORS) == set(basic["data_product_sector"]["enum"])
    assert STATUS in SCHEMA["properties"]["status"]["enum"]


@pytest.mark.parametrize(
    "changes", [{"sector": "Farming"}, {"published": "1.11.2026"}, {"authors": ()}, {"name": ""}]
)
def test_what_is_missing_or_wrong_is_named(changes):
    given = {**vars(TOLD), **changes}
    with pytest.raises((PlanError, ValueError), match=next(iter(changes)).split("e")[0] + "|day"):
        Publisher(**given)


def test_a_wrong_entry_is_seen():
    ledger = Ledger.open(None, Budget(epsilon=1, delta=Fraction("1e-9")), DAY)
    made = entry(ledger, TOLD)
    made["deployment"]["surprise"] = 1
    made["deployment"]["dp_variant"]["variant_name"] = "Gaussian DP"
    assert len(list(VALID.iter_errors(made))) == 2
