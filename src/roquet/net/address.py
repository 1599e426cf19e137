"""An address as text, "host:port" or "[ip]:port", taken apart."""

from __future__ import annotations


def endpoint(address: str) -> tuple[str, int]:
    """(host, port). Raises ValueError: the C library would take a port above 65535 for another one, which may have a listener."""
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{port[:20]!r} is not a port from 1 to 65535")
    return host.strip("[]"), int(port)


def shown(peer: tuple[object, ...] | None) -> str:
    """What a socket says of its other end, as text; "" when that is gone already."""
    if not peer:
        return ""
    return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"
