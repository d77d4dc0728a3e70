"""Stands between a client and a server on loopback: slow, or silent, as bad networks are."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

PIECE = 512  # bytes


class Proxy:
    """Passes bytes on to a port. `rate`: bytes a second; `most`: after so many it falls silent."""

    def __init__(self, target: int, port: int = 0, rate: float = 1e9) -> None:
        self.target, self.rate, self.most, self.closed = target, rate, 1 << 60, False
        self.ends: list[socket.socket] = []
        self.passed = 0  # bytes
        self.entry = socket.create_server(("127.0.0.1", port))
        self.port = self.entry.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self.entry.accept()[0]
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self.ends += [client, server]
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                time.sleep(len(data) / self.rate)
                while self.passed >= self.most and not self.closed:
                    time.sleep(0.01)
                to.sendall(data)
                self.passed += len(data)
        end(source)
        end(to)

    def close(self) -> None:
        """Ends all connections."""
        self.closed = True
        end(self.entry)
        for one in self.ends:
            end(one)


def end(connection: socket.socket) -> None:
    """Ends a connection, or an entry, also for whoever waits there."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
