"""What `deploy/` holds is well formed, and the page's commands run as far as a machine can."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from streamveil import cli
from streamveil.accounts.ledger import Ledger
from streamveil.runtime.secret import given
from tests.servers import nats
from tests.servers.kafka import free_port

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
COMMANDS = [line[2:] for line in PAGE.splitlines() if re.match(r"\$ (docker|curl|export)", line)]
TAKES = {"--name", "-v", "-e", "-p", "--tmpfs", "--cap-drop", "--security-opt", "--stop-timeout",
         "--network", "--add-host"}  # fmt: skip


def instructions():
    """The lines of the Dockerfile, each with what continues it."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [line.split(" ", 1) for line in lines]


def test_the_image_is_built_from_what_there_is():
    found = instructions()
    stages = [text for word, text in found if word == "FROM"]
    assert all(text.split()[0] == "${BASE}" for text in stages)
    assert re.fullmatch(r"BASE=\w+:\d[\w.-]+", dict(found)["ARG"]), "no moving tag"
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for word, text in found:
        if word == "COPY" and not text.startswith("--from"):
            for name in text.split()[:-1]:
                assert (ROOT / name).exists()
                assert f"!{name}" in ignore, f"{name} is not sent to the builder"
    extras = re.search(r"\.\[(.+?)\]", (DEPLOY / "Dockerfile").read_text())[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras) <= set(known["optional-dependencies"])
    assert "ADD" not in {word for word, _ in found}


