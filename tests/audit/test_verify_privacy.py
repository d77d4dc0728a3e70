"""`streamveil verify-privacy` over looks, changing tables and ledgers: honest, and with faults."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.accounts.ledger import Ledger
from streamveil.changing_tables import operator as tables
from streamveil.commands.audit import REFUTED
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp
from streamveil.runtime import survey
from tests.test_commands import call

LOOK = """
CREATE STREAM clicks WITH (source = 'files', path = '{}/clicks.parquet');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 1, delta = 1e-6, privacy_unit_column = user,
  look_share = 0.3, public_groups = ['a', 'b']) page, COUNT(*) AS n, SUM(ms) AS s
FROM clicks GROUP BY page;
"""
LIVE = """
CREATE STREAM clicks (user INT64, page STRING) WITH (source = 'files', path = '{}', follow = TRUE);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 1, delta = 1e-6, privacy_unit_column = user,
  look_share = 0.3, start = '2026-01-01', steps = 3, clock = 'wall') page, COUNT(*) AS n
FROM clicks GROUP BY page EMIT EVERY INTERVAL 1 DAY;
"""
TABLE = """
CREATE STREAM rows WITH (source = 'files', path = '{}/rows.parquet');
CREATE TABLE people (city CHECK (city IN ('Lima', 'Oslo'))) WITH (source = rows,
  changelog = 'insert-delete', operation = op, id = id);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, steps = 5, expected_size = 60,
  accept_error = TRUE, mechanism = 'counter') city, COUNT(*) AS n
FROM people GROUP BY city EMIT EVERY 12 ROWS;
"""

VALUES = TABLE.replace("COUNT(*)", "COUNT(DISTINCT LOWER(shop))").replace(
    "mechanism = 'counter'", "max_changes = 2"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("verified")
    clicks = {"user": [1], "page": ["a"], "ms": [1.0]}
    pq.write_table(pa.table(clicks), home / "clicks.parquet")
    rows = {"op": ["+"], "id": [1], "city": ["Lima"], "shop": ["a"]}
    pq.write_table(pa.table(rows), home / "rows.parquet")
    for name, text in (("look", LOOK), ("live", LIVE), ("table", TABLE), ("values", VALUES)):
        (home / f"{name}.sql").write_text(text.format(home))
    return home


def less_noise(patch):
    honest = survey.quanta_at
    patch.setattr(survey, "quanta_at", lambda place: honest(place) / 2)


def insertions_only(patch):
    """Deletions insert: a record comes as often as it is named."""
    words = dict.fromkeys(tables.OPERATIONS, (1, 1, 1))
    patch.setattr(tables, "OPERATIONS", words)
    patch.setattr(tables.Records, "_match", all_match)


def all_match(_records, _state, _updates, _step, out):
    out[0] = 1


@pytest.mark.parametrize(
    ("name", "part", "left_out"),
    [
        ("look", "the look", "other things that the look may say"),
        ("live", "the look", "other things that the look may say"),
        ("table", "the table", "ids of"),
        ("values", "the table", "ids of"),
    ],
)
def test_an_honest_query_stands_and_says_what_is_left_out(folder, name, part, left_out):
    seen = call("verify-privacy", folder / f"{name}.sql", "--seconds", "1")
    assert seen.exit_code == 0
    assert "the claim stands" in seen.stdout
    assert part in seen.stdout
    assert left_out in seen.stdout


@pytest.mark.parametrize(("name", "plant"), [("look", less_noise), ("table", insertions_only)])
def test_a_planted_fault_is_refuted(folder, name, plant, monkeypatch):
    plant(monkeypatch)
    seen = call("verify-privacy", folder / f"{name}.sql", "--seconds", "1")
    assert seen.exit_code == REFUTED
    assert f"NOT COVERED: the {name}" in seen.stdout


def test_a_ledger_is_worked_out_anew(tmp_path, monkeypatch):
    with Ledger.open(tmp_path / "l", Budget(mu=1), Neighbours("user")) as ledger:
        for nth in range(4):
            ledger.charge(f"{nth}", Gdp(0.5))
    seen = call("verify-privacy", tmp_path / "l")
    assert "limit in mu: 100.0% of the claimed delta is used (charges: 4)" in seen.stdout
    assert "the limit stands" in seen.stdout
    monkeypatch.setattr(Ledger, "entries", lambda self: [*self._charges, self._charges[0]])
    assert call("verify-privacy", tmp_path / "l").exit_code == REFUTED
