"""Server-sent events over HTTP: every JSON event one row, with its type and its id.

The place of a row is the id that the server gave it. A client that connects again sends the last id
that it saw (Last-Event-ID), and gets the events after it. A server that has forgotten an id may
send whatever it still has, and say nothing. So a position holds two ids: the job asks for what
comes after the last event but one, and the first event to come must be the last one that it read.
A gap is an error. (MQTT has no such ids: a broker knows only who was acknowledged what.)
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from itertools import pairwise
from queue import Empty, Full, Queue
from threading import Thread
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from streamveil.connectors import Chunk, in_words, select, settings_in
from streamveil.connectors.file_reader import MOST_LINE
from streamveil.connectors.http_files import WAIT, credentials
from streamveil.connectors.messages import Messages, only_text
from streamveil.errors import SourceError

QUIET = 1.0  # seconds, in all, that a read waits for events: then it has what is there now
AT_ONCE = 5_000  # events
PIECE = 1 << 16  # bytes read at once
PIECES = 64  # that wait to be worked on
PROBES = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # where a system has them
END = re.compile(rb"\r\n|\n|\r")


class ServerEvent(NamedTuple):
    """An event from a server."""

    id: str | None
    kind: str
    data: bytes  # without what it says, if that is too long

    def digest(self) -> str:
        """A digest of its content."""
        return hashlib.blake2b(self.kind.encode() + b"\0" + self.data, digest_size=16).hexdigest()


@dataclass(frozen=True)
class EventPlace:
    """The place after an event."""

    before: str | None = None  # the id of the one before it
    last: str | None = None  # its own id; None: at the beginning
    digest: str | None = None  # of it
    count: int = 0  # of events up to it

    def after(self, events: list[ServerEvent]) -> EventPlace:
        """The place after some more events."""
        ids = [self.last, *(event.id for event in events)]
        return EventPlace(ids[-2], ids[-1], events[-1].digest(), self.count + len(events))


class SseSource(Messages):
    """Events of a server in the order in which it sends them.

    Options: `url`, declared columns, `config` (a JSON file of headers, such as Authorization).
    """

    own: ClassVar = {
        "sse_event": (pa.string(), lambda event: only_text(event.kind)),
        "sse_id": (pa.string(), lambda event: only_text(event.id)),
    }

    def __init__(self, url: str, columns: dict[str, str], config: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or "@" in parts.netloc or not parts.hostname:
            raise SourceError(
                "url is an address that begins with http:// or https:// and holds no user and no"
                " password.\n  to fix  put those into ~/.netrc, or a header into the JSON file that"
                " config names"
            )
        self.url, self.config = url, config
        super().__init__(columns, shown(url))
        self._stream: EventStream | None = None
        self._reached = EventPlace()

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`. The connection stays open: events come by it before the next read."""
        wanted = select(self.schema(), columns, f"'{shown(self.url)}'")
        place = EventPlace(**json.loads(position)) if position else EventPlace()
        with self._words():
            stream = self._stream if place == self._reached else None
            stream = self._begin(place) if stream is None else stream
            until = stream.waited + QUIET
            while events := stream.next(min(max_rows, AT_ONCE), until - stream.waited):
                place = self._reached = place.after(self._with_ids(events))
                numbers = np.arange(place.count - len(events), place.count) + 1
                texts = [event.data for event in events]
                yield self.chunk(events, texts, numbers, wanted, asdict(place))
            if stream.ended:
                self.close()

    def close(self) -> None:
        """Ends the connection."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _begin(self, place: EventPlace) -> EventStream:
        """Opens the stream behind a place."""
        self.close()
        since = place.last if place.before is None else place.before
        stream = self._stream = EventStream(self.url, since, self.config)
        self._reached = place
        if place.before is not None:
            found = stream.next(1, WAIT)
            if not found and stream.ended:
                self.close()
                raise SourceError(
                    f"'{shown(self.url)}' ended its answer before the first event.\n"
                    "  to fix  start again: the job goes on where it was; if it stays so, the"
                    " server no longer keeps what was read, and only a new state can go on"
                )
            if not found or (found[0].id, found[0].digest()) != (place.last, place.digest):
                self.close()
                raise SourceError(
                    f"'{shown(self.url)}' does not go on where this job stopped: events are gone"
                    " that it had not read, or the server keeps none.\n"
                    "  to fix  let the server keep events for longer than a job may be stopped; to"
                    " go on without them, start a new state"
                )
        return stream

    def _with_ids(self, events: list[ServerEvent]) -> list[ServerEvent]:
        ids = [self._reached.last, *(event.id for event in events)]
        if None in ids[1:] or any(one == other for one, other in pairwise(ids)):
            self.close()
            raise SourceError(
                f"'{shown(self.url)}' sends events without ids of their own, so a job could not go"
                " on behind each.\n  to fix  let the server give every event an id"
            )
        return events

    @contextmanager
    def _words(self) -> Iterator[None]:
        """Errors in words, without what a server says."""
        errors = OSError, HTTPException
        with in_words(
            errors,
            f"no events can be read from '{shown(self.url)}'",
            "check the address, the password in ~/.netrc and config, then start again: the job goes"
            " on where it was",
            lambda error: str(error) if type(error) is OSError else type(error).__name__,
        ):
            try:
                yield
            except errors:
                self.close()
                raise


class EventStream:
    """An open stream. A thread takes bytes as they come, at most `PIECES` pieces ahead."""

    def __init__(self, url: str, since: str | None, config: str | None) -> None:
        self.ended = False  # by the server
        self.waited = 0.0  # seconds, for bytes
        self._closed = False
        self._parser, self._events = EventParser(), deque[ServerEvent]()
        self._pieces: Queue[bytes] = Queue(PIECES)
        connection, self._socket, answer = connected(url, since, config)
        Thread(target=self._pump, args=(connection, answer), daemon=True).start()

    def next(self, most: int, wait: float) -> list[ServerEvent]:
        """Some events; none if none came within `wait` seconds."""
        until = self.waited + wait
        while not self._events and not self.ended and self.waited < until:
            began = time.monotonic()
            try:
                piece = self._pieces.get(timeout=until - self.waited)
            except Empty:
                break
            finally:
                self.waited += time.monotonic() - began
            self.ended = not piece
            self._events += self._parser.events(piece)
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    def close(self) -> None:
        """Ends the connection, and with it the thread, which gives it back."""
        self._closed = True
        with suppress(OSError):  # the server was first
            self._socket.shutdown(socket.SHUT_RDWR)

    def _pump(self, connection: HTTPConnection, answer: HTTPResponse) -> None:
        piece = b"x"
        while piece and not self._closed:
            try:
                piece = answer.read1(PIECE)
            except (OSError, ValueError, HTTPException):
                piece = b""
            while not self._closed:
                try:
                    self._pieces.put(piece, timeout=1)
                    break
                except Full:
                    continue
        answer.close()
        connection.close()


class EventParser:
    r"""Makes events of the bytes of a stream, in any pieces.

    >>> parser = EventParser()
    >>> parser.events(b": hello\nid: 1\ndata: a\ndata:b\n\nid: 2\r\nevent: x\r\nda")
    [ServerEvent(id='1', kind='message', data=b'a\nb')]
    >>> parser.events(b"ta: c\r\n\r\n")
    [ServerEvent(id='2', kind='x', data=b'c')]
    """

    def __init__(self) -> None:
        self._rest, self._returned, self._fresh = b"", False, True
        self._id: str | None = None
        self._kind, self._data, self._size, self._long = "", list[bytes](), 0, False

    def events(self, piece: bytes) -> list[ServerEvent]:
        """The events that end with this piece."""
        text = piece.removeprefix(b"\n") if self._returned else piece  # one end of a line, not two
        self._returned = piece.endswith(b"\r")
        *lines, rest = END.split(text)
        if lines:
            lines[0], self._rest = self._rest + lines[0], b""
        found = [event for line in lines if (event := self._line(line)) is not None]
        self._rest += rest
        if len(self._rest) > MOST_LINE:
            self._rest, self._long = self._rest[: len(b"data:")], True
        return found

    def _line(self, line: bytes) -> ServerEvent | None:
        if self._fresh:
            line, self._fresh = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            return self._end()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value) + 1
            self._long = self._long or self._size > MOST_LINE
            if self._long:
                self._data = [b""]
            else:
                self._data.append(value)
        elif field == b"event":
            self._kind = value.decode(errors="replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode(errors="replace")
        return None

    def _end(self) -> ServerEvent | None:
        made = None
        if self._data != [] and (self._long or self._data != [b""]):
            made = ServerEvent(self._id, self._kind or "message", b"\n".join(self._data))
        self._kind, self._data, self._size, self._long = "", [], 0, False
        return made


def connected(
    url: str, since: str | None, config: str | None
) -> tuple[HTTPConnection, socket.socket, HTTPResponse]:
    """An answer that goes on; an OSError where it is another one."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    headers |= dict(credentials(parts.netloc)) | settings_of(config)
    if since is not None:
        headers["Last-Event-ID"] = since.encode().decode("latin-1")
    connection = kind(parts.netloc, timeout=WAIT)
    try:
        connection.connect()
        own = connection.sock
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=headers)
        try:
            answer = connection.getresponse()
        except TimeoutError:
            raise OSError(
                f"no answer began within {WAIT:g} seconds; a server that has no event yet says so"
                " at once, by its headers"
            ) from None
        if answer.status != 200:
            raise OSError(f"HTTP {answer.status}")
        if answer.headers.get_content_type() != "text/event-stream":
            raise OSError("it is not a stream of events")
        if answer.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise OSError("the answer is compressed, and events are read as they are")
        own.settimeout(None)  # silence is nothing odd from here on
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for one that vanishes
        for option, value in PROBES.items():
            if hasattr(socket, option):
                own.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    except BaseException:
        connection.close()
        raise
    return connection, own, answer


def settings_of(config: str | None) -> dict[str, str]:
    """The headers in a file. Its content appears in no message."""
    found = settings_in(config, "sse", "headers")
    if not all(isinstance(one, str) for one in found.values()):
        raise SourceError(
            f"config='{config}' of 'sse' holds a header that is not text.\n"
            '  to fix  write {"Authorization": "Bearer ..."}'
        )
    return found


def shown(url: str) -> str:
    """An address without its question mark and all after it.

    >>> shown("https://host/events?topic=a")
    'https://host/events'
    """
    return url.partition("?")[0]
