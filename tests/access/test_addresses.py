"""Patterns of white lists, as RocketMQ's files have them."""

from __future__ import annotations

import pytest

from roquet.access.addresses import BadPattern, pattern_of
from roquet.hosts import parts_of, source_of


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.0.7", "10.0.0.7", "10.0.0.8"),
        ("10.10.103.*", "10.10.103.255", "10.10.104.1"),
        ("10.0.*.*", "10.0.3.4", "10.1.0.0"),
        ("10.0.*", "10.0.9.9", "11.0.0.0"),
        ("10.0.0.1-45", "10.0.0.45", "10.0.0.46"),
        ("10.0.1-20.*", "10.0.20.9", "10.0.21.0"),
        ("192.168.100-200.10-20", "192.168.150.10", "192.168.150.21"),
        ("10.0.0.{1,2,9}", "10.0.0.9", "10.0.0.3"),
        ("1.1.1.1,2.2.2.2", "2.2.2.2", "3.3.3.3"),
        ("::1", "::1", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1", "::1"),
        ("fe80::1", "fe80::1%eth0", "fe80::2"),
        ("5::7:6:1-200:*", "5::7:6:1ff:5", "5::7:6:201:5"),
        ("1:2:3:4:5:6:7:200-abcd", "1:2:3:4:5:6:7:abcd", "1:2:3:4:5:6:7:abce"),
        ("1::{4,5}", "1::5", "1::6"),
        ("1:2:3:4:5:6:7:{8,9}", "1:2:3:4:5:6:7:9", "1:2:3:4:5:6:7:a"),
        ("5::7:6:*:*", "5::7:6:0:ffff", "6::7:6:0:ffff"),
    ],
)
def test_a_pattern_takes_what_it_names_and_nothing_else(pattern: str, inside: str, outside: str) -> None:
    found = pattern_of(pattern)
    assert found.matches(parts_of(inside))
    assert not found.matches(parts_of(outside))


@pytest.mark.parametrize("pattern", ["*", "*.*.*.*", "*:*:*:*:*:*:*:*"])
def test_a_star_is_every_address(pattern: str) -> None:
    assert pattern_of(pattern).matches(parts_of("1.2.3.4"))
    assert pattern_of(pattern).matches(parts_of("fe80::1"))


@pytest.mark.parametrize(
    "pattern",
    ["", "1.2.3",
     "1.2.3.4.5", "1.2.3.256", "1.2.3.9-1", "1.2.3.x", "1.2.{3}.4", "1.2.3.{}", "1.2.3.{4", "1::2::3", "1:2:3", ":::", "1.2.3.4,",
     "a.b.c.d", "1.2.3.٣", "1.2.3.-4", "g::1", "1::fffff", "1.2.3.4/24", "localhost"],
)  # fmt: skip
def test_what_is_no_pattern_is_refused_with_its_text(pattern: str) -> None:
    with pytest.raises(BadPattern):
        pattern_of(pattern)


def test_what_is_no_address_has_no_parts() -> None:
    assert parts_of("") == parts_of("localhost") == parts_of("1.2.3") == ()


def test_a_network_of_64_bits_is_one_source() -> None:
    """One machine may have all of it."""
    assert source_of("[2001:db8:1:2::7]:40001") == source_of("[2001:db8:1:2:ffff::1]:5") == "2001:db8:1:2::/64"
    assert source_of("[2001:db8:1:3::7]:5") != source_of("[2001:db8:1:2::7]:5")
    assert source_of("[fe80::1%eth0]:5") == source_of("[fe80::2]:5")
    assert source_of("10.0.0.7:40001") == source_of("[::ffff:10.0.0.7]:5") == "10.0.0.7"
    assert source_of("somewhere:5") == "somewhere"
