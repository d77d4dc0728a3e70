"""A stream of NATS is read once and in one order, whatever happens to readers and the server."""

import json
import sys
import time

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.connectors import nats as source_of_nats
from streamveil.connectors import open_source
from streamveil.connectors.rejected_rows import text_or_none, traced
from streamveil.errors import MissingExtraError, SourceError
from streamveil.runtime.run import Pace, run
from tests.connectors.test_kafka import COLUMNS, counts, message, rows_of
from tests.servers import kafka

pytest.importorskip("nats")


@pytest.fixture
def server(nats_server):
    return nats_server


@pytest.fixture
def stream(server, request):
    name = request.node.name.translate(str.maketrans("[] .", "____"))[:60]
    server.make(name)
    return name


def opened(server, stream, **more):
    options = {"servers": server.servers, "stream": stream, "columns": COLUMNS,
               "config": server.config}  # fmt: skip
    return open_source("nats", {**options, **more})


def test_every_position_goes_on_with_the_same_rows(server, stream):
    server.send(stream, [message(u) for u in range(10)] + [b"no row", b" ", message(10)])
    server.ask(lambda context: context.delete_msg(stream, 5))
    source = opened(server, stream)
    chunks = list(source.read(None, 4))
    rows = rows_of(chunks)
    assert [row["u"] for row in rows] == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [row["nats_sequence"] for row in rows][-2:] == [10, 13]
    assert {row["nats_subject"] for row in rows} == {f"{stream}.a", f"{stream}.b"}
    assert sum(chunk.rejected.get("malformed row", 0) for chunk in chunks) == 2
    server.send(stream, [message(99)])
    for at, chunk in enumerate(chunks):
        for most in (1, 100):
            follows = rows_of(source.read(chunk.position, most))
            assert follows[:-1] == rows_of(chunks[at + 1 :])
            assert follows[-1]["u"] == 99


def test_long_messages_do_not_make_the_server_cut_the_job_off(server, stream):
    """It does so to a client for which more than 64 MiB wait."""
    server.send(stream, [json.dumps({"u": u, "page": "x" * 1_000_000}).encode() for u in range(90)])
    found = [row["u"] for row in rows_of(opened(server, stream).read(None, 1000, ["u"]))]
    assert found == [*range(90)]


def test_a_job_that_takes_long_over_some_messages_reads_on(server, stream, monkeypatch):
    monkeypatch.setattr(source_of_nats, "IDLE", 0.5)
    server.send(stream, [message(u) for u in range(6)])
    found = []
    for chunk in opened(server, stream).read(None, 2):
        found += [row["u"] for row in rows_of([chunk])]
        time.sleep(2)  # a server looks for whom to forget now and then
    assert found == [*range(6)]


ODD = [
    (b"\xff\xfe", b""), (b"\xe2\x82", b""), (b"\xed\xa0\x80", b"\r\n\xff: \xfe"),
    *((b"a", b"\r\nStatus: %d" % status) for status in (100, 404, 408, 409, 503)),
    (b"a", b" 503 No Responders"), (b"a", b"\r\nNats-Sequence: 1"),
]  # fmt: skip


@pytest.mark.parametrize("body", [message(7), b""], ids=["row", "empty"])
@pytest.mark.parametrize(("word", "headers"), ODD, ids=range(len(ODD)))
def test_no_subject_or_header_stops_a_job(server, stream, word, headers, body):
    server.send(stream, [message(1)])
    server.send_raw(stream.encode() + b"." + word, body, headers)
    source = opened(server, stream)
    chunks = list(source.read(None, 9))
    assert [row["u"] for row in rows_of(chunks)] == ([1, 7] if body else [1])
    assert sum(chunk.rejected.get("malformed row", 0) for chunk in chunks) == (not body)
    server.send(stream, [message(2)])
    assert [row["u"] for row in rows_of(source.read(chunks[-1].position, 9))] == [2]
    if body:  # a subject that is no text names nobody: two of them would look alike
        text = text_or_none(stream.encode() + b"." + word)
        assert [row["nats_subject"] for row in rows_of(chunks)][1] == text


def test_messages_that_limits_deleted_unread_stop_the_job_in_words(server, stream, monkeypatch):
    server.send(stream, [message(u) for u in range(10)])
    source = opened(server, stream)
    _, first, second, *_ = [chunk.position for chunk in source.read(None, 2)]
    reading = source.read(first, 1)
    next(reading)
    server.ask(lambda context: context.purge_stream(stream, seq=5))
    assert [row["u"] for row in rows_of(source.read(second, 9))] == [4, 5, 6, 7, 8, 9]
    for lost in (source.read(first, 9), reading):
        with pytest.raises(SourceError, match=r"had not read(.|\n)*to fix"):
            list(lost)


def test_messages_that_limits_deleted_amid_an_answer_stop_the_job(server, stream, monkeypatch):
    """A gap was taken for messages that somebody deleted where the first of the answer had come."""
    server.send(stream, [message(u) for u in range(10)])

    async def fetched(consumer, most):
        found = list(await consumer.fetch(2))
        await consumer._js.purge_stream(stream, seq=6)
        return found + list(await consumer.fetch(most - 2))

    monkeypatch.setattr("streamveil.connectors.nats.fetched", fetched)
    with pytest.raises(SourceError, match="had not read"):
        list(opened(server, stream).read(None, 9))


