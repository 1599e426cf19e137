"""Access control in processes: a master and its slave."""

from __future__ import annotations

from pathlib import Path

from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from tests.access.people import TEXT, signed
from tests.broker.whole import send_fields
from tests.process.line import Line
from tests.process.programs import SMALL_FILES, Nursery


def test_a_slave_with_the_same_accounts_copies_its_master(nursery: Nursery, tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(TEXT)
    file.chmod(0o600)
    pair = {**SMALL_FILES, "brokerName": "broker-a", "aclEnable": "true", "aclFile": str(file), "slaveTimeout": "30000"}
    master = nursery.broker(tmp_path / "master", {**pair, "brokerRole": "SYNC_MASTER"})
    ha = f"{master.address[0]}:{master.address[1] + 1}"
    slave = nursery.broker(tmp_path / "slave", {**pair, "brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": ha})
    master.program.wait_for("is sent what follows")
    assert "refused:" not in master.program.text, "it shows who it is before it asks for the log"
    with master, slave, Line(master.address) as line:
        topic = {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert line.ask(signed(Command(Code.UPDATE_AND_CREATE_TOPIC, topic), "admin")).code == 0
        assert line.ask(signed(Command(Code.SEND_MESSAGE_V2, send_fields(), b"on both"), "producer")).code == 0, "a slave has it"
        assert line.ask(Command(Code.SEND_MESSAGE_V2, send_fields(), b"unsigned")).code == 1
