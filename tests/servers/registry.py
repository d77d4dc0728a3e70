"""A schema registry on loopback: as much of Confluent's protocol as reading takes.

It keeps what it is given; of Protobuf that is a serialized descriptor in base 64, as a registry
gives it when it is asked for one.
"""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

USER = "reader:hidden-word"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        self.server.asked.append(url.path)
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        wanted = f"Basic {base64.b64encode(USER.encode()).decode()}"
        if self.headers.get("Authorization") != wanted:
            return self.say(401, {"error_code": 401})
        versions = self.server.subjects.get(parts[1]) if parts[0] == "subjects" else None
        if versions is None:
            return self.say(404, {"error_code": 40401})
        deleted = parse_qs(url.query).get("deleted") == ["true"]
        known = {n: one for n, one in versions.items() if deleted or not one.get("gone")}
        if len(parts) == 3:
            return self.say(200, sorted(known))
        if int(parts[3]) not in known:
            return self.say(404, {"error_code": 40402})
        return self.say(200, known[int(parts[3])])

    def say(self, code, what):
        data = json.dumps(what).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class SchemaRegistry(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.subjects, self.asked, self.numbers = {}, [], 100
        self.url = f"http://127.0.0.1:{self.server_port}"

    def register(self, subject, schema, kind="AVRO", references=()):
        """The number of a new version."""
        versions = self.subjects.setdefault(subject, {})
        self.numbers += 1
        more = {} if kind == "AVRO" else {"schemaType": kind}
        imported = [
            {"name": name, "subject": other, "version": version}
            for name, other, version in references
        ]
        versions[len(versions) + 1] = {
            "subject": subject, "id": self.numbers, "version": len(versions) + 1,
            "schema": schema, "references": imported, **more,
        }  # fmt: skip
        return self.numbers


@contextmanager
def schema_registry():
    with SchemaRegistry() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()
