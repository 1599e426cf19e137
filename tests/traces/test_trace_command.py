"""`roquet trace`: what became of a message, asked of a running broker."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from typing import Any

import pytest

import roquet
from roquet import Message, Outcome, ReceivedMessage
from roquet.admin.traces import MessageTrace, tell
from roquet.cli.main import main
from roquet.wire.trace import EndTransaction, Pub, Recall, SubAfter, SubBefore, TraceRecord
from tests.traces.recorded import PAYLOADS
from tests.traces.told import PATIENCE_S, TRACED, until

T0 = 1_700_000_000_000


def run(test: Any, **settings: str) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(settings={**TRACED, **settings}, fast_retries=True) as mq:
            await test(mq)

    asyncio.run(bounded())


async def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    out, errors = io.StringIO(), io.StringIO()

    def called() -> int:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            return main(["trace", *arguments])

    code = await asyncio.to_thread(called)
    return code, out.getvalue(), errors.getvalue()


# From servers


def test_a_message_is_told_by_its_id_by_its_key_and_by_the_brokers_id() -> None:
    async def test(mq: roquet.Embedded) -> None:
        consumer = mq.consumer("billing", consume_from="first", trace=True)
        seen: list[int] = []

        @consumer.on("orders")
        async def bill(message: ReceivedMessage) -> Outcome | None:
            seen.append(message.reconsume_times)
            return None if message.reconsume_times else Outcome.RETRY_LATER

        async with mq.producer("sellers", trace=True) as producer, consumer:
            receipt = await producer.send(Message("orders", b"12345", tags="paid", keys=["order-1"]))
            await until(lambda: len(seen) == 2)
        answers = [await command(key, "-n", mq.namesrv, "--json") for key in (receipt.message_id, "order-1", receipt.offset_message_id)]
        assert [code for code, _, _ in answers] == [0, 0, 0]
        (told,), *others = [json.loads(out) for _, out, _ in answers]
        assert others == [[told]] * 2
        assert (told["messageId"], told["topic"], told["tags"], told["keys"]) == (receipt.message_id, "orders", "paid", ["order-1"])
        (send,) = told["sends"]
        assert send | {"time": 0, "costMs": 0, "client": ""} == {
            "group": "sellers", "client": "", "time": 0, "costMs": 0, "success": True, "type": "Normal", "storeHost": mq.broker,
            "offsetMessageId": receipt.offset_message_id, "bodySize": 5, "region": "DefaultRegion",
        }  # fmt: skip
        assert send["client"].startswith("127.0.0.1")
        found = [(one["group"], one["attempt"], one["success"], one["outcome"]) for one in told["deliveries"]]
        assert found == [("billing", 1, False, "FAILED"), ("billing", 2, True, "SUCCESS")]
        assert all(send["time"] <= one["begun"] <= one["ended"] for one in told["deliveries"])

        code, out, _ = await command("order-1", "-n", mq.namesrv)
        lines = out.splitlines()
        assert (code, lines[0]) == (0, f"message  {receipt.message_id}")
        assert [line.split()[:2] for line in lines[-3:]] == [["sent", "sellers"], ["consumed", "billing"], ["consumed", "billing"]]
        assert lines[-3].endswith(f"stored at {mq.broker}")
        assert lines[-2].endswith("FAILED, attempt 1")
        assert lines[-1].endswith("success, attempt 2")

    run(test)


def test_a_key_of_several_messages_tells_of_each_and_of_no_other() -> None:
    async def test(mq: roquet.Embedded) -> None:
        async with mq.producer("sellers", trace=True) as producer:
            ids = [(await producer.send(Message("orders", b"x", keys=[key, "c-9"]))).message_id for key in ("a", "b")]
            await producer.send(Message("orders", b"x", keys=["c-99"]))
        _, out, _ = await command("c-9", "-n", mq.namesrv, "--json")
        assert [told["messageId"] for told in json.loads(out)] == ids
        _, out, _ = await command("a", "-n", mq.namesrv)
        assert ids[0] in out
        assert ids[1] not in out
        assert out.endswith("no consumer has told of it: none has got it yet, or its group writes no traces\n")

    run(test)


def test_where_nothing_was_traced_it_says_what_to_do() -> None:
    async def test(mq: roquet.Embedded) -> None:
        code, out, errors = await command("order-1", "-n", mq.namesrv)
        assert (code, out) == (1, "")
        assert (
            "no trace of 'order-1' in RMQ_SYS_TRACE_TOPIC. Clients write traces when they are told to: Producer(..., trace=True)" in errors
        )
        assert "traceOn" not in errors
        assert (await command("order-1", "-n", mq.namesrv, "--json"))[1].strip() == "[]"

    run(test)


def test_where_brokers_want_none_it_says_so() -> None:
    async def test(mq: roquet.Embedded) -> None:
        _, _, errors = await command("order-1", "-n", mq.namesrv)
        assert "traceOn=false on broker-a: producers write no traces of what they send there" in errors

    run(test, traceOn="false")


def test_without_a_trace_topic_it_says_how_to_make_one_and_that_works() -> None:
    async def test(mq: roquet.Embedded) -> None:
        code, _, errors = await command("order-1", "-n", mq.namesrv)
        assert code == 1
        assert "there is no topic 'RMQ_SYS_TRACE_TOPIC', so no client has written traces there. Set traceTopicEnable=true" in errors
        _, _, errors = await command("order-1", "-n", mq.namesrv, "--trace-topic", "mine")
        assert "Make it: roquet topic create mine." in errors
        assert await asyncio.to_thread(main, ["topic", "create", "mine", "-n", mq.namesrv]) == 0
        async with mq.producer("sellers", trace="mine") as producer:
            await producer.send(Message("orders", b"x", keys=["order-1"]))
        assert (await command("order-1", "-n", mq.namesrv, "--trace-topic", "mine"))[0] == 0

    run(test, traceTopicEnable="false")


# From records


def told(*records: TraceRecord) -> list[MessageTrace]:
    return tell((record, "10.0.0.9:1") for record in records)


def test_records_of_javas_are_joined_into_one_story() -> None:
    from roquet.wire.trace import decode

    payloads = [bytes.fromhex(one["payload"]) for one in PAYLOADS if one["version"] == "4.9.8"]
    records = [record for payload in payloads for record in decode(payload)]
    found = {trace.message_id[-4:]: trace for trace in told(*records)}  # type: ignore[arg-type]
    assert list(found) == ["0001", "0002", "0003", "0004", "0005", "0007", "0006"]
    first = found["0001"]
    assert [send.offset_message_id for send in first.sends] == ["0A00000100002A9F0000000000000001"]
    assert [(one.outcome, one.begun_ms, one.ended_ms) for one in first.deliveries] == [
        ("FAILED", None, None), ("SUCCESS", T0 + 20, T0 + 29), ("EXCEPTION", None, T0 + 30),
    ]  # fmt: skip
    assert [(end.state, end.from_check) for end in found["0005"].ends] == [("COMMIT_MESSAGE", True)]
    assert found["0003"].sends == found["0004"].sends, "a batch is one record"


def test_a_record_that_was_written_twice_counts_once() -> None:
    send = Pub(T0, "r", "g", "t", "A", None, None, "h:1", 1, 2)
    (trace,) = told(send, send, SubBefore(T0 + 5, "r", "c", "q", "A", 0, None), SubBefore(T0 + 5, "r", "c", "q", "A", 0, None))
    assert (len(trace.sends), len(trace.deliveries)) == (1, 1)
    assert trace.deliveries[0].success is None


def test_the_end_may_be_told_before_the_beginning_and_old_clients_do_not_say_when() -> None:
    after, before = SubAfter("q", "A", 7, True, "k"), SubBefore(T0, "r", "c", "q", "A", 2, "k")
    (trace,) = told(after, before)
    (delivery,) = trace.deliveries
    assert (delivery.group, delivery.attempt, delivery.begun_ms, delivery.ended_ms, delivery.cost_ms) == ("c", 3, T0, T0 + 7, 7)
    assert (trace.keys, trace.topic) == ("k", None)


def test_a_recall_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    from roquet.cli.trace import describe

    (trace,) = told(
        Pub(T0, "r", "g", "t", "A", None, None, "h:1", 1, 2, "Delay"),
        Recall(T0 + 9, "r", "g", "t", "A", True),
        EndTransaction(T0 + 8, "r", "g", "t", "A", None, None, "h:1", "TransCommit", "A", "UNKNOW", True),
    )
    lines = [line.split() for line in describe(trace).splitlines()]
    assert [line[0] for line in lines[-4:-1]] == ["sent,", "transaction", "cancelled"]
    assert lines[-3][-6:] == ["not", "decided,", "when", "the", "broker", "asked"]
