"""`roquet up` with copies, and `roquet ha`: real processes, as an operator starts and asks them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from roquet.admin import Broker
from roquet.cli.ha import Copy, without_master
from roquet.cli.main import main
from roquet.cli.status import BrokerStatus
from tests.cli.servers import PATIENCE_S, up

MASTER = BrokerStatus(
    Broker("c", "broker-a", 0, "127.0.0.1:1"), {"commitLogMaxOffset": "5000", "roquetLastStoreTime": "90000", "roquetRole": "SYNC_MASTER"}
)
SLAVE = BrokerStatus(
    Broker("c", "broker-a", 1, "127.0.0.1:2"), {"commitLogMaxOffset": "3000", "roquetLastStoreTime": "87500", "roquetCopying": "copying"}
)


def test_a_slave_is_behind_by_bytes_and_by_the_time_between_the_last_messages() -> None:
    copy = Copy(SLAVE, MASTER)
    assert (copy.behind_bytes, copy.behind_s, copy.state) == (2000, 2.5, "copying")


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    silent = Copy(BrokerStatus(SLAVE.broker, error="no answer"), MASTER)
    assert (silent.behind_bytes, silent.behind_s, silent.log_end, silent.state) == (None, None, None, "does not answer")
    java = Copy(BrokerStatus(SLAVE.broker, {"commitLogMaxOffset": "3000"}), MASTER)
    assert (java.behind_bytes, java.behind_s) == (2000, None)


def test_a_group_without_a_master_is_named() -> None:
    assert without_master([Copy(SLAVE, None)]) == ["broker-a"]
    assert without_master([Copy(MASTER, MASTER), Copy(SLAVE, MASTER)]) == []


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_master_and_its_slave_come_up_with_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, address = up(tmp_path, "--slave")
    with server:
        assert main(["send", "-n", address, "orders", "one"]) == 0
        assert "SEND_OK" in capsys.readouterr().out
        deadline = time.monotonic() + PATIENCE_S
        while True:  # a slave holds a message before its queues show it
            rows = asked(capsys, "ha", "status", "-n", address)["brokers"]
            assert [row["role"] for row in rows] == ["master", "slave 1"]
            if [row["behindBytes"] for row in rows] == [0, 0]:
                break
            assert time.monotonic() < deadline
        assert main(["ha", "transfer-leader", "-n", address, "broker-a", "n1"]) == 1
        assert "is in no DLedger group" in capsys.readouterr().err


def test_a_group_of_three_comes_up_with_one_command_and_changes_its_leader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, address = up(tmp_path, "--replicas", "3")
    with server:
        assert main(["send", "-n", address, "orders", "one"]) == 0
        capsys.readouterr()
        before = leader(asked(capsys, "ha", "status", "-n", address))
        other = "n1" if before == "n0" else "n0"
        deadline = time.monotonic() + PATIENCE_S
        while main(["ha", "transfer-leader", "-n", address, "broker-a", other, "--json"]) != 0:  # it may not follow yet, and says so
            assert "try again" in capsys.readouterr().err
            assert time.monotonic() < deadline
        assert json.loads(capsys.readouterr().out)["from"] == before
        while server.wait_for(r"(n\d) serves as the master of its group").group(1) != other:
            # The third asked for votes in the same moment, as in any election, and won. Until its address is known nobody can be asked.
            while main(["ha", "transfer-leader", "-n", address, "broker-a", other]) != 0:
                assert time.monotonic() < deadline
            capsys.readouterr()
        assert main(["ha", "transfer-leader", "-n", address, "broker-a", "n7"]) == 1
        assert "has no member 'n7'; it has n0, n1, n2" in capsys.readouterr().err
        while main(["send", "-n", address, "orders", "two"]) != 0:  # until the name server knows of the new master
            assert time.monotonic() < deadline
        capsys.readouterr()
        shown = asked(capsys, "ha", "status", "-n", address)
        assert leader(shown) == other
        assert len({row["term"] for row in shown["brokers"]}) == 1
        assert main(["consume", "-n", address, "orders", "--from", "first", "--once"]) == 0
        assert {"one", "two"} == {line.split()[-1] for line in capsys.readouterr().out.splitlines() if " @" in line}


def leader(shown: Any) -> str:
    (found,) = [row["member"] for row in shown["brokers"] if row["state"] == "leader"]
    return str(found)
