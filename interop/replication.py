"""Master and slave, one of them Apache's: the slave follows, a sync master waits for it, and both hold the same bytes.

Requests are made by hand, one connection each, so that every answer's code is seen.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import apache
from report import Section
from store_exchange import Peer

from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer

TOPIC = "Replicated"
QUEUES = 4
FILES: dict[str, object] = {
    "mappedFileSizeCommitLog": 65_536, "mappedFileSizeConsumeQueue": 600, "maxHashSlotNum": 100, "maxIndexNum": 400,
    "slaveTimeout": 3_000, "waitTimeMillsInSendQueue": 10_000,
}  # fmt: skip
"""Small files, so that some end while they are copied."""


class Connection:
    """One connection, one request at a time."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), apache.PATIENCE_S)
        self._framer = Framer()
        self._opaque = 0

    def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        self._opaque += 1
        self._socket.sendall(Command(code, fields or {}, body, opaque=self._opaque).encode())
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise apache.InteropError(f"the server closed the connection instead of answering request {code}")
            for frame in self._framer.feed(data):
                answer = decode(frame)
                if answer.is_response and answer.opaque == self._opaque:
                    return answer

    def send(self, number: int) -> int:
        """A message; the code of its answer."""
        fields = {
            "a": "P", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(number % QUEUES), "f": "0", "g": "1", "h": "0",
            "i": f"KEYS\x01k{number}\x02TAGS\x01t{number % 3}\x02UNIQ_KEY\x01u{number}", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return self.ask(RequestCode.SEND_MESSAGE_V2, fields, b"%d|" % number * (number % 97 + 1)).code

    def runtime(self) -> dict[str, str]:
        table: dict[str, str] = json.loads(self.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
        return table

    def max_offsets(self) -> list[str | None]:
        return [
            self.ask(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue)}).fields.get("offset") for queue in range(QUEUES)
        ]

    def pulled(self, queue: int, offset: int) -> tuple[int, str | None, bytes]:
        """(code, remark, records)."""
        fields = {
            "consumerGroup": "G", "topic": TOPIC, "queueId": str(queue), "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
        }  # fmt: skip
        answer = self.ask(RequestCode.PULL_MESSAGE, fields)
        return answer.code, answer.remark, answer.body


def differing_files(master: Path, slave: Path, end: int) -> list[str]:
    """Files of the slave's log that are not the master's, up to this offset."""
    wrong = []
    for path in sorted((slave / "store" / "commitlog").iterdir()):
        if path.name.isdigit():
            size = max(0, min(65_536, end - int(path.name)))
            if size and path.read_bytes()[:size] != (master / "store" / "commitlog" / path.name).read_bytes()[:size]:
                wrong.append(path.name)
    return wrong


def check(section: Section, master: Peer, slave: Peer, directory: Path) -> None:
    """One pair, its slave killed and started again, then its master."""
    with master.name_server(apache.free_port(), directory / "namesrv") as namesrv:
        master_port, slave_port = apache.free_port(), apache.free_port()

        def start(peer: Peer, port: int, name: str, role: str, number: int) -> apache.Server:
            return peer.broker(port, namesrv.address, directory / name, FILES | {"brokerRole": role, "brokerId": number})

        def until_sync(line: Connection) -> None:
            apache.wait_until(lambda: line.send(0) == ResponseCode.SUCCESS, "a send that the slave has confirmed", every_s=0.2)

        def compare(what: str, line: Connection, other: Connection) -> None:
            end = line.runtime()["commitLogMaxOffset"]
            apache.wait_until(lambda: other.runtime()["commitLogMaxOffset"] == end, "the slave at the master's end")
            apache.wait_until(lambda: other.max_offsets() == line.max_offsets(), "the slave's queues at the master's")
            wrong = differing_files(directory / "master", directory / "slave", int(end))
            section.judge(f"{what}: both logs have the same bytes", f"they differ in {wrong}" if wrong else None)
            for queue, ends in enumerate(line.max_offsets()):
                expected, found = (each.pulled(queue, int(ends or 0) - 5) for each in (line, other))
                # How many come in one answer is the broker's to decide: they end with a file of the queue, say.
                size = min(len(expected[2]), len(found[2]))
                if expected[:2] != found[:2] or not size or expected[2][:size] != found[2][:size]:
                    section.fail(f"{what}: a consumer gets the same from both", f"{expected[:2]} and {found[:2]} of queue {queue}")
                    return
            section.ok(f"{what}: a consumer gets the same from both")

        first = start(master, master_port, "master", "SYNC_MASTER", 0)
        with first:
            line = Connection(first.address)
            codes = {line.send(number) for number in range(400)}
            section.judge("without a slave every send says so", None if codes == {11} else f"codes {codes}")
            second = start(slave, slave_port, "slave", "SLAVE", 1)
            with second:
                until_sync(line)
                codes = {line.send(number) for number in range(400, 800)}
                section.judge("with a slave every send is confirmed by it", None if codes == {0} else f"codes {codes}")
                other = Connection(second.address)
                apache.wait_until(lambda: TOPIC.encode() in other.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body, "the topic on the slave")
                compare("following", line, other)
                refused = other.send(1)
                section.judge("the slave takes no messages", None if refused == 14 else f"code {refused}")
                second.kill()
            for number in range(50):
                line.send(number)
            with start(slave, slave_port, "slave", "SLAVE", 1) as again:
                until_sync(line)
                compare("after a kill of the slave", line, Connection(again.address))
                first.kill()
                with start(master, master_port, "master", "SYNC_MASTER", 0) as back:
                    line = Connection(back.address)
                    until_sync(line)
                    compare("after a kill of the master", line, Connection(again.address))
