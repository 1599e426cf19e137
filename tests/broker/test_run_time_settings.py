"""Every setting that may change at run time does what it says as soon as it was changed over the wire: one short scene each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roquet.settings import BrokerSettings, table
from roquet.store.retention import HOUR_MS, LogFile, decide
from roquet.testing import FakePeer
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from tests.access.people import TEXT, accounts, signed
from tests.ha.streams import FakeStream

from .test_filters import heartbeat, pull
from .test_transactions import MINUTE, Cluster
from .whole import Whole, pull_fields, send_fields

Scene = Callable[[Whole], None]
SCENES: dict[str, tuple[Scene, dict[str, Any]]] = {}


def scene(key: str, **settings: Any) -> Callable[[Scene], Scene]:
    def put(function: Scene) -> Scene:
        SCENES[key] = (function, settings)
        return function

    return put


def test_every_setting_that_may_change_has_its_scene() -> None:
    assert set(SCENES) == {key for key, spec in table(BrokerSettings).items() if spec.mutable}


@pytest.mark.parametrize("key", SCENES)
def test_takes_effect(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.system.sync_data", lambda fd: None)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    play, settings = SCENES[key]
    whole = Whole(tmp_path / "store", **settings)
    play(whole)
    whole.background.hold = False
    whole.background.release()
    whole.close()


def change(whole: Whole, **values: object) -> None:
    text = "".join(f"{key}={value}\n" for key, value in values.items())
    answer = whole.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    assert (answer.code, answer.remark) == (0, None)


def send(whole: Whole, topic: str = "T", body: bytes = b"hello", **more: str) -> int:
    return whole.ask(310, send_fields(topic) | more, body).code


def fill(whole: Whole, count: int, size: int = 1) -> None:
    for _ in range(count):
        assert send(whole, body=bytes(size)) == 0


def sizes(whole: Whole, **more: str) -> int:
    """Bytes of one pull answer."""
    return len(whole.ask(11, pull_fields() | more).body)


# Permissions and automatic things


@scene("brokerPermission")
def _(whole: Whole) -> None:
    assert whole.ask(11, pull_fields()).code == 17
    change(whole, brokerPermission=2)
    assert whole.ask(11, pull_fields()).code == 16


@scene("defaultTopicQueueNums")
def _(whole: Whole) -> None:
    change(whole, defaultTopicQueueNums=16)
    assert send(whole, "New", d="20") == 0
    new, default = whole.broker.topics.get("New"), whole.broker.topics.get("TBW102")
    assert new is not None
    assert default is not None
    assert (new.write_queue_nums, default.read_queue_nums, default.write_queue_nums) == (16, 16, 16)


@scene("autoCreateTopicEnable", auto_create_topic_enable=False)
def _(whole: Whole) -> None:
    assert send(whole, "One") == 17
    change(whole, autoCreateTopicEnable="true")
    assert send(whole, "One") == 0
    assert b"TBW102" in whole.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
    change(whole, autoCreateTopicEnable="false")
    assert send(whole, "Two") == 17
    change(whole, autoCreateTopicEnable="true")
    assert send(whole, "Two") == 0


@scene("registerBroker", namesrv_addr="ns1:9876")
def _(whole: Whole) -> None:
    def told() -> list[int]:
        codes = [call.code for _, call, _ in whole.caller.calls if call.code != RequestCode.GET_ROUTEINFO_BY_TOPIC]
        whole.caller.calls.clear()
        return codes

    whole.tick()
    assert told() == [RequestCode.REGISTER_BROKER]
    change(whole, registerBroker="false")
    assert told() == [RequestCode.UNREGISTER_BROKER]
    whole.tick(31_000)
    assert send(whole, "New") == 0
    assert told() == []
    change(whole, registerBroker="true")
    assert told() == [RequestCode.REGISTER_BROKER]


@scene("spreadAutomaticTopics", namesrv_addr="ns1:9876")
def _(whole: Whole) -> None:
    change(whole, spreadAutomaticTopics="false")
    assert send(whole, "One") == 0
    change(whole, spreadAutomaticTopics="true")
    assert send(whole, "Two") == 0
    whole.tick()
    asked = [call for _, call, _ in whole.caller.calls if call.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
    assert [call.fields["topic"] for call in asked][:1] == ["TBW102"]
    assert list(whole.broker.spreading._fresh) == ["Two"]


@scene("autoCreateSubscriptionGroup")
def _(whole: Whole) -> None:
    change(whole, autoCreateSubscriptionGroup="false")
    assert whole.ask(11, pull_fields(consumerGroup="new")).code == 26


@scene("enablePropertyFilter")
def _(whole: Whole) -> None:
    change(whole, enablePropertyFilter="true")
    fill(whole, 1)
    heartbeat(whole)
    assert pull(whole).code == 20  # filtered out, and not refused


@scene("filterSupportRetry", enable_property_filter=True)
def _(whole: Whole) -> None:
    heartbeat(whole, more=[{"topic": "%RETRY%g", "subString": "a = 1", "subVersion": 1, "expressionType": "SQL92"}])
    assert send(whole, "%RETRY%g", i="a\x019\x02RETRY_TOPIC\x01T") == 0
    assert pull(whole, topic="%RETRY%g").code == 20
    change(whole, filterSupportRetry="true")
    assert pull(whole, topic="%RETRY%g").code == 0


@scene("rejectTransactionMessage")
def _(whole: Whole) -> None:
    change(whole, rejectTransactionMessage="true")
    assert send(whole, i="TRAN_MSG\x01true\x02PGROUP\x01pg\x02UNIQ_KEY\x01U", f="4") == 16


@scene("storeReplyMessageEnable")
def _(whole: Whole) -> None:
    change(whole, storeReplyMessageEnable="false")
    before = whole.broker.store.log.written
    fields = send_fields("DefaultCluster_REPLY_TOPIC", 0, "MSG_TYPE\x01reply\x02REPLY_TO_CLIENT\x01nobody\x02CORRELATION_ID\x01c")
    whole.frames(Command(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"re", opaque=5))
    whole.tick(1)
    assert whole.broker.store.log.written == before


@scene("notifyConsumerIdsChangedEnable", enable_property_filter=True)
def _(whole: Whole) -> None:
    change(whole, notifyConsumerIdsChangedEnable="false")
    heartbeat(whole)
    whole.tick(100)
    assert not [one for one in whole.peer.take() if one.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    change(whole, notifyConsumerIdsChangedEnable="true")
    body = {"clientID": "c2", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": []}], "producerDataSet": []}
    whole.broker.receive(FakePeer("127.0.0.1:9"), frames(Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())))
    whole.tick(100)
    assert [one for one in whole.peer.take() if one.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]


@scene("acceptTopicsMax")
def _(whole: Whole) -> None:
    change(whole, acceptTopicsMax=1)
    assert send(whole, "New") == 1


@scene("acceptGroupsMax")
def _(whole: Whole) -> None:
    change(whole, acceptGroupsMax=1)
    assert whole.ask(11, pull_fields(consumerGroup="new")).code != 0
    assert whole.broker.groups.find("new") is None


@scene("newNamesPerSecond")
def _(whole: Whole) -> None:
    change(whole, newNamesPerSecond=1)
    assert 0 < [send(whole, f"New{number}") for number in range(500)].count(2) < 500


# Waiting and timing


@scene("longPollingEnable")
def _(whole: Whole) -> None:
    fill(whole, 1)
    change(whole, longPollingEnable="false")
    held_for(whole, 1_000)


@scene("shortPollingTimeMills", long_polling_enable=False)
def _(whole: Whole) -> None:
    fill(whole, 1)
    change(whole, shortPollingTimeMills=100)
    held_for(whole, 100)


def held_for(whole: Whole, ms: int) -> None:
    """A pull that finds nothing is answered after this time, though it would wait 15 s."""
    whole.frames(Command(11, pull_fields(offset=1, sysFlag="6"), opaque=3))
    whole.tick(ms - 50)
    assert not whole.peer.take()
    whole.tick(100)
    assert [answer.code for answer in whole.peer.take()] == [19]


@scene("flushConsumerOffsetInterval", flush_consumer_offset_interval=600_000)
def _(whole: Whole) -> None:
    fill(whole, 1)
    whole.tick(1)
    change(whole, flushConsumerOffsetInterval=1_000)
    whole.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"})
    whole.tick(1_100)
    whole.tick(1_100)
    assert json.loads((whole.root / "config" / "consumerOffset.json").read_text().replace("{0:", '{"0":'))["offsetTable"]


@scene("flushDelayOffsetInterval", flush_delay_offset_interval=600_000)
def _(whole: Whole) -> None:
    whole.tick(1)
    assert send(whole, i="DELAY\x011") == 0
    whole.tick(1_500)
    change(whole, flushDelayOffsetInterval=1_000)
    whole.tick(1_100)
    whole.tick(1_100)
    assert "1:1" in (whole.root / "config" / "delayOffset.json").read_text().replace(" ", "").replace('"', "")


@scene("registerNameServerPeriod", namesrv_addr="127.0.0.1:9", register_name_server_period=60_000)
def _(whole: Whole) -> None:
    whole.tick(1)
    change(whole, registerNameServerPeriod=10_000)
    whole.tick(10)
    count = len(whole.caller.calls)
    whole.tick(10_000)
    assert len(whole.caller.calls) > count


@scene("registerBrokerTimeoutMills", namesrv_addr="127.0.0.1:9")
def _(whole: Whole) -> None:
    change(whole, registerBrokerTimeoutMills=777)
    timeouts: list[int] = []
    whole.broker.registration.caller.call = lambda address, command, timeout_ms, done: timeouts.append(timeout_ms)  # type: ignore[method-assign]
    whole.broker.registration.now()
    assert timeouts == [777]


@scene("compressedRegister", namesrv_addr="127.0.0.1:9")
def _(whole: Whole) -> None:
    change(whole, compressedRegister="true")
    whole.broker.registration.now()
    assert whole.caller.calls[-1][1].fields["compressed"] == "true"


@scene("timerMaxDelaySec")
def _(whole: Whole) -> None:
    change(whole, timerMaxDelaySec=5)
    assert send(whole, i="TIMER_DELAY_SEC\x016") == 13
    assert send(whole, i="TIMER_DELAY_SEC\x014") == 0


# Transactions


def transactions(whole: Whole) -> Cluster:
    cluster = Cluster.__new__(Cluster)
    cluster.whole, cluster.producer, cluster.count, cluster.joined = whole, FakePeer("127.0.0.1:50001"), 0, {}
    cluster.join()
    return cluster


@scene("transactionTimeOut")
def _(whole: Whole) -> None:
    cluster = transactions(whole)
    change(whole, transactionTimeOut=120_000)
    cluster.prepare()
    cluster.round()
    assert not cluster.checks()
    change(whole, transactionTimeOut=6_000)
    cluster.round()
    assert len(cluster.checks()) == 1


@scene("transactionCheckMax")
def _(whole: Whole) -> None:
    cluster = transactions(whole)
    change(whole, transactionCheckMax=1)
    cluster.prepare()
    for _ in range(4):
        cluster.round()
    assert len(cluster.checks()) == 1


@scene("transactionCheckInterval", transaction_check_interval=86_400_000)
def _(whole: Whole) -> None:
    cluster = transactions(whole)
    cluster.prepare()
    cluster.round()
    assert not cluster.checks()
    change(whole, transactionCheckInterval=MINUTE)
    cluster.round()
    assert len(cluster.checks()) == 1


# Flow control


@scene("brokerFastFailureEnable")
def _(whole: Whole) -> None:
    whole.broker.flow.log_was_written(5_000)
    assert send(whole) == 2
    change(whole, brokerFastFailureEnable="false")
    assert send(whole) == 0


@scene("waitTimeMillsInSendQueue")
def _(whole: Whole) -> None:
    change(whole, waitTimeMillsInSendQueue=5_000)
    for _ in range(20):
        whole.broker.flow.loop_came_round(300)
    assert [send(whole) for _ in range(9)] == [0] * 9


@scene("osPageCacheBusyTimeOutMills")
def _(whole: Whole) -> None:
    change(whole, osPageCacheBusyTimeOutMills=10)
    whole.broker.flow.log_was_written(50)
    assert send(whole) == 2


@scene("sendThreadPoolQueueCapacity", flush_disk_type="SYNC_FLUSH")
def _(whole: Whole) -> None:
    fill(whole, 1)
    change(whole, sendThreadPoolQueueCapacity=2)
    whole.background.hold = True
    whole.frames(*(Command(310, send_fields(), b"waiting", opaque=n) for n in range(2)))
    whole.tick(10)
    assert send(whole) == 2


# The store


@scene("syncFlushTimeout", flush_disk_type="SYNC_FLUSH", os_page_cache_busy_time_out_mills=600_000)
def _(whole: Whole) -> None:
    fill(whole, 1)
    change(whole, syncFlushTimeout=100)
    whole.background.hold = True
    whole.frames(Command(310, send_fields(), b"waiting", opaque=3))
    whole.tick(150)
    assert [answer.code for answer in whole.peer.take()] == [10]


@scene("flushIntervalCommitLog", flush_interval_commit_log=60_000)
def _(whole: Whole) -> None:
    whole.tick(1)
    fill(whole, 1)
    change(whole, flushIntervalCommitLog=500)
    whole.tick(600)
    assert whole.broker.store.log.flushed == whole.broker.store.log.written


@scene("flushIntervalConsumeQueue", flush_interval_consume_queue=60_000)
def _(whole: Whole) -> None:
    whole.tick(1)
    fill(whole, 1)
    change(whole, flushIntervalConsumeQueue=1_000)
    whole.tick(1_100)
    (file,) = (whole.root / "consumequeue" / "T" / "0").iterdir()
    assert any(file.read_bytes())


@scene("messageIndexEnable")
def _(whole: Whole) -> None:
    change(whole, messageIndexEnable="false")
    assert send(whole, i="KEYS\x01k") == 0
    assert query(whole, 32) == 0


def query(whole: Whole, count: int, *, unique: bool = False) -> int:
    """Messages found by key."""
    whole.tick(100)
    fields = {"topic": "T", "key": "k", "maxNum": str(count), "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    answer = whole.ask(12, fields | ({"_UNIQUE_KEY_QUERY": "true"} if unique else {}))
    return answer.body.count(b"\xda\xa3\x20\xa7")


@scene("maxMessageSize")
def _(whole: Whole) -> None:
    change(whole, maxMessageSize=4)
    assert send(whole, body=b"hello") == 13


@scene("maxMsgsNumBatch")
def _(whole: Whole) -> None:
    for _ in range(4):
        assert send(whole, i="KEYS\x01k") == 0
    assert query(whole, 32) == 4
    change(whole, maxMsgsNumBatch=2)
    assert query(whole, 32) == 2


@scene("defaultQueryMaxNum")
def _(whole: Whole) -> None:
    for _ in range(4):
        assert send(whole, i="UNIQ_KEY\x01k") == 0
    change(whole, defaultQueryMaxNum=3)
    assert query(whole, 32, unique=True) == 3


@scene("maxTransferBytesOnMessageInMemory")
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    change(whole, maxTransferBytesOnMessageInMemory=3_000)
    assert sizes(whole) < 4_500


@scene("maxTransferCountOnMessageInMemory")
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    change(whole, maxTransferCountOnMessageInMemory=3)
    assert 3_000 < sizes(whole) < 4_500


@scene("maxTransferBytesOnMessageInDisk", access_message_in_memory_max_ratio=0)
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    change(whole, maxTransferBytesOnMessageInDisk=3_000)
    assert sizes(whole) < 4_500


@scene("maxTransferCountOnMessageInDisk", access_message_in_memory_max_ratio=0)
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    change(whole, maxTransferCountOnMessageInDisk=3)
    assert 3_000 < sizes(whole) < 4_500


@scene("maxScanBytes")
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    assert sizes(whole, scanBytes="1000000") > 8_000
    change(whole, maxScanBytes=4_096)
    assert sizes(whole, scanBytes="1000000") < 5_000


@scene("accessMessageInMemoryMaxRatio", max_transfer_count_on_message_in_disk=1)
def _(whole: Whole) -> None:
    fill(whole, 8, 1_000)
    change(whole, accessMessageInMemoryMaxRatio=0)
    assert sizes(whole) < 1_500


def gone(whole: Whole, *, age_h: float, hour: int = 4, used: float = 0.5) -> bool:
    """Would a file of this age go? With the settings that the store looks at."""
    now_ms = 1_000 * HOUR_MS
    files = [LogFile(0, int(now_ms - age_h * HOUR_MS)), LogFile(1_024, now_ms)]
    return bool(decide(files, whole.broker.store.settings, now_ms=now_ms, hour=hour, used_ratio=used).delete)


@scene("fileReservedTime")
def _(whole: Whole) -> None:
    assert not gone(whole, age_h=50)
    change(whole, fileReservedTime=48)
    assert gone(whole, age_h=50)


@scene("deleteWhen")
def _(whole: Whole) -> None:
    change(whole, deleteWhen="05;17")
    assert gone(whole, age_h=80, hour=17)
    assert not gone(whole, age_h=80, hour=4)


@scene("diskMaxUsedSpaceRatio")
def _(whole: Whole) -> None:
    change(whole, diskMaxUsedSpaceRatio=30)
    assert gone(whole, age_h=80, hour=1)


@scene("cleanFileForciblyEnable")
def _(whole: Whole) -> None:
    assert gone(whole, age_h=1, used=0.87)
    change(whole, cleanFileForciblyEnable="false")
    assert not gone(whole, age_h=1, used=0.87)


def frames(command: Command) -> Any:
    from roquet.wire.frame import Framer

    return Framer().feed(command.encode())


def test_what_the_settings_decide_does_not_stay_as_an_earlier_start_wrote_it(tmp_path: Path) -> None:
    Whole(tmp_path / "store").close()
    again = Whole(tmp_path / "store")
    counter = again.broker.topics.data_version.counter
    again.close()
    again = Whole(tmp_path / "store")
    assert again.broker.topics.data_version.counter == counter
    again.close()
    whole = Whole(tmp_path / "store", default_topic_queue_nums=3, cluster_topic_enable=False)
    assert send(whole, "New", d="8") == 0
    new = whole.broker.topics.get("New")
    assert new is not None
    assert new.write_queue_nums == 3
    assert send(whole, "Other", c="DefaultCluster") == 16
    whole.close()
    whole = Whole(tmp_path / "store", auto_create_topic_enable=False)
    assert send(whole, "Third") == 17
    assert send(whole, "Fourth", c="DefaultCluster") == 0
    whole.close()


# Master and slave


def slave_of(whole: Whole, offset: int = 0) -> FakeStream:
    """A slave that has said where it is."""
    stream = FakeStream()
    whole.broker.slaves.opened(stream)
    whole.broker.slaves.received(stream, offset.to_bytes(8, "big"))
    stream.take()
    return stream


@scene("haSendHeartbeatInterval")
def _(whole: Whole) -> None:
    stream = slave_of(whole)
    whole.tick(1_000)
    assert not stream.sent
    change(whole, haSendHeartbeatInterval=500)
    whole.tick(1)
    assert stream.sent


@scene("haHousekeepingInterval")
def _(whole: Whole) -> None:
    stream = slave_of(whole)
    whole.tick(10_000)
    assert not stream.closed
    change(whole, haHousekeepingInterval=5_000)
    whole.tick(1)
    assert stream.closed


@scene("haTransferBatchSize")
def _(whole: Whole) -> None:
    fill(whole, 3)
    change(whole, haTransferBatchSize=100)
    stream = FakeStream()
    whole.broker.slaves.opened(stream)
    whole.broker.slaves.received(stream, bytes(8))
    assert {len(body) for _, body in stream.transfers()} >= {0, 100}


@scene("haSlaveFallbehindMax", broker_role="SYNC_MASTER")
def _(whole: Whole) -> None:
    slave_of(whole)
    change(whole, haSlaveFallbehindMax=1)
    assert send(whole) == 11


@scene("slaveTimeout", broker_role="SYNC_MASTER")
def _(whole: Whole) -> None:
    slave_of(whole)
    change(whole, slaveTimeout=10)
    whole.frames(Command(310, send_fields("T"), b"hello", opaque=1))
    whole.tick(11)
    assert [answer.code for answer in whole.peer.take()] == [12]


@scene("slaveReadEnable")
def _(whole: Whole) -> None:
    whole.broker.puller.memory_bytes = 100
    fill(whole, 5)
    assert whole.ask(11, pull_fields()).fields["suggestWhichBrokerId"] == "0"
    change(whole, slaveReadEnable="true")
    assert whole.ask(11, pull_fields(maxMsgNums="1")).fields["suggestWhichBrokerId"] == "1"


@scene("offsetCheckInSlave", broker_role="SLAVE", broker_id=1)
def _(whole: Whole) -> None:
    whole.broker.topics.ensure("T", 8)
    assert whole.ask(11, pull_fields(queueOffset="7")).code == 20
    change(whole, offsetCheckInSlave="true")
    assert whole.ask(11, pull_fields(queueOffset="7")).code == 21


@scene("aclRepliesNeedPub")
def _(whole: Whole) -> None:
    files = accounts(whole.root.parent, TEXT.replace("10.9.9.*", "127.0.0.1"))
    guarded, consumer = Whole(whole.root.parent / "guarded", accounts=files), FakePeer("10.1.1.1:40001")

    def is_refused() -> bool:
        reply = Command(RequestCode.SEND_REPLY_MESSAGE_V2, send_fields("DefaultCluster_REPLY_TOPIC"), b"pong", opaque=1)
        guarded.give(consumer, signed(reply, "consumer"))
        (answer,) = consumer.take()
        return "AclException" in (answer.remark or "")

    assert is_refused()
    change(guarded, aclRepliesNeedPub="false")
    assert not is_refused()
    guarded.close()
