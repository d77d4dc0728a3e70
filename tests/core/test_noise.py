"""Keystreams: known answers, separation of addresses, replay, and any request size."""

import hashlib
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from streamveil.core.noise import (
    CHUNK,
    Draws,
    KeyedDraws,
    KeyedNoise,
    Noise,
    SeededNoise,
    SilentNoise,
    encode_address,
)

SECRET = bytes(range(32))
NOISE = KeyedNoise(SECRET, epoch=b"epoch")
# NIST SP 800-38A, F.5.5 (AES-256 counter mode)
KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
STREAM = bytes.fromhex("0bdf7df1591716335e9a8b15c860c502")
# FIPS 197, C.3 (AES-256, one block)
FIPS_KEY = bytes(range(32))
FIPS_PLAIN = bytes.fromhex("00112233445566778899aabbccddeeff")
FIPS_CIPHER = bytes.fromhex("8ea2b7ca516745bfeafc49904b496089")

PINNED = {
    "words": ["0x8f6062e84756fab3", "0x36ef5b4dea128614", "0x29884008ec19569f"],
    "for": [
        "0xec0bb3b6c396ddb2",
        "0xbf82cc6e5d34ff7f",
        "0xe7ae7163e52b14f8",
        "0xf70f2bfe3e46e41d",
        "0xf4cfd4a0a86ba578",
        "0x6c1ae46bf873f095",
        "0x98095d6ac10ce49d",
        "0x67a6581f21eea436",
        "0x59e072bc36911bad",
    ],
    "below": ["0x79fd5570102f2140", "0xbd3fc574cb6ca94e"],
    "derived": "148357cbbf18d74fb8c5bde66a315bf1617b6450a1191d799382ad9fe803eaab",
    "subkey": "46900d1733f92c5fb32707aba72591abfc854fd5f46f30fbfb17b08a1fde5435",
}


def test_the_cipher_is_aes():
    ecb = Cipher(algorithms.AES(FIPS_KEY), modes.ECB()).encryptor()
    assert ecb.update(FIPS_PLAIN) == FIPS_CIPHER
    ctr = Cipher(algorithms.AES(KEY), modes.CTR(COUNTER)).encryptor()
    assert ctr.update(bytes(16)) == STREAM


def test_words_are_aes_in_counter_mode():
    ecb = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    blocks = b"".join(ecb.update(i.to_bytes(16, "big")) for i in range(3 * CHUNK))
    assert np.array_equal(KeyedDraws(KEY).words(6 * CHUNK), np.frombuffer(blocks, "<u8"))


def test_words_for_is_aes_of_the_id_and_then_of_a_count_from_a_hidden_start():
    ids = np.frombuffer(FIPS_PLAIN, "<u8")[None, :]
    first, nonce, further = (
        Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        for use in range(3)
        for key in [hashlib.blake2b(use.to_bytes(8, "little"), key=KEY, digest_size=32).digest()]
    )
    start = np.frombuffer(nonce.update(FIPS_PLAIN), "<u8")
    expected = first.update(FIPS_PLAIN)
    for j in range(3):
        count = np.array([start[0] + np.uint64(j), start[1]], "<u8")
        expected += further.update(count.tobytes())
    assert KeyedDraws(KEY).words_for(ids, 8).tobytes() == expected


def test_pinned_addresses():
    """These never change: a saved job must draw the noise it drew before."""
    ids = np.arange(6, dtype=np.uint64).reshape(3, 2)
    assert [hex(word) for word in NOISE.at("pin", 1, b"w").words(3).tolist()] == PINNED["words"]
    assert [hex(word) for word in NOISE.at("pin").words_for(ids, 3).ravel().tolist()] == PINNED[
        "for"
    ]
    assert [hex(word) for word in NOISE.at("pin").at("x", 2).words(2).tolist()] == PINNED["below"]
    assert NOISE.derive("pin").hex() == PINNED["derived"]
    assert NOISE.at("pin", 1).subkey.hex() == PINNED["subkey"]


