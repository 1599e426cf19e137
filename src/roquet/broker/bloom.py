"""Bloom positions of a group's filter, as consumerFilter.json carries them. Java's broker reads them back; we only write them.

k positions in m bits come from guava's murmur3_128 of "group#topic". Java takes the low 64 bits of the hash apart: the low half
is where to begin, the high half is the step, both 32-bit numbers that overflow.
"""

from __future__ import annotations

import math

MASK_64 = (1 << 64) - 1
C1 = 0x87C37B91114253D5
C2 = 0x4CF5AD432745937F


def size_of(error_percent: int, groups: int) -> tuple[int, int]:
    """(k, m) for this rate of false hits with so many groups."""
    rate = error_percent / 100
    k = math.ceil(math.log(rate) / math.log(0.5))
    m = math.ceil(groups * math.log(1 / rate, 2) * math.log2(math.e))
    return k, (m + 7) // 8 * 8


def positions(key: str, k: int, m: int) -> list[int]:
    hashed = murmur3(key.encode())
    first, step = signed(hashed), signed(hashed >> 32)
    combined = [signed(first + round * step) for round in range(1, k + 1)]
    return [(~one if one < 0 else one) % m for one in combined]


def signed(number: int) -> int:
    """The low 32 bits as Java's int."""
    return ((number + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def murmur3(data: bytes) -> int:
    """The low 64 bits of MurmurHash3 x64 128 with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        h1 ^= mixed_1(int.from_bytes(data[at : at + 8], "little"))
        h1 = (rotated(h1, 27) + h2) * 5 + 0x52DCE729 & MASK_64
        h2 ^= mixed_2(int.from_bytes(data[at + 8 : at + 16], "little"))
        h2 = (rotated(h2, 31) + h1) * 5 + 0x38495AB5 & MASK_64
    h1 ^= mixed_1(int.from_bytes(data[whole : whole + 8], "little")) ^ len(data)
    h2 ^= mixed_2(int.from_bytes(data[whole + 8 :], "little")) ^ len(data)
    h1 = h1 + h2 & MASK_64
    h2 = h2 + h1 & MASK_64
    return finished(h1) + finished(h2) & MASK_64


def mixed_1(part: int) -> int:
    return rotated(part * C1 & MASK_64, 31) * C2 & MASK_64


def mixed_2(part: int) -> int:
    return rotated(part * C2 & MASK_64, 33) * C1 & MASK_64


def rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & MASK_64


def finished(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & MASK_64
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & MASK_64
    return number ^ number >> 33
