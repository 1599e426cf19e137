"""Names of topics and groups become paths and keys: bad ones are refused with a sentence and leave no trace on disk."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.hostile.conftest import Victim
from tests.process.line import create_topic, pull, send_message

BAD_NAMES = [
    "../x", "a/b", "", " ", "x" * 300, "..", ".", "/etc/passwd", "a\\b", "a\0b", "a\nb", "../../../../tmp/roquet-was-here", "%2e%2e/x",
    "ж", "a b",
]  # fmt: skip


def batch(topic: str) -> Command:
    command = send_message(topic, join_batch([(0, b"x", b"")]), m="true")
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


def short_send(topic: str) -> Command:
    return send_message(topic, b"x")


def long_send(topic: str) -> Command:
    fields = {
        "producerGroup": "p", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
        "bornTimestamp": "1", "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false",
    }  # fmt: skip
    return Command(RequestCode.SEND_MESSAGE, fields, b"x")


def topic_list(topic: str) -> Command:
    config = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    return Command(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, json.dumps({"topicConfigList": [config]}).encode())


def delete_topic(topic: str) -> Command:
    return Command(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})


def pull_of(topic: str) -> Command:
    return pull(topic, 0)


def subscribing(topic: str) -> Command:
    return heartbeat("somebody", topic)


def heartbeat(group: str, topic: str = "served") -> Command:
    subscription = {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1, "expressionType": "TAG"}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [subscription], "unitMode": False,
    }  # fmt: skip
    body = {"clientID": "hostile@1", "consumerDataSet": [consumer], "producerDataSet": []}
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def producing(group: str) -> Command:
    body = {"clientID": "hostile@1", "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def create_group(group: str) -> Command:
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": group}).encode())


def create_groups(group: str) -> Command:
    body = json.dumps({"groupConfigList": [{"groupName": "fine"}, {"groupName": group}]})
    return Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, body.encode())


def pull_as(group: str) -> Command:
    return pull("served", 0, group=group)


def commit_as(group: str) -> Command:
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": group, "topic": "served", "queueId": "0", "commitOffset": "1"})


def commit_for(topic: str) -> Command:
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": "1"})


Ask = Callable[[str], Command]


def refused(broker: Victim, command: Command, name: str) -> None:
    before = broker.files()
    answer = broker.ask(command)
    assert answer.code != 0, f"{name!r} was taken: {answer}"
    assert answer.remark
    left = broker.files() - before
    assert not left, f"{name!r} left {left}"


def stored_tables(broker: Victim) -> str:
    return "".join(path.read_text() for path in sorted(broker.directory.glob("store/config/*")))


@pytest.mark.parametrize("ask", [short_send, long_send, batch, create_topic, topic_list, delete_topic, pull_of, subscribing])
def test_a_topic_with_a_bad_name_is_refused_by_everything_that_takes_one(broker: Victim, ask: Ask) -> None:
    topics = broker.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body
    for name in BAD_NAMES:
        refused(broker, ask(name), name)
    assert broker.ask(Command(RequestCode.GET_ALL_TOPIC_CONFIG)).body == topics
    assert "was-here" not in stored_tables(broker)


@pytest.mark.parametrize("ask", [heartbeat, producing, create_group, create_groups, pull_as])
def test_a_group_with_a_bad_name_is_refused_by_everything_that_takes_one(broker: Victim, ask: Ask) -> None:
    broker.ask(create_group("exists"))
    groups = broker.ask(Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
    for name in BAD_NAMES:
        refused(broker, ask(name), name)
    assert broker.ask(Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body == groups
    assert "was-here" not in stored_tables(broker)


@pytest.mark.parametrize("ask", [commit_as, commit_for])
def test_an_offset_for_a_bad_name_is_not_kept(broker: Victim, ask: Ask) -> None:
    for name in BAD_NAMES:
        broker.ask(ask(name))
    table = broker.ask(Command(RequestCode.GET_ALL_CONSUMER_OFFSET)).body.decode()
    for name in ("../", "was-here", "a/b", "x" * 300, "passwd"):
        assert name not in table


def test_a_name_server_takes_any_name_as_a_question_and_puts_none_on_disk(name_server: Victim) -> None:
    before = name_server.files()
    for name in BAD_NAMES:
        assert name_server.ask(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": name})).code != 0
        name_server.ask(Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": name}))
        name_server.ask(Command(RequestCode.PUT_KV_CONFIG, {"namespace": name, "key": name, "value": "v"}))
    new = {file for file in name_server.files() - before if "kvConfig.json" not in file}
    assert new <= {"inside/data", "inside/data/namesrv"}


def test_a_name_begins_no_line_of_the_log(name_server: Victim) -> None:
    """Somebody could write into it what an operator would believe."""
    forged = "x\n2026-01-01 00:00:00,000 WARNING roquet.audit refused: key somebody-else\x1b[2J"
    name_server.ask(Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": forged}))
    name_server.server.program.wait_for("refused: key somebody-else")
    text = name_server.server.program.text
    assert "\n2026-01-01" not in text
    assert "\x1b" not in text
