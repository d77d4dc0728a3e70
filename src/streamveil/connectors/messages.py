"""Messages as rows: what every format of a topic makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.connectors.fit import fit
from streamveil.connectors.json_lines import json_messages
from streamveil.connectors.rejected_rows import MALFORMED, misfits
from streamveil.types import Array, Int64

Places = Int64[Array, " some"]


class Decoded(NamedTuple):
    """Some messages: every one is a row or malformed."""

    rows: pa.Table  # of the wanted types
    malformed: Places  # messages that are no rows, from 0
    rejected: dict[str, int]  # reason -> fields or messages
    misfit: Places  # messages with a field that did not fit


Decoder = Callable[[list[bytes], pa.Schema], Decoded]


def of_json(messages: list[bytes], wanted: pa.Schema) -> Decoded:
    """The wanted fields of JSON objects.

    >>> found = of_json([b'{"n": "x"}', b" ", b'{"n": 2}'], pa.schema([("n", pa.int64())]))
    >>> found.rows["n"].to_pylist(), found.malformed.tolist(), found.misfit.tolist()
    ([None, 2], [1], [0])
    """
    lines = json_messages(messages, wanted)
    return decoded(lines.rows, lines.malformed, len(messages), wanted)


def decoded(rows: pa.Table, malformed: Places, of: int, wanted: pa.Schema) -> Decoded:
    """Rows as the wanted types."""
    fitted, rejected = fit(rows, wanted)
    misfit = np.zeros(0, np.int64)
    if rejected:
        misfit = np.delete(np.arange(of), malformed)[misfits(rows, fitted)]
    if len(malformed):
        rejected = {**rejected, MALFORMED: len(malformed)}
    return Decoded(fitted, malformed, rejected, misfit)
