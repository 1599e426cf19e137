"""For how long nobody asks about a transaction: said with the message, or by the producer. Against a real broker."""

from __future__ import annotations

import asyncio
import time

import pytest

import roquet
from roquet import InvalidMessage, Message, ReceivedMessage, TransactionProducer, TransactionState
from roquet.client import sync
from tests.client.programs import PATIENCE_S

EAGER = {"transactionTimeOut": "0", "transactionCheckInterval": "100"}
"""It asks about everything, ten times a second."""


async def unknown(message: Message, argument: object) -> TransactionState:
    return TransactionState.UNKNOWN


class Asked:
    """The bodies that a broker asked about, and how old each message was at the first time, s."""

    def __init__(self) -> None:
        self.ages: dict[bytes, float] = {}
        self.counts: dict[bytes, int] = {}

    async def check(self, message: ReceivedMessage) -> TransactionState:
        self.ages.setdefault(message.body, time.time() - message.born_timestamp / 1000)
        self.counts[message.body] = self.counts.get(message.body, 0) + 1
        return TransactionState.UNKNOWN

    async def until(self, body: bytes, count: int) -> None:
        while self.counts.get(body, 0) < count:
            await asyncio.sleep(0.01)


def test_a_broker_does_not_ask_about_a_message_before_its_time() -> None:
    async def scenario() -> None:
        asked = Asked()
        async with (
            asyncio.timeout(PATIENCE_S),
            roquet.embedded(settings=EAGER) as mq,
            TransactionProducer("tx", mq.namesrv, execute=unknown, check=asked.check, check_immunity_s=1) as producer,
        ):
            await producer.send_in_transaction(Message("t", b"usual"))
            await producer.send_in_transaction(Message("t", b"patient"), check_immunity_s=1_000)
            own = Message("t", b"own", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1000"})
            await producer.send_in_transaction(own)
            await producer.send_in_transaction(Message("t", b"hasty"), check_immunity_s=0)
            await asked.until(b"hasty", 2)
            await asked.until(b"usual", 3)
        assert asked.ages[b"usual"] >= 1
        assert asked.counts.keys() == {b"hasty", b"usual"}

    asyncio.run(scenario())


def test_the_blocking_face_takes_it_too() -> None:
    async def scenario() -> None:
        asked = Asked()

        def program(namesrv: str) -> None:
            producer = sync.TransactionProducer("tx", namesrv, execute=unknown, check=asked.check, check_immunity_s=1_000)
            with producer:
                producer.send_in_transaction(Message("t", b"patient"))
                producer.send_in_transaction(Message("t", b"hasty"), check_immunity_s=0)
                while asked.counts.get(b"hasty", 0) < 2:
                    time.sleep(0.01)

        async with asyncio.timeout(PATIENCE_S), roquet.embedded(settings=EAGER) as mq:
            await asyncio.to_thread(program, mq.namesrv)
        assert asked.counts.keys() == {b"hasty"}

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [-1, 7 * 86_400 + 1, "60", 1.5, True])
def test_what_is_no_number_of_seconds_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidMessage, match=r"check_immunity_s=.*; allowed are whole seconds, 0 to 604800"):
        TransactionProducer("tx", execute=unknown, check=Asked().check, check_immunity_s=wrong)  # type: ignore[arg-type]
