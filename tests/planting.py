"""Planted faults: values that no constructor lets through, functions in place of others."""

import copy
from dataclasses import fields

import numpy as np
import pyarrow as pa


def forced(one, **changes):
    """A frozen object with other values, unchecked."""
    made = copy.copy(one)
    names = {f.name for f in fields(one)}
    for name in [name for name in vars(made) if name not in names]:
        del vars(made)[name]
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def instead(owner, name, make):
    """Replaces an attribute by what `make` makes of the honest one."""
    return lambda patch: patch.setattr(owner, name, make(getattr(owner, name)))


def dies(*_given):
    """A process that ends at once."""
    raise SystemExit(3)


def all_units_are_one(honest):
    """All rows are numbered as those of one unit."""

    def numbered(columns):
        return honest([pa.array(np.zeros(len(columns[0]), np.int64)), *columns[1:]])

    return numbered
