"""What a slave does not do, and a broker whose role changes while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from roquet.broker.roles import NOT_HERE
from roquet.message import Property
from roquet.testing import WholeBroker
from roquet.wire.calls.offsets import DelayOffsetTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import HALF_TOPIC, SCHEDULE_TOPIC

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0", "k": "false", "m": "false"}


def send(broker: WholeBroker, body: bytes = b"hello", properties: str = "", *, topic: str = "T", queue_id: int = 0) -> Command:
    return broker.ask(RequestCode.SEND_MESSAGE_V2, {**SEND, "b": topic, "e": str(queue_id), "i": properties}, body)


def log_of(broker: WholeBroker) -> bytes:
    store = broker.broker.store
    segments = store.log.segments
    return b"".join(segments.file(base).read(0, segments.size) for base in segments.bases)[: store.log.written - store.log.start]


def a_slave(root: Path) -> WholeBroker:
    return WholeBroker(root, broker_role="SLAVE", broker_id=1)


def follow(slave: WholeBroker, master: WholeBroker) -> None:
    store = slave.broker.store
    store.log.append_raw(log_of(master)[store.log.written :])
    store.applier.advance()


@pytest.mark.parametrize(
    ("code", "answer", "remark"),
    [
        (RequestCode.SEND_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave"),
        (RequestCode.SEND_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave"),
        (RequestCode.SEND_BATCH_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave"),
        (RequestCode.SEND_REPLY_MESSAGE_V2, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave"),
        (RequestCode.RECALL_MESSAGE, ResponseCode.SERVICE_NOT_AVAILABLE, "messages are put to the slave"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE"),
        (RequestCode.END_TRANSACTION, ResponseCode.SLAVE_NOT_AVAILABLE, "slave"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.SYSTEM_ERROR, NOT_HERE),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR, NOT_HERE),
        (RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.SYSTEM_ERROR, NOT_HERE),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, ResponseCode.SYSTEM_ERROR, NOT_HERE),
    ],
)
def test_a_slave_refuses_what_changes_something_as_upstream_does(tmp_path: Path, code: int, answer: int, remark: str) -> None:
    slave = a_slave(tmp_path)
    reply = slave.ask(code, SEND, b"x")
    assert reply.code == answer
    assert remark in (reply.remark or "")
    assert slave.broker.topics.get("T") is None
    assert slave.broker.store.log.end == 0
    slave.close()


def test_a_slave_answers_reads_from_its_copy(tmp_path: Path) -> None:
    master, slave = WholeBroker(tmp_path / "m"), a_slave(tmp_path / "s")
    assert send(master).code == 0
    follow(slave, master)
    slave.broker.topics.ensure("T")
    asked = {"topic": "T", "queueId": "0"}
    assert slave.ask(RequestCode.GET_MAX_OFFSET, asked).fields["offset"] == "1"
    pulled = {
        "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
    }  # fmt: skip
    answer = slave.ask(RequestCode.PULL_MESSAGE, pulled)
    assert (answer.code, answer.body) == (0, master.ask(RequestCode.PULL_MESSAGE, pulled).body)
    master.close()
    slave.close()


def test_a_slave_delivers_nothing_and_does_when_it_becomes_master(tmp_path: Path) -> None:
    master, slave = WholeBroker(tmp_path / "m"), a_slave(tmp_path / "s")
    assert send(master, b"later", f"{Property.DELAY}\x011").code == 0
    follow(slave, master)
    for _ in range(30):
        slave.tick(1_000)
    assert slave.broker.store.queue("T", 0).visible == 0
    assert slave.broker.store.queue(SCHEDULE_TOPIC, 0).visible == 1
    slave.broker.become_master()
    assert (slave.settings.broker_role, slave.settings.broker_id) == ("SYNC_MASTER", 0)
    for _ in range(3):
        slave.tick(1_000)
    assert slave.broker.store.queue("T", 0).visible == 1
    assert send(slave, b"mine").code in (0, ResponseCode.SLAVE_NOT_AVAILABLE)
    assert slave.broker.store.queue("T", 0).visible == 2
    master.close()
    slave.close()


def test_what_the_master_delivered_is_not_delivered_again_by_the_slave_that_takes_over(tmp_path: Path) -> None:
    master, slave = WholeBroker(tmp_path / "m"), a_slave(tmp_path / "s")
    send(master, b"later", f"{Property.DELAY}\x011\x02{Property.UNIQUE_KEY}\x01id1")
    for _ in range(3):
        master.tick(1_000)
    assert master.broker.store.queue("T", 0).visible == 1
    follow(slave, master)
    slave.clock.ms = master.clock.ms
    slave.broker.become_master()
    for _ in range(3):
        slave.tick(1_000)
    assert slave.broker.store.queue("T", 0).visible == 1
    master.close()
    slave.close()


def test_a_slave_that_takes_over_goes_on_with_transactions_and_timers(tmp_path: Path) -> None:
    master, slave = WholeBroker(tmp_path / "m"), a_slave(tmp_path / "s")
    sent = master.ask(
        RequestCode.SEND_MESSAGE_V2, {**SEND, "f": "4", "i": f"{Property.TRANSACTION_PREPARED}\x01true\x02PGROUP\x01P"}, b"half"
    )
    assert sent.code == 0
    due = slave.clock.now_ms() + 5_000
    assert send(master, b"timed", f"TIMER_DELIVER_MS\x01{due}").code == 0
    follow(slave, master)
    for _ in range(20):
        slave.tick(1_000)
    assert slave.broker.store.queue("T", 0).visible == 0
    slave.broker.become_master()
    assert slave.broker.transactions.pending == 1
    for _ in range(5):
        slave.tick(1_000)
    assert slave.broker.store.queue("T", 0).visible == 1
    assert slave.broker.store.queue(HALF_TOPIC, 0).visible >= 1
    master.close()
    slave.close()


def test_a_master_that_becomes_a_slave_takes_no_more_messages_and_can_go_back(tmp_path: Path) -> None:
    broker = WholeBroker(tmp_path)
    assert send(broker).code == 0
    broker.broker.become_slave(2)
    assert (broker.settings.broker_role, broker.settings.broker_id) == ("SLAVE", 2)
    assert send(broker).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.broker.become_slave(3)
    assert broker.settings.broker_id == 3
    broker.broker.become_master("ASYNC_MASTER")
    assert send(broker).code == 0
    assert broker.broker.store.queue("T", 0).visible == 2
    broker.close()


def test_a_broker_whose_log_is_not_applied_cannot_become_master(tmp_path: Path) -> None:
    master, slave = WholeBroker(tmp_path / "m"), a_slave(tmp_path / "s")
    send(master)
    slave.broker.store.log.append_raw(log_of(master)[:-1])
    with pytest.raises(ValueError, match="cannot take messages yet"):
        slave.broker.become_master()
    assert slave.settings.broker_role == "SLAVE"
    assert send(slave).code == ResponseCode.SERVICE_NOT_AVAILABLE
    master.close()
    slave.close()


def test_a_slave_that_stops_leaves_the_files_of_the_parts_that_do_not_work_on_it(tmp_path: Path) -> None:
    slave = a_slave(tmp_path)
    (tmp_path / "config").mkdir(exist_ok=True)
    (tmp_path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:5}}')
    slave.tick()
    slave.close()
    assert (tmp_path / "config" / "delayOffset.json").read_text() == '{"offsetTable":{1:5}}'
    assert not (tmp_path / "timers" / "checkpoint.json").exists()


def test_a_slave_that_writes_a_copied_table_just_now_becomes_the_master_all_the_same(tmp_path: Path) -> None:
    """It stopped in the middle of it: half of its parts were a master's. Found by the simulation of whole groups."""
    slave = a_slave(tmp_path)
    slave.background.hold = True
    slave.broker.delays.take_over(DelayOffsetTable({1: 5}), 0)
    slave.broker.become_master()
    slave.background.hold = False
    slave.background.release()
    assert send(slave).code == ResponseCode.SUCCESS
    slave.close()
