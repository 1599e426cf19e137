"""The trace topic as a table: Apache's own payloads, and what the table tells."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet import Message, PushConsumer, ReceivedMessage
from roquet.cli.main import main
from roquet.spark.pipelines import trace
from roquet.spark.pipelines.trace_records import EVENT_SCHEMA, MALFORMED, parse
from roquet.wire.trace import LAYOUTS, LIMITS, MAY_BE_NULL, ORDINALS, Malformed, decode
from tests.spark.conftest import Servers
from tests.traces.recorded import PAYLOADS, as_java_read_it, name_of

T0 = 1_700_000_000_000


def events_of(*payloads: bytes) -> list[dict[str, Any]]:
    return parse(pa.array(payloads, pa.binary()))[0].to_pylist()  # type: ignore[no-any-return]


# The payload


def in_ms(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"time": None if event["time"] is None else round(event["time"].timestamp() * 1000)}


@pytest.mark.parametrize("recorded", PAYLOADS, ids=name_of)
def test_a_payload_of_apaches_encoder_is_read_as_its_decoder_reads_it(recorded: dict[str, Any]) -> None:
    found = [in_ms(event) for event in events_of(bytes.fromhex(recorded["payload"]))]
    expected = [as_java_read_it(read) for read in recorded["read"]]
    if recorded["name"] == "a batch":
        (sent,) = expected
        expected = [sent | {"unique_id": one} for one in sent["unique_id"].split(",")]
    assert [{name: event[name] for name in wanted} for event, wanted in zip(found, expected, strict=True)] == expected


def test_a_send_of_an_old_client_without_offset_id_and_one_of_a_later_with_its_host_are_read() -> None:
    fields = ["Pub", str(T0), "r", "g", "t", "id", "tag", "key", "h:1", "9", "3", "0"]
    old, new = ["true"], ["offset-id", "false", "10.0.0.9", "of the future"]
    found = events_of("\x01".join(fields + old).encode(), "\x01".join(fields + new).encode())
    assert [one["message_id"] for one in found] == [None, "offset-id"]
    assert [one["success"] for one in found] == [True, False]
    assert [one["client_host"] for one in found] == [None, "10.0.0.9"]


def test_records_that_cannot_be_read_are_counted_with_their_reason_and_do_not_harm_their_neighbours() -> None:
    good = before("billing", "m-1", T0)
    broken = b"\x02".join([b"Pub\x01soon", b"SubBefore\x01soon\x01r\x01g\x01q\x01id\x010\x01k", b"\xff\xfe", b"Fax\x011\x012"])
    found = events_of(broken + b"\x02" + good, good)
    assert [one["kind"] for one in found] == [MALFORMED] * 4 + ["SubBefore"] * 2
    assert found[1]["problem"] == "a field of SubBefore is not the number it should be: SubBefore soon r g q id 0 k"
    assert found[3]["problem"].endswith(": Fax 1 2")


def test_numbers_beyond_their_range_are_malformed_and_not_fatal() -> None:
    huge = "9" * 18
    lines = [f"SubBefore\x01{huge}\x01r\x01g\x01q\x01id\x010\x01k", f"SubBefore\x011\x01r\x01g\x01q\x01id\x01{huge}\x01k"]
    lines += ["Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01key\x01h\x019\x013\x0177\x01true"]
    lines += [f"SubBefore\x01{huge}9\x01r\x01g\x01q\x01id\x010\x01k"]
    assert [one["kind"] for one in events_of("\x02".join(lines).encode())] == [MALFORMED] * 4


def test_each_event_knows_the_payload_it_stood_in() -> None:
    payloads = [before("g", "a", T0) + after("g", "a", T0), b"", before("g", "b", T0)]
    table, numbers = parse(pa.array([*payloads, None], pa.binary()))
    assert list(zip(table["unique_id"].to_pylist(), numbers.tolist(), strict=True)) == [("a", 0), ("a", 0), ("b", 2)]


WORDS = st.text(st.characters(exclude_characters="\x01\x02", categories=("L", "N", "P", "S", "Z")), max_size=12)
IDS = st.text("0123456789ABCDEF", min_size=1, max_size=32)


@given(st.lists(st.tuples(WORDS, IDS, WORDS, st.integers(0, 1 << 40), st.integers(0, 99), st.booleans()), max_size=20), st.integers(1, 7))
def test_what_is_written_is_read_back_whatever_the_texts_are(rows: list[Any], cut: int) -> None:
    lines = [
        f"SubAfter\x01{group}\x01{one}\x01{cost}\x01{str(ok).lower()}\x01{keys}\x010\x01{time}\x01{group}\x02".encode()
        for group, one, keys, time, cost, ok in rows
    ]
    payloads = [b"".join(lines[at : at + cut]) for at in range(0, len(lines), cut)]
    found = [in_ms(event) for event in events_of(*payloads)]
    read = [(one["group"], one["unique_id"], one["keys"], one["time"], one["cost_ms"], one["success"]) for one in found]
    blank = ("", "null")
    assert read == [(g or None, i, None if k in blank else k, t, c, ok) for g, i, k, t, c, ok in rows]


@given(st.lists(st.binary(max_size=60) | st.text("PubSbeforAt\x01\x02019", max_size=60).map(str.encode), max_size=8))
def test_no_bytes_at_all_break_the_parser(payloads: list[bytes]) -> None:
    table, numbers = parse(pa.array(payloads, pa.binary()))
    assert table.schema == EVENT_SCHEMA
    assert len(table) == len(numbers)


def as_records(payload: bytes) -> list[dict[str, Any]]:
    """What the reader of single records finds, as the columns have it: one event for each message of a batch."""
    found: list[dict[str, Any]] = []
    for record in decode(payload):
        told: dict[str, Any] = {"problem": record.problem} if isinstance(record, Malformed) else asdict(record)
        told["time"] = told.pop("time_ms", None)
        texts = {name: None if name in MAY_BE_NULL and value == "" else value for name, value in told.items()}
        row = dict.fromkeys(EVENT_SCHEMA.names) | texts | {"kind": record.kind}
        found += [row | {"unique_id": one} for one in row["unique_id"].split(",")] if row["unique_id"] is not None else [row]
    return found


NUMBERS = st.sampled_from(["0", "1", "2", "1700000000000"])
ODD = st.sampled_from(["null", "", "TRUE", "A,B", "-1", "5", "7", "1" * 11, "9" * 17, "9" * 18, "9" * 20, "1.5", "\u0663", "\xff"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A record of a known kind, in which about one field is not what it should be, or which is too short or too long."""
    (kind, least), layout = draw(st.sampled_from(sorted(LAYOUTS.items())))
    names = layout.split()
    found = [draw(NUMBERS) if name in LIMITS or name in ORDINALS else draw(st.sampled_from(["true", "null", "id"])) for name in names]
    for at in draw(st.lists(st.integers(0, len(found) - 1), max_size=2)):
        found[at] = draw(ODD)
    stop = draw(st.integers(least - 2, len(found) + 1))
    return "\x01".join([kind, *[*found, "more", "and more"][:stop]])


