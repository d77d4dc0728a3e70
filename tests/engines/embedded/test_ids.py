"""However ids are stored, and wherever their fingerprints fall, the same rows count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from streamveil import engines
from streamveil.core.accounting import Budget
from streamveil.core.noise import SilentNoise
from streamveil.dataflow import rows as row_stage
from streamveil.plan import Aggregate, Bounding, Clock, KeyColumn, KeySet, Plan, SourceSpec
from streamveil.runtime.run import Pace, run

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
ROWS, USERS = 2_000, 300
RNG = np.random.default_rng(12)
USER, PAGE = RNG.integers(0, USERS, ROWS), RNG.geometric(0.3, ROWS)
NULL = RNG.random(ROWS) < 0.1
TEXT = pa.array([f"user {user}" for user in USER], mask=NULL)
STORED = {
    "int64": pa.array(USER, mask=NULL),
    "int16": pa.array(USER.astype(np.int16), mask=NULL),
    "uint32": pa.array(USER.astype(np.uint32), mask=NULL),
    "text": TEXT,
    "large text": TEXT.cast(pa.large_string()),
    "dictionary": TEXT.dictionary_encode(),
    "bytes": TEXT.cast(pa.binary()),
    "text that looks like numbers": pa.array(USER.astype(str), mask=NULL),
    "text, empty for one": pa.array(["" if user == 7 else f"{user}" for user in USER], mask=NULL),
}


def released(users: Any, folder: Path, bounding: Bounding | None = None) -> list[Any]:
    table = pa.table({"user": users, "page": PAGE})
    plan = Plan(
        name="pages", unit="user", keys=(KeyColumn(name="page", expression="page"),),
        source=SourceSpec(name="m", kind="memory", options={"table": table}),
        aggregates=(Aggregate(name="n", function="count"),
                    Aggregate(name="u", function="count_units")),
        key_set=KeySet(public=tuple((page,) for page in range(1, 12))),
        clock=Clock(kind="rows", every=ROWS // 4, steps=4),
        bounding=bounding or Bounding(max_rows=5, max_rows_per_group=2),
        budget=Budget(epsilon=20, delta=1e-6),
    )  # fmt: skip
    with run(
        plan, state=folder, noise=SilentNoise(), insecure=True, pace=Pace(max_rows=170)
    ) as job:
        found = [release.table.to_pydict() for release in job]
        assert job.counters()["null unit"] == int(NULL.sum()) or users.null_count == 0
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    found = released(STORED["int64"], tmp_path_factory.mktemp("expected") / "s")
    assert 800 < sum(found[-1]["n"]) < 1_500, "the bound holds some rows back"
    return found


@pytest.mark.parametrize("name", STORED)
def test_any_storage_of_ids_counts_the_same_rows(
    tmp_path: Path, expected: list[Any], name: str
) -> None:
    assert released(STORED[name], tmp_path / "s") == expected


FORCED = {
    "one home slot": lambda word: (word >> np.uint64(20)) | (np.uint64(0xABC) << np.uint64(52)),
    "the last slot": lambda word: word | (np.uint64(0xFFFFFF) << np.uint64(40)),
    "one partition": lambda word: word | np.uint64(31),
}


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("name", FORCED)
def test_fingerprints_that_crowd_change_nothing(
    tmp_path: Path, expected: list[Any], monkeypatch: pytest.MonkeyPatch, name: str, divided: bool
) -> None:
    real = row_stage.fingerprints
    monkeypatch.setattr(row_stage, "fingerprints", lambda *given: FORCED[name](real(*given)))
    monkeypatch.setattr(engines, "LARGE", 1 if divided else 1 << 40)
    assert released(STORED["int64"], tmp_path / "s") == expected


def test_units_that_share_a_fingerprint_are_bounded_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = released(pc.divide(STORED["int64"], 2), tmp_path / "expected")
    real = row_stage.fingerprints
    monkeypatch.setattr(
        row_stage, "fingerprints", lambda units, *key: real(pc.divide(units, 2), *key)
    )
    assert released(STORED["int64"], tmp_path / "s") == halved