def test_messages_that_were_lost_before_any_was_read_are_told(server, stream):
    """A stream without messages had no position: the job began wherever the stream did then."""
    [nothing] = opened(server, stream).read(None, 2)
    server.send(stream, [message(u) for u in range(3)])
    assert len(rows_of(opened(server, stream).read(nothing.position, 2))) == 3
    server.ask(lambda context: context.purge_stream(stream, seq=2))
    with pytest.raises(SourceError, match="had not read"):
        list(opened(server, stream).read(nothing.position, 2))


def test_another_stream_of_the_name_is_refused(server, stream):
    server.send(stream, [message(u) for u in range(4)])
    position = list(opened(server, stream).read(None, 9))[-1].position
    assert list(opened(server, stream).read(position, 9)) == []
    server.ask(lambda context: context.delete_stream(stream))
    server.make(stream)
    for users in (range(2), range(2, 12)):
        server.send(stream, [message(u + 50) for u in users])
        with pytest.raises(SourceError, match="made anew"):
            list(opened(server, stream).read(position, 9))


@pytest.mark.parametrize("more", [
    {"max_msgs_per_subject": 1}, {"retention": "interest"}, {"allow_rollup_hdrs": True},
    {"allow_msg_ttl": True},
], ids=["last", "interest", "roll-up", "expire"])  # fmt: skip
def test_streams_that_forget_what_was_not_read_are_refused(server, more, request):
    name = f"forgets_{'_'.join(more)}"
    server.make(name, **more)
    with pytest.raises(SourceError, match=r"forgets messages(.|\n)*to fix"):
        list(opened(server, name).read(None, 9))


def test_what_cannot_be_had_is_named_and_no_credential(server, stream, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"user": "reader", "password": "wrong-word"}))
    for source in (opened(server, stream, config=str(wrong)), opened(server, "nowhere")):
        with pytest.raises(SourceError, match=r"cannot be read from(.|\n)*to fix") as caught:
            list(source.read(None, 9))
        assert "word" not in str(caught.value)


def test_rejected_messages_are_kept_with_their_numbers(server, stream):
    server.send(stream, [message(1), b"no row", b'{"u": "x"}'])
    chunks = list(traced(opened(server, stream)).read(None, 50))
    odd = pa.concat_tables([table for chunk in chunks for table in chunk.rejected_rows])
    assert odd["file"].to_pylist() == [stream] * 2
    assert odd["number"].to_pylist() == [2, 3]
    assert odd["line"].to_pylist()[0] == b"no row"


def test_a_job_that_is_cut_off_at_any_commit_counts_every_message_once(
    server, stream, tmp_path, monkeypatch
):
    """Stopped after each commit, while messages come and the server dies: as if never stopped."""
    asked = (
        sv.source("nats", stream, servers=server.servers, stream=stream, columns=COLUMNS,
                  config=server.config)
        .protect("u").group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count())
        .bound(max_rows=1).release(budget=sv.Budget(epsilon=2000, delta=1e-9), every=sv.rows(20),
                                   steps=4)
    )  # fmt: skip
    found, users, state = [], iter(range(10_000)), str(tmp_path / "s")
    for turn in range(40):
        server.send(stream, [message(next(users)) for _ in range(5)])
        if turn == 8:
            server.stop()
            with monkeypatch.context() as patch:
                patch.setattr(source_of_nats, "WAIT", 1.0)
                with pytest.raises(SourceError, match="start again"):
                    list(run(asked.plan, state=state, pace=Pace(max_rows=3, once=True)))
            server.start()
        job = run(asked.plan, state=state, pace=Pace(max_rows=3, once=True))
        for _ in range(2):  # commits
            release = next(job, None)
            found += [release] if release is not None else []
        job.close()
        if len({one.step for one in found}) == 4:
            break
    by_step = {one.step: sum(counts(one.table).values()) for one in found}
    assert by_step == {1: 20, 2: 40, 3: 60, 4: 80}


def test_options_that_cannot_be_are_refused(monkeypatch, tmp_path):
    plain = {"servers": "nats://h:4222", "stream": "s", "columns": COLUMNS}
    for more in (
        {"servers": "nats://me:hidden@h"}, {"columns": {"nats_time": "TIMESTAMP"}},
    ):  # fmt: skip
        with pytest.raises(SourceError, match="to fix") as caught:
            open_source("nats", {**plain, **more})
        assert "hidden" not in str(caught.value)
    odd = tmp_path / "odd.json"
    odd.write_text('{"secret": "hidden"}')
    with pytest.raises(SourceError, match="other settings than user") as caught:
        list(open_source("nats", {**plain, "config": str(odd)}).read(None, 9))
    assert "hidden" not in str(caught.value)
    monkeypatch.setattr(source_of_nats, "WAIT", 1.0)
    nowhere = f"nats://127.0.0.1:{kafka.free_port()}"
    with pytest.raises(SourceError, match=r"cannot be read from(.|\n)*to fix"):
        list(open_source("nats", {**plain, "servers": nowhere}).read(None, 9))
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[nats\]"):
        open_source("nats", plain)