@given(st.lists(lines() | st.text("Pub\x01,19\ufffd", max_size=9), max_size=12))
def test_the_columns_say_what_the_reader_of_single_records_says(found: list[str]) -> None:
    payload = "\x02".join(found).encode()
    assert [in_ms(event) for event in events_of(payload)] == as_records(payload)


# What the table tells


def pub(topic: str, one: str, time: int, *, cost: int = 5, kind: int = 0, ok: bool = True, tag: str = "paid") -> bytes:
    fields = ["Pub", time, "r", "sellers", topic, one, tag, f"key-{one}", "h:1", 9, cost, kind, "offset", str(ok).lower()]
    return "\x01".join(map(str, fields)).encode() + b"\x02"


def before(group: str, one: str, time: int, *, retries: int = 0) -> bytes:
    return f"SubBefore\x01{time}\x01r\x01{group}\x01{group}-{one}-{retries}\x01{one}\x01{retries}\x01key-{one}\x02".encode()


def after(group: str, one: str, time: int, *, cost: int = 20, ok: bool = True, retries: int = 0) -> bytes:
    fields = ["SubAfter", f"{group}-{one}-{retries}", one, cost, str(ok).lower(), f"key-{one}", 0 if ok else 2, time, group]
    return "\x01".join(map(str, fields)).encode() + b"\x02"


