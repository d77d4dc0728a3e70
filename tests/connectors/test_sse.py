"""A stream of events is read once each, and a server that forgets is told. The suite of all sources
is run on a real server; here stand servers that do what that one does not."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.connectors import open_source, sse
from streamveil.connectors.sse import EventParser, ServerEvent
from streamveil.errors import SourceError

TEXT = (
    b"\xef\xbb\xbf: hello\nid: 1\nevent: a\ndata: {\ndata:}\n\nretry: 9\nid: 2\ndata\n\n"
    b"id:3\r\ndata:  x\r\n\r\rdata: y\ridd: 4\r\rid: 5\n\ndata: never ended\n"
)
EVENTS = [
    ServerEvent("1", "a", b"{\n}"),
    ServerEvent("3", "message", b" x"),
    ServerEvent("3", "message", b"y"),
]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        since = self.headers.get("Last-Event-ID")
        self.server.asked.append(since)
        self.server.first.wait(30)
        self.send_response(self.server.code)
        self.send_header("Content-Type", self.server.kind)
        for header in self.server.headers.items():
            self.send_header(*header)
        self.end_headers()
        events = self.server.events
        known = [one for one, _ in events]
        if since and since in known and not self.server.deaf:
            events = events[known.index(since) + 1 :]
        names = [b"" if one is None else f"id: {one}\n".encode() for one, _ in events]
        told = [
            name + b"data: " + data + b"\n\n" for name, (_, data) in zip(names, events, strict=True)
        ]
        self.wfile.write(b"".join(told))  # at once: a reader takes as many as it asks for
        self.server.over.wait(30)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads, made.asked, made.handle_error = True, [], lambda *_: None
        made.code, made.kind, made.headers, made.deaf = 200, "text/event-stream", {}, False
        made.over, made.first = threading.Event(), threading.Event()
        made.first.set()  # it answers at once, unless a test clears it
        made.over.set()  # an answer ends with its last event, unless a test clears it
        made.events = [(str(n), b'{"n": %d}' % n) for n in range(1, 6)]
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def source(server, **more):
    url = f"http://127.0.0.1:{server.server_port}/x?signed=hidden-key"
    return open_source("sse", {"url": url, "columns": {"n": "INT64"}, **more})


def numbers(chunks):
    return [n for chunk in chunks for n in chunk.rows["n"].to_pylist()]


@given(st.lists(st.integers(0, len(TEXT)), max_size=9))
def test_events_are_the_same_in_any_pieces(cuts):
    ends = [0, *sorted(cuts), len(TEXT)]
    parser, found = EventParser(), []
    for start, end in pairwise(ends):
        found += parser.events(TEXT[start:end])
    assert found == EVENTS


def test_an_id_or_a_type_that_is_no_text_is_null():
    """With signs in the place of bytes two of them would look alike, and two people be one."""
    [one, other] = EventParser().events(
        b"id: a\xff\nevent: b\ndata: {}\n\nevent: \xfe\ndata: {}\n\n"
    )
    told = {name: make for name, (_, make) in sse.SseSource.own.items()}
    assert [told["sse_event"](some) for some in (one, other)] == ["b", None]
    assert told["sse_id"](one) is None


def test_a_long_event_is_counted_and_those_behind_it_are_read(server, monkeypatch):
    monkeypatch.setattr(sse, "MOST_LINE", 1 << 10)
    long = b'{"n": 7, "x": "' + b"y" * (1 << 18) + b'"}'
    server.events[1:3] = [("2", long), ("3", b'{"n":\ndata: 3, "x": "' + b"y" * 1100 + b'"}')]
    chunks = list(source(server).read(None, 9))
    assert numbers(chunks) == [1, 4, 5]
    assert sum(chunk.rejected.get("malformed row", 0) for chunk in chunks) == 2


def test_an_event_of_many_empty_lines_is_long(monkeypatch):
    """Such lines counted as nothing, and all were copied for each: a megabyte took minutes."""
    monkeypatch.setattr(sse, "MOST_LINE", 1 << 10)
    found = EventParser().events(b"id: 1\n" + b"data:\n" * 2_000 + b"\nid: 2\ndata: x\n\n")
    assert [(one.id, one.data) for one in found] == [("1", b""), ("2", b"x")]


def test_a_mark_of_the_byte_order_may_come_in_pieces():
    parser, text = EventParser(), b"\xef\xbb\xbfdata: x\n\n"
    assert [one.data for at in range(len(text)) for one in parser.events(text[at : at + 1])] == [
        b"x"
    ]


def test_an_event_ends_with_its_last_carriage_return():
    """It waited for the byte behind it, which is of the next event and may come hours later."""
    parser = EventParser()
    assert [one.data for one in parser.events(b"id: 1\rdata: x\r\r")] == [b"x"]
    assert [one.data for one in parser.events(b"\ndata: y\r\n\r")] == [b"y"]
    assert parser.events(b"\n") == []


def test_a_closed_stream_is_opened_again_and_nothing_comes_twice(server):
    reading = source(server)
    chunks = list(reading.read(None, 2))
    assert numbers(chunks) == [1, 2, 3, 4, 5]
    server.events.append(("6", b'{"n": 6}'))
    assert numbers(reading.read(chunks[-1].position, 2)) == [6]
    assert server.asked == [None, "4"]


@pytest.mark.parametrize("what", ["deaf", "forgets", "other"])
def test_a_server_that_does_not_go_on_where_it_was_is_told(server, what, monkeypatch):
    monkeypatch.setattr(sse, "WAIT", 1)
    position = next(source(server).read(None, 3)).position
    assert numbers(source(server).read(position, 9)) == [4, 5]
    if what == "deaf":
        server.deaf = True
    elif what == "forgets":
        del server.events[:3]
    else:
        server.events[2] = "3", b'{"n": 8}'
    with pytest.raises(SourceError, match=r"does not go on(.|\n)*to fix"):
        list(source(server).read(position, 9))


def test_an_answer_that_ends_before_its_first_event_says_nothing_of_lost_events(server):
    """A server that was just stopping was said to have lost events; a new state is charged."""
    position = next(source(server).read(None, 3)).position
    server.events, kept = server.events[:2], server.events
    with pytest.raises(SourceError, match=r"ended its answer(.|\n)*start again"):
        list(source(server).read(position, 9))
    server.events = kept
    assert numbers(source(server).read(position, 9)) == [4, 5]


def test_a_server_that_waits_for_its_first_event_is_told_what_to_do(server, monkeypatch):
    """'TimeoutError: check the address, the password' was all that was said."""
    monkeypatch.setattr(sse, "WAIT", 0.2)
    server.first.clear()
    with pytest.raises(SourceError, match=r"no answer began within 0.2 seconds; .* no event yet"):
        list(source(server).read(None, 9))
    server.first.set()


def test_only_the_thread_that_reads_an_answer_closes_it(server, monkeypatch):
    """It met what another had taken away, and its traceback stood in the log."""
    closers, close, closed = [], sse.HTTPResponse.close, threading.Event()

    def closing(answer):
        closers.append(threading.current_thread())
        close(answer)
        closed.set()

    monkeypatch.setattr(sse.HTTPResponse, "close", closing)
    monkeypatch.setattr(Handler, "protocol_version", "HTTP/1.1")
    server.headers["Content-Length"] = "10000"
    server.over.clear()
    reading = source(server)
    next(reading.read(None, 1))
    reading.close()
    assert closed.wait(10)
    assert threading.current_thread() not in closers
    server.over.set()


@pytest.mark.parametrize("number", [None, "2"])
def test_events_without_ids_of_their_own_are_refused(server, number):
    server.events[2] = number, b'{"n": 3}'
    with pytest.raises(SourceError, match="without ids"):
        list(source(server).read(None, 9))


def test_a_compressed_answer_is_told(server):
    """It was read as events, of which there were none, without a word."""
    server.headers["Content-Encoding"] = "gzip"
    with pytest.raises(SourceError, match="the answer is compressed"):
        list(source(server).read(None, 9))


@pytest.mark.parametrize(("code", "kind"), [(204, "text/event-stream"), (200, "text/html")])
def test_an_answer_that_is_no_stream_is_told_without_what_is_signed(server, code, kind):
    server.code, server.kind = code, kind
    with pytest.raises(SourceError, match="no events can be read") as error:
        list(source(server).read(None, 9))
    assert "hidden-key" not in str(error.value)


def test_headers_come_from_a_file_and_keys_are_in_no_address(server, tmp_path):
    (tmp_path / "headers.json").write_text('{"Authorization": 3}')
    with pytest.raises(SourceError, match="a header that is not text"):
        list(source(server, config=str(tmp_path / "headers.json")).read(None, 9))
    with pytest.raises(SourceError, match="holds no user"):
        source(server, url="https://me:hidden-key@host/x")
