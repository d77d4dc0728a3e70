"""A real NATS server with JetStream, on a free port of loopback.

`python -m tests.servers.nats FOLDER`: builds it into FOLDER, from its Go module. Tests use it where
STREAMVEIL_NATS_SERVER names the program; elsewhere they are skipped and say so.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.servers.kafka import free_port

MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
PROGRAM = "STREAMVEIL_NATS_SERVER"
USER, PASSWORD = "reader", "hidden-word"


def build(folder: Path, module: str = MODULE) -> None:
    """Puts a program into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["go", "install", module], check=True, env={**os.environ, "GOBIN": str(folder.absolute())}
    )


def program(name: str = PROGRAM) -> str | None:
    """The program, if it is there."""
    named = os.environ.get(name)
    return named if named and Path(named).exists() else None


class NatsServer:
    """A server with its files in `home`. It can be stopped, and started again at its address."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.home, self.port = home, free_port()
        self.servers = f"nats://127.0.0.1:{self.port}"
        self.config = str(home / "client.json")
        Path(self.config).write_text(json.dumps({"user": USER, "password": PASSWORD}))
        (home / "server.conf").write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream: {{store_dir: "{home}/data", sync_interval: always}}\n'
            f'authorization: {{user: "{USER}", password: "{PASSWORD}"}}\n'
        )
        self.start()

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(program()), "-c", str(self.home / "server.conf")], stdout=log, stderr=log
            )
        until = time.monotonic() + 90
        while True:
            try:
                return self.ask(lambda context: context.account_info())
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """Stops it as a power failure would."""
        self.process.kill()
        self.process.wait(30)

    def ask(self, *questions):
        """What the answers of JetStream to some questions are, the last of them."""

        async def asked():
            import nats

            async def silent(_):
                pass

            client = await nats.connect(
                self.servers, user=USER, password=PASSWORD, error_cb=silent, allow_reconnect=False
            )
            try:
                for question in questions:
                    answer = await question(client.jetstream(timeout=30))
                return answer
            finally:
                await client.close()

        return asyncio.run(asked())

    def make(self, stream: str, **more) -> None:
        """Makes a stream of the subjects `stream.*`."""
        self.ask(lambda context: context.add_stream(name=stream, subjects=[f"{stream}.*"], **more))

    def send(self, stream: str, messages: list[bytes]) -> None:
        """Sends messages, every second one with another subject."""

        async def sent(context):
            for place, message in enumerate(messages):
                await context.publish(f"{stream}.{'ab'[place % 2]}", message)

        self.ask(sent)

    def send_raw(self, subject: bytes, body: bytes, headers: bytes) -> None:
        """Sends a message as a client does that checks nothing."""
        user, password = USER.encode(), PASSWORD.encode()
        head = b"NATS/1.0" + headers + b"\r\n\r\n"
        sizes = b"%d %d" % (len(head), len(head) + len(body))
        with (
            socket.create_connection(("127.0.0.1", self.port), 30) as to,
            to.makefile("rb") as said,
        ):
            said.readline()
            to.sendall(
                b'CONNECT {"verbose": false, "headers": true, "user": "%s", "pass": "%s"}\r\n'
                b"HPUB %s %s\r\n%s%s\r\nPING\r\n" % (user, password, subject, sizes, head, body)
            )
            assert said.readline() == b"PONG\r\n"


if __name__ == "__main__":
    build(Path(sys.argv[1]))
