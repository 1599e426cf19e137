"""What a file of bindings says happens, at a real broker: retries, dead letters, broadcasting, order, filters, transactions."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roquet import Message, ReceivedMessage, SendReceipt, TransactionReceipt, TransactionState
from roquet.app import App, Attempt, Reject, Unsendable
from roquet.app.bindings import output as output_module
from roquet.embed import Embedded
from roquet.errors import ClientError, NotStarted
from tests.app import seed_bindings as seeds
from tests.app.broker import against_a_broker, dead_letters, sent, stored, until


def bound(mq: Embedded, tmp_path: Path, *texts: str, **options: Any) -> App:
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"application-{number}.yml")
        paths[-1].write_text(text)
    consumer = {"consume_from": "first", "offsets_directory": tmp_path, **options.pop("consumer", {})}
    return App.from_file(*paths, namesrv=mq.namesrv, consumer=consumer, environ={}, **options)


@dataclass
class Order:
    id: int
    name: str = ""


def test_the_plain_block_of_the_seeds_runs_with_python_handlers(tmp_path: Path) -> None:
    seen: list[Order] = []

    async def scenario(mq: Embedded) -> None:
        # The seed shows no destination of the output: a second file gives it.
        app = bound(mq, tmp_path, seeds.PLAIN, "bindings: {one-to-one-output: {destination: one-to-one}}\n")

        @app.bind("one-to-one-input")
        async def receive(order: Order) -> None:
            seen.append(order)

        async with sent(mq, "one-to-one"), app:
            receipt = await app.output("one-to-one-output").send(Order(17, "Ada"))
            assert receipt is not None
            await until(lambda: seen)
            [message] = await stored(mq, "one-to-one", 1)
            assert message.properties["contentType"] == "application/json"
            assert [consumer.group for consumer in app.consumers] == ["one-to-one-cus-group"]
            assert app.bindings.producer_of(app.output("one-to-one-output")).group == "test"  # type: ignore[union-attr]
        with pytest.raises(NotStarted, match="the app does not run, so one-to-one-output sends nothing"):
            await app.output("one-to-one-output").send(Order(1))

    against_a_broker(scenario)
    assert seen == [Order(17, "Ada")]


RETRIES = """
stream:
  default: {{consumer: {{back-off-initial-interval: 1}}}}
  bindings: {{{name}: {{destination: t, group: {name}, consumer: {{max-attempts: {attempts}}}}}}}
  rocketmq:
    bindings: {{{name}: {{consumer: {{delayLevelWhenNextConsume: {level}, push: {{max-reconsume-times: {times}}}}}}}}}
