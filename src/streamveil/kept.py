"""Results of long searches, kept in the user's cache, so that the next process finds them.

The results are choices without private input: the shape of a table of coins, the rates of a
counter, a scale of noise. Privacy does not rest on them: the core derives the loss of each choice,
and the ledger refuses one that is over its budget. A file of other code is ignored, and a damaged
one too, with a warning; if the cache cannot be written, every process searches again.

The files are in `streamveil` below `$XDG_CACHE_HOME`, by default `~/.cache`; `STREAMVEIL_CACHE` is
another folder, or `off`. Deleting them is safe.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from fractions import Fraction
from functools import cache, wraps
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

import mpmath
import numpy
import scipy

HERE = Path(__file__).parent
ROOMS = (
    "minimum.py",
    "calibrate.py",
    "compiler",
    "core",
    "counters",
    "dataflow",
    "plan",
)  # searches
FOLDER = "STREAMVEIL_CACHE"
Searching = TypeVar("Searching", bound=Callable[..., Any])


def kept(*types: type) -> Callable[[Searching], Searching]:
    """Keeps the results of a function of public numbers: numbers, tuples, dataclasses `types`."""
    known = {kind.__qualname__: kind for kind in types}

    def decorated(search: Searching) -> Searching:
        @wraps(search)
        def found(*args: Any) -> Any:
            try:
                asked = json.dumps([search.__module__, search.__qualname__, to_json(args)])
            except TypeError:
                return search(*args)
            with suppress(OSError):  # nothing is kept yet
                try:
                    return from_json(read(asked), known)
                except (ValueError, KeyError, TypeError):
                    warn_of_damage(asked)
            answer = search(*args)
            with suppress(OSError):
                write(asked, to_json(answer))
            return answer

        return found  # type: ignore[return-value]  # with the signature of `search`

    return decorated


def read(asked: str) -> Any:
    """The kept answer to a question; ValueError if it is damaged."""
    digest, _, text = place(asked).read_text("ascii").partition("\n")
    whole = digest == hashlib.sha256(f"{asked}\n{text}".encode()).hexdigest()
    return json.loads(text if whole else "")


def warn_of_damage(asked: str) -> None:
    """Warns of the damaged file of a question; the search then runs again, and is kept anew."""
    told = "a result of a search is damaged, or somebody changed it; it is searched for again"
    warnings.warn(f"{told}: {place(asked)}", stacklevel=3)


def write(asked: str, answer: Any) -> None:
    """Keeps an answer with its checksum; readers see all of it or nothing."""
    path, text = place(asked), json.dumps(answer)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="ascii") as file:
        file.write(hashlib.sha256(f"{asked}\n{text}".encode()).hexdigest() + "\n" + text)
    os.replace(file.name, path)


def place(asked: str) -> Path:
    """The file of a question. OSError if nothing is to be kept."""
    folder = os.environ.get(FOLDER)
    if folder == "off":
        raise FileNotFoundError("nothing is kept")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise FileNotFoundError("nobody's home")
    name = hashlib.sha256(asked.encode()).hexdigest()[:32]
    return Path(folder or os.path.join(home, "streamveil")) / stamp() / name


@cache
def stamp() -> str:
    """A digest of the code that searches, and of the libraries it uses."""
    tools = [module.__version__ for module in (numpy, scipy, mpmath)]
    digest = hashlib.sha256(f"{tools} {sys.implementation.cache_tag}".encode())
    for room in ROOMS:
        for path in sorted((HERE / room).rglob("*.py")) or [HERE / room]:
            digest.update(str(path.relative_to(HERE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def to_json(value: Any) -> Any:
    """Exact numbers, and fields of dataclasses, as JSON values. TypeError for all else."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, tuple):
        return [to_json(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__qualname__, "fields": parts}
    raise TypeError(f"no value of {type(value).__name__} is kept")


def from_json(value: Any, known: dict[str, type]) -> Any:
    """The inverse of `to_json`, for known classes."""
    if isinstance(value, list):
        return tuple(from_json(part, known) for part in value)
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float.fromhex(value["float"])
    if "fraction" in value:
        return Fraction(value["fraction"])
    parts = {name: from_json(part, known) for name, part in value["fields"].items()}
    return known[value["class"]](**parts)
