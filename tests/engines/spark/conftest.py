"""One Spark session for all tests here; skipped with the reason where Spark is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("pyspark") is not None:
        return
    skip = pytest.mark.skip(reason="the extra 'spark' is not installed")
    for item in items:
        if "engines/spark" in item.path.as_posix() and "spark" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    """Spark that starts and compiles fast: here it runs for a minute or two."""
    import pyspark

    from streamveil.engines.spark.session import SETTINGS
    from streamveil.engines.spark.session import session as start

    options = "spark.driver.extraJavaOptions"
    settings = {
        options: f"{SETTINGS[options]} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
    }
    home = without_zip(Path(pyspark.__file__).parent, tmp_path_factory.mktemp("spark"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(home))
        made = start("local[2]", **settings)
    yield made
    made.stop()


def without_zip(spark, home):
    """Spark's home but for its zipped Python, which each new interpreter would compile again."""
    for path in spark.iterdir():
        if path.name != "python":
            (home / path.name).symlink_to(path)
    return home
