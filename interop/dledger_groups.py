"""A DLedger group of Apache's members and Roquet's: each of them leads, each is killed while it leads, and all hold the same bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apache
import orjson
from replication import QUEUES, TOPIC, Connection
from report import Section
from store_exchange import Peer

from roquet.errors import Broken
from roquet.raft.codes import Call, Code
from roquet.wire.codes import ResponseCode
from roquet.wire.record import decode_records

GROUP = "broker-a"
A_ROUND = 100
HAND_OVERS = 3
"""How often a member is asked to lead: a Java one gives up after a while, which is short on a busy machine."""
FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 600, "maxHashSlotNum": 100, "maxIndexNum": 400,
    "waitTimeMillsInSendQueue": 10_000, "enableDLegerCommitLog": True, "dLegerGroup": GROUP,
}  # fmt: skip

GONE = (OSError, Broken, apache.InteropError)
"""What asking a member that is not there, or goes, ends with."""


class Group:
    """State: the members that run, by number, and what was acknowledged."""

    def __init__(self, peers: Sequence[Peer], namesrv: str, directory: Path) -> None:
        self.peers = peers
        self.namesrv = namesrv
        self.directory = directory
        self.ports = [apache.free_port() for _ in peers]
        self.group_ports = [apache.free_port() for _ in peers]
        self.acknowledged: list[int] = []
        self.sent = 0
        self.members: dict[int, apache.Server] = {}
        with ThreadPoolExecutor(len(peers)) as pool:  # each is only up when a majority is
            for number, server in zip(range(len(peers)), pool.map(self.start, range(len(peers))), strict=True):
                self.members[number] = server

    def start(self, number: int) -> apache.Server:
        listed = ";".join(f"n{each}-127.0.0.1:{port}" for each, port in enumerate(self.group_ports))
        settings = FILES | {"dLegerPeers": listed, "dLegerSelfId": f"n{number}"}
        return self.peers[number].broker(self.ports[number], self.namesrv, self.directory / f"n{number}", settings)

    def ask(self, number: int, code: int, **fields: object) -> dict[str, Any]:
        body = orjson.dumps({"group": GROUP, "remoteId": f"n{number}", **fields})
        found: dict[str, Any] = orjson.loads(Connection(f"127.0.0.1:{self.group_ports[number]}").ask(code, body=body).body)
        return found

    def leader(self) -> int | None:
        for number in self.members:
            with contextlib.suppress(*GONE, ValueError):
                if self.ask(number, Call.METADATA).get("leaderId") == f"n{number}":
                    return number
        return None

    def wait_leader(self, but: int | None = None) -> int:
        apache.wait_until(lambda: self.leader() not in (None, but), "a leader")
        found = self.leader()
        return self.wait_leader(but) if found is None else found

    def send(self, count: int = A_ROUND) -> None:
        """So many messages to whoever leads; what is refused, or not answered, is another message the next time."""
        target = len(self.acknowledged) + count
        line: Connection | None = None

        def one() -> bool:
            nonlocal line
            try:
                if line is None:
                    line = Connection(f"127.0.0.1:{self.ports[self.wait_leader()]}")
                self.sent += 1
                if line.send(self.sent) == ResponseCode.SUCCESS:
                    self.acknowledged.append(self.sent)
                    return len(self.acknowledged) >= target
                line = None
            except GONE:
                line = None
            return False

        apache.wait_until(one, f"{count} acknowledged messages", every_s=0)

    def hand_over(self, to: int) -> int:
        """The code of the answer."""
        leader = self.wait_leader()
        if leader == to:
            return Code.SUCCESS
        for term in range(1_000):
            answer = self.ask(leader, Call.LEADERSHIP_TRANSFER, transferId=f"n{leader}", transfereeId=f"n{to}", term=term)
            if answer["code"] != Code.INCONSISTENT_TERM:
                return int(answer["code"])
        return Code.INCONSISTENT_TERM

    def ledgers(self) -> list[bytes]:
        directories = [self.directory / f"n{number}" / "store" / f"dledger-n{number}" / "data" for number in range(len(self.peers))]
        return [b"".join(file.read_bytes() for file in sorted(each.iterdir())) for each in directories]

    def stored(self) -> set[str]:
        """Unique keys of what a consumer gets from the leader."""
        line = Connection(f"127.0.0.1:{self.ports[self.wait_leader()]}")
        found: set[str] = set()
        for queue in range(QUEUES):
            offset = 0
            while (pulled := line.pulled(queue, offset))[0] == ResponseCode.SUCCESS:
                records = decode_records(pulled[2])
                found |= {one.properties.decode().rpartition("UNIQ_KEY\x01")[2].partition("\x02")[0] for one in records}
                offset += len(records)
        return found

    def stop(self) -> None:
        for server in self.members.values():
            server.kill()


def check(section: Section, peers: Sequence[Peer], directory: Path, names: Peer) -> None:
    with names.name_server(apache.free_port(), directory / "namesrv") as namesrv:
        group = Group(peers, namesrv.address, directory)
        try:
            run(section, group)
        finally:
            group.stop()


def run(section: Section, group: Group) -> None:
    group.send()
    for number, peer in enumerate(group.peers):
        code, led = 0, False
        for _ in range(HAND_OVERS):
            code = group.hand_over(number)
            with contextlib.suppress(apache.InteropError):  # the answer may come before the old leader knows that it is one no more
                apache.wait_until(lambda number=number: group.leader() == number, "the new leader", timeout_s=15)  # type: ignore[misc]
            led = group.leader() == number
            if led:
                break
        section.judge(f"n{number} ({peer.name}) is handed the leadership", None if led else f"it does not lead, the answer was {code}")
        group.send()
    for _ in group.peers:
        leader = group.wait_leader()
        group.members.pop(leader).kill()
        group.wait_leader(leader)
        group.send()
        group.members[leader] = group.start(leader)
        group.send()
    missing = sorted({f"u{number}" for number in group.acknowledged} - group.stored())
    section.judge(
        f"nothing acknowledged of {TOPIC} is lost when each leader is killed",
        f"{len(missing)} of {len(group.acknowledged)} are: {missing[:5]}" if missing else None,
    )
    with contextlib.suppress(apache.InteropError):
        apache.wait_until(lambda: len(set(group.ledgers())) == 1, "equal ledgers", timeout_s=30)
    section.judge("all members hold the same bytes", None if len(set(group.ledgers())) == 1 else "their data files differ")