def end(topic: str, one: str, time: int, state: str) -> bytes:
    return f"EndTransaction\x01{time}\x01r\x01sellers\x01{topic}\x01{one}\x01paid\x01k\x01h:1\x012\x01tx\x01{state}\x01false\x02".encode()


def consumed(group: str, one: str, at: int, cost: int = 20) -> bytes:
    return before(group, one, at) + after(group, one, at + cost, cost=cost)


def story(at: int) -> list[bytes]:
    """One small world: quick messages and a slow one, one that failed, transactions, some that nobody consumed."""
    quick = [pub("orders", f"o{n}", at + n, cost=n) + consumed("billing", f"o{n}", at + n + 100, cost=n) for n in range(1, 101)]
    return [
        b"".join(quick),
        pub("orders", "slow", at) + before("billing", "slow", at + 9_000) + after("billing", "slow", at + 9_030, ok=False, cost=30),
        before("billing", "slow", at + 60_000, retries=1) + after("billing", "slow", at + 60_010, cost=10, retries=1),
        pub("orders", "refused", at + 3, ok=False),
        pub("orders", "lost", at + 4) + pub("orders", "other tag", at + 5, tag="shipped") + pub("orders", "late", at + 599_000),
        pub("orders", "delayed", at + 6, kind=3),
        pub("payments", "kept", at, kind=1) + end("payments", "kept", at + 2_000, "COMMIT_MESSAGE"),
        consumed("ledger", "kept", at + 2_050),
        pub("payments", "undone", at, kind=1) + end("payments", "undone", at + 10, "ROLLBACK_MESSAGE"),
        pub("payments", "stuck", at, kind=1) + end("payments", "stuck", at + 10, "UNKNOW"),
        pub("payments", "young", at + 550_000, kind=1),
        b"Fax\x011\x02",
    ]


@pytest.fixture(scope="module")
def began() -> int:
    """Ten minutes ago: what is younger than five is not missed yet."""
    return round(time.time() * 1000) - 600_000


@pytest.fixture(scope="module")
def traced(servers: Servers, spark: Any, began: int) -> Servers:
    servers.topic("my_traces", 2)
    servers.send(Message("my_traces", body) for body in story(began))
    return servers


@pytest.fixture(scope="module")
def answer(traced: Servers, spark: Any) -> dict[str, Any]:
    """Of the command, over a real trace topic."""
    out = io.StringIO()
    command = ["pipeline", "trace", "-n", traced.namesrv, "--trace-topic", "my_traces", "--slowest", "2", "--grace", "300", "--json"]
    with contextlib.redirect_stdout(out):
        assert main(command) == 0
    return json.loads(out.getvalue())  # type: ignore[no-any-return]


def test_every_record_is_an_event_and_those_that_cannot_be_read_are_counted(answer: dict[str, Any]) -> None:
    assert answer["events"] == {"EndTransaction": 3, "Pub": 110, "SubAfter": 103, "SubBefore": 103, "malformed": 1}
    assert [row["problem"] for row in answer["malformed"]] == ["unknown kind or too few fields: Fax 1"]


def test_the_stores_files_tell_the_same_as_their_broker(traced: Servers, spark: Any, answer: dict[str, Any]) -> None:
    found = trace.events(spark, {"path": str(traced.store)}, trace_topic="my_traces").groupBy("kind").count()
    assert {row["kind"]: row["count"] for row in found.collect()} == answer["events"]


