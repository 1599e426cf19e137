"""Subscription groups: settings, automatic creation, and the file that Java reads too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roquet.broker.groups import STARTING_GROUPS
from roquet.errors import Damaged
from roquet.wire import fastjson
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command

from .conftest import BrokerKit, golden, same_answer


def file_of(kit: BrokerKit) -> Path:
    return kit.root / "config" / "subscriptionGroup.json"


def table_of(kit: BrokerKit) -> dict[str, Any]:
    found: dict[str, Any] = fastjson.loads(kit.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body)
    return found


def test_the_conversation_with_apache_comes_out_the_same(kit: BrokerKit) -> None:
    """Create (200), list (201), delete (207), with the groups that were used there before."""
    for name in ("vec_lite", "vec_group", "vec_broadcast", "vec_reply", "vec_sql", "vec_orderly"):
        assert kit.groups.find(name) is not None
    create, first, second, delete = golden(200, 201, 207)
    ours = kit.ask(create.request)
    same_answer(ours, create.response)
    assert ours.body == create.response.body == b""
    for pair in (first, second):
        ours = kit.ask(pair.request)
        same_answer(ours, pair.response)
        mine, theirs = fastjson.loads(ours.body), fastjson.loads(pair.response.body)
        assert mine["subscriptionGroupTable"] == theirs["subscriptionGroupTable"]
        assert mine["dataVersion"]["counter"] == theirs["dataVersion"]["counter"] == 7, "the groups of the start are no change"
    same_answer(kit.ask(delete.request), delete.response)
    assert kit.groups.get("vec_new") is None
    assert table_of(kit)["dataVersion"]["counter"] == 8


def test_every_broker_has_the_system_groups(kit: BrokerKit) -> None:
    assert {group.group_name for group in kit.groups.all()} == set(STARTING_GROUPS)
    assert not file_of(kit).exists()


def test_a_group_is_made_at_its_first_use(kit: BrokerKit) -> None:
    assert kit.groups.get("g") is None
    assert kit.groups.find("g") == GroupConfig("g")
    assert kit.groups.get("g") is kit.groups.find("g")
    assert kit.groups.data_version.counter == 1
    assert "g" in fastjson.loads(file_of(kit).read_bytes())["subscriptionGroupTable"]


def test_without_automatic_creation_only_system_groups_are_made(kits: Callable[..., BrokerKit]) -> None:
    kit = kits(auto_create_subscription_group=False)
    assert kit.groups.find("g") is None
    assert kit.groups.find("CID_RMQ_SYS_TRANS") is not None


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a b", "g" * 256, "groß", "g\0"])
def test_a_name_that_is_not_allowed_is_never_made(kit: BrokerKit, name: str) -> None:
    assert kit.groups.find(name) is None
    body = GroupConfig(name).encode()
    answer = kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "group" in (answer.remark or "")
    assert kit.groups.data_version.counter == 0


def test_there_is_a_limit_to_groups_and_it_is_said(kits: Callable[..., BrokerKit]) -> None:
    kit = kits(accept_groups_max=len(STARTING_GROUPS) + 1)
    assert kit.groups.find("a") is not None
    assert kit.groups.find("b") is None
    answer = kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("b").encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "acceptGroupsMax=8" in (answer.remark or "")
    assert "acceptGroupsMax=8" in kit.notices.list()[0].text
    assert kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("a", retry_max_times=3).encode()).code == 0
    kit.groups.delete("a", with_offsets=False)
    assert not kit.notices.list()
    assert kit.groups.find("b") is not None


def test_a_list_of_5_is_taken_whole_or_not_at_all(kit: BrokerKit) -> None:
    good = [{"groupName": "a"}, {"groupName": "b", "retryMaxTimes": 2}]
    body = fastjson.dumps({"groupConfigList": good})
    assert kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body).code == 0
    found = kit.groups.get("b")
    assert found is not None
    assert found.retry_max_times == 2
    assert kit.groups.data_version.counter == 1
    for wrong in ([{"groupName": "c"}, {"groupName": "../d"}], [{"groupName": "c"}, {}], [{"groupName": "c"}, 5], "c", {"x": 1}):
        answer = kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=fastjson.dumps(wrong))
        assert answer.code == ResponseCode.SYSTEM_ERROR
    assert kit.groups.get("c") is None
    assert kit.groups.data_version.counter == 1


def test_one_group_is_asked_for_and_not_made_by_asking(kit: BrokerKit) -> None:
    answer = kit.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert (answer.code, answer.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker. group: g")
    assert kit.groups.get("g") is None
    kit.groups.find("g")
    assert GroupConfig.decode(kit.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}).body) == GroupConfig("g")


@pytest.mark.parametrize(
    ("flag", "left"), [({}, 5), ({"removeOffset": "false"}, 5), ({"removeOffset": "true"}, -1), ({"cleanOffset": "true"}, -1)]
)
def test_deleting_a_group_removes_its_offsets_when_asked(kit: BrokerKit, flag: dict[str, str], left: int) -> None:
    kit.groups.find("g")
    kit.offsets.commit("g", "T", 0, 5)
    kit.offsets.commit("other", "T", 0, 6)
    assert kit.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"} | flag).code == 0
    assert kit.groups.get("g") is None
    assert kit.offsets.find("g", "T", 0) == left
    assert kit.offsets.find("other", "T", 0) == 6
    version = kit.groups.data_version
    assert kit.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}).code == 0
    assert kit.groups.data_version == version, "deleting what is not there is no change"


def test_the_file_of_apache_is_read_and_written_back_equal(apache: BrokerKit) -> None:
    before = fastjson.loads(file_of(apache).read_bytes())
    assert table_of(apache) == before
    apache.groups.find("one_more")
    after = fastjson.loads(file_of(apache).read_bytes())
    del after["subscriptionGroupTable"]["one_more"]
    assert after["subscriptionGroupTable"] == before["subscriptionGroupTable"]
    assert after["dataVersion"] == {"counter": before["dataVersion"]["counter"] + 1, "timestamp": apache.clock.ms}


FROM_5: dict[str, Any] = {
    "dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1_700_000_000_000},
    "forbiddenTable": {"g": {"T": 1}},
    "subscriptionGroupTable": {
        "g": {
            "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True, "consumeFromMinEnable": True,
            "consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupName": "g",
            "groupRetryPolicy": {"type": "CUSTOMIZED"}, "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 4,
            "retryQueueNums": 1, "whichBrokerWhenConsumeSlowly": 1,
        }
    },
}  # fmt: skip


def test_what_5_keeps_in_a_group_is_carried_along(kits: Callable[..., BrokerKit]) -> None:
    first = kits()
    first.close()
    file_of(first).write_bytes(fastjson.dumps(FROM_5))
    kit = kits()
    found = kit.groups.get("g")
    assert found is not None
    assert found.retry_max_times == 4
    kit.groups.find("h")
    after = fastjson.loads(file_of(kit).read_bytes())
    assert after["subscriptionGroupTable"]["g"] == FROM_5["subscriptionGroupTable"]["g"]
    assert after["forbiddenTable"] == FROM_5["forbiddenTable"]
    assert after["dataVersion"]["counter"] == 4


def test_settings_of_5_that_come_with_an_update_are_kept_and_bounded(kit: BrokerKit) -> None:
    body = {"groupName": "g", "consumeTimeoutMinute": 5}
    assert kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(body)).code == 0
    assert table_of(kit)["subscriptionGroupTable"]["g"]["consumeTimeoutMinute"] == 5
    answer = kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(body | {"attributes": "x" * 20_000}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "limit is 16384" in (answer.remark or "")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"groupName":"g","retryMaxTimes":"x"}', b'{"groupName":"g","retryQueueNums":99999999999}']
)
def test_a_body_that_makes_no_sense_is_refused(kit: BrokerKit, body: bytes) -> None:
    assert kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == ResponseCode.SYSTEM_ERROR
    assert kit.groups.get("g") is None


def test_a_storm_of_new_groups_writes_the_file_once_a_second(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    real = kit.groups.saving.document._replace

    def counted(data: bytes) -> None:
        writes.append(len(data))
        real(data)

    monkeypatch.setattr(kit.groups.saving.document, "_replace", counted)
    for number in range(100):
        kit.groups.find(f"g{number}")
    kit.groups.tick(kit.clock.ms)
    assert len(writes) == 1
    kit.clock.ms += 1_000
    kit.groups.tick(kit.clock.ms)
    kit.groups.tick(kit.clock.ms + 5_000)
    assert len(writes) == 2
    assert "g99" in fastjson.loads(file_of(kit).read_bytes())["subscriptionGroupTable"]


def test_an_operators_change_is_on_disk_before_it_is_answered(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: bytes) -> None:
        raise OSError(28, "no space left")

    kit.groups.find("first")
    with monkeypatch.context() as patch:
        patch.setattr(kit.groups.saving.document, "_replace", full)
        answer = kit.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=GroupConfig("g").encode())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "could not be written" in (answer.remark or "")
    assert "could not be written" in kit.notices.list()[0].text
    kit.clock.ms += 1_000
    kit.groups.tick(kit.clock.ms)
    assert not kit.notices.list()
    assert kit.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "first"}).code == 0
    assert fastjson.loads(file_of(kit).read_bytes())["subscriptionGroupTable"].keys() == {*STARTING_GROUPS, "g"}
    silent = Command(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, flag=ONEWAY)
    assert kit.handle(silent, kit.peer) is None
    assert not kit.peer.sent


def test_groups_survive_a_restart_and_a_file_nobody_can_read_stops_the_start(kits: Callable[..., BrokerKit]) -> None:
    first = kits()
    first.groups.put(GroupConfig("g", consume_enable=False))
    first.close()
    again = kits()
    assert again.groups.get("g") == GroupConfig("g", consume_enable=False)
    again.close()
    file_of(again).write_bytes(b"\0" * 100)
    file_of(again).with_suffix(".json.bak").unlink(missing_ok=True)
    with pytest.raises(Damaged, match=r"subscriptionGroup\.json"):
        kits()
