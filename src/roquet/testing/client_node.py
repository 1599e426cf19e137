"""ClientNode: a simulated machine that runs a client process."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.push_consumer import FROM_FIRST, PushConsumerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.verdicts import Judged, Outcome
from roquet.errors import RoquetError
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.testing.names import GROUP, TOPICS
from roquet.testing.network import SimCaller
from roquet.testing.node import Node
from roquet.testing.payer import Payer
from roquet.testing.promises import Violation, name_of
from roquet.testing.reader import Reader

if TYPE_CHECKING:
    from roquet.testing.world import World


CALM_PAUSES = 4
"""When the faults are over, messages come so much slower."""


class KeyOrder:
    """Messages of one key that one process sent to one queue stand there in the order in which it sent them."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._last: dict[tuple[str, MessageQueue], tuple[int, int]] = {}

    def acked(self, key: str, number: int, receipt: SendReceipt) -> None:
        """The process's message with this number, counted from its first, was acknowledged."""
        before, offset = self._last.get((key, receipt.queue), (-1, -1))
        if (number > before) != (receipt.queue_offset > offset):
            raise Violation(
                f"{self.who}: message {number} of key {key!r} stands at {receipt.queue} @{receipt.queue_offset}, and message {before}"
                f" at @{offset}"
            )
        self._last[key, receipt.queue] = max((before, offset), (number, receipt.queue_offset))


