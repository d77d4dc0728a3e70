"""Numbers of the library's classes: those of NumPy are as those of Python, others are refused."""

from dataclasses import fields, is_dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from streamveil.core import accounting
from streamveil.core.accounting import Neighbours, exact
from streamveil.core.accounting.guarantee import Gdp, Loss, Zcdp
from streamveil.linear import Marginals, Share
from tests.audit import library
from tests.counters.examples import examples


class Lies(int):
    """A whole number whose arithmetic says otherwise."""

    def __mul__(self, other):
        return 1

    __rmul__ = __pow__ = __add__ = __radd__ = __mul__

    def __index__(self):
        return 1


def parts(one, found):
    """All dataclasses of a mechanism, by their class."""
    if is_dataclass(one) and type(one).__module__.startswith("streamveil"):
        found.setdefault(type(one).__name__, one)
        for field in fields(one):
            parts(getattr(one, field.name, None), found)
    return found


def objects():
    """One of every class of the library that has numbers."""
    found = {}
    for name, (mechanism, _) in library.tables(100):
        parts(mechanism, found) if "zcdp" in name or "gdp" in name else None
    for static in library.statics():
        parts(static[1], found)
    for counter in examples(100).values():
        parts(counter, found)
    return found


SAME = {"int64": np.int64, "int8": np.int8, "uint8": np.uint8, "lies": Lies}
NONE = {
    "bool": lambda v: True, "numpy's bool": lambda v: np.True_, "half": lambda v: v + 0.5,
    "float": float, "fraction": Fraction, "text": str, "negative": lambda v: -v,
    "array": np.array, "span": lambda v: np.timedelta64(v, "s"),
}  # fmt: skip


def whole_fields():
    """(object, field, value) of all that are whole numbers."""
    for one in objects().values():
        for field in fields(one):
            value = getattr(one, field.name)
            if field.init and field.type in ("int", "int | None") and value is not None:
                yield one, field.name, value


def faults():
    """What is taken for another number, or refused without its name."""
    for one, name, value in whole_fields():
        for kind, make in SAME.items():
            made = getattr(replace(one, **{name: make(value)}), name)
            if type(made) is not int or made != value:
                yield type(one).__name__, name, kind
        for kind, make in NONE.items():
            try:
                replace(one, **{name: make(value)})
                yield type(one).__name__, name, kind
            except Exception as error:
                named = any(word in str(error) for word in (name, "steps"))
                if not (named and isinstance(error, ValueError)):
                    yield type(one).__name__, name, kind, str(error)


def test_whole_numbers_of_any_kind_are_those_of_python_or_refused_by_name():
    assert len({(type(one), name) for one, name, _ in whole_fields()}) > 20
    assert list(faults()) == []


def test_numbers_as_they_are_given_are_found(monkeypatch):
    monkeypatch.setattr(accounting, "numbers_of", lambda kind: ())
    monkeypatch.setattr(accounting, "whole", lambda name, value: value)
    assert len(list(faults())) > 50


FAR = 2**33 + 1  # its square is beyond 64 bits


@pytest.mark.parametrize("far", [np.int64(FAR), Fraction(np.int64(FAR)), np.uint64(FAR)])
def test_no_privacy_number_wraps_around(far):
    assert Gdp(far) == Gdp(FAR)
    assert Zcdp(far) == Loss(zcdp=far) == Loss(zcdp=FAR)
    assert Loss(pure=((far, 2),)) == Loss(pure=((FAR, np.int8(2)),))
    assert Neighbours("user", bound=far).bound ** 2 == FAR**2
    assert Share("zcdp", far).scale(far) == Share("zcdp", FAR).scale(FAR)
    assert Gdp(1).times(np.int64(FAR)).group(np.int64(FAR)) == Gdp(1).times(FAR).group(FAR)
    for counter in examples(100).values():
        assert counter.loss(far) == counter.loss(FAR)
        assert replace(counter, sigma=far).loss() == replace(counter, sigma=FAR).loss()


def test_a_fraction_of_numpy_has_parts_of_python():
    given = Fraction(np.int64(1), np.int64(3))
    assert {type(given.numerator), type(given.denominator)} != {int}
    made = exact("amount", given)
    assert {type(made.numerator), type(made.denominator)} == {int}
    assert made == Fraction(1, 3)


def test_weights_of_marginals_are_whole():
    """A shift was taken, and answers were too small by a power of two."""
    with pytest.raises(TypeError):
        Marginals((4,), ((0,),), shift=3)
