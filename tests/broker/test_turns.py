"""One turn of the loop: how much of what arrived is done before others get theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.broker import core
from roquet.broker.handler import Portions
from roquet.broker.topics import Topic
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.store.disk import Cold
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command, from_json
from roquet.wire.frame import Frame, Framer

from .conftest import FakePeer
from .whole import Whole, send_fields

SLOW = 9_999
"""A request of the test's own."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    yield made
    made.close()


def frames_of(*commands: Command) -> list[Frame]:
    return [frame for command in commands for frame in Framer().feed(command.encode())]


def plain_send(opaque: int) -> Command:
    return Command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body", opaque=opaque)


def taking(whole: Whole, ms: int) -> list[int]:
    """From now on a SLOW request takes so long; returns the opaques of those that were handled."""
    handled: list[int] = []

    def handle(peer: Peer, command: Command) -> Command:
        handled.append(command.opaque)
        whole.clock.forward(ms)
        return command.reply()

    whole.broker.table[SLOW] = handle
    return handled


def test_a_turn_ends_with_the_request_that_uses_it_up_and_the_rest_comes_back_in_order(whole: Whole) -> None:
    handled = taking(whole, 4)
    frames = frames_of(*[Command(SLOW, opaque=n) for n in range(10)])
    peer, turns = FakePeer(), 0
    rest: list[Frame] | None = frames
    while rest is not None:
        before = len(handled)
        rest = whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10)
        assert len(handled) - before <= 3
        turns += 1
    assert turns == 4
    assert handled == [answer.opaque for answer in peer.take()] == list(range(10))


def test_in_a_turn_that_is_over_plain_sends_are_taken_and_what_is_behind_another_request_waits_with_it(whole: Whole) -> None:
    whole.broker.topics.put(Topic("T", 4, 4))
    handled = taking(whole, 1)
    peer = FakePeer()
    frames = frames_of(plain_send(1), plain_send(2), Command(SLOW, opaque=3), plain_send(4))
    rest = whole.broker.receive(peer, frames, whole.clock.steady_ms())
    assert [answer.opaque for answer in peer.take()] == [1, 2]
    assert rest == frames[2:]
    assert not handled
    assert whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10) is None
    assert sorted(answer.opaque for answer in peer.take()) == [3, 4]


def test_a_request_that_takes_a_whole_turn_to_be_read_is_handled_in_it(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    handled = taking(whole, 1)
    real = from_json

    def slowly(head: Any, body: bytes) -> Command:
        whole.clock.forward(30)
        return real(head, body)

    monkeypatch.setattr(core, "from_json", slowly)
    rest = whole.broker.receive(FakePeer(), frames_of(Command(SLOW, opaque=1), Command(SLOW, opaque=2)), whole.clock.steady_ms() + 10)
    assert handled == [1]
    assert rest is not None
    assert len(rest) == 1


def in_portions(whole: Whole, portions: int, ms: int) -> None:
    def work(peer: Peer, command: Command) -> Portions:
        for _ in range(portions):
            whole.clock.forward(ms)
            yield None
        return command.reply(0, "done")

    whole.broker.table[SLOW] = work


def test_work_in_portions_goes_on_turn_by_turn_before_what_came_behind_it(whole: Whole) -> None:
    in_portions(whole, 10, 5)
    handled = taking_other(whole)
    peer, turns = FakePeer(), 0
    rest = whole.broker.receive(peer, frames_of(Command(SLOW, opaque=1), Command(SLOW + 1, opaque=2)), whole.clock.steady_ms() + 10)
    while rest is not None:
        assert not handled
        rest = whole.broker.receive(peer, rest, whole.clock.steady_ms() + 10)
        turns += 1
    assert turns == 5
    assert [(answer.opaque, answer.remark) for answer in peer.take()] == [(1, "done"), (2, None)]


def taking_other(whole: Whole) -> list[int]:
    handled: list[int] = []

    def handle(peer: Peer, command: Command) -> Command:
        handled.append(command.opaque)
        return command.reply()

    whole.broker.table[SLOW + 1] = handle
    return handled


def test_portions_of_a_connection_that_is_gone_are_not_worked_on(whole: Whole) -> None:
    in_portions(whole, 10, 20)
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(Command(SLOW)), whole.clock.steady_ms() + 10) == []
    peer.closed = True
    whole.broker.disconnected(peer)
    before = whole.clock.steady_ms()
    assert whole.broker.receive(peer, [], before + 10) is None
    assert whole.clock.steady_ms() == before
    assert not peer.sent


def test_a_portion_that_needs_the_disk_goes_on_when_the_disk_has_answered(whole: Whole) -> None:
    fetched: list[int] = []

    def work(peer: Peer, command: Command) -> Portions:
        for n in range(3):
            yield Cold(lambda n=n: fetched.append(n))  # type: ignore[misc]
        return command.reply(0, str(fetched))

    whole.broker.table[SLOW] = work
    peer = FakePeer()
    handled = taking_other(whole)
    frames = frames_of(Command(SLOW, opaque=1), Command(SLOW + 1, opaque=2))
    assert whole.broker.receive(peer, frames, whole.clock.steady_ms() + 10) is None
    assert handled == [2], "what is behind it does not wait for the disk"
    for _ in range(4):
        whole.background.release()
        whole.broker.tick(whole.clock.steady_ms())
    assert [answer.remark for answer in peer.take()] == [None, "[0, 1, 2]"]


def test_a_portion_that_raises_cold_begins_anew_and_one_that_fails_is_answered(whole: Whole) -> None:
    warm: list[int] = []

    def work(peer: Peer, command: Command) -> Portions:
        yield None
        if not warm:
            raise Cold(lambda: warm.append(1))
        raise Refused(7, "no")

    whole.broker.table[SLOW] = work
    peer = FakePeer()
    assert whole.broker.receive(peer, frames_of(Command(SLOW, opaque=1)), whole.clock.steady_ms() + 10) is None
    whole.background.release()
    whole.broker.tick(whole.clock.steady_ms())
    assert [(answer.code, answer.remark) for answer in peer.take()] == [(7, "no")]