class ClientNode(Node):
    """What a process sent and consumed before it died is remembered by the checker, not by it."""

    core: ClientCore | None = None

    def __init__(self, world: World, number: int, *, produces: bool, consumes: bool, reads: bool, transacts: bool = False) -> None:
        self.label = chr(ord("A") + number)
        super().__init__(world, f"client {self.label}", f"10.0.3.{number + 1}:0")
        self.produces = produces
        self.consumes = consumes
        self.reads = reads
        self.transacts = transacts
        self.count = 0
        self.finished: set[str] = set()
        """The broker groups that acknowledged a message of its after the faults ended."""
        self.pause_us = self.random.choice((250_000, 600_000, 1_500_000))
        self.under_way = 0
        self._caller: SimCaller | None = None
        self._producer: ProducerCore | None = None
        self._order = KeyOrder(self.name)
        self._alarm_ms = 0

    def unrest(self) -> str:
        """What it still has to do when nothing has gone wrong for a while; "" when all is done."""
        if not self.up:
            return f"{self.name} is down"
        left = self._left()
        return f"{self.name} had no message acknowledged by {', '.join(left)}" if left else ""

    def _left(self) -> list[str]:
        return [group.name for group in self.world.groups if group.name not in self.finished] if self.produces else []

    def _begin(self) -> None:
        world, simulation, cores = self.world, self.simulation, self.world.cores
        self.under_way = 0
        simulation.note(f"= {self.name} starts")
        caller = self._caller = SimCaller(world.network, self.host)
        core = self.core = ClientCore(
            name_servers=world.name_server_addresses,
            client_id=f"{self.host}@{self.label}" + (f"#{self.runs}" if self.random.random() < 0.5 else ""),
            caller=caller,
            clock=self.clock,
            random=Random(f"client core {self.label} {self.runs} {simulation.seed}"),
            ip=bytes(int(part) for part in self.host.split(".")),
            pid=self.runs,
        )
        caller.handler = core.receive
        self._alarm_ms = 1 << 62
        core.timers.on_sooner = self._arm
        self._arm(core.next_due_ms())
        if self.produces:
            # Of its own, so that it changes nothing else in the seed's story.
            linger_ms = Random(f"linger {self.label} {self.runs} {simulation.seed}").choice((None, 5, 200))
            settings_of_sends = ProducerSettings(compress_over=600, linger_ms=linger_ms)
            self._producer = cores.producer(core, f"sim-producers-{self.label}", settings_of_sends)
            self._order = KeyOrder(f"{self.name}, run {self.runs}")
            self._producer.start()
            self._send_later()
        if self.transacts:
            Payer(self, core).start()
        if self.consumes:
            settings = PushConsumerSettings(consume_from=FROM_FIRST, pull_batch_size=self.random.choice((2, 32)), suspend_ms=5_000)
            consumer = cores.consumer(core, GROUP, self._consume, settings)
            for topic in self.world.topics:
                consumer.subscribe(topic)
            consumer.start()
        if self.reads:
            Reader(self, core).start()

    def _end(self, slowest_us: int) -> None:
        core, self.core = self.core, None
        self._producer = None
        if self._caller is not None:
            self._caller.kill()
        if core is not None:
            core.timers.on_sooner = None
            core.close()

    # Time

    def _arm(self, due_ms: int) -> None:
        if due_ms < self._alarm_ms:
            self._alarm_ms = due_ms
            delay_us = max(1_000, (due_ms - self.clock.steady_ms()) * 1_000)
            self.simulation.after(delay_us, self.while_up(lambda: self._ring(due_ms)))

    def _ring(self, alarm_ms: int) -> None:
        core = self.core
        if core is None or alarm_ms != self._alarm_ms:
            return
        self._alarm_ms = 1 << 62
        core.tick(self.clock.steady_ms())
        self._arm(core.next_due_ms())

    # Sending

    def _send_later(self) -> None:
        calm = self.world.calm
        if not calm or self._left():
            pause = self.simulation.between(1_000, self.pause_us * (CALM_PAUSES if calm else 1))
            self.simulation.after(pause, self.while_up(self._send))

    def _send(self) -> None:
        producer, random = self._producer, self.random
        assert producer is not None
        self._send_later()
        if self.under_way >= 16:
            return
        if random.random() < 0.1:
            self._send_batch(producer)
            return
        queue = None
        message = self._message(random.choice(TOPICS))
        if random.random() < 0.1 and self.count > 20:
            queue = MessageQueue(message.topic, random.choice(self.world.groups).name, 0)
        self._send_one(producer, message, queue=queue)
        if producer.gathering is not None:
            for _ in range(random.choice((0, 0, 3, 15))):
                key = random.choice((None, "left", "right"))
                self._send_one(producer, self._message(message.topic), key=key)

    def _send_one(self, producer: ProducerCore, message: Message, *, queue: MessageQueue | None = None, key: str | None = None) -> None:
        last = self.world.calm
        self.under_way += 1
        number = self.count
        order = self._order

        def done(result: SendReceipt | RoquetError) -> None:
            self.under_way -= 1
            if isinstance(result, SendReceipt):
                self._acked(message, result, once=not sending.attempts)
                kept = result.ok and message.wait_store_ok and not self.world.checker.of(result.queue.broker_name).lossy
                if key is not None and kept:
                    order.acked(key, number, result)
                if last and result.ok:
                    self.finished.add(result.queue.broker_name)
            else:
                self.simulation.note(f"{self.label} send {name_of(message.body).decode()} failed: {type(result).__name__}")

        sending = producer.send(message, done, queue=queue, key=key)

    def _send_batch(self, producer: ProducerCore) -> None:
        topic = self.random.choice(TOPICS)
        messages = [self._message(topic, batch=True) for _ in range(self.random.randint(1, 12))]
        self.under_way += 1

        def done(result: Sequence[SendReceipt] | RoquetError) -> None:
            self.under_way -= 1
            if isinstance(result, Sequence):
                for message, receipt in zip(messages, result, strict=True):
                    self._acked(message, receipt)

        producer.client.tasks.start(producer.send_batch(messages), done)

    def _message(self, topic: str, *, batch: bool = False) -> Message:
        random = self.random
        self.count += 1
        name = f"{self.label}{self.runs}.{self.count}"
        size = random.choice((0, 5, 40, 200, 700, 1_500 if random.random() < 0.5 else 3))
        filler = random.randbytes(size) if random.random() < 0.5 else b"roquet" * (size // 6)
        message = Message(
            topic,
            name.encode() + b"|" + filler,
            tags=random.choice(("", "red", "blue")),
            keys=random.choice(([], [name], [name, "all"])),
            properties={"count": str(self.count)} if random.random() < 0.3 else None,
            flag=random.choice((0, 7)),
            wait_store_ok=batch or random.random() < 0.95,
        )
        self.world.checker.sending(message)
        return message

    def _acked(self, message: Message, receipt: SendReceipt, *, once: bool = False) -> None:
        queue = receipt.queue
        place = f"{queue.broker_name} {queue.topic}/{queue.queue_id}@{receipt.queue_offset}"
        self.simulation.note(f"{self.label} sent {name_of(message.body).decode()} to {place}: {receipt.status.name}")
        self.world.checker.of(queue.broker_name).acknowledged(message, receipt, once=once)

    # Consuming

    def _consume(self, messages: list[ReceivedMessage], judge: Judged) -> None:
        for message in messages:
            self.simulation.note(f"{self.label} got {name_of(message.body).decode()}")
            self.world.checker.of(message.queue.broker_name).showed(message)
        # A few fail, twice at most: the broker brings them again ten seconds later, then thirty.
        fails = self.random.random() < self.world.fails and messages[0].reconsume_times < 2
        if fails:
            self.world.checker.failed.update(name_of(message.body) for message in messages)

        def judged() -> None:
            if not fails:
                for message in messages:
                    self.world.checker.consume(GROUP, message)
            judge(Outcome.RETRY_LATER if fails else Outcome.SUCCESS)

        self.simulation.after(self.simulation.between(0, 50_000), self.while_up(judged))