def test_latencies_are_percentiles_per_topic_group_and_what_was_measured(answer: dict[str, Any]) -> None:
    found = {(row["topic"], row["group"], row["measure"]): row for row in answer["latencies"]}
    wait, consume = found["orders", "billing", "wait"], found["orders", "billing", "consume"]
    assert (wait["count"], wait["p50_ms"], wait["p99_ms"], wait["max_ms"]) == (101, 100, 100, 9_000)
    assert (consume["count"], consume["p95_ms"], consume["max_ms"]) == (102, 95, 100)
    assert found["orders", "sellers", "send"]["max_ms"] == 100
    assert found["payments", "ledger", "wait"]["max_ms"] == 50, "a transaction's message waits from its commit on"


def test_the_slowest_message_is_counted_from_its_sending_to_the_end_of_its_last_attempt(answer: dict[str, Any]) -> None:
    slowest = [(row["unique_id"], row["group"], row["deliveries"], row["total_ms"]) for row in answer["slowest"]]
    assert slowest == [("slow", "billing", 2, 60_010), ("kept", "ledger", 1, 2_070)]


def test_failed_are_sends_that_were_not_stored_and_attempts_that_did_not_succeed(answer: dict[str, Any]) -> None:
    failed = [(row["what"], row["unique_id"], row["topic"], row["outcome"]) for row in answer["failed"]]
    assert failed == [("send", "refused", "orders", None), ("consume", "slow", "orders", "EXCEPTION")]


def test_a_half_message_is_stuck_when_nobody_ended_it_in_time(answer: dict[str, Any]) -> None:
    assert [(row["unique_id"], row["unknown_answers"]) for row in answer["stuck"]] == [("stuck", 1)]


def test_never_consumed_are_stored_messages_that_a_reading_group_did_not_begin_in_time(answer: dict[str, Any]) -> None:
    assert [(row["unique_id"], row["group"]) for row in answer["neverConsumed"]] == [("lost", "billing"), ("other tag", "billing")]


def test_a_group_that_asked_for_one_tag_is_not_expected_to_read_another(traced: Servers, spark: Any, began: int) -> None:
    where = {"namesrvAddr": traced.namesrv}
    found = trace.of_topic(trace.events(spark, where, trace_topic="my_traces"), "orders").cache()
    assert {row.kind for row in found.select("kind").distinct().collect()} == {"Pub", "SubBefore", "SubAfter"}

    async def work() -> list[str]:
        async def read(message: ReceivedMessage) -> None: ...

        consumer = PushConsumer("billing", traced.namesrv)
        consumer.subscribe("orders", "paid || refunded", read)
        async with consumer:
            subscriptions = await asyncio.to_thread(trace.subscribed, spark, where, found)
            missed = trace.never_consumed(found, now_ms=began + 600_000, subscriptions=subscriptions)
            return [row.unique_id for row in missed.collect()]

    traced.topic("orders", 1)
    assert asyncio.run(work()) == ["lost"]


def test_a_saved_table_grows_by_what_is_new_and_holds_nothing_twice(traced: Servers, spark: Any, tmp_path: Path) -> None:
    traced.topic("kept_traces", 1)
    traced.send(Message("kept_traces", consumed("billing", str(number), T0)) for number in range(4))
    where = {"namesrvAddr": traced.namesrv}
    assert trace.save(spark, where, tmp_path, trace_topic="kept_traces").count() == 8
    traced.send([Message("kept_traces", pub("orders", "one more", T0))])
    found = trace.save(spark, where, tmp_path, trace_topic="kept_traces")
    assert sorted(row.unique_id for row in found.select("unique_id").collect()) == ["0", "0", "1", "1", "2", "2", "3", "3", "one more"]
    assert trace.within(found, since_ms=4_000_000_000_000).isEmpty()


def test_what_cannot_be_traced_is_said_before_spark_starts(traced: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "trace", "-n", traced.namesrv, "--trace-topic", "nowhere", "--since", "-1h"]) == 1
    assert "there is no topic 'nowhere', so no client has written traces" in capsys.readouterr().err
    assert main(["pipeline", "trace", "-n", traced.namesrv, "--since", "soon"]) == 1
    assert "--since soon: expected milliseconds" in capsys.readouterr().err
