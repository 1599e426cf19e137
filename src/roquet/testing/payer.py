"""Payer: sends in transactions, decides them, and answers brokers that ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.transactions import Decided, TransactionState
from roquet.message import Message, ReceivedMessage
from roquet.testing.names import PAID_TOPIC, PAYERS
from roquet.testing.promises import name_of

if TYPE_CHECKING:
    from roquet.testing.client_node import ClientNode

PAUSE_US = 900_000
UNDER_WAY_MAX = 4


class Payer:
    """A send is tried once: a second half message of one transaction would be a message of its own."""

    def __init__(self, node: ClientNode, core: ClientCore) -> None:
        self.node = node
        self.simulation = node.simulation
        self.random = node.random
        self.decisions = node.world.checker.decisions
        self.producer = node.world.cores.transactions(core, PAYERS, self._asked, ProducerSettings(retries=0))
        self._under_way = 0

    def start(self) -> None:
        self.producer.start()
        self._later()

    def _later(self) -> None:
        if not self.node.world.calm:
            self.simulation.after(self.simulation.between(1_000, PAUSE_US), self.node.while_up(self._send))

    def _send(self) -> None:
        self._later()
        if self._under_way >= UNDER_WAY_MAX:
            return
        self.node.count += 1
        name = f"{self.node.label}{self.node.runs}.{self.node.count}t"
        message = Message(PAID_TOPIC, name.encode() + b"|" + bytes(self.random.choice((0, 30, 400))), keys=[name])
        self.node.world.checker.sending(message)
        self.decisions.begins(name.encode())
        self._under_way += 1
        self.producer.client.tasks.start(self.producer.send_in_transaction(message, self._execute), self._done)

    def _done(self, result: object) -> None:
        self._under_way -= 1

    def _execute(self, message: Message, receipt: SendReceipt, decided: Decided) -> None:
        name = name_of(message.body)
        wish = TransactionState.COMMIT if self.random.random() < 0.7 else TransactionState.ROLLBACK

        def decide() -> None:
            state = self.decisions.executes(name, wish)
            self.simulation.note(f"{self.node.label} transaction {name.decode()}: {state}")
            decided(TransactionState.UNKNOWN if self.random.random() < 0.2 else state, "")

        self.simulation.after(self.simulation.between(0, 300_000), self.node.while_up(decide))

    def _asked(self, message: ReceivedMessage, decided: Decided) -> None:
        name = name_of(message.body)
        knows = self.node.world.calm or self.random.random() < 0.8
        state = self.decisions.asked(name) if knows else TransactionState.UNKNOWN
        self.simulation.note(f"{self.node.label} is asked about {name.decode()}: {state}")
        decided(state, "")
