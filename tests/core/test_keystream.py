"""The cipher in compiled loops gives the words of the keyed source, whatever the processor."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streamveil.core.noise import KeyedDraws, SeededNoise, SilentNoise
from streamveil.core.noise.bulk import keystream

WAYS = {"table": keystream.TABLE_ONLY}
if keystream.NARROW:
    WAYS["128"] = keystream.NARROW_AES
if keystream.WIDE:
    WAYS["512"] = keystream.WIDE_AES


def schedule_for(draws, way):
    """The schedule that a processor with some instructions makes."""
    schedule = keystream.key_schedule(draws)
    schedule[-1] = WAYS[way]
    return schedule


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("block", [0, 64])
def test_words_are_those_of_the_source(name, block):
    draws = SeededNoise(3).at("x", 1)
    out = np.zeros(256, np.uint32)
    assert keystream.HOW in WAYS.values()
    keystream.fill(schedule_for(draws, name), block, out, 2)
    assert (out.view(np.uint64) == draws.words(128 + 2 * block)[2 * block :]).all()


def test_known_vector_of_the_standard():
    # FIPS 197, appendix C.3, as the first block of counter mode: AES(key, counter) of OpenSSL
    key = bytes(range(32))
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert encryptor.update(plain).hex() == "8ea2b7ca516745bfeafc49904b496089"
    high, low = np.frombuffer(plain[:8], "<u8")[0], int.from_bytes(plain[8:], "big")
    for name in WAYS:
        schedule, out = schedule_for(KeyedDraws(key), name), np.zeros(2, np.uint64)
        keystream.one_block(schedule, np.uint64(high), np.uint64(low), out)
        assert out.tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_silent_draws_have_no_schedule_and_strangers_are_refused():
    assert keystream.key_schedule(SilentNoise().at("x")).size == 0

    class Stranger:
        silent = False

    with pytest.raises(ValueError, match="KeyedNoise"):
        keystream.key_schedule(Stranger())


def test_two_addresses_and_two_domains_share_no_word():
    seen = set()
    for path in range(3):
        schedule = keystream.key_schedule(SeededNoise(1).at("sketch", path))
        for high in (np.uint64(0), keystream.LOW_DOMAIN):
            for block in range(200):
                out = np.zeros(2, np.uint64)
                keystream.one_block(schedule, high, np.uint64(block), out)
                seen.update(out.tolist())
    assert len(seen) == 3 * 2 * 200 * 2
