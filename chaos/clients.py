"""The load: a client in a process of its own, which writes down what it does and is told (history.py).

    python -m chaos.clients ORDERS      a JSON object, see Orders

`quiet`, a line of its input, stops what it sends; the end of its input ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from chaos.history import COMMITTED, DELAYED, PLAIN, ROLLED_BACK, Writer
from chaos.nodes import Nodes, named_of
from roquet import Message, Producer, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState
from roquet.client.core.receipt import SendReceipt
from roquet.errors import ClientError, RoquetError

UNDER_WAY_MAX = 500
"""Sends of one producer that wait for their answers."""
DELAY_LEVEL, DELAY_S = 1, 1.0
"""The first of RocketMQ's delay levels."""
BODY_MAX = 400
WATCH_S = 0.3
START_AGAIN_S = 0.5


@dataclass(frozen=True)
class Orders:
    role: str
    name: str
    namesrv: str
    topic: str
    history: str
    group: str = ""
    rate: float = 100.0
    """Sends a second."""
    send_timeout_ms: int = 3_000
    nodes: dict[str, str] | None = None
    """Addresses of brokers by name, for those who ask them one by one."""
    queues: tuple[str, int] = ("", 0)
    """The broker name and how many queues there are, for the same."""

    def text(self) -> str:
        return json.dumps(vars(self))


