"""What a broker does for traces: messages carry the region, which 5.x consumers look for; a message of traces is found by all its keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.store.fanout import KEYS_MAX
from roquet.wire.batch import join_batch
from roquet.wire.record import Record, decode_records

from .whole import Whole, send_fields

REGION = b"\x02MSG_REGION\x01north\x02TRACE_ON\x01true"


@pytest.fixture(params=["compiled", "plain", "careful"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def broker(tmp_path: Path, way: str, **settings: Any) -> Whole:
    made = Whole(tmp_path / "store", region_id="north", **settings)
    plain = made.broker.sender.plain
    if way == "compiled" and plain.native is None:
        pytest.skip("the extension is not here")
    if way != "compiled":
        plain.native = None
    if way == "careful":
        plain.take = lambda peer, frames, at: (at, None)  # type: ignore[method-assign]
    return made


@pytest.fixture
def traced(tmp_path: Path, way: str) -> Iterator[Whole]:
    made = broker(tmp_path, way, trace_topic_enable=True)
    yield made
    made.close()


def stored(whole: Whole, topic: str) -> list[Record]:
    queue = whole.broker.store.queue(topic, 0)
    entries = [queue.entry(offset) for offset in range(queue.first, queue.visible)]
    return [record for entry in entries if entry is not None for record in decode_records(whole.broker.store.record_at(entry[0]))]


def properties(whole: Whole, topic: str = "T") -> list[bytes]:
    return [record.properties for record in stored(whole, topic)]


def test_with_a_trace_topic_messages_carry_the_region_as_5_x_brokers_store_it(traced: Whole) -> None:
    traced.ask(310, send_fields(), b"the first makes the topic")
    traced.ask(310, send_fields(properties="TAGS\x01a"), b"hello")
    traced.ask(320, send_fields(m="true", properties="WAIT\x01true"), join_batch([(0, b"x", b"k\x01v"), (0, b"y", b"")]))
    assert properties(traced)[1:] == [
        b"TAGS\x01a\x02CLUSTER\x01DefaultCluster" + REGION,
        b"k\x01v\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster" + REGION,
        b"WAIT\x01true\x02CLUSTER\x01DefaultCluster" + REGION,
    ]


def test_a_half_message_and_a_delayed_one_carry_it_too(traced: Whole) -> None:
    traced.ask(310, send_fields(), b"the first makes the topic")
    traced.ask(310, send_fields(properties="TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x01U"), b"half")
    traced.ask(310, send_fields(properties="DELAY\x011"), b"later")
    assert REGION in properties(traced, "RMQ_SYS_TRANS_HALF_TOPIC")[0]
    assert REGION in properties(traced, "SCHEDULE_TOPIC_XXXX")[0]


def test_the_region_of_this_broker_replaces_that_of_another(traced: Whole) -> None:
    traced.ask(310, send_fields(), b"the first makes the topic")
    traced.ask(310, send_fields(properties="MSG_REGION\x01south\x02TRACE_ON\x01false\x02a\x01b"), b"sent again by a consumer")
    assert dict(item.split(b"\x01") for item in properties(traced)[1].split(b"\x02")) == {
        b"MSG_REGION": b"north", b"TRACE_ON": b"true", b"a": b"b", b"CLUSTER": b"DefaultCluster",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"trace_topic_enable": True}, True),
        ({"region_in_messages": "true"}, True),
        ({"trace_topic_enable": True, "region_in_messages": "false"}, False),
    ],
)
def test_the_setting_says_when(tmp_path: Path, way: str, settings: dict[str, object], expected: bool) -> None:
    whole = broker(tmp_path, way, **settings)
    try:
        for body in (b"the first makes the topic", b"hello"):
            whole.ask(310, send_fields(properties="a\x01b"), body)
        assert [REGION in found for found in properties(whole)] == [expected] * 2
    finally:
        whole.close()


def test_a_message_of_traces_is_found_by_every_id_in_it(traced: Whole) -> None:
    """Java writes up to 118,000 characters of records into one: some 700 ids, and the keys of their messages."""
    ids = [f"{number:032X}" for number in range(700)]
    traced.ask(310, send_fields(), b"the first makes the topic")
    traced.ask(310, send_fields(properties=f"KEYS\x01{' '.join(ids)}"), b"traces")
    missing = [one for one in ids if len(traced.broker.store.query("T", one, 8, 0, 1 << 60)[0]) != 1]
    assert missing == []


def test_no_message_fills_the_index_alone(traced: Whole) -> None:
    words = [f"{number:x}" for number in range(KEYS_MAX + 2)]
    traced.ask(310, send_fields(), b"the first makes the topic")
    traced.ask(310, send_fields(properties=f"KEYS\x01{' '.join(words)}"), b"hostile")
    found = [len(traced.broker.store.query("T", word, 8, 0, 1 << 60)[0]) for word in words[-3:]]
    assert found == [1, 0, 0]
