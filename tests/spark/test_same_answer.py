"""One query, one answer: whether a topic is read from its broker, from the store's files, or from an archive of it.

Messages are random, of every kind that brokers store; what is read must be the same everywhere, and be what was sent.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import string
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet import Message, Producer
from roquet.client import TransactionProducer, TransactionState
from roquet.embed import SMALL, Embedded, embedded
from roquet.message import MessageQueue, Property
from roquet.net.blocking import BlockingCaller
from roquet.spark.archive.read import read_archive
from roquet.spark.brokers import BrokerPlace
from roquet.spark.columns import COLUMNS, arrow_schema
from roquet.spark.decode import Decoder
from roquet.spark.files import FilePlace
from roquet.spark.pipelines.archive import archive
from roquet.spark.places import Place, Wanted
from roquet.wire.batch import join_batch
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.compression import KINDS, compress
from roquet.wire.names import HALF_TOPIC, SCHEDULE_TOPIC
from roquet.wire.record import encode_properties
from tests.spark.conftest import Servers

BROKER = "broker-a"
SETTLED_S = 600.0
BY_BROKER = {"CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "UNIQ_KEY", "TRAN_MSG", "PGROUP", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY",
             "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES", "REAL_TOPIC", "REAL_QID",
             "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "TRANSACTION_CHECK_TIMES", "INDEX_TYPE", "__transactionId__"}  # fmt: skip
"""Properties that clients and brokers add to those of a message."""

Place3 = tuple[str, int, int]
"""Topic, queue, offset."""


@dataclass
class Sent:
    """A message as its sender gave it."""

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int = 0
    times: int = 0
    """How often consumers gave it back."""
    unique_id: str | None = None
    transaction: str | None = None


@dataclass
class Everything:
    """What was sent: where it must be, or, of messages that the broker moves, by their property n."""

    placed: dict[Place3, Sent] = field(default_factory=dict)
    moved: dict[str, Sent] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    """Rolled back."""

    @property
    def counts(self) -> dict[str, int]:
        topics = [sent.topic for sent in (*self.placed.values(), *self.moved.values())]
        return {topic: topics.count(topic) for topic in sorted(set(topics))}


# ---- random messages ------------------------------------------------------------------------------------------------------


class Author:
    """Random messages, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0

    def text(self, longest: int) -> str:
        letters = string.ascii_letters + string.digits + " =:;,\"'\\/äßñ漢字🚀\n\t"
        return "".join(self.random.choices(letters, k=self.random.randint(1, longest)))

    def word(self) -> str:
        return "".join(self.random.choices(string.ascii_letters + "äñ漢", k=self.random.randint(1, 12)))

    def body(self) -> bytes:
        size = self.random.choice((1, 2, 30, 300, 3_000, 6_000))
        if self.random.random() < 0.5:
            return self.random.randbytes(self.random.randint(1, size))
        return self.text(size).encode()

    def properties(self) -> dict[str, str]:
        chance = self.random.random
        found = {self.word(): self.text(40) for _ in range(self.random.choice((0, 0, 1, 3, 12)))}
        if chance() < 0.6:
            found["region"] = self.random.choice(("eu", "us", "日本"))
        if chance() < 0.7:
            found[Property.TAGS] = self.random.choice(("paid", "shipped", "Aa", "BB", "größe"))
        if chance() < 0.5:
            found[Property.KEYS] = " ".join(self.word() for _ in range(self.random.randint(1, 4)))
        if chance() < 0.3:
            found[Property.SHARDING_KEY] = self.word()
        self.number += 1
        return {"n": str(self.number), **found}

    def message(self, topic: str, **more: Any) -> Message:
        return Message(topic, self.body(), properties=self.properties(), flag=self.random.choice((0, 0, 7, -1)), **more)


