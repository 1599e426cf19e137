"""A master and what connects to its HA port."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.ha.stream import REPORT
from roquet.testing import WholeBroker
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .streams import FakeStream
from .test_roles import SEND, log_of, send

VECTORS = Path(__file__).parent.parent / "vectors" / "ha-stream.jsonl"


def recorded(*phases: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    return [row for row in rows if row["phase"] in phases and row["way"] in ("report", "transfer", "heartbeat", "connect", "close")]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path, broker_role="SYNC_MASTER")
    yield made
    made.close()


def connect(master: WholeBroker, address: str = "127.0.0.1:50000") -> FakeStream:
    stream = FakeStream(address)
    master.broker.slaves.opened(stream)
    return stream


def report(master: WholeBroker, stream: FakeStream, *offsets: int) -> None:
    master.broker.slaves.received(stream, b"".join(map(REPORT.pack, offsets)))


def ask_later(master: WholeBroker, properties: str = "", body: bytes = b"hello") -> None:
    master.frames(Command(RequestCode.SEND_MESSAGE_V2, {**SEND, "i": properties}, body, opaque=77))


def answers(master: WholeBroker) -> list[int]:
    return [command.code for command in master.peer.take() if command.is_response]


# What is sent


def test_recorded_reports_get_the_recorded_transfers(tmp_path: Path) -> None:
    """The log of the recording is built again, piece by piece, and the master sends what the Java master sent."""
    master = WholeBroker(tmp_path, mapped_file_size_commit_log=65_536)
    log = master.broker.store.log
    stream: FakeStream | None = None
    said = 0
    for row in recorded("connect-empty", "transfer", "idle", "partial", "reconnect"):
        if row.get("to") != "master-ha" and row.get("from") != "master-ha":
            continue
        if row["phase"] == "partial":
            master.settings.ha_transfer_batch_size = 1_024
        elif row["phase"] == "reconnect":
            master.settings.ha_transfer_batch_size = 32_768
        if row["way"] == "connect":
            stream = connect(master)
        elif row["way"] == "close":
            master.broker.slaves.lost(stream, "closed")
        elif row["way"] == "report":
            assert stream is not None
            before = stream.sent[:]
            master.broker.slaves.received(stream, bytes.fromhex(row["hex"]))
            assert not stream.closed
            assert stream.sent[: len(before)] == before
        else:
            assert stream is not None
            body = base64.b64decode(row["body_b64"])
            if row["offset"] + len(body) > log.written:
                # Two messages of the recording came in one write where its transfers say so.
                following = recorded(row["phase"])
                whole = b"".join(
                    base64.b64decode(one["body_b64"])
                    for one in following
                    if one["way"] == "transfer" and log.written <= one["offset"] <= row["offset"] + 2_048 and not one.get("shortened")
                )
                log.append_raw(whole[: len(body) if row["phase"] != "partial" else 2_630])
            if not stream.sent and row["way"] == "heartbeat":
                master.tick(master.settings.ha_send_heartbeat_interval + 1)
            elif not stream.sent:
                master.broker.slaves.push()
            assert stream.sent.pop(0) == bytes.fromhex(row["hex"]) + body, row
            said += 1
    assert said > 20
    master.close()


def test_a_transfer_ends_with_its_file_and_has_no_more_than_a_batch(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, mapped_file_size_commit_log=4_096, ha_transfer_batch_size=1_000)
    for number in range(60):
        send(master, b"%d" % number * 50)
    stream = connect(master)
    first = int.from_bytes(log_of(master)[:4], "big")
    report(master, stream, first)
    at = first
    sent = stream.transfers()
    assert sent.pop(0) == (first, b"")
    for offset, body in sent:
        assert offset == at
        assert 0 < len(body) <= 1_000
        assert offset // 4_096 == (offset + len(body) - 1) // 4_096
        at += len(body)
    assert at == master.broker.store.log.written
    assert b"".join(body for _, body in sent) == log_of(master)[first:]
    master.close()


def test_an_empty_slave_is_sent_the_last_file_as_upstream_does(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, mapped_file_size_commit_log=4_096)
    while master.broker.store.log.written < 9_000:
        send(master, b"x" * 300)
    stream = connect(master)
    report(master, stream, 0)
    assert stream.transfers()[0] == (8_192, b"")
    report(master, stream, 8_192)
    assert not stream.closed
    master.close()


def test_a_slave_far_behind_is_sent_no_more_than_it_confirms_and_a_bounded_piece_a_turn(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, mapped_file_size_commit_log=4 << 20, max_message_size=1 << 20)
    for _ in range(3):
        send(master, b"x" * 1_000_000)
    stream = connect(master)
    report(master, stream, 0)
    sent = sum(len(body) for _, body in stream.transfers())
    assert sent <= 256 * 1024 + 32_768
    for _ in range(50):
        master.tick()
        sent += sum(len(body) for _, body in stream.transfers())
    assert 1 << 20 <= sent <= (1 << 20) + 32_768
    report(master, stream, sent)
    assert stream.transfers()
    master.close()


def test_heartbeats_come_when_nothing_else_does_and_silence_ends_the_connection(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    assert stream.transfers() == [(0, b"")]
    master.tick(4_000)
    assert not stream.sent
    master.tick(1_500)
    assert stream.transfers() == [(0, b"")]
    for _ in range(3):
        report(master, stream, 0)
        master.tick(6_000)
    assert not stream.closed
    master.tick(20_001)
    assert stream.closed
    assert "haHousekeepingInterval=20000" in stream.reason
    assert not master.broker.slaves.links


def test_reports_may_come_in_pieces_and_several_at_once(master: WholeBroker) -> None:
    send(master)
    send(master)
    stream = connect(master)
    end = master.broker.store.log.written
    data = REPORT.pack(0) + REPORT.pack(end // 2) + REPORT.pack(end)
    for at in range(0, 8, 3):
        master.broker.slaves.received(stream, data[at : min(at + 3, 8)])
    assert len(stream.transfers()) == 2
    master.broker.slaves.received(stream, data[8:])
    assert not stream.closed
    assert master.broker.slaves.links[stream].acked == end


@pytest.mark.parametrize("data", [REPORT.pack(-1), b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_slave_is_closed_with_a_sentence(master: WholeBroker, data: bytes) -> None:
    stream = connect(master)
    master.broker.slaves.received(stream, data)
    assert stream.closed
    assert stream.reason
    assert send(master).code == ResponseCode.SLAVE_NOT_AVAILABLE


# E10, E11, E12


def test_e10_an_acknowledgement_beyond_what_was_sent_closes_the_connection_and_acknowledges_nothing(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    end = master.broker.store.log.written
    report(master, stream, end + 1)
    assert stream.closed
    assert "was sent no more" in stream.reason
    assert answers(master) == []
    master.tick(3_100)
    assert answers(master) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]


def test_e10_a_first_report_acknowledges_nothing_that_no_slave_was_ever_sent(master: WholeBroker) -> None:
    real = connect(master)
    report(master, real, 0)
    real.take()
    master.broker.slaves.links[real].position = 1 << 60  # it is not sent anything: as if the disk was slow
    ask_later(master)
    end = master.broker.store.log.written
    report(master, connect(master, "127.0.0.1:50001"), end)
    assert answers(master) == []


def test_e11_a_master_behind_its_slave_says_so_and_acknowledges_nothing_by_it(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 161_872)
    assert stream.closed
    assert "161872" in stream.reason
    assert "this master's ends at 0" in stream.reason
    assert [send(master).code for _ in range(3)] == [ResponseCode.SLAVE_NOT_AVAILABLE] * 3
    assert any("161872" in notice.text for notice in master.broker.notices.list())


def test_e12_a_slave_whose_place_is_gone_is_told_so_and_does_not_count(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, mapped_file_size_commit_log=4_096, broker_role="SYNC_MASTER")
    while master.broker.store.log.written < 9_000:
        send(master, b"x" * 300)
    master.broker.store.log.segments.drop_first()
    stream = connect(master)
    report(master, stream, 428)
    assert stream.closed
    assert "begins at 4096" in stream.reason
    assert "until its store is emptied" in stream.reason
    assert stream.transfers() == []
    assert any("until its store is emptied" in notice.text for notice in master.broker.notices.list())
    assert send(master).code == ResponseCode.SLAVE_NOT_AVAILABLE
    master.close()


# SYNC_MASTER


def test_a_send_is_answered_when_a_slave_has_it_and_seen_by_consumers_then(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    assert answers(master) == []
    queue = master.broker.store.queue("T", 0)
    assert queue.visible == 0
    assert stream.transfers()[-1] == (0, log_of(master))
    report(master, stream, master.broker.store.log.written - 1)
    assert (answers(master), queue.visible) == ([], 0)
    report(master, stream, master.broker.store.log.written)
    assert (answers(master), queue.visible) == ([0], 1)


def test_without_a_slave_the_answer_says_so_at_once_and_consumers_see_the_message(master: WholeBroker) -> None:
    answer = send(master)
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert answer.fields["queueOffset"] == "0"
    assert len(answer.fields["msgId"]) == 32
    assert master.broker.store.queue("T", 0).visible == 1


def test_a_slave_that_does_not_confirm_in_time_is_flush_slave_timeout_and_the_message_is_seen_from_then_on(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    master.tick(2_900)
    assert (answers(master), master.broker.store.queue("T", 0).visible) == ([], 0)
    master.tick(150)
    (answer,) = [command for command in master.peer.take() if command.is_response]
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert answer.fields["queueOffset"] == "0"
    for _ in range(40):
        report(master, stream, 0)
        master.tick(100)
    assert master.broker.store.queue("T", 0).visible == 1


def test_a_slave_too_far_behind_does_not_count(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, broker_role="SYNC_MASTER", ha_slave_fallbehind_max=1_000)
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master, body=b"x" * 2_000)
    assert answers(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    report(master, stream, master.broker.store.log.written)
    ask_later(master)
    assert answers(master) == []
    report(master, stream, master.broker.store.log.written)
    assert answers(master) == [0]
    master.close()


def test_a_send_that_need_not_wait_is_answered_at_once(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master, "WAIT\x01false")
    assert answers(master) == [0]
    assert send(master, properties="WAIT\x01false").code == 0


def test_a_send_waits_on_when_the_slave_goes_and_succeeds_when_it_is_back_in_time(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    end = master.broker.store.log.written
    master.broker.slaves.lost(stream, "gone")
    master.tick(1_000)
    assert answers(master) == []
    again = connect(master)
    report(master, again, end)  # it had it already, and its answer was lost
    assert answers(master) == [0]


def test_a_send_is_never_answered_with_success_because_the_slave_went(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    master.broker.slaves.lost(stream, "gone")
    ask_later(master)  # no slave now: this one is told so at once
    assert answers(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    for _ in range(40):
        master.tick(100)
    assert answers(master) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert master.broker.store.queue("T", 0).visible == 2


def test_both_forms_of_a_send_and_a_batch_tell_of_the_missing_slave(master: WholeBroker) -> None:
    long_names = {
        "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    assert master.ask(RequestCode.SEND_MESSAGE, long_names, b"x").code == ResponseCode.SLAVE_NOT_AVAILABLE
    many = [Command(RequestCode.SEND_MESSAGE_V2, dict(SEND), b"x", opaque=number) for number in range(100, 150)]
    master.frames(*many)
    assert answers(master) == [ResponseCode.SLAVE_NOT_AVAILABLE] * 50
    # Without properties, body "hello": total size, magic, crc, flag, body, properties.
    one = (4 + 4 + 4 + 4 + 4 + 5 + 2).to_bytes(4, "big") + bytes(12) + (5).to_bytes(4, "big") + b"hello" + bytes(2)
    batch = master.ask(RequestCode.SEND_BATCH_MESSAGE, {**SEND, "m": "true"}, one * 3)
    assert (batch.code, batch.fields["msgId"].count(",")) == (ResponseCode.SLAVE_NOT_AVAILABLE, 2)


def test_under_sync_flush_a_slave_that_is_late_is_no_success_either(tmp_path: Path) -> None:
    """slaveTimeout is over before syncFlushTimeout is: what consumers may see from then on was not confirmed by a slave."""
    master = WholeBroker(tmp_path, broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH")
    stream = connect(master)
    report(master, stream, 0)
    ask_later(master)
    master.tick(10)
    master.tick(4_000)
    assert answers(master) == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
    assert master.broker.store.queue("T", 0).visible == 1
    master.close()


def test_under_sync_flush_it_waits_for_the_disk_and_the_slave(tmp_path: Path) -> None:
    master = WholeBroker(tmp_path, broker_role="SYNC_MASTER", flush_disk_type="SYNC_FLUSH")
    stream = connect(master)
    report(master, stream, 0)
    master.background.hold = True
    ask_later(master)
    report(master, stream, master.broker.store.log.written)
    assert answers(master) == []
    master.background.release()
    assert answers(master) == [0]
    master.broker.slaves.lost(stream, "gone")
    ask_later(master)
    assert answers(master) == []  # no slave, and not on this disk yet
    master.background.release()
    assert answers(master) == [ResponseCode.SLAVE_NOT_AVAILABLE]
    master.background.hold = False
    master.close()
