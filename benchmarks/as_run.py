"""What does a job cost as a user runs it, from outside the process: CPU, wall time and memory.

The click stream of `throughput.py` by SQL from the command line: a time column, 100 steps of the
event clock, default settings, Parquet files as sink. Then what `streamveil` costs before its first
answer: `import streamveil`, the query of the README (with nothing to compile), and `explain` of a
query with 86,400 releases that was explained before. Every run is a process of its own.

Modules and kernels are compiled beforehand, as they are in a wheel: in a clone,
`python -m streamveil.compiled` does it. `--cores` pins runs to one processor and lets them have
all, in turn: how much of a second one a job uses. Expected: reading, decoding and checksums go on
beside the job, little else does.

    python benchmarks/as_run.py [--users 10000000] [--repeats 3] [--data DIR] [--cores] [--start]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from clicks import Clicks
from saved import save
from streamveil import compiled

ROOT = Path(__file__).parents[1]
INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
RESULTS = Path(__file__).parent / "results" / "as_run.json"
SQL = """
CREATE STREAM clicks WITH (source = 'files', path = '{data}', event_time = 'ts');
CREATE SINK pages WITH (sink = 'files', path = '{out}', format = 'parquet');
INSERT INTO pages
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
  epsilon = 6, delta = 1e-9, privacy_unit_column = user,{bounds}
  start = TIMESTAMP '{start}', end = TIMESTAMP '{end}')
  key, COUNT(*) AS n
FROM clicks GROUP BY key
EMIT EVERY INTERVAL 864 SECOND;
"""
BOUNDS = {"default": "", "32 rows": " max_rows_contributed = 32,"}
MANY = """
import streamveil as sv
from streamveil import Budget
from datetime import UTC, datetime
rows = sv.memory({"user": [1], "key": [1], "ts": [datetime(2026, 1, 1, tzinfo=UTC)]},
                 event_time="ts")
query = rows.protect(unit="user").group_by("key").agg(n=sv.count()).bound(max_rows=32)
query.release(every="1 s", start="2026-01-01", end="2026-01-02",
              budget=Budget(epsilon=6, delta=1e-9)).explain()
"""
MANY_SQL = """
CREATE STREAM clicks WITH (source = 'files', path = 'clicks.parquet', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
  epsilon = 6, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 32,
  start = TIMESTAMP '2026-01-01', end = TIMESTAMP '2026-01-02')
  url, COUNT(*) AS n
FROM clicks GROUP BY url EMIT EVERY INTERVAL 1 SECOND;
"""
NO_PANDAS = """
import sys
class NotInstalled:
    def find_spec(name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NotInstalled)
