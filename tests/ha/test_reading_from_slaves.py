"""Consumers that are far behind are sent to a slave, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from roquet.testing import WholeBroker
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .pairs import Pair
from .test_roles import send


def pull(broker: WholeBroker, offset: int, *, flag: int = 4, count: int = 32, commit: int = 0, binary: bool = False) -> Command:
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": str(count), "sysFlag": str(flag),
        "commitOffset": str(commit), "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    return broker.ask(RequestCode.PULL_MESSAGE, fields, binary=binary)


def filled(root: Path, **settings: Any) -> WholeBroker:
    """Messages of 1 MiB, and a memory of which one counts as near."""
    broker = WholeBroker(root, mapped_file_size_commit_log=1 << 20, **settings)
    broker.broker.puller.memory_bytes = 100_000
    for _ in range(20):
        send(broker, b"x" * 10_000)
    return broker


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_not_in_memory_is_to_be_read_from_a_slave(tmp_path: Path, binary: bool) -> None:
    broker = filled(tmp_path, slave_read_enable=True)
    answer = pull(broker, 0, binary=binary)
    assert (answer.code, answer.fields["suggestWhichBrokerId"]) == (0, "1")
    group = broker.broker.groups.get("G")
    assert group is not None
    group.which_broker_when_consume_slowly = 2
    assert pull(broker, 0).fields["suggestWhichBrokerId"] == "2"
    group.broker_id = 3
    assert pull(broker, 19).fields["suggestWhichBrokerId"] == "3"
    broker.close()


def test_the_master_is_named_unless_slaves_may_be_read(tmp_path: Path) -> None:
    broker = filled(tmp_path)
    assert pull(broker, 0).fields["suggestWhichBrokerId"] == "0"
    broker.settings.slave_read_enable = True
    assert pull(broker, 0).fields["suggestWhichBrokerId"] == "1"
    assert pull(broker, 18).fields["suggestWhichBrokerId"] == "0"
    broker.close()


def test_a_slave_sends_whoever_has_caught_up_back_to_the_master(tmp_path: Path) -> None:
    pair = Pair(tmp_path, slave_read_enable=True)
    for _ in range(20):
        send(pair.master, b"x" * 1_000)
    pair.settle(80)
    pair.slave.broker.puller.memory_bytes = 5_000
    assert pull(pair.slave, 0, count=2).fields["suggestWhichBrokerId"] == "1"
    assert pull(pair.slave, 19).fields["suggestWhichBrokerId"] == "0"
    pair.close()


@pytest.mark.parametrize("offset", [7, 100])
def test_a_slave_corrects_no_offset_which_its_master_may_have(tmp_path: Path, offset: int) -> None:
    pair = Pair(tmp_path)
    for _ in range(5):
        send(pair.master)
    pair.settle(80)
    answer = pull(pair.slave, offset)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(offset))
    assert answer.fields["suggestWhichBrokerId"] == "0"
    pair.slave.settings.offset_check_in_slave = True
    answer = pull(pair.slave, offset)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "5")
    assert pair.slave.broker.store.log.end == pair.slave.broker.store.log.written  # the event is the master's to store
    pair.close()


def test_a_slave_remembers_no_progress_that_comes_with_pulls(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for _ in range(5):
        send(pair.master)
    pair.settle(80)
    assert pull(pair.slave, 0, flag=5, commit=3).code == 0
    assert pair.slave.broker.offsets.find("G", "T", 0) == -1
    assert pull(pair.master, 0, flag=5, commit=3).code == 0
    assert pair.master.broker.offsets.find("G", "T", 0) == 3
    pair.close()


def test_new_messages_wake_a_pull_that_waits_at_a_slave(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    send(pair.master)
    pair.settle(80)
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
        "suspendTimeoutMillis": "15000", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    pair.slave.frames(Command(RequestCode.PULL_MESSAGE, fields, opaque=5))
    assert not pair.slave.peer.take()
    send(pair.master, b"news")
    pair.settle(4)
    (answer,) = pair.slave.peer.take()
    assert b"news" in answer.body
    pair.close()
