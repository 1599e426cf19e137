"""`roquet send`: one message, or many with a rate."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roquet.cli.options import (
    Commands,
    argument,
    cluster_command,
    cluster_options,
    command,
    connection_of,
    delay_seconds,
    pair,
    positive,
    timeout_ms,
    timestamp_ms,
)
from roquet.cli.progress import Bar
from roquet.cli.render import answer, note
from roquet.errors import InvalidMessage, RoquetError

if TYPE_CHECKING:
    from roquet.client.core.receipt import SendReceipt
    from roquet.client.producer import Producer
    from roquet.message import Message

PRODUCER_GROUP = "roquet_command_line"


def add_commands(commands: Commands) -> None:
    send = command(
        commands,
        "send",
        "send one message, or many",
        """
        roquet send greetings "hello"
        roquet send orders '{"id": 17}' --tags paid --keys order-17 --property region=eu
        roquet send reminders "tea is ready" --after 240
        roquet send reminders "happy new year" --at 2027-01-01T00:00:00
        cat body.bin | roquet send files -               the body from standard input
        roquet send load "message {n}" --count 100000    {n} is the number of each
        roquet send load --count 1000000 --size 128 --batch 32
        """,
    )
    send.add_argument("topic", metavar="TOPIC")
    send.add_argument(
        "body", metavar="BODY", nargs="?", help="text; - reads standard input; {n} in it is each message's number with --count"
    )
    send.add_argument("--tags", default="", metavar="TAG", help="one word by which consumers choose messages")
    send.add_argument("--keys", action="append", default=[], metavar="KEY", help="a word to find the message by (may be repeated)")
    send.add_argument("--property", action="append", default=[], type=pair, metavar="NAME=VALUE", help="a property of it (may be repeated)")
    later = send.add_mutually_exclusive_group()
    later.add_argument("--at", type=timestamp_ms, metavar="TIME", help="deliver it then: 2027-01-01T00:00 or ms; at most 40 days ahead")
    later.add_argument("--after", type=delay_seconds, metavar="SECONDS", help="deliver it this much later (roquet cancel ID cancels it)")
    send.add_argument("--count", type=positive, default=1, metavar="N", help="how many to send (default: 1)")
    send.add_argument("--size", type=positive, metavar="BYTES", help="use a body of this many bytes instead of BODY")
    send.add_argument("--in-flight", type=positive, default=64, metavar="N", help="sends without an answer at a time (default: 64)")
    send.add_argument("--batch", type=positive, default=1, metavar="N", help="messages in one request (default: 1)")
    cluster_options(send)
    send.set_defaults(run=run_send)

    cluster_command(
        commands, "cancel", run_cancel, "cancel a timed message before it is delivered",
        "roquet cancel C0000202000A2A139F1E6D2BAE4F0000     the message id that roquet send printed",
        argument("id", metavar="ID", help="message id (the producer's or the broker's), or a recall handle"),
    )  # fmt: skip


async def run_cancel(arguments: argparse.Namespace) -> int:
    from roquet.cli.topics import admin

    async with admin(arguments) as cluster:
        brokers = await cluster.cancel(arguments.id)
    names = [broker.name for broker in brokers]
    return answer(arguments, {"messageId": arguments.id, "brokers": names}, f"cancelled {arguments.id} on {', '.join(names)}")


async def run_send(arguments: argparse.Namespace) -> int:
    from roquet.client.producer import Producer

    body = read_body(arguments)
    limit = timeout_ms(arguments)
    made = Producer(
        PRODUCER_GROUP,
        arguments.namesrv,
        send_timeout_ms=limit,
        delivery_timeout_ms=limit,
        start_timeout_ms=0,
        connection=connection_of(arguments),
    )
    async with made as producer:
        if arguments.count == 1:
            return await send_one(producer, make_message(arguments, body, 0), arguments)
        return await send_many(producer, body, arguments)


def read_body(arguments: argparse.Namespace) -> bytes:
    if arguments.size is not None:
        if arguments.body is not None:
            raise InvalidMessage("give BODY or --size, not both")
        return b"." * int(arguments.size)
    if arguments.body == "-" or (arguments.body is None and not sys.stdin.isatty()):
        body = sys.stdin.buffer.read()
    else:
        body = (arguments.body or "").encode("utf-8", "surrogateescape")
    if not body:
        raise InvalidMessage("the body is empty; give BODY, --size BYTES, or - and something on standard input")
    return body


def make_message(arguments: argparse.Namespace, body: bytes, number: int) -> Message:
    from roquet.message import Message

    if arguments.count > 1:
        body = body.replace(b"{n}", str(number).encode())
    return Message(
        arguments.topic,
        body,
        tags=arguments.tags,
        keys=arguments.keys,
        properties=dict(arguments.property),
        deliver_at=arguments.at,
        deliver_after=arguments.after,
    )


async def send_one(producer: Producer, message: Message, arguments: argparse.Namespace) -> int:
    receipt = await producer.send(message)
    place = f"{receipt.queue.broker_name}:{receipt.queue.queue_id} @{receipt.queue_offset}"
    answer(arguments, receipt_json(receipt), f"{receipt.status.name}  {place}  {receipt.message_id}")
    return 0 if receipt.ok else 1


def receipt_json(receipt: SendReceipt) -> dict[str, object]:
    return {
        "status": receipt.status.name,
        "messageId": receipt.message_id,
        "offsetMessageId": receipt.offset_message_id,
        "topic": receipt.queue.topic,
        "broker": receipt.queue.broker_name,
        "queueId": receipt.queue.queue_id,
        "queueOffset": receipt.queue_offset,
    }


class Tally:
    """What came of many sends. The first failure is kept for its text."""

    def __init__(self) -> None:
        self.stored = 0
        self.failed = 0
        self.first_failure: Exception | None = None

    def add(self, receipts: Sequence[SendReceipt]) -> None:
        ok = sum(receipt.ok for receipt in receipts)
        self.stored += ok
        if ok < len(receipts):
            bad = next(receipt for receipt in receipts if not receipt.ok)
            self.fail(len(receipts) - ok, RoquetError(f"a broker answered {bad.status.name}"))

    def fail(self, count: int, error: Exception) -> None:
        self.failed += count
        self.first_failure = self.first_failure or error


async def send_many(producer: Producer, body: bytes, arguments: argparse.Namespace) -> int:
    """A fixed number of senders, each with one request under way, take numbers from one counter."""
    tally = Tally()
    numbers = iter(range(arguments.count))
    await producer.fetch_queues(arguments.topic)  # no route at all is one error, not a hundred thousand

    with Bar("sending", arguments.count) as bar:

        async def sender() -> None:
            while messages := [make_message(arguments, body, number) for _, number in zip(range(arguments.batch), numbers, strict=False)]:
                try:
                    if arguments.batch == 1:
                        tally.add([await producer.send(messages[0])])
                    else:
                        tally.add(await producer.send_batch(messages))
                except InvalidMessage as error:
                    tally.fail(len(messages), error)
                    return  # the rest is no better
                except RoquetError as error:
                    tally.fail(len(messages), error)
                bar.add(len(messages))

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(arguments.in_flight, arguments.count)):
                tasks.create_task(sender())
    seconds = bar.elapsed_s
    rate = tally.stored / seconds
    counts = {"stored": tally.stored, "failed": tally.failed, "seconds": round(seconds, 3), "perSecond": round(rate, 1)}
    failed = f"; {tally.failed:,} failed" if tally.failed else ""
    answer(arguments, {"topic": arguments.topic, **counts}, f"{tally.stored:,} stored in {seconds:.2f} s, {rate:,.0f}/s{failed}")
    if tally.first_failure is not None:
        note(f"roquet: {tally.failed:,} not stored. The first failure: {tally.first_failure}")
    return 1 if tally.failed else 0
