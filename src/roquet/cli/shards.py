"""The brokers of one machine: groups that share nothing (`--shards`), and in a group one broker, or copies of it (`--slave`, `--replicas`).

broker-0                    a group of one
broker-0, broker-0-slave    a master that acknowledges what its slave has, and the slave
broker-0-n0, -n1, -n2       a DLedger group, which chooses its master by itself
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import sample

from roquet.cli.render import note
from roquet.errors import BadSetting
from roquet.listening import bind_address, given_address
from roquet.settings import BrokerSettings
from roquet.settings_file import BROKER_FILE
from roquet.supervisor import Program, shard_name

SHARDS_MAX = 256
PORTS_APART = 10
"""Between the brokers of one machine."""
LOWEST_PORT, OUTGOING_PORTS = 12_000, 32_768
"""Where ports are looked for, and where those begin that Linux gives to outgoing connections unless somebody says otherwise."""
REPLICAS_MAX = 9
HA_PORT, DLEDGER_PORT = 1, 4
TAKEN = (0, -2, HA_PORT, DLEDGER_PORT)
"""Ports of a broker, from listenPort: its own, the VIP channel's, for slaves, for its DLedger group."""


@dataclass(frozen=True)
class Node:
    """One broker process."""

    name: str
    settings: BrokerSettings
    copying: Mapping[str, str] = field(default_factory=dict)
    """What makes it one of several copies, under RocketMQ's names."""


def nodes(base: BrokerSettings, shards: int, root: str, *, slave: bool = False, replicas: int = 1) -> list[Node]:
    """The brokers of `shards` groups: own ports, own directories under `root`."""
    if shards > SHARDS_MAX:
        raise BadSetting(f"--shards {shards}: allowed are 1 to {SHARDS_MAX}")
    if replicas % 2 == 0 or replicas > REPLICAS_MAX:
        raise BadSetting(f"--replicas {replicas}: expected 3, 5, 7 or 9; an even number survives no more failures than one less")
    if shards * replicas > 1 and base.store_path_commit_log:
        raise BadSetting("storePathCommitLog cannot be shared by shards; leave it out, and each keeps its log in its own directory")
    host = given_address(base.replace(bind_address=bind_address(base)))
    each = 2 if slave else replicas
    ports = ports_of(base, shards * each)
    found: list[Node] = []
    for shard in range(shards):
        name, home, own = shard_name(base.broker_name, shard), f"broker-{shard}", ports[shard * each : (shard + 1) * each]
        settings = base.replace(broker_name=name)
        if slave:
            copying = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"{host}:{own[0] + HA_PORT}"}
            found += [
                node(settings, name, own[0], root, home, {"brokerRole": "SYNC_MASTER"}),
                node(settings, f"{name}-slave", own[1], root, f"{home}-slave", copying),
            ]
        elif replicas > 1:
            peers = ";".join(f"n{number}-{host}:{port + DLEDGER_PORT}" for number, port in enumerate(own))
            group = {"enableDLegerCommitLog": "true", "dLegerGroup": name, "dLegerPeers": peers}
            for number, port in enumerate(own):
                found.append(node(settings, f"{name}-n{number}", port, root, f"{home}-n{number}", group | {"dLegerSelfId": f"n{number}"}))
        else:
            found.append(node(settings, name, own[0], root, home, {}))
    return found


def node(settings: BrokerSettings, name: str, port: int, root: str, home: str, copying: Mapping[str, str]) -> Node:
    directory = os.path.join(root, home)
    kept = os.path.join(directory, BROKER_FILE)
    return Node(name, settings.replace(listen_port=port, store_path_root_dir=directory, config_store_path=kept), copying)


def ports_of(base: BrokerSettings, count: int) -> list[int]:
    first = base.listen_port
    if not first:
        return free_ports(count, bind_address(base))
    if first + PORTS_APART * (count - 1) > 65_535:
        raise BadSetting(f"{count} brokers from port {first}, {PORTS_APART} apart, end above 65535; choose a lower first port or 0")
    return [first + PORTS_APART * number for number in range(count)]


def free_ports(count: int, bind: str) -> list[int]:
    """Ports that are free now, each with the others that its broker takes. They are fixed here, so that a broker which dies comes back at
    the address that clients know; and they are none of those that the system gives to outgoing connections, since one of these could
    have it then."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    held: list[socket.socket] = []
    found: list[int] = []
    try:
        for candidate in sample(range(LOWEST_PORT, outgoing_ports() - max(TAKEN)), 1_000):
            if len(found) == count:
                return found
            held += (group := [socket.socket(family) for _ in TAKEN])
            try:
                for one, step in zip(group, TAKEN, strict=True):
                    one.bind((bind, candidate + step))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            found.append(candidate)
    finally:
        for one in held:
            one.close()
    raise BadSetting(f"no {count} sets of free ports on {bind}; give a first port instead of 0")


def outgoing_ports() -> int:
    """The first of them."""
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = OUTGOING_PORTS
    return first if first - LOWEST_PORT > 2_000 else 65_536 - max(TAKEN)  # they are nearly all: then any may do


def broker_program(broker: Node, arguments: argparse.Namespace) -> Program:
    """The command of one of them: the same file and --set options, then what is its own."""
    settings = broker.settings
    own = {
        "brokerName": settings.broker_name,
        "listenPort": str(settings.listen_port),
        "storePathRootDir": settings.store_path_root_dir,
        "configStorePath": settings.config_store_path,
        "bindAddress": settings.bind_address,
        "namesrvAddr": settings.namesrv_addr,
        **broker.copying,
    }
    parts = [sys.executable, "-m", "roquet", "broker", "--stop-with-parent"]
    if getattr(arguments, "config", None):
        parts += ["-c", arguments.config]
    for key, value in [*arguments.set, *own.items()]:
        parts += ["--set", f"{key}={value}"]
    if arguments.verbose:
        parts.append("--verbose")
    return Program(broker.name, parts)


def warn_of_stores_left_out(root: str, brokers: list[Node]) -> None:
    """A store that no broker opens is a cluster with messages missing: say so."""
    served = {Path(broker.settings.store_path_root_dir).name for broker in brokers}
    for directory in sorted(Path(root).glob("broker-*")):
        if directory.name not in served and (directory / "commitlog").exists():
            number = directory.name.removeprefix("broker-")
            more = f"--shards {int(number) + 1}" if number.isdigit() else "the --shards, --slave or --replicas of that run"
            note(f"roquet: {directory} holds messages of an earlier run and is not served; serve it with {more}")
