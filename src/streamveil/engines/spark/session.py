"""A Spark session with what streamveil needs, and a check of one that the user brings."""

from __future__ import annotations

import os
import sys
from typing import Any

from streamveil.engines.spark.java import java_home
from streamveil.errors import MissingExtraError, StreamveilError

SETTINGS = {
    "spark.driver.extraJavaOptions": "-Xss16m",  # long Python errors overflow Spark's own parser
    "spark.executor.extraJavaOptions": "-Xss16m",
    "spark.sql.adaptive.enabled": "false",  # shards must stay where their state is written
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.python.daemon.module": "streamveil.engines.spark.daemon",
    "spark.ui.enabled": "false",  # counts shown there are not private
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.io.encryption.enabled": "true",  # shuffle files hold raw rows
}
WAITABLE = 1024  # `select`, with which py4j waits for Spark's calls, knows descriptors below this


def session(master: str = "local[2]", **settings: str) -> Any:
    """A SparkSession on `master`, with a Java runtime found or packaged.

    Further settings override ours. Raises MissingExtraError without pyspark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("the Spark engine", "spark") from None
    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers import the same packages
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))  # sums of matrices round alike
    wanted = {**SETTINGS, "spark.executorEnv.OMP_NUM_THREADS": threads, **settings}
    builder = SparkSession.builder.master(master).appName("streamveil")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def require_callbacks(session: Any) -> None:
    """Refuses a session that cannot call into this process: its first step would never end."""
    server = session.sparkContext._gateway.get_callback_server()
    if server is not None and server.server_socket.fileno() >= WAITABLE:
        raise StreamveilError(
            f"this process had more than {WAITABLE:,} files open when Spark was to call it first;"
            " Spark's Python gateway cannot listen then, and the job would hang.\n"
            "  to fix  run the job in a process of its own, or before that many files are open"
        )
