from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import types
import typing
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.errors import Refused
from roquet.message import MessageQueue
from roquet.wire import bodies, fastjson
from roquet.wire.bodies import Body
from roquet.wire.calls import registration
from roquet.wire.calls.members import ConsumeFromWhere, ConsumerData, ConsumeType, HeartbeatBody, MessageModel, SubscriptionData
from roquet.wire.calls.offsets import ConsumeStats, OffsetTable, QueueProgress, ResetOffsetBody
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.routes import BrokerData, ClusterInfo, QueueData, RouteInfo
from roquet.wire.calls.table import NOUNS
from roquet.wire.calls.topics import TopicConfig, TopicTable
from roquet.wire.calls.versions import DataVersion
from roquet.wire.fastjson import DEPTH_MAX, ObjectKey
from roquet.wire.names import check_group, check_send_topic, check_topic, is_system_group, is_system_topic

EVERYTHING = dict.fromkeys(value for noun in NOUNS for value in vars(noun).values() if isinstance(value, type))
KINDS = [kind for kind in EVERYTHING if issubclass(kind, Body) and dataclasses.is_dataclass(kind)]

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
KEYS = TEXTS | st.integers(-(1 << 63), (1 << 63) - 1) | st.builds(MessageQueue, TEXTS, TEXTS, st.integers(0, 100))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12)


def as_read(value: Any) -> Any:
    """What a reader makes of a written value: numbers as keys become text, queues object keys."""
    if isinstance(value, dict):
        made: dict[Any, Any] = {}
        for key, inner in value.items():
            made[ObjectKey.of(bodies.write_queue(key)) if isinstance(key, MessageQueue) else str(key)] = as_read(inner)
        return made
    return [as_read(one) for one in value] if isinstance(value, list) else value


# ---- the JSON itself --------------------------------------------------------------------------------------------------


@given(VALUES)
def test_what_dumps_writes_loads_reads(value: Any) -> None:
    for write in (fastjson.dumps, fastjson.dumps_pretty):
        assert fastjson.loads(write(value)) == as_read(value)


@given(VALUES)
def test_standard_json_is_read_by_any_reader(value: Any) -> None:
    data = fastjson.dumps_standard(value)
    assert data.isascii()
    orjson.loads(data)


@given(st.binary(max_size=60) | st.text(alphabet='{}[]:,"0123-.eE tfnul\\\n{{{{', max_size=60).map(str.encode))
def test_any_bytes_are_json_or_refused(data: bytes) -> None:
    with contextlib.suppress(Refused):
        fastjson.loads(data)


@pytest.mark.parametrize(
    "data",
    ['{"a":1}', "[1,2.5,-3]", '"x\\u00e9\\n"', "true", "null", "[]", "{}", " [ 1 , 2 ] ", "-0.5e3", "18446744073709551615", "1" * 30],
)
def test_the_forgiving_reader_agrees_with_the_strict_one(data: str) -> None:
    assert fastjson.Reader(data).document() == orjson.loads(data)


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"{0:", b"{{", b'{{"a":'])
@pytest.mark.parametrize("depth", [DEPTH_MAX + 2, 500, 1_000, 200_000])
def test_depth_is_bounded(opening: bytes, depth: int) -> None:
    with pytest.raises(Refused):
        fastjson.loads(opening * depth)
    closing = {b"[": b"]"}.get(opening, b"}")
    with pytest.raises(Refused):
        fastjson.loads(opening * depth + b"1" + closing * depth)


def test_the_deepest_allowed_document_is_read_by_both_readers() -> None:
    assert fastjson.loads(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
    assert fastjson.loads(b"{0:" + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{0}",
        b"{a:1}",
        b"[1,]",
        b'{"a":1,}',
        b"{{}}",
        b"{[1]:2}",
        b'{{"a":[1]}:2}',
        b"01",
        b"1e999",
        b'{0:"\\ud800"}',
        b"{0:1e999}",
        b"\xff",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="not the JSON expected"):
        fastjson.loads(data)


def test_upstreams_forms_are_read_and_written() -> None:
    data = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{0:12,1:7}}}'
    key = ObjectKey.of({"topic": "t", "queueId": 0, "brokerName": "b"})
    assert fastjson.loads(data) == {"offsetTable": {key: {"0": 12, "1": 7}}}
    assert fastjson.dumps({"offsetTable": {MessageQueue("t", "b", 0): {0: 12, 1: 7}}}) == data


