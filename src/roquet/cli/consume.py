"""`roquet consume`: show messages.

Without a group it only looks: it reads the queues and leaves no trace. With a group it takes part in it: following makes it a
member that shares the queues with the others; --once and --count read on from the group's progress and commit what was shown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from roquet.cli.messages import as_json, body_text, one_line
from roquet.cli.options import TOPIC, Commands, argument, cluster_command, connection_of, positive, timestamp_ms
from roquet.cli.render import counted, emit, emit_json, note
from roquet.cli.topics import admin
from roquet.errors import ClientError
from roquet.system import on_stop_signals

if TYPE_CHECKING:
    from roquet.client.pull_consumer import PullConsumer
    from roquet.message import MessageQueue, ReceivedMessage

ROUTE_POLL_S = 10

StartingPoint = Literal["first", "last"]


def add_commands(commands: Commands) -> None:
    cluster_command(
        commands,
        "consume",
        run_consume,
        "show messages as they come, or those that are there",
        """
        roquet consume orders                            new messages, until Ctrl-C; leaves no trace
        roquet consume orders --from first --once        everything that is there now
        roquet consume orders --from 2024-05-01T10:00 --count 10
        roquet consume orders --tags "paid || shipped"
        roquet consume orders --sql "amount > 100"       by properties; the broker needs enablePropertyFilter=true
        roquet consume orders --group billing            as a member of the group, sharing its queues
        roquet consume orders --json | jq .body
        """,
        TOPIC,
        argument("--group", metavar="GROUP", help="consume as a member of this group; without it messages are only shown"),
        argument("--tags", default="*", metavar="TAGS", help='only messages with these tags: "a", "a || b" (default: all)'),
        argument("--sql", metavar="EXPRESSION", help="only those whose properties fit: \"amount > 100 AND region = 'eu'\""),
        argument(
            "--from",
            dest="start",
            type=starting_point,
            metavar="WHERE",
            help="first, last, or a time: 2024-05-01T10:00:00 or milliseconds (default: last, with --once first; a group: its progress)",
        ),
        argument("--once", action="store_true", help="show the messages that are there now, then stop"),
        argument("--count", type=positive, metavar="N", help="stop after this many messages"),
        argument("--body", action="store_true", help="print only the bodies"),
    )


def starting_point(text: str) -> StartingPoint | int:
    points: dict[str, StartingPoint] = {"first": "first", "last": "last"}
    return points[text] if text in points else timestamp_ms(text)


async def run_consume(arguments: argparse.Namespace) -> int:
    if arguments.group and not arguments.once and not arguments.count:
        return await follow_as_member(arguments)
    return await look(arguments)


def show(message: ReceivedMessage, arguments: argparse.Namespace) -> None:
    if arguments.json:
        emit_json(as_json(message))
    elif arguments.body:
        emit(body_text(message, limit=len(message.body)))
    else:
        emit(one_line(message))


# As a member of the group


async def follow_as_member(arguments: argparse.Namespace) -> int:
    """Progress is the group's: what was shown is not shown again to any member."""
    from roquet.client import PushConsumer

    start: StartingPoint | int = arguments.start or "last"
    consumer = PushConsumer(
        arguments.group,
        arguments.namesrv,
        consume_from=start if isinstance(start, str) else "timestamp",
        consume_timestamp_ms=start if isinstance(start, int) else 0,
        connection=connection_of(arguments),
    )

    @consumer.on(arguments.topic, arguments.tags, sql=arguments.sql)
    async def print_it(message: ReceivedMessage) -> None:
        show(message, arguments)

    async with consumer, until_signalled() as stop:
        note(f"member {consumer.client_id} of {arguments.group}; Ctrl-C to leave")
        await stop.wait()
    return 0


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """Ctrl-C and SIGTERM set the event, so that the member can write its progress down and leave the group."""
    stop = asyncio.Event()
    undo = on_stop_signals(lambda number: stop.set())
    try:
        yield stop
    finally:
        undo()


# Looking


async def look(arguments: argparse.Namespace) -> int:
    from roquet.client.pull_consumer import PullConsumer
    from roquet.wire.names import TOOLS_GROUP

    if arguments.group:
        await refuse_while_members_run(arguments)
    shown = 0
    async with PullConsumer(
        arguments.group or TOOLS_GROUP, arguments.namesrv, start_timeout_ms=0, connection=connection_of(arguments)
    ) as consumer:
        queues = await consumer.fetch_queues(arguments.topic)
        reader = Reader(consumer, arguments.tags, arguments.sql)
        await reader.place(queues, lambda queue: start_of(consumer, queue, arguments))
        try:
            async for message in reader.messages(follow=not arguments.once):
                show(message, arguments)
                shown += 1
                reader.shown(message)
                if shown == arguments.count:
                    break
        finally:
            if arguments.group:
                await reader.commit()
    if not shown:
        note(f"nothing in {arguments.topic} from there on")
    elif not arguments.json and not arguments.body:
        note(counted(shown, "message"))
    return 0


