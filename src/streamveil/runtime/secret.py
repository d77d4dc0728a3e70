"""The job's secret: 32 bytes that every noise draw and every fingerprint depend on.

Kept in a file of its own (mode 0600), or never stored at all: given by the caller, an environment
variable or a command. It never appears in the log, in a checkpoint, in a message or in a repr.
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess  # the user's own key command, no shell
from pathlib import Path

from streamveil.connectors.blocks import crash_only
from streamveil.core.noise.keyed import SECRET_BYTES, KeyedNoise
from streamveil.errors import StoreError
from streamveil.runtime import disk

SECRET = "secret"  # the file's name, not a secret  # noqa: S105
ENVIRONMENT = "STREAMVEIL_SECRET"
COMMAND_SECONDS = 60
WRONG = (
    "the secret is not the one this state was created with, or was last given by `rekey`.\n"
    "  to fix  give that secret; other noise on the same data would reveal it"
)


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
    disk.create(directory / SECRET, [memoryview(secret.hex().encode() + b"\n")])
    return secret


def kept(directory: Path) -> bytes:
    """The secret that the state directory keeps."""
    path = directory / SECRET
    if not path.exists():
        raise StoreError(
            f"the state directory '{directory.name}' does not hold its secret.\n"
            "  to fix  give the secret it was created with (--secret, secret=..., or "
            f"{ENVIRONMENT}); without it the same noise cannot be drawn again and the job must not"
            " go on"
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
        raise StoreError(f"{where} must hold {2 * SECRET_BYTES} hexadecimal digits") from None


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
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise StoreError(f"the secret command failed: {type(error).__name__}") from None
    if done.returncode:
        raise StoreError(f"the secret command failed with exit status {done.returncode}")
    return done.stdout
