"""States as plain arrays and back: a JSON skeleton, and the arrays it names.

States are trees of dataclasses, lists, numbers and arrays. Only classes listed here are ever built
from saved bytes, and only from their fields.
"""

from __future__ import annotations

import json
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.core.noisy import restored
from streamveil.dynamic.baselines import BaselineState, TwoState
from streamveil.dynamic.buckets import BucketState
from streamveil.dynamic.continual_mwem import ContinualState
from streamveil.dynamic.distinct import DistinctState
from streamveil.dynamic.insertion_only import InsertionState
from streamveil.dynamic.interval_tree import Live, TreeTableState
from streamveil.dynamic.partition import PartitionState
from streamveil.dynamic.pmwg import PmwgState
from streamveil.dynamic.protocol import Bag, Changes
from streamveil.dynamic.signed_counter import RootState, TreeCounterState
from streamveil.dynamic.trees import HybridState, TreeNode, TreeState
from streamveil.errors import StoreError
from streamveil.linear.budget_shares import Meter, Share
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.sparse_vector import AboveState
from streamveil.types import Array

CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        AboveState, BaselineState, Bag, BucketState, Changes, ContinualState, DistinctState,
        HybridState, InsertionState, Live, Meter, PartitionState, PmwgState, QueryAnswers,
        RootState, Share, TreeCounterState, TreeNode, TreeState, TreeTableState, TwoState,
    )
}  # fmt: skip


def pack(value: Any) -> dict[str, Array]:
    """The arrays of a state; 'skeleton' holds everything else as JSON."""
    arrays: dict[str, Array] = {}
    text = json.dumps(_flatten(value, arrays), separators=(",", ":"))
    return {"skeleton": np.frombuffer(text.encode(), np.uint8), **arrays}


def unpack(arrays: dict[str, Array], expected: type) -> Any:
    """The inverse of `pack`; raises StoreError for anything else."""
    try:
        skeleton = json.loads(np.asarray(arrays["skeleton"], np.uint8).tobytes())
        value = _build(skeleton, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError("a saved state that cannot be read") from error
    if type(value) is not expected:
        raise StoreError(f"the saved state is not a {expected.__name__}")
    return value


def _flatten(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Fraction):
        return {"fraction": str(value)}
    if isinstance(value, list | tuple):
        return [_flatten(item, arrays) for item in value]
    if type(value).__name__ in CLASSES:
        parts = {f.name: _flatten(getattr(value, f.name), arrays) for f in fields(value)}
        return {"class": type(value).__name__, "fields": parts}
    if isinstance(value, np.integer | np.floating | np.bool_):
        return value.item()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return {"text": value}
    raise TypeError(f"a state must not hold a {type(value).__name__}")


def _build(saved: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(saved, list):
        return [_build(item, arrays) for item in saved]
    if not isinstance(saved, dict):
        return saved
    if "array" in saved:
        return np.array(arrays[saved["array"]])
    if "fraction" in saved:
        return Fraction(saved["fraction"])
    if "text" in saved:
        return saved["text"]
    cls = CLASSES[saved["class"]]
    parts = {name: _build(part, arrays) for name, part in saved["fields"].items()}
    if cls is QueryAnswers:
        whole = parts["synthetic"]
        return QueryAnswers(restored(parts["values"]), None if whole is None else restored(whole))
    return cls(**parts)