"""  # Arrow loads pandas where it finds it
Measured = dict[str, float]


def outside(command: list[str], folder: Path, processors: set[int] | None = None) -> Measured:
    """CPU and wall time of a process, its start and end included."""
    began = time.perf_counter()
    with (folder / "said.txt").open("w") as said:
        child = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=INSTALLED)
        if processors is not None:
            os.sched_setaffinity(child.pid, processors)
        _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit((folder / "said.txt").read_text())
    return {
        "wall": time.perf_counter() - began, "user": used.ru_utime, "system": used.ru_stime,
        "cpu": used.ru_utime + used.ru_stime, "peak MB": used.ru_maxrss / 1024,
    }  # fmt: skip


def query(data: Path, folder: Path, bounds: str) -> str:
    """The job: a day of clicks, one release every 864 seconds, files in a folder."""
    day = pq.ParquetFile(data).read_row_group(0, columns=["ts"])["ts"][0].as_py()
    times = {"start": f"{day:%Y-%m-%d}", "end": f"{day.replace(day=day.day + 1):%Y-%m-%d}"}
    return SQL.format(data=data, out=folder / "out", bounds=BOUNDS[bounds], **times)


def one_run(data: Path, bounds: str, processors: set[int] | None = None) -> Measured:
    """The whole job, from an empty folder."""
    with tempfile.TemporaryDirectory(dir=data.parent) as name:
        folder = Path(name)
        (folder / "query.sql").write_text(query(data, folder, bounds))
        command = [sys.executable, "-m", "streamveil", "run", "query.sql", "--state", "job.veil"]
        return outside(command, folder, processors)


def middle(runs: list[Measured]) -> Measured:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def jobs(data: Path, repeats: int, *, cores: bool) -> dict[str, Measured]:
    """Medians by settings, and by the number of processors, in turn."""
    rows = pq.ParquetFile(data).metadata.num_rows
    every = os.sched_getaffinity(0)
    ways = [(bounds, every) for bounds in BOUNDS]
    if cores:
        ways += [("32 rows", {min(every)})]
    runs: dict[str, list[Measured]] = {}
    for _ in range(repeats):
        for bounds, processors in ways:
            name = f"{bounds}, {len(processors)} processors"
            runs.setdefault(name, []).append(one_run(data, bounds, processors))
    found = {name: middle(some) for name, some in runs.items()}
    for name, one in found.items():
        one["ns of CPU a record"] = one["cpu"] / rows * 1e9
        print(f"{name:24s} {one['cpu']:6.1f} s of CPU ({one['system']:.1f} system), "
              f"{one['wall']:6.1f} s, {one['ns of CPU a record']:4.0f} ns a record, "
              f"{one['peak MB']:,.0f} MB")  # fmt: skip
    return found


def starts(repeats: int) -> dict[str, Measured]:
    """What starting costs, once everything is compiled and searched."""
    text = (ROOT / "README.md").read_text()
    make, readme = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)[:2]
    readme = readme.replace("clicks.veil", "{turn}.veil")
    python = [sys.executable, "-c"]
    command = [sys.executable, "-m", "streamveil"]
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outside([*python, make], folder)
        sql = re.search(r"^```sql\n(.*?)^```", text, re.M | re.S)
        assert sql
        for turn in range(repeats + 1):
            (folder / f"clicks{turn}.sql").write_text(sql[1].replace("'out'", f"'out{turn}'"))
        (folder / "many.sql").write_text(MANY_SQL)
        for what, asked in (
            ("Python", [*python, "pass"]), ("import streamveil", [*python, "import streamveil"]),
            ("README", [*python, readme]),
            ("README, without pandas",
             [*python, NO_PANDAS + readme.replace("{turn}", "lean{turn}")]),
            ("README, command line",
             [*command, "run", "clicks{turn}.sql", "--state", "line{turn}.veil"]),
            ("explain of 86,400 releases", [*python, MANY]),
            ("explain of 86,400 releases, without pandas", [*python, NO_PANDAS + MANY]),
            ("explain of 86,400 releases, command line", [*command, "explain", "many.sql"]),
        ):  # fmt: skip
            runs = [outside([part.replace("{turn}", str(turn)) for part in asked], folder)
                    for turn in range(repeats + 1)]  # fmt: skip
            found[what] = middle(runs[1:])
            print(f"{what:43s} {found[what]['cpu']:.2f} s of CPU, {found[what]['wall']:.2f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help="keep the generated file here")
    parser.add_argument("--cores", action="store_true", help="also on one processor")
    parser.add_argument("--start", action="store_true", help="starting, and nothing else")
    options = parser.parse_args()
    if not compiled.made():
        parser.error("the kernels are of other code; run `python -m streamveil.compiled`")
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.start:
        found["start"] = starts(options.repeats) | {"load": os.getloadavg()[0]}
    else:
        folder = options.data or Path(tempfile.mkdtemp())
        path = folder.absolute() / f"clicks-{options.users}-0.0-int.parquet"
        if not path.exists():
            Clicks(users=options.users).write(path)
        run = jobs(path, options.repeats, cores=options.cores)
        found[f"{options.users} users"] = run | {"load": os.getloadavg()[0]}
    save(RESULTS, found, indent=2)


if __name__ == "__main__":
    main()
