"""Heartbeats, groups of clients, what they are told, and what is said about their mistakes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from roquet.store.disk import Cold
from roquet.testing import FakePeer
from roquet.wire import fastjson
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import RESPONSE, Command
from roquet.wire.ids import offset_message_id
from roquet.wire.record import decode_records

from .conftest import BrokerKit, golden, recorded, same_answer


def subscription(topic: str, expression: str = "*", version: int = 1, **more: Any) -> dict[str, Any]:
    tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
    return {"topic": topic, "subString": expression, "tagsSet": tags, "codeSet": [], "subVersion": version, "expressionType": "TAG"} | more


def beat(
    kit: BrokerKit,
    peer: FakePeer,
    client: str,
    *subscriptions: dict[str, Any],
    group: str = "g",
    producers: tuple[str, ...] = (),
    **more: Any,
) -> Command:
    """A heartbeat of one consumer; without subscriptions, of producers only."""
    consumer = {"groupName": group, "subscriptionDataSet": list(subscriptions)} | more
    body = {
        "clientID": client,
        "consumerDataSet": [consumer] if subscriptions else [],
        "producerDataSet": [{"groupName": name} for name in producers],
    }
    return kit.request(RequestCode.HEART_BEAT, body=fastjson.dumps(body), peer=peer)


def peers(count: int) -> list[FakePeer]:
    return [FakePeer(f"127.0.0.1:{40_001 + number}") for number in range(count)]


def told(peer: FakePeer) -> list[str]:
    """Groups it was told to have changed."""
    sent = peer.take()
    assert all(command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED and command.is_oneway for command in sent)
    return [command.fields["consumerGroup"] for command in sent]


def members_of(kit: BrokerKit, group: str = "g") -> list[str]:
    answer = kit.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    found: list[str] = fastjson.loads(answer.body)["consumerIdList"] if answer.code == 0 else []
    return found


# ---- golden -----------------------------------------------------------------------------------------------------------


def test_every_recorded_heartbeat_and_farewell_is_answered_as_there(kit: BrokerKit) -> None:
    for pair in golden(34, 35):
        ours = kit.ask(pair.request)
        same_answer(ours, pair.response)
        assert ours.body == b""
    for command in recorded(34, "c->s") + recorded(35, "c->s"):
        assert kit.ask(command).code == ResponseCode.SUCCESS


def test_the_list_of_a_group_is_apaches(kit: BrokerKit) -> None:
    for pair in golden(38):
        (client,) = fastjson.loads(pair.response.body)["consumerIdList"]
        beat(kit, kit.peer, client, subscription("VecTopic"), group="vec_group")
        ours = kit.ask(pair.request)
        same_answer(ours, pair.response)
        assert ours.body == pair.response.body


def test_the_notification_of_a_change_is_apaches(kit: BrokerKit) -> None:
    for theirs in recorded(40, "s->c"):
        peer = FakePeer()
        beat(kit, peer, "c", subscription("VecTopic"), group=theirs.fields["consumerGroup"])
        (ours,) = peer.sent
        assert (ours.code, ours.fields, ours.flag, ours.body, ours.binary) == (theirs.code, theirs.fields, theirs.flag, b"", theirs.binary)


def test_the_connections_of_consumers_are_listed_as_there(kit: BrokerKit) -> None:
    theirs = fastjson.loads(recorded_body(203))
    (connection,) = theirs["connectionSet"]
    peer = FakePeer(connection["clientAddr"])
    body = {
        "clientID": connection["clientId"],
        "consumerDataSet": [
            {
                "groupName": "vec_group", "subscriptionDataSet": list(theirs["subscriptionTable"].values()), "unitMode": False,
                "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            }
        ],
        "producerDataSet": [],
    }  # fmt: skip
    kit.ask(Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body), version=connection["version"]), peer)
    ours = kit.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "vec_group"})
    assert ours.code == ResponseCode.SUCCESS
    mine = fastjson.loads(ours.body)
    for table in (mine, theirs):
        for one in table["subscriptionTable"].values():
            one["tagsSet"].sort()  # sets: their order is a hash's
            one["codeSet"].sort()
    assert mine == theirs


def recorded_body(code: int) -> bytes:
    return next(one.body for one in recorded(code, "s->c") if one.is_response and one.code == 0)


def test_a_group_that_is_not_online_is_answered_as_there(kit: BrokerKit) -> None:
    for pair in golden(203):
        same_answer(kit.ask(pair.request), pair.response)


def test_producers_are_listed_as_there(kit: BrokerKit) -> None:
    theirs = fastjson.loads(recorded_body(204))
    (connection,) = theirs["connectionSet"]
    peer = FakePeer(connection["clientAddr"])
    body = {"clientID": connection["clientId"], "consumerDataSet": [], "producerDataSet": [{"groupName": "vec_producer"}]}
    kit.ask(Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body), version=connection["version"]), peer)
    for request in recorded(204, "c->s"):
        assert fastjson.loads(kit.ask(request).body) == theirs
    answer = kit.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "nobody"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[nobody] not exist")


def test_all_producers(kit: BrokerKit) -> None:
    (empty,) = golden(328)
    ours = kit.ask(empty.request)
    same_answer(ours, empty.response)
    assert ours.body == empty.response.body
    beat(kit, kit.peer, "c", producers=("p", "q"))
    info = {"clientId": "c", "language": "JAVA", "lastUpdateTimestamp": kit.clock.ms, "remoteIP": "/" + kit.peer.address, "version": 409}
    assert fastjson.loads(kit.request(RequestCode.GET_ALL_PRODUCER_INFO).body) == {"data": {"p": [info], "q": [info]}}


# ---- coming and going -------------------------------------------------------------------------------------------------


def test_a_heartbeat_makes_the_group_and_its_retry_topic(kit: BrokerKit) -> None:
    assert beat(kit, kit.peer, "c", subscription("T")).code == 0
    assert kit.groups.get("g") is not None
    topic = kit.topics.get("%RETRY%g")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
    group = kit.members.group("g")
    assert group is not None
    assert (group.message_model, group.consume_type, group.consume_from_where) == (
        "CLUSTERING", "CONSUME_PASSIVELY", "CONSUME_FROM_LAST_OFFSET",
    )  # fmt: skip


def test_the_retry_topic_has_as_many_queues_as_the_group_says(kit: BrokerKit) -> None:
    kit.groups.put(GroupConfig("g", retry_queue_nums=3))
    kit.groups.put(GroupConfig("h", retry_queue_nums=0))
    beat(kit, kit.peer, "c", subscription("T"))
    beat(kit, kit.peer, "c", subscription("T"), group="h")
    three, one = kit.topics.get("%RETRY%g"), kit.topics.get("%RETRY%h")
    assert three is not None
    assert one is not None
    assert (three.read_queue_nums, one.read_queue_nums) == (3, 1)


def test_without_a_group_there_is_no_retry_topic_but_the_member_is_known(kits: Callable[..., BrokerKit]) -> None:
    kit = kits(auto_create_subscription_group=False)
    assert beat(kit, kit.peer, "c", subscription("T")).code == 0
    assert kit.topics.get("%RETRY%g") is None
    assert members_of(kit) == ["c"]


def test_a_name_too_long_for_a_retry_topic_is_said(kit: BrokerKit) -> None:
    name = "g" * 121
    assert beat(kit, kit.peer, "c", subscription("T"), group=name).code == 0
    assert "cannot be delivered again" in kit.notices.list()[0].text
    assert members_of(kit, name) == ["c"]


def test_everybody_is_told_when_a_member_comes_or_goes_and_nobody_otherwise(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T"))
    assert told(one) == ["g"]
    beat(kit, two, "two", subscription("T"))
    assert told(one) == told(two) == ["g"]
    beat(kit, one, "one", subscription("T", version=2))
    beat(kit, two, "two", subscription("T", version=2))
    assert told(one) == told(two) == []
    kit.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "one", "consumerGroup": "g"}, peer=one)
    assert (told(one), told(two)) == ([], ["g"])
    assert members_of(kit) == ["two"]
    kit.members.disconnected(two)
    assert told(two) == []
    assert kit.members.group("g") is None


def test_a_change_of_topics_is_told_too(kit: BrokerKit) -> None:
    beat(kit, kit.peer, "c", subscription("T"))
    told(kit.peer)
    beat(kit, kit.peer, "c", subscription("T"), subscription("U"))
    assert told(kit.peer) == ["g"]
    beat(kit, kit.peer, "c", subscription("U"))
    assert told(kit.peer) == ["g"]
    assert kit.members.subscription("g", "T") is None


@pytest.mark.parametrize("off", ["group", "broker"])
def test_a_group_or_a_broker_may_keep_silent_about_changes(kit: BrokerKit, off: str) -> None:
    kit.groups.put(GroupConfig("g", notify_consumer_ids_changed_enable=off != "group"))
    kit.settings.notify_consumer_ids_changed_enable = off != "broker"
    beat(kit, kit.peer, "c", subscription("T"))
    assert told(kit.peer) == []


def test_the_newest_version_of_a_subscription_wins(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T", "a", version=5))
    beat(kit, two, "two", subscription("T", "b", version=4))
    found = kit.members.subscription("g", "T")
    assert found is not None
    assert found.sub_string == "a"
    beat(kit, two, "two", subscription("T", "b", version=6))
    found = kit.members.subscription("g", "T")
    assert found is not None
    assert (found.sub_string, found.tags_set) == ("b", {"b"})
    assert kit.members.groups_subscribing("T") == ["g"]
    assert kit.members.groups_subscribing("U") == []


def test_the_last_heartbeat_decides_how_a_group_consumes(kit: BrokerKit) -> None:
    """As C++ sends it: enums as numbers, a version as text, no expression type."""
    beat(
        kit,
        kit.peer,
        "c",
        {"topic": "T", "subString": "*", "subVersion": "7", "tagsSet": []},
        consumeType=0,
        messageModel=0,
        consumeFromWhere=4,
    )
    group = kit.members.group("g")
    assert group is not None
    assert (group.consume_type, group.message_model, group.consume_from_where) == (
        "CONSUME_ACTIVELY", "BROADCASTING", "CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    found = kit.members.subscription("g", "T")
    assert found is not None
    assert found.sub_version == 7


def test_a_silent_client_is_removed_and_its_connection_closed(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T"), producers=("p",))
    kit.clock.ms += 60_000
    beat(kit, two, "two", subscription("T"))
    told(two)
    kit.clock.ms += 60_001
    kit.members.tick(kit.clock.ms)
    assert one.closed
    assert "120 s" in one.close_reason
    assert not two.closed
    assert members_of(kit) == ["two"]
    assert told(two) == ["g"]
    assert kit.members.producers("p") == []
    assert kit.members.clients == 1


def test_a_dropped_connection_takes_all_of_its_groups_with_it(kit: BrokerKit) -> None:
    one, two = peers(2)
    for group in ("g", "h"):
        beat(kit, one, "one", subscription("T"), group=group, producers=("p",))
        beat(kit, two, "two", subscription("T"), group=group)
    assert kit.members.producers("p") == [one]
    kit.members.disconnected(one)
    kit.members.disconnected(one)
    assert members_of(kit, "g") == members_of(kit, "h") == ["two"]
    assert kit.members.producers("p") == []
    kit.members.disconnected(two)
    assert kit.members.clients == 0
    answer = kit.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, g")


def test_a_producer_says_goodbye(kit: BrokerKit) -> None:
    beat(kit, kit.peer, "c", producers=("p", "q"))
    assert kit.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "p"}).code == 0
    assert kit.members.producers("p") == []
    assert kit.members.producers("q") == [kit.peer]
    assert kit.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "producerGroup": "never", "consumerGroup": "never"}).code == 0


# ---- what upstream is silent about ------------------------------------------------------------------------------------


def test_members_that_subscribe_to_different_things_are_named(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T", "a"), subscription("U"))
    assert not kit.notices.list()
    beat(kit, two, "two", subscription("T", "b || c"), subscription("V"))
    (notice,) = kit.notices.list()
    for part in (
        "group g",
        "one (127.0.0.1:40001)",
        "two (127.0.0.1:40002)",
        "T with 'a' here and 'b || c' there",
        "only one subscribes to U",
    ):
        assert part in notice.text
    beat(kit, two, "two", subscription("T", "b || c"), subscription("V"))
    assert kit.notices.list() == [notice]
    beat(kit, two, "two", subscription("T", "a"), subscription("U"))
    assert not kit.notices.list()


def test_the_same_tags_in_another_order_are_no_difference(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T", "a || b"))
    beat(kit, two, "two", subscription("T", "b||a", version=9))
    assert not kit.notices.list()


def test_the_notice_goes_with_the_member_that_differs(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "one", subscription("T"))
    beat(kit, two, "two", subscription("U"))
    assert kit.notices.list()
    kit.members.disconnected(two)
    assert not kit.notices.list()


def test_two_connections_with_one_client_id_are_named_and_listed_once(kit: BrokerKit) -> None:
    one, two, three = peers(3)
    beat(kit, one, "same", subscription("T"))
    beat(kit, two, "same", subscription("T"))
    beat(kit, three, "other", subscription("T"))
    (notice,) = kit.notices.list()
    for part in ("group g", "client id same", "127.0.0.1:40001", "127.0.0.1:40002"):
        assert part in notice.text
    assert members_of(kit) == ["same", "other"]
    two.closed = True
    kit.members.disconnected(two)
    assert not kit.notices.list()


def test_one_client_in_two_groups_or_on_a_new_connection_is_no_mistake(kit: BrokerKit) -> None:
    one, two = peers(2)
    beat(kit, one, "c", subscription("T"))
    beat(kit, one, "c", subscription("T"), group="h")
    one.closed = True
    beat(kit, two, "c", subscription("T"))
    assert not kit.notices.list()


def test_broadcasting_members_of_one_host_share_an_id_by_default(kit: BrokerKit) -> None:
    for peer in peers(2):
        beat(kit, peer, "192.0.2.1@DEFAULT", subscription("T"), messageModel="BROADCASTING")
    assert not kit.notices.list()


# ---- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"{}", b'{"clientID":""}', b'{"clientID":5,"consumerDataSet":3}',
        fastjson.dumps({"clientID": "c" * 2_000}),
        fastjson.dumps({"clientID": "c", "producerDataSet": [{"groupName": "p"}, {"groupName": "../x"}]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g"}, {"groupName": "a/b"}]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "messageModel": "SIDEWAYS"}]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription("../x")]}]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription("T", "x" * 70000)]}]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": f"g{number}"} for number in range(2_001)]}),
        fastjson.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [subscription("T")] * 10_001}]}),
        b" " * (4 << 20) + b'{"clientID":"c"}',
    ],
    ids=lambda body: bytes(body[:60]).decode(),
)  # fmt: skip
def test_a_heartbeat_that_makes_no_sense_is_refused_and_changes_nothing(kit: BrokerKit, body: bytes) -> None:
    answer = kit.request(RequestCode.HEART_BEAT, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert kit.members.clients == 0
    assert kit.groups.data_version.counter == 0


def test_a_connection_cannot_collect_groups_without_end(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.members.CLIENT_GROUPS_MAX", 3)
    assert beat(kit, kit.peer, "c", producers=("a", "b")).code == 0
    assert beat(kit, kit.peer, "c", producers=("a", "c")).code == 0
    assert beat(kit, kit.peer, "c", producers=("d",)).code == ResponseCode.SYSTEM_ERROR
    kit.members.disconnected(kit.peer)
    assert beat(kit, kit.peer, "c", producers=("d",)).code == 0


def test_a_connection_has_one_client_id_at_a_time(kit: BrokerKit) -> None:
    one, two = peers(2)
    for number in range(1_000):
        assert beat(kit, one, f"c{number}", producers=("p",)).code == 0
    assert (len(kit.members._producing_as), len(kit.members._called)) == (1, 1)
    assert kit.members.producer_with_id("c998") is None
    assert kit.members.producer_with_id("c999") is one
    beat(kit, two, "c0", producers=("p",))
    beat(kit, one, "c0", producers=("p",))
    beat(kit, two, "c1", producers=("p",))
    assert kit.members.producer_with_id("c0") is one, "it was taken over, and who had it before goes its own way"
    beat(kit, two, "c0", producers=("p",))
    kit.members.disconnected(one)
    assert kit.members.producer_with_id("c0") is two
    kit.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "c0", "producerGroup": "p"}, peer=two)
    assert kit.members.producer_with_id("c0") is None
    beat(kit, two, "c0", producers=("p",))
    kit.members.disconnected(two)
    assert not kit.members._producing_as
    assert not kit.members._called


def test_all_connections_together_cannot_either(kits: Callable[..., BrokerKit]) -> None:
    kit = kits(accept_groups_max=2)
    one, two = peers(2)
    assert beat(kit, one, "c", producers=("a", "b")).code == 0
    answer = beat(kit, two, "c", producers=("c",))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "acceptGroupsMax=2" in (answer.remark or "")


# ---- checks and calls -------------------------------------------------------------------------------------------------


def test_tag_subscriptions_are_fine_and_sql_is_refused_as_where_it_is_switched_off(kit: BrokerKit) -> None:
    (command, *_) = recorded(46, "c->s")
    answer = kit.ask(command)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92")
    for kind in ("TAG", "", None):
        body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "subString": "a", "expressionType": kind}}
        assert kit.request(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body)).code == ResponseCode.SUCCESS


def test_a_large_subscription_that_is_asked_about_is_read_elsewhere(kit: BrokerKit) -> None:
    body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "tagsSet": ["a" * 100] * 2_000}}
    work = kit.handlers[RequestCode.CHECK_CLIENT_CONFIG](kit.peer, Command(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body)))
    assert isinstance(work, Generator)
    assert isinstance(next(work), Cold)
    assert kit.request(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body)).code == ResponseCode.SUCCESS
    answer = kit.request(RequestCode.CHECK_CLIENT_CONFIG, body=bytes(5 << 20))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "subscription of 5242880 bytes, limit is 4194304")


RUNNING = {"consumerGroup": "vec_group", "clientId": "192.0.2.2@28610#2626948692930", "jstackEnable": "false"}


def test_a_question_about_a_client_is_passed_on_to_it_and_its_answer_back(kit: BrokerKit) -> None:
    """The four frames of the recording: tool to broker, broker to client, and back."""
    asked = next(one for one in recorded(307, "c->s") if not one.is_response)
    passed = next(one for one in recorded(307, "s->c") if not one.is_response)
    answered = next(one for one in recorded(307, "c->s") if one.is_response)
    tool, client = peers(2)
    beat(kit, client, RUNNING["clientId"], subscription("VecTopic"), group="vec_group")
    client.take()
    assert kit.handle(asked, tool) is None
    (ours,) = client.take()
    assert (ours.code, ours.fields, ours.flag, ours.body, ours.binary) == (passed.code, passed.fields, 0, b"", False)
    answer = Command(answered.code, answered.fields, answered.body, opaque=ours.opaque, flag=RESPONSE, remark=answered.remark)
    assert not kit.members.answer(tool, answer), "only the one that was asked may answer"
    assert kit.members.answer(client, answer)
    assert not kit.members.answer(client, answer)
    (reply,) = tool.take()
    theirs = next(one for one in recorded(307, "s->c") if one.is_response)
    same_answer(reply, theirs)
    assert reply.body == theirs.body == answered.body


def test_a_client_that_does_not_answer_is_a_timeout_after_10_seconds(kit: BrokerKit) -> None:
    tool, client = peers(2)
    beat(kit, client, RUNNING["clientId"], subscription("T"), group="vec_group")
    kit.handle(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING, opaque=5), tool)
    kit.clock.ms += 9_999
    kit.members.tick(kit.clock.ms)
    assert not tool.sent
    kit.clock.ms += 1
    kit.members.tick(kit.clock.ms)
    (reply,) = tool.sent
    assert (reply.code, reply.opaque) == (ResponseCode.CONSUME_MSG_TIMEOUT, 5)


def test_a_client_that_goes_before_it_answers_is_an_error(kit: BrokerKit) -> None:
    tool, client = peers(2)
    beat(kit, client, RUNNING["clientId"], subscription("T"), group="vec_group")
    kit.handle(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING, opaque=5), tool)
    kit.members.disconnected(client)
    (reply,) = tool.sent
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "invoke consumer <vec_group>" in (reply.remark or "")


def test_a_tool_that_goes_before_the_answer_is_not_written_to(kit: BrokerKit) -> None:
    tool, client = peers(2)
    beat(kit, client, RUNNING["clientId"], subscription("T"), group="vec_group")
    client.take()
    kit.handle(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING), tool)
    tool.closed = True
    assert kit.members.answer(client, client.take()[0].reply())


def test_who_is_not_there_or_too_old_cannot_be_asked(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = kit.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR, f"The Consumer <vec_group> <{RUNNING['clientId']}> not online",
    )  # fmt: skip
    body = {"clientID": RUNNING["clientId"], "consumerDataSet": [{"groupName": "vec_group"}]}
    kit.ask(Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body), version=50))
    kit.peer.take()
    assert "too low" in (kit.request(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING).remark or "")
    kit.ask(Command(RequestCode.HEART_BEAT, body=fastjson.dumps(body)))
    monkeypatch.setattr("roquet.broker.members.CALLS_MAX", 1)
    assert kit.handle(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING), FakePeer()) is None
    refused = kit.handle(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING), FakePeer())
    assert refused is not None
    assert refused.code == ResponseCode.SYSTEM_BUSY


def test_a_message_is_handed_to_one_consumer_with_its_record(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, client = peers(2)
    offset, _ = kit.put("T", body=b"again")
    beat(kit, client, "c", subscription("T"))
    client.take()
    real, cold = kit.store.record_at, [True]

    def cold_once(offset: int) -> bytes:
        if cold:
            raise Cold(cold.clear)
        return real(offset)

    monkeypatch.setattr(kit.store, "record_at", cold_once)
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": offset_message_id(bytes(8), offset)}
    assert kit.handle(Command(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields), tool) is None
    (passed,) = client.take()
    assert passed.fields == fields | {"brokerName": "broker-a"}
    assert [record.body for record in decode_records(passed.body)] == [b"again"]
    for wrong in ({"msgId": "xyz"}, {"msgId": offset_message_id(bytes(8), 77)}, {"msgId": offset_message_id(bytes(8), (1 << 64) - 1)}):
        assert kit.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields | wrong).code == ResponseCode.SYSTEM_ERROR
    assert kit.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}).code == ResponseCode.SYSTEM_ERROR