def test_the_image_runs_as_nobody_and_writes_to_its_volume():
    last = {word: text.strip() for word, text in instructions()}  # of the last stage
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"]), "a number, that is not root's"
    assert last["VOLUME"] == "/state"
    assert last["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(last["ENTRYPOINT"]) == ["streamveil"], "signals reach the job itself"
    assert json.loads(last["CMD"])[:2] == ["run", "job.sql"]


def test_services_are_closed_but_for_what_they_need():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert name == "job" or re.search(r":v?\d", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert not source.startswith(".") or (DEPLOY / source).is_file(), mount
    job = services["job"]
    assert (job["read_only"], job["cap_drop"], job["tmpfs"]) == (True, ["ALL"], ["/tmp"])
    assert "no-new-privileges:true" in job["security_opt"]
    assert (DEPLOY / job["build"]["context"] / job["build"]["dockerfile"]).is_file()


def test_the_pod_is_closed_but_for_what_it_needs():
    service, stateful = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    pod = stateful["spec"]["template"]["spec"]
    [job] = pod["containers"]
    assert stateful["spec"]["replicas"] == 1, "a state is written by one process"
    assert service["spec"]["publishNotReadyAddresses"], "metrics say that a job is behind"
    assert pod["securityContext"]["runAsNonRoot"]
    assert job["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    assert {mount["name"] for mount in job["volumeMounts"]} == volumes
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    for selector in (service["spec"]["selector"], stateful["spec"]["selector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    ports = {port["name"] for port in job["ports"]}
    probes = (job[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
    assert {(p.get("httpGet") or p["tcpSocket"])["port"] for p in probes} == ports
    assert pod["terminationGracePeriodSeconds"] > 8 + 4, "what SIGTERM and a checkpoint take"


def test_the_unit_is_one_of_systemd(tmp_path):
    text = (DEPLOY / "streamveil@.service").read_text()
    assert "RestartPreventExitStatus=2 3 4\n" in text
    if shutil.which("systemd-analyze") is None:
        return  # its words are still those of the lines above
    unit = tmp_path / "streamveil@clicks.service"
    unit.write_text(text.replace("/opt/streamveil/bin/streamveil", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_takes_its_key_as_systemd_lays_it_down(tmp_path):
    """With an ACL for a dynamic user, a credential looks as if its group might read it."""
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    key.chmod(0o440)
    text = (DEPLOY / "streamveil@.service").read_text()
    words = shlex.split(re.search(r"ExecStart=(.+)", text)[1].replace("%d", str(tmp_path)))
    assert given(words[words.index("--secret") + 1]) == bytes.fromhex("ab" * 32)


def parsed(command):
    """Options and arguments of `docker run … image …`, each option with its values."""
    words, options = shlex.split(command)[2:], {}
    while words[0].startswith("-"):
        word = words.pop(0)
        options.setdefault(word, []).append(words.pop(0) if word in TAKES else "")
    return options, words[0], words[1:]


class Machine:
    """Stands for the engine of containers: the same commands, on this machine's files."""

    def __init__(self, home, port):
        self.home, self.port = home, port
        self.env = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
        self.env.pop("STREAMVEIL_SECRET", None)
        self.kept = {}  # arguments and process, by name
        (home / "state").mkdir()

    def command(self, arguments):
        places = {"/state": str(self.home / "state"), "0.0.0.0:9464": f"127.0.0.1:{self.port}"}
        for there, here in places.items():
            arguments = [one.replace(there, here) for one in arguments]
        return [sys.executable, "-m", "streamveil", *arguments]

    def start(self, name, arguments):
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.command(arguments), cwd=self.home, env=self.env, stderr=log
            )
        self.kept[name] = arguments, process

    def stop(self, name):
        process = self.kept[name][1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 143

    def fetched(self, path):
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                    return answer.read().decode()
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < until
                time.sleep(0.1)

    def wait_for_a_step(self):
        until = time.monotonic() + 90
        while 'streamveil_step{job="views"} 0.0' in self.fetched("/metrics"):
            assert time.monotonic() < until
            time.sleep(0.1)

    def run(self, line):
        if line.startswith("export"):
            value = subprocess.run(f"{line}; echo $STREAMVEIL_SECRET", shell=True, check=True,
                                   capture_output=True, text=True).stdout.strip()  # fmt: skip
            assert re.fullmatch("[0-9a-f]{64}", value)
            self.env["STREAMVEIL_SECRET"] = value
        elif line.startswith("curl"):
            return self.fetched(re.search(r":9464(/\w+)", line)[1])
        elif line.startswith("docker stop"):
            self.stop(line.split()[-1])
        elif line.startswith("docker start"):
            self.start(line.split()[-1], self.kept[line.split()[-1]][0])
        elif line.startswith("docker run"):
            options, image, arguments = parsed(line)
            if image != "streamveil":
                for mount in options["-v"]:
                    assert (ROOT / mount.split(":")[0]).is_file()
            elif "-d" in options:
                assert {"--read-only", "--cap-drop", "--security-opt"} <= options.keys()
                self.start(options["--name"][0], arguments)
            else:
                subprocess.run(self.command(arguments), cwd=self.home, env=self.env, check=True)
        else:
            assert line.startswith("docker build")
            assert (ROOT / shlex.split(line)[-2]).is_file()
        return ""


def promtool(*arguments, **more):
    """What the checker of Prometheus has to say, where it is."""
    program = nats.program("STREAMVEIL_PROMTOOL")
    if program is None:
        return ""
    done = subprocess.run([program, "check", *arguments], capture_output=True, text=True,
                          check=False, **more)  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


def require_readable(page):
    """Prometheus reads a page of metrics."""
    families = {one.name: one for one in text_string_to_metric_families(page)}
    assert all(one.documentation and one.type == "gauge" for one in families.values())
    assert len(families) >= 6
    assert promtool("metrics", input=page) == ""


def test_prometheus_reads_its_configuration_and_the_alerts(tmp_path):
    for name in ("alerts.yaml", "prometheus.yaml"):
        text = (DEPLOY / name).read_text()
        (tmp_path / name).write_text(text.replace("/etc/prometheus/", ""))
    assert promtool("rules", str(tmp_path / "alerts.yaml")) == ""
    assert promtool("config", str(tmp_path / "prometheus.yaml")) == ""
    (tmp_path / "alerts.yaml").write_text("groups: [{name: a, rules: [{alert: b, expr: '('}]}]")
    assert nats.program("STREAMVEIL_PROMTOOL") is None or promtool(
        "rules", str(tmp_path / "alerts.yaml")
    )


def test_the_ten_commands_run(tmp_path):
    assert len(COMMANDS) == 10
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
    sql = re.search(r"^```sql\n(.*?)^```", PAGE, re.M | re.S)[1]
    for said, here in {"2026-12-01": f"{day:%Y-%m-%d}",
                       "2027-01-01": f"{day + timedelta(days=3):%Y-%m-%d}",
                       "/state/views": "state/views"}.items():  # fmt: skip
        assert said in sql
        sql = sql.replace(said, here)
    (tmp_path / "hourly.sql").write_text(sql)
    (tmp_path / "clicks").mkdir()
    machine, told = Machine(tmp_path, free_port()), {}
    try:
        for line in COMMANDS:
            told[line] = machine.run(line)
            if line.startswith("docker run -d --name"):
                machine.wait_for_a_step()
        pages = [text for line, text in told.items() if line.startswith("curl")]
        assert pages[0] == "ok\n" or "behind" in pages[0]
        machine.wait_for_a_step()
        with Ledger.load(tmp_path / "state" / "clicks.ledger") as ledger:
            assert len(ledger.entries()) == 1, "the second start pays nothing"
        rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
        named = {name for rule in rules for name in re.findall(r"streamveil_\w+", rule["expr"])}
        assert len(named) == 3
        require_readable(pages[1])
        assert all(name in pages[1] for name in named), "alerts are about what is served"
    finally:
        machine.stop("hourly")
    logged = [json.loads(line) for line in (tmp_path / "hourly.log").read_text().splitlines()]
    assert [one["event"] for one in logged].count("starting") == 2
    assert sum(one["event"].startswith("stopped by SIGTERM: ") for one in logged) == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv of util-linux here")
def test_an_installed_wheel_runs_without_rights_from_a_tree_that_nobody_writes(tmp_path):
    """As in the image: no capability, code that is read only, a state of its own, and /tmp."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    code = tmp_path / "code"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(code)
    for path in [code, *code.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    (tmp_path / "rows.csv").write_text("u,g\n" + "".join(f"{n},a\n" for n in range(50)))
    (tmp_path / "q.sql").write_text(
        "CREATE STREAM t (u INT64, g STRING) WITH (source = 'files', path = 'rows.csv');"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,"
        " privacy_unit_column = u, max_rows_contributed = 1, public_groups = ['a'])"
        " g, COUNT(*) AS n FROM t GROUP BY g"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "tmp"), "PYTHONPATH": str(code),
           "NUMBA_CACHE_DIR": str(tmp_path / "tmp" / "numba"), "STREAMVEIL_SECRET": "5e" * 32,
           "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    command = "import sys, streamveil.cli as c; print(c.__file__); c.main()"
    done = subprocess.run(
        ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", sys.executable,
         "-c", command, "run", "q.sql", "--state", "state", "--log", "json"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(code))
    assert (tmp_path / "state" / "state.json").is_file()
    for path in [code, *code.rglob("*")]:
        path.chmod(0o755)
