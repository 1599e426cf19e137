"""Subscribing by SQL: mistakes are told at once, brokers are asked at the start, and the rest is theirs to judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import roquet
from roquet.client import BadExpression, BadSql
from roquet.client.core.push_consumer import FROM_FIRST, PushConsumerCore, PushConsumerSettings
from roquet.errors import ClientError, Rejected
from roquet.message import Message, ReceivedMessage
from roquet.wire.calls.members import CheckClientBody
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster

CHECK = int(RequestCode.CHECK_CLIENT_CONFIG)


class Consumer:
    def __init__(self, *brokers: str) -> None:
        self.cluster = FakeCluster(*(brokers or ("b1",)))
        self.cluster.create_topic("t", 1)
        self.answers: dict[str, tuple[int, str]] = {}
        self.cluster.overrides[CHECK] = self.answer
        self.core = PushConsumerCore(
            self.cluster.client(), "g", lambda messages, judge: None, PushConsumerSettings(consume_from=FROM_FIRST)
        )

    def answer(self, address: str, command: Command) -> Command:
        code, remark = self.answers.get(address, (0, ""))
        return command.reply(code, remark)

    def start(self) -> None:
        self.core.start()
        self.cluster.run()

    def asked(self, code: int = CHECK) -> list[tuple[str, Command]]:
        return [(address, command) for address, command in self.cluster.asked if command.code == code]


def test_every_broker_of_the_topic_is_asked_before_the_first_pull() -> None:
    consumer = Consumer("b1", "b2")
    consumer.core.subscribe("t", sql="a > 1")
    consumer.start()
    assert [address for address, _ in consumer.asked()] == ["b1:10911", "b2:10911"]
    body = CheckClientBody.decode(consumer.asked()[0][1].body)
    assert (body.group, body.subscription_data.expression_type, body.subscription_data.sub_string) == ("g", "SQL92", "a > 1")
    codes = [command.code for _, command in consumer.cluster.asked]
    assert codes.index(CHECK) < codes.index(RequestCode.PULL_MESSAGE)
    assert consumer.core.settled.over
    assert consumer.core.refusal is None
    (_, heartbeat), *_ = consumer.cluster.heartbeats
    kinds = {one.topic: one.expression_type for one in heartbeat.consumer_data_set[0].subscription_data_set}
    assert kinds == {"t": "SQL92", "%RETRY%g": "TAG"}


def test_nobody_is_asked_about_tags() -> None:
    consumer = Consumer()
    consumer.core.subscribe("t", "a || b")
    consumer.start()
    assert consumer.asked() == []
    assert consumer.core.settled.over


def test_one_broker_that_refuses_is_enough_and_nothing_is_pulled() -> None:
    consumer = Consumer("b1", "b2")
    consumer.answers["b2:10911"] = (int(ResponseCode.SYSTEM_ERROR), "The broker does not support consumer to filter message by SQL92")
    consumer.core.subscribe("t", sql="a > 1")
    consumer.start()
    refusal = consumer.core.refusal
    assert isinstance(refusal, Rejected)
    assert (refusal.code, refusal.address) == (1, "b2:10911")
    assert consumer.core.settled.over
    consumer.cluster.advance(5_000)
    assert consumer.asked(int(RequestCode.PULL_MESSAGE)) == []


def test_a_topic_that_nobody_has_yet_and_a_broker_that_is_away_keep_nobody_from_starting() -> None:
    consumer = Consumer()
    consumer.cluster.refused.add("b1:10911")
    consumer.core.subscribe("t", sql="a > 1")
    consumer.core.subscribe("later", sql="a > 1")
    consumer.start()
    assert consumer.core.refusal is None


def test_a_mistake_is_raised_at_once_with_its_place() -> None:
    consumer = Consumer()
    with pytest.raises(BadSql) as caught:
        consumer.core.subscribe("t", sql="a > 1 AN b = 2")
    assert caught.value.position == 6
    assert isinstance(caught.value, BadExpression)
    with pytest.raises(ClientError, match="filter by one"):
        consumer.core.subscribe("t", "tag", sql="a > 1")
    assert consumer.core.subscriptions == {}


def test_a_real_broker_delivers_what_matches_and_one_without_filters_refuses_the_start() -> None:
    async def scenario(settings: dict[str, str]) -> list[bytes]:
        async with roquet.embedded(settings=settings) as mq, asyncio.timeout(600):
            got: list[bytes] = []
            last = asyncio.Event()

            async def take(message: ReceivedMessage) -> None:
                got.append(message.body)
                if message.body == b"19":
                    last.set()

            consumer = mq.consumer(consume_from="first")
            with pytest.raises(BadSql):
                consumer.subscribe("t", function=take, sql="size >")
            consumer.on("t", sql="size >= 15 AND colour NOT IN ('blue')")(take)
            async with mq.producer() as producer:
                await producer.create_topic("t", 1)
                for size in range(20):
                    properties: dict[str, Any] = {"size": str(size), "colour": "blue" if size % 2 == 0 else "red"}
                    await producer.send(Message("t", b"%d" % size, properties=properties))
                async with consumer:
                    await last.wait()
            return got

    assert asyncio.run(scenario({"enablePropertyFilter": "true"})) == [b"15", b"17", b"19"]
    with pytest.raises(Rejected, match="does not support consumer to filter message by SQL92"):
        asyncio.run(scenario({}))
