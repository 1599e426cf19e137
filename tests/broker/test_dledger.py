"""Brokers of a DLedger group and what goes wrong with them, in a simulation."""

from __future__ import annotations

from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.broker.simulated_group import SimulatedGroup
from tests.broker.whole import send_fields


def message(topic: str = "T", body: bytes = b"hello") -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, send_fields(topic), body)


def test_another_member_serves_when_the_leader_is_killed() -> None:
    group = SimulatedGroup()
    first = group.start()
    assert group.ask(first.address, message()).code == ResponseCode.SUCCESS
    first.kill()
    began_us = group.simulation.now_us
    second = group.leader(but=first)
    assert group.ask(second.address, message()).code == ResponseCode.SUCCESS
    assert group.simulation.now_us - began_us < 1_000_000


def test_a_follower_that_is_restarted_unseats_nobody() -> None:
    group = SimulatedGroup()
    leader = group.start()
    term = leader.core.group.member.term  # type: ignore[union-attr]
    for member in group.others(leader):
        member.kill()
        group.run(1.0)
        member.start()
        group.run(3.0)
    assert leader.serves
    assert [member.core.group.member.term for member in group.members] == [term] * 3  # type: ignore[union-attr]
