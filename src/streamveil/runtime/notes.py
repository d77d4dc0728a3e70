"""Small JSON files of a state, each with its format, its version and a checksum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streamveil.connectors.blocks import crc32
from streamveil.runtime import disk, formats
from streamveil.runtime.wal import damaged

Content = dict[str, Any]


def write(path: Path, kind: str, content: Content) -> None:
    """Writes a note durably."""
    whole = {"format": f"streamveil {kind}", "version": formats.current(kind), **content}
    text = json.dumps({**whole, "crc32": crc(whole)}, indent=2) + "\n"
    disk.create(path, [memoryview(text.encode())])


def read(path: Path, kind: str) -> Content:
    """What a note says, in the present format; refuses one that is damaged, or of no known one."""
    try:
        content: Content = json.loads(disk.read(path))
        version, what = content["version"], f"file '{path.name}'"
        formats.steps(what, formats.NOTES.get(kind, ()), version)
        if content.pop("crc32") != crc(content) or content["format"] != f"streamveil {kind}":
            raise damaged(path)
        del content["format"], content["version"]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise damaged(path) from None
    return formats.upgraded(what, kind, content, version)


def version_of(path: Path) -> int:
    """The format in which a note was written."""
    found: int = json.loads(disk.read(path))["version"]
    return found


def crc(content: Content) -> int:
    """A checksum that does not depend on how the JSON is laid out."""
    return crc32(json.dumps(content, sort_keys=True).encode())
