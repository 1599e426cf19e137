"""Topics as tables, beside real clients: what Java sends Spark reads, what Spark writes Java receives, with any server between.

The same checks against Roquet and against Apache: from the broker, from the files it is writing, and from those it left behind.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apache
import java_client
import mqadmin
import store_exchange
from java_client import JavaClient
from report import Section, run_program
from store_exchange import Peer

from roquet import Admin, Message, Producer
from roquet.wire.codes import SysFlag
from roquet.wire.signing import Credentials

T = TypeVar("T")
Row = dict[str, Any]

BROKER = "broker-a"
QUEUES = 3
ROWS = 40
"""That the sink writes."""
WRITTEN = "spark_written"
"""Where to."""
LATE = 7
"""The row among them that is delayed."""
KEY = "interop"
"""idempotencyKey, so that the ids are known."""
LOOKED_UP = {0: "a row with an order key", LATE: "a delayed row", 25: "a row without either", ROWS - 1: "the last row"}
"""By the ids that the sink gave them, in mqadmin."""
MORE = 25
"""Messages that come between two runs of a stream."""

SETTINGS: dict[str, object] = store_exchange.SETTINGS | {
    "enablePropertyFilter": True,
    # Apache turns a request away that has waited 200 ms; with servers, clients and Spark on the same few processors that happens.
    "waitTimeMillsInSendQueue": 10_000,
    "waitTimeMillsInPullQueue": 10_000,
}


class Wrong(AssertionError):
    """A check did not hold."""


def same(what: str, expected: object, found: object) -> None:
    if expected != found:
        raise Wrong(f"{what}: expected {str(expected)[:300]}, found {str(found)[:300]}")


@dataclass(frozen=True)
class Note:
    """A message that Java sent, and what it was told."""

    kind: str
    unique_id: str
    message_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str
    tags: str
    keys: str
    flag: int
    size: int
    colour: str
    body: bytes

    @classmethod
    def read(cls, line: str) -> Note:
        kind, unique_id, message_id, queue, offset, transaction, tags, keys, flag, size, colour, body = line.split("\t")
        return cls(
            kind, unique_id, message_id, int(queue), int(offset), transaction, tags, keys, int(flag), int(size), colour,
            base64.b64decode(body),
        )  # fmt: skip

    @property
    def is_placed(self) -> bool:
        """The place that the producer was told is the one where consumers find it."""
        return self.kind in ("plain", "compressed", "batched")


class Exchange:
    """One cluster, and the tables of its topics."""

    def __init__(self, spark: Any, namesrv: str, store: Path, directory: Path) -> None:
        self.spark = spark
        self.namesrv = namesrv
        self.store = store
        self.directory = directory
        self.sent: dict[str, list[Note]] = {}
        """By topic."""
        self.shared_ids: set[str] = set()
        """Topics where the messages of a batch all have the id of the batch."""
        self.rows: list[Row] = []
        """Of these topics, as the broker gives them."""
        self.written: list[Row] = []
        """What the sink wrote, as the broker gives it."""

    # -- the cluster

    def administer(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        async def run() -> T:
            async with Admin(self.namesrv, timeout_ms=15_000) as admin:
                return await work(admin)

        return asyncio.run(run())

    def topic(self, name: str) -> str:
        self.administer(lambda admin: admin.create_topic(name, read_queues=QUEUES, write_queues=QUEUES))
        return name

    def await_held(self, topic: str, count: int, credentials: Credentials | None = None) -> None:
        """Until so many can be read: delayed and committed ones come a moment after their producer is done."""

        from roquet.net.connection import ConnectionOptions
        from roquet.spark.brokers import BrokerPlace

        with contextlib.closing(
            BrokerPlace(self.namesrv, group="spark_reader", connection=ConnectionOptions(credentials=credentials))
        ) as place:

            def held() -> int:
                return sum(end for _, end in place.bounds(place.queues(topic)).values())

            apache.wait_until(lambda: held() >= count, f"{count} messages in {topic}")

    # -- tables

    def table(self, topics: Iterable[str], **options: str) -> list[Row]:
        where = options if "path" in options else {"namesrvAddr": self.namesrv, **options}
        frame = self.spark.read.format("rocketmq").options(subscribe=",".join(topics), columns="all", **where).load()
        found: list[Row] = [row.asDict() for row in frame.orderBy("topic", "queue_id", "queue_offset").collect()]
        return found

    def files(self, topics: Iterable[str]) -> list[Row]:
        # Apache's files do not tell the name of their broker.
        return self.table(topics, path=str(self.store), broker=BROKER)

    # -- checks: reading

    def of_brokers(self) -> None:
        self.rows = self.table(self.sent)
        for topic, notes in self.sent.items():
            found = {int(row["properties"]["u_size"]): row for row in self.rows if row["topic"] == topic}
            kept = [note for note in notes if note.kind != "rolledback"]
            same(f"messages in {topic}", sorted(note.size for note in kept), sorted(found))
            for note in kept:
                compare(note, found[note.size])
                if note.kind != "batched" or topic not in self.shared_ids:
                    same(f"unique id of {note.kind} {note.size}", note.unique_id, found[note.size]["unique_id"])
            batched = {found[note.size]["unique_id"] for note in kept if note.kind == "batched"}
            same(
                f"ids of a batch in {topic}", 1 if topic in self.shared_ids else sum(note.kind == "batched" for note in kept), len(batched)
            )
        same("rows", sum(note.kind != "rolledback" for notes in self.sent.values() for note in notes), len(self.rows))

    def of_files(self) -> None:
        same_rows(self.rows, self.files(self.sent))

    def filtered(self) -> None:
        tagged = self.table(self.sent, tags="a || c")
        same_rows([row for row in self.rows if row["tags"] in ("a", "c")], tagged)
        judged = self.table(self.sent, sql="u_size BETWEEN 5 AND 30 AND u_colour = 'grün' AND TAGS <> 'c'")
        meant = [
            row
            for row in self.rows
            if 5 <= int(row["properties"]["u_size"]) <= 30 and row["properties"]["u_colour"] == "grün" and row["tags"] != "c"
        ]
        same_rows(meant, judged)
        if not 0 < len(judged) < len(tagged) < len(self.rows):
            raise Wrong(f"{len(judged)} by SQL, {len(tagged)} by tags, {len(self.rows)} in all: they prove nothing")

    def since(self) -> None:
        moment = sorted(row["store_time"] for row in self.rows)[len(self.rows) // 2]
        later = self.table(self.sent, startingTimestamp=str(round(moment.timestamp() * 1_000)))
        same_rows([row for row in self.rows if row["store_time"] >= moment], later)

    def encrypted(self) -> None:
        same_rows(self.rows, self.table(self.sent, useTLS="true", tlsVerify="false"))

    # -- checks: a stream

    def streamed(self) -> None:
        topic = self.topic("spark_stream")
        self.send_more(topic, 0)
        self.run_stream(topic)
        self.send_more(topic, MORE)
        self.run_stream(topic)
        found = self.spark.read.parquet(str(self.directory / "stream")).collect()
        same("rows of two runs", 2 * MORE, len(found))
        same("bodies", {f"more {number}" for number in range(2 * MORE)}, {row.text for row in found})

        async def progress(admin: Admin) -> tuple[int, int]:
            queues = await admin.progress("spark_group", topic)
            return sum(max(0, one.consumer_offset) for one in queues), sum(one.lag for one in queues)

        same("the group's progress and lag at the broker", (2 * MORE, 0), self.administer(progress))

    def send_more(self, topic: str, first: int) -> None:
        async def work() -> None:
            async with Producer("spark_more", self.namesrv) as producer:
                for number in range(first, first + MORE):
                    await producer.send(Message(topic, f"more {number}".encode()))

        asyncio.run(work())
        self.await_held(topic, first + MORE)

    def run_stream(self, topic: str) -> None:
        """To what is there now, in several batches."""
        options = {"namesrvAddr": self.namesrv, "subscribe": topic, "startingOffsets": "earliest", "groupId": "spark_group"}
        stream = self.spark.readStream.format("rocketmq").options(**options, maxOffsetsPerTrigger="10").load()
        query = (
            stream.selectExpr("queue_id", "queue_offset", "cast(body as string) as text")
            .writeStream.format("parquet")
            .options(path=str(self.directory / "stream"), checkpointLocation=str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(120):
            query.stop()
            raise Wrong("the stream did not end within 120 s")

    # -- checks: writing

    def write(self, topic: str) -> None:
        columns = "body string, tags string, keys array<string>, properties map<string,string>, order_key string, delay_level int, flag int"
        rows = [
            (
                f"row {number}", f"tag{number % 2}", [f"key{number}", "all"], {"u_number": str(number), "u_colour": "grün"},
                f"order {number % 4}" if number < 20 else None, 1 if number == LATE else None, number,
            )
            for number in range(ROWS)
        ]  # fmt: skip
        frame = self.spark.createDataFrame(rows, columns).coalesce(1)
        options = {"namesrvAddr": self.namesrv, "topic": topic, "idempotencyKey": KEY}
        frame.write.format("rocketmq").options(**options).mode("append").save()
        self.await_held(topic, ROWS)

    def received(self, topic: str, manifest: Path) -> None:
        ids = written_ids(topic)
        places: dict[str, list[tuple[int, int, int]]] = {}
        lines = manifest.read_text().splitlines()
        for line in lines:
            body, unique_id, queue, offset, tags, keys, flag, born, stored, order_key, *properties = line.split("\t")
            number = int(body.split()[1])
            expected = (ids[number], f"tag{number % 2}", f"key{number} all", str(number), ["u_colour=grün", f"u_number={number}"])
            same(f"id, tags, keys, flag, properties of {body}", expected, (unique_id, tags, keys, flag, properties))
            same(f"order key of {body}", f"order {number % 4}" if number < 20 else "null", order_key)
            if number != LATE:
                places.setdefault(order_key, []).append((number, int(queue), int(offset)))
            elif int(stored) - int(born) < 1_000:
                raise Wrong(f"the delayed row came after {int(stored) - int(born)} ms, 1000 were asked for")
        places.pop("null")
        same("order keys", 4, len(places))
        for order_key, each in places.items():
            same(f"queues of {order_key}", 1, len({queue for _, queue, _ in each}))
            offsets = [offset for _, _, offset in sorted(each)]
            same(f"offsets of {order_key}, in the order of its rows", sorted(offsets), offsets)

    def read_back(self, topic: str) -> None:
        self.written = self.table([topic])
        same("bodies", sorted(f"row {number}".encode() for number in range(ROWS)), sorted(bytes(row["body"]) for row in self.written))
        same_rows(self.written, self.files([topic]))

    def queries(self, topic: str) -> list[mqadmin.Command]:
        """By the ids that the sink is said to give, not by those that were read."""
        ids, places = written_ids(topic), {bytes(row["body"]).decode(): row["physical_offset"] for row in self.written}
        return [
            mqadmin.Command(
                f"queryMsgByUniqueKey -t {topic} -i {ids[number]}",
                (
                    rf"Topic:\s+{topic}\s",
                    rf"Tags:\s+\[tag{number % 2}\]",
                    rf"Keys:\s+\[key{number} all\]",
                    rf"CommitLog Offset:\s+{places.get(f'row {number}')}\s",
                    rf"[{{ ]UNIQ_KEY={ids[number]}[,}}]",
                ),
                about,
            )
            for number, about in LOOKED_UP.items()
        ]


def written_ids(topic: str) -> list[str]:
    from roquet.spark.encode import id_prefix, unique_ids

    return [bytes(one).decode() for one in unique_ids(id_prefix("batch", KEY, topic, 0), 0, ROWS)]


def compare(note: Note, row: Row) -> None:
    what = f"of {note.kind} {note.size}"
    for name in ("tags", "keys", "flag"):
        same(f"{name} {what}", getattr(note, name), row[name])
    same(f"body {what}", note.body, bytes(row["body"]))
    same(f"u_size and u_colour {what}", (str(note.size), note.colour), (row["properties"]["u_size"], row["properties"]["u_colour"]))
    same(f"UNIQ_KEY {what}", row["unique_id"], row["properties"]["UNIQ_KEY"])
    if note.is_placed:
        told = (note.queue_id, note.queue_offset, note.message_id)
        same(f"queue, offset, message id {what}", told, (row["queue_id"], row["queue_offset"], row["message_id"]))
    same(f"compressed in the log, {what}", note.kind == "compressed", bool(row["sys_flag"] & SysFlag.COMPRESSED))
    if note.kind == "committed":
        same(f"transaction {what}", ("committed", note.transaction_id), (row["transaction"], row["transaction_id"]))
        if row["prepared_offset"] is None:
            raise Wrong(f"prepared_offset {what} is null")
    else:
        same(f"transaction {what}", (None, None, None), (row["transaction"], row["transaction_id"], row["prepared_offset"]))
    if note.kind in ("delayed", "timed"):
        late = (row["store_time"] - row["born_time"]).total_seconds()
        if late < 1:
            raise Wrong(f"store_time {what} is {late} s after born_time, at least 1 was asked for")
    if note.kind == "timed" and row["deliver_time"] is None:
        raise Wrong(f"deliver_time {what} is null")


def same_rows(expected: list[Row], found: list[Row]) -> None:
    places = [[(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] for rows in (expected, found)]
    same("topics, queues, offsets", *places)
    for one, other in zip(expected, found, strict=True):
        different = [name for name in one if one[name] != other[name]]
        if different:
            name = different[0]
            raise Wrong(f"{name} of {one['topic']}/{one['queue_id']} {one['queue_offset']}: {one[name]!r} and {other[name]!r}")


# ---------------------------------------------------------------- one cluster


Logs = Callable[[Section, list[apache.Server]], None]
Last = Callable[[Section, Exchange], None]


def judge(section: Section, name: str, body: Callable[[], None]) -> None:
    try:
        body()
    except Wrong as problem:
        section.fail(name, str(problem))
    except Exception as problem:  # Spark's are long: the last line with words in it is ours
        lines = [line for line in str(problem).splitlines() if line.strip() and not line.startswith(("\t", " "))]
        section.fail(name, f"{type(problem).__name__}: {(lines or ['?'])[0][:300]} ... {(lines or ['?'])[-1][:500]}")
    else:
        section.ok(name)


def check(
    section: Section,
    spark: Any,
    peer: Peer,
    java: dict[str, JavaClient],
    directory: Path,
    *,
    timed: bool,
    slim: bool = False,
    finder: JavaClient | None = None,
    logs: Logs | None = None,
    last: Last | None = None,
) -> None:
    """All of it against one kind of servers.

    `timed`: whether they know timed messages. `slim`: one table and one write, with what Java sent and received, is all. `finder`:
    whose mqadmin looks for what the sink wrote. `logs` judges what they logged. `last` comes when the broker has left its store behind,
    and the name server is still there.
    """
    with (
        peer.name_server(apache.free_port(), directory / "namesrv") as namesrv,
        peer.broker(apache.free_port(), namesrv.address, directory / "broker", SETTINGS) as broker,
    ):
        exchange = Exchange(spark, namesrv.address, directory / "broker" / "store", directory)
        if not java_sends(section, exchange, java, peer, timed=timed):
            return
        judge(section, "what Java sent, from the broker", exchange.of_brokers)
        if not slim:
            judge(section, "the same from its files, while it writes them", exchange.of_files)
            judge(section, "tags and SQL, with gaps in the offsets", exchange.filtered)
            judge(section, "from a moment on", exchange.since)
            judge(section, "over TLS", exchange.encrypted)
            judge(section, "a stream in two runs, and its group's progress", exchange.streamed)
        written = exchange.topic(WRITTEN)
        judge(section, "the sink writes", partial(exchange.write, written))
        java_receives(section, exchange, java, written)
        if slim:
            for server in (broker, namesrv):
                server.kill()  # nobody needs what they would leave behind, and they take long to leave
            return
        judge(section, "what the sink wrote, from broker and files", partial(exchange.read_back, written))
        if finder is not None:
            mqadmin.run(section, finder, namesrv.address, exchange.queries(written), name=run_name(section, "mqadmin"))
        broker.stop()
        judge(section, "from the files it left behind", exchange.of_files)
        if logs is not None:
            logs(section, [namesrv, broker])
        if last is not None:
            last(section, exchange)


def java_sends(section: Section, exchange: Exchange, java: dict[str, JavaClient], peer: Peer, *, timed: bool) -> bool:
    """Every kind of message by every client, each to a topic of its own, until all can be read. False: there are no notes of them."""
    topics = {version: exchange.topic(f"spark_java_{version[0]}") for version in java}
    manifests = {version: exchange.directory / f"sent-{version}.tsv" for version in java}
    kind = "timed" if timed else "untimed"
    with ThreadPoolExecutor() as pool:
        sent = pool.map(lambda version: run_java(section, exchange, java[version], "send", manifests[version], topics[version], kind), java)
        if not all(sent):
            return False
    for version, topic in topics.items():
        notes = [Note.read(line) for line in manifests[version].read_text().splitlines()]
        exchange.sent[topic] = notes
        if version.startswith("5") and peer.name.startswith("apache") and peer.name != f"apache-{apache.SERVER_5}":
            # A client of 5.x gives the batch an id too, and Apache's 4.9 appends it to each message, where the last one counts.
            exchange.shared_ids.add(topic)
        exchange.await_held(topic, sum(note.kind != "rolledback" for note in notes))
    return True


def java_receives(section: Section, exchange: Exchange, java: dict[str, JavaClient], topic: str) -> None:
    manifests = {version: exchange.directory / f"received-{version}.tsv" for version in java}
    arguments = (topic, "row", str(ROWS))
    with ThreadPoolExecutor() as pool:
        received = list(
            pool.map(lambda version: run_java(section, exchange, java[version], "receive", manifests[version], *arguments), java)
        )
    for version, noted in zip(java, received, strict=True):
        if noted:
            body = partial(exchange.received, topic, manifests[version])
            judge(section, f"java {version}: ids, tags, keys, properties, order, delay", body)


def run_java(section: Section, exchange: Exchange, client: JavaClient, what: str, manifest: Path, *arguments: str) -> bool:
    given = (what, exchange.namesrv, str(manifest), f"spark{client.version[0]}", *arguments)
    command, log = client.command(run_name(section, what), "Interop", *given)
    output, finished = run_program(command)
    phases = section.take(output, finished=finished, what=f"java {client.version}: ")
    problem = java_client.log_problem(log, phases, provoked=False)
    section.judge(f"java {client.version}: {what}: no warning or error in the client's log", problem)
    return manifest.exists()


def run_name(section: Section, what: str) -> str:
    return f"{section.title.replace(' ', '-').replace(',', '')}-{what}"
