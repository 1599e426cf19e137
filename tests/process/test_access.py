"""Access control in processes: a master and its slave, a group whose members are given by name, a key that is taken away, and floods."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from roquet import Message, Producer
from roquet.cli.shards import free_ports
from roquet.errors import ClientError
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.frame import FRAME_SIZE_MAX
from tests.access.people import TEXT, key_of, signed
from tests.broker.whole import send_fields
from tests.process.line import Line
from tests.process.programs import PATIENCE_S, SMALL_FILES, Nursery, Server

SERVED_WITHIN_CPU_S = 1.0
"""What an honest client waits at most, by the server's processor time: the machine may have other work."""
TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0", "order": "false",
}  # fmt: skip


def guarded(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(TEXT)
    file.chmod(0o600)
    return {"aclEnable": "true", "aclFile": str(file)}


def send(body: bytes = b"body") -> Command:
    return Command(Code.SEND_MESSAGE_V2, send_fields(), body)


def create_topic(line: Line) -> None:
    assert line.ask(signed(Command(Code.UPDATE_AND_CREATE_TOPIC, dict(TOPIC)), "admin")).code == 0


def test_a_slave_with_the_same_accounts_copies_its_master(nursery: Nursery, tmp_path: Path) -> None:
    pair = {**SMALL_FILES, **guarded(tmp_path), "brokerName": "broker-a", "slaveTimeout": "30000"}
    master = nursery.broker(tmp_path / "master", {**pair, "brokerRole": "SYNC_MASTER"})
    ha = f"{master.address[0]}:{master.address[1] + 1}"
    slave = nursery.broker(tmp_path / "slave", {**pair, "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": ha})
    master.program.wait_for("is sent what follows")
    assert "refused:" not in master.program.text, "it shows who it is before it asks for the log"
    with master, slave, Line(master.address) as line:
        create_topic(line)
        assert line.ask(signed(send(b"on both"), "producer")).code == 0, "a slave has it"
        assert line.ask(send(b"unsigned")).code == 1


def test_a_group_whose_members_are_given_by_name_elects_a_leader(nursery: Nursery, tmp_path: Path) -> None:
    """Nobody knows where a name leads: they sign what they ask each other, and name servers let their registrations in."""
    keys = guarded(tmp_path)
    ids = ("n0", "n1", "n2")
    ports = free_ports(3, "127.0.0.1")
    peers = ";".join(f"{name}-localhost:{port}" for name, port in zip(ids, ports, strict=True))
    with nursery.name_server(tmp_path / "names", keys) as names:
        namesrv = "{}:{}".format(*names.address)
        group = {
            **SMALL_FILES, **keys, "namesrvAddr": namesrv, "registerBrokerTimeoutMills": "6000", "enableDLegerCommitLog": "true",
            "dLegerPeers": peers,
        }  # fmt: skip
        members = [nursery.begin_broker(tmp_path / name, group | {"dLegerSelfId": name}) for name in ids]
        try:
            asyncio.run(sent(namesrv))
            for member in members:
                assert "refused:" not in member.program.text
            with Line(("127.0.0.1", ports[0])) as stranger:
                stranger.send(Command(51_001, {}, b"{}").encode())
                assert stranger.receive() is None
            members[0].program.wait_for("the DLedger port")
        finally:
            for member in members:
                member.kill()


async def sent(namesrv: str) -> None:
    async with asyncio.timeout(PATIENCE_S), Producer("p", namesrv, credentials=key_of("default")) as producer:
        while True:
            with contextlib.suppress(ClientError):
                await producer.send(Message("orders", b"x"))
                return
            await asyncio.sleep(0.1)


def test_a_key_that_is_taken_away_is_refused_on_connections_that_are_open(nursery: Nursery, tmp_path: Path) -> None:
    keys = guarded(tmp_path)
    with nursery.broker(tmp_path / "broker", {**SMALL_FILES, **keys}) as broker, Line(broker.address) as line:
        create_topic(line)
        assert line.ask(signed(send(), "producer")).code == 0
        Path(keys["aclFile"]).write_text(TEXT.replace("producer-key", "other-key"))
        broker.program.wait_for("the acl files have changed")
        answer = line.ask(signed(send(), "producer"))
        assert (answer.code, "No acl config for producer-key" in (answer.remark or "")) == (1, True)


class Flood:
    """Threads that do the same again and again, each on a new connection when the server has closed the old one."""

    def __init__(self, server: Server, frame: Callable[[int], bytes], threads: int = 4) -> None:
        self._server = server
        self._frame = frame
        self._over = threading.Event()
        self.sent = 0
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError), Line(self._server.address, timeout_s=10) as line:
                while not self._over.is_set():
                    line.send(self._frame(number))
                    self.sent += 1
                    if line.receive() is None:
                        break

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def honest(server: Server, ask: Command, who: str) -> None:
    """On a new connection each time: nobody knows it yet."""
    before = server.cpu_s
    with Line(server.address) as line:
        assert line.ask(signed(ask, who)).code == 0
    took = server.cpu_s - before
    assert took < SERVED_WITHIN_CPU_S, f"served after {took:.2f} s of the server's work"


