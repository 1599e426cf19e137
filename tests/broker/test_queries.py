"""Questions about stored messages: against Apache's own directory and its own answers, and the rules one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roquet.store.disk import Cold
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.record import decode_records

from .conftest import BrokerKit, Golden, golden, same_answer


@pytest.mark.parametrize("pair", golden(29, 31, 32), ids=str)
def test_the_directory_of_apache_answers_as_it_did_there(apache: BrokerKit, pair: Golden) -> None:
    """By time, first offset and earliest time do not change while messages are only added behind."""
    same_answer(apache.ask(pair.request), pair.response)


@pytest.mark.parametrize("pair", golden(12), ids=str)
def test_messages_by_key_are_those_that_apache_found(apache: BrokerKit, pair: Golden) -> None:
    ours = apache.ask(pair.request)
    assert (ours.code, ours.remark, ours.body) == (pair.response.code, pair.response.remark, pair.response.body)
    assert ours.fields.keys() == pair.response.fields.keys()


def test_a_key_that_nobody_has_is_not_found_and_says_how_far_the_index_goes(kit: BrokerKit) -> None:
    fields = {"topic": "T", "key": "none", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9223372036854775807"}
    answer = kit.request(RequestCode.QUERY_MESSAGE, fields)
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert answer.remark == "can not find message, maybe time range not correct"
    assert answer.fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


def test_a_query_by_key_returns_at_most_what_the_broker_allows(kit: BrokerKit) -> None:
    for number in range(6):
        kit.put("T", body=b"%d" % number, properties="KEYS\x01k")
    fields = {"topic": "T", "key": "k", "maxNum": "1000", "beginTimestamp": "0", "endTimestamp": "9223372036854775807"}
    kit.settings.max_msgs_num_batch = 4
    assert len(decode_records(kit.request(RequestCode.QUERY_MESSAGE, fields).body)) == 4
    kit.settings.default_query_max_num = 2
    assert len(decode_records(kit.request(RequestCode.QUERY_MESSAGE, fields | {"_UNIQUE_KEY_QUERY": "true"}).body)) == 2
    assert kit.request(RequestCode.QUERY_MESSAGE, fields | {"maxNum": "-5"}).code == ResponseCode.QUERY_NOT_FOUND


def test_an_answer_never_outgrows_a_frame(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.queries.ANSWER_MAX", 2_500)
    for _ in range(5):
        kit.put("T", body=bytes(1_000), properties="KEYS\x01k")
    fields = {"topic": "T", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": "9223372036854775807"}
    assert len(decode_records(kit.request(RequestCode.QUERY_MESSAGE, fields).body)) == 2


def test_a_message_is_viewed_by_its_place_in_the_log(kit: BrokerKit) -> None:
    kit.put("T", body=b"first")
    offset, _ = kit.put("T", body=b"second")
    (record,) = decode_records(kit.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}).body)
    assert record.body == b"second"


@pytest.mark.parametrize("offset", [-1, 1, 50, 1 << 40, (1 << 63) - 1])
def test_an_offset_where_no_message_begins_is_refused(kit: BrokerKit, offset: int) -> None:
    kit.put("T")
    answer = kit.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")


def test_the_offsets_of_a_queue(kit: BrokerKit) -> None:
    for _ in range(3):
        kit.put("T", 1)
    kit.store.queue("T", 1).first = 2
    fields = {"topic": "T", "queueId": "1"}
    assert kit.request(RequestCode.GET_MAX_OFFSET, fields).fields == {"offset": "3"}
    assert kit.request(RequestCode.GET_MIN_OFFSET, fields).fields == {"offset": "2"}
    assert kit.request(RequestCode.GET_EARLIEST_MSG_STORETIME, fields).fields == {"timestamp": str(kit.clock.ms)}


def test_a_queue_that_does_not_exist_answers_as_an_empty_one_and_is_not_made(kit: BrokerKit) -> None:
    fields = {"topic": "../x", "queueId": "9", "timestamp": "5"}
    assert kit.request(RequestCode.GET_MAX_OFFSET, fields).fields == {"offset": "0"}
    assert kit.request(RequestCode.GET_MIN_OFFSET, fields).fields == {"offset": "0"}
    assert kit.request(RequestCode.GET_EARLIEST_MSG_STORETIME, fields).fields == {"timestamp": "-1"}
    assert kit.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields).fields == {"offset": "0"}
    assert not kit.store.queues


@pytest.mark.parametrize(
    ("time", "nearest", "lower", "upper"),
    [
        (0, 0, 0, 0),
        (100, 0, 0, 0),
        (140, 0, 1, 0),
        (150, 0, 1, 0),
        (160, 1, 1, 0),
        (200, 1, 1, 2),
        (260, 3, 3, 2),
        (300, 3, 3, 3),
        (999, 3, 4, 3),
    ],
)
def test_searching_by_time(kit: BrokerKit, time: int, nearest: int, lower: int, upper: int) -> None:
    """4.9 takes the nearer message; 5.x says which side it wants."""
    start = kit.clock.ms
    for passed in (100, 200, 200, 300):
        kit.clock.ms = start + passed
        kit.put("T")
    fields = {"topic": "T", "queueId": "0", "timestamp": str(start + time)}

    def found(**more: str) -> int:
        return int(kit.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields | more).fields["offset"])

    assert (found(), found(boundaryType="LOWER"), found(boundaryType="UPPER")) == (nearest, lower, upper)


def test_what_is_not_in_memory_is_fetched_by_whoever_calls(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.put("T")
    fetched: list[int] = []
    real = kit.store.record_at

    def cold_once(offset: int) -> bytes:
        if not fetched:
            raise Cold(lambda: fetched.append(offset))
        return real(offset)

    monkeypatch.setattr(kit.store, "record_at", cold_once)
    assert kit.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"}).code == ResponseCode.SUCCESS
    assert fetched == [0]


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}, {"topic": "T", "queueId": "x"}, {"topic": "T", "queueId": "99999999999"}])
def test_fields_that_are_missing_or_wrong_are_named(kit: BrokerKit, fields: dict[str, str]) -> None:
    answer = kit.request(RequestCode.GET_MAX_OFFSET, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "<topic>" in (answer.remark or "") or "<queueId>" in (answer.remark or "")


def test_without_an_index_keys_are_not_indexed_and_nothing_is_written_for_them(kits: Callable[..., BrokerKit]) -> None:
    kit = kits(message_index_enable=False)
    for number in range(3):
        kit.put("T", properties=f"KEYS\x01k{number}")
    assert kit.store.query("T", "k1", 9, 0, 1 << 60)[0] == []
    kit.store.tick(kit.clock.ms + 60_000)
    assert list((kit.root / "index").iterdir()) == []
    kit.settings.message_index_enable = True  # at run time: from now on
    kit.put("T", properties="KEYS\x01later")
    assert len(kit.store.query("T", "later", 9, 0, 1 << 60)[0]) == 1
