"""The image is built and run by an engine of containers, and the page's ten commands with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.servers.container import PROGRAM
from tests.servers.nats import program
from tests.test_deploy import COMMANDS, DEPLOY, PAGE, ROOT, require_readable

SENT = ("deploy", "src", "tools", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program(PROGRAM) is None, reason=f"{PROGRAM} names no engine of containers"),
]


def fetched(address: str) -> str:
    """A page, once it is there."""
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            assert time.monotonic() < until, address
            time.sleep(0.2)


def wait(found) -> None:
    """Until it is so."""
    until = time.monotonic() + 120
    while not found():
        assert time.monotonic() < until
        time.sleep(0.5)


class Shell:
    """Runs commands as a person would: in one folder, with one environment."""

    def __init__(self, home):
        (home / "bin").mkdir()
        (home / "bin" / "docker").symlink_to(program(PROGRAM))
        self.home = home
        self.env = {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
        self.env.pop("STREAMVEIL_SECRET", None)

    def run(self, line: str, check: bool = True) -> str:
        """What it says; its last words may change the environment."""
        done = subprocess.run(["bash", "-c", f"{line}\nstatus=$?\nenv -0 >.env\nexit $status"],
                              cwd=self.home, env=self.env, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert not check or done.returncode == 0, (line, done.stdout, done.stderr)
        self.code = done.returncode
        words = (self.home / ".env").read_text().split("\0")
        self.env = dict(word.split("=", 1) for word in words if "=" in word)
        return done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path):
    made = Shell(tmp_path)
    yield made
    running = made.run("docker ps -aq", check=False).split()
    if running:
        made.run(f"docker rm -f {' '.join(running)}", check=False)
    made.run("docker volume rm state", check=False)


def test_the_ten_commands_run_in_containers(shell, tmp_path):
    """Also: nobody's rights, a root that is not written, a health that the engine asks for."""
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    sql = re.search(r"^```sql\n(.*?)^```", PAGE, re.M | re.S)[1]
    for said, here in {"2026-12-01": f"{day:%Y-%m-%d}",
                       "2027-01-01": f"{day + timedelta(days=3):%Y-%m-%d}"}.items():  # fmt: skip
        sql = sql.replace(said, here)
    for name in SENT:
        whole = ROOT / name
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, tmp_path / name)
    (tmp_path / "hourly.sql").write_text(sql)
    (tmp_path / "clicks").mkdir()
    users = list(range(400))
    rows = pa.table({"user_id": users, "url": ["/home"] * len(users),
                     "ts": pa.array([day] * len(users), pa.timestamp("us", "UTC"))})  # fmt: skip
    pq.write_table(rows, tmp_path / "clicks" / "a.parquet")
    tmp_path.chmod(0o755)  # the job is another user
    told = {}
    for line in COMMANDS:
        if line == "docker stop hourly":  # the engine asks for health, as the image says
            shell.run("docker healthcheck run hourly" if podman(shell) else "true")
            limits(shell)
        if line.startswith("curl"):
            fetched(re.search(r"http://\S+", line)[0])
        told[line] = shell.run(line)
        if line.startswith("docker run -d --name"):
            wait(lambda: 'streamveil_step{job="views"} 0.0' not in fetched(METRICS))
    pages = [text for line, text in told.items() if line.startswith("curl")]
    assert pages[0] == "ok\n" or "behind" in pages[0]
    require_readable(pages[1])
    assert "hourly" in told["docker stop hourly"]
    logged = shell.run("docker logs hourly")
    words = [json.loads(line) for line in logged.splitlines() if line.startswith("{")]
    assert [one["event"] for one in words].count("starting") == 2
    assert sum(one["event"].startswith("stopped by SIGTERM: ") for one in words) == 1

    found = shell.run("docker run --rm -v state:/state --entrypoint grep streamveil"
                      " -rlF /home /state/views")  # fmt: skip
    assert "/state/views/" in found
    target = lambda: json.loads(fetched(f"{PROMETHEUS}/targets"))["data"]["activeTargets"]  # noqa: E731
    wait(lambda: [one["health"] for one in target()] == ["up"])
    shell.run("docker stop hourly")
    alerts = lambda: json.loads(fetched(f"{PROMETHEUS}/alerts"))["data"]["alerts"]  # noqa: E731
    wait(lambda: "JobIsGone" in {one["labels"]["alertname"] for one in alerts()})
    rules = (DEPLOY / "alerts.yaml").read_text()
    assert all(one["labels"]["alertname"] in rules for one in alerts())


METRICS = "http://127.0.0.1:9464/metrics"
PROMETHEUS = "http://127.0.0.1:9090/api/v1"


def podman(shell) -> bool:
    """Whether the engine is asked for a health, rather than asking by itself."""
    return "podman" in shell.run("docker --version")


def limits(shell) -> None:
    """What the job can and cannot do where it runs."""
    said = shell.run("docker exec hourly sh -c 'id -u; grep -h CapEff /proc/self/status;"
                     " touch /opt/x /query/x 2>&1; touch /state/x && echo written'")  # fmt: skip
    assert said.splitlines()[0] == "10001"
    assert "CapEff:\t0000000000000000" in said
    assert said.count("Read-only file system") == 2
    assert said.splitlines()[-1] == "written"
