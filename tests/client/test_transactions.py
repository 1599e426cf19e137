"""Transactional messages: hidden until decided, and what happens when a broker asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from roquet.client.core.instance import ClientCore
from roquet.client.core.namespaces import Namespace
from roquet.client.core.producer import ProducerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.transactions import CHECKS_HELD_MAX, Decided, TransactionCore, TransactionReceipt, TransactionState
from roquet.errors import InvalidMessage, RoquetError
from roquet.message import Message, ReceivedMessage
from roquet.wire.calls.transactions import CheckTransactionHeader
from roquet.wire.codes import ResponseCode, SysFlag
from roquet.wire.command import Command
from roquet.wire.headers import encode
from roquet.wire.record import Record, decode_properties
from tests.client.fakes import FakeCluster, Results

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Bank:
    """A producer whose transactions end as `state` says; checks are held until the test decides."""

    def __init__(self, cluster: FakeCluster, state: TransactionState = COMMIT, error: str = "", **changes: object) -> None:
        self.cluster = cluster
        self.state = state
        self.error = error
        self.executed: list[Message] = []
        self.checks: list[tuple[ReceivedMessage, Decided]] = []
        client: ClientCore = cluster.client()
        self.core = TransactionCore(
            client, "bank", lambda message, decided: self.checks.append((message, decided)),
            ProducerSettings(**changes), checks_at_once=2,  # type: ignore[arg-type] # the tests pass what it takes
        )  # fmt: skip
        self.core.start()

    def execute(self, message: Message, receipt: SendReceipt, decided: Decided) -> None:
        assert not any(self.cluster.log.values())
        self.executed.append(message)
        decided(self.state, self.error)

    def send(self, message: Message) -> object:
        results = Results()
        self.core.client.tasks.start(self.core.send_in_transaction(message, self.execute), results.append)
        self.cluster.advance_until(lambda: bool(results))
        self.cluster.run()
        return results.only


def with_topic() -> FakeCluster:
    cluster = FakeCluster("a")
    cluster.create_topic("t", 2)
    return cluster


def check(half: Record, **changes: str) -> Command:
    fields = encode(CheckTransactionHeader(half.queue_offset, half.physical_offset, "OFFSETID", "TX", "OFFSETID"))
    return Command(39, {**fields, **changes}, half.encode())


@pytest.mark.parametrize(("state", "number"), [(COMMIT, "8"), (ROLLBACK, "12"), (UNKNOWN, "0")])
def test_the_half_message_is_stored_before_execute_and_the_broker_is_told_what_that_decided(state: TransactionState, number: str) -> None:
    cluster = with_topic()
    bank = Bank(cluster, state)
    message = Message("t", b"paid", keys=["k"])
    got = bank.send(message)
    assert isinstance(got, TransactionReceipt)
    assert (got.state, got.error) == (state, "")
    assert [(one.topic, one.body, one.transaction_id) for one in bank.executed] == [("t", b"paid", got.receipt.message_id)]
    assert message.properties == {"KEYS": "k"}  # the user's message stays the user's
    [half] = cluster.half
    assert half.sys_flag & SysFlag.TRANSACTION_PREPARED
    assert decode_properties(half.properties) == {"KEYS": "k", "TRAN_MSG": "true", "PGROUP": "bank", "UNIQ_KEY": got.receipt.message_id}
    [told] = cluster.requests(37)
    assert told.is_oneway
    assert told.fields == {
        "producerGroup": "bank", "tranStateTableOffset": "0", "commitLogOffset": "7000000", "commitOrRollback": number,
        "msgId": got.receipt.message_id, "fromTransactionCheck": "false", "topic": "t", "bname": "a",
    }  # fmt: skip


def test_it_says_the_same_as_java(golden: Callable[[int], list[Command]]) -> None:
    cluster = with_topic()
    Bank(cluster).send(Message("t", b"x"))
    [ours] = cluster.requests(37)
    assert any(theirs.fields.keys() == ours.fields.keys() for theirs in golden(37))


def test_what_execute_says_went_wrong_reaches_the_broker_as_the_remark() -> None:
    cluster = with_topic()
    got = Bank(cluster, UNKNOWN, "boom " * 1_000).send(Message("t", b"x"))
    assert isinstance(got, TransactionReceipt)
    [told] = cluster.requests(37)
    assert told.remark is not None
    assert (told.remark[:5], len(told.remark)) == ("boom ", 1_000)


def test_a_half_message_that_is_not_safe_is_rolled_back_without_execute() -> None:
    cluster = with_topic()
    bank = Bank(cluster)

    def unsafe(address: str, command: Command) -> Command:
        answer = cluster._stored(address, command)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        return answer

    cluster.overrides[310] = unsafe
    got = bank.send(Message("t", b"x"))
    assert isinstance(got, TransactionReceipt)
    assert (got.state, bank.executed) == (ROLLBACK, [])
    assert cluster.requests(37)[0].fields["commitOrRollback"] == "12"


def test_a_half_message_that_is_not_stored_is_an_error_and_nothing_is_executed() -> None:
    cluster = with_topic()
    cluster.overrides[310] = lambda _, command: command.reply(ResponseCode.MESSAGE_ILLEGAL, "no")
    bank = Bank(cluster)
    assert isinstance(bank.send(Message("t", b"x")), RoquetError)
    assert (bank.executed, cluster.requests(37)) == ([], [])


@pytest.mark.parametrize("message", [Message("t", b"x", delay_level=3), Message("t", b"x", deliver_after=5)])
def test_a_delayed_message_cannot_be_transactional(message: Message) -> None:
    refusal = Bank(with_topic()).send(message)
    assert isinstance(refusal, InvalidMessage)
    assert "delayed" in str(refusal)


# -- when a broker asks


def test_a_check_is_answered_with_what_the_check_function_decides() -> None:
    cluster = with_topic()
    bank = Bank(cluster, UNKNOWN)
    bank.send(Message("t", b"paid"))
    [half] = cluster.half
    cluster.ask("c1", check(half))
    [(message, decided)] = bank.checks
    assert (message.topic, message.body) == ("t", b"paid")
    decided(COMMIT, "")
    cluster.run()
    told = cluster.requests(37)[-1]
    assert told.fields == {
        "producerGroup": "bank", "tranStateTableOffset": "0", "commitLogOffset": "7000000", "commitOrRollback": "8",
        "msgId": message.message_id, "fromTransactionCheck": "true", "transactionId": "TX", "topic": "t", "bname": "a",
    }  # fmt: skip
    assert cluster.addresses(37)[-1] == "a:10911"


def test_only_so_many_checks_run_at_once_and_the_rest_waits() -> None:
    cluster = with_topic()
    bank = Bank(cluster, UNKNOWN)
    bank.send(Message("t", b"x"))
    [half] = cluster.half
    for _ in range(5):
        cluster.ask("c1", check(half))
    assert len(bank.checks) == 2
    bank.checks[0][1](ROLLBACK, "")
    assert len(bank.checks) == 3
    for _ in range(CHECKS_HELD_MAX + 10):  # what does not fit is left: the broker asks again
        cluster.ask("c1", check(half))
    assert len(bank.core._held) == CHECKS_HELD_MAX


def test_a_check_that_makes_no_sense_or_is_for_another_group_is_passed_over() -> None:
    cluster = with_topic()
    bank = Bank(cluster, UNKNOWN)
    bank.send(Message("t", b"x"))
    [half] = cluster.half
    other = replace(half, properties=half.properties.replace(b"bank", b"shop"))
    for command in (Command(39, {}, b"no record"), check(other), check(half, tranStateTableOffset="x")):
        assert cluster.ask("c1", command) == []
    assert bank.checks == []


def test_after_closing_checks_are_passed_over() -> None:
    cluster = with_topic()
    bank = Bank(cluster, UNKNOWN)
    bank.send(Message("t", b"x"))
    [half] = cluster.half
    cluster.ask("c1", check(half))
    bank.core.client.tasks.start(bank.core.close(), lambda _: None)
    told = len(cluster.requests(37))
    bank.checks[0][1](COMMIT, "")
    cluster.ask("c1", check(half))
    cluster.run()
    assert (len(cluster.requests(37)), len(bank.checks)) == (told, 1)


def test_in_a_namespace_the_group_and_the_topic_are_wrapped_and_the_check_function_does_not_see_it() -> None:
    cluster = FakeCluster("a")
    cluster.create_topic("blue%t", 1)
    bank = Bank(cluster, UNKNOWN, namespace=Namespace("blue"))
    got = bank.send(Message("t", b"x"))
    assert isinstance(got, TransactionReceipt)
    assert got.receipt.queue.topic == "t"
    [half] = cluster.half
    assert decode_properties(half.properties)["PGROUP"] == "blue%bank"
    cluster.ask("c1", check(half))
    bank.checks[0][1](COMMIT, "")
    cluster.run()
    assert bank.checks[0][0].topic == "t"
    assert [command.fields["topic"] for command in cluster.requests(37)] == ["blue%t", "blue%t"]
