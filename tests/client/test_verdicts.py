"""What a handler may say of its messages; what is slightly wrong is said at once, and costs no place to consume at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from roquet.client.core.verdicts import Outcome, RetryLater, Suspend
from roquet.errors import ClientError
from roquet.message import ReceivedMessage
from roquet.wire.record import Record
from tests.client.members import Member, cluster_with, stored

MESSAGE = ReceivedMessage(Record("t", 0, b"x"))
wrong: Any = lambda value: value  # noqa: E731 # typed so that the mistakes may be made


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: RetryLater(why=wrong(ValueError("no"))), r"RetryLater\(why=ValueError\('no'\)\); expected is a text"),
        (lambda: RetryLater(why=wrong(None)), "expected is a text"),
        (lambda: RetryLater(messages=wrong(MESSAGE)), "expected is a list of messages"),
        (lambda: RetryLater(messages=wrong(["a payload"])), "expected is a list of messages"),
        (lambda: RetryLater(messages=wrong(message for message in [MESSAGE])), "expected is a list of messages"),
        (lambda: RetryLater(also=wrong(RetryLater())), r"expected is a list, as in also=\[RetryLater"),
        (lambda: RetryLater(wrong("3")), "delay_level='3'; allowed are"),
        (lambda: RetryLater(wrong(None)), "delay_level=None; allowed are"),
        (lambda: Suspend(wrong(timedelta(seconds=5))), "expected is a whole number of milliseconds"),
        (lambda: Suspend(wrong("5")), "expected is a whole number of milliseconds"),
    ],
)
def test_what_is_slightly_wrong_is_said_in_the_handler(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ClientError, match=says):
        make()


def test_messages_may_be_a_list_a_tuple_or_a_set() -> None:
    for messages in ([MESSAGE], (MESSAGE,), {MESSAGE}):
        assert RetryLater(2, wrong(messages), "why").failed([MESSAGE]) == [(MESSAGE, 2, "why")]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_verdict_that_cannot_be_carried_out_holds_no_place_and_its_messages_come_again(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, [queue] = cluster_with(1)
    member = Member(cluster, decide=None, orderly=orderly, concurrency=1).start()
    for number in range(2):
        cluster.append(queue, b"%d" % number)
    cluster.run()
    verdict = RetryLater()
    object.__setattr__(verdict, "messages", 5)
    member.decide = Outcome.SUCCESS
    member.held[0][1](verdict)
    cluster.advance(12_000)
    assert member.bodies == ([b"0", b"0", b"1"] if orderly else [b"0", b"1", b"0"])
    assert stored(cluster, queue) == 2
    assert "could not be done" in caplog.text
