"""The same question to other libraries, at the same budget: lines, error and time.

Question: what does one gain or lose with streamveil where another library answers too? Flights by
destination; a plane is protected for each day (one answer), or for a quarter (running totals, told
every week). Bounds are the same for all. Errors are against all rows, so what bounds cut is in
them; a group that is not shown counts as 0.
Expected: about the same error for one answer, where all have the same noise; for running totals an
error that grows with the square root of the number of releases for libraries that answer each
release by itself, and with its logarithm here. A third question has no bounds: how often each of
the 100 most frequent planes flew, by sketches of 24 KB, private (one flight is protected) and not.
Expected: the error of a sketch without privacy, and some noise besides.

Each library runs in a Python of its own, which is named on the command line; one that is not named
keeps its last result:

    python benchmarks/peers.py --opendp OTHER/bin/python --pipelinedp OTHER/bin/python
    (pip install 'opendp[polars]' pipeline-dp dp-accounting pyarrow; tmlt.analytics for --tumult;
    datasketches and pyarrow for --datasketches)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from saved import save
from streamveil.demo import departures

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "peers.json"
LIBRARIES = ("streamveil", "opendp", "pipelinedp", "tumult", "datasketches")
QUESTIONS = ("once", "weekly", "sketch")
PACKAGES = {"pipelinedp": "pipeline-dp", "tumult": "tmlt.analytics"}
UNSEEN = {"tumult"}  # whose work is in a JVM, not in the process that asks
DELTA = 1e-6
ONCE = (1.0, DELTA, 3, 1)  # epsilon, delta; groups and rows in each that one plane-day may count in
WEEKLY = (4.0, DELTA, 10, 4)  # the same of a plane in a quarter
SKETCH = (1.0, DELTA, 0, 0)  # of one flight
FREQUENT = 100
QUARTERS, WEEKS = 4, 13
FIRST = date(2013, 1, 1)


def once(folder: Path) -> dict[str, Any]:
    """A year of flights, a plane of a day as one unit; one answer."""
    flights = departures().drop_null()
    day = pc.strftime(flights["scheduled"], "%j")
    unit = pc.binary_join_element_wise(flights["plane"], day, "@")
    return {"truth": [written(folder / "once.parquet", unit=unit, key=flights["destination"])]}


def weekly(folder: Path, quarter: int) -> dict[str, Any]:
    """Thirteen weeks of flights with their day; thirteen answers."""
    weeks = [FIRST + timedelta(weeks=quarter * WEEKS + n) for n in range(WEEKS + 1)]
    flights = departures().drop_null()
    day = pc.strftime(flights["scheduled"], "%Y-%m-%d")
    names = [str(one) for one in weeks]
    inside = pc.and_(pc.greater_equal(day, names[0]), pc.less(day, names[-1]))
    flights, day = flights.filter(inside), day.filter(inside)
    path = folder / f"quarter-{quarter}.parquet"
    columns = {"unit": flights["plane"], "key": flights["destination"], "day": day,
               "at": flights["scheduled"]}  # fmt: skip
    written(path, **columns)
    truth = [counted(flights["destination"].filter(pc.less(day, name))) for name in names[1:]]
    return {"truth": truth, "weeks": names}


def sketched(folder: Path) -> dict[str, int]:
    """All flights by their plane; how often the most frequent planes flew."""
    truth = written(folder / "sketch.parquet", key=departures().drop_null()["plane"])
    return dict(sorted(truth.items(), key=lambda one: -one[1])[:FREQUENT])


def written(path: Path, **columns: pa.ChunkedArray) -> dict[str, int]:
    """Writes the rows; how many there are in each group."""
    pq.write_table(pa.table(columns), path)
    return counted(columns["key"])


def counted(keys: pa.ChunkedArray) -> dict[str, int]:
    """How often each key is there."""
    return {one["values"]: one["counts"] for one in pc.value_counts(keys).to_pylist()}


def cut(path: Path, groups: int, rows: int) -> float:
    """Which share of the rows the bounds leave out, groups of a unit taken at random."""
    count = pq.read_table(path, columns=["unit", "key"]).group_by(["unit", "key"]).aggregate(
        [("key", "count")])  # fmt: skip
    kept = pa.table({"unit": count["unit"], "n": pc.min_element_wise(count["key_count"], rows)})
    units = kept.group_by("unit").aggregate([("n", "sum"), ("n", "count")])
    share = np.minimum(1, groups / units["n_count"].to_numpy())
    return 1 - float((units["n_sum"].to_numpy() * share).sum() / pc.sum(count["key_count"]).as_py())


def off(found: dict[str, float], truth: dict[str, int]) -> dict[str, float]:
    """Error over all groups, as a share of all rows, and of groups that are shown, in rows."""
    errors = {key: abs(found.get(key, 0.0) - n) for key, n in truth.items()}
    shown = [errors[key] for key in found if key in errors]
    return {
        "l1_share": sum(errors.values()) / sum(truth.values()), "groups": len(found),
        "median": float(np.median(shown)) if shown else float("nan"),
    }  # fmt: skip


def asked(python: str, script: str, *arguments: object) -> dict[str, Any]:
    """What a client prints last."""
    own = python == sys.executable
    environment = {**os.environ, **({} if own else {"PYTHONPATH": ""})}
    command = [python, str(HERE / "peers" / script), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as empty:  # for what Spark leaves where it runs
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, cwd=empty
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def version(python: str, library: str) -> str:
    """Of a library, in its Python."""
    code = f"from importlib.metadata import version; print(version({library!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def summary(answers: list[list[dict[str, float]]], truth: list[dict[str, int]]) -> dict[str, Any]:
    """Means over runs of the last release, and of all."""
    each = [[off(one, true) for one, true in zip(run, truth, strict=True)] for run in answers]
    last = {name: float(np.mean([run[-1][name] for run in each])) for name in each[0][-1]}
    return {
        **last,
        "l1_share_all": float(np.mean([one["l1_share"] for run in each for one in run])),
    }


def measure(
    library: str, python: str, runs: int, folder: Path, only: str | None, quarters: int
) -> list[dict[str, Any]]:
    """All questions to one library that it has a client for, or one of them."""
    about = {"library": library, "version": version(python, PACKAGES.get(library, library))}
    rows = []
    if only in (None, "once") and (HERE / "peers" / f"ask_{library}.py").exists():
        setting = once(folder)
        told = asked(python, f"ask_{library}.py", folder / "once.parquet", *ONCE, runs)
        rows.append({**about, "question": "once", **one_table(library, told, setting["truth"])})
    if only in (None, "sketch") and (HERE / "peers" / f"sketch_{library}.py").exists():
        truth = sketched(folder)
        told = asked(
            python, f"sketch_{library}.py", folder / "sketch.parquet", *SKETCH, runs, *truth
        )
        rows.append({**about, "question": "sketch", **one_table(library, told, [truth])})
    if only in (None, "weekly") and (HERE / "peers" / f"weekly_{library}.py").exists():
        found = each_week(library, python, runs, folder, quarters)
        rows.append({**about, "question": "weekly", **found})
    return rows


def one_table(library: str, told: dict[str, Any], truth: list[dict[str, int]]) -> dict[str, Any]:
    """What is kept of a question with one answer."""
    return {
        "runs": len(told["seconds"]), "lines": told["lines"],
        "seconds": float(np.median(told["seconds"])),
        "cpu": None if library in UNSEEN else float(np.median(told["cpu"])),
        **summary(told["answers"], truth),
    }  # fmt: skip


def each_week(library: str, python: str, runs: int, folder: Path, quarters: int) -> dict[str, Any]:
    """What is kept of running totals, in the mean over the first quarters of the year."""
    found = []
    for quarter in range(quarters):
        setting = weekly(folder, quarter)
        told = asked(python, f"weekly_{library}.py", folder / f"quarter-{quarter}.parquet",
                     *WEEKLY, runs, *setting["weeks"])  # fmt: skip
        found.append({"lines": told["lines"], "seconds": float(np.median(told["seconds"])),
                      **summary(told["answers"], setting["truth"])})  # fmt: skip
    mean = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
    return {"runs": runs * quarters, **mean}


def cuts(folder: Path, quarters: int) -> dict[str, float]:
    """What the bounds leave out of both questions' rows, where they bound groups."""
    once(folder)
    shares = []
    for quarter in range(quarters):
        weekly(folder, quarter)
        shares.append(cut(folder / f"quarter-{quarter}.parquet", *WEEKLY[2:]))
    return {"once": cut(folder / "once.parquet", *ONCE[2:]), "weekly": float(np.mean(shares))}


