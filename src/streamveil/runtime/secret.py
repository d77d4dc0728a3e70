"""The job's secret, 32 bytes that every noise draw and fingerprint depend on, and its noise.

Kept in a file of its own (mode 0600), or never stored at all: given by the caller, an environment
variable or a command. It never appears in the log, in a checkpoint, in a message or in a repr.

`Randomness` is the noise that a job draws: keyed by the secret and the epoch of its state.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess  # the user's own key command, no shell
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeGuard

from streamveil import disk
from streamveil.core.noise import SECRET_BYTES, KeyedNoise, Noise
from streamveil.disk import crash_only
from streamveil.errors import NoiseWarning, PlanError, StoreError, warn
from streamveil.runtime import store as stores

ENVIRONMENT = "STREAMVEIL_SECRET"
COMMAND_SECONDS = 60


def given(secret: bytes | str | None) -> bytes | None:
    """The secret from where the caller says it is, or None when the state directory keeps it.

    `secret` is the 32 bytes themselves, 64 hexadecimal digits, 'env:NAME', 'command:PROGRAM ARGS'
    or 'file:PATH'. Without it, the environment variable STREAMVEIL_SECRET is used when it is set.
    """
    if secret is None:
        text = os.environ.get(ENVIRONMENT)
        return None if text is None else parse(text, f"the environment variable {ENVIRONMENT}")
    if isinstance(secret, bytes):
        return require_size(secret, "the secret")
    kind, _, rest = secret.partition(":")
    match kind:
        case "env":
            if rest not in os.environ:
                raise StoreError(f"the secret is to come from env:{rest}, which is not set")
            return parse(os.environ[rest], f"the environment variable {rest}")
        case "command":
            return parse(output(rest), "the output of the secret command")
        case "file":
            path = Path(rest).expanduser()
            if not path.is_file():
                raise StoreError(f"the secret is to come from file:{rest}, which is not a file")
            return read(path)
        case _:
            return parse(secret, "a secret without env:, command: or file: before it")


def create(directory: Path) -> bytes:
    """A new secret from the operating system, durable in the directory before it is used."""
    secret = KeyedNoise.fresh().secret
    disk.create(directory / stores.SECRET, [memoryview(secret.hex().encode() + b"\n")])
    return secret


def kept(directory: Path) -> bytes:
    """The secret that the state directory keeps."""
    path = directory / stores.SECRET
    if not path.exists():
        raise StoreError(
            f"the state directory '{directory.name}' does not hold its secret.\n"
            "  to fix  give the secret it was created with, or was last given by `rekey` (--secret,"
            f" secret=..., or {ENVIRONMENT}); without it the same noise cannot be drawn again and"
            " the job must not go on"
        )
    return read(path)


def read(path: Path) -> bytes:
    """A secret file, which nobody but its owner may read."""
    with crash_only("read", path):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise StoreError(
            f"the secret file '{path.name}' can be read by others (mode {mode:04o}).\n"
            f"  to fix  chmod 600 '{path.name}'; if others may have read it, start a new state"
        )
    return parse(disk.read(path).decode(errors="replace"), f"the secret file '{path.name}'")


def parse(text: str, where: str) -> bytes:
    """64 hexadecimal digits as 32 bytes."""
    try:
        return require_size(bytes.fromhex(text.strip()), where)
    except ValueError:
        raise StoreError(
            f"{where} must hold {2 * SECRET_BYTES} hexadecimal digits.\n"
            f"  to fix  openssl rand -hex {SECRET_BYTES} makes some"
        ) from None


def require_size(secret: bytes, where: str) -> bytes:
    """Refuses a secret that is not exactly 32 bytes long."""
    if len(secret) != SECRET_BYTES:
        raise StoreError(f"{where} must hold {SECRET_BYTES} bytes, not {len(secret)}")
    return secret


def output(command: str) -> str:
    """What the user's key command prints; its output never reaches a message."""
    try:
        done = subprocess.run(  # noqa: S603  (the user's own command, split without a shell)
            shlex.split(command),
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise StoreError(f"the secret command failed: {type(error).__name__}") from None
    if done.returncode:
        raise StoreError(f"the secret command failed with exit status {done.returncode}")
    return done.stdout


def warn_insecure() -> None:
    """Warns that the noise of a job is not secret."""
    warn("insecure noise: this job's releases protect nobody", NoiseWarning)


CHECK_DIGITS = 32


@dataclass(frozen=True, repr=False)  # secret
class Randomness:
    """The caller's settings for randomness; by default a secret in the state directory."""

    secret: bytes | str | None = None  # see `secret.given`
    noise: Noise | None = None  # instead of keyed noise: tests only
    insecure: bool = False  # lets a job run with noise that protects nobody

    def __post_init__(self) -> None:
        if self.noise is not None and not is_keyed(self.noise) and not self.insecure:
            raise PlanError(
                f"a job refuses {type(self.noise).__name__} without security: whoever knows how it"
                " is made can take it away.\n"
                "  to fix  leave noise out; in a test, give insecure=True"
            )

    @cached_property
    def given_secret(self) -> bytes | None:
        """The secret that the caller gives, asked for once; raises StoreError as `given` does."""
        return given(self.secret)

    def noise_of(self, store: stores.Store, identity: stores.Identity) -> Noise:
        """The noise of a store's job. Creates a new store's header, checks an existing one."""
        if store.header is None:
            stores.require_empty(store.directory)
            epoch = stores.new_epoch()
            noise, kept = self._new_noise(store, epoch)
            header = stores.Header(identity, epoch.hex(), check(noise), is_keyed(noise), key=kept)
            store.begin(header)
        else:
            store.header.require(identity)
            noise = self._noise(store, store.header)
            if check(noise) != store.header.noise_check:
                raise StoreError(stores.WRONG_KEY)
            if store.header.key:  # `rekey` was cut short
                disk.remove([store.directory / stores.SECRET])
        if not is_keyed(noise):
            warn_insecure()
        return noise

    def once(self) -> Noise:
        """Noise under a new epoch, for draws before there is a state; never used again."""
        if self.noise is None:
            return KeyedNoise.fresh()
        return self._given(self.noise, stores.new_epoch())

    def _new_noise(self, store: stores.Store, epoch: bytes) -> tuple[Noise, str]:
        """The noise of a new state, and its sealed key where the secret is kept elsewhere."""
        if self.noise is not None:
            return self._given(self.noise, epoch), ""
        secret = self.given_secret
        if secret is None:
            fresh = not (store.directory / stores.SECRET).exists()
            secret = (create if fresh else kept)(store.directory)
            return KeyedNoise(secret, epoch), ""
        from streamveil.runtime.sealed_key import sealed  # only where a secret is given

        noise = replace(KeyedNoise.fresh(), epoch=epoch)
        return noise, sealed(noise.secret, secret, epoch)

    def _noise(self, store: stores.Store, header: stores.Header) -> Noise:
        """The noise of a state that is there."""
        epoch = bytes.fromhex(header.epoch)
        if self.noise is not None:
            return self._given(self.noise, epoch)
        secret = self.given_secret
        if secret is None:
            secret = kept(store.directory)
        if header.key:
            from streamveil.runtime.sealed_key import opened

            secret = opened(header.key, secret, epoch)
        return KeyedNoise(secret, epoch)

    @staticmethod
    def _given(noise: Noise, epoch: bytes) -> Noise:
        return replace(noise, epoch=epoch) if is_keyed(noise) else noise


def is_keyed(noise: Noise) -> TypeGuard[KeyedNoise]:
    """Whether this is noise under a secret and an epoch: no other class counts as secure."""
    return type(noise) is KeyedNoise and noise.secure


def check(noise: Noise) -> str:
    """A digest that tells one secret from another and reveals neither."""
    return noise.derive("which secret is this").hex()[:CHECK_DIGITS]
