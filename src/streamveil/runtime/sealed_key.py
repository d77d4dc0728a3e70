"""The noise key of a state, and the secret that opens it: which may be changed, and which not.

All noise and all fingerprints of a job are functions of one noise key and of the epoch of its state
(`core.noise`). Where the secret is given from outside, the key is drawn from the operating
system when the state is made, and `state.json` holds it encrypted under the secret. Where the state
keeps its own secret, that secret is the noise key.

Rotation: another secret opens the same key.
Proof that nothing is drawn anew: rotation changes `Header.key` alone. Every address of the job,
    drawn before or to be drawn, is under (noise key, epoch) before and after: the key is opened,
    compared with the digest that the header has kept of it since the state was made, and sealed
    again; nothing else is written. So a rotated job and its twin that was not rotated release the
    same bytes, and no two addresses of a job are ever under two keys for the same rows.
Why the noise key itself is never changed: a counter's noise at a step is a function of draws at
    earlier addresses, units and groups are known by fingerprints under the key, and two noises over
    the same counts reveal an exact difference. Another noise key means another job, with an epoch
    and a charge of its own: begin a new job where the old one stands.
What it protects: someone who learns the old secret later can open the noise key only with a copy of
    `state.json` from before the rotation. Someone who has had both has the noise key, and no
    rotation helps. If the secret was the noise key, every copy from before a rotation holds it.

Sealed by AES-256-GCM, under a key that is derived from secret and epoch, with a random nonce; the
epoch is bound to it. A nonce is used once: every sealing draws one of 96 bits, and is one of few.
"""

from __future__ import annotations

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from streamveil.core.noise import KeyedNoise
from streamveil.errors import StoreError
from streamveil.runtime.store import WRONG_KEY

NONCE_BYTES = 12
PURPOSE = "opens the noise key"


def sealed(key: bytes, secret: bytes, epoch: bytes) -> str:
    """A noise key that only the secret opens, in hexadecimal.

    >>> kept = sealed(bytes(32), b"s" * 32, b"e" * 16)
    >>> opened(kept, b"s" * 32, b"e" * 16) == bytes(32)
    True
    """
    nonce = os.urandom(NONCE_BYTES)
    return (nonce + cipher(secret, epoch).encrypt(nonce, key, epoch)).hex()


def opened(kept: str, secret: bytes, epoch: bytes) -> bytes:
    """The noise key: of `sealed`, or the secret itself where nothing is kept."""
    if not kept:
        return secret
    data = bytes.fromhex(kept)
    try:
        return cipher(secret, epoch).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], epoch)
    except InvalidTag:
        raise StoreError(WRONG_KEY) from None


def cipher(secret: bytes, epoch: bytes) -> AESGCM:
    """AES-256-GCM under a key of its own: a secret opens keys of several states."""
    return AESGCM(KeyedNoise(secret, epoch).derive(PURPOSE))
