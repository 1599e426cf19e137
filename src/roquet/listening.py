"""Where a server listens, and which address others are given: decided once, before it starts, and said in the log.

RocketMQ listens on every address, always. Roquet does so only when it is told to, and says then who can come in: without a setting it
listens on 127.0.0.1 alone. A configuration that names an address beyond this machine means to be reached there:

    bindAddress                             listen there, whatever else is set
    brokerIP1, an address of this machine   listen there
    brokerIP1, not one of them              listen on all: NAT or a container leads from there to here
    namesrvAddr beyond this machine         listen on all, and give the address of this host, as RocketMQ does
    none of them                            listen on 127.0.0.1
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from collections.abc import Callable

from roquet.settings import BrokerSettings, NameServerSettings

log = logging.getLogger("roquet")

LOOPBACK = "127.0.0.1"
ALL = ("0.0.0.0", "::")


def bind_address(settings: BrokerSettings | NameServerSettings) -> str:
    """The address to listen on."""
    if settings.bind_address or isinstance(settings, NameServerSettings):
        return settings.bind_address or LOOPBACK
    if settings.broker_ip1:
        address = resolved(settings.broker_ip1) or settings.broker_ip1
        return address if is_local(address) else ALL[":" in address]
    hosts = [one.rpartition(":")[0].strip("[]") for one in settings.namesrv_addr.split(";") if one]
    return ALL[0] if any(not is_loopback(resolved(host) or host) for host in hosts) else LOOPBACK


def given_address(settings: BrokerSettings) -> str:
    """The address that clients are told."""
    return settings.broker_ip1 or reachable(settings.bind_address)


def tell(settings: BrokerSettings | NameServerSettings, warn: Callable[[str], None]) -> None:
    """Say who can connect. `bind_address` of the settings is where the server listens now. `warn` is told when that is everybody."""
    bind = settings.bind_address
    if isinstance(settings, BrokerSettings):
        tell_of_disagreement(bind, given_address(settings))
    if is_loopback(resolved(bind) or bind):
        log.info("only programs on this machine can connect, at %s; bindAddress=0.0.0.0 in the configuration lets others in", bind)
        return
    if text := open_to_everybody(settings):
        warn(text)


def open_to_everybody(settings: BrokerSettings | NameServerSettings) -> str:
    """What that means and what to do, in a sentence; "" when whoever connects from another machine must show who it is."""
    if settings.acl_enable:
        return ""
    encrypted = settings.tls_server_mode == "enforcing"
    if encrypted and settings.tls_server_need_client_auth == "require":
        return ""
    where = "every address of this machine" if settings.bind_address in ALL else settings.bind_address
    how = "with TLS for everybody and without access control" if encrypted else "without access control and without TLS for everybody"
    return (
        f"listening on {where}, {how}: whoever reaches the port can read, send and delete everything; set aclEnable=true (docs/access.md), "
        "ask for clients' certificates (tls.server.mode=enforcing and tls.server.need.client.auth=require), let only those reach it who "
        "may, or set bindAddress=127.0.0.1"
    )


def tell_of_disagreement(bind: str, given: str) -> None:
    address = resolved(given)
    if not address:
        log.warning("clients are told %s (brokerIP1), a name that this machine cannot resolve; message ids carry 127.0.0.1", given)
    elif bind in ALL and not is_local(address):
        log.warning(
            "clients are told %s (brokerIP1), which is no address of this machine, so the broker listens on every address: NAT or a "
            "container's port must lead from there to here; bindAddress chooses one address",
            given,
        )
    elif bind not in ALL and address != (resolved(bind) or bind):
        log.warning(
            "clients are told %s (brokerIP1), but the broker listens on %s alone (bindAddress): they can connect only if something leads "
            "from there to here; set bindAddress=%s, or leave one of the two out",
            given, bind, given if is_local(address) else ALL[0],
        )  # fmt: skip


def resolved(host: str) -> str:
    """An ip; "" when the name is not known."""
    with contextlib.suppress(OSError, UnicodeError):
        return str(socket.getaddrinfo(host, None)[0][4][0])
    return ""


def is_local(address: str) -> bool:
    """Whether this machine has this address: only then a socket can be bound to it."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def reachable(bind: str) -> str:
    """The address to give to others when we listen on this one."""
    if bind not in ALL:
        return bind
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # no packet is sent; the system only chooses the interface
            return str(probe.getsockname()[0])
        except OSError:
            return LOOPBACK
