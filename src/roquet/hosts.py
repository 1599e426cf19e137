"""Where somebody comes from: the host of an address, its numbers, and what of it counts as one source."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

Parts = tuple[int, ...]
"""Of an address: 4 numbers of IPv4, 8 of IPv6."""


def host_of(address: str) -> str:
    """Of "ip:port" or "[ip]:port"."""
    return address.rpartition(":")[0].strip("[]")


@lru_cache(maxsize=4_096)
def parts_of(host: str) -> Parts:
    """Of "10.0.0.7" or "fe80::1%eth0"; none of what is no address. An IPv4 address in IPv6's spelling is that IPv4 address."""
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return ()
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return tuple(int(part, 16) for part in address.exploded.split(":"))
        address = address.ipv4_mapped
    return tuple(address.packed)


@lru_cache(maxsize=4_096)
def source_of_host(host: str) -> str:
    """What counts as one source: the address; of IPv6 its network of 64 bits, which one machine may have all of."""
    parts = parts_of(host)
    if len(parts) == 8:
        return ":".join(map("{:x}".format, parts[:4])) + "::/64"
    return ".".join(map(str, parts)) or host


def source_of(address: str) -> str:
    """The same of "ip:port" or "[ip]:port"."""
    return source_of_host(host_of(address))