def main() -> None:
    """Measures the libraries whose Python is named, and keeps the results of the others."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quarters", type=int, default=QUARTERS, help="of the weekly question")
    parser.add_argument("--only", choices=QUESTIONS, help="leave the others as they are")
    for library in LIBRARIES[1:]:
        parser.add_argument(f"--{library}", help="a Python that has it")
    given = vars(parser.parse_args())
    pythons = {one: given.get(one) for one in LIBRARIES[1:] if given.get(one)}
    pythons["streamveil"] = sys.executable
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    asks = (given["only"],) if given["only"] else QUESTIONS
    rows = [row for row in kept if row["library"] not in pythons or row["question"] not in asks]
    with tempfile.TemporaryDirectory() as folder:
        left_out = cuts(Path(folder), given["quarters"])
        for library, python in pythons.items():
            how = given["runs"], Path(folder), given["only"], given["quarters"]
            for row in measure(library, python, *how):
                rows.append(row)
                print(row, flush=True)
    rows.sort(key=lambda row: (row["question"], LIBRARIES.index(row["library"])))
    about = {"machine": platform.machine(), "python": platform.python_version(),
             "once": ONCE, "weekly": WEEKLY, "sketch": SKETCH,
             "releases": WEEKS, "cut": left_out}  # fmt: skip
    save(RESULTS, {**about, "rows": rows})


if __name__ == "__main__":
    main()
