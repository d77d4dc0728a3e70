"""Schemas of a topic's messages, by number, from a registry that speaks Confluent's protocol.

A message begins with a zero byte and the number of its schema (four bytes, the highest first).

Which schemas are asked for depends on no message: all versions of one subject, also those that
were deleted softly, each time that a topic is read. Proof that none is missed: a producer
registers a schema before it sends a message of it, and versions are listed after the end of the
read was fixed. A message with any other number is malformed. So neither the questions to the
registry nor its answers depend on a row. A number means one schema for ever.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa

from streamveil.connectors.messages import Decoded, Decoder
from streamveil.connectors.rejected_rows import MALFORMED
from streamveil.errors import SourceError, StreamveilError

HEAD = 5  # bytes before a message: 0 and the number of its schema
WAIT = 30.0  # seconds
SETTINGS = ("basic.auth.user.info", "bearer.auth.token", "ssl.ca.location",
            "ssl.certificate.location", "ssl.key.location")  # fmt: skip
PREFIX = "schema.registry."  # of these in the file of settings


class RegisteredSchema(NamedTuple):
    """One version of a subject; `references`: the names it imports, and what they are."""

    kind: str  # AVRO, PROTOBUF or JSON
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...]


@dataclass
class Registry:
    """Asks a registry. Its address holds no password; `settings` may."""

    url: str
    settings: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise SourceError(
                "registry is an address such as 'https://registry:8081', without a password.\n"
                f"  to fix  put '{PREFIX}basic.auth.user.info' into the file that config names"
            )
        unknown = self.settings.keys() - set(SETTINGS)
        if unknown:
            raise SourceError(
                f"config has the setting '{PREFIX}{min(unknown)}', which is not known.\n"
                f"  to fix  give one of {', '.join(PREFIX + name for name in SETTINGS)}"
            )

    def versions(self, subject: str) -> list[int]:
        """All versions of a subject."""
        return [int(one) for one in self._ask(f"/subjects/{quote(subject, '')}/versions")]

    def version(self, subject: str, version: int) -> tuple[int, RegisteredSchema]:
        """One of them: its number, and what it is."""
        place = f"/subjects/{quote(subject, '')}/versions/{version}"
        said = self._ask(place)
        kind = said.get("schemaType", "AVRO")
        if kind == "PROTOBUF":  # the registry compiles it: a FileDescriptorProto in base 64
            said = self._ask(place, "&format=serialized")
        imported = tuple(
            (one["name"], self.version(one["subject"], one["version"])[1])
            for one in said.get("references") or ()
        )
        return int(said["id"]), RegisteredSchema(kind, said["schema"], imported)

    def _ask(self, place: str, more: str = "") -> Any:
        """What the registry answers. Neither its words nor the settings appear in a message."""
        request = Request(f"{self.url.rstrip('/')}{place}?deleted=true{more}")  # noqa: S310
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if user := self.settings.get("basic.auth.user.info"):
            request.add_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
        if token := self.settings.get("bearer.auth.token"):
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=WAIT, context=self._tls()) as answer:  # noqa: S310
                return json.load(answer)
        except HTTPError as error:
            reason = f"answers {error.code} to {place}"
        except (URLError, OSError, ValueError):
            reason = "does not answer"
        raise SourceError(
            f"the schema registry at '{self.url}' {reason}.\n"
            "  to fix  check registry, subject and the settings in config, then start again: the"
            " job goes on where it was"
        )

    def _tls(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https"):
            return None
        made = ssl.create_default_context(cafile=self.settings.get("ssl.ca.location"))
        if own := self.settings.get("ssl.certificate.location"):
            made.load_cert_chain(own, self.settings.get("ssl.key.location"))
        return made


@dataclass
class RegisteredMessages:
    """Reads messages of one subject; `compiled` makes a decoder of one schema."""

    registry: Registry
    subject: str
    kind: str  # of its schemas
    compiled: Callable[[RegisteredSchema], tuple[Decoder, frozenset[str]]]
    _versions: set[int] = field(default_factory=set)
    _decoders: dict[int, Decoder] = field(default_factory=dict)
    _fields: set[str] = field(default_factory=set)

    def refresh(self, wanted: Sequence[str]) -> None:
        """Asks for new versions; SourceError where none has a wanted field."""
        try:
            for version in self.registry.versions(self.subject):
                if version not in self._versions:
                    self._learn(version)
        except StreamveilError:
            raise
        except Exception:  # whatever somebody registered, or another server says
            raise SourceError(
                f"what the schema registry says of '{self.subject}' cannot be read.\n"
                "  to fix  check registry and subject; schemas must be valid, those too of versions"
                " that were deleted softly"
            ) from None
        for name in wanted:
            if name not in self._fields:
                raise SourceError(
                    f"no version of '{self.subject}' in the schema registry has a field '{name}'.\n"
                    f"  to fix  declare fields that exist: {', '.join(sorted(self._fields))}"
                )

    def _learn(self, version: int) -> None:
        """Asks for a version, and reads its messages from here on."""
        number, schema = self.registry.version(self.subject, version)
        if schema.kind != self.kind:
            raise SourceError(
                f"version {version} of '{self.subject}' in the schema registry is"
                f" {schema.kind}, not {self.kind}.\n"
                "  to fix  give the format of its schemas, and one subject for one format"
            )
        self._decoders[number], fields = self.compiled(schema)
        self._fields |= fields
        self._versions.add(version)

    def read(self, messages: list[bytes], wanted: pa.Schema) -> Decoded:
        """The wanted fields of each message that is a row of a schema of the subject.

        A column is made from the messages of one schema at a time, so no message affects the
        meaning of another one's field.
        """
        by_number: dict[int, list[int]] = {}
        malformed: list[int] = []
        for place, message in enumerate(messages):
            number = int.from_bytes(message[1:HEAD], "big")
            if message[:1] == b"\0" and len(message) >= HEAD and number in self._decoders:
                by_number.setdefault(number, []).append(place)
            else:
                malformed.append(place)
        pieces, places, misfit, rejected = [wanted.empty_table()], [], [], Counter[str]()
        for number, some in by_number.items():
            where = np.array(some, np.int64)
            found = self._decoders[number]([messages[at][HEAD:] for at in some], wanted)
            pieces.append(found.rows)
            places.append(np.delete(where, found.malformed))
            misfit.append(where[found.misfit])
            rejected.update(found.rejected)
            malformed += where[found.malformed].tolist()
        rows = pa.concat_tables(pieces)
        if len(places) > 1:
            rows = rows.take(pa.array(np.argsort(np.concatenate(places))))
        if malformed:
            rejected[MALFORMED] = len(malformed)
        odd = np.sort(np.concatenate([np.zeros(0, np.int64), *misfit]))
        return Decoded(rows, np.array(sorted(malformed), np.int64), dict(rejected), odd)
