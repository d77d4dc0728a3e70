"""Exact noise at addresses: a secret key and an address always give the same words.

A draw is named by an address: a purpose and a path of integers or byte strings, for example
`noise.at("blt", window, step)`. The address is hashed under the job's secret to a 256-bit AES key,
so addresses are separated by a pseudo-random function. Under one address there are two keystreams:

- `words(n)`: n 64-bit words of AES-256-CTR;
- `words_for(ids, n)`: n words for each 128-bit id (AES-256-ECB of id-tweaked blocks), so that the
  noise of a key depends on the key and never on which other keys are present or their order.

A replay after a crash asks for the same addresses and gets the same words. Drawing twice at one
address for *different* data would reveal their difference. So mechanisms are not given draws but a
`Place`, which hands out each address once; they name their steps in it themselves. A new `Place` at
an old address is a replay: whoever makes one must choose a unique path (job epoch, window, key) and
commit the data before anything is published. What the library opens for its users, `Place.opened`,
has a random part in its address.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from threading import RLock
from typing import Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from streamveil.errors import PlanError, ReusedNoiseError, StoreError, UncopiedNoiseError, whole
from streamveil.types import Array, UInt64

SECRET_BYTES = 32
ONCE_BYTES = 16  # at the end of an opened address: of 2^32, two are equal with chance 2^-64
CHUNK = 4096  # ids or words per call of the cipher: fits into the first cache
ZEROS = bytes(8 * CHUNK)


@runtime_checkable
class Draws(Protocol):
    """Random words at one address."""

    @property
    def silent(self) -> bool:
        """True when samplers must return their centre unchanged (tests only)."""

    def words(self, n: int, start: int = 0) -> UInt64[Array, " n"]:
        """Returns `n` words from an even place on: always the same words of this address."""

    def words_for(self, ids: UInt64[Array, "keys 2"], n: int) -> UInt64[Array, "keys n"]:
        """Returns `n` words for every id, which depend on the address and that id alone."""

    def at(self, purpose: str, *path: int | bytes) -> Draws:
        """Draws at an address below this one, independent of this one's words."""


@runtime_checkable
class Noise(Protocol):
    """A source of randomness. Only `KeyedNoise` may run in a job; others need insecure=True."""

    @property
    def secure(self) -> bool:
        """Whether a job may publish with it."""

    def at(self, purpose: str, *path: int | bytes) -> Draws:
        """The draws that belong to one address."""

    def derive(self, purpose: str) -> bytes:
        """A 32-byte key for another use (fingerprints), separate from all noise."""


@dataclass(frozen=True, repr=False)  # secret
class Address:
    """Where a window's noise lives: every draw adds its trigger."""

    noise: Noise
    job: bytes
    window: int