"""
ROWS = {
    "one call for each delivery": (1, 0, 2, [1, 2, 3]),
    "three calls for each delivery": (3, 0, 1, [1, 1, 1, 2, 2, 2]),
    "a dead letter at once": (1, -1, 16, [1]),
    "a dead letter after the calls": (2, -1, 16, [1, 1]),
    "a delay level of its own": (1, 2, 1, [1, 2]),
}
"""max-attempts, delayLevelWhenNextConsume, max-reconsume-times -> the attempt of each call."""


def test_calls_come_first_then_deliveries_then_dead_letters(tmp_path: Path) -> None:
    seen: dict[str, list[int]] = {}
    rows = {f"{row.replace(' ', '-')}-{kind}": values for row, values in ROWS.items() for kind in ("async", "plain")}

    async def scenario(mq: Embedded) -> None:
        texts = [RETRIES.format(name=name, attempts=row[0], level=row[1], times=row[2]) for name, row in rows.items()]
        app = bound(mq, tmp_path, *texts)
        for name in rows:
            app.bind(name)(failing(name))
        async with sent(mq, "t", Message("t", b"{}")), app:
            for name in rows:
                [dead] = await dead_letters(mq, name, 1)
                assert dead.failure == "LookupError: not now"

    def failing(name: str) -> Callable[..., Any]:
        def fails(message: ReceivedMessage, attempt: Attempt) -> None:
            seen.setdefault(name, []).append(attempt)
            raise LookupError("not now")

        async def fails_async(message: ReceivedMessage, attempt: Attempt) -> None:
            fails(message, attempt)

        return fails_async if name.endswith("async") else fails

    against_a_broker(scenario)
    assert seen == {name: row[3] for name, row in rows.items()}


def test_what_no_retry_helps_is_called_once(tmp_path: Path) -> None:
    seen: list[str] = []

    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, RETRIES.format(name="g", attempts=5, level=0, times=16))

        @app.bind("g")
        async def rejects(order: Order) -> None:
            seen.append(order.name)
            raise Reject("nobody wants it")

        async with sent(mq, "t", Message("t", b'{"id": 1, "name": "a"}'), Message("t", b"no JSON")), app:
            first, second = await dead_letters(mq, "g", 2)
            assert {first.failure, second.failure} >= {"rejected by rejects: nobody wants it"}

    against_a_broker(scenario)
    assert seen == ["a"]


def test_the_broadcast_block_of_the_seeds_reaches_every_app(tmp_path: Path) -> None:
    seen: list[str] = []

    async def scenario(mq: Embedded) -> None:
        apps = []
        for number in range(2):
            directory = tmp_path / str(number)
            directory.mkdir()
            app = bound(mq, directory, seeds.BROADCAST, "bindings: {one-to-many-input: {group: chat}}\n", instance_name=f"chat-{number}")

            @app.bind("one-to-many-input")
            async def receive(text: str, number: int = number) -> None:
                seen.append(f"{number}: {text}")

            apps.append(app)
        async with sent(mq, "one-to-many-input", Message("one-to-many-input", b"hello")), apps[0], apps[1]:
            await until(lambda: len(seen) == 2)

    against_a_broker(scenario)
    assert sorted(seen) == ["0: hello", "1: hello"]


ORDERED_INPUT = """
stream: {bindings: {one-to-one-order-input: {destination: one-to-one-order, group: orders, consumer: {concurrency: 8}}}}
rocketmq: {bindings: {one-to-one-order-input: {consumer: {orderly: true, suspendCurrentQueueTimeMillis: 10}}}}
"""


def test_the_ordered_block_of_the_seeds_keeps_each_key_in_order(tmp_path: Path) -> None:
    seen: dict[int, list[int]] = {}
    failed: set[int] = set()

    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, seeds.ORDERED, ORDERED_INPUT + "\n")

        @app.bind("one-to-one-order-input")
        async def receive(step: dict[str, int], message: ReceivedMessage) -> None:
            if step["step"] == 3 and step["order"] not in failed:
                failed.add(step["order"])
                raise LookupError("a failure must not let others overtake")
            seen.setdefault(step["order"], []).append(step["step"])

        async with sent(mq, "one-to-one-order", queues=4), app:
            output = app.output("one-to-one-order-output")
            for step in range(10):
                for order in range(5):
                    assert await output.send({"order": order, "step": step}, headers={"orderId": order}) is None
            await until(lambda: sum(map(len, seen.values())) == 50)
            queues: dict[str, set[int]] = {}
            for message in await stored(mq, "one-to-one-order", 50):
                queues.setdefault(message.properties["orderId"], set()).add(message.queue_id)
            assert {order: list(ids) for order, ids in queues.items()} == {str(order): [order % 4] for order in range(5)}, "as Java's hash"
            with pytest.raises(Unsendable, match=r"cannot choose a queue: headers\['orderId'\] is null"):
                await output.send({"order": 1})

    against_a_broker(scenario)
    assert seen == {order: list(range(10)) for order in range(5)}
    assert failed == set(range(5))


KEYS = """
bindings:
  by-field: {destination: t, producer: {partition-key-expression: payload.customer.id}}
  by-function: {destination: t, producer: {partitionKeyExtractorName: keyOf}}
rocketmq: {bindings: {by-choice: {producer: {messageQueueSelector: lastQueue}}}}
"""


def test_a_key_comes_from_the_payload_or_a_function_or_a_function_chooses_the_queue(tmp_path: Path) -> None:
    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, KEYS, "bindings: {by-choice: {destination: t}}\n")
        app.bean("keyOf", lambda message: message.keys[0])

        @dataclass
        class Customer:
            id: int

        @dataclass
        class Bought:
            customer: Customer

        async with sent(mq, "t", queues=4), app:
            await app.output("by-field").send(Bought(Customer(2)))
            await app.output("by-field").publish({"customer": {"id": 2}})
            await app.output("by-function").send("x", key="1")
            with pytest.raises(ClientError, match="no bean has this name"):
                await app.output("by-choice").send("x")
            app.bean("lastQueue", lambda queues, message, key: queues[-1])
            await app.output("by-choice").send("x")
            found = [(message.queue_id, message.body) for message in await stored(mq, "t", 4)]
            assert found == [(2, b'{"customer":{"id":2}}'), (2, b'{"customer":{"id":2}}'), (ord("1") % 4, b"x"), (3, b"x")]
            with pytest.raises(Unsendable, match="a dict has no field 'customer'"):
                await app.output("by-field").send({})

    against_a_broker(scenario)


FILTERS = """
bindings:
  a-or-b: {destination: t, group: tags}
  above: {destination: t, group: sql}
  chosen: {destination: t, group: chosen}
  out: {destination: t}
