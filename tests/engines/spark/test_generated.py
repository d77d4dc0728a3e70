"""Generated streams and queries through one Spark session: the embedded engine's bytes."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from tests.engines.spark.asked import ASKED, Asked
from tests.engines.spark.drawn import drawn
from tests.engines.spark.streams import CASES, Case, published
from tests.engines.spark.test_job import charges, embedded, job

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:insecure noise")]
PLAIN = (1, 2, 14, 17, 19, 22, 29)  # seeds; with them every setting below occurs
LANDING = pytest.mark.slow(landing=True)
SOME = [drawn(seed) for seed in sorted([*PLAIN, *range(0, 33, 3)])]
REST = [drawn(seed) for seed in range(236) if seed > 30 or (seed % 3 and seed not in PLAIN)]
HUNDREDS = [*CASES, *ASKED, *REST]


def assert_published_alike(case, session, folder):
    """The bytes of the embedded engine, under one charge."""
    case.write(folder / "data")
    wanted = embedded(case, folder)
    with job(case, folder, session) as running:
        made = list(running)
    assert published(folder / "out") == wanted
    assert len(made) == len(wanted) > 0
    assert charges(folder) == 1


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[LANDING] if isinstance(case, Case) else [])
        for case in SOME
    ],
)
def test_dozens_of_streams_are_published_alike(case, session, tmp_path):
    assert_published_alike(case, session, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", HUNDREDS, ids=lambda case: case.name)
def test_hundreds_of_streams_are_published_alike(case, session, tmp_path):
    assert_published_alike(case, session, tmp_path)


def test_what_is_drawn_varies():
    plain = [case for case in SOME if isinstance(case, Case)]
    assert {(case.window.kind, case.window.lateness_us > 0) for case in plain} >= {
        ("whole", False), ("tumble", False), ("tumble", True), ("hop", False), ("cumulate", False),
    }  # fmt: skip
    for name, values in {
        "clock": {"event", "rows", "once"}, "text": {True, False}, "late": {0.0, 0.3, 0.8},
        "rows_per_unit": {1, 8, 40}, "skew": {0.15, 0.25, 0.6}, "two_keys": {True, False},
        "public": {True, False}, "quantile": {True, False}, "distinct": {True, False},
        "preset": {"default", "dp-sqlp"}, "quadratic": {None, 12}, "shards": {1, 2, 3, 4},
        "moments": {True, False},
    }.items():  # fmt: skip
        assert {getattr(case, name) for case in plain} == values, name
    kinds = {case.name.rpartition("_")[0] for case in SOME if isinstance(case, Asked)}
    assert kinds == {asked.name for asked in ASKED}
