"""Files of results, written whole: who stops a run keeps the ones of before."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def save(path: Path, content: Any, *, indent: int = 1) -> None:
    """Writes JSON beside the file, and puts it in its place once it is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(content, indent=indent) + "\n")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