rocketmq:
  bindings:
    a-or-b: {consumer: {subscription: yuan || a}}
    above: {consumer: {subscription: 'sql:(n > 5)'}}
"""


def test_tags_sql_and_conditions_choose_messages(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {"tags": [], "sql": [], "tag": [], "other": []}

    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, FILTERS)

        def takes(name: str) -> Callable[[Any], Any]:
            async def take(text: str) -> None:
                seen[name].append(text)

            return take

        app.bind("a-or-b")(takes("tags"))
        app.bind("above")(takes("sql"))
        app.bind("chosen", condition="headers['key'] == 'tag'")(takes("tag"))
        app.bind("chosen", condition="headers['key'] != 'tag' and headers['ROCKET_TAGS'] == 'a'")(takes("other"))
        async with sent(mq, "t"), app:
            out = app.output("out")
            await out.send("1", headers={"TAGS": "a", "n": 7, "key": "tag"})
            await out.send("2", headers={"TAGS": "b", "n": 2, "key": "tag"})
            await out.send("3", headers={"rocketmq_TAGS": "yuan", "KEYS": "k1 k2", "flag": True})
            await out.send("4", tags="a", headers={"n": 9})
            await until(lambda: [len(texts) for texts in seen.values()] == [3, 2, 2, 1])
            third = (await stored(mq, "t", 4))[2]
            assert (third.tags, third.keys, third.properties["flag"]) == ("yuan", ["k1", "k2"], "true")

    settings = {"enablePropertyFilter": "true"}
    against_a_broker_with(settings, scenario)
    assert seen == {"tags": ["1", "3", "4"], "sql": ["1", "4"], "tag": ["1", "2"], "other": ["4"]}


def against_a_broker_with(settings: dict[str, str], test: Callable[[Embedded], Any]) -> None:
    import roquet

    async def scenario() -> None:
        async with asyncio.timeout(600), roquet.embedded(fast_retries=True, settings=settings) as mq:
            await test(mq)

    asyncio.run(scenario())


class Listener:
    """The table of the seed is a dictionary here."""

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}
        self.checked: list[str] = []
        self.arguments: list[Any] = []

    def execute(self, message: Message, argument: Any) -> TransactionState:
        self.arguments.append(argument)
        name = message.properties["TRANSACTION_ID"]
        if name == "bad":
            return TransactionState.ROLLBACK
        self.saved[name] = message.properties["args"]
        return TransactionState.UNKNOWN if name == "slow" else TransactionState.COMMIT

    async def check(self, message: ReceivedMessage) -> TransactionState:
        name = message.properties["TRANSACTION_ID"]
        self.checked.append(name)
        return TransactionState.COMMIT if name in self.saved else TransactionState.ROLLBACK


def test_the_transaction_blocks_of_the_seeds_show_what_committed(tmp_path: Path) -> None:
    seen: list[str] = []
    listener = Listener()

    async def scenario(mq: Embedded) -> None:
        app = bound(
            mq, tmp_path, seeds.TRANSACTIONS, seeds.TRANSACTION_CONSUMER, beans={"oneToOneTransListener": listener}
        )  # fmt: skip

        @app.bind("one-to-one-trans-input")
        async def receive(row: dict[str, str]) -> None:
            seen.append(row["test4"])

        async with sent(mq, "one-to-one-trans"), app:
            output = app.output("one-to-one-trans-output")
            states = []
            for name in ("good", "bad", "slow"):
                receipt = await output.send({"test4": name}, headers={"TRANSACTION_ID": name, "args": "{}"}, argument=name)
                assert isinstance(receipt, TransactionReceipt)
                states.append(receipt.state)
            assert states == [TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN]
            await until(lambda: len(seen) == 2)

    settings = {"transactionCheckInterval": "100", "transactionTimeOut": "10"}
    against_a_broker_with(settings, scenario)
    assert seen == ["good", "slow"]
    assert (listener.checked, listener.arguments) == (["slow"], ["good", "bad", "slow"])


FUNCTIONS = """
spring:
  cloud:
    function: {definition: upperCase}
    stream:
      bindings:
        upperCase-in-0: {destination: "words,names", group: g, consumer: {batch-mode: true, concurrency: 2}}
        upperCase-out-0: {destination: LARGE, content-type: text/plain}
      rocketmq: {bindings: {upperCase-in-0: {consumer: {push: {consume-message-batch-max-size: 16}}}}}
