"""The gate that every request passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.topics import Topic
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.testing import FakePeer
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer

from .whole import Whole, pull_fields, send_fields


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    made.broker.topics.put(Topic("T", 4, 4))
    yield made
    made.close()


def members_only(peer: Peer, command: Command) -> None:
    if not peer.principal:
        raise Refused(ResponseCode.NO_PERMISSION, f"request {command.code}: who are you?")


def ask(whole: Whole, peer: FakePeer, *commands: Command) -> list[tuple[int, int]]:
    whole.broker.receive(peer, Framer().feed(b"".join(command.encode() for command in commands)))
    return [(answer.opaque, answer.code) for answer in peer.take()]


def sends() -> list[Command]:
    """A plain one, a batch, one that is not plain: the three ways to the log."""
    return [
        Command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body", opaque=1),
        Command(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), join_batch([(0, b"a", b""), (0, b"b", b"")]), opaque=2),
        Command(RequestCode.SEND_MESSAGE_V2, send_fields(properties="DELAY\x011"), b"later", opaque=3),
    ]


def test_lets_everybody_in_when_there_is_no_guard(whole: Whole) -> None:
    assert whole.broker.admission.lets_plain_in()
    assert ask(whole, FakePeer(), *sends()) == [(1, 0), (2, 0), (3, 0)]


def test_a_guard_sees_every_send_whatever_way_it_takes(whole: Whole) -> None:
    whole.broker.admission.guards.append(members_only)
    stranger, member = FakePeer(), FakePeer()
    member.principal = "alice"
    end = whole.broker.store.log.end
    assert ask(whole, stranger, *sends()) == [(n, ResponseCode.NO_PERMISSION) for n in (1, 2, 3)]
    assert whole.broker.store.log.end == end, "nothing is stored"
    assert sorted(ask(whole, member, *sends())) == [(1, 0), (2, 0), (3, 0)]
    pull = Command(RequestCode.PULL_MESSAGE, pull_fields(), opaque=4)
    assert ask(whole, stranger, pull) == [(4, ResponseCode.NO_PERMISSION)]
    assert ask(whole, member, pull) == [(4, 0)]


def test_no_code_slips_past_a_guard(whole: Whole) -> None:
    whole.broker.admission.guards.append(members_only)
    codes = [*whole.broker.table, 9_999]
    for code in codes:
        assert ask(whole, FakePeer(), Command(code, {}, opaque=7)) == [(7, ResponseCode.NO_PERMISSION)], code


def test_a_request_that_waits_for_the_disk_is_let_in_once(whole: Whole) -> None:
    ask(whole, FakePeer(), *sends())
    seen: list[int] = []
    whole.broker.admission.guards.append(lambda peer, command: seen.append(command.code))
    command = Command(RequestCode.PULL_MESSAGE, pull_fields(), opaque=4)
    whole.broker.handle(FakePeer(), command, attempt=1)
    assert not seen
    whole.broker.handle(FakePeer(), command)
    assert seen == [RequestCode.PULL_MESSAGE]
