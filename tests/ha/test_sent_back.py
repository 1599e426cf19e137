"""A consumer that read at the slave asks the master: what the slave showed is in the master's log, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.testing.whole_broker import WholeBroker
from roquet.wire.codes import ResponseCode
from tests.ha.test_master import ask_later, connect, report

PULL = {
    "consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip


@pytest.fixture
def master(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path, broker_role="SYNC_MASTER")
    yield made
    made.close()


def test_a_consumer_that_read_at_the_slave_is_not_sent_back_by_a_master_that_waits_for_the_slaves_report(master: WholeBroker) -> None:
    stream = connect(master)
    report(master, stream, 0)
    for _ in range(3):
        ask_later(master)
    queue = master.broker.store.queue("T", 0)
    assert (queue.visible, queue.next) == (0, 3), "the slave has them and shows them; its report is on the way"
    answer = master.ask(11, {**PULL, "queueOffset": "3"})
    assert answer.code != ResponseCode.PULL_OFFSET_MOVED, f"sent back to {answer.fields['nextBeginOffset']}"
