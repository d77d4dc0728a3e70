"""One Spark session for all tests here; skipped with the reason where Spark is not installed."""

from __future__ import annotations

import importlib.util

import pytest

from streamveil.kept import FOLDER


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("pyspark") is not None:
        return
    skip = pytest.mark.skip(reason="the extra 'spark' is not installed")
    for item in items:
        if "engines/spark" in item.path.as_posix() and "spark" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="package", autouse=True)
def searched_once(tmp_path_factory):
    """Both engines run what one search has found: none of these tests replaces a search."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("searched")))
        yield


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    """The session, with settings under which it starts fast."""
    from streamveil.engines.spark.session import session as start
    from tests.engines.spark.lives import fast

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", "")  # so that it is as it was afterwards
        made = start("local[2]", **fast(tmp_path_factory.mktemp("spark") / "home"))
    yield made
    made.stop()
