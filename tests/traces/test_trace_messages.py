"""Records as messages of the trace topic: as few as may be, none too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roquet.client.core.events import ConsumeEvent
from roquet.client.core.traces import BODY_MAX, KEYS_BYTES, KEYS_MAX, messages_of, of_end
from roquet.message import MessageQueue, ReceivedMessage
from roquet.wire.record import Record, encode_properties
from roquet.wire.trace import Pub, SubAfter, TraceRecord, decode, index_keys

T0 = 1_700_000_000_000


def sent(number: int, keys: str | None = None) -> Pub:
    return Pub(T0, "DefaultRegion", "g", "orders" * 10, f"{number:032X}", None, keys, "10.0.0.1:10911", 128, 7, message_id=f"{number:032X}")


def test_records_stand_in_their_order_in_as_few_messages_as_may_be() -> None:
    records = [sent(number) for number in range(2_048)]
    found = list(messages_of(records, "traces"))
    assert [record for message, _ in found for record in decode(message.body)] == records
    assert sum(count for _, count in found) == 2_048
    assert {message.topic for message, _ in found} == {"traces"}
    assert all(len(message.body) <= BODY_MAX for message, _ in found)
    sizes = [len(message.body) for message, _ in found]
    assert len(found) == 4
    assert min(sizes[:-1]) > BODY_MAX - 300


def test_each_message_is_found_by_the_ids_and_keys_of_all_its_records_and_by_each_once() -> None:
    records = [sent(1, "a b"), sent(2, "b"), sent(1, "a b")]
    ((message, count),) = messages_of(records, "traces")
    assert (message.keys, count) == ([f"{1:032X}", "a", "b", f"{2:032X}"], 3)


@given(
    st.lists(
        st.tuples(
            st.text(max_size=40)
            | st.just("k" * 5_000)
            | st.just("\udc80 \x01 \0 é")
            | st.just("kk " * 9_000)
            | st.just(("é" * 1_000 + " ") * 20),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
def test_no_key_of_anybodys_makes_a_message_that_no_broker_takes(rows: list[tuple[str, int]]) -> None:
    records: list[TraceRecord] = [sent(number, keys) for keys, number in rows]
    found = list(messages_of(records, "traces"))
    assert sum(count for _, count in found) == len(records)
    for message, _ in found:
        assert len(encode_properties(message.properties).encode()) <= KEYS_BYTES + 100
        message.body.decode()


def test_many_keys_make_another_message() -> None:
    many = [sent(number, " ".join(f"{number}-{word}" for word in range(200))) for number in range(20)]
    found = list(messages_of(many, "traces"))
    assert len(found) == 3
    assert all(len(message.keys) <= KEYS_MAX for message, _ in found)
    assert {key for message, _ in found for key in message.keys} == {key for record in many for key in index_keys(record)}


def test_upstreams_words_for_how_consuming_ended() -> None:
    message = ReceivedMessage(Record("t", 0, b"", b"UNIQ_KEY\x01A"))

    def ended(duration_ms: int, failed: bool, error: BaseException | None) -> SubAfter:
        event = ConsumeEvent("g", "c", [message], "t", MessageQueue("t", "b", 0), T0, 1, duration_ms=duration_ms)
        event.failed, event.error = [message] if failed else [], error
        (found,) = of_end(event, "q", 1_000)
        return found

    assert [(one.outcome, one.success) for one in (ended(1, False, None), ended(1, True, None))] == [("SUCCESS", True), ("FAILED", False)]
    assert (ended(1, True, ValueError()).outcome, ended(1_000, False, None).outcome) == ("EXCEPTION", "TIME_OUT")
    assert ended(5, False, None).time_ms == T0 + 5
