"""Real processes: who floods the broker with new names does not stop the others; two brokers of one name; a full disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from roquet.wire.calls.members import ConsumerData, HeartbeatBody
from roquet.wire.calls.routes import RouteInfo
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.process.line import Line, create_topic, opaques, send_message
from tests.process.programs import Nursery, Server

WAIT_S = 5.0
"""Longer than a Java client's timeout of 3 s; before there was a bound, the longest wait was 30 s on an idle machine."""


def heartbeat(group: str) -> Command:
    body = HeartbeatBody(client_id=f"client of {group}", consumer_data_set=[ConsumerData(group_name=group)])
    return Command(RequestCode.HEART_BEAT, {}, body.encode())


def route(name_server: Server, topic: str) -> RouteInfo | None:
    with Line(name_server.address) as line:
        answer = line.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}))
    return None if answer.code == ResponseCode.TOPIC_NOT_EXIST else RouteInfo.decode(answer.body)


def wait_for_master(name_server: Server, address: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        found = route(name_server, "broker-a")
        if found is not None and found.broker_datas[0].broker_addrs.get(0) == address:
            return
        assert time.monotonic() < deadline, f"expected {address}, found {found}"
        time.sleep(0.05)


def flood(address: tuple[str, int], commands: list[Command], codes: list[int]) -> None:
    """All of them at once, and then the answers."""
    with Line(address, timeout_s=120) as line:
        for command in commands:
            command.opaque = next(opaques)
        line.send(b"".join(command.encode() for command in commands))
        while len(codes) < len(commands):
            answer = line.receive()
            assert answer is not None
            if answer.is_response:
                codes.append(answer.code)


@pytest.mark.parametrize("what", ["groups", "topics"])
def test_honest_sends_go_on_while_four_connections_bring_thousands_of_new_names(what: str, nursery: Nursery, tmp_path: Path) -> None:
    settings = {"brokerFastFailureEnable": "false"}  # a machine that is busy with other things is not what is tested here
    with (
        nursery.name_server(tmp_path / "ns") as name_server,
        nursery.broker(tmp_path / "broker", settings | {"namesrvAddr": "{}:{}".format(*name_server.address)}) as broker,
        Line(broker.address) as honest,
    ):
        assert honest.ask(create_topic("honest", 1)).code == 0
        answers: list[list[int]] = [[] for _ in range(4)]
        threads = []
        for number, codes in enumerate(answers):
            if what == "groups":
                commands = [heartbeat(f"flood-{number}-{n}") for n in range(700)]
            else:
                commands = [send_message(f"flood-{number}-{n}", b"x") for n in range(700)]
            threads.append(threading.Thread(target=flood, args=(broker.address, commands, codes)))
        for thread in threads:
            thread.start()
        waits: list[float] = []
        while any(thread.is_alive() for thread in threads) or len(waits) < 20:
            began = time.monotonic()
            assert honest.ask(send_message("honest", b"x")).code == 0
            waits.append(time.monotonic() - began)
        for thread in threads:
            thread.join()
        assert [len(codes) for codes in answers] == [700] * 4
        assert max(waits) < WAIT_S
        assert route(name_server, "honest") is not None
        counts = {code: sum(codes.count(code) for codes in answers) for code in {code for codes in answers for code in codes}}
        if what == "groups":
            assert counts == {0: 2_800}, "they wait for their turn, and nobody is refused"
        else:
            assert set(counts) == {0, ResponseCode.SYSTEM_BUSY}
            assert counts[0] >= 1_000, "ten seconds' worth at once"


def test_the_first_of_two_brokers_of_one_name_has_its_route_back_seconds_after_the_second_left(nursery: Nursery, tmp_path: Path) -> None:
    with nursery.name_server(tmp_path / "ns") as name_server:
        where = {"namesrvAddr": "{}:{}".format(*name_server.address)}
        with nursery.broker(tmp_path / "one", where) as one:
            with nursery.broker(tmp_path / "two", where) as two:
                wait_for_master(name_server, f"127.0.0.1:{two.address[1]}", 10)
                one.program.wait_for("another broker has the same brokerName and brokerId", 30)
                two.stop()
            wait_for_master(name_server, f"127.0.0.1:{one.address[1]}", 10)
        assert "Two brokers must not have the same name and id" in name_server.program.text
