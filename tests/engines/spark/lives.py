"""A job in a process of its own that can be killed: `python -m tests.engines.spark.lives`.

Arguments: case number, data, state, out, master.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

from tests.engines.spark.asked import ASKED
from tests.engines.spark.streams import CASES

ROOT = Path(__file__).parents[3]
SEED = 5
ALL = [*CASES, *ASKED]


def start(case: int, folder: Path, master: str = "local[2]") -> subprocess.Popen[bytes]:
    """A life of the job in `folder`; its own process group, JVM and workers included."""
    arguments = [str(case), str(folder), master]
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments], cwd=ROOT, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=(folder / "stderr").open("ab"),
    )  # fmt: skip


def cluster(folder: Path, port: int) -> list[subprocess.Popen[bytes]]:
    """A standalone master and two workers of one core, each in a process group of its own."""
    import pyspark

    from streamveil.engines.spark.session import java_home

    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": java_home(), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    kind, at = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    commands = [
        [f"{kind}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *[
            [f"{kind}.worker.Worker", "-c", "1", "-m", "1g", "--webui-port", "0", "-d",
             str(folder / f"worker{n}"), at]
            for n in range(2)
        ],
    ]  # fmt: skip
    return [
        subprocess.Popen(
            [str(home / "bin" / "spark-class"), *command], env=environment, cwd=folder,
            start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=(folder / "cluster").open("ab"),
        )
        for command in commands
    ]  # fmt: skip


def fast(home: Path) -> dict[str, str]:
    """Settings and a home under which Spark starts and compiles fast: it runs for a minute or two.

    The home is Spark's but for its zipped Python, which each new interpreter would compile again.
    """
    import pyspark

    from streamveil.engines.spark.session import SETTINGS

    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "python":
                (home / path.name).symlink_to(path)
    os.environ["SPARK_HOME"] = str(home)
    options = "spark.driver.extraJavaOptions"
    return {
        options: f"{SETTINGS[options]} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
    }


def live(case: int, folder: Path, master: str) -> None:
    """One life, to the end."""
    from streamveil.core.noise import SeededNoise
    from streamveil.engines.spark.session import session
    from streamveil.runtime.secret import Randomness
    from streamveil.runtime.spark import SparkJob
    from streamveil.runtime.spark_state import SparkLayout

    warnings.simplefilter("ignore")
    keys = Randomness(noise=SeededNoise(SEED), insecure=True)
    plan = ALL[case].plan(folder / "data", folder / "out")
    layout = SparkLayout(shards=ALL[case].shards)
    found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {"spark.executorEnv.PYTHONPATH": os.pathsep.join(found)}
    if master.startswith("local["):
        wanted |= fast(folder / "spark")
    with SparkJob(
        plan, state=folder / "state", session=session(master, **wanted), layout=layout, keys=keys
    ) as job:
        for _ in job:
            pass


if __name__ == "__main__":
    live(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
