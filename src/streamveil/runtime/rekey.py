"""Another secret for a state: see `sealed_key` for what this changes, and what it cannot change."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from streamveil import disk
from streamveil.core.noise import KeyedNoise
from streamveil.errors import StoreError
from streamveil.runtime import secret as secrets
from streamveil.runtime.sealed_key import opened, sealed
from streamveil.runtime.secret import check
from streamveil.runtime.store import SECRET, WRONG_KEY, Store, require_header, write_header


def rekey(directory: str | Path, old: bytes | str | None, new: bytes | str) -> str:
    """Seals the noise key of a state under another secret; returns the job's name.

    `old` and `new` say where the secrets are, as `secret.given` takes them; without `old`, it is
    the one that the state keeps. The job must not be running. A secret that the state kept itself
    is removed once the new header is durable; a crash in between leaves it, and the next start
    removes it.
    """
    home = Path(directory)
    require_header(home)
    with closing(Store(home)) as store:
        header = store.header
        assert header is not None  # noqa: S101  (its file is there)
        if not header.secure:
            raise StoreError("the noise of this state is for tests: there is no secret to change")
        epoch, given = bytes.fromhex(header.epoch), secrets.given(old)
        key = opened(header.key, secrets.kept(home) if given is None else given, epoch)
        if check(KeyedNoise(key, epoch)) != header.noise_check:
            raise StoreError(WRONG_KEY)
        other = secrets.given(new)
        assert other is not None  # noqa: S101  (it was said where it is)
        write_header(home, replace(header, key=sealed(key, other, epoch)))
        disk.remove([home / SECRET])
        return header.identity.job
