"""What operators ask, and what they may change."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.broker.admin import NOT_YET, duration_text, ratio_text, size_text
from roquet.errors import Refused
from roquet.properties import parse_properties
from roquet.settings import TLS_FILE
from roquet.store.disk import Cold
from roquet.testing import FakePeer
from roquet.wire import fastjson
from roquet.wire.calls.offsets import ConsumeStats, ConsumeStatsList, QueueProgress, TimeSpans
from roquet.wire.calls.queues import QueueEntries
from roquet.wire.calls.topics import TopicStats
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.fastjson import ObjectKey

from .conftest import BrokerKit, finish, golden, recorded, same_answer
from .test_members import beat, subscription

HOSTILE = b"filterServerNums=1\nrocketmqHome=-c $@|sh . echo touch /tmp/owned;\n"


def queue(topic: str, queue_id: int) -> ObjectKey:
    return ObjectKey.of({"brokerName": "broker-a", "queueId": queue_id, "topic": topic})


# ---- configuration ----------------------------------------------------------------------------------------------------


def test_the_configuration_is_read_as_there(kit: BrokerKit) -> None:
    (pair,) = golden(26)
    ours = kit.ask(pair.request)
    assert (ours.code, ours.remark, ours.fields.keys()) == (pair.response.code, pair.response.remark, pair.response.fields.keys())
    assert fastjson.loads(ours.fields["version"]) == {"counter": 0, "timestamp": kit.clock.ms}
    mine, theirs = parse_properties(ours.body.decode()), parse_properties(pair.response.body.decode())
    assert theirs.keys() - mine.keys() == {"rocketmqHome"}  # which is shown only where it was given
    different = {key for key in theirs.keys() & mine.keys() if mine[key] != theirs[key]}
    # What the recorded broker had in its file, and what it made from its machine.
    assert different <= {
        "storePathRootDir", "storePathCommitLog", "namesrvAddr", "rocketmqHome", "brokerIP1", "brokerIP2", "listenPort", "traceTopicEnable",
        "enablePropertyFilter", "transactionCheckInterval", "transactionTimeOut", "haListenPort", "bitMapLengthConsumeQueueExt",
        "pullMessageThreadPoolNums", "heartbeatThreadPoolNums", "processReplyMessageThreadPoolNums", "clientCallbackExecutorThreads",
        "sendMessageThreadPoolNums", "putMessageFutureThreadPoolNums", "queryMessageThreadPoolNums", "endTransactionThreadPoolNums",
    }  # fmt: skip


def test_a_setting_is_changed_as_there(kit: BrokerKit) -> None:
    (pair,) = golden(25)
    ours = kit.ask(pair.request)
    same_answer(ours, pair.response)
    assert kit.settings.file_reserved_time == 48
    assert kit.changes == [{"file_reserved_time": 48}]
    answer = kit.request(RequestCode.GET_BROKER_CONFIG)
    assert b"\nfileReservedTime=48\n" in answer.body
    assert fastjson.loads(answer.fields["version"])["counter"] == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (HOSTILE, ResponseCode.NO_PERMISSION),
        (b"rocketmqHome=/x\n", ResponseCode.NO_PERMISSION),
        (b"storePathRootDir=/etc\nfileReservedTime=1", ResponseCode.NO_PERMISSION),
        (b"fileReservedTime=1\nconfigStorePath=/etc/cron.d/x", ResponseCode.NO_PERMISSION),
        (b"fileReservedTime=1\nfilterServerNums=1", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=1\nmaxMessageSize=-1", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=1\nmaxMessageSize=99999999999", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=soon", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=1\nautoCreateTopicEnable=maybe", ResponseCode.SYSTEM_ERROR),
        (b"", ResponseCode.SYSTEM_ERROR),
        (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
        (b"fileReservedTime=1\n" + b"#" * 70_000, ResponseCode.SYSTEM_ERROR),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else "",
)
def test_a_refused_update_says_why_and_changes_nothing(kit: BrokerKit, body: bytes, code: int) -> None:
    before = dict(kit.settings.items())
    answer = kit.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == code
    assert answer.remark
    assert dict(kit.settings.items()) == before
    assert not kit.changes
    assert kit.admin.config_version.counter == 0


# ---- counters ---------------------------------------------------------------------------------------------------------


def test_runtime_info_has_every_key_that_apaches_has(kit: BrokerKit) -> None:
    theirs = [one for one in recorded(28, "s->c") if one.is_response]
    ours = kit.request(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert (ours.code, ours.remark, ours.fields) == (theirs[0].code, theirs[0].remark, theirs[0].fields)
    mine = fastjson.loads(ours.body)["table"]
    wanted = fastjson.loads(theirs[0].body)["table"].keys()
    wanted = {key.replace("/opt/rmq/store", str(kit.root)) for key in wanted if not key.startswith("scheduleMessageOffset")}
    assert wanted - mine.keys() == set()
    assert all(isinstance(value, str) for value in mine.values())


def test_runtime_info_counts(kit: BrokerKit) -> None:
    kit.put("T")
    kit.stats.put("T", 10, 500)
    kit.stats.got("g", "T", 4, 200)
    for _ in range(10):
        kit.clock.ms += 1_000
        kit.stats.tick(kit.clock.ms)
    mine = fastjson.loads(kit.request(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert mine["putTps"] == "1.0 1.0 1.0"
    assert mine["getTransferedTps"].split()[0] == "0.4"
    assert mine["msgPutTotalTodayNow"] == "10"
    assert mine["msgGetTotalTodayNow"] == "4"
    assert mine["putMessageAverageSize"] == "50.0"
    assert mine["runtime"] == "[ 0 days, 0 hours, 0 minutes, 10 seconds ]"
    assert mine["commitLogMaxOffset"] == str(kit.store.log.safe)
    assert mine["earliestMessageTimeStamp"] == str(kit.clock.ms - 10_000)


def test_a_log_without_a_file_begins_at_minus_one_as_apaches_does(kit: BrokerKit) -> None:
    assert kit.admin.runtime_table()["commitLogMinOffset"] == "-1"
    kit.put("T")
    assert kit.admin.runtime_table()["commitLogMinOffset"] == "0"


@pytest.mark.parametrize(
    ("used", "shown"), [(0.0, "0.0"), (0.5, "0.5"), (0.501, "0.51"), (0.29, "0.29"), (0.57, "0.57"), (0.999, "1.0"), (1.0, "1.0")]
)
def test_how_full_a_disk_is_is_written_as_java_writes_it_rounded_up(used: float, shown: str) -> None:
    assert ratio_text(used) == shown


def test_warnings_are_part_of_the_runtime_info(kit: BrokerKit) -> None:
    start_ms = kit.clock.ms
    for key, text in (("a", "the first"), ("b", "the second"), ("a", "the first")):
        kit.clock.forward(1)
        kit.notices.warn(key, text)
    mine = fastjson.loads(kit.request(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert (mine["roquetWarning_1"], mine["roquetWarning_2"]) == ("the first", "the second")
    seen = [(notice.first_ms - start_ms, notice.last_ms - start_ms, notice.count) for notice in kit.notices.list()]
    assert seen == [(1, 3, 2), (2, 2, 1)]
    kit.notices.clear("a")
    kit.notices.clear("never there")
    assert [notice.key for notice in kit.notices.list()] == ["b"]


def test_notices_are_bounded_and_logged_once(kit: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1_100):
        kit.notices.warn(f"key {number}", "x" * 5_000)
    assert len(kit.notices) == 1_000
    assert max(len(notice.text) for notice in kit.notices.list()) == 2_000
    caplog.clear()
    kit.notices.warn("key 1099", "x" * 5_000)
    assert not caplog.records
    kit.notices.warn("key 1099", "something else")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (583, "583 B"), (1024, "1.0 KiB"), (252 << 30, "252.0 GiB"), (1 << 62, "4.0 EiB")])
def test_sizes_as_upstream_shows_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_durations_as_upstream_shows_them() -> None:
    assert duration_text(93_784_000) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"


# ---- topics -----------------------------------------------------------------------------------------------------------


def test_topic_stats_of_apaches_directory(apache: BrokerKit) -> None:
    """The messages of the recording are still there; the queues have grown since."""
    (pair,) = golden(202)
    ours = apache.ask(pair.request)
    same_answer(ours, pair.response)
    mine, theirs = TopicStats.decode(ours.body), TopicStats.decode(pair.response.body)
    assert mine.offset_table.keys() == theirs.offset_table.keys()
    for key, range_ in theirs.offset_table.items():
        assert mine.offset_table[key].min_offset == range_.min_offset
        assert mine.offset_table[key].max_offset >= range_.max_offset
        assert mine.offset_table[key].last_update_timestamp >= range_.last_update_timestamp


def test_topic_stats_show_every_queue_that_is_read_or_written(kit: BrokerKit) -> None:
    kit.topic("T", 2)
    kit.put("T", 1)
    body = fastjson.loads(kit.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body)
    assert body == {
        "offsetTable": {
            queue("T", 0): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
            queue("T", 1): {"lastUpdateTimestamp": kit.clock.ms, "maxOffset": 1, "minOffset": 0},
        }
    }
    answer = kit.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "none"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[none] not exist")


def test_who_consumes_a_topic(kit: BrokerKit) -> None:
    theirs = {pair.request.fields["topic"]: pair for pair in golden(300)}  # nobody, and the group that has progress without being online
    kit.offsets.commit("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)
    for pair in theirs.values():
        ours = kit.ask(pair.request)
        same_answer(ours, pair.response)
        assert ours.body == pair.response.body
    beat(kit, kit.peer, "c", subscription("T"), group="online")
    kit.offsets.commit("offline", "T", 0, 1)
    kit.offsets.commit("online", "T", 0, 1)
    body = kit.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"}).body
    assert fastjson.loads(body) == {"groupList": ["offline", "online"]}


def test_system_topics_are_apaches(kit: BrokerKit) -> None:
    (pair,) = golden(305)
    ours = kit.ask(pair.request)
    same_answer(ours, pair.response)
    assert sorted(fastjson.loads(ours.body)["topicList"]) == sorted(fastjson.loads(pair.response.body)["topicList"])


def test_the_entries_of_a_queue_are_apaches(apache: BrokerKit) -> None:
    (pair,) = golden(321)
    ours = apache.ask(pair.request)
    assert (ours.code, ours.fields) == (pair.response.code, pair.response.fields)
    mine, theirs = QueueEntries.decode(ours.body), QueueEntries.decode(pair.response.body)
    assert mine.queue_data == theirs.queue_data
    assert (mine.min_queue_index, mine.max_queue_index) == (theirs.min_queue_index, 27)


def test_the_entries_of_a_queue_are_judged_by_a_groups_tags_and_go_over_files(kit: BrokerKit) -> None:
    for number in range(40):
        kit.put("T", properties=f"TAGS\x01{'ab'[number % 2]}")
    kit.store.tick(kit.clock.ms)
    fields = {"topic": "T", "queueId": "0", "index": "1", "count": "38", "consumerGroup": "g"}
    body = QueueEntries.decode(kit.request(RequestCode.QUERY_CONSUME_QUEUE, fields).body)
    assert body.filter_data == "g@T is not online!"
    beat(kit, kit.peer, "c", subscription("T", "a", codeSet=[97]))
    body = QueueEntries.decode(kit.request(RequestCode.QUERY_CONSUME_QUEUE, fields).body)
    assert [entry.eval for entry in body.queue_data] == [False, True] * 19
    assert body.filter_data == "null", "as upstream writes that there is no filter but the tags"
    assert body.subscription_data is not None
    for wrong in ({"index": "40"}, {"index": "-1"}, {"queueId": "5"}):
        assert kit.request(RequestCode.QUERY_CONSUME_QUEUE, fields | wrong).code == ResponseCode.SYSTEM_ERROR
    assert not QueueEntries.decode(kit.request(RequestCode.QUERY_CONSUME_QUEUE, fields | {"count": "-1"}).body).queue_data


def test_cleaning_is_answered_as_there_and_removes_only_what_no_topic_has(kit: BrokerKit) -> None:
    kit.topic("T")
    kit.put("T")
    kit.put("gone")
    kit.put("SCHEDULE_TOPIC_XXXX")
    for pair in golden(306, 316):
        same_answer(kit.ask(pair.request), pair.response)
    assert sorted({topic for topic, _ in kit.store.queues}) == ["SCHEDULE_TOPIC_XXXX", "T"]
    assert kit.request(RequestCode.DELETE_EXPIRED_COMMITLOG).code == 0


def test_one_topic_of_the_table(kit: BrokerKit) -> None:
    kit.topic("T", 3, order=True)
    body = fastjson.loads(kit.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).body)
    assert body == {
        "topicName": "T", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "order": True,
    }  # fmt: skip
    answer = kit.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "none"})
    assert (answer.code, answer.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: none")


# ---- groups -----------------------------------------------------------------------------------------------------------


def consumed(table: dict[Any, QueueProgress]) -> dict[Any, tuple[int, int]]:
    return {key: (progress.consumer_offset, progress.last_timestamp) for key, progress in table.items()}


@pytest.mark.parametrize("number", [0, 1])
def test_consume_stats_of_apaches_directory(apache: BrokerKit, number: int) -> None:
    """With the offsets of then, the times of the last consumed messages are those of then."""
    pair = golden(208)[number]
    group = pair.request.fields["consumerGroup"]
    theirs = ConsumeStats.decode(pair.response.body)
    for key, progress in theirs.offset_table.items():
        apache.offsets.commit(group, key.topic, key.queue_id, progress.consumer_offset)
    ours = apache.ask(pair.request)
    same_answer(ours, pair.response)
    mine = ConsumeStats.decode(ours.body)
    assert consumed(mine.offset_table) == consumed(theirs.offset_table)
    assert all(mine.offset_table[key].broker_offset >= progress.broker_offset for key, progress in theirs.offset_table.items())


def test_consume_stats_of_every_group_of_apaches_directory(apache: BrokerKit) -> None:
    (pair,) = golden(317)
    theirs = ConsumeStatsList.decode(pair.response.body)
    for row in theirs.consume_stats_list:
        for group, stats in row.items():
            for one in stats:
                for key, progress in one.offset_table.items():
                    apache.offsets.commit(group, key.topic, key.queue_id, progress.consumer_offset)
    ours = apache.ask(pair.request)
    same_answer(ours, pair.response)
    mine = ConsumeStatsList.decode(ours.body)
    assert mine.broker_addr == "127.0.0.1:10911"
    assert mine.total_diff == sum(
        progress.broker_offset - progress.consumer_offset
        for row in mine.consume_stats_list for stats in row.values() for one in stats for progress in one.offset_table.values()
    )  # fmt: skip
    by_group = {group: stats for row in mine.consume_stats_list for group, stats in row.items()}
    for row in theirs.consume_stats_list:
        for group, stats in row.items():
            if group in ("vec_new", "CID_RMQ_SYS_TRANS"):  # deleted since
                continue
            assert {key: value for one in stats for key, value in consumed(one.offset_table).items()} == {
                key: value for one in by_group[group] for key, value in consumed(one.offset_table).items()
            }


def test_consume_stats_count_what_is_behind_and_how_fast_it_goes(kit: BrokerKit) -> None:
    kit.topic("T", 2)
    kit.topic("U", 1)
    start = kit.clock.ms
    for _ in range(3):
        kit.clock.ms += 1_000
        kit.put("T", 0)
    kit.offsets.commit("g", "T", 0, 2)
    kit.offsets.commit("g", "U", 0, 1)
    kit.offsets.commit("g", "deleted", 0, 1)
    kit.stats.got("g", "T", 20, 100)
    for _ in range(10):
        kit.clock.ms += 1_000
        kit.stats.tick(kit.clock.ms)
    body = fastjson.loads(kit.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "T"}).body)
    assert body == {
        "consumeTps": 2.0,
        "offsetTable": {
            queue("T", 0): {"brokerOffset": 3, "consumerOffset": 2, "lastTimestamp": start + 2_000},
            queue("T", 1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0},
        },
    }
    every = ConsumeStats.decode(kit.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    assert {key.topic for key in every.offset_table} == {"T", "U"}
    beat(kit, kit.peer, "c", subscription("T"))
    every = ConsumeStats.decode(kit.request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    assert {key.topic for key in every.offset_table} == {"T"}, "an online group that does not subscribe to U"


def test_only_ordered_topics_when_asked(kit: BrokerKit) -> None:
    kit.topic("T", 1)
    kit.topic("O", 1, order=True)
    kit.groups.find("g")
    for topic in ("T", "O"):
        kit.offsets.commit("g", topic, 0, 0)
    body = ConsumeStatsList.decode(kit.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body)
    assert [key.topic for row in body.consume_stats_list for one in row.get("g", []) for key in one.offset_table] == ["O"]


@pytest.mark.parametrize("code", [202, 208, 303, 317])
def test_many_cold_reads_are_one_trip_to_the_disk_and_only_their_rows_are_looked_at_again(
    kit: BrokerKit, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """To begin anew with all of them, and to free what was there, held the loop for 180 ms with 65,535 queues."""
    kit.topic("T", 16)
    kit.groups.find("g")
    for number in range(8):
        kit.put("T", number)
        kit.offsets.commit("g", "T", number, 1)
    warm: set[int] = set()
    real, looked = kit.store.store_time_at, []

    def cold(offset: int) -> int:
        if offset not in warm:
            raise Cold(lambda: warm.add(offset))
        return real(offset)

    monkeypatch.setattr(kit.store, "store_time_at", cold)
    find = kit.store.find_queue
    monkeypatch.setattr(kit.store, "find_queue", lambda topic, number: looked.append(number) or find(topic, number))  # type: ignore[func-returns-value]
    fields = {"consumerGroup": "g", "topic": "T", "group": "g", "isOrder": "false"}
    portions = kit.admin.handlers()[code](kit.peer, Command(code, fields))
    assert isinstance(portions, Generator)
    trips = 0
    while True:
        try:
            asked = next(portions)
        except StopIteration as stop:
            answer = stop.value
            break
        if asked is not None:
            trips += 1
            asked.fetch()
    assert (trips, len(warm)) == (1, 8)
    assert looked == [*range(16), *range(8)]
    monkeypatch.undo()
    assert answer.body == kit.request(code, fields).body, "as if all had been in memory"


def test_reads_that_are_never_in_memory_are_given_up(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.topic("T", 1)
    kit.put("T", 0)

    def cold(offset: int) -> int:
        raise Cold(lambda: None)

    monkeypatch.setattr(kit.store, "store_time_at", cold)
    with pytest.raises(Refused, match="could not be read from disk in time") as refused:
        finish(kit.admin.topic_stats(kit.peer, Command(202, {"topic": "T"})))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY


def test_time_spans(kit: BrokerKit) -> None:
    kit.topic("T", 2)
    start = kit.clock.ms
    for _ in range(3):
        kit.clock.ms += 1_000
        kit.put("T", 0)
    kit.offsets.commit("g", "T", 0, 2)
    kit.clock.ms += 5_000
    first, second = TimeSpans.decode(
        kit.request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"}).body
    ).consume_time_span_set
    assert (first.min_time_stamp, first.max_time_stamp, first.consume_time_stamp, first.delay_time) == (
        start + 1_000, start + 3_000, start + 2_000, 5_000,
    )  # fmt: skip
    assert (second.min_time_stamp, second.max_time_stamp, second.consume_time_stamp, second.delay_time) == (-1, -1, -1, 0)
    assert kit.request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "none", "group": "g"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_what_5_asks_of_a_group(kit: BrokerKit) -> None:
    kit.offsets.commit("g", "U", 0, 1)
    kit.offsets.commit("g", "T", 0, 1)
    body = fastjson.loads(kit.request(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}).body)
    assert body == {"topicList": ["T", "U"], "brokerAddr": "127.0.0.1:10911"}
    fields = {"group": "g", "topic": "T"}
    assert fastjson.loads(kit.request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields).body) == fields
    beat(kit, kit.peer, "c", subscription("T", "a"))
    body = fastjson.loads(kit.request(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields).body)
    assert body["subscriptionData"]["subString"] == "a"


def test_what_comes_later_has_a_sentence_and_no_handler(kit: BrokerKit) -> None:
    assert not NOT_YET.keys() & kit.handlers.keys()
    assert all(sentence and not sentence.endswith(".") for sentence in NOT_YET.values())


def test_reports_survive_a_restart_of_the_directory(kits: Callable[..., BrokerKit]) -> None:
    first = kits()
    first.topic("T", 1)
    first.put("T")
    first.offsets.commit("g", "T", 0, 1)
    first.close()
    stats = ConsumeStats.decode(kits().request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}).body)
    assert consumed(stats.offset_table) == dict.fromkeys(stats.offset_table, (1, first.clock.ms))


# ---- anything at all --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["T", "g", "c", "", "../x", "a/b", "t" * 300, "%RETRY%g", "\0", "groß", "null"])
NUMBERS = st.sampled_from(
    ["0", "1", "-1", "2147483647", "-2147483648", "9223372036854775807", "99999999999999999999", "x", "1.5", " 1", ""]
)
FIELDS = st.dictionaries(
    st.sampled_from(
        "topic consumerGroup producerGroup group groupName clientId clientID queueId offset commitOffset timestamp boundaryType key maxNum "
        "beginTimestamp endTimestamp index count statsName statsKey isOrder msgId removeOffset _UNIQUE_KEY_QUERY setZeroIfNotFound".split()
    ),
    NAMES | NUMBERS | st.text(max_size=10),
    max_size=12,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | NAMES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                "clientID clientId consumerDataSet producerDataSet groupName subscriptionDataSet topic subString subVersion tagsSet "
                "codeSet mqSet brokerName queueId consumerGroup subscriptionData group messageModel retryQueueNums groupConfigList".split()
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
BODIES = st.binary(max_size=40) | VALUES.map(fastjson.dumps)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_whatever_is_sent_gets_an_answer_and_never_another_exception(kit: BrokerKit, data: st.DataObject) -> None:
    code = data.draw(st.sampled_from(sorted(kit.handlers)))
    command = Command(code, data.draw(FIELDS), data.draw(BODIES), opaque=3)
    peer = FakePeer()
    answer = kit.handle(command, peer)
    assert answer is None or answer.is_response
    assert "/etc" not in str(kit.settings).replace(TLS_FILE, "")
    kit.members.disconnected(peer)
    assert not [path for path in kit.root.parent.iterdir() if path != kit.root], "nothing outside the store"
