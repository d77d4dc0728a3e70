"""A stream of NATS JetStream: every JSON message one row, with its subject, time and number.

The place of a row is its number in the stream, which the server gives. Nothing is acknowledged, and
no durable consumer is made: how far a job has come is in its own state, with a digest of the last
message that it read, so that another stream of the same name is told.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import ssl
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from streamveil.connectors import Chunk, in_words, select, settings_in
from streamveil.connectors.messages import Messages, only_text
from streamveil.connectors.rejected_rows import TIME
from streamveil.errors import SourceError, requires_extra

WAIT = 10.0  # seconds without an answer before a read fails
AT_ONCE = 5_000  # messages
IDLE = 60.0  # seconds after which the server forgets a reader
UNREAD = 1 << 25  # bytes asked for at once: a server cuts off a client with 64 MiB to come
SETTINGS = ("user", "password", "token", "user_credentials", "nkeys_seed", "ca")
T = TypeVar("T")


class NatsSource(Messages):
    """Messages of a stream in the order of their numbers, as far as they are there now.

    Options: `servers` (`nats://host:4222`, several with commas), `stream`, declared columns,
    `config` (a JSON file of credentials); `follow = FALSE` reads what is there and ends.
    """

    own: ClassVar = {
        "nats_subject": (pa.string(), lambda message: only_text(message.subject)),
        "nats_time": (TIME, lambda message: message.metadata.timestamp),
        "nats_sequence": (pa.int64(), lambda message: number_of(message)),
    }

    def __init__(
        self,
        servers: str,
        stream: str,
        columns: dict[str, str],
        config: str | None = None,
        follow: bool = True,  # noqa: FBT001,FBT002
    ) -> None:
        with requires_extra("NATS", "nats", least=("nats-py", "2.12")):
            import nats  # noqa: F401
        if "@" in servers:
            raise SourceError(
                "an address of NATS holds no user and no password: it is written into queries.\n"
                "  to fix  put them into the JSON file that config names"
            )
        super().__init__(columns, stream, follow=follow)
        self.servers, self.stream, self.config = servers, stream, config

    def try_out(self) -> None:
        """See `try_connectors`."""
        with self._words(), connected(self.servers, settings_of(self.config)) as server:
            server.ask(self._span(server.context))

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, f"stream '{self.stream}'")
        at = json.loads(position) if position else {"next": None, "digest": None}
        with self._words(), connected(self.servers, settings_of(self.config)) as server:
            first, stop = server.ask(self._span(server.context))
            place = first if at["next"] is None else at["next"]
            if not first <= place <= stop:
                raise self._gone()
            if at["next"] is None:  # what is lost from here on is told
                at["next"] = place
                yield self.chunk([], [], np.zeros(0, np.int64), wanted, at)
            if at["digest"] is not None:
                server.ask(self._require_same(server.context, place - 1, at["digest"]))
            for found in self._messages(server, place, stop, min(max_rows, AT_ONCE)):
                last, texts = found[-1], [message.data for message in found]
                at = {"next": number_of(last) + 1, "digest": digest_of(last.subject, last.data)}
                numbers = np.fromiter(map(number_of, found), np.int64, len(found))
                yield self.chunk(found, texts, numbers, wanted, at)

    def _messages(self, server: Server, place: int, stop: int, most: int) -> Iterator[list[Any]]:
        """The messages [place, stop), some at a time.

        Not every number has a message: one can be deleted by itself. By age or size the server
        deletes the first messages, so a gap before the first one left means lost messages.
        The server forgets a reader that asks for nothing for a minute: a micro-batch took longer.
        """
        from nats.js.errors import APIError

        if place >= stop:
            return
        context = server.context
        consumer = server.ask(self._consumer(context, place))
        while place < stop:
            try:
                found = server.messages(consumer, min(most, stop - place))
            except APIError:
                consumer = server.ask(self._consumer(context, place))
                found = server.messages(consumer, min(most, stop - place))
            found = [one for one in found if number_of(one) < stop]
            after = number_of(found[-1]) + 1 if found else stop
            absent = (n for n, one in enumerate(found, place) if number_of(one) != n)
            if (gap := next(absent, place + len(found))) < after:
                first, _ = server.ask(self._span(context))
                if first > gap:
                    raise self._gone()
            if not found:
                info = server.ask(consumer.consumer_info())
                if info.num_pending:
                    raise TimeoutError
                return
            yield found
            place = after

    async def _span(self, context: Any) -> tuple[int, int]:
        """The first number that is kept, and the one behind the last."""
        info = await context.stream_info(self.stream)
        config = info.config
        if str(getattr(config.retention, "value", config.retention)) not in ("limits", "None"):
            raise SourceError(
                f"the stream '{self.stream}' forgets messages that somebody has acknowledged.\n"
                "  to fix  read a stream with retention = limits, for instance a mirror of it"
            )
        forgets = config.allow_rollup_hdrs or config.allow_msg_ttl
        if config.max_msgs_per_subject > 0 or forgets:
            raise SourceError(
                f"the stream '{self.stream}' forgets messages when others of their subject come, or"
                " when their sender says, so a row could go before it was read.\n"
                "  to fix  read a stream without max_msgs_per_subject, roll-ups and allow_msg_ttl"
            )
        return info.state.first_seq or 1, info.state.last_seq + 1

    async def _require_same(self, context: Any, number: int, digest: str) -> None:
        """SourceError if the last message that was read is another one now; it may be gone."""
        from nats.js.errors import NotFoundError

        try:
            message = await context.get_msg(self.stream, number)
        except NotFoundError:
            return
        if digest_of(message.subject or "", message.data or b"") != digest:
            raise self._gone()

    async def _consumer(self, context: Any, place: int) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        made = await context.add_consumer(self.stream, ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=place,
            ack_policy=AckPolicy.NONE, inactive_threshold=IDLE, mem_storage=True,
        ))  # fmt: skip
        return await context.pull_subscribe_bind(made.name, self.stream)

    def _gone(self) -> SourceError:
        return SourceError(
            f"messages of the stream '{self.stream}' are gone that this job had not read: limits"
            " deleted them, or the stream was made anew.\n"
            "  to fix  keep messages for longer than a job may be stopped; to go on without"
            " them, start a new state"
        )

    def _words(self) -> AbstractContextManager[None]:
        from nats.errors import Error

        return in_words(
            (Error, OSError, TimeoutError),
            f"the stream '{self.stream}' cannot be read from '{self.servers}'",
            "check the address, the stream and config, then start again: the job goes on where it"
            " was",
        )


class Server:
    """A connection, kept alive by a thread of its own while rows are worked on."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.context: Any = None
        self.at_once = 1  # messages asked for at once

    def messages(self, consumer: Any, most: int) -> list[Any]:
        """The next messages: at most so many, and no more when they reach `UNREAD` bytes."""
        found: list[Any] = []
        asked = come = size = 0
        while asked == come and len(found) < most and size < UNREAD:
            asked = min(self.at_once, most - len(found))
            some = self.ask(fetched(consumer, asked))
            found, come, size = found + some, len(some), size + sum(len(one.data) for one in some)
        return found

    def ask(self, question: Coroutine[Any, Any, T]) -> T:
        """The server's answer."""
        waiting = asyncio.wait_for(question, 3 * WAIT)
        return asyncio.run_coroutine_threadsafe(waiting, self.loop).result()

    def close(self) -> None:
        """Ends the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def connected(servers: str, settings: dict[str, Any]) -> Iterator[Server]:
    """A connection to JetStream."""
    client = careful_client()

    async def silent(_: Exception) -> None:
        """Errors come to whoever waits for an answer."""

    server = Server()
    try:
        server.ask(client.connect(
            servers.split(","), connect_timeout=int(WAIT), error_cb=silent, allow_reconnect=False,
            max_reconnect_attempts=1, reconnect_time_wait=0, **settings,
        ))  # fmt: skip
        server.context = client.jetstream(timeout=WAIT)
        server.at_once = max(1, UNREAD // client.max_payload)
        try:
            yield server
        finally:
            server.ask(client.close())
    finally:
        server.close()


def careful_client() -> Any:
    """A client that no message can stop: its subject may be no text, its headers say anything.

    Else a subject that is no UTF-8 would end every reading, and a message with a header `Status`
    would be taken for an answer of the server. What is kept in a stream comes with an address for
    acknowledgements, and the server's own answers without.
    """
    from nats.aio.client import Client

    class CarefulClient(Client):
        def _build_message(
            self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any
        ) -> Any:
            text = subject.decode(errors="replace").encode()
            told = None if reply.startswith(b"$JS.ACK.") else headers
            return super()._build_message(sid, text, reply, data, told)

    return CarefulClient()


def settings_of(config: str | None) -> dict[str, Any]:
    """What the file of settings says. Its content appears in no message."""
    more = settings_in(config, "nats", what := ", ".join(SETTINGS))
    if more.keys() - set(SETTINGS):
        raise SourceError(
            f"config='{config}' of 'nats' holds other settings than {what}.\n"
            "  to fix  leave them out"
        )
    authority = more.pop("ca", None)
    if authority is not None:
        more["tls"] = ssl.create_default_context(cafile=authority)
    return more


async def fetched(consumer: Any, most: int) -> list[Any]:
    """Some messages; none if the server has none for a while."""
    from nats.errors import TimeoutError as NoneError

    try:
        return list(await consumer.fetch(most, timeout=WAIT))
    except NoneError:
        return []


def number_of(message: Any) -> int:
    """Of a message in its stream."""
    return int(message.metadata.sequence.stream)


def digest_of(subject: str, data: bytes) -> str:
    """Of one message. A server replaces each byte of a subject that is no text, Python some."""
    subject = re.sub("\ufffd+", "\ufffd", subject)
    return hashlib.blake2b(subject.encode() + b"\0" + data, digest_size=16).hexdigest()
