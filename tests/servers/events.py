"""A real server of events: nginx with its module nchan, on a free port of loopback.

`tests.servers.debian` unpacks both. Tests use them where STREAMVEIL_EVENTS_SERVER names nginx;
elsewhere they are skipped and say so.
"""

from __future__ import annotations

import subprocess
import time
from http.client import HTTPConnection
from pathlib import Path

from tests.servers.kafka import free_port
from tests.servers.nats import program
from tests.servers.proxy import Proxy
from tests.servers.web import PASSWORD, USER, netrc

PROGRAM = "STREAMVEIL_EVENTS_SERVER"
MODULE = "usr/lib/nginx/modules/ngx_nchan_module.so"
CONFIG = """
load_module {module};
daemon off;
worker_processes 1;
user root;
pid {home}/pid;
error_log {home}/log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  nchan_shared_memory_size 32M;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location = /put {{
      nchan_publisher;
      nchan_channel_id $arg_stream;
      nchan_message_buffer_length 20000;
      nchan_message_timeout 1h;
    }}
    location = /events {{
      auth_basic streams;
      auth_basic_user_file {home}/users;
      nchan_subscriber eventsource;
      nchan_channel_id $arg_stream;
      nchan_subscriber_first_message oldest;
    }}
  }}
}}
"""


class EventsServer:
    """A server that keeps its events in memory. What goes when it is stopped is the way to it."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.home, self.port, self.own = home, free_port(), free_port()
        nginx = Path(str(program(PROGRAM)))
        (home / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")
        (home / "config").write_text(
            CONFIG.format(home=home, port=self.own, module=nginx.parents[2] / MODULE)
        )
        self.command = [str(nginx), "-c", str(home / "config"), "-e", str(home / "log")]
        self.keys, self.wrong_keys = netrc(home, PASSWORD), netrc(home, "wrong-word")
        self.process = subprocess.Popen(self.command)
        until = time.monotonic() + 90
        while True:
            try:
                self.send("first", [b"x"])
                return self.start()
            except ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def start(self) -> None:
        """Opens the way to it."""
        self.way = Proxy(self.own, self.port)

    def stop(self) -> None:
        """Ends it, and all that came by it."""
        self.way.close()

    def url(self, stream: str) -> str:
        """Where a stream is read."""
        return f"http://127.0.0.1:{self.port}/events?stream={stream}"

    def send(self, stream: str, events: list[bytes]) -> None:
        """Adds events."""
        connection = HTTPConnection("127.0.0.1", self.own, timeout=30)
        for event in events:
            connection.request("POST", f"/put?stream={stream}", event)
            connection.getresponse().read()
        connection.close()

    def close(self) -> None:
        """Ends the server."""
        self.stop()
        self.process.terminate()
        self.process.wait(30)
