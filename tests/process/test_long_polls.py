"""Long polls that are answered or whose connection is gone leave room for others at once, not when their time is up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker import parking as pulls
from roquet.testing import FakePeer, WholeBroker
from tests.process.line import create_topic, pull, send_message

ROOM = 50


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WholeBroker]:
    monkeypatch.setattr(pulls, "PARKED_MAX", ROOM)
    made = WholeBroker(tmp_path)
    assert made.ask(create_topic("topic", 1)).code == 0
    yield made
    made.broker.close()


def is_parked(inside: WholeBroker, offset: int) -> bool:
    peer = FakePeer()
    inside.give(peer, pull("topic", offset, suspend_ms=15_000))
    return not peer.sent


def test_a_busy_consumer_does_not_use_up_the_room_for_long_polls(inside: WholeBroker) -> None:
    consumer = FakePeer()
    for offset in range(ROOM + 10):
        inside.give(consumer, pull("topic", offset, suspend_ms=15_000))
        assert consumer.take() == [], f"long poll {offset} was answered at once, though only one is waiting"
        assert inside.ask(send_message("topic", b"x", properties={"TAGS": "t"})).code == 0
        (answer,) = consumer.take()
        assert answer.code == 0


def test_a_connection_that_is_gone_gives_its_room_back(inside: WholeBroker) -> None:
    assert inside.ask(send_message("topic", b"x", properties={"TAGS": "t"})).code == 0
    gone = FakePeer()
    inside.give(gone, *(pull("topic", 1, suspend_ms=15_000) for _ in range(ROOM)))
    assert gone.take() == []
    gone.closed = True
    inside.broker.disconnected(gone)
    assert is_parked(inside, 1)


def test_long_polls_beyond_the_room_are_answered_at_once(inside: WholeBroker) -> None:
    assert inside.ask(send_message("topic", b"x", properties={"TAGS": "t"})).code == 0
    for _ in range(ROOM):
        assert is_parked(inside, 1)
    assert not is_parked(inside, 1)
