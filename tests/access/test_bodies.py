"""Requests that name topics and groups in their bodies: what is read of those before anybody is let in, and what that may cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.access.needs import BODY_MAX, NAMES_MAX, NEEDS, OBJECTS_MAX, STRICT
from roquet.broker.handler import LARGE
from roquet.errors import Refused
from roquet.testing import FakePeer, WholeBroker
from roquet.wire.calls.call import AnyCall
from roquet.wire.calls.members import CHECK_CLIENT_CONFIG, HEART_BEAT, ConsumerData, HeartbeatBody, SubscriptionData
from roquet.wire.calls.queues import LOCK_BATCH_MQ, UNLOCK_BATCH_MQ
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import Command
from roquet.wire.names import retry_topic

from .people import accounts, signed

ACL = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[WholeBroker]:
    made = WholeBroker(tmp_path / "store", accounts=accounts(tmp_path))
    made.peer = FakePeer("10.1.1.1:40001")
    yield made
    made.close()


def beat(*topics: str, group: str = "g") -> Command:
    consumer = ConsumerData(group, subscription_data_set=[SubscriptionData(topic) for topic in topics])
    return Command(Code.HEART_BEAT, body=HeartbeatBody("client", consumer_data_set=[consumer]).encode())


# What is read


def names_of(call: AnyCall, body: Any) -> set[str]:
    """By the reader that the handler has."""
    if call is HEART_BEAT:
        topics = {one.topic for consumer in body.consumer_data_set for one in consumer.subscription_data_set}
        return topics | {retry_topic(consumer.group_name) for consumer in body.consumer_data_set}
    if call is CHECK_CLIENT_CONFIG:
        return {retry_topic(body.group), body.subscription_data.topic}
    return {retry_topic(body.consumer_group), *(queue.topic for queue in body.mq_set)}


NAMES = ("clientID", "clientId", "consumerDataSet", "groupName", "subscriptionDataSet", "topic", "consumerGroup", "mqSet", "brokerName")
PLAIN = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(("a", "b", "1", "true", "None", ""))
KEYS = st.sampled_from((*NAMES, "queueId", "group", "subscriptionData"))
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)
NAME = st.sampled_from(("a", "b", 1, True, 1.0, 0, False, "1", "true"))


def likely(**fields: Any) -> Any:
    """An object with these fields, or some of them, or anything else in their place."""
    return st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in fields.items()}) | st.fixed_dictionaries(fields)


TOPICS = st.lists(likely(topic=NAME), max_size=4)
QUEUES = st.lists(likely(topic=st.sampled_from(("a", "b")), brokerName=st.just("x"), queueId=st.just(0)), max_size=4)
BODIES: dict[AnyCall, Any] = {
    HEART_BEAT: likely(clientID=st.just("c"), consumerDataSet=st.lists(likely(groupName=NAME, subscriptionDataSet=TOPICS), max_size=3)),
    LOCK_BATCH_MQ: likely(consumerGroup=NAME, clientId=st.just("c"), mqSet=QUEUES),
    UNLOCK_BATCH_MQ: likely(consumerGroup=NAME, clientId=st.just("c"), mqSet=QUEUES),
    CHECK_CLIENT_CONFIG: likely(clientId=st.just("c"), group=NAME, subscriptionData=likely(topic=NAME)),
}


@pytest.mark.parametrize("padding", [0, STRICT], ids=["small", "large"])
@pytest.mark.parametrize("call", BODIES, ids=lambda call: call.code.name)
@given(data=st.data())
def test_whatever_the_handler_would_read_is_asked_about(call: AnyCall, padding: int, data: st.DataObject) -> None:
    command = Command(int(call.code), body=orjson.dumps(data.draw(BODIES[call])) + b" " * padding)
    wants = NEEDS[call.code].wants
    assert wants is not None
    try:
        read = call.read_body(command)
    except Refused:
        return  # and so will it be
    assert {name for name, _ in wants(command)} == names_of(call, read)


@pytest.mark.parametrize("call", BODIES, ids=lambda call: call.code.name)
@given(data=st.data())
def test_what_is_no_such_body_is_refused_and_nothing_worse(call: AnyCall, data: st.DataObject) -> None:
    wants = NEEDS[call.code].wants
    assert wants is not None
    body = data.draw(ANYTHING.map(orjson.dumps) | st.binary(max_size=20))
    with contextlib.suppress(Refused):
        wants(Command(int(call.code), body=body))


def test_names_that_are_equal_in_python_alone_are_all_asked_about() -> None:
    wants = NEEDS[Code.HEART_BEAT].wants
    assert wants is not None
    rows = [{"topic": 1}, {"topic": True}, {"topic": 1.0}, {"topic": "1"}]
    body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": rows}]}
    names = [name for name, _ in wants(Command(Code.HEART_BEAT, body=orjson.dumps(body)))]
    assert names == ["1", "true", "1.0", "%RETRY%g"]


def test_small_bodies_may_be_json_as_java_writes_it(whole: WholeBroker) -> None:
    body = b'{"clientID":"c","more":{0:1},"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}]}'
    assert whole.ask(signed(Command(Code.HEART_BEAT, body=body), "consumer")).code == 0
    answer = whole.ask(signed(Command(Code.HEART_BEAT, body=body + b" " * STRICT), "consumer"))
    assert (answer.code, "not the JSON expected" in (answer.remark or "")) == (1, True)


# What it costs


@pytest.mark.parametrize("code", [Code.HEART_BEAT, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ, Code.CHECK_CLIENT_CONFIG])
def test_a_body_that_is_too_large_is_refused_with_the_limit_and_not_read(
    whole: WholeBroker, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roquet.access.needs.fastjson", None)
    monkeypatch.setattr("roquet.access.needs.orjson", None)
    answer = whole.ask(signed(Command(code, body=b" " * (BODY_MAX + 1)), "default"))
    assert (answer.code, answer.remark) == (1, f"the body of request {int(code)} has {BODY_MAX + 1} bytes, limit is {BODY_MAX}")


def test_a_heartbeat_with_thousands_of_subscriptions_is_read_elsewhere_with_access_control_too(
    whole: WholeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = signed(beat(*(f"topic-of-an-ordinary-name-{n}" for n in range(6_000))), "default")
    assert LARGE < len(command.body) < BODY_MAX
    monkeypatch.setattr("roquet.wire.bodies.read_body", None)
    whole.background.hold = True
    whole.frames(command)
    assert not whole.peer.sent, "not on the loop"
    monkeypatch.undo()
    whole.background.hold = False
    whole.background.release()
    whole.tick()
    group = whole.broker.members.group("g")
    assert group is not None
    assert len(group.subscriptions) == 6_000
    assert [answer.code for answer in whole.peer.take() if answer.is_response] == [0]


@pytest.mark.parametrize("forbidden", ["SCHEDULE_TOPIC_XXXX", "group"])
def test_one_forbidden_name_among_thousands_is_found(whole: WholeBroker, forbidden: str) -> None:
    topics = [f"T{n}" for n in range(3_000)]
    command = beat(*topics, "T", forbidden) if forbidden != "group" else beat(*topics)
    answer = whole.ask(signed(command, "default" if forbidden != "group" else "producer"))
    assert answer.code == 1
    assert (answer.remark or "").startswith(ACL + "No default permission for ")


@pytest.mark.parametrize("what", ["topic", "groupName"])
def test_more_names_than_any_client_has_are_not_looked_up(whole: WholeBroker, what: str) -> None:
    rows = [{what: f"{n}"} for n in range(NAMES_MAX + 1)]
    consumers = rows if what == "groupName" else [{"groupName": "g", "subscriptionDataSet": rows}]
    answer = whole.ask(signed(Command(Code.HEART_BEAT, body=orjson.dumps({"clientID": "c", "consumerDataSet": consumers})), "default"))
    assert answer.code == 1
    assert f"limit is {NAMES_MAX}" in (answer.remark or "")


def test_a_body_that_is_all_brackets_is_not_read(whole: WholeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.access.needs.orjson", None)
    body = b'{"clientID":"c","more":[' + b"[]," * OBJECTS_MAX + b"0]}"
    answer = whole.ask(signed(Command(Code.HEART_BEAT, body=body), "default"))
    assert (answer.code, answer.remark) == (1, f"the body of request 34 has {OBJECTS_MAX + 2} objects and lists, limit is {OBJECTS_MAX}")


def test_the_largest_heartbeat_that_a_client_could_send_is_taken(whole: WholeBroker) -> None:
    """With every field that Java's has."""
    command = beat(*(f"topic-{n}" for n in range(8_200)))
    assert 0.99 * BODY_MAX < len(command.body) <= BODY_MAX
    whole.frames(signed(command, "default"))
    whole.tick()
    assert [answer.code for answer in whole.peer.take() if answer.is_response] == [0]
