"""Runs drawn jobs with the streamveil that is on the path, and says what each released.

    PYTHONPATH=TREE/src python tests/audit/run_jobs.py JOBS RESULTS [spark]

Started by `tests.audit.same_releases`, once for each commit. It uses what users use and little
else, so that it runs with old commits too.
"""

import hashlib
import json
import sys
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

import streamveil as sv
from streamveil.runtime.run import Pace

try:
    from streamveil.core.noise import SeededNoise
except ImportError:  # where an older commit has it
    from streamveil.core.noise.keyed import SeededNoise

SECRET = 20261124  # what all noise and all fingerprints of both runs follow from


def query_of(job, folder, *, files):
    """The job as a user writes it; rows from memory or from Parquet files."""
    path = folder / f"{job['table']}.parquet"
    if job["stream"] is None:  # the script names its files
        return sv.sql(job["text"])
    time = job["event_time"]
    stream = (
        sv.files(str(path), event_time=time)
        if files
        else sv.memory(pq.read_table(path), event_time=time)
    )
    return sv.sql(job["text"], {job["stream"]: stream})


def digest(column):
    """Sixteen hexadecimal digits of a column's type and values, bit by bit."""
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    text = repr([array.type, [repr(value) for value in array.to_pylist()]])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def told(release):
    """One release: where it belongs, and a digest of every column and of its public facts."""
    table = release.table
    facts = repr(sorted((table.schema.metadata or {}).items()))
    columns = {name: digest(table[name]) for name in table.column_names}
    columns["metadata"] = hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
    return [release.window, release.trigger, release.step, table.num_rows, columns]


def releases_of(job_at, state):
    """What a job released, or the kind of error that ended it."""
    found = {"releases": [], "error": None}
    try:
        for release in job_at(state):
            found["releases"].append(told(release))
    except sv.StreamveilError as error:
        found["error"] = type(error).__name__
    except Exception as error:
        found["error"] = repr(error)[:200]
        traceback.print_exc()
    return found


def outcome(job, folder, options, seed=SECRET):
    """The same of one as users start it."""

    def job_at(state):
        made = query_of(job, folder, files=job["files"] or "engine" in options)
        return made.run(state, noise=SeededNoise(seed), insecure=True, **options)

    with TemporaryDirectory() as state, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return releases_of(job_at, f"{state}/state")


def main(jobs, results, engine=""):
    """Runs all jobs of a folder, in order, and writes a line for each."""
    folder = Path(jobs)
    options = {}
    if engine == "spark":
        options = {"engine": sv.spark(master="local[2]", shards=3)}
    with Path(results).open("w") as out:
        for line in (folder / "jobs.jsonl").read_text().splitlines():
            job = json.loads(line)
            more = options or {"pace": Pace(max_rows=job["batch"])}
            out.write(json.dumps(outcome(job, folder, more)) + "\n")
            out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
