"""A state goes on on a processor that rounds otherwise, and what it publishes stays the same.

An older processor is made of this one, in a process of its own: NumPy, BLAS and the C library are
told not to use its newer vector instructions.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import streamveil
from streamveil.batch import Moment, alike
from streamveil.core.noise import SeededNoise
from streamveil.runtime.published import of_state
from streamveil.runtime.run import run
from streamveil.runtime.tables import to_bytes
from tests.engines.spark.drawn import drawn
from tests.engines.spark.streams import published

ROOT = Path(__file__).parents[2]
CASES = [drawn(seed) for seed in range(0, 20, 2)]
CODE = os.pathsep.join([str(ROOT), str(Path(streamveil.__file__).parents[1])])  # this, there too
TUNABLES = "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F,-AVX512VL"


def older() -> dict[str, str]:
    """The environment of a process on an older processor."""
    core = np._core._multiarray_umath
    newer = [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]
    disabled = {"NPY_DISABLE_CPU_FEATURES": " ".join(newer), "OPENBLAS_CORETYPE": "Nehalem"}
    return {**os.environ, **disabled, "GLIBC_TUNABLES": TUNABLES, "PYTHONPATH": CODE}


def rounding() -> str:
    """How this process rounds what is no basic operation."""
    x = np.random.default_rng(1).random((200, 200)) + 0.5
    seen = b"".join(found.tobytes() for found in (np.exp(x), np.log(x), x @ x))
    return hashlib.blake2b(seen).hexdigest()


def job(case, folder: Path, out: Path | None):
    """A job of the case over the data beside `folder`; the noise is the same for all of them."""
    plan = case.plan(folder.parent / "data", out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(plan, state=folder / "state", noise=SeededNoise(7), insecure=True)


def sink_of(case, folder: Path) -> Path | None:
    """Some keep what they published in their state, some in Parquet files."""
    return folder / "out" if case.seed % 4 < 2 else None


def releases(folder: Path) -> dict[Moment, bytes]:
    """Everything that can be read again, to the last digit."""
    found = of_state(folder / "state")
    return {moment: bytes(to_bytes(found.table(moment))) for moment in found.moments}


def go_on(home: Path) -> None:
    """What the older processor does: resumes all jobs, ended or not."""
    sys.stdout.write(rounding() + "\n")
    for case in CASES:
        for folder in (home / case.name / "ended", home / case.name / "cut"):
            before = releases(folder)
            with job(case, folder, sink_of(case, folder)) as running:
                again = {Moment(one.window, one.trigger): one.table for one in running}
            after = releases(folder)
            assert {moment: after[moment] for moment in before} == before, (case.name, folder.name)
            assert {*again} <= {*after}
            if sink_of(case, folder) is None:  # what is given again is what was published
                assert {moment: bytes(to_bytes(again[moment])) for moment in again} == {
                    moment: after[moment] for moment in again
                }


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """Jobs that were begun here and went on on an older processor."""
    home = tmp_path_factory.mktemp("moved")
    for case in CASES:
        case.write(home / case.name / "data")
        for name in ("whole", "ended", "cut"):
            folder = home / case.name / name
            with job(case, folder, sink_of(case, folder)) as running:
                for _ in running:
                    if name == "cut":
                        break
    call = f"from tests.runtime.test_moved import *; go_on(Path({str(home)!r}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", call], cwd=ROOT, env=older(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr[-3000:]
    if done.stdout.split()[0] == rounding():
        pytest.skip("this processor has no newer instructions to leave out")
    return home


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_job_goes_on_on_an_older_processor(case, moved):
    whole, cut = (moved / case.name / name for name in ("whole", "cut"))
    wanted, found = of_state(whole / "state"), of_state(cut / "state")
    assert wanted.moments == found.moments
    for moment in wanted.moments:
        assert alike(wanted.table(moment), found.table(moment))
    out = sink_of(case, whole)
    if out is not None:
        assert {*published(out)} == {*published(cut / "out")}


def test_group_bys_publish_the_same_bytes_there(moved):
    counted = [case for case in CASES if not case.name.startswith("table")]
    assert len(counted) < len(CASES)
    for case in counted:
        assert releases(moved / case.name / "whole") == releases(moved / case.name / "cut")


def test_changing_tables_do_not(moved):
    """The planted fault: products of matrices are rounded otherwise, and the bytes tell."""
    tables = [case for case in CASES if case.name.startswith("table")]
    assert any(
        releases(moved / case.name / "whole") != releases(moved / case.name / "cut")
        for case in tables
    )