# ---- bodies -----------------------------------------------------------------------------------------------------------


def of_hint(hint: Any, bits: int) -> st.SearchStrategy[Any]:
    args = typing.get_args(hint)
    outer = typing.get_origin(hint)
    if isinstance(hint, types.UnionType):
        return st.none() | of_hint(args[0], bits)
    if outer is list:
        return st.lists(of_hint(args[0], bits), max_size=2)
    if outer is set:
        return st.sets(of_hint(args[0], bits), max_size=3)
    if outer is dict:
        return st.dictionaries(of_hint(args[0], 64), of_hint(args[1], bits), max_size=2)
    if hint is MessageQueue:
        return st.builds(MessageQueue, TEXTS, TEXTS, st.integers(-(1 << 31), (1 << 31) - 1))
    if hint is int:
        return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if hint is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if hint is Any:
        return TEXTS
    if hint in (bool, str):
        return st.booleans() if hint is bool else TEXTS
    if issubclass(hint, Body):
        return of_body(hint)
    return st.sampled_from(list(hint))


def of_body(kind: type[Body]) -> st.SearchStrategy[Body]:
    hints = typing.get_type_hints(kind)
    made: dict[str, st.SearchStrategy[Any]] = {}
    for one in dataclasses.fields(kind):  # type: ignore[arg-type] # every Body but the base is a dataclass
        made[one.name] = of_hint(hints[one.name], one.metadata.get("bits", 64))
    return st.builds(kind, **made)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_body_survives_encoding(kind: type[Body]) -> None:
    @settings(max_examples=15)
    @given(of_body(kind))
    def survives(body: Body) -> None:
        assert kind.decode(body.encode()) == body

    survives()


@given(st.sampled_from(KINDS), VALUES, st.data())
def test_any_json_gives_a_body_or_refused(kind: type[Body], value: Any, data: st.DataObject) -> None:
    shaped = {column.name: data.draw(VALUES) for column in bodies.fields_of(kind)}
    for given_value in (value, shaped):
        with contextlib.suppress(Refused):
            assert isinstance(kind.decode(fastjson.dumps(given_value)), kind)


def test_a_refusal_says_the_place_and_the_value() -> None:
    data = b'{"topicConfigTable":{"T":{"topicName":"T","perm":"x"}},"dataVersion":{}}'
    with pytest.raises(Refused, match=r"TopicTable: topicConfigTable\.T\.perm is 'x', expected a whole number"):
        TopicTable.decode(data)
    with pytest.raises(Refused, match="2147483648, allowed are"):
        TopicConfig.decode(b'{"topicName":"T","perm":2147483648}')
    with pytest.raises(Refused, match="clientID is missing"):
        HeartbeatBody.decode(b"{}")


def test_the_heartbeat_of_the_cpp_client_is_taken() -> None:
    data = b"""{"clientID":"127.0.0.1@7","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g","messageModel":1,
        "subscriptionDataSet":[{"classFilterMode":false,"codeSet":["0"],"subString":"a","subVersion":"1794732520853","tagsSet":["a"],"topic":"t"}]}]}"""
    subscription = SubscriptionData("t", "a", {"a"}, {0}, 1794732520853)
    consumer = ConsumerData(
        "g", ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, [subscription]
    )
    assert HeartbeatBody.decode(data) == HeartbeatBody("127.0.0.1@7", [], [consumer])
    with pytest.raises(Refused, match="messageModel is 2"):
        HeartbeatBody.decode(data.replace(b'"messageModel":1', b'"messageModel":2'))


def test_a_route_has_bare_or_quoted_broker_ids() -> None:
    route = RouteInfo([QueueData("b", 4, 4, 6)], [BrokerData("c", "b", {0: "h:1", 1: "h:2"})])
    assert b'"brokerAddrs":{0:"h:1",1:"h:2"}' in route.encode()
    assert b'"brokerAddrs":{"0":"h:1","1":"h:2"}' in route.encode(standard=True)
    assert RouteInfo.decode(route.encode()) == RouteInfo.decode(route.encode(standard=True)) == route
    assert RouteInfo.decode(b'{"queueDatas":[{"brokerName":"b","topicSynFlag":1}]}').queue_datas[0].topic_sys_flag == 1