class Sender:
    """Sends random messages of every kind, and remembers them."""

    def __init__(self, seed: int, servers: Servers) -> None:
        self.author = Author(seed)
        self.servers = servers
        stem = f"same-{seed}-{uuid.uuid4().hex[:6]}"
        self.wide, self.narrow = servers.topic(f"{stem}-wide", 3), servers.topic(f"{stem}-narrow", 1)
        self.group = f"{stem}-group"
        self.all = Everything()

    def send(self) -> Everything:
        with contextlib.closing(BlockingCaller()) as caller:
            self.raw(caller)
            self.servers.run(self.with_client())
            self.given_back(caller)
        return self.all

    def topic(self) -> str:
        return self.author.random.choice((self.wide, self.narrow))

    def queue(self, topic: str) -> int:
        return 0 if topic == self.narrow else self.author.random.randrange(3)

    def raw(self, caller: BlockingCaller) -> None:
        """What our client would not send: no id, no properties at all, an empty body, any sys flag, binary headers."""
        author = self.author
        for number in range(60):
            topic = self.topic()
            properties = {} if number % 10 == 0 else author.properties()
            body = b"" if number % 20 == 0 else author.body()
            kind = author.random.choice((*KINDS, "", ""))
            sent = Sent(topic, body, properties, flag=author.random.choice((0, 1 << 30, -5)), times=author.random.choice((0, 0, 3)))
            place = send_raw(caller, self.servers.embedded.broker, sent, self.queue(topic), kind, binary=number % 2 == 0)
            self.all.placed[place] = sent
        for _ in range(6):
            topic = self.topic()
            batch = [Sent(topic, author.body(), author.properties(), flag=author.random.randrange(9)) for _ in range(20)]
            for place, sent in zip(send_raw_batch(caller, self.servers.embedded.broker, batch, self.queue(topic)), batch, strict=True):
                self.all.placed[place] = sent

    async def with_client(self) -> None:
        author = self.author
        for kind in KINDS:
            async with Producer(f"same_{kind}", self.servers.namesrv, compression=kind, compress_over=200) as producer:  # type: ignore[arg-type]
                for _ in range(10):
                    message = author.message(self.topic())
                    self.place(message, await producer.send(message, key=message.properties["n"]))
                batch = [author.message(self.wide) for _ in range(25)]
                for message, receipt in zip(batch, await producer.send_batch(batch), strict=True):
                    self.place(message, receipt)
                for late in ({"delay_level": 1}, {"deliver_after": 0.7}, {"deliver_at": time.time_ns() // 1_000_000 - 5_000}):
                    message = author.message(self.topic(), **late)
                    self.move(message, (await producer.send(message)).message_id)

        def decide(_: Message, state: TransactionState) -> TransactionState:
            return state

        def never(_: object) -> TransactionState:
            raise AssertionError("every transaction was decided at once")

        async with TransactionProducer("same_transactions", self.servers.namesrv, execute=decide, check=never) as producer:
            for number in range(12):
                message = author.message(self.topic())
                state = TransactionState.COMMIT if number % 3 else TransactionState.ROLLBACK
                ended = await producer.send_in_transaction(message, state)
                if number % 3:
                    self.move(message, ended.receipt.message_id, transaction="committed")
                else:
                    self.all.dropped.add(message.properties["n"])

    def given_back(self, caller: BlockingCaller) -> None:
        """Some that consumers of a group could not use: one half is to come again, the other is dead."""
        chosen = [(place, sent) for place, sent in self.all.placed.items() if "n" in sent.properties and not sent.times]
        with contextlib.closing(BrokerPlace(self.servers.namesrv, group="same_reader")) as place:
            for number, ((topic, queue, offset), sent) in enumerate(self.author.random.sample(chosen, 10)):
                (row,) = rows(place, MessageQueue(topic, BROKER, queue), offset, offset + 1).to_pylist()
                fields = {"offset": str(row["physical_offset"]), "group": self.group, "delayLevel": "1" if number % 2 else "-1",
                          "originMsgId": row["message_id"], "originTopic": topic, "maxReconsumeTimes": "16"}  # fmt: skip
                caller.ask(self.servers.embedded.broker, Command(RequestCode.CONSUMER_SEND_MSG_BACK, fields), 10)
                to = f"%RETRY%{self.group}" if number % 2 else f"%DLQ%{self.group}"
                again = Sent(to, sent.body, sent.properties, sent.flag, 1, sent.unique_id)
                self.all.moved[f"{sent.properties['n']} to {to}"] = again

    def place(self, message: Message, receipt: Any) -> None:
        self.all.placed[message.topic, receipt.queue.queue_id, receipt.queue_offset] = sent_of(message, receipt.message_id)

    def move(self, message: Message, unique_id: str, transaction: str | None = None) -> None:
        sent = sent_of(message, unique_id)
        sent.transaction = transaction
        self.all.moved[f"{message.properties['n']} to {message.topic}"] = sent


def sent_of(message: Message, unique_id: str) -> Sent:
    mine = {name: value for name, value in message.properties.items() if name not in BY_BROKER}
    return Sent(message.topic, message.body, mine, message.flag, unique_id=unique_id)


def send_raw(caller: BlockingCaller, broker: str, sent: Sent, queue: int, kind: str = "", *, binary: bool = False) -> Place3:
    body = compress(sent.body, kind) if kind else sent.body
    fields = send_fields(sent, queue, KINDS.get(kind, 0)) | {"i": encode_properties(sent.properties)}
    command = Command(RequestCode.SEND_MESSAGE_V2, fields, body)
    command.binary = binary
    answer = caller.ask(broker, command, 10)
    return sent.topic, int(answer.fields["queueId"]), int(answer.fields["queueOffset"])


def send_raw_batch(caller: BlockingCaller, broker: str, batch: list[Sent], queue: int) -> list[Place3]:
    body = join_batch((sent.flag, sent.body, encode_properties(sent.properties).encode()) for sent in batch)
    fields = send_fields(batch[0], queue, 0) | {"i": "", "m": "true"}
    answer = caller.ask(broker, Command(RequestCode.SEND_BATCH_MESSAGE, fields, body), 10)
    first = int(answer.fields["queueOffset"])
    return [(sent.topic, int(answer.fields["queueId"]), first + number) for number, sent in enumerate(batch)]


def send_fields(sent: Sent, queue: int, sys_flag: int) -> dict[str, str]:
    born = time.time_ns() // 1_000_000
    return {"a": "same_raw", "b": sent.topic, "c": "TBW102", "d": "4", "e": str(queue), "f": str(sys_flag), "g": str(born),
            "h": str(sent.flag), "j": str(sent.times), "k": "false", "m": "false", "n": BROKER}  # fmt: skip


# ---- reading without Spark ------------------------------------------------------------------------------------------------

SORTED = [("topic", "ascending"), ("queue_id", "ascending"), ("queue_offset", "ascending")]


def rows(place: Place, queue: MessageQueue, start: int, stop: int) -> pa.Table:
    decoder = Decoder(arrow_schema(), queue.broker_name, check_crc=True)
    batches = [batch for chunk in place.chunks(queue, start, stop, Wanted()) for batch in decoder.batches(chunk)]
    return pa.Table.from_batches(batches, arrow_schema())


def difference(sent: Sent, row: Any) -> str | None:
    """What of a row is not as it was sent, if anything."""
    properties = dict(row["properties"] or {})
    expected = {
        "body": sent.body,
        "tags": sent.properties.get(Property.TAGS),
        "keys": sent.properties.get(Property.KEYS),
        "order_key": sent.properties.get(Property.SHARDING_KEY),
        "flag": sent.flag,
        "reconsume_times": sent.times,
        "unique_id": sent.unique_id,
        "transaction": sent.transaction,
    }
    wrong = [name for name, value in expected.items() if (bytes(row[name]) if name == "body" else row[name]) != value]
    mine = {name: value for name, value in properties.items() if name not in BY_BROKER or name in sent.properties}
    if wrong or mine != sent.properties:
        return f"{wrong or ['properties']} of {row}, sent was {sent}"
    return None


def await_settled(servers: Servers, counts: dict[str, int]) -> None:
    """Until everything that the broker moves has come to where it belongs."""
    deadline = time.monotonic() + SETTLED_S
    with contextlib.closing(BrokerPlace(servers.namesrv, group="same_reader")) as place:
        while True:
            found = {topic: held(place, topic) for topic in counts}
            if found == counts:
                return
            assert time.monotonic() < deadline, f"after {SETTLED_S:.0f} s there are {found}, sent were {counts}"
            time.sleep(0.05)


def held(place: Place, topic: str) -> int:
    try:
        return sum(end - first for first, end in place.bounds(place.queues(topic)).values())
    except Exception:  # the topic of retries is not there before the first one
        return 0


# ---- through Spark --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def live(loop_of: Servers, data: Path) -> Iterator[Servers]:
    """Servers that are stopped when the block ends, unlike those of the fixture."""
    context = embedded(data, settings=SMALL)
    made: Embedded = loop_of.run(context.__aenter__())
    try:
        yield Servers(loop_of.loop, made)
    finally:
        loop_of.run(context.__aexit__(None, None, None))


def answers(spark: Any, frame: Any, view: str, between: tuple[Any, Any]) -> dict[str, list[Any]]:
    """The same questions of every table."""
    frame.createOrReplaceTempView(view)

    def ask(query: str) -> list[Any]:
        return [row.asDict() for row in spark.sql(query).collect()]

    names = ", ".join(column.name for column in COLUMNS)
    sums = "count(*), min(queue_offset), max(store_time), sum(length(body)), sum(crc32(body)), count(distinct unique_id)"
    return {
        "every column": ask(f"select {names} from {view} order by topic, broker, queue_id, queue_offset"),
        "by tags, and by a property": ask(
            f"select topic, tags, region, {sums} from (select *, properties['region'] as region from {view}) "
            "group by grouping sets ((topic, tags), (region)) order by topic, tags, region"
        ),
        "a time": ask(
            f"select message_id, unique_id from {view} where store_time between timestamp '{between[0]}' and timestamp '{between[1]}' "
            "order by message_id"
        ),
    }


def test_a_query_has_the_same_answer_from_brokers_files_and_archive(spark: Any, servers: Servers, tmp_path: Path) -> None:
    seeds = [20, secrets.randbelow(1_000_000)]
    print(f"seeds {seeds}")
    with live(servers, tmp_path / "data") as mine:
        sent = [Sender(seed, mine).send() for seed in seeds]
        for each in sent:
            await_settled(mine, each.counts)
        topics = [*(topic for each in sent for topic in each.counts), HALF_TOPIC, SCHEDULE_TOPIC]

        def table(**where: str) -> Any:
            return spark.read.format("rocketmq").options(subscribe=",".join(topics), columns="all", **where).load()

        with contextlib.closing(FilePlace(str(mine.store))) as place:
            times = sorted(
                moment.as_py()
                for queue in place.queues(topics[0])
                for moment in rows(place, queue, *place.bounds([queue])[queue])["store_time"]
            )
        between = times[len(times) // 4], times[3 * len(times) // 4]
        found = {
            "brokers": answers(spark, table(namesrvAddr=mine.namesrv), "of_brokers", between),
            "files in use": answers(spark, table(path=str(mine.store)), "of_files", between),
        }
        archive({"namesrvAddr": mine.namesrv}, topics, tmp_path / "archive")
        found["archive"] = answers(spark, read_archive(spark, tmp_path / "archive"), "of_archive", between)
    found["files after the broker"] = answers(spark, table(path=str(mine.store)), "of_stopped", between)

    for where, answered in found.items():
        for question, answer in answered.items():
            assert answer == found["brokers"][question], f"{question}, from {where}, seeds {seeds}"
    assert found["brokers"]["a time"]
    whole = [row for row in found["brokers"]["every column"] if row["topic"] not in (HALF_TOPIC, SCHEDULE_TOPIC)]
    for each in sent:
        check_rows([row for row in whole if row["topic"] in each.counts], each, seeds)
    assert len(whole) == sum(sum(each.counts.values()) for each in sent)


def check_rows(found: list[Any], sent: Everything, seeds: list[int]) -> None:
    for row in found:
        number = (row["properties"] or {}).get("n", "")
        expected = sent.placed.get((row["topic"], row["queue_id"], row["queue_offset"])) or sent.moved.get(f"{number} to {row['topic']}")
        assert expected is not None, f"nobody sent {row}, seeds {seeds}"
        assert difference(expected, row) is None, f"{difference(expected, row)}, seeds {seeds}"
        assert number not in sent.dropped


# ---- more of them, without Spark ------------------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1, max_size=12)
RAW = st.builds(
    Sent,
    topic=st.just(""),
    body=st.one_of(st.binary(max_size=64), st.binary(min_size=1, max_size=8).map(lambda part: part * 400)),
    properties=st.dictionaries(st.one_of(WORDS.filter(lambda word: word not in BY_BROKER), st.sampled_from(["TAGS", "KEYS"])), WORDS),
    flag=st.integers(-(2**31), 2**31 - 1),
    times=st.integers(0, 15),
)


@pytest.fixture(scope="module")
def places(servers: Servers) -> Iterator[tuple[str, BrokerPlace, FilePlace, BlockingCaller]]:
    topic = servers.topic("same-raw", 2)
    with (
        contextlib.closing(BrokerPlace(servers.namesrv, group="same_reader")) as broker,
        contextlib.closing(FilePlace(str(servers.store))) as files,
        contextlib.closing(BlockingCaller()) as caller,
    ):
        yield topic, broker, files, caller


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(st.tuples(RAW, st.integers(0, 1), st.sampled_from(["", *KINDS]), st.booleans()), min_size=1, max_size=12),
    batched=st.lists(RAW, max_size=6),
)
def test_a_broker_and_its_files_give_any_messages_alike_and_as_they_were_sent(
    servers: Servers, places: tuple[str, BrokerPlace, FilePlace, BlockingCaller], messages: list[Any], batched: list[Sent]
) -> None:
    topic, broker, files, caller = places
    sent: dict[Place3, Sent] = {}
    for one in (*(each[0] for each in messages), *batched):
        one.topic = topic
    for one, queue, kind, binary in messages:
        sent[send_raw(caller, servers.embedded.broker, one, queue, kind, binary=binary)] = one
    if batched:
        for one in batched:
            one.times = 0
        sent.update(zip(send_raw_batch(caller, servers.embedded.broker, batched, 1), batched, strict=True))
    tables = [read_places(place, sent) for place in (broker, files)]
    assert tables[0] == tables[1]
    for row in tables[0].to_pylist():
        assert difference(sent[row["topic"], row["queue_id"], row["queue_offset"]], row) is None
    assert len(tables[0]) == len(sent)


def read_places(place: Place, sent: dict[Place3, Sent]) -> pa.Table:
    """All of them, once the place has them: a broker acknowledges a message a moment before it is in its queue."""
    queues = {MessageQueue(topic, BROKER, queue) for topic, queue, _ in sent}
    spans = {queue: [offset for _, number, offset in sent if number == queue.queue_id] for queue in queues}
    deadline = time.monotonic() + SETTLED_S
    while any(place.bounds([queue]).get(queue, (0, 0))[1] <= max(spans[queue]) for queue in queues):
        assert time.monotonic() < deadline, f"{place} does not have {max(sent)}"
    return pa.concat_tables([rows(place, queue, min(spans[queue]), max(spans[queue]) + 1) for queue in sorted(queues)]).sort_by(SORTED)
