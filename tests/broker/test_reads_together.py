"""What several peers send in one turn of the loop is written together, and each is answered as if it had been alone."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.plain_send import PlainSends
from roquet.broker.send import Sender
from roquet.broker.topics import Topic
from roquet.ports import Peer, Read
from roquet.store.disk import RealFile
from roquet.testing import FakePeer, SimDisk
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Frame, Framer

from .whole import Whole, pull_fields, send_fields

BORN_HOST_AT = 48


@pytest.fixture(params=["as it is", "without the extension"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    made.broker.topics.put(Topic("T", 4, 4))
    if request.param != "as it is":
        made.broker.sender.plain.native = made.broker.store.staging.native = None
    yield made
    made.close()


def sends(*queues: int, first: int = 1, **more: str) -> list[Command]:
    return [
        Command(310, send_fields("T", queue, f"UNIQ_KEY\x01U{first + at}\x02WAIT\x01true", **more), b"body", opaque=first + at)
        for at, queue in enumerate(queues)
    ]


def read(peer: FakePeer, *requests: Command) -> Read:
    return peer, Framer().feed(b"".join([request.encode() for request in requests]))


def peers(count: int) -> list[FakePeer]:
    made = [FakePeer(f"127.0.0.1:{40_001 + at}") for at in range(count)]
    for at, peer in enumerate(made):
        peer.host = bytes((127, 0, 0, 1, 0, 0, 156, at))
    return made


def answered(peer: FakePeer) -> list[tuple[int, int]]:
    return [(answer.opaque, answer.code) for answer in peer.take()]


def test_they_are_one_write_of_the_log_and_each_peer_gets_its_answers_at_once(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = RealFile.write

    def counted(file: RealFile, offset: int, data: bytes | bytearray | memoryview) -> None:
        if "commitlog" in file.path:
            written.append(len(data))
        write(file, offset, data)

    monkeypatch.setattr(RealFile, "write", counted)
    group = peers(3)
    rests = whole.broker.receive_all([read(peer, *sends(0, 1, first=10 * at)) for at, peer in enumerate(group)])
    assert rests == [None] * 3
    assert len(written) == 1
    assert [answered(peer) for peer in group] == [[(10 * at, 0), (10 * at + 1, 0)] for at in range(3)]
    assert [peer.sends for peer in group] == [1, 1, 1]
    queue, raw_at = whole.broker.store.queue("T", 0), whole.broker.store.raw_at
    hosts = [raw_at(entry[0])[BORN_HOST_AT : BORN_HOST_AT + 8] for n in range(3) if (entry := queue.entry(n)) is not None]
    assert hosts == [peer.host for peer in group], "each message has the address that it came from"


def test_a_read_that_goes_wrong_takes_nothing_of_the_others_with_it(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    group = peers(3)
    take = PlainSends.take

    def spoiled(plain: PlainSends, peer: Peer, frames: list[Frame], at: int) -> object:
        taken = take(plain, peer, frames, at)
        if peer is group[1]:
            raise RuntimeError("planted")
        return taken

    monkeypatch.setattr(PlainSends, "take", spoiled)
    monkeypatch.setattr(Sender, "take_reads", lambda sender, reads: (0, 0))
    whole.broker.receive_all([read(peer, *sends(0, first=10 * at)) for at, peer in enumerate(group)])
    assert [answered(peer)[0][1] for peer in group] == [0, ResponseCode.SYSTEM_ERROR, 0]
    assert whole.broker.store.queue("T", 0).visible == 2


def test_a_full_disk_refuses_all_of_them_and_nothing_of_them_exists(tmp_path: Path) -> None:
    disk = SimDisk()
    whole = Whole(tmp_path, disk=disk)
    whole.broker.topics.put(Topic("T", 4, 4))
    group = peers(2)
    disk.fail("write", errno.ENOSPC, "commitlog")
    whole.broker.receive_all([read(peer, *sends(0, 1)) for peer in group])
    assert [answered(peer) for peer in group] == [[(1, ResponseCode.SERVICE_NOT_AVAILABLE), (2, ResponseCode.SERVICE_NOT_AVAILABLE)]] * 2
    assert whole.broker.store.queue("T", 0).next == 0
    whole.close()


def test_under_sync_flush_all_of_them_wait_for_one_flush(tmp_path: Path) -> None:
    whole = Whole(tmp_path, flush_disk_type="SYNC_FLUSH")
    whole.broker.topics.put(Topic("T", 4, 4))
    whole.background.hold = True
    group = peers(2)
    whole.broker.receive_all([read(peer, *sends(0)) for peer in group])
    assert [answered(peer) for peer in group] == [[], []]
    assert whole.broker.flow.waiting == 2
    whole.background.release()
    assert [answered(peer) for peer in group] == [[(1, 0)], [(1, 0)]]
    assert whole.broker.flow.waiting == 0
    whole.close()


def test_other_requests_among_them_are_answered_and_a_waiting_pull_gets_what_another_peer_sent_in_the_same_turn(whole: Whole) -> None:
    one, two, three = peers(3)
    pull = Command(11, pull_fields("T", 0, sysFlag="6"), b"", opaque=7)
    whole.broker.receive_all([read(one, pull), read(two, *sends(0), Command(9_999, {}, b"", opaque=9)), read(three, *sends(1), pull)])
    (found,) = one.take()
    assert (found.opaque, found.code) == (7, 0)
    assert b"body" in found.body
    assert answered(two) == [(9, ResponseCode.REQUEST_CODE_NOT_SUPPORTED), (1, 0)]
    assert sorted(answered(three)) == [(1, 0), (7, 0)]


def test_what_comes_back_for_want_of_time_may_be_nothing_at_all(whole: Whole) -> None:
    assert whole.broker.receive(whole.peer, []) is None
    assert whole.broker.receive_all([(whole.peer, []), read(peers(1)[0], *sends(0))]) == [None, None]
