"""A certificate that vouches for itself, for trying TLS without files (`tls.test.mode.enable`).

RocketMQ makes one at every start, and its clients in test mode trust anybody. Python's ssl can use certificates and cannot make
them, and a library only for this would be large. So here is as much as it takes: a key on the curve P-256, an X.509 certificate in
DER, and one ECDSA signature. Nobody can rely on who such a server is; what is sent is encrypted all the same.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import secrets

# The curve (FIPS 186-4): y² = x³ - 3x + B over the numbers below PRIME; G generates ORDER points.
PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

VALID_DAYS = 3_650
CLOCKS_APART = datetime.timedelta(days=2)
"""Valid from so long ago, for clients whose clock is behind."""

Point = tuple[int, int, int]
"""x / z², y / z³: so that only the last step divides."""


def self_signed(name: str, now: datetime.datetime) -> str:
    """A new key and its certificate for this common name, as PEM."""
    key = 1 + secrets.randbelow(ORDER - 1)
    x, y = multiplied(key)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    body = certificate_body(name, public, now)
    certificate = sequence(body, sequence(ECDSA_SHA256), bits(signature(key, body)))
    private = sequence(integer(1), octets(key.to_bytes(32, "big")), tagged(0, P256), tagged(1, bits(public)))
    return pem("CERTIFICATE", certificate) + pem("EC PRIVATE KEY", private)


def certificate_body(name: str, public: bytes, now: datetime.datetime) -> bytes:
    who = sequence(wrapped(0x31, sequence(COMMON_NAME, wrapped(0x0C, name.encode()))))
    valid = sequence(date(now - CLOCKS_APART), date(now + datetime.timedelta(days=VALID_DAYS)))
    serial = integer(secrets.randbits(63) + 1)
    return sequence(tagged(0, integer(2)), serial, sequence(ECDSA_SHA256), who, valid, who, sequence(sequence(EC_KEY, P256), bits(public)))


# ---- numbers


def multiplied(factor: int) -> tuple[int, int]:
    """The factor's multiple of G."""
    found: Point | None = None
    power: Point = (*G, 1)
    while factor:
        if factor & 1:
            found = power if found is None else added(found, power)
        power = doubled(power)
        factor >>= 1
    assert found is not None
    x, y, z = found
    inverse = pow(z, -1, PRIME)
    return x * inverse**2 % PRIME, y * inverse**3 % PRIME


def doubled(point: Point) -> Point:
    x, y, z = point
    square = y * y % PRIME
    middle = 4 * x * square % PRIME
    slope = 3 * (x - z * z) * (x + z * z) % PRIME
    new_x = (slope * slope - 2 * middle) % PRIME
    return new_x, (slope * (middle - new_x) - 8 * square * square) % PRIME, 2 * y * z % PRIME


def added(one: Point, other: Point) -> Point:
    """Of two points that are neither equal nor opposite: multiples of G by different powers of two, and sums of smaller ones, never are."""
    x1, y1, z1 = one
    x2, y2, z2 = other
    left_x, right_x = x1 * z2 * z2 % PRIME, x2 * z1 * z1 % PRIME
    left_y, right_y = y1 * z2**3 % PRIME, y2 * z1**3 % PRIME
    step, slope = right_x - left_x, right_y - left_y
    square = step * step % PRIME
    cube = step * square % PRIME
    new_x = (slope * slope - cube - 2 * left_x * square) % PRIME
    return new_x, (slope * (left_x * square - new_x) - left_y * cube) % PRIME, step * z1 * z2 % PRIME


def signature(key: int, signed: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(signed).digest(), "big")
    while True:
        once = 1 + secrets.randbelow(ORDER - 1)
        r = multiplied(once)[0] % ORDER
        s = pow(once, -1, ORDER) * (digest + r * key) % ORDER
        if r and s:
            return sequence(integer(r), integer(s))


# ---- DER


def wrapped(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 128 | len(length))) + length + content


def sequence(*parts: bytes) -> bytes:
    return wrapped(0x30, b"".join(parts))


def tagged(number: int, content: bytes) -> bytes:
    return wrapped(0xA0 | number, content)


def integer(number: int) -> bytes:
    return wrapped(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def bits(content: bytes) -> bytes:
    return wrapped(0x03, b"\0" + content)


def octets(content: bytes) -> bytes:
    return wrapped(0x04, content)


def date(when: datetime.datetime) -> bytes:
    if when.year < 2050:
        return wrapped(0x17, when.strftime("%y%m%d%H%M%SZ").encode())
    return wrapped(0x18, when.strftime("%Y%m%d%H%M%SZ").encode())


COMMON_NAME = bytes.fromhex("0603550403")
EC_KEY = bytes.fromhex("06072a8648ce3d0201")
P256 = bytes.fromhex("06082a8648ce3d030107")
ECDSA_SHA256 = bytes.fromhex("06082a8648ce3d040302")


def pem(what: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {what}-----", *lines, f"-----END {what}-----", ""])
