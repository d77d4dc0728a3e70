"""Sketches and changing tables on Spark, killed: the embedded engine's bytes."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from tests.engines.spark import lives
from tests.engines.spark.asked import ASKED
from tests.engines.spark.streams import CASES, published
from tests.engines.spark.test_job import charges, embedded, killed_at, kills

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:insecure noise")]
NAMES = [case.name for case in ASKED]
TOP, TABLE = (NAMES.index(name) for name in ("top_windows", "table_times"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [TOP, TABLE])
def test_kill_9_at_many_moments_changes_nothing(number, tmp_path):
    (tmp_path / "out").mkdir()
    ASKED[number].write(tmp_path / "data")
    killed_at(tmp_path, len(CASES) + number, [0, 1, 2], seed=number)
    assert published(tmp_path / "out") == embedded(ASKED[number], tmp_path)
    assert charges(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [TOP, TABLE])
def test_kill_9_of_an_executor_changes_nothing(number, tmp_path):
    (tmp_path / "out").mkdir()
    ASKED[number].write(tmp_path / "data")
    process = lives.start(len(CASES) + number, tmp_path, "local-cluster[2,1,1024]")
    assert kills(tmp_path, process, [process]) > 1
    assert published(tmp_path / "out") == embedded(ASKED[number], tmp_path)
    assert charges(tmp_path) == 1
