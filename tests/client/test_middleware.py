"""Middleware around sends, transactions and calls: each is told once, in order, and nothing that a hook does harms a message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from roquet import Middleware, Producer
from roquet.client import CallEvent, SendEvent, TransactionEvent
from roquet.client.core.failures import BatchFailed, ServerRejected
from roquet.client.core.hooks import Hooks
from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import Namespace
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.replies import reply_message
from roquet.client.core.transactions import Decided, TransactionCore, TransactionState
from roquet.errors import ClientError, InvalidMessage, RoquetError, SendFailed
from roquet.message import Message, ReceivedMessage
from roquet.wire.calls.transactions import CheckTransactionHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.headers import encode
from roquet.wire.record import decode_properties
from tests.client.fakes import FakeCluster, Results
from tests.client.members import Member

BATCH, SEND = RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2


class Recorder(Middleware):
    """Adds a property, and remembers what it was told."""

    def __init__(self, name: str = "r", heard: list[str] | None = None) -> None:
        self.name = name
        self.heard = [] if heard is None else heard
        self.begun: list[SendEvent] = []
        self.sent: list[SendEvent] = []
        self.ended: list[TransactionEvent] = []

    def before_send(self, event: SendEvent) -> None:
        self.heard.append(f"before {self.name}")
        self.begun.append(event)
        event.message.properties[f"trace-{self.name}"] = event.message_id

    def after_send(self, event: SendEvent) -> None:
        self.heard.append(f"after {self.name}")
        self.sent.append(event)

    def after_transaction(self, event: TransactionEvent) -> None:
        self.ended.append(event)

    @property
    def only(self) -> SendEvent:
        [event] = self.sent
        assert self.begun == [event]
        return event


def hooked(client: ClientCore, *middleware: Middleware, namespace: str = "", **settings: Any) -> ProducerCore:
    hooks = Hooks(middleware, "g", Namespace(namespace))
    hooks.join(client)
    producer = ProducerCore(client, "g", ProducerSettings(namespace=Namespace(namespace), **settings), hooks=hooks)
    producer.start()
    return producer


def prepared(*middleware: Middleware, **settings: Any) -> tuple[FakeCluster, ProducerCore]:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    return cluster, hooked(cluster.client(), *middleware, **settings)


def sent(cluster: FakeCluster, producer: ProducerCore, message: Message, **how: Any) -> SendReceipt | RoquetError:
    results = Results()
    producer.send(message, results.append, **how)
    cluster.advance_until(lambda: bool(results), 60_000)
    result = results.only
    assert isinstance(result, SendReceipt | RoquetError)
    return result


def done(cluster: FakeCluster, producer: ProducerCore, work: Coroutine[Any, Any, Any]) -> Any:
    results = Results()
    producer.client.tasks.start(work, results.append)
    cluster.advance_until(lambda: bool(results), 60_000)
    return results.only


def properties_of(cluster: FakeCluster) -> list[dict[str, str]]:
    return [decode_properties(record.properties) for log in cluster.log.values() for record in log]


def refused(_: str, command: Command) -> Command:
    return command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")


# -- each send is told once


def test_a_send_is_told_before_it_goes_and_after_it_is_stored() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    message = Message("t", b"x", keys=["k"])
    begun_ms = cluster.clock.ms
    cluster.overrides[SEND] = lambda _, command: cluster.clock.forward(30) or None  # type: ignore[func-returns-value]
    receipt = sent(cluster, producer, message)
    event = recorder.only
    assert isinstance(receipt, SendReceipt)
    assert (event.group, event.client_id, event.topic, event.kind, event.batch_size) == ("g", "c1", "t", "normal", 1)
    assert (event.receipt, event.error, event.queue, event.broker_address) == (receipt, None, receipt.queue, "a:10911")
    assert (event.begun_ms, event.duration_ms) == (begun_ms, 30)
    assert event.message_id == receipt.message_id
    assert properties_of(cluster) == [{"KEYS": "k", "UNIQ_KEY": receipt.message_id, "trace-r": receipt.message_id}]
    assert message.properties == {"KEYS": "k"}, "the user's message stays the user's"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (Message("t", b"x", delay_level=2), "delay"),
        (Message("t", b"x", deliver_after=5), "timed"),
        (Message("t", b"x", deliver_at=1_900_000_000_000), "timed"),
        (Message("t", b"x", properties={"TRAN_MSG": "true"}), "half"),
        (Message("t", b"x", properties={"CORRELATION_ID": "1"}), "request"),
        (Message("t", b"x", tags="a"), "normal"),
    ],
)
def test_the_kind_of_a_send_is_told(message: Message, kind: str) -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    sent(cluster, producer, message)
    assert recorder.only.kind == kind


def test_sends_that_gather_are_told_one_by_one() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder, linger_ms=5)
    sent(cluster, producer, Message("t", b"before"))  # from now on they would be columns, without middleware
    recorder.begun.clear()
    recorder.sent.clear()
    results = Results()
    for number in range(50):
        producer.send(Message("t", b"%d" % number), results.append)
    cluster.advance_until(lambda: len(results) == 50)
    assert cluster.requests(BATCH), "they share requests"
    assert [event.message.body for event in recorder.begun] == [b"%d" % number for number in range(50)]
    assert {event.message_id for event in recorder.sent} == {receipt.message_id for receipt in results if isinstance(receipt, SendReceipt)}
    assert len(recorder.sent) == 50
    assert all("trace-r" in properties for properties in properties_of(cluster))
    for event in recorder.sent:
        assert event.receipt is not None
        assert (event.queue, event.broker_address) == (event.receipt.queue, "a:10911")


def test_each_message_of_a_batch_is_told_with_its_own_receipt() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    receipts = done(cluster, producer, producer.send_batch([Message("t", b"%d" % number) for number in range(3)]))
    assert [event.receipt for event in recorder.sent] == receipts
    assert [event.batch_size for event in recorder.sent] == [3, 3, 3]
    assert [properties["trace-r"] for properties in properties_of(cluster)] == [receipt.message_id for receipt in receipts]


def test_a_batch_that_fails_in_part_tells_which_messages_are_stored() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    cluster.create_topic("other", 1)
    cluster.overrides[BATCH] = lambda address, command: refused(address, command) if command.fields["b"] == "other" else None
    messages = [Message(topic, b"x") for topic in ("t", "other", "t", "other")]
    failure = done(cluster, producer, producer.send_batch(messages))
    assert isinstance(failure, BatchFailed)
    assert [(event.topic, event.receipt is not None, event.error) for event in recorder.sent] == [
        ("t", True, None),
        ("other", False, failure),
        ("t", True, None),
        ("other", False, failure),
    ]


def test_a_message_that_is_sent_oneway_is_told_without_a_receipt() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    done(cluster, producer, producer.send_oneway(Message("t", b"x")))
    event = recorder.only
    assert (event.kind, event.receipt, event.error, event.broker_address) == ("oneway", None, None, "a:10911")
    assert event.queue is not None
    cluster.run()
    assert [properties["trace-r"] for properties in properties_of(cluster)] == [event.message_id]


def test_a_oneway_send_that_finds_no_broker_is_told_with_its_error() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    failure = done(cluster, producer, producer.send_oneway(Message("nowhere", b"x")))
    assert recorder.only.error is failure
    assert isinstance(failure, RoquetError)


def test_a_request_is_told_and_so_is_the_reply() -> None:
    recorder, answered = Recorder(), Recorder()
    cluster = FakeCluster("a")
    for topic in ("t", "%RETRY%g", "c_REPLY_TOPIC"):
        cluster.create_topic(topic, 1)
    member = Member(cluster, "replier", decide=None).start()
    replier = hooked(member.core.client, answered)
    producer = hooked(cluster.client("asker"), recorder)
    results = Results()
    producer.client.tasks.start(producer.request(Message("t", b"ping"), timeout_ms=2_000), results.append)
    cluster.advance_until(lambda: bool(member.held))
    replier.send(reply_message(member.held[0][0][0], b"pong"), lambda _: None)
    cluster.advance_until(lambda: bool(results))
    assert isinstance(results.only, ReceivedMessage)
    assert (recorder.only.kind, answered.only.kind) == ("request", "reply")


# -- failures


def test_a_send_that_fails_is_told_once_with_the_broker_it_was_tried_at_last() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder, retries=2)
    cluster.overrides[SEND] = lambda _, command: command.reply(ResponseCode.SYSTEM_ERROR, "no")
    failure = sent(cluster, producer, Message("t", b"x"), timeout_ms=1_000)
    assert isinstance(failure, SendFailed)
    assert len(cluster.requests(SEND)) > 1
    event = recorder.only
    assert (event.receipt, event.error, event.broker_address) == (None, failure, "a:10911")
    assert event.duration_ms > 0
    assert event.queue is not None


def test_a_send_that_a_broker_refuses_is_told() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    cluster.overrides[SEND] = refused
    assert isinstance(sent(cluster, producer, Message("t", b"x")), ServerRejected)
    assert isinstance(recorder.only.error, ServerRejected)


def test_a_message_that_cannot_be_sent_at_all_is_told_too() -> None:
    recorder = Recorder()
    _, producer = prepared(recorder)
    with pytest.raises(InvalidMessage) as raised:
        producer.send(Message("t", b""), lambda _: None)
    assert recorder.only.error is raised.value


def test_a_send_that_is_withdrawn_is_told_once() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    cluster.refused.add("a:10911")
    heard = Results()
    sending = producer.send(Message("t", b"x"), heard.append)
    cluster.advance(500)
    assert recorder.sent == []
    sending.withdraw()
    cluster.advance(60_000, 100)
    assert isinstance(recorder.only.error, SendFailed)
    assert heard.only is recorder.only.error


def test_a_batch_that_is_cancelled_is_told() -> None:
    recorder = Recorder()
    cluster, producer = prepared(recorder)
    cluster.silent.add("a:10911")
    task = producer.client.tasks.start(producer.send_batch([Message("t", b"1"), Message("t", b"2")]), lambda _: None)
    cluster.advance(500)
    task.cancel()
    assert [type(event.error) for event in recorder.sent] == [GeneratorExit] * 2


# -- in which order, and what a hook may do


def test_before_hooks_go_in_the_given_order_and_after_hooks_in_the_reverse_order() -> None:
    heard: list[str] = []
    cluster, producer = prepared(Recorder("1", heard), Recorder("2", heard))
    sent(cluster, producer, Message("t", b"x"))
    assert heard == ["before 1", "before 2", "after 2", "after 1"]


def test_what_a_hook_puts_into_data_is_there_afterwards_and_each_send_has_its_own() -> None:
    class Numbers(Middleware):
        count = 0
        seen: list[int]

        def before_send(self, event: SendEvent) -> None:
            self.count += 1
            assert not event.data
            event.data["number"] = self.count

        def after_send(self, event: SendEvent) -> None:
            self.seen.append(event.data["number"])

    numbers = Numbers()
    numbers.seen = []
    cluster, producer = prepared(numbers)
    for _ in range(3):
        sent(cluster, producer, Message("t", b"x"))
    assert numbers.seen == [1, 2, 3]


class Fails(Middleware):
    def before_send(self, event: SendEvent) -> None:
        raise ValueError("before")

    def after_send(self, event: SendEvent) -> None:
        raise ValueError("after")

    def before_call(self, event: CallEvent) -> None:
        raise ValueError("before a call")

    def after_call(self, event: CallEvent) -> None:
        raise ValueError("after a call")


def test_a_hook_that_raises_fails_no_message_and_the_others_are_called(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    cluster, producer = prepared(Fails(), recorder)
    with caplog.at_level(logging.ERROR):
        assert isinstance(sent(cluster, producer, Message("t", b"x")), SendReceipt)
    assert recorder.only.receipt is not None
    said = [record.getMessage() for record in caplog.records]
    for name in ("before_send", "after_send", "before_call", "after_call"):
        [line] = [line for line in said if f"Fails.{name}" in line]
        assert "ValueError" in line
        assert "messages go on without it" in line
    assert all(record.exc_info for record in caplog.records)


def test_a_hook_that_goes_on_failing_is_logged_once_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Middleware):
        def after_send(self, event: SendEvent) -> None:
            raise ValueError("no")

    cluster, producer = prepared(Fails())

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records]

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            sent(cluster, producer, Message("t", b"x"))
        assert len(lines()) == 1
        cluster.advance(59_000, 1_000)
        sent(cluster, producer, Message("t", b"x"))
        assert len(lines()) == 1
        cluster.advance(1_000, 1_000)
        sent(cluster, producer, Message("t", b"x"))
    assert len(lines()) == 2
    assert "6 times since the last such line, 7 in all" in lines()[1]


def replace_body(event: SendEvent) -> None:
    event.message.body = b"other"


def replace_topic(event: SendEvent) -> None:
    event.message.topic = "elsewhere"


def replace_message(event: SendEvent) -> None:
    event.message = Message("elsewhere", b"other")


def change_id(event: SendEvent) -> None:
    event.message.properties["UNIQ_KEY"] = "mine"


def add_number(event: SendEvent) -> None:
    event.message.properties["number"] = 7  # type: ignore[assignment] # the mistake


def add_separator(event: SendEvent) -> None:
    event.message.properties["bad"] = "a\x01b"


def add_too_much(event: SendEvent) -> None:
    event.message.properties["large"] = "x" * 40_000


@pytest.mark.parametrize("mistake", [replace_body, replace_topic, replace_message, change_id, add_number, add_separator, add_too_much])
def test_a_hook_that_spoils_a_message_is_undone_and_the_message_goes_as_it_was(
    mistake: Callable[[SendEvent], None], caplog: pytest.LogCaptureFixture
) -> None:
    class Spoils(Middleware):
        def before_send(self, event: SendEvent) -> None:
            mistake(event)

    cluster, producer = prepared(Recorder("1"), Spoils(), Recorder("2"))
    receipt = sent(cluster, producer, Message("t", b"x", keys=["k"]))
    assert isinstance(receipt, SendReceipt)
    [record] = cluster.log[receipt.queue]
    id = receipt.message_id
    assert (record.topic, record.body) == ("t", b"x")
    assert decode_properties(record.properties) == {"KEYS": "k", "UNIQ_KEY": id, "trace-1": id, "trace-2": id}
    if mistake is not replace_message:  # which has no effect
        assert "Spoils.before_send" in caplog.text


def test_names_are_those_of_the_user_inside_a_namespace() -> None:
    recorder = Recorder()
    cluster = FakeCluster("a")
    cluster.create_topic("blue%t", 1)
    producer = hooked(cluster.client(), recorder, namespace="blue")
    receipt = sent(cluster, producer, Message("t", b"x"))
    event = recorder.only
    assert isinstance(receipt, SendReceipt)
    assert (event.group, event.topic, event.message.topic, event.queue) == ("g", "t", "t", receipt.queue)
    assert event.queue is not None
    assert event.queue.topic == "t"
    assert "trace-r" in properties_of(cluster)[0]


# -- what is not used costs nothing


def test_without_middleware_for_sends_they_stay_columns_and_the_caller_is_the_real_one() -> None:
    class Consumes(Middleware):
        def before_consume(self, event: object) -> None: ...

    cluster, producer = prepared(Consumes(), linger_ms=5)
    sent(cluster, producer, Message("t", b"x"))
    sent(cluster, producer, Message("t", b"y"))
    assert producer.send_hooks is None
    assert "t" in producer.plain
    assert producer.client.caller is cluster
    _, told = prepared(Recorder(), linger_ms=5)
    assert told.send_hooks is not None
    assert not told.plain


# -- transactions


def bank(cluster: FakeCluster, recorder: Recorder, state: TransactionState, reason: str = "") -> tuple[TransactionCore, list[Decided]]:
    client = cluster.client()
    hooks = Hooks([recorder], "bank")
    hooks.join(client)
    checks: list[Decided] = []
    core = TransactionCore(client, "bank", lambda _, decided: checks.append(decided), hooks=hooks)
    core.start()

    def execute(message: Message, receipt: SendReceipt, decided: Decided) -> None:
        decided(state, reason)

    done(cluster, core, core.send_in_transaction(Message("t", b"x"), execute))
    return core, checks


@pytest.mark.parametrize("state", TransactionState)
def test_the_end_of_a_transaction_is_told_and_its_half_message_is_a_send(state: TransactionState) -> None:
    cluster, _ = prepared()
    recorder = Recorder()
    bank(cluster, recorder, state, "" if state else "it raised")
    assert recorder.only.kind == "half"
    [event] = recorder.ended
    assert (event.group, event.client_id, event.topic, event.state, event.from_check) == ("bank", "c1", "t", state, False)
    assert event.message_id == event.transaction_id == event.message.transaction_id == recorder.only.message_id
    assert (event.broker_address, event.error, event.reason) == ("a:10911", None, "" if state else "it raised")


def test_the_end_after_a_check_is_told() -> None:
    cluster, _ = prepared()
    recorder = Recorder()
    core, checks = bank(cluster, recorder, TransactionState.UNKNOWN)
    [half] = cluster.half
    asked = CheckTransactionHeader(half.queue_offset, half.physical_offset, "OFFSETID", "TX", "OFFSETID")
    half.topic = "t"
    core.client.receive("a:10911", Command(39, encode(asked), half.encode()), lambda _: None)
    checks[0](TransactionState.COMMIT, "")
    event = recorder.ended[1]
    assert (event.from_check, event.state, event.broker_address) == (True, TransactionState.COMMIT, "a:10911")
    assert isinstance(event.message, ReceivedMessage)
    assert event.message_id == recorder.only.message_id


# -- calls


class Calls(Middleware):
    def __init__(self) -> None:
        self.begun: list[CallEvent] = []
        self.ended: list[CallEvent] = []

    def before_call(self, event: CallEvent) -> None:
        self.begun.append(event)

    def after_call(self, event: CallEvent) -> None:
        self.ended.append(event)


def test_each_call_is_told_with_its_answer_or_its_error() -> None:
    calls = Calls()
    cluster, producer = prepared(calls, retries=0)
    sent(cluster, producer, Message("t", b"x"))
    done(cluster, producer, producer.send_oneway(Message("t", b"x")))
    names = [(event.name, event.address, event.answer_code, event.oneway) for event in calls.ended]
    assert ("GET_ROUTEINFO_BY_TOPIC", "ns:9876", 0, False) in names
    assert ("HEART_BEAT", "a:10911", 0, False) in names
    assert ("SEND_MESSAGE_V2", "a:10911", 0, False) in names
    assert ("SEND_MESSAGE_V2", "a:10911", None, True) in names
    assert {id(event) for event in calls.ended} <= {id(event) for event in calls.begun}
    cluster.silent.add("a:10911")
    failure = sent(cluster, producer, Message("t", b"x"), timeout_ms=700)
    assert isinstance(failure, SendFailed)
    [late] = [event for event in calls.ended if event.error is not None]
    assert (late.name, late.answer_code) == ("SEND_MESSAGE_V2", None)
    assert late.duration_ms >= 700


def test_middleware_that_several_members_of_a_client_have_hears_of_a_call_once_until_the_last_is_gone() -> None:
    calls, other = Calls(), Calls()
    cluster = FakeCluster("a")
    cluster.create_topic("t", 1)
    client = cluster.client()
    first, second, third = Hooks([calls], "1"), Hooks([calls, other], "2"), Hooks([calls], "3")
    for hooks in (first, second, third):
        hooks.join(client)
    done_with = Results()
    client.tasks.start(client.routes.fetch("t"), done_with.append)
    cluster.run()
    assert [len(calls.ended), len(other.ended)] == [1, 1]
    second.leave()
    client.tasks.start(client.routes.fetch("t"), done_with.append)
    cluster.run()
    assert [len(calls.ended), len(other.ended)] == [2, 1]
    first.leave()
    first.leave()
    assert client.caller is not cluster
    third.leave()
    assert client.caller is cluster
    assert client.routes.caller is cluster
    client.tasks.start(client.routes.fetch("t"), done_with.append)
    cluster.run()
    assert len(calls.ended) == 2


def test_what_is_no_middleware_is_said_in_words() -> None:
    class Async(Middleware):
        async def before_send(self, event: SendEvent) -> None: ...  # type: ignore[override] # the mistake

    for given, words in (
        ([Recorder], "holds the class Recorder; expected is an object of it"),
        (["x"], "expected are objects of classes that are derived from roquet.Middleware"),
        (Recorder(), "expected is a list"),
        ([Async()], "Async.before_send is async; expected is a plain function"),
    ):
        with pytest.raises(ClientError, match=words):
            Producer("g", middleware=given)  # type: ignore[arg-type] # the mistake
