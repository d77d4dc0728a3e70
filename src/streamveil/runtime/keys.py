"""Which noise a job draws: keyed by its secret and the epoch of its state."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from streamveil.core.noise.keyed import KeyedNoise, Noise
from streamveil.errors import PlanError, StoreError
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
        if self.noise is not None and not self.noise.secure and not self.insecure:
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
            noise = self._noise(store, epoch)
            store.begin(stores.Header(identity, epoch.hex(), check(noise), noise.secure))
        else:
            store.header.require(identity)
            noise = self._noise(store, bytes.fromhex(store.header.epoch))
            if check(noise) != store.header.noise_check:
                raise StoreError(
                    "the secret is not the one this state was created with.\n"
                    "  to fix  give that secret; other noise on the same data would reveal it"
                )
        if not noise.secure:
            warnings.warn("insecure noise: this job's releases protect nobody", stacklevel=2)
        return noise

    def _noise(self, store: stores.Store, epoch: bytes) -> Noise:
        if isinstance(self.noise, KeyedNoise) and self.noise.secure:
            return replace(self.noise, epoch=epoch)
        if self.noise is not None:
            return self.noise
        secret = secrets.given(self.secret)
        if secret is None:
            fresh = store.header is None and not (store.directory / secrets.SECRET).exists()
            secret = (secrets.create if fresh else secrets.kept)(store.directory)
        return KeyedNoise(secret, epoch)


def check(noise: Noise) -> str:
    """A digest that tells one secret from another and reveals neither."""
    return noise.derive("which secret is this").hex()[:CHECK_DIGITS]