@pytest.mark.parametrize("n", [0, 1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_every_request_is_a_prefix_of_a_larger_one(n):
    draws = NOISE.at("prefix")
    many = draws.words(4 * CHUNK)
    assert np.array_equal(draws.words(n), many[:n])
    ids = many.reshape(-1, 2)[: max(n // 3, 1)]
    wide = draws.words_for(ids, 7)
    for width in range(1, 7):
        assert np.array_equal(draws.words_for(ids, width), wide[:, :width])
    assert np.array_equal(draws.words_for(ids[::-2], 3), wide[::-2, :3])
    assert draws.words_for(ids[:0], 3).shape == (0, 3)


@pytest.mark.parametrize("start", [0, 2, CHUNK, 3 * CHUNK - 2])
def test_words_may_be_asked_for_from_any_block(start):
    draws = NOISE.at("prefix")
    for n in (0, 1, 5, CHUNK + 1):
        assert np.array_equal(draws.words(n, start), draws.words(5 * CHUNK)[start : start + n])
    assert not SilentNoise().at("x").words(3, start).any()
    with pytest.raises(ValueError, match="even"):
        draws.words(1, start + 1)


def test_large_requests():
    words = NOISE.at("large").words(3_000_001)
    assert len(words) == 3_000_001
    bits = np.unpackbits(words[-100_000:].view(np.uint8)).mean()
    assert abs(bits - 0.5) < 6.2 * 0.5 / 6.4e6**0.5
    wide = NOISE.at("large").words_for(words[:200_000].reshape(-1, 2), 5)
    assert len(np.unique(np.concatenate([words[-200_000:], wide.ravel()]))) == 700_000


parts = st.lists(st.one_of(st.integers(-(2**70), 2**70), st.binary(max_size=9)), max_size=4)
addresses = st.tuples(st.binary(max_size=4), st.text(max_size=4), parts)


@given(addresses, addresses)
def test_the_address_encoding_is_injective(first, second):
    one, other = (encode_address(epoch, name, *path) for epoch, name, path in (first, second))
    assert (one == other) == (first == second)


def test_no_two_addresses_share_words():
    """Purpose, path, type, epoch, secret, depth and kind of stream all separate."""
    secrets, epochs, purposes = (SECRET, SECRET[::-1]), (b"", b"e"), ("p", "q")
    paths = ((), (1,), (b"1",), (1, 1), (11,), (b"",), (-1,))
    ids = np.zeros((1, 2), np.uint64)
    seen = []
    for secret, epoch, purpose, path in product(secrets, epochs, purposes, paths):
        noise = KeyedNoise(secret, epoch)
        draws = noise.at(purpose, *path)
        seen += [*draws.words(4), *draws.words_for(ids, 4)[0], *draws.at(purpose, *path).words(4)]
        seen += np.frombuffer(noise.derive(purpose), "<u8").tolist() if not path else []
    assert len({int(word) for word in seen}) == len(seen)


def test_numpy_integers_name_the_same_address():
    for kind in (np.int64, np.uint32, np.int8):
        assert encode_address(b"", "p", kind(7)) == encode_address(b"", "p", 7)
    for wrong in ("7", 7.0, None, np.float64(7)):
        with pytest.raises(ValueError, match="integers and bytes"):
            NOISE.at("p", wrong)


@pytest.mark.parametrize(
    "ids",
    [
        np.zeros(4, np.uint64),
        np.zeros((2, 3), np.uint64),
        np.zeros((2, 2)),
        np.zeros((2, 2), np.uint32),
    ],
)
def test_wrong_ids_are_refused(ids):
    with pytest.raises(ValueError, match="ids must be"):
        NOISE.at("p").words_for(ids, 1)


def test_ids_may_be_strided_or_signed():
    ids = NOISE.at("ids").words(400).reshape(100, 4)
    expected = NOISE.at("p").words_for(np.ascontiguousarray(ids[:, ::2]), 3)
    assert np.array_equal(NOISE.at("p").words_for(ids[:, ::2], 3), expected)
    assert np.array_equal(NOISE.at("p").words_for(ids.view(np.int64)[:, ::2], 3), expected)


def test_sources_say_what_they_are():
    for noise, secure, silent in (
        (KeyedNoise.fresh(), True, False),
        (SeededNoise(1), False, False),
        (SilentNoise(), False, True),
    ):
        assert isinstance(noise, Noise)
        assert isinstance(noise.at("p"), Draws)
        assert isinstance(noise.at("p").at("q"), Draws)
        assert (noise.secure, noise.at("p").silent) == (secure, silent)
        assert noise.at("p").at("q").silent == silent
        assert SECRET.hex() not in repr(noise)
    assert KeyedNoise.fresh().secret != KeyedNoise.fresh().secret
    assert not SilentNoise().at("p").words(3).any()
    assert not SilentNoise().at("p").words_for(np.ones((2, 2), np.uint64), 3).any()
    assert len(SilentNoise().derive("p")) == len(SeededNoise(1).derive("p")) == 32


def test_nothing_prints_a_secret():
    for thing in (NOISE, NOISE.at("p"), NOISE.at("p").at("q")):
        for secret in (NOISE.secret, NOISE.at("p").subkey):
            assert secret.hex() not in repr(thing)
            assert repr(secret) not in repr(thing)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_has_32_bytes(length):
    with pytest.raises(ValueError, match="32 bytes"):
        KeyedNoise(bytes(length))
