"""The keyed source's AES-256-CTR words, produced inside compiled loops and at any position.

`Draws.words` of the keyed source is AES-256 in counter mode from counter zero. A sketch needs that
stream at random positions, millions of times a second, so the cipher runs here: with the vector AES
instructions when the processor has them, else with a table. Compiled code holds all three, so it
may be shipped; a schedule says which one runs, a public fact of the processor that made it. All
give the same words, and tests compare them with OpenSSL. A second domain of counters (highest bit
set) holds the rarely needed low half of each draw.

Proof: a counter block is used for one purpose only: its highest bit names the domain and the rest
    is a position that the caller uses once. Distinct blocks under one key are a keystream.
"""

from __future__ import annotations

import platform
from typing import Any, TypeAlias

import numpy as np

from streamveil.compiled import binding, intrinsic, ir, njit, types
from streamveil.core.noise import Draws
from streamveil.errors import PlanError
from streamveil.types import Array, UInt32, UInt64

ROUNDS = 14
GROUP = 64  # words made together: 32 blocks, eight 512-bit registers
LOW_DOMAIN = np.uint64(0x80)  # first eight bytes of a counter block in the second domain
_FEATURES = binding.get_host_cpu_features()
NEEDS = {8: ("aes", "vaes", "avx512f", "avx512bw"), 2: ("aes",)}  # by lanes of a register
WIDE, NARROW = (all(_FEATURES.get(name) for name in NEEDS[lanes]) for lanes in (8, 2))
TABLE_ONLY, NARROW_AES, WIDE_AES = np.uint64(0), np.uint64(1), np.uint64(2)  # in a schedule
HOW = WIDE_AES if WIDE else NARROW_AES if NARROW else TABLE_ONLY
Schedule: TypeAlias = UInt64[Array, "16 8"]
Words: TypeAlias = UInt32[Array, " words"]
Pair: TypeAlias = UInt64[Array, " 2"]


def _multiply(a: int, b: int) -> int:
    """Product in the field of 256 elements of AES."""
    total = 0
    while b:
        total ^= a * (b & 1)
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return total


def _substitution() -> list[int]:
    """The S-box of AES, from its definition: inverse, then an affine map."""
    box = []
    for value in range(256):
        inverse = next((x for x in range(256) if _multiply(value, x) == 1), 0)
        turned = inverse * 0x0101
        bits = inverse ^ (turned >> 7) ^ (turned >> 6) ^ (turned >> 5) ^ (turned >> 4)
        box.append((bits & 0xFF) ^ 0x63)
    return box


SBOX = np.array(_substitution(), np.uint8)


def key_schedule(draws: Draws) -> Schedule:
    """The round keys of one address, each four times over (a 512-bit register). Secret.

    The last row says which instructions this processor has. Silent draws give an empty schedule,
    which stands for no noise.
    """
    if draws.silent:
        return np.zeros((0, 8), np.uint64)
    subkey = getattr(draws, "subkey", None)
    if not isinstance(subkey, bytes) or len(subkey) != 32:
        raise PlanError("sketches draw from KeyedNoise, SeededNoise or SilentNoise only")
    words = [list(subkey[4 * i : 4 * i + 4]) for i in range(8)]
    constant = 1
    for i in range(8, 4 * (ROUNDS + 1)):
        last = list(words[-1])
        if i % 8 == 0:
            last = [int(SBOX[x]) for x in [*last[1:], last[0]]]
            last[0] ^= constant
            constant = _multiply(constant, 2)
        elif i % 8 == 4:
            last = [int(SBOX[x]) for x in last]
        words.append([x ^ y for x, y in zip(last, words[i - 8], strict=True)])
    flat = np.array(words, np.uint8).reshape(ROUNDS + 1, 16)
    keys = np.ascontiguousarray(np.tile(flat, (1, 4))).view(np.uint64)
    return np.concatenate([keys, np.full((1, keys.shape[1]), HOW)])


