"""A topic may be deleted at any moment, also while its files are being synced: the broker goes on taking messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from roquet.store.queue import ENTRY_SIZE
from roquet.testing import FakePeer, WholeBroker
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.process.line import create_topic, max_offset, pull, records, send_message


@pytest.mark.parametrize("jobs_before", range(6))
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_deleting_a_topic_while_its_files_are_synced_does_not_stop_the_store(flush: str, jobs_before: int, tmp_path: Path) -> None:
    """`jobs_before` is how much of the background work is done when the deletion comes."""
    inside = WholeBroker(tmp_path, flush_disk_type=flush)
    for topic in ("kept", "deleted"):
        assert inside.ask(create_topic(topic, 1)).code == 0
        assert inside.ask(send_message(topic, b"x", properties={"TAGS": "t"})).code == 0
    inside.background.hold = True
    inside.tick(20_000)  # everything is due: queue entries are written, files are to be synced
    for _ in range(jobs_before):
        if inside.background.waiting:
            work, done = inside.background.waiting.pop(0)
            done(work())
    inside.give(FakePeer(), Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "deleted"}))
    inside.background.release()
    inside.background.hold = False
    inside.tick(20_000)
    assert not inside.broker.store.trouble.refuse_writes()
    assert inside.ask(send_message("kept", b"y", properties={"TAGS": "t"})).code == 0
    inside.broker.close()
    again = WholeBroker(tmp_path)
    assert again.broker.topics.get("deleted") is None
    assert not (tmp_path / "consumequeue" / "deleted").exists()
    again.broker.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("before", [0, 3])
def test_messages_deletion_and_rebirth_of_a_topic_in_one_read_leave_a_queue_that_reads_back(
    flush: str, before: int, tmp_path: Path
) -> None:
    """What was sent to the old topic must not be written into the queue of the new one, whose offsets begin at 0 again."""
    inside = WholeBroker(tmp_path, flush_disk_type=flush)
    assert inside.ask(create_topic("topic", 1)).code == 0
    for _ in range(before):
        assert inside.ask(send_message("topic", b"stored", properties={"TAGS": "t"})).code == 0
    inside.tick(20_000)  # their entries are in the queue's file, so those of the next ones begin in its middle
    old = [send_message("topic", b"old", properties={"TAGS": "t"}) for _ in range(4)]
    inside.give(FakePeer(), *old, Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "topic"}), create_topic("topic", 1))
    inside.tick(20_000)
    for number in range(2):
        answer = inside.ask(send_message("topic", b"new", properties={"TAGS": "t"}))
        assert (answer.code, answer.fields["queueOffset"]) == (0, str(number))
    inside.tick(20_000)
    inside.broker.close()
    file = (tmp_path / "consumequeue" / "topic" / "0" / "0".zfill(20)).read_bytes()
    assert not any(file[2 * ENTRY_SIZE :]), "entries of the old topic stand behind those of the new one"
    again = WholeBroker(tmp_path)
    assert [record.body for record in records(again.ask(pull("topic", 0)))] == [b"new", b"new"]
    assert again.ask(max_offset("topic")).fields["offset"] == "2"
    again.broker.close()
