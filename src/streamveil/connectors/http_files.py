"""Files of a web server, with the interface of Arrow's stores.

A folder is a page of links, as Apache, nginx and the like make it. A file whose name ends in .list
is a list: one address in each line. A user and a password come from the file of `netrc`, as for
curl. What a list holds behind a question mark (signatures) is sent, and is in no name or message.

A file's time is that of its last change by the server. Without one, a hash of the file's tag takes
its place. Both only decide whether to read the file again.
"""

from __future__ import annotations

import base64
import hashlib
import netrc
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pyarrow import fs

from streamveil.connectors.manifest import LIST, format_of

WAIT = 10.0  # seconds without an answer before reading fails
MOST_LINKS = 1 << 26  # bytes of a page or list
PLAIN = "/~!$&'()*+,;=:@"  # what a path holds as it is, besides letters and digits
TAG_NS = 1 << 60  # 36 years: what a file's time can hold
GONE = (404, 410)


class HttpFiles:
    """The files of one server. Names begin with the server: `host:8080/folder/a.csv`."""

    def __init__(self, root: str) -> None:
        self._scheme = urlsplit(root).scheme
        self._signed: dict[str, str] = {}  # what stands behind a question mark, of each name

    def get_file_info(self, asked: Sequence[str] | fs.FileSelector) -> list[fs.FileInfo]:
        """The facts of some names, or of all in a folder; these without size and time."""
        if not isinstance(asked, fs.FileSelector):
            return [self._info(name) for name in asked]
        return [
            fs.FileInfo(name, fs.FileType.File)
            for name in self._below(asked.base_dir, recursive=asked.recursive)
        ]

    def open_input_stream(
        self, name: str, compression: None = None
    ) -> AbstractContextManager[HTTPResponse]:
        """The bytes of a file, for `readinto`."""
        return self._answer("GET", name)

    def _info(self, name: str) -> fs.FileInfo:
        try:
            with self._answer("HEAD", name) as answer:
                if is_folder(answer, name):
                    folder = posixpath.dirname(name) if name.endswith(LIST) else name
                    return fs.FileInfo(folder, fs.FileType.Directory)
                size, time = answer.headers.get("Content-Length"), time_of(answer)
        except MissingFileError:
            return fs.FileInfo(name, fs.FileType.NotFound)
        if size is None:
            raise OSError("the server does not tell the size of this file")
        return fs.FileInfo(name, fs.FileType.File, size=int(size), mtime_ns=time)

    def _below(self, folder: str, *, recursive: bool) -> Iterator[str]:
        try:
            with self._answer("GET", folder, folder=not folder.endswith(LIST)) as answer:
                at, data = answer.url, answer.read(MOST_LINKS + 1)
        except MissingFileError:
            return
        if len(data) > MOST_LINKS:
            raise OSError(f"more than {MOST_LINKS >> 20} MiB of links")
        text = data.decode("utf-8-sig", "replace")
        if folder.endswith(LIST):
            yield from self._listed(at, text)
            return
        for link in Links(text).found:
            found = urlsplit(urljoin(at, link))
            name = name_of(found.netloc, found.path)
            own = name_of(*urlsplit(at)[1:3]).rstrip("/") + "/"
            if found.query or not name.startswith(own) or name == own:
                continue  # the folder above, or the same one in another order
            if not name.endswith("/"):
                yield name
            elif recursive:
                yield from self._below(name.rstrip("/"), recursive=True)

    def _listed(self, at: str, text: str) -> Iterator[str]:
        for line in filter(None, map(str.strip, text.splitlines())):
            if line.startswith("#"):
                continue
            found = urlsplit(urljoin(at, line))
            if (found.scheme, found.netloc) != urlsplit(at)[:2]:
                raise OSError("the list names an address of another server")
            name = name_of(found.netloc, found.path)
            self._signed[name] = found.query
            yield name

    @contextmanager
    def _answer(self, method: str, name: str, *, folder: bool = False) -> Iterator[HTTPResponse]:
        """The server's answer; errors are OSErrors without its words."""
        host, _, path = name.partition("/")
        url = f"{self._scheme}://{host}/{quote(path, PLAIN)}" + "/" * (folder and path != "")
        signed = self._signed.get(name)
        request = Request(f"{url}?{signed}" if signed else url, method=method)  # noqa: S310
        request.add_header("Accept-Encoding", "identity")
        for header, value in credentials(host):
            request.add_unredirected_header(header, value)
        try:
            with OPENER.open(request, timeout=WAIT) as answer:
                yield answer
        except HTTPError as error:
            error.close()
            if error.code in GONE:
                raise MissingFileError(f"HTTP {error.code}") from None
            raise OSError(f"HTTP {error.code}") from None
        except HTTPException as error:
            raise OSError(type(error).__name__) from None


class Redirects(HTTPRedirectHandler):
    """Repeats credentials after a redirect within one server, and to no other server."""

    def redirect_request(self, req: Request, *where: Any) -> Request | None:
        """See `HTTPRedirectHandler`."""
        made = super().redirect_request(req, *where)
        if made is not None and (made.type, made.host) == (req.type, req.host):
            for header, value in req.unredirected_hdrs.items():
                made.add_unredirected_header(header, value)
        return made


OPENER = build_opener(Redirects)


class MissingFileError(OSError):
    """There is no file of that name."""


class Links(HTMLParser):
    """The targets of the links of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes a link."""
        self.found += [to for name, to in attrs if tag == "a" and name == "href" and to]


def is_folder(answer: HTTPResponse, name: str) -> bool:
    """Whether a name is that of a folder or of a list."""
    is_page = answer.headers.get_content_type() == "text/html" and format_of(name) is None
    return name.endswith(LIST) or urlsplit(answer.url).path.endswith("/") or is_page


def time_of(answer: HTTPResponse) -> int:
    """When a file was changed, nanoseconds; else a number from its tag; 0: unknown."""
    told, tag = answer.headers.get("Last-Modified", ""), answer.headers.get("ETag", "")
    try:
        return int(parsedate_to_datetime(told).timestamp()) * 10**9
    except (TypeError, ValueError):
        hashed = hashlib.blake2b(tag.encode(), digest_size=8).digest()
        return int.from_bytes(hashed) % TAG_NS if tag else 0


def name_of(host: str, path: str) -> str:
    """The name of a file, from its address.

    >>> name_of("host", "/in/a%20b.csv")
    'host/in/a b.csv'
    """
    return host + unquote(path)


def credentials(host: str) -> Iterator[tuple[str, str]]:
    """The header that the file of `netrc` gives for a server, if it names it."""
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    try:
        known = netrc.netrc(path).hosts.get(host.partition(":")[0])
    except FileNotFoundError:
        return
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        raise OSError("the file of netrc, with users and passwords, cannot be read") from None
    if known is not None:
        words = base64.b64encode(f"{known[0]}:{known[2]}".encode()).decode()
        yield "Authorization", f"Basic {words}"
