"""`roquet up` with copies, and `roquet ha`: real processes, as an operator starts and asks them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from roquet.admin import Admin, Broker
from roquet.cli.ha import Copy, without_master
from roquet.cli.main import main
from roquet.cli.status import BrokerStatus
from roquet.errors import ClientError
from roquet.raft.codes import Code
from roquet.raft.messages import Answer, MetadataAnswer, MetadataRequest, Request, TransferAnswer, TransferRequest, VoteAnswer
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
        assert asked(capsys, "ha", "transfer-leader", "-n", address, "broker-a", other)["from"] == before
        assert main(["ha", "transfer-leader", "-n", address, "broker-a", "n7"]) == 1
        assert "has no member 'n7'; it has n0, n1, n2" in capsys.readouterr().err
        assert main(["send", "-n", address, "orders", "two"]) == 0
        capsys.readouterr()
        shown = asked(capsys, "ha", "status", "-n", address)
        assert leader(shown) == other
        assert len({row["term"] for row in shown["brokers"]}) == 1
        assert main(["consume", "-n", address, "orders", "--from", "first", "--once"]) == 0
        assert {"one", "two"} == {line.split()[-1] for line in capsys.readouterr().out.splitlines() if " @" in line}


class Group(Admin):
    """A group that n0 leads, and that answers as it is told to. `wins`: who leads after a transfer that went well; `served_by`: whom the
    name server then shows as the master, one after the other."""

    def __init__(self, codes: list[Code], wins: str = "n1", served_by: str = "n1") -> None:
        super().__init__("127.0.0.1:1")
        self.codes = codes
        self.wins = wins
        self.leads = self.knows = "n0"
        self.served_by = served_by.split()

    async def brokers(self, cluster: str | None = None) -> list[Broker]:
        if self.leads != "n0" and self.served_by:
            self.knows = self.served_by.pop(0)
        return [Broker("c", "broker-a", 0 if name == self.knows else 1, name) for name in ("n0", "n1", "n2")]

    async def broker_config(self, address: str) -> dict[str, str]:
        return {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:1;n1-a:2;n2-a:3", "dLegerSelfId": address}

    async def _tell(self, address: str, request: Request, kind: Any) -> Any:
        answer: Answer = VoteAnswer(term=3)
        if isinstance(request, MetadataRequest):
            answer = MetadataAnswer(leader_id=self.leads)
        elif isinstance(request, TransferRequest):
            answer = TransferAnswer(code=self.codes.pop(0))
            if answer.code == Code.SUCCESS:
                self.leads = self.wins
        return answer


def test_a_member_that_does_not_follow_yet_is_waited_for() -> None:
    group = Group([Code.INCONSISTENT_LEADER, Code.INCONSISTENT_LEADER, Code.SUCCESS])
    assert asyncio.run(group.transfer_leader("broker-a", "n1")).leader == "n0"
    assert group.codes == []


def test_a_transfer_has_come_about_when_name_servers_know_the_new_master() -> None:
    group = Group([Code.SUCCESS], served_by="n0 nobody n1")
    asyncio.run(group.transfer_leader("broker-a", "n1"))
    assert group.knows == "n1"


def test_a_transfer_after_which_a_third_member_leads_has_failed() -> None:
    with pytest.raises(ClientError, match="n1 was elected, and then n2, which leads the group broker-a now; try again"):
        asyncio.run(Group([Code.SUCCESS], wins="n2").transfer_leader("broker-a", "n1"))


def test_a_refused_transfer_says_why() -> None:
    with pytest.raises(ClientError, match="n0 does not hand the lead over to n1: FALL_BEHIND_TOO_MUCH"):
        asyncio.run(Group([Code.FALL_BEHIND_TOO_MUCH]).transfer_leader("broker-a", "n1"))


def leader(shown: Any) -> str:
    (found,) = [row["member"] for row in shown["brokers"] if row["state"] == "leader"]
    return str(found)
