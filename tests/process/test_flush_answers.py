"""Under SYNC_FLUSH an answer goes to the connection that asked, and not before its own flush."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roquet.testing import FakePeer, WholeBroker
from roquet.wire.batch import join_batch
from roquet.wire.command import Command
from tests.process.line import create_topic, send_message

Make = Callable[[], Command]


def plain() -> Command:
    return send_message("topic", b"plain")


def batch() -> Command:
    command = send_message("topic", join_batch([(0, b"one", b""), (0, b"two", b"")]), m="true")
    command.code = 320
    return command


@pytest.mark.parametrize("first", [plain, batch])
@pytest.mark.parametrize("second", [plain, batch])
def test_two_connections_that_share_a_flush_get_their_own_answers(first: Make, second: Make, tmp_path: Path) -> None:
    inside = WholeBroker(tmp_path, flush_disk_type="SYNC_FLUSH")
    assert inside.ask(create_topic("topic")).code == 0
    inside.background.hold = True
    one, other = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    mine, theirs = first(), second()
    mine.opaque, theirs.opaque = 1, 2
    inside.give(one, mine)
    inside.give(other, theirs)
    assert one.sent == other.sent == []
    work, done = inside.background.waiting.pop(0)
    work()
    done(None)
    assert [answer.opaque for answer in one.take()] == [1]
    assert other.sent == [], "the second was not part of the first flush"
    inside.background.release()
    assert [answer.opaque for answer in other.take()] == [2]
    assert one.sent == []
    inside.broker.close()