@dataclass(frozen=True, repr=False)  # secret
class KeyedDraws:
    """AES-256 keystreams under a subkey.

    `words` is AES in counter mode; `words_for` is AES itself as a pseudo-random permutation of
    ids, which a distinguisher tells from random functions with advantage n^2 / 2^129 for n blocks.
    """

    subkey: bytes

    @property
    def silent(self) -> bool:
        """See `Draws.silent`."""
        return False

    def words(self, n: int, start: int = 0) -> UInt64[Array, " n"]:
        """See `Draws.words`."""
        if start % 2:
            raise PlanError(f"start must be even, a block being two words, not {start}")
        counter = (start // 2).to_bytes(16, "big")
        encryptor = Cipher(algorithms.AES256(self.subkey), modes.CTR(counter)).encryptor()
        out = np.empty(n + 2, "<u8")  # the cipher asks for 15 spare bytes
        for at in range(0, n, CHUNK):
            size = min(CHUNK, n - at)
            encryptor.update_into(ZEROS[: 8 * size], as_bytes(out[at:]))
        return out[:n]

    def words_for(self, ids: UInt64[Array, "keys 2"], n: int) -> UInt64[Array, "keys n"]:
        """See `Draws.words_for`.

        The first pair is the id encrypted; for the others, numbers counting up from the id
        encrypted under a second subkey are encrypted under a third.
        """
        flat = as_ids(ids)
        rest = (n + 1) // 2 - 1  # pairs after the first
        first, *more = (self._encryptor(use) for use in range(3 if rest > 0 else 1))
        out = np.empty((len(flat) + (not rest), 2 * rest + 2), "<u8")  # 15 spare bytes for ECB
        if not rest:
            first.update_into(as_bytes(flat), as_bytes(out))
            return out[: len(flat), :n]
        step = max(1, CHUNK // (rest + 1))
        scratch = np.empty((step * rest + 1, 2), "<u8")
        for start in range(0, len(flat), step):
            ids_here = as_bytes(flat[start : start + step])
            here, (nonce, further) = out[start : start + step], more
            first.update_into(ids_here, as_bytes(scratch))
            here[:, :2] = scratch[: len(here)]
            nonce.update_into(ids_here, as_bytes(scratch))
            blocks = np.repeat(scratch[: len(here), None], rest, axis=1)
            blocks[:, :, 0] += np.arange(rest, dtype=np.uint64)
            further.update_into(as_bytes(blocks), as_bytes(scratch))
            here[:, 2:] = scratch[: len(here) * rest].reshape(len(here), -1)
        return out[: len(flat), :n]

    def at(self, purpose: str, *path: int | bytes) -> KeyedDraws:
        """See `Draws.at`."""
        address = encode_address(b"", purpose, *path)
        return KeyedDraws(
            hashlib.blake2b(
                address, key=self.subkey, digest_size=32, person=b"streamveil/below"
            ).digest()
        )

    def _encryptor(self, use: int) -> CipherContext:
        key = hashlib.blake2b(struct.pack("<q", use), key=self.subkey, digest_size=32).digest()
        # one block per id, ids distinct: ECB is the block cipher itself, used as a PRF
        return Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305


def as_bytes(words: UInt64[Array, ...]) -> memoryview:
    """The memory of contiguous words."""
    return memoryview(words.reshape(-1)).cast("B")  # type: ignore[arg-type]  # arrays are buffers


def as_ids(ids: UInt64[Array, "keys 2"]) -> UInt64[Array, "keys 2"]:
    """Contiguous little-endian ids; anything but pairs of 64-bit integers is refused."""
    if ids.ndim != 2 or ids.shape[1] != 2 or ids.dtype.kind not in "iu" or ids.itemsize != 8:
        raise PlanError(f"ids must be uint64[keys, 2], not {ids.dtype}{list(ids.shape)}")
    return np.ascontiguousarray(ids.view("u8") if ids.dtype.kind == "i" else ids, "<u8")


@dataclass(frozen=True, repr=False)  # secret
class KeyedNoise:
    """Noise under a secret key. The epoch separates runs that share a secret.

    >>> noise = KeyedNoise.fresh()
    >>> bool((noise.at("demo", 1).words(4) == noise.at("demo", 1).words(4)).all())
    True
    >>> bool((noise.at("demo", 1).words(4) == noise.at("demo", 2).words(4)).any())
    False
    """

    secret: bytes
    epoch: bytes = b""
    secure: bool = True

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise PlanError(f"secret must be {SECRET_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def fresh(cls) -> KeyedNoise:
        """A new secret from the operating system."""
        return cls(os.urandom(SECRET_BYTES))

    def at(self, purpose: str, *path: int | bytes) -> KeyedDraws:
        """See `Noise.at`. Every part is length-prefixed, so no two addresses collide."""
        return KeyedDraws(
            hashlib.blake2b(
                encode_address(self.epoch, purpose, *path),
                key=self.secret,
                digest_size=32,
                person=b"streamveil/noise",
            ).digest()
        )

    def derive(self, purpose: str) -> bytes:
        """A 32-byte key for another use (fingerprints, shuffles), separate from all noise."""
        return hashlib.blake2b(
            encode_address(self.epoch, purpose),
            key=self.secret,
            digest_size=32,
            person=b"streamveil/other",
        ).digest()


class DrawnOnce:
    """The addresses that were given out, each once, to the threads of one process.

    A copy would give them out again, for other data. So it refuses to be copied, and to be used in
    a process that was forked later.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int | bytes, ...], object] = {}
        self._turn, self._process = RLock(), os.getpid()

    def is_new(self, address: tuple[int | bytes, ...]) -> bool:
        """Whether this address is new; of two threads that ask at once, only one gets True."""
        with self.turn():
            return self._known.setdefault(address, mine := object()) is mine

    def turn(self) -> RLock:
        """A lock that threads take in turn; refused to a process that was forked."""
        if os.getpid() != self._process:
            raise UncopiedNoiseError
        return self._turn

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise UncopiedNoiseError


@dataclass(frozen=True)
class Place:
    """Where a mechanism draws its noise: each address at and below it, once.

    A place and all places inside it share a memory of what was handed out. An address asked for
    again is refused: two releases with the same noise reveal the difference of their data. So a
    place belongs to one process, and cannot be copied or pickled, nor can what draws there.

    Raises:
        ReusedNoiseError: an address was drawn from before.
        UncopiedNoiseError: it is copied, or used by a process that was forked.
        StoreError: a state to restore was saved under another kind of noise.
        PlanError: it is opened with what is no `Noise`.

    >>> place = Place(SeededNoise(1), "doc")
    >>> _ = place.draws(1), place.inside(2).draws(1)
    >>> place.inside(2).draws(1)
    Traceback (most recent call last):
    ...
    streamveil.errors.ReusedNoiseError: the noise at address doc/2/1 was drawn before: ...
    """

    noise: Noise
    purpose: str  # keeps what is drawn here apart from all else under the key
    path: tuple[int | bytes, ...] = ()  # below the purpose: run, column, step
    drawn: DrawnOnce = field(default_factory=DrawnOnce, compare=False, repr=False)

    @classmethod
    def opened(cls, noise: Noise, purpose: str, *path: int | bytes) -> Place:
        """A place that nobody else has: under secure noise its address ends in 16 random bytes.

        Args:
            noise: where draws come from.
            purpose: what is drawn, a name of ours.
            *path: numbers and bytes of the address.
        """
        once = os.urandom(ONCE_BYTES) if getattr(noise, "secure", False) else b""
        return cls.reopened(once, noise, purpose, *path)

    @classmethod
    def reopened(cls, once: bytes, noise: Noise, purpose: str, *path: int | bytes) -> Place:
        """The place that was opened with this `once`, to go on with what was saved.

        Args:
            once: 16 bytes of `opened` under secure noise, else none.
            noise: as it was opened with.
            purpose: as it was opened with.
            *path: as it was opened with.

        Raises:
            PlanError: the noise is no `Noise`.
            StoreError: it was opened under another kind of noise.
        """
        if not isinstance(noise, Noise):
            raise PlanError(f"noise must be such as KeyedNoise.fresh(), not {type(noise).__name__}")
        if len(once) != (ONCE_BYTES if noise.secure else 0):
            raise StoreError(
                "this state was saved under another kind of noise: it does not hold the address"
                " its noise was drawn at.\n"
                "  to fix  resume it with the noise it was opened with"
            )
        return cls(noise, purpose, (*path, once) if once else path)

    @property
    def once(self) -> bytes:
        """The random end of an opened place's address: to be saved; no secret."""
        return bytes(self.path[-1]) if self.noise.secure else b""

    def again(self) -> Place:
        """The same place without its memory: for replays, and callers that count their steps."""
        return Place(self.noise, self.purpose, self.path)

    def inside(self, *more: int | bytes) -> Place:
        """A place below this one.

        Args:
            *more: numbers and bytes behind this address.
        """
        return Place(self.noise, self.purpose, (*self.path, *more), self.drawn)

    def draws(self, *more: int | bytes) -> Draws:
        """The draws of one release. An address is given once.

        Args:
            *more: numbers and bytes behind this address.

        Raises:
            ReusedNoiseError: draws were given at this address before.
        """
        return self._given(self.noise.at(self.purpose, *self.path, *more), *more)

    def lasting(self, *more: int | bytes) -> Draws:
        """The draws of the place itself, for a release that computes its noise from `more` below.

        Keyed counters do: step t of theirs is a function of the same draws and of t.
        """
        return self._given(self.noise.at(self.purpose, *self.path), *more)

    def _given(self, draws: Draws, *more: int | bytes) -> Draws:
        address = (*self.path, *more)
        if not (draws.silent or self.drawn.is_new(address)):
            raise ReusedNoiseError(self.purpose, address)
        return draws


ADDRESS, MADE_BY = "address", "made_by"  # among saved arrays


def saved_once(place: Place, owner: object) -> dict[str, Array]:
    """The arrays to save with a state: the random end of its place, and its owner's settings."""
    made = np.frombuffer(repr(owner).encode(), np.uint8)
    return {ADDRESS: np.frombuffer(place.once, np.uint8), MADE_BY: made}


def once_of(saved: Mapping[str, Array], owner: object) -> bytes:
    """The address that `saved_once` kept; StoreError where the settings were others.

    Under other settings the same draws would tell totals apart.
    """
    made = saved.get(MADE_BY, np.zeros(0)).astype(np.uint8).tobytes().decode()
    if made != repr(owner):
        raise StoreError(
            f"this has other settings than {owner!r}, or none.\n"
            f"  to fix  resume it with {made or 'what saved it'}"
        )
    return saved[ADDRESS].astype(np.uint8).tobytes()


def require_place(place: Place) -> Place:
    """The place; refuses draws, because a mechanism names its steps itself."""
    if not isinstance(place, Place):
        raise PlanError(
            f"noise must be a Place, not {type(place).__name__}: the same draws at two steps would"
            " reveal what came between them.\n"
            "  to fix  let the library own the noise (counter.stream(...)), or pass"
            " Place(noise, purpose), the same at every step"
        )
    return place


def SeededNoise(seed: int) -> KeyedNoise:  # noqa: N802  (reads as a kind of noise)
    """Reproducible noise for tests, documentation and benchmarks; a job refuses it.

    >>> int(SeededNoise(1).at("doc").words(1)[0])
    14220731111514320925
    """
    text = b"insecure seed %d" % whole("seed", seed)
    return KeyedNoise(hashlib.blake2b(text, digest_size=32).digest(), secure=False)


@dataclass(frozen=True)
class SilentDraws:
    """Zeros, and a mark that tells samplers to return their centre."""

    silent: bool = True

    def words(self, n: int, start: int = 0) -> UInt64[Array, " n"]:
        """Zeros."""
        return np.zeros(n, np.uint64)

    def words_for(self, ids: UInt64[Array, "keys 2"], n: int) -> UInt64[Array, "keys n"]:
        """Zeros."""
        return np.zeros((len(ids), n), np.uint64)

    def at(self, purpose: str, *path: int | bytes) -> SilentDraws:
        """Silence."""
        return self


@dataclass(frozen=True)
class SilentNoise:
    """No noise at all: exact arithmetic for tests. A job refuses it."""

    secure: bool = field(default=False, init=False)

    def at(self, purpose: str, *path: int | bytes) -> SilentDraws:
        """Silence."""
        return SilentDraws()

    def derive(self, purpose: str) -> bytes:
        """A fixed key: fingerprints stay well mixed in tests."""
        return hashlib.blake2b(purpose.encode(), digest_size=32).digest()


def encode_address(epoch: bytes, purpose: str, *path: int | bytes) -> bytes:
    """An injective encoding of (epoch, purpose, path): every part carries its type and length.

    >>> encode_address(b"", "p", 1) == encode_address(b"", "p", np.int64(1))
    True
    >>> encode_address(b"", "p", 1, 2) == encode_address(b"", "p", 12)
    False
    """
    parts = [b"b" + epoch, b"b" + purpose.encode(), *map(encode_part, path)]
    return b"".join([len(part).to_bytes(4, "little") + part for part in parts])


def encode_part(part: int | bytes) -> bytes:
    """One part of a path with its type; numpy integers count as integers."""
    if isinstance(part, bytes):
        return b"b" + part
    try:
        return b"i%d" % index(part)
    except TypeError:
        raise PlanError(
            f"an address is made of integers and bytes, not {type(part).__name__}"
        ) from None