def _emit(builder: Any, lanes: int, args: Any) -> None:
    """AES-CTR on `registers` vectors of `lanes` 64-bit lanes (two per block)."""
    keys, high, block, out, registers = args
    wanted = ",".join(f"+{name}" for name in NEEDS[lanes])  # for this function, on any target
    set.add(builder.function.attributes, f'"target-features"="{wanted}"')
    vector, places = (ir.VectorType(ir.IntType(bits), lanes) for bits in (64, 32))
    suffix = ".512" if lanes == 8 else ""
    pointer = vector.as_pointer()
    kinds = [ir.FunctionType(vector, [vector, vector])] * 2
    step, last = (
        builder.module.declare_intrinsic(f"llvm.x86.aesni.{name}{suffix}", fnty=kind)
        for name, kind in zip(("aesenc", "aesenclast"), kinds, strict=True)
    )
    turned = ir.FunctionType(vector, [vector])
    swap = builder.module.declare_intrinsic(f"llvm.bswap.v{lanes}i64", fnty=turned)

    def splat(value: Any) -> Any:
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
        zeros = ir.Constant(places, [0] * lanes)
        return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

    base, top = splat(block), splat(high)
    pick = ir.Constant(places, [i if i % 2 else lanes + i for i in range(lanes)])
    states = []
    for r in range(registers):
        offsets = ir.Constant(vector, [(r * lanes + i) // 2 for i in range(lanes)])
        states.append(
            builder.shuffle_vector(builder.call(swap, [builder.add(base, offsets)]), top, pick)
        )
    address = builder.inttoptr(keys, ir.IntType(8).as_pointer())
    for number in range(ROUNDS + 1):
        place = builder.gep(address, [ir.IntType(64)(64 * number)])
        key = builder.load(builder.bitcast(place, pointer), align=8)
        if number == 0:
            states = [builder.xor(state, key) for state in states]
        else:
            cipher = last if number == ROUNDS else step
            states = [builder.call(cipher, [state, key]) for state in states]
    target = builder.inttoptr(out, ir.IntType(8).as_pointer())
    for r, state in enumerate(states):
        place = builder.gep(target, [ir.IntType(64)(8 * lanes * r)])
        builder.store(state, builder.bitcast(place, pointer), align=8)


def _made_by(lanes: int, registers: int) -> Any:
    """The intrinsic that makes at most a group of words, with vectors of `lanes`."""

    @intrinsic
    def some(context: Any, keys: Any, high: Any, block: Any, out: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            _emit(builder, lanes, (*args, registers))

        return types.void(types.intp, types.uint64, types.uint64, types.intp), codegen

    return some


_group_wide, _group_narrow, _one_narrow = _made_by(8, GROUP // 8), _made_by(2, 8), _made_by(2, 1)


@njit(cache=True)
def _one_soft(keys: Schedule, high: np.uint64, block: np.uint64, out: Pair) -> None:  # noqa: C901
    state, mixed = np.empty(16, np.uint8), np.empty(16, np.uint8)
    for i in range(8):
        state[i] = np.uint8((high >> np.uint64(8 * i)) & np.uint64(255))
        state[8 + i] = np.uint8((block >> np.uint64(56 - 8 * i)) & np.uint64(255))
    for number in range(ROUNDS + 1):
        if number:
            for i in range(16):  # rows shift: byte r of column c comes from column c + r
                mixed[i] = SBOX[state[(i + 4 * (i % 4)) % 16]]
            for i in range(16):
                state[i] = mixed[i]
        if 0 < number < ROUNDS:
            for c in range(0, 16, 4):
                for r in range(4):
                    x, y = mixed[c + r], mixed[c + (r + 1) % 4]
                    double_x = np.uint8((x << 1) ^ (0x1B if x & 0x80 else 0))
                    double_y = np.uint8((y << 1) ^ (0x1B if y & 0x80 else 0))
                    rest = mixed[c + (r + 2) % 4] ^ mixed[c + (r + 3) % 4]
                    state[c + r] = double_x ^ double_y ^ y ^ rest
        for i in range(16):
            state[i] ^= np.uint8((keys[number, i // 8] >> np.uint64(8 * (i % 8))) & np.uint64(255))
    for half in range(2):
        word = np.uint64(0)
        for i in range(8):
            word |= np.uint64(state[8 * half + i]) << np.uint64(8 * i)
        out[half] = word


@njit(cache=True)
def fill_soft(keys: Schedule, block: int, out: Words, groups: int) -> None:
    """`fill` without AES instructions."""
    two = np.empty(2, np.uint64)
    for i in range(groups * GROUP // 2):
        _one_soft(keys, np.uint64(0), np.uint64(block + i), two)
        for half in range(2):
            out[4 * i + 2 * half] = np.uint32(two[half] & np.uint64(0xFFFFFFFF))
            out[4 * i + 2 * half + 1] = np.uint32(two[half] >> np.uint64(32))


@njit(cache=True)
def fill_narrow(keys: Schedule, block: int, out: Words, groups: int) -> None:
    """`fill` with 128-bit AES instructions."""
    source, target = keys.ctypes.data, out.ctypes.data
    for i in range(groups * GROUP // 16):
        _group_narrow(source, np.uint64(0), np.uint64(block + 8 * i), target + 128 * i)


@njit(cache=True)
def fill_wide(keys: Schedule, block: int, out: Words, groups: int) -> None:
    """`fill` with 512-bit AES instructions."""
    source, target = keys.ctypes.data, out.ctypes.data
    for i in range(groups):
        at = np.uint64(block + 32 * i)
        _group_wide(source, np.uint64(0), at, target + 8 * GROUP * i)


@njit(cache=True)
def one_narrow(keys: Schedule, high: np.uint64, block: np.uint64, out: Pair) -> None:
    """One block with AES instructions."""
    _one_narrow(keys.ctypes.data, high, block, out.ctypes.data)


@njit(cache=True)
def _fill_any(keys: Schedule, block: int, out: Words, groups: int) -> None:
    """Groups of words from counter `block` on, as halves, the lower half first."""
    how = keys[ROUNDS + 1, 0]
    if how == WIDE_AES:
        fill_wide(keys, block, out, groups)
    elif how == NARROW_AES:
        fill_narrow(keys, block, out, groups)
    else:
        fill_soft(keys, block, out, groups)


@njit(cache=True)
def _one_of_any(keys: Schedule, high: np.uint64, block: np.uint64, out: Pair) -> None:
    """The two words of one counter block."""
    if keys[ROUNDS + 1, 0] == TABLE_ONLY:
        _one_soft(keys, high, block, out)
    else:
        one_narrow(keys, high, block, out)


X86 = platform.machine() in ("x86_64", "AMD64")  # other machines lack these instructions
fill, one_block = (_fill_any, _one_of_any) if X86 else (fill_soft, _one_soft)
