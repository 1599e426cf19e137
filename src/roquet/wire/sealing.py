"""Bytes that only somebody with the same secret can read, or change unseen: HMAC-SHA256 as a stream of bits, and once more as the proof.

    16 bytes nonce | 32 bytes proof of all else | the bytes, mixed with the stream

For secrets on their way from one server to another, over connections that may be plain. A nonce must not be used twice with a secret.
"""

from __future__ import annotations

import hashlib
import hmac

NONCE_SIZE = 16
PROOF_SIZE = BLOCK = 32


def seal(secret: str, nonce: bytes, data: bytes) -> bytes:
    if len(nonce) != NONCE_SIZE:
        raise ValueError(f"a nonce has {NONCE_SIZE} bytes, this one {len(nonce)}")
    mixed = _mixed(secret, nonce, data)
    return nonce + _proof(secret, nonce + mixed) + mixed


def unseal(secret: str, sealed: bytes) -> bytes:
    """Raises ValueError for what was not sealed with this secret, or was changed since."""
    nonce, proof, mixed = sealed[:NONCE_SIZE], sealed[NONCE_SIZE : NONCE_SIZE + PROOF_SIZE], sealed[NONCE_SIZE + PROOF_SIZE :]
    if not hmac.compare_digest(proof, _proof(secret, nonce + mixed)):
        raise ValueError("this was not sealed with our secret key, or was changed on its way")
    return _mixed(secret, nonce, mixed)


def _key(secret: str, purpose: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"roquet sealing, " + purpose, hashlib.sha256)


def _proof(secret: str, data: bytes) -> bytes:
    return hmac.digest(_key(secret, b"proof"), data, hashlib.sha256)


def _mixed(secret: str, nonce: bytes, data: bytes) -> bytes:
    key = _key(secret, b"stream")
    count = -(-len(data) // BLOCK)
    stream = b"".join(hmac.digest(key, nonce + number.to_bytes(8, "big"), hashlib.sha256) for number in range(count))
    return bytes(one ^ other for one, other in zip(data, stream, strict=False))