def wrong(body: bytes = b"guess") -> bytes:
    command = signed(send(body), "producer")
    command.body = b"x" + command.body[1:]
    return command.encode()


def test_honest_clients_are_served_during_floods_of_strangers(nursery: Nursery, tmp_path: Path) -> None:
    """Of wrong signatures, of large ones, of requests without a key: from the same address, too."""
    frames = {
        "small": wrong(), "large": wrong(bytes(900_000)), "no key": send().encode(),
        "fields": signed(Command(Code.SEND_MESSAGE_V2, send_fields() | {f"f{n}": "x" for n in range(40_000)}, b""), "producer").encode(),
    }  # fmt: skip
    with nursery.broker(tmp_path / "broker", guarded(tmp_path)) as broker:
        with Line(broker.address) as line:
            create_topic(line)
        grown = broker.rss
        for name, frame in frames.items():
            with Flood(broker, lambda number, frame=frame: frame) as flood:  # type: ignore[misc]
                deadline = time.monotonic() + PATIENCE_S
                while flood.sent < 60:
                    assert time.monotonic() < deadline, name
                    time.sleep(0.01)
                for _ in range(5):
                    honest(broker, send(), "producer")
        assert broker.rss - grown < 64 << 20
        assert "Traceback" not in broker.program.text
        assert broker.program.text.count("refused:") < 200, "the log is not theirs to fill"
        assert broker.program.text.count("closed:") < 400


def test_sixteen_megabytes_of_somebody_who_is_not_known_are_not_taken(nursery: Nursery, tmp_path: Path) -> None:
    keys = guarded(tmp_path)
    head = FRAME_SIZE_MAX.to_bytes(4, "big") + (100).to_bytes(4, "big")
    with nursery.broker(tmp_path / "broker", keys) as broker, nursery.name_server(tmp_path / "names", keys) as names:
        before = broker.rss
        for _ in range(20):
            with Line(broker.address) as line:
                line.send(head)  # the length is enough: no byte of the body is waited for
                assert line.receive() is None
        assert broker.rss - before < 16 << 20
        # A broker's first word to a name server may be all its topics: there it is taken, refused, and not kept.
        before = names.rss
        whole = Command(Code.REGISTER_BROKER, {"brokerName": "b"}, b"")
        large = Command(Code.REGISTER_BROKER, {"brokerName": "b"}, bytes(FRAME_SIZE_MAX - len(whole.encode())))
        for _ in range(3):
            with Line(names.address) as line:
                answer = line.ask(large)
                assert "No accessKey is configured" in (answer.remark or "")
        with Line(names.address) as line:
            assert line.ask(signed(Command(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), "nobody")).code == 0
        assert names.rss - before < 64 << 20


def test_thousands_of_connections_of_strangers_keep_nobody_out(nursery: Nursery, tmp_path: Path) -> None:
    """Silent ones, and ones that asked once without a key: one address has 1,000 of each, and the others are closed."""
    with nursery.broker(tmp_path / "broker", guarded(tmp_path)) as broker, contextlib.ExitStack() as stack:
        with Line(broker.address) as line:
            create_topic(line)
        lines = [stack.enter_context(Line(broker.address)) for _ in range(1_200)]
        assert lines[0].receive() is None, "the oldest goes"
        for number in range(3):
            honest(broker, send(b"%d" % number), "producer")
        broker.program.wait_for("of its connections have said nothing yet")
