"""Whatever is given for a number, a text or an array is taken or refused in words, anywhere.

The calls are those of the docstrings: one argument after another is replaced by odd values.
"""

import doctest
import importlib
import inspect
import re
import sys
from contextlib import redirect_stdout
from io import StringIO

import numpy as np

from streamveil.errors import StreamveilError
from tests.test_site import public

ODD = (
    None, "", "abc", -1, 0.5, float("nan"), True, 1j, [], {}, (2.5, 2), object(),
    np.timedelta64(3, "D"), np.float32(2.5), np.array(["a"]), np.ones((1, 1)),
)  # fmt: skip
PLAIN = r"\b(int|float|bool|str|Exact|Fraction|Number|Array)\b"
LEFT = {  # known: who mends one takes it out
    "Bag.sum(bags)", "Blt.__init__(p)", "Blt.__init__(q)", "Blt.decoder(n)", "Blt.encoder(n)",
    "Blt.squared_norm(n)", "Blt.variance(t)", "KaryTreeCounter.stream(name)",
    "Layout.columns(words)", "Layout.places(words)", "LazySketch.shown(levels)",
    "LiveSketch.__init__(state)", "PublishedSketch.estimate_words(words)",
    "PublishedSketch.interval(estimates)", "Records.step(step)", "Sums.of(wanted)",
    "combine(parts)", "words_text(length)", "words_text(words)",
}  # fmt: skip


def callables():
    """The functions that users call: those of the library, and the methods of its classes."""
    for name, found in public():
        own = {"": found}
        if isinstance(found, type):
            ours = [one for one in found.__mro__ if one.__module__.startswith("streamveil.")]
            all_of = [pair for one in reversed(ours) for pair in vars(one).items()]
            own = {f".{method}": what for method, what in all_of
                   if method == "__init__" or not method.startswith("_")}  # fmt: skip
        for method, what in own.items():
            remembers = hasattr(what, "cache_info")  # a call may not come this far
            what = inspect.unwrap(getattr(what, "__func__", what))
            if inspect.isfunction(what) and not remembers:
                yield name.rpartition(".")[2] + method, what


def seeds():
    """One call of each in the docstrings: its name, what is called, and the arguments it took."""
    known = {what.__code__: (name, what) for name, what in callables()}
    calls = {}

    def watch(frame, event, _):
        if event == "call" and frame.f_code in known:
            callers = [frame.f_back, frame.f_back.f_back]  # or through `fitting`
            if any(one and one.f_code.co_filename.startswith("<doctest") for one in callers):
                calls.setdefault(frame.f_code, dict(frame.f_locals))

    runner = doctest.DocTestRunner(verbose=False)
    modules = sorted({what.__module__ for _, what in callables()})
    for module in map(importlib.import_module, modules):
        for test in doctest.DocTestFinder().find(module):
            sys.setprofile(watch)
            try:
                runner.run(test, out=lambda _: None)
            finally:
                sys.setprofile(None)
    for code, given in calls.items():
        yield *known[code], given


def made(name, what, given):
    """The call of a seed."""
    placed, named = [], {}
    for one in inspect.signature(what).parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            placed += given[one.name]
        elif one.kind is one.VAR_KEYWORD:
            named |= given[one.name]
        elif one.kind is one.KEYWORD_ONLY:
            named[one.name] = given[one.name]
        else:
            placed.append(given[one.name])
    if name.endswith(".__init__"):
        return type(placed[0])(*placed[1:], **named)
    return what(*placed, **named)


def odd(what, given):
    """The arguments of a seed with one of them replaced: which, and all."""
    for one in inspect.signature(what).parameters.values():
        kept = given[one.name]
        ours = type(kept).__module__.startswith("streamveil.") or callable(kept)
        ours |= kept is None and not re.search(PLAIN, str(one.annotation))
        if ours or one.name in ("self", "cls") or one.kind is one.VAR_KEYWORD:
            continue  # an object of ours in the place of another is a matter of types
        for value in ODD:
            put = (value, *kept[1:]) if one.kind is one.VAR_POSITIONAL else value
            yield one.name, {**given, one.name: put}


def raw(calls):
    """Calls whose error is one from inside: "name(argument)"."""
    for name, what, given in calls:
        for argument, changed in odd(what, given):
            try:
                with redirect_stdout(StringIO()):
                    made(name, what, changed)
            except Exception as error:
                if not (isinstance(error, StreamveilError) or "to fix" in str(error)):
                    yield f"{name}({argument})"


def test_no_argument_ends_in_an_error_from_inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = list(seeds())
    assert len(calls) > 150
    assert set(raw(calls)) == LEFT


def planted(count):
    """Takes a number, and says nothing of others."""
    return count + 1


def test_an_error_from_inside_is_found():
    assert set(raw([("planted", planted, {"count": 1})])) == {"planted(count)"}