class Client:
    def __init__(self, orders: Orders, history: Writer) -> None:
        self.orders, self.history = orders, history
        self.quiet, self.over = asyncio.Event(), asyncio.Event()
        self._random = Random(orders.name)
        self._next = 0

    async def listen(self) -> None:
        """To standard input."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            if line == b"quiet\n":
                self.quiet.set()
        self.quiet.set()
        self.over.set()

    def begin(self, kind: str, not_before: float = 0.0) -> Message:
        """A new message that is in the history already."""
        id = f"{self.orders.name}-{self._next}"
        self._next += 1
        body = id.encode() + b"|" + self._random.randbytes(self._random.randrange(BODY_MAX))
        self.history.write("send", id=id, crc=zlib.crc32(body), kind=kind, not_before=not_before)
        return Message(self.orders.topic, body, keys=id)

    async def send(self, kind: str, not_before: float, sending: Callable[[Message], Awaitable[SendReceipt]]) -> None:
        """Once. What has no answer in time may be stored or not: nobody repeats it here."""
        message = self.begin(kind, not_before)
        id = message.keys[0]
        try:
            receipt = await sending(message)
        except (RoquetError, OSError) as error:
            self.history.write("failed", id=id, why=f"{type(error).__name__}: {error}"[:2_000])
            return
        place = {"queue": queue_name(receipt), "offset": receipt.queue_offset} if kind == PLAIN else {}
        self.history.write("acknowledged", id=id, status=receipt.status.name, **place)

    async def send_steadily(self, one: Callable[[], Awaitable[None]]) -> None:
        """`rate` a second, whether answers come or not, until it is to be quiet; then until all have ended."""
        under_way: set[asyncio.Task[None]] = set()
        due = time.monotonic()
        while not self.quiet.is_set():
            due = max(due + 1 / self.orders.rate, time.monotonic() - 1.0)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.quiet.wait(), max(0.0, due - time.monotonic()))
            if len(under_way) < UNDER_WAY_MAX and not self.quiet.is_set():
                task = asyncio.ensure_future(one())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        print("quiet", flush=True)
        await self.over.wait()


def queue_name(receipt: SendReceipt) -> str:
    return f"{receipt.queue.broker_name}/{receipt.queue.queue_id}"


async def produce(client: Client) -> None:
    orders = client.orders
    async with producer_of(orders) as producer:
        await client.send_steadily(lambda: client.send(PLAIN, 0.0, producer.send))


async def delay(client: Client) -> None:
    async with producer_of(client.orders) as producer:

        async def later(message: Message) -> SendReceipt:
            message.delay_level = DELAY_LEVEL
            return await producer.send(message)

        await client.send_steadily(lambda: client.send(DELAYED, time.monotonic() + DELAY_S, later))


def producer_of(orders: Orders) -> Producer:
    timeout = orders.send_timeout_ms
    return Producer(orders.name, orders.namesrv, send_timeout_ms=timeout, delivery_timeout_ms=2 * timeout)


async def transact(client: Client) -> None:
    """Of three transactions one is committed, one rolled back, one in doubt until the broker asks; that one is committed then. No half
    message is sent again by the client: of two that are stored, both would be committed."""
    orders = client.orders

    def number_of(message: Message | ReceivedMessage) -> int:
        return int(message.keys[0].rpartition("-")[2])

    async def execute(message: Message, _argument: object) -> TransactionState:
        return (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)[number_of(message) % 3]

    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK if number_of(message) % 3 == 1 else TransactionState.COMMIT

    async with TransactionProducer(
        orders.name, orders.namesrv, execute=execute, check=check, send_timeout_ms=orders.send_timeout_ms, retries=0
    ) as producer:

        async def in_transaction(message: Message) -> SendReceipt:
            done = await producer.send_in_transaction(message)
            if not done.receipt.ok:  # clients roll back what is less than safe, whatever the transaction says
                raise ClientError(f"the half message was {done.receipt.status}")
            return done.receipt

        def one() -> Awaitable[None]:
            return client.send(ROLLED_BACK if client._next % 3 == 1 else COMMITTED, 0.0, in_transaction)

        await client.send_steadily(one)


async def consume(client: Client) -> None:
    orders = client.orders

    async def take(message: ReceivedMessage) -> None:
        place = {"queue": f"{message.queue.broker_name}/{message.queue_id}", "offset": message.queue_offset}
        client.history.write("read", **named_of(message.body), **place, group=orders.group)

    consumer = PushConsumer(orders.group, orders.namesrv, consume_from="first")
    consumer.subscribe(orders.topic, "*", take)
    async with consumer:
        await client.over.wait()


async def watch(client: Client) -> None:
    """Reads at every broker, over and over: what any of them shows, at any time, must be true."""
    orders = client.orders
    assert orders.nodes is not None
    async with Nodes(orders.namesrv, orders.group, orders.topic, orders.queues) as nodes:
        await asyncio.gather(*(watch_one(client, nodes, name, address) for name, address in orders.nodes.items()))


async def watch_one(client: Client, nodes: Nodes, name: str, address: str) -> None:
    """Goes on where it stopped; some messages again after a failure, when another may answer for the queue."""
    offsets = dict.fromkeys(nodes.queue_ids, 0)
    while not client.over.is_set():
        for queue_id, offset in offsets.items():
            try:
                pulled = await nodes.pull(address, queue_id, offset)
            except (RoquetError, OSError):
                offsets[queue_id] = max(0, offset - 50)
                continue
            for row in pulled.rows:
                client.history.write("read", **row, at_node=name)
            offsets[queue_id] = pulled.next_offset
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(client.over.wait(), WATCH_S)


ROLES: dict[str, Callable[[Client], Awaitable[None]]] = {
    "producer": produce,
    "delayer": delay,
    "transactor": transact,
    "consumer": consume,
    "watcher": watch,
}


async def run(orders: Orders) -> None:
    with Writer(Path(orders.history), orders.name) as history:
        await run_client(Client(orders, history))


async def run_client(client: Client) -> None:
    listening = asyncio.ensure_future(client.listen())
    while not client.over.is_set():
        try:
            await ROLES[client.orders.role](client)
        except RoquetError as error:  # it could not start: nobody it knows was there
            print(f"{client.orders.name}: {error}; it is started again", flush=True)
            await asyncio.sleep(START_AGAIN_S)
    await listening


if __name__ == "__main__":
    asyncio.run(run(Orders(**json.loads(sys.argv[1]))))