"""


def test_a_function_takes_lists_of_two_topics_and_its_result_goes_out(tmp_path: Path) -> None:
    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, FUNCTIONS)

        @app.bind
        async def upper_case(words: list[str]) -> str:
            return " ".join(word.upper() for word in words)

        async with sent(mq, "words", Message("words", b"a")), sent(mq, "names", Message("names", b"b")), sent(mq, "LARGE"), app:
            found = await stored(mq, "LARGE", 2)
            assert {message.body for message in found} == {b"A", b"B"}
            assert {message.properties["contentType"] for message in found} == {"text/plain"}

    against_a_broker(scenario)


OUTPUTS = """
bindings:
  text: {destination: t, content-type: text/plain}
  raw: {destination: t, content-type: application/octet-stream}
rocketmq:
  bindings:
    async: {producer: {sync: false}}
    oneway: {producer: {sendType: OneWay, group: p, sendMsgTimeout: 1000}}
    big: {producer: {sync: false, group: p}}
    off: {producer: {enabled: false}}
"""


def test_outputs_send_as_the_file_says(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "UNDER_WAY_MAX", 2)
    noise = random.Random(1).randbytes(20_000)

    async def scenario(mq: Embedded) -> None:
        more = "bindings: {async: {destination: t}, oneway: {destination: t}, big: {destination: t}}\n"
        app = bound(mq, tmp_path, OUTPUTS, more)
        async with sent(mq, "t"), app.publishing():
            for name, value in (("text", {"a": 1}), ("raw", "text")):
                with pytest.raises(Unsendable, match=f"binding {name} sends"):
                    await app.output(name).send(value)
            with pytest.raises(ClientError, match="binding off is disabled"):
                await app.output("off").send("x")
            await app.output("raw").send(b"raw")
            await app.output("oneway").send("oneway")
            await app.output("big").send(noise)
            output = app.output("async")
            for number in range(20):
                assert await output.send(f"{number}") is None
                assert output._under_way <= 2
        bodies = [message.body for message in await stored(mq, "t", 22)]
        assert {b"raw", b"oneway", *(b"%d" % number for number in range(20))} == set(bodies)

    with caplog.at_level(logging.ERROR):
        against_a_broker_with({"maxMessageSize": "10000"}, scenario)
    assert "was not sent, and nobody waits for it" in caplog.text


def test_closing_waits_for_what_was_sent_async(tmp_path: Path) -> None:
    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, OUTPUTS, "bindings: {async: {destination: t}}\n", producer={"linger_ms": None})
        async with sent(mq, "t"), app.publishing():
            for number in range(30):
                await app.output("async").send(f"{number}")
            assert app.output("async")._under_way == 30
        assert app.output("async")._under_way == 0
        assert len(await stored(mq, "t", 30)) == 30

    against_a_broker(scenario)


def test_a_file_that_asks_for_traces_gets_them_in_the_topic_that_it_names(tmp_path: Path) -> None:
    text = "rocketmq: {binder: {enable-msg-trace: true, customized-trace-topic: my_traces}}\nbindings: {out: {destination: t}}\n"

    async def scenario(mq: Embedded) -> None:
        app = bound(mq, tmp_path, text)
        async with sent(mq, "t"), sent(mq, "my_traces"), app.publishing():
            receipt = await app.output("out").send({"a": 1})
            assert isinstance(receipt, SendReceipt)
            [trace] = await stored(mq, "my_traces", 1)
            assert receipt.message_id in trace.keys

    against_a_broker(scenario)
