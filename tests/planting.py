"""Faults that no constructor lets through."""

import copy
from dataclasses import fields


def forced(one, **changes):
    """A frozen object with other values, unchecked."""
    made = copy.copy(one)
    names = {f.name for f in fields(one)}
    for name in [name for name in vars(made) if name not in names]:
        del vars(made)[name]
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made
