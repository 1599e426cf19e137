"""The ports where members of a group, and slaves, are met: whoever else comes there, the servers go on serving."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roquet.raft.codes import Call, Code
from roquet.raft.frames import command_of
from roquet.raft.messages import DensePush, HeartBeatRequest, MetadataRequest, PushRequest, Request, VoteRequest
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer
from roquet.wire.ledger_entry import Entry
from tests.process.line import Line, send_message
from tests.process.programs import PATIENCE_S, SMALL_FILES, Broker, Nursery
from tests.process.test_dledger_group import Group

GROWTH_MAX = 200 << 20


@pytest.fixture(scope="module")
def group(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    made = Group(nursery, tmp_path_factory.mktemp("group"), "ASYNC_FLUSH")
    for broker in made.brokers.values():  # two can elect one before the third listens
        broker.program.wait_for("boot success")
    until(lambda: bool(leaders(made)), "somebody leads")
    yield made
    made.close()


def leaders(group: Group) -> list[str]:
    return [name for name in group.brokers if group.leads(name)]


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def ports(group: Group) -> list[tuple[str, int]]:
    """Where members meet."""
    return [("127.0.0.1", int(peer.rpartition(":")[2])) for peer in group.settings["dLegerPeers"].split(";")]


def name_of_group(group: Group, name: str) -> str:
    with Line(group.brokers[name].address) as line:
        text = line.ask(Command(26)).body.decode()
    found = dict(row.partition("=")[::2] for row in text.splitlines())
    return found["dLegerGroup"] or found["brokerName"]


def serves(group: Group) -> None:
    """A send is acknowledged by a majority."""

    def accepted() -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            for name in leaders(group):
                with Line(group.brokers[name].address) as line:
                    return line.ask(send_message("T", b"still here")).code == ResponseCode.SUCCESS
        return False

    until(accepted, "a send is acknowledged")


@pytest.fixture
def served(group: Group) -> Iterator[Group]:
    """Before and after: the same one leads, and nobody has grown."""
    serves(group)
    before, sizes = leaders(group), {name: broker.rss for name, broker in group.brokers.items()}
    yield group
    serves(group)
    assert leaders(group) == before
    for name, broker in group.brokers.items():
        assert broker.rss - sizes[name] < GROWTH_MAX
        assert "Traceback" not in broker.program.text, broker.program.text[-3_000:]


RUBBISH = {
    "random bytes": random.Random(1).randbytes(65_536),
    "a length below zero": struct.pack(">i", -1) + b"x" * 100,
    "a length of two gigabytes": struct.pack(">i", 0x7FFFFFFF) + b"x" * 100,
    "a header longer than its frame": struct.pack(">ii", 20, 1_000) + b"x" * 16,
    "half a frame": struct.pack(">ii", 1_000, 500) + b"x" * 10,
    "what a browser sends": b"GET / HTTP/1.1\r\nHost: n0\r\n\r\n",
    "no JSON": Command(Call.VOTE, body=b"\xff\xfe").encode(),
    "a deep JSON": Command(Call.PUSH, body=b"[" * 100_000).encode(),
    "an array": Command(Call.HEART_BEAT, body=b"[]").encode(),
    "a body of no member's request": Command(Call.DENSE_PUSH, body=b"\0" * 7).encode(),
    "an unknown code": Command(59_999, body=b"{}").encode(),
}


@pytest.mark.parametrize("data", RUBBISH.values(), ids=RUBBISH.keys())
def test_rubbish_at_the_members_ports_harms_nobody(served: Group, data: bytes) -> None:
    lines = [Line(port) for port in ports(served) for _ in range(5)]
    for line in lines:
        with contextlib.suppress(OSError):
            line.send(data)
    serves(served)
    for line in lines:
        line.socket.close()


ODD: list[object] = [None, True, -1, 0, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 70, 0.5, "", "n0", "x" * 10_000, [], {}, [{}], "AAAA"]


def test_requests_with_odd_fields_change_nothing(served: Group) -> None:
    chance = random.Random(2)
    name = name_of_group(served, "n0")
    for member, port in zip(("n0", "n1", "n2"), ports(served), strict=True):
        with Line(port) as line:
            for _ in range(150):
                code = chance.choice(
                    [Call.VOTE, Call.HEART_BEAT, Call.PUSH, Call.GET, Call.APPEND, Call.METADATA, Call.LEADERSHIP_TRANSFER]
                )
                # Of terms only those that are refused: a larger one is what a real candidate would ask with.
                body = {"group": name, "remoteId": member, "localId": "n9", "leaderId": "n9", "term": chance.choice([-1, 0, 1 << 62])}
                for field in chance.sample(["type", "entry", "batchEntry", "commitIndex", "ledgerEndIndex", "everyMs", "count"], 4):
                    body[field] = chance.choice(ODD)
                with contextlib.suppress(OverflowError, TypeError):
                    answer = line.ask(Command(code, body=json.dumps(body).encode()))
                    assert answer is not None


def members_only(group: Group, member: str, leader: str, term: int) -> list[Request]:
    entry = Entry(1, 148, 5, term, 1_000, 0, 0, 0, b"x" * 100)
    requests: list[Request] = [
        VoteRequest(leader_id=leader, term=term, ledger_end_index=1 << 40, ledger_end_term=term),
        HeartBeatRequest(leader_id=leader, term=term),
        PushRequest(leader_id=leader, term=term, entries=[entry], commit_index=1 << 40),
        DensePush(leader_id=leader, term=term, first=5, count=1, data=b"x" * 100, ours=1),
    ]
    for request in requests:
        request.group, request.remote_id, request.local_id = name_of_group(group, member), member, leader
    return requests


def test_who_comes_from_another_address_than_a_member_s_is_refused_whatever_it_claims_to_be(served: Group) -> None:
    """It claims to be a member that leads in a later term."""
    for member, port in zip(("n0", "n1", "n2"), ports(served), strict=True):
        claimed = "n1" if member == "n0" else "n0"
        for request in members_only(served, member, claimed, 1_000_000):
            answer = ask_from("127.0.0.2", port, command_of(request))
            assert "dLegerRefuseStrangers" in (answer.remark or "")
        metadata = MetadataRequest(group=name_of_group(served, member), remote_id=member)
        answer = ask_from("127.0.0.2", port, command_of(metadata))
        assert json.loads(answer.body)["code"] == Code.SUCCESS  # tools may come from anywhere


def ask_from(host: str, port: tuple[str, int], command: Command) -> Command:
    with socket.create_connection(port, timeout=PATIENCE_S, source_address=(host, 0)) as raw:
        raw.sendall(command.encode())
        framer = Framer()
        while not (frames := framer.feed(raw.recv(1 << 16))):
            pass
        return decode(frames[0])


@pytest.mark.parametrize("term", [0, 1 << 62], ids=["an old term", "a term that nobody can have reached"])
def test_a_member_with_an_impossible_term_unseats_nobody(served: Group, term: int) -> None:
    for member, port in zip(("n0", "n1", "n2"), ports(served), strict=True):
        with Line(port) as line:
            for request in members_only(served, member, "n1" if member == "n0" else "n0", term):
                assert line.ask(command_of(request)) is not None


def test_entries_of_sixteen_megabytes_are_refused_one_after_the_other(served: Group) -> None:
    entry = Entry(1, 48 + (11 << 20), 5, 1, 1_000, 0, 0, 0, b"x" * (11 << 20))
    request = PushRequest(leader_id="n9", term=1 << 20, entries=[entry])
    for member, port in zip(("n0", "n1", "n2"), ports(served), strict=True):
        request.group, request.remote_id, request.local_id = name_of_group(served, member), member, "n9"
        with Line(port) as line:
            for _ in range(4):
                assert json.loads(line.ask(command_of(request)).body)["code"] == Code.UNKNOWN_MEMBER


def test_who_asks_and_never_reads_is_held_back(served: Group) -> None:
    request = command_of(MetadataRequest(group=name_of_group(served, "n0"), remote_id="n0")).encode()
    with Line(ports(served)[0], receive_buffer=4_096) as line:
        line.socket.settimeout(1)
        with contextlib.suppress(OSError, TimeoutError):
            for _ in range(2_000):
                line.send(request * 100)
        serves(served)


def test_a_thousand_idle_connections_keep_no_member_out(served: Group) -> None:
    lines: list[Line] = []
    try:
        for port in ports(served):
            for _ in range(1_000):
                with contextlib.suppress(OSError):
                    lines.append(Line(port))
        serves(served)
        follower = next(name for name in served.brokers if name not in leaders(served))
        served.brokers[follower].kill()
        served.restart(follower)
        serves(served)
        until(lambda: "FOLLOWER" in served.brokers[follower].program.text, "the restarted member follows its leader")
    finally:
        for line in lines:
            line.socket.close()


# The port for slaves

MASTER = {**SMALL_FILES, "brokerName": "broker-a", "brokerRole": "ASYNC_MASTER"}


@pytest.fixture(scope="module")
def master(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with nursery.broker(tmp_path_factory.mktemp("master"), MASTER) as broker:
        with Line(broker.address) as line:
            assert line.ask(send_message("T", b"x" * 100_000)).code == ResponseCode.SUCCESS
        yield broker


def ha_port(master: Broker) -> tuple[str, int]:
    return master.address[0], master.address[1] + 1


REPORTS = {
    "random bytes": random.Random(3).randbytes(65_536),
    "an offset below zero": struct.pack(">q", -1),
    "more than there is": struct.pack(">q", 1 << 62),
    "an acknowledgement of what was never sent": struct.pack(">qq", 0, 1 << 40),
    "half a report": b"\0\0\0",
    "many reports": struct.pack(">q", 0) * 200_000,
    "a frame of the other port": Command(34).encode(),
}


@pytest.mark.parametrize("data", REPORTS.values(), ids=REPORTS.keys())
def test_rubbish_at_the_slaves_port_harms_nobody(master: Broker, data: bytes) -> None:
    lines = [Line(ha_port(master)) for _ in range(5)]
    for line in lines:
        with contextlib.suppress(OSError):
            line.send(data)
    accepts(master)
    for line in lines:
        line.socket.close()


def accepts(master: Broker) -> None:
    with Line(master.address) as line:
        assert line.ask(send_message("T", b"still here")).code == ResponseCode.SUCCESS
    assert "Traceback" not in master.program.text, master.program.text[-3_000:]


def test_one_who_acknowledges_what_was_never_sent_is_closed(master: Broker) -> None:
    with Line(ha_port(master)) as line:
        line.send(struct.pack(">qq", 0, 1 << 40))
        with contextlib.suppress(ConnectionResetError):
            while line.socket.recv(1 << 16):
                pass
    accepts(master)


def test_idle_connections_keep_no_slave_out(nursery: Nursery, master: Broker, tmp_path: Path) -> None:
    lines: list[Line] = []
    try:
        for _ in range(500):
            with contextlib.suppress(OSError):
                lines.append(Line(ha_port(master)))
        host, port = ha_port(master)
        settings = {**MASTER, "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"{host}:{port}"}
        with nursery.broker(tmp_path, settings) as slave:
            slave.program.wait_for("is connected")
            accepts(master)
    finally:
        for line in lines:
            line.socket.close()


def test_readers_that_are_slow_and_acknowledge_all_hold_no_memory(master: Broker) -> None:
    before = master.rss
    lines = [Line(ha_port(master), receive_buffer=4_096) for _ in range(20)]
    try:
        for line in lines:
            line.send(struct.pack(">q", 0))
        with Line(master.address) as sender:
            for _ in range(100):
                assert sender.ask(send_message("T", b"y" * 500_000)).code == ResponseCode.SUCCESS
        accepts(master)
        assert master.rss - before < GROWTH_MAX
    finally:
        for line in lines:
            line.socket.close()
