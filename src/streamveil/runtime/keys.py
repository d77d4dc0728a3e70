"""Which noise a job draws: keyed by its secret and the epoch of its state."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TypeGuard

from streamveil.core.noise.keyed import KeyedNoise, Noise
from streamveil.errors import PlanError, StoreError
from streamveil.runtime import disk
from streamveil.runtime import secret as secrets
from streamveil.runtime import store as stores

CHECK_DIGITS = 32


@dataclass(frozen=True, repr=False)  # secret
class Randomness:
    """What the caller says about randomness; nothing said means a secret in the state directory."""

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

    def noise_of(self, store: stores.Store, identity: stores.Identity) -> Noise:
        """The noise of a store's job. Creates the header of a new store, checks that of an old."""
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
                raise StoreError(secrets.WRONG)
            if store.header.key:  # `rekey` was cut short
                disk.remove([store.directory / secrets.SECRET])
        if not is_keyed(noise):
            warnings.warn("insecure noise: this job's releases protect nobody", stacklevel=2)
        return noise

    def once(self) -> Noise:
        """Noise of an epoch of its own, for what is drawn before there is a state: never again."""
        if self.noise is None:
            return KeyedNoise.fresh()
        return self._given(self.noise, stores.new_epoch())

    def _new_noise(self, store: stores.Store, epoch: bytes) -> tuple[Noise, str]:
        """The noise of a new state, and its sealed key where the secret is kept elsewhere."""
        if self.noise is not None:
            return self._given(self.noise, epoch), ""
        secret = secrets.given(self.secret)
        if secret is None:
            fresh = not (store.directory / secrets.SECRET).exists()
            secret = (secrets.create if fresh else secrets.kept)(store.directory)
            return KeyedNoise(secret, epoch), ""
        from streamveil.runtime.sealed_key import sealed  # only where a secret is given

        noise = replace(KeyedNoise.fresh(), epoch=epoch)
        return noise, sealed(noise.secret, secret, epoch)

    def _noise(self, store: stores.Store, header: stores.Header) -> Noise:
        """The noise of a state that is there."""
        epoch = bytes.fromhex(header.epoch)
        if self.noise is not None:
            return self._given(self.noise, epoch)
        secret = secrets.given(self.secret)
        if secret is None:
            secret = secrets.kept(store.directory)
        if header.key:
            from streamveil.runtime.sealed_key import opened

            secret = opened(header.key, secret, epoch)
        return KeyedNoise(secret, epoch)

    @staticmethod
    def _given(noise: Noise, epoch: bytes) -> Noise:
        return replace(noise, epoch=epoch) if is_keyed(noise) else noise


def is_keyed(noise: Noise) -> TypeGuard[KeyedNoise]:
    """Whether it is noise under a secret and an epoch: no other class is believed to be secure."""
    return type(noise) is KeyedNoise and noise.secure


def check(noise: Noise) -> str:
    """A digest that tells one secret from another and reveals neither."""
    return noise.derive("which secret is this").hex()[:CHECK_DIGITS]
