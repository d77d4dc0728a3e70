"""An engine of containers without a daemon, and a base to build on where no registry is reached.

`python -m tests.servers.container FOLDER` (as root, on Debian with buildah, podman and crun): makes
FOLDER/docker, which takes docker's commands and keeps all it has in FOLDER. Tests use it where
STREAMVEIL_DOCKER names the program (docker itself will do); elsewhere they are skipped and say so.

What differs from docker on a machine with a registry: the base of our image is Debian's Python 3.11
(debootstrap) for the `python:3.11-slim-bookworm` that the Dockerfile names, and Prometheus is
Debian's for the one of `prom/prometheus`. Everything else is what the Dockerfile says.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = "STREAMVEIL_DOCKER"
PACKAGES = "python3,python3-venv,python-is-python3,ca-certificates"
PROMETHEUS = "prom/prometheus:v3.5.0"  # as the page names it
BASE = "localhost/base:bookworm"

# Controllers of both kinds at once are more than crun takes, and a machine may refuse new limits:
# podman runs where the second kind is not seen (for an hour at most); crun is given no limits.
DOCKER = """\
#!/bin/sh
# docker's commands, by podman: see tests/servers/container.py
own={folder}
if [ "$1" = build ]; then
  shift
  set -- build --format docker --build-arg BASE={base} -v /etc/ssl/certs:/etc/ssl/certs:ro \\
    $([ -f /etc/pip.conf ] && echo -v /etc/pip.conf:/etc/pip.conf:ro) "$@"
fi
if ! kill -0 "$(cat "$own/keeper" 2>/dev/null)" 2>/dev/null; then
  unshare --mount --propagation private sh -c \\
    'umount /sys/fs/cgroup/unified 2>/dev/null; echo $$ >"$0"; exec sleep 3600' "$own/keeper" \\
    >/dev/null 2>&1 </dev/null &
  sleep 1
fi
exec nsenter "--mount=/proc/$(cat "$own/keeper")/ns/mnt" "--wd=$PWD" podman \\
  --root "$own/images" --runroot "$own/run" --tmpdir "$own/tmp" --storage-driver {driver} \\
  --cgroup-manager cgroupfs --runtime "$own/crun" "$@"
"""
CRUN = """\
#!{python}
import json, os, sys
def after(word):
    return sys.argv[sys.argv.index(word) + 1] if word in sys.argv else None
path = after("--process") or (after("--bundle") and os.path.join(after("--bundle"), "config.json"))
if path:
    with open(path) as file:
        asked = json.load(file)
    asked.get("process", asked).pop("rlimits", None)
    with open(path, "w") as file:
        json.dump(asked, file)
os.execv("/usr/bin/crun", ["crun", *sys.argv[1:]])
"""


def run(*command: str | Path, **more: object) -> None:
    """A program, to its end."""
    subprocess.run([str(one) for one in command], check=True, **more)  # type: ignore[call-overload]


def write(path: Path, text: str) -> Path:
    """A program of a folder."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def imported(docker: Path, root: Path, name: str, *changes: str) -> None:
    """An image of one folder."""
    options = [word for change in changes for word in ("--change", change)]
    with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
        run(docker, "import", "-q", *options, "-", name, stdin=tar.stdout)


def engine(folder: Path, driver: str = "overlay") -> Path:
    """Puts the engine into a folder, without an image."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "crun", CRUN.format(python=sys.executable))
    return write(folder / "docker", DOCKER.format(folder=folder, base=BASE, driver=driver))


def images(docker: Path, folder: Path) -> None:
    """What a registry would give: a base with Python, and Prometheus."""
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", folder / "base")
    imported(docker, folder / "base", BASE)
    run("apt-get", "download", "-q", "prometheus", cwd=folder)
    [package] = folder.glob("prometheus_*.deb")
    run("dpkg-deb", "-x", package, folder / "unpacked")
    shutil.copy(folder / "unpacked/usr/bin/prometheus", folder / "base/usr/bin")
    imported(
        docker, folder / "base", f"docker.io/{PROMETHEUS}",
        'ENTRYPOINT ["prometheus"]', 'CMD ["--config.file=/etc/prometheus/prometheus.yml"]',
        "WORKDIR /prometheus",
    )  # fmt: skip


if __name__ == "__main__":
    place = Path(sys.argv[1]).absolute()
    images(engine(place), place)