def test_bodies_with_object_keys_read_as_upstream_writes_them() -> None:
    queue = MessageQueue("t", "b", 0)
    stats = ConsumeStats({queue: QueueProgress(9, 8, 7)}, 0.5)
    progress = b'{"brokerOffset":9,"consumerOffset":8,"lastTimestamp":7}'
    assert stats.encode() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:%b},"consumeTps":0.5}' % progress
    assert OffsetTable({"t@g": {0: 12, 1: 7}}).encode() == b'{"offsetTable":{"t@g":{0:12,1:7}}}'
    assert ClusterInfo({}, {"c": {"b", "a"}}).encode() == b'{"brokerAddrTable":{},"clusterAddrTable":{"c":["a","b"]}}'
    cpp = b'{"offsetTable":[{"brokerName":"b","queueId":0,"topic":"t","offset":5}]}'
    assert ResetOffsetBody({queue: 5}).encode_for_cpp() == cpp


def test_a_data_version_counts_changes() -> None:
    assert DataVersion(1, 4).next(9) == DataVersion(9, 5)


# ---- compressed registration ------------------------------------------------------------------------------------------


def test_a_compressed_registration_comes_back() -> None:
    body = RegisterBrokerBody(TopicTable({"T": TopicConfig("T", 4, 8, 6), "U": TopicConfig("U")}, DataVersion(5, 6)), ["f"])
    assert RegisterBrokerBody.decode_compressed(body.encode_compressed()) == body


@given(st.binary(max_size=80), st.integers(-2, 60), st.integers(-2, 60))
def test_any_bytes_are_a_compressed_registration_or_refused(data: bytes, size: int, count: int) -> None:
    shaped = b"\x00\x00\x00\x02{}" + count.to_bytes(4, "big", signed=True) + size.to_bytes(4, "big", signed=True) + data
    for given_bytes in (data, zlib.compress(data), zlib.compress(shaped)):
        with contextlib.suppress(Refused):
            RegisterBrokerBody.decode_compressed(given_bytes)


def test_a_registration_that_expands_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "COMPRESSED_LIMIT", 100_000)
    with pytest.raises(Refused, match="expands to more than 100000"):
        RegisterBrokerBody.decode_compressed(zlib.compress(bytes(100_001)))


# ---- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "a.b", "a b", "a\n", "中文", "x" * 128, "x" * 300, "a\x00", "."])
def test_names_that_no_topic_may_have_are_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        check_topic(name)
    assert caught.value.code == 1


def test_names_that_topics_and_groups_may_have_pass() -> None:
    for name in ("T", "%RETRY%group", "a|b", "ns%topic", "x" * 127, "under_score-dash"):
        check_topic(name)
        check_group(name)
    check_group("x" * 255)
    with pytest.raises(Refused, match="255"):
        check_group("x" * 256)


def test_a_client_must_not_write_to_the_brokers_own_topics() -> None:
    with pytest.raises(Refused, match=r"Sending message to topic\[SCHEDULE_TOPIC_XXXX\] is forbidden\.") as caught:
        check_send_topic("SCHEDULE_TOPIC_XXXX")
    assert caught.value.code == 16
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_x")
    assert not is_system_topic("T")
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert is_system_group("TOOLS_CONSUMER")
    assert not is_system_group("g")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at the memory of a process as Linux shows it")
def test_an_answer_of_65535_rows_takes_some_dozen_megabytes_to_write() -> None:
    program = """
import resource
from roquet.message import MessageQueue
from roquet.wire.calls.topics import QueueRange, TopicStats
stats = TopicStats({MessageQueue("T", "broker-a", n): QueueRange(0, 1, 1_700_000_000_000) for n in range(65_535)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stats.encode()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    grown_kib = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert grown_kib < 150 * 1024, "it was 1.9 GiB when each piece of the text was kept"
