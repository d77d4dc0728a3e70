"""What is installed: types for those who build on it, and no driver that nothing imports."""

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GIVEN = {
    "confluent-kafka": "confluent_kafka",
    "prometheus-client": "prometheus_client",
    "nats-py": "nats",
    "protobuf": "google.protobuf",
    "pandas": "pyspark",  # whose frames need pandas
}
TOOLS = {"examples", "site", "bench", "dev", "demo"}  # for those who work on the project
CLIENT = """
import streamveil as sv

budget: sv.Budget = sv.Budget(epsilon=1, delta=1e-9)
pages = sv.files("clicks.csv").protect(unit="user").agg(n=sv.count()).bound(max_rows=1)
text: str = pages.release(budget=budget).plan.name
"""


def test_every_extra_has_code_that_uses_it():
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for extra, needs in PROJECT["project"]["optional-dependencies"].items():
        for need in needs if extra not in TOOLS else []:
            name = re.match(r"[\w-]+", need)[0]
            assert re.search(rf"\b(import|from) {GIVEN.get(name, name)}\b", code), (extra, name)


def checked(text, folder, source):
    """What mypy says of a client of the package in a folder."""
    (folder / "client.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
         "--cache-dir", str(folder / "cache"), "client.py"],
        cwd=folder, env={**os.environ, "MYPYPATH": str(source)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.fixture
def wheel(tmp_path):
    """The package as a wheel installs it: built, and unpacked."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    import zipfile

    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path / "installed")
    return tmp_path / "installed"


def test_the_name_of_the_wheel_says_whom_it_is_for(wheel):
    [facts] = wheel.glob("streamveil-*.dist-info/WHEEL")
    [tag] = re.findall(r"^Tag: (.+)$", facts.read_text(), re.M)
    if (wheel / "streamveil" / "_kernels" / "stamp").is_file() and sys.platform == "linux":
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        assert tag == f"{python}-{python}-manylinux_2_28_{platform.machine()}"
    elif not (wheel / "streamveil" / "_kernels").is_dir():
        assert tag == "py3-none-any"


def test_the_wheel_says_that_it_is_typed(wheel):
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]
    assert (wheel / "streamveil" / "py.typed").is_file()


@pytest.mark.slow
def test_a_client_is_checked_against_the_types_of_the_wheel(wheel, tmp_path):
    assert "Success" in checked(CLIENT, tmp_path, wheel)
    assert "arg-type" in checked(CLIENT.replace('"user"', "5"), tmp_path, wheel)


def test_pyright_checks_a_client_strictly_against_the_types_of_the_wheel(wheel, tmp_path):
    pytest.importorskip("basedpyright", reason="no pyright here")
    (tmp_path / "right.py").write_text(CLIENT)
    (tmp_path / "wrong.py").write_text(CLIENT.replace('"user"', "5"))
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(wheel)], "include": ["*.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == 2
    found = {(Path(one["file"]).name, one.get("rule")) for one in told["generalDiagnostics"]}
    assert found == {("wrong.py", "reportArgumentType")}
