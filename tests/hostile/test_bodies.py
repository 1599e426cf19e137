"""Bodies that are too large, lie about their counts, nest without end or expand without end."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.hostile.conftest import Victim
from tests.hostile.mutations import one_of_each_code
from tests.process.line import max_offset, pull, records, send_message

LIMIT = 4 << 20


def batch_of(body: bytes) -> Command:
    command = send_message("served", body, m="true")
    command.code = RequestCode.SEND_BATCH_MESSAGE
    return command


@pytest.mark.parametrize("binary", [False, True])
def test_a_body_of_4_mib_and_one_byte_is_refused_with_its_size_and_the_limit(broker: Victim, binary: bool) -> None:
    before = broker.ask(max_offset("served")).fields["offset"]
    for command in (
        send_message("served", bytes(LIMIT + 1), properties={"TAGS": "t"}),
        send_message("served", bytes(LIMIT + 1)),
        batch_of(join_batch([(0, bytes(LIMIT - 21), b"")])),
    ):
        command.binary = binary
        answer = broker.ask(command)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert str(LIMIT + 1) in answer.remark
        assert str(LIMIT) in answer.remark
    assert broker.ask(max_offset("served")).fields["offset"] == before


def test_a_body_of_exactly_4_mib_is_taken_and_read_back(broker: Victim) -> None:
    body = bytes(range(256)) * (LIMIT // 256)
    answer = broker.ask(send_message("served", body, properties={"TAGS": "t"}))
    assert answer.code == 0
    (record,) = records(broker.ask(pull("served", int(answer.fields["queueOffset"]), count=1)))
    assert record.body == body


def test_properties_longer_than_a_record_holds_are_refused_with_the_limit(broker: Victim) -> None:
    for text in ("a\x01" + "x" * 32_767, "a\x01" + "ж" * 20_000, "\x02".join(f"k{n}\x01v" for n in range(10_000))):
        answer = broker.ask(send_message("served", b"x", i=text))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "32767" in (answer.remark or "")


LYING_BATCHES = [
    b"",
    b"\0",
    bytes(21),
    bytes(22),
    struct.pack(">iiiii", 22, 0, 0, 0, 1) + bytes(2),
    struct.pack(">iiiii", 22, 0, 0, 0, -1) + bytes(2),
    struct.pack(">iiiii", 22, 0, 0, 0, 0x7FFFFFFF) + bytes(2),
    struct.pack(">iiiii", 23, 0, 0, 0, 0) + bytes(2),
    struct.pack(">iiiii", -1, 0, 0, 0, 0) + bytes(2),
    struct.pack(">iiiii", 0x7FFFFFFF, 0, 0, 0, 0) + bytes(2),
    struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\xff\xff",
    struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\x7f\xff",
    join_batch([(0, b"fine", b"")]) + b"\0",
    join_batch([(0, b"fine", b""), (0, b"fine", b"")])[:-1],
    join_batch([(0, b"fine", b"\xff\xfe\x01x\x02")]),
    join_batch([(0, b"fine", b"a\x01\0\x02")]),
    join_batch([(0, b"fine", b""), (0, b"fine", b"DELAY\x013\x02")]),
]


def test_a_batch_whose_counts_lie_is_refused_whole(broker: Victim) -> None:
    before = broker.ask(max_offset("served")).fields["offset"]
    for body in LYING_BATCHES:
        answer = broker.ask(batch_of(body))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL, (body[:60], answer)
        assert answer.remark
    assert broker.ask(max_offset("served")).fields["offset"] == before


def test_a_batch_of_many_empty_messages_is_bounded_by_its_size(broker: Victim) -> None:
    """190,650 messages of 22 bytes fit into 4 MiB: the most that one request can ask for."""
    answer = broker.ask(batch_of(join_batch([(0, b"", b"")] * (LIMIT // 22))))
    assert answer.code in (0, ResponseCode.MESSAGE_ILLEGAL)


def heartbeat(**values: object) -> Command:
    body = {"clientID": "hostile@1", "producerDataSet": [], "consumerDataSet": []} | values
    return Command(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


def test_heartbeats_with_enormous_sets_are_refused_with_the_limit(broker: Victim) -> None:
    subscription = {"topic": "served", "subString": "*"}
    consumer = {
        "groupName": "g",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    }
    long_expression = "||".join(map(str, range(200_000)))
    for command in (
        heartbeat(producerDataSet=[{"groupName": f"g{n}"} for n in range(100_000)]),
        heartbeat(consumerDataSet=[consumer | {"groupName": f"g{n}", "subscriptionDataSet": []} for n in range(10_000)]),
        heartbeat(consumerDataSet=[consumer | {"subscriptionDataSet": [subscription | {"topic": f"t{n}"} for n in range(50_000)]}]),
        heartbeat(consumerDataSet=[consumer | {"subscriptionDataSet": [subscription | {"subString": long_expression}]}]),
        heartbeat(clientID="c" * 1_000_000),
        heartbeat(clientID=""),
        Command(RequestCode.HEART_BEAT, {}, b"[" + b"1," * 4_000_000 + b"1]"),
    ):
        answer = broker.ask(command)
        assert answer.code != 0
        assert answer.remark
        assert len(answer.remark) < 10_000


def test_json_that_is_wrong_or_nests_without_end_is_answered_for_every_code(server: Victim) -> None:
    deep = b'{"x":' + b"[" * 900 + b"]" * 900 + b"}"
    bodies = (b"{", b"null", b"[]", b'{"a":' * 100_000, b"[" * 1_000_000, deep, b"\xff\xfe\x00", b'"text"', b"1e999")
    with server.line() as line:
        for one in one_of_each_code():
            if one.request_code in (17, 215, 25):  # answered later, or about settings: they have their own tests
                continue
            command = one.command
            command.flag = 0
            for body in bodies:
                command.body = body
                if one.request_code in (11, 361):
                    command.fields["suspendTimeoutMillis"] = "0"
                    command.fields["sysFlag"] = "0"
                answer = line.ask(command)
                assert answer.remark is None or len(answer.remark) < 10_000


def registration(body: bytes, **fields: str) -> Command:
    known = {
        "brokerName": "hostile", "brokerAddr": "192.0.2.1:1", "clusterName": "c", "haServerAddr": "192.0.2.1:2", "brokerId": "0",
        "compressed": "true", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }  # fmt: skip
    return Command(RequestCode.REGISTER_BROKER, known | fields, body)


def test_a_compressed_registration_that_expands_without_end_is_capped(name_server: Victim) -> None:
    engine = zlib.compressobj(1)
    bomb = b"".join([*(engine.compress(bytes(1 << 20)) for _ in range(300)), engine.flush()])
    assert len(bomb) < 2 << 20
    before = name_server.server.rss
    answer = name_server.ask(registration(bomb))
    assert answer.code != 0
    assert answer.remark
    assert name_server.server.rss - before < 192 << 20
    clusters = name_server.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    assert b"hostile" not in clusters


def test_a_registration_whose_counts_lie_is_refused(name_server: Victim) -> None:
    version = struct.pack(">i", 2) + b"{}"
    for inner in (
        b"",
        b"\0",
        struct.pack(">i", -1),
        struct.pack(">i", 0x7FFFFFFF) + b"{}",
        version + struct.pack(">i", 0x7FFFFFFF),
        version + struct.pack(">i", -1),
        version + struct.pack(">ii", 1, 0x7FFFFFFF) + b"x",
        version + struct.pack(">i", 20_000_000) + bytes(1_000),
    ):
        answer = name_server.ask(registration(zlib.compress(inner)))
        assert answer.code != 0, inner
        assert answer.remark
    assert name_server.ask(registration(b"not compressed at all")).code != 0
    assert name_server.ask(registration(zlib.compress(b"{}"), bodyCrc32="1")).code != 0
    assert b"hostile" not in name_server.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO)).body


def test_the_kv_table_takes_no_more_than_its_limits(name_server: Victim) -> None:
    for fields in (
        {"namespace": "n" * 2_000, "key": "k", "value": "v"},
        {"namespace": "n", "key": "k" * 2_000, "value": "v"},
        {"namespace": "n", "key": "k", "value": "v" * 300_000},
        {"namespace": "n", "key": "k"},
    ):
        answer = name_server.ask(Command(RequestCode.PUT_KV_CONFIG, fields))
        assert answer.code != 0
        assert answer.remark
