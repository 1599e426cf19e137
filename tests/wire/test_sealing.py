"""What is sealed with a secret is read with it, and with no other; nobody changes it unseen."""

from __future__ import annotations

import random

import pytest

from roquet.wire.sealing import NONCE_SIZE, PROOF_SIZE, seal, unseal

NONCE = bytes(range(NONCE_SIZE))


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 5_000])
def test_what_was_sealed_comes_out_as_it_went_in_and_cannot_be_seen_meanwhile(size: int) -> None:
    data = random.Random(size).randbytes(size)
    sealed = seal("secret", NONCE, data)
    assert len(sealed) == NONCE_SIZE + PROOF_SIZE + size
    assert unseal("secret", sealed) == data
    assert size < 8 or data[:8] not in sealed


def test_another_nonce_or_another_secret_seals_to_other_bytes() -> None:
    data = b"x" * 64
    made = {seal(secret, nonce, data)[NONCE_SIZE:] for secret in ("secret", "secre") for nonce in (NONCE, bytes(NONCE_SIZE))}
    assert len(made) == 4


def test_who_has_another_secret_reads_nothing() -> None:
    with pytest.raises(ValueError, match="not sealed with our secret key"):
        unseal("other", seal("secret", NONCE, b"data"))


def test_a_change_of_any_byte_or_of_the_length_is_seen() -> None:
    sealed = seal("secret", NONCE, b"data")
    for at in range(len(sealed)):
        with pytest.raises(ValueError, match="changed on its way"):
            unseal("secret", sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :])
        with pytest.raises(ValueError, match="changed on its way"):
            unseal("secret", sealed[:at])


def test_a_nonce_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a nonce has 16 bytes, this one 3"):
        seal("secret", b"abc", b"data")
