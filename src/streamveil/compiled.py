"""Compiled functions: `numba.njit`, whose results may be shipped with the package.

Numba compiles a function when it is first called, which takes 20 seconds for a first query, and
keeps the result for this processor alone. `python -m streamveil.compiled` compiles the functions of
usual queries and of sketches for any processor of a common level and puts them beside the code.
They are used if the processor has that level, and the code, Numba and Python are those that made
them; else Numba compiles as usual. Either way the numbers are the same: no instruction is chosen
that rounds differently, except where a function allows contraction, which both levels have.

Numba itself takes 0.2 s to load. It is loaded when a compiled function is first called, so a
process that calls none never does.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from shutil import rmtree
from threading import RLock
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

HERE = Path(__file__).parent
SHIPPED = HERE / "_kernels"
MAKING = "STREAMVEIL_COMPILES_KERNELS"  # set in the processes that fill `SHIPPED`
LEVELS = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3"}  # machine -> processors shipped for
COMPILING = (
    "compiling for this machine, once: seconds to a minute"
    " (`python -m streamveil.compiled` does it beforehand)"
)
ON_COMPILING: list[Callable[[], None]] = [  # called once, before the first compilation
    lambda: logging.getLogger("streamveil").warning(COMPILING)
]
NEEDED = {  # features of the level
    "x86-64-v3": ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"),
}
LOADING = RLock()  # one thread at a time
Made = TypeVar("Made")


# ---- compiled functions, made when they are first called


class _OnUse:
    """A module of Numba that is loaded when something in it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


numba: Any = _OnUse("numba")
binding: Any = _OnUse("llvmlite.binding")
cgutils: Any = _OnUse("numba.core.cgutils")
ir: Any = _OnUse("llvmlite.ir")
types: Any = _OnUse("numba.types")


class _Later:
    """A compiled function that Numba makes when it is first called or inspected."""

    def __init__(self, function: Callable[..., Any], make: Callable[[Any], Any]) -> None:
        update_wrapper(self, function)
        self._function, self._make, self._made = function, make, None

    def __call__(self, *arguments: Any) -> Any:
        return (self._made or self.made())(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made(), name)

    def made(self) -> Any:
        """The compiled function itself, as Numba calls it."""
        with LOADING:
            if self._made is None:
                self._made = self._make(self._function)
            return self._made


def _show_to_numba(function: Callable[..., Any]) -> None:
    """Replaces the functions that one calls by their compiled forms, so that Numba compiles it."""
    held = function.__globals__
    for name in _names(function.__code__):
        if isinstance(found := held.get(name), _Later):
            held[name] = found.made()


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that a function uses, and the functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def intrinsic(function: Callable[..., Any]) -> Any:
    """`numba.extending.intrinsic`: a machine operation for compiled functions."""
    return _Later(function, lambda function: numba.extending.intrinsic(function))


if TYPE_CHECKING:
    from numba import njit as njit
else:

    def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
        """`numba.njit` with shipped results, where they exist.

        Compiled functions let other threads run Python meanwhile: a release holds up none of them.
        """

        def make(function: Callable[..., Any]) -> Any:
            made = numba.njit(nogil=True, **options)(function)
            if options.get("cache"):
                made._cache = _KernelCache(function)
            else:
                _show_to_numba(function)
            return made

        return lambda function: _Later(function, make)