async def refuse_while_members_run(arguments: argparse.Namespace) -> None:
    """Two readers of one progress would both show the same messages, and the slower one would set it back."""
    async with admin(arguments) as cluster:
        running = (await cluster.members(arguments.group)).client_ids()
    if running:
        raise ClientError(
            f"group {arguments.group} has members that consume now ({', '.join(running)}); "
            "follow as one of them (without --once and --count), or look without --group"
        )


async def start_of(consumer: PullConsumer, queue: MessageQueue, arguments: argparse.Namespace) -> int:
    if arguments.group:
        progress = await consumer.fetch_offset(queue)
        if progress >= 0:
            return progress
    start: str | int = arguments.start or ("first" if arguments.once else "last")
    if isinstance(start, int):
        return await consumer.search_offset(queue, start)
    return await (consumer.min_offset(queue) if start == "first" else consumer.max_offset(queue))


class Reader:
    """Reads many queues: first what is there, merged by the time it was stored; then, when following, what comes."""

    def __init__(self, consumer: PullConsumer, tags: str, sql: str | None) -> None:
        self._consumer = consumer
        self._tags = tags
        self._sql = sql
        self._at: dict[MessageQueue, int] = {}
        self._end: dict[MessageQueue, int] = {}
        self._shown: dict[MessageQueue, int] = {}

    async def place(self, queues: list[MessageQueue], start: Callable[[MessageQueue], Awaitable[int]]) -> None:
        starts = await asyncio.gather(*(start(queue) for queue in queues))
        ends = await asyncio.gather(*(self._consumer.max_offset(queue) for queue in queues))
        self._at = dict(zip(queues, starts, strict=True))
        self._end = dict(zip(queues, ends, strict=True))

    def shown(self, message: ReceivedMessage) -> None:
        self._shown[message.queue] = message.queue_offset + 1

    async def commit(self) -> None:
        """The group's progress is what was shown."""
        await asyncio.gather(*(self._consumer.commit(queue, offset) for queue, offset in self._shown.items()))

    async def messages(self, *, follow: bool) -> AsyncIterator[ReceivedMessage]:
        async for message in self._present():
            yield message
        if follow:
            async for message in self._arriving():
                yield message

    async def _present(self) -> AsyncIterator[ReceivedMessage]:
        waiting: list[tuple[int, MessageQueue, int, ReceivedMessage, list[ReceivedMessage]]] = []

        async def refill(queue: MessageQueue) -> None:
            while self._at[queue] < self._end[queue]:
                before = self._at[queue]
                result = await self._consumer.pull(queue, before, tags=self._tags, sql=self._sql)
                # A broker that keeps back what is not yet safe says "nothing new" before the end: that is the end for now.
                self._at[queue] = result.next_offset
                batch = [one for one in result.messages if one.queue_offset < self._end[queue]]
                if batch:
                    push(queue, batch)
                    return
                if result.next_offset <= before:
                    self._end[queue] = before

        def push(queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
            head, *rest = batch
            heapq.heappush(waiting, (head.store_timestamp, queue, head.queue_offset, head, rest))

        await asyncio.gather(*(refill(queue) for queue in self._at))
        while waiting:
            _, queue, _, message, rest = heapq.heappop(waiting)
            yield message
            if rest:
                push(queue, rest)
            else:
                await refill(queue)

    async def _arriving(self) -> AsyncIterator[ReceivedMessage]:
        arrived: asyncio.Queue[ReceivedMessage | Exception] = asyncio.Queue(maxsize=1_000)
        tasks: dict[MessageQueue, asyncio.Task[None]] = {}

        async def watch(queue: MessageQueue) -> None:
            try:
                while True:
                    result = await self._consumer.pull_blocking(queue, self._at[queue], tags=self._tags, sql=self._sql)
                    for message in result.messages:
                        await arrived.put(message)
                    self._at[queue] = result.next_offset
            except Exception as error:
                await arrived.put(error)

        async def watch_new_queues(topic: str) -> None:
            while True:
                await asyncio.sleep(ROUTE_POLL_S)
                for queue in await self._consumer.fetch_queues(topic):
                    if queue not in tasks:
                        self._at[queue] = await self._consumer.min_offset(queue)
                        tasks[queue] = asyncio.create_task(watch(queue))

        for queue in self._at:
            tasks[queue] = asyncio.create_task(watch(queue))
        topics = {queue.topic for queue in self._at}
        routes = [asyncio.create_task(watch_new_queues(topic)) for topic in topics]
        try:
            while True:
                message = await arrived.get()
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            for task in [*tasks.values(), *routes]:
                task.cancel()
            await asyncio.gather(*tasks.values(), *routes, return_exceptions=True)
