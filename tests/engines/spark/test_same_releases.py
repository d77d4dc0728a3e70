"""Spark releases what the embedded engine does, bit by bit, over jobs of the audit's generators."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("pyspark") is None:
    pytest.skip("the extra 'spark' is not installed", allow_module_level=True)

from tests.audit.same_releases import differences, draw
from tests.audit.spark_releases import both, tried

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:insecure noise")]


def assert_same(session, folder, seed, count):
    jobs = draw(seed, count, folder / "jobs", "spark")
    found = list(tried(jobs, folder / "jobs", seed, session))
    assert [one["differ"] for one in found] == [[]] * count
    assert sum(one["jobs"] for one in found) > count // 2
    return jobs, found


@pytest.mark.slow(landing=True)
def test_a_few_generated_jobs_release_the_same_on_spark(session, tmp_path):
    """The planted fault: other noise is seen in a job that releases anything."""
    jobs, found = assert_same(session, tmp_path, 11, 4)
    job = next(job for job, one in zip(jobs, found, strict=True) if one["rows"])
    embedded, _ = both(job, tmp_path / "jobs", 1, session)
    _, spark = both(job, tmp_path / "jobs", 2, session)
    assert [*differences(embedded, spark)]


@pytest.mark.slow
def test_many_generated_jobs_release_the_same_on_spark(session, tmp_path):
    assert_same(session, tmp_path, 12, 100)