class _KernelCache:
    """Numba's cache of the results of a function: the shipped ones first, then its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._own = import_module("numba.core.caching").FunctionCache(function)
        self._folder = SHIPPED / function.__module__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The shipped result, else the one in Numba's cache.

        A shipped result holds all that it calls except Numba's memory management, which is started
        here. The registries that Numba fills first (`refresh`, 0.3 s) are for compiling only.
        """
        making = bool(os.environ.get(MAKING))
        if not making and fits():
            with LOADING, _library_modules_unread():
                data = self._shipped().load(self._portable(signature, context.codegen()))
            if data is not None:
                import_module("numba.core.runtime").rtsys.initialize(context)
                return self._rebuilt(context, data)
        with LOADING:
            _show_to_numba(self._function)
        found = None if making else self._own.load_overload(signature, context)
        while found is None and not making and ON_COMPILING:
            ON_COMPILING.pop()()
        return found

    def _rebuilt(self, context: Any, data: tuple[Any, ...]) -> Any:
        """The function; its code for linking is read only when a caller of it is compiled.

        The code that runs is stored apart, so few processes need the code for linking, and reading
        that takes half of the time.
        """
        (name, kind, (code, bitcode)), described, *rest = data
        symbols = {described.llvm_func_name, described.llvm_cpython_wrapper_name}
        context.codegen()._engine._defined_symbols |= symbols  # which Numba finds in `bitcode`
        reduced = (name, kind, (code, no_code())), described, *rest
        made = self._impl.rebuild(context, reduced)
        made.library._get_module_for_linking = cache(lambda: binding.parse_bitcode(bitcode))
        return made

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keeps what was compiled: in Numba's cache, or among the shipped results."""
        if not os.environ.get(MAKING):
            self._own.save_overload(signature, made)
        elif self._impl.check_cachable(made):
            self._folder.mkdir(parents=True, exist_ok=True)
            key, data = self._portable(signature, made.codegen), self._impl.reduce(made)
            with open(SHIPPED / "lock", "w") as lock:  # `main` runs several processes
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._shipped().save(key, data)

    def _shipped(self) -> Any:
        kept = import_module("numba.core.caching").IndexDataCacheFile
        return kept(str(self._folder), self._impl.filename_base, stamp())

    def _portable(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        """The key of a result, with the level in place of this processor."""
        _, _, code = self._index_key(signature, codegen)
        return signature, LEVELS.get(platform.machine()), code


@contextmanager
def _library_modules_unread() -> Iterator[None]:
    """Loads results without importing the modules of Numba's own functions that they hold.

    A result names the module of each function in it. Only Python objects are looked up in the
    globals of that module. Compiled code has none but its constants, which are stored beside the
    name. Numba's modules load Numba's registries and with them scipy's linear algebra (0.3 s of
    CPU).
    """
    environment: Any = import_module("numba.core.environment")

    def rebuilt(module: str, constants: list[Any], name: str) -> Any:
        """As Numba's `_rebuild_env`, with empty globals for modules that are not loaded."""
        found = environment.lookup_environment(name)
        if found is None:
            loaded = vars(sys.modules[module]) if module in sys.modules else {}
            found = environment.Environment(loaded)
            found.consts[:] = constants
            found.env_name = name
            environment.Environment._memo[name] = found
        return found

    kept, environment._rebuild_env = environment._rebuild_env, rebuilt
    try:
        yield
    finally:
        environment._rebuild_env = kept


@cache
def no_code() -> bytes:
    """An empty module."""
    return bytes(binding.parse_assembly("").as_bitcode())


@cache
def fits() -> bool:
    """Whether this processor runs the shipped results, if there are any."""
    level = LEVELS.get(platform.machine())
    if level is None or not SHIPPED.is_dir():
        return False
    has = binding.get_host_cpu_features()
    return all(has.get(name) for name in NEEDED[level])


@cache
def stamp() -> str:
    """A digest of all that results depend on: the modules of compiled functions, and the tools.

    A result holds the functions that it calls, so a change anywhere makes all of them stale. Of
    NumPy it knows the layout of arrays, which is that of all versions with the same first number.
    """
    tools = sys.implementation.cache_tag, numba.__version__, binding.llvm_version_info
    arrays = np.__version__.partition(".")[0]
    digest = hashlib.sha256(f"{tools} {arrays}".encode())
    for path in sorted(HERE.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text:
            digest.update(str(path.relative_to(HERE)).encode() + b"\0" + text)
    return digest.hexdigest()


def made() -> bool:
    """Whether the shipped results were made from this code."""
    mark = SHIPPED / "stamp"
    return mark.is_file() and mark.read_text() == stamp()


# ---- machine operations that plain compiled loops lack

AHEAD = 48  # rows between asking for a slot and reading it


@intrinsic
def _prefetch(context: Any, array: Any, index: Any) -> Any:
    """Asks the processor to load `array[index]`, whatever the index, and does not wait for it.

    A table of all units is far larger than the cache: without prefetching every row waits for
    memory.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        held = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(
            context, builder, kind, held, [arguments[1]], wraparound=False
        )
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        builder.call(function, [builder.bitcast(place, byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def _leading_zeros(context: Any, word: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return word(word), codegen


prefetch: Any = _prefetch  # called with an array and an index
leading_zeros: Any = _leading_zeros  # their number in a word, of the same type; undefined for 0


# ---- several at once


def at_once(calls: Sequence[Callable[[], Made]]) -> list[Made]:
    """The results of calls that share nothing they change, each run in a thread of its own.

    Compiled functions then run in parallel. An error of a call is raised here once all have ended.

    >>> at_once([lambda: 1, lambda: 2])
    [1, 2]
    """
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls) - 1) as threads:
        others = [threads.submit(call) for call in calls[1:]]
        return [calls[0](), *(other.result() for other in others)]


# ---- scipy's functions
#
# `import scipy.special` also loads numpy's tests and Fortran tools and parses pages of
# documentation, 0.15 s of CPU that a first answer would wait for. The functions themselves are in
# one of its modules, which needs none of that. They are the same objects either way.

PACKAGE = "scipy.special"


def _functions() -> Any:
    """The module of the compiled functions; the whole package if scipy is built differently."""
    found = find_spec(PACKAGE)
    if PACKAGE not in sys.modules and found is not None:
        sys.modules[PACKAGE] = module_from_spec(found)  # the folder, whose own code is not run
        try:
            return import_module(f"{PACKAGE}._ufuncs")
        except ImportError:
            pass
        finally:
            del sys.modules[PACKAGE]
    return import_module(PACKAGE)


_found = _functions()
bdtrc: Any = _found.bdtrc
erf: Any = _found.erf
erfc: Any = _found.erfc
erfcx: Any = _found.erfcx
gammainc: Any = _found.gammainc
gammaincinv: Any = _found.gammaincinv
log_ndtr: Any = _found.log_ndtr
ndtr: Any = _found.ndtr
ndtri: Any = _found.ndtri
ndtri_exp: Any = _found.ndtri_exp


# ---- compiling what is shipped

QUERY = """
import sys, tempfile
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import streamveil as sv
from streamveil.advise.tune import tune
from streamveil.core.noise import KeyedNoise
from streamveil.core.noise.samplers.inverse import discrete_laplace
from streamveil.dynamic.records import Records
from streamveil.runtime.run import Pace

rng, n = np.random.default_rng(0), 60_000
days = 1_767_225_600_000_000 + np.sort(rng.integers(0, 86_400_000_000, n))
pages = np.array(["/a", "/b", "/c"])[rng.integers(0, 3, n)]
pages[: n // 4] = "/a"  # one group is another layout of arrays
rows = pa.table({"ts": pa.array(days, pa.timestamp("us", "UTC")), "user_id": np.arange(n) % 12_000,
                 "name": pa.array(np.char.add("u", (np.arange(n) % 12_000).astype(str))),
                 "url": pages, "number": rng.integers(0, 40, n), "ms": rng.integers(0, 60_000, n)})
budget = sv.Budget(epsilon=4, delta="1e-7")
end = {"start": "2026-01-01", "end": "2026-01-02"}

discovered = {"keys": sv.discover(min_units=20)}

with tempfile.TemporaryDirectory() as folder:
    pq.write_table(rows, folder + "/rows.parquet")
    read = sv.files(folder + "/rows.parquet", event_time="ts"), sv.memory(rows, event_time="ts")
    for turn, (source, unit) in enumerate((s, u) for s in read for u in ("user_id", "name")):
        for keys in (("url",), ("number",), ("url", "number")):
            query = source.protect(unit=unit).group_by(*keys)
            query = query.agg(n=sv.count(), ms=sv.sum("ms", bounds=(0, 60_000)))
            bounded = query.bound(max_rows=8)
            for place, asked in enumerate((
                bounded.release(budget=budget), query.release(budget=budget),
                bounded.release(every="6 hours", budget=budget, **end),
            )):
                list(asked.run(state=f"{folder}/{turn}{len(keys)}{keys[0]}{place}"))
        daily = source.protect(unit=unit, per="1 day").window(sv.tumble("1 day"))
        for place, keys in enumerate(({}, discovered)):
            query = daily.group_by("url", **keys).agg(n=sv.count(), ms=sv.sum("ms", bounds=(0, 9)))
            query = query.bound(max_rows=2, max_rows_per_group=1)
            asked = query.release(every="1 hour", budget=budget, **end)
            list(asked.run(state=f"{folder}/daily{turn}{place}"))
        query = source.protect(unit=unit).group_by("url", **discovered)
        query = query.agg(half=sv.median("ms", bounds=(0, 60_000)))
        query = query.bound(max_rows=1)
        list(query.release(every="6 hours", budget=budget, **end).run(state=f"{folder}/half{turn}"))
    many = rows.append_column("unit", pa.array(np.arange(n) % 40_000))
    many = many.append_column("wide", pa.array(np.arange(n) % 9_000))
    query = sv.memory(many).protect(unit="unit").group_by("wide").agg(n=sv.count())
    counted = query.bound(max_rows=4).release(budget=budget)
    list(counted.run(state=folder + "/many", pace=Pace(threads=2)))
    plain = read[0].protect(unit="user_id").group_by("number").agg(n=sv.count())
    list(plain.release(every="6 hours", budget=budget, **end).run(state=folder + "/plain"))
    mean = sv.memory(rows).protect(unit="user_id").agg(ms=sv.avg("ms"))  # bounds are chosen
    list(mean.release(budget=budget).run(state=folder + "/mean"))
    public = read[0].protect(unit="user_id").group_by("number", keys=sv.public([*range(40)]))
    for place, asked in enumerate((sv.count(), sv.median("ms", bounds=(0, 60_000)))):
        query = public.agg(n=asked).bound(max_rows=4)
        query = query.release(every="6 minutes", budget=budget, **end)
        list(query.run(state=f"{folder}/public{place}"))
    query = read[0].protect(unit="user_id").window(sv.hop("12 hours", "6 hours"))  # rows twice
    query = query.group_by("number").agg(n=sv.count()).bound(max_rows=8)
    list(query.release(every="6 hours", budget=budget, **end).run(state=folder + "/twice"))
    discrete_laplace(KeyedNoise.fresh().at("compiled"), 3, 9)
    for matching in ("ids", "labels"):
        book, some = Records(matching=matching, domain=4, counts_no_ops=False), np.arange(n)
        book.step(book.init(), np.ones(n, np.int64), some, some % 4, step=0)
    one = sv.memory(rows.append_column("one", pa.array(np.zeros(n, int))), event_time="ts")
    for place, how in enumerate((discovered, {})):
        query = one.protect(unit="user_id").group_by("one", **how).agg(n=sv.count())
        query = query.bound(max_rows=2).release(every="6 hours", budget=budget, **end)
        list(query.run(state=f"{folder}/one{place}"))
    for column, size in (("number", {}), ("url", {"text_length": 2})):
        query = sv.memory(rows).protect(unit="user_id")
        query = query.agg(a=sv.heavy_hitters(column, k=3, **size)).bound(max_rows=1)
        list(query.release(budget=budget).run(state=f"{folder}/{column}"))
    tune(counted.plan, rows.rename_columns(["ts", "unit", "name", "url", "wide", "ms"]))
"""

SKETCHES = """
import numpy as np
import streamveil as sv
from streamveil.core.accounting import Neighbours
from streamveil.dataflow.release_kernels import plain_cells
from streamveil.sketches import HeavyTexts, LazySketch
from streamveil.sketches.keys import mix_large

some = {"budget": sv.Budget(epsilon=1, delta="1e-9"), "seed": 1,
        "protects": Neighbours("user", bound=1, relation="event")}
for clock in ("arrivals", "ticks"):
    for horizon, each in ((1_000, 10), (2**17, 2**16), (None, 10)):  # cells of 16, 32 and 64 bits
        sketch = LazySketch(kind="count-sketch", depth=2, width=64, horizon=horizon, round=each,
                            clock=clock, flushes=1, **some)
        live = sketch.open()
        live.update(np.arange(100))
        live.update(np.arange(100), np.ones(100, np.int64))
        if clock == "ticks":
            live.tick()
        live.flush()
        live.published().estimate(np.arange(9))
texts = HeavyTexts(length=2, width=64, horizon=1_000, **some).open()
texts.update(["a", "ab", "long" * 9], np.ones(3, np.int64))
mix_large(np.frombuffer(b"8 bytes.", np.uint64))  # of a file
plain_cells(np.zeros(1), np.ones(1), np.zeros(1, np.int32), 2.0, 0.0, 0.0, False,
            np.empty(1), np.empty((3, 1)))  # a total that is no integer
"""


def main() -> int:
    """Compiles the functions of usual queries and sketches into the package; prints progress."""
    level = LEVELS.get(platform.machine())
    if made() and "--again" not in sys.argv:
        return 0
    if level is None:
        print(f"nothing to do: no processors of kind {platform.machine()} are shipped for")  # noqa: T201
        return 0
    print(f"compiling for {level}, once: one to two minutes", flush=True)  # noqa: T201
    rmtree(SHIPPED, ignore_errors=True)
    everything = {"STREAMVEIL_CACHE": "off"}  # else searches with a kept result would not run
    here = {**os.environ, **everything, MAKING: "1",
            "NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ""}  # fmt: skip

    def run(text: str, where: dict[str, str] | None) -> int:
        command = [sys.executable, "-W", "ignore", "-c", text]
        return subprocess.run(command, env=where, check=False).returncode  # noqa: S603

    for where in (here, None):  # the new results are loaded and run before anybody else does
        failed = max(at_once([partial(run, text, where) for text in (QUERY, SKETCHES)]), key=abs)
        if failed:
            break
    if not failed:
        (SHIPPED / "lock").unlink()
        (SHIPPED / "stamp").write_text(stamp())
    else:
        rmtree(SHIPPED, ignore_errors=True)
        print("what was compiled does not run here: Numba compiles when it is needed")  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(main())
