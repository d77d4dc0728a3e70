"""A store that speaks as much of the protocol of S3 as reading takes, in this process."""

import threading
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        self.server.asked.append((self.command, key))
        if self.server.refuses:
            return self.say(403)
        if bucket == self.server.gone:
            return self.say(404)
        if not key:
            return self.say(200, self.listing(bucket, parse_qs(url.query)), "application/xml")
        if (bucket, key) not in self.server.objects:
            return self.say(404)
        data, time = self.server.objects[bucket, key]
        code, size = 200, len(data)
        if span := self.headers.get("Range"):
            first, last = span.removeprefix("bytes=").split("-")
            data, code = data[int(first) : int(last or size) + 1], 206
        if self.command == "GET":
            self.server.taken(key)
        return self.say(code, data, "binary/octet-stream", time)

    def listing(self, bucket, query):
        prefix, end = query.get("prefix", [""])[0], query.get("delimiter", [None])[0]
        contents, folders = [], set()
        for (home, key), (data, time) in sorted(self.server.objects.items()):
            if home != bucket or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if end and end in rest:
                folders.add(prefix + rest.split(end)[0] + end)
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
                f"<LastModified>2026-01-01T00:00:{time:02d}.000Z</LastModified></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        )
        return (
            '<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>'
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount>{''.join(contents)}{common}"
            "</ListBucketResult>"
        ).encode()

    def say(self, code, data=b"", kind="text/plain", time=None):
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", kind)
        if time is not None:
            self.send_header("Last-Modified", formatdate(1767225600 + time, usegmt=True))
        self.end_headers()
        if self.command != "HEAD":
            self.server.sent += len(data)
            self.wfile.write(data)

    def log_message(self, *_):
        pass


class ObjectStore(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.asked, self.refuses = {}, [], False
        self.gone = ""  # a bucket
        self.sent = 0  # bytes
        self.taken = lambda key: None  # told of each object that is sent, before it is
        self.settings = (
            f"endpoint_override=127.0.0.1:{self.server_port}&scheme=http&region=us-east-1"
        )

    def put(self, key, data, time=0, bucket="bucket"):
        """`time`: seconds of its last change."""
        self.objects[bucket, key] = (data, time)


@contextmanager
def object_store():
    with ObjectStore() as store:
        threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True).start()
        yield store
        store.shutdown()
