"""Reader: sees what any consumer could see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.client.core.instance import ClientCore
from roquet.client.core.pull_consumer import PullConsumerCore
from roquet.client.core.pulling import PullResult, PullStatus
from roquet.errors import RoquetError
from roquet.message import MessageQueue
from roquet.testing.names import READERS
from roquet.testing.simulation import SECOND

if TYPE_CHECKING:
    from roquet.testing.client_node import ClientNode


class Reader:
    """Reads every queue from the start and commits nothing."""

    def __init__(self, node: ClientNode, core: ClientCore) -> None:
        self.node = node
        self.checker = node.world.checker
        self.simulation = node.simulation
        self.consumer = PullConsumerCore(core, READERS)
        self._reading: set[MessageQueue] = set()

    def start(self) -> None:
        self.consumer.start()
        self._look()

    def _look(self) -> None:
        for topic in self.node.world.topics:
            self.consumer.client.tasks.start(self.consumer.fetch_queues(topic), self._found)
        self.simulation.after(2 * SECOND, self.node.while_up(self._look))

    def _found(self, queues: list[MessageQueue] | RoquetError) -> None:
        if isinstance(queues, list):
            for queue in queues:
                if queue not in self._reading:
                    self._reading.add(queue)
                    self._read(queue, 0)

    def _read(self, queue: MessageQueue, offset: int) -> None:
        promises = self.checker.of(queue.broker_name)

        def done(result: PullResult | RoquetError) -> None:
            if isinstance(result, RoquetError):
                self._again(queue, offset, 500_000)
                return
            if result.status is PullStatus.OFFSET_ILLEGAL:
                promises.sent_back(queue.topic, queue.queue_id, offset, result.next_offset)
                self._again(queue, result.next_offset, 200_000)
                return
            promises.saw_end(queue.topic, queue.queue_id, result.max_offset)
            for message in result.messages:
                promises.showed(message)
                self.checker.consume(READERS, message)
            self._again(queue, result.next_offset, 10_000 if result.next_offset > offset else 100_000)

        self.consumer.client.tasks.start(self.consumer.pull(queue, offset, block_ms=4_000), done)

    def _again(self, queue: MessageQueue, offset: int, delay_us: int) -> None:
        self.simulation.after(delay_us, self.node.while_up(lambda: self._read(queue, offset)))
