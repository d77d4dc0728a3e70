"""Limits on JSON texts: Python's own reader never sees those that are too deep or too large."""

from __future__ import annotations

import numpy as np

MOST_DEPTH = 500  # of values in values; below the limit of Python's own stack
MOST_VALUES = 1 << 20  # in one text: each takes up to 80 bytes when it is read
QUOTE, COMMA = b'",'
DEEPER = np.zeros(256, np.int8)
DEEPER[[*b"[{"]], DEEPER[[*b"]}"]] = 1, -1


def is_excessive(text: bytes) -> bool:
    r"""Whether a text nests values too deeply, or has too many of them.

    >>> deep = b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}"
    >>> is_excessive(deep), is_excessive(deep.replace(b"[]", b"0")), is_excessive(b'"[' * 600)
    (True, False, False)
    """
    if len(text) <= 2 * MOST_DEPTH:
        return False
    if text.count(b"[") + text.count(b"{") <= MOST_DEPTH and len(text) <= MOST_VALUES:
        return False
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # a quote now ends or begins a text
    data = np.frombuffer(plain, np.uint8)
    bare = data[~np.logical_xor.accumulate(data == QUOTE)]
    change = DEEPER[bare]
    if np.count_nonzero(bare == COMMA) + np.count_nonzero(change > 0) > MOST_VALUES:
        return True
    return int(np.cumsum(change, dtype=np.int32).max(initial=0)) > MOST_DEPTH
