"""TransactionCore: a message that appears when, and only when, a local transaction commits.

half message stored ──> execute() ──> COMMIT or ROLLBACK told to the broker, oneway
                            └──> UNKNOWN, or that word got lost: the broker asks (CHECK_TRANSACTION_STATE) ──> check()
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from roquet.client.core.events import TransactionEvent
from roquet.client.core.failures import BadAnswer
from roquet.client.core.hooks import Hooks
from roquet.client.core.instance import LANGUAGE, ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings, check_message, with_properties
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.stats import ProducerStats
from roquet.client.core.tasks import Wait
from roquet.errors import InvalidMessage, Refused, RoquetError
from roquet.message import Message, Property, ReceivedMessage
from roquet.wire.calls.transactions import CHECK_TRANSACTION_STATE, END_TRANSACTION, CheckTransactionHeader, EndTransactionHeader
from roquet.wire.command import Command
from roquet.wire.ids import parse_offset_message_id

log = logging.getLogger(__name__)

CHECKS_AT_ONCE = 4
CHECKS_HELD_MAX = 2_000
REMARK_MAX = 1_000
IMMUNITY_MAX_S = 7 * 86_400

DELAYS = (Property.DELAY, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELIVER_MS)


class TransactionState(IntEnum):
    """What became of a local transaction. Numbers are those of END_TRANSACTION."""

    UNKNOWN = 0
    """Not decided, or not known here: the broker asks again later, 15 times at most."""
    COMMIT = 8
    ROLLBACK = 12

    def __str__(self) -> str:
        return self.name


class TransactionReceipt(NamedTuple):
    """What became of a message that was sent in a transaction."""

    receipt: SendReceipt
    """Of the half message."""
    state: TransactionState
    """What the broker was told. The word is sent oneway: when it is lost, the broker asks check()."""
    error: str = ""
    """What execute() raised; the state is UNKNOWN then."""


Decided = Callable[[TransactionState, str], None]
"""(state, what went wrong or "")."""
Execute = Callable[[Message, SendReceipt, Decided], None]
Check = Callable[[ReceivedMessage, Decided], None]


class TransactionCore(ProducerCore):
    def __init__(
        self,
        client: ClientCore,
        group: str,
        check: Check,
        settings: ProducerSettings | None = None,
        *,
        checks_at_once: int = CHECKS_AT_ONCE,
        check_immunity_s: int | None = None,
        hooks: Hooks | None = None,
        stats: ProducerStats | None = None,
    ) -> None:
        super().__init__(client, group, settings, hooks=hooks, stats=stats)
        check_immunity(check_immunity_s)
        self.check_immunity_s = check_immunity_s
        self.check = check
        self.checks_at_once = checks_at_once
        self.checking = 0
        self._held: deque[tuple[str, ReceivedMessage, CheckTransactionHeader]] = deque()

    async def close(self) -> None:
        self._held.clear()
        await super().close()

    async def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout_ms: int | None = None, check_immunity_s: int | None = None
    ) -> TransactionReceipt:
        """Store the half message, then `execute(message, receipt, decided)`, then tell the broker what it decided.

        Raises only when the half message was not stored; execute was not called then.
        """
        check_message(message, "send_in_transaction")
        for name in DELAYS:
            if message.properties.get(name, "0") != "0":
                raise InvalidMessage(f"{message!r} is delayed ({name}), which a transactional message cannot be; take the delay out")
        check_immunity(check_immunity_s)
        marks = {Property.TRANSACTION_PREPARED: "true", Property.PRODUCER_GROUP: self.group}
        if check_immunity_s is None and Property.CHECK_IMMUNITY_SECONDS not in message.properties:
            check_immunity_s = self.check_immunity_s
        if check_immunity_s is not None:
            marks[Property.CHECK_IMMUNITY_SECONDS] = str(check_immunity_s)
        half = with_properties(message, marks)
        receipt = await self.sent(half, timeout_ms=timeout_ms)
        shown = with_properties(message, {Property.UNIQUE_KEY: receipt.message_id})  # its id is the transaction's
        if receipt.ok:
            decision: Wait[tuple[TransactionState, str]] = Wait()
            execute(shown, receipt, lambda state, error: decision.end((state, error)))
            state, error = await decision
        else:
            # As safe as asked or not at all: nothing was executed, so nothing may appear.
            state, error = TransactionState.ROLLBACK, f"the half message is stored with {receipt.status}"
        address, untold = "", None
        try:
            address = self._end(receipt, state, error)
        except RoquetError as failure:  # it is decided all the same; the broker will ask
            untold = failure
            log.warning("! the broker is not told that the transaction of %s ended with %s: %s", receipt.message_id, state, failure)
        self._ended(shown, receipt.message_id, receipt.transaction_id, state, address, error, untold)
        return TransactionReceipt(receipt, state, error)

    def _end(self, receipt: SendReceipt, state: TransactionState, error: str) -> str:
        """The address of the broker that is told."""
        try:
            _, offset = parse_offset_message_id(receipt.offset_message_id)
        except Refused as refusal:
            raise BadAnswer(f"the broker stored a half message as {receipt.offset_message_id!r}: {refusal.remark}") from None
        queue = self.namespace.wrap_queue(receipt.queue)
        address = self.address_of(queue)
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=offset,
            commit_or_rollback=int(state),
            msg_id=receipt.message_id,
            from_transaction_check=False,
            transaction_id=receipt.transaction_id,
            topic=queue.topic,
            broker_name=queue.broker_name,
        )
        self._tell(address, header, error)
        return address

    def _ended(
        self,
        message: Message | ReceivedMessage,
        message_id: str,
        transaction_id: str | None,
        state: TransactionState,
        address: str,
        reason: str,
        error: RoquetError | None = None,
        *,
        from_check: bool = False,
    ) -> None:
        hooks = self.hooks
        if hooks is not None and hooks.after_transaction:
            event = TransactionEvent(
                hooks.group, hooks.client_id, message, message.topic, message_id, transaction_id or message_id, state, from_check,
                hooks.now_ms(), broker_address=address, reason=reason, error=error,
            )  # fmt: skip
            hooks.transaction(event)

    def _tell(self, address: str, header: EndTransactionHeader, error: str) -> None:
        command = END_TRANSACTION.request(header, language=LANGUAGE)
        if error:
            command.remark = error[:REMARK_MAX]
        self.client.caller.oneway(address, command)

    # -- when the broker asks

    def check_transaction(self, address: str, message: ReceivedMessage, command: Command) -> None:
        try:
            header = CHECK_TRANSACTION_STATE.read_header(command)
        except Refused as refusal:
            log.warning("! %s asks for a transaction without saying which: %s", address, refusal.remark)
            return
        if not self.started:
            return
        if len(self._held) >= CHECKS_HELD_MAX:
            log.warning("! producer %s leaves a transaction check of %s: %d wait already", self.group, address, len(self._held))
            return  # the broker asks again
        if self.namespace:
            message.record.topic = self.namespace.unwrap(message.record.topic)
        self._held.append((address, message, header))
        self._next_check()

    def _next_check(self) -> None:
        while self._held and self.checking < self.checks_at_once and self.started:
            self.checking += 1
            address, message, header = self._held.popleft()
            self.check(message, partial(self._checked, address, message, header))

    def _checked(self, address: str, message: ReceivedMessage, asked: CheckTransactionHeader, state: TransactionState, error: str) -> None:
        self.checking -= 1
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=int(state),
            msg_id=message.properties.get(Property.UNIQUE_KEY) or asked.msg_id or "",
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=self.namespace.wrap(message.topic),
            broker_name=message.queue.broker_name or None,
        )
        if self.started:
            self._tell(address, header, error)
            self._ended(message, header.msg_id or "", asked.transaction_id, state, address, error, from_check=True)
        self._next_check()


def check_immunity(seconds: int | None) -> None:
    if seconds is not None and not (type(seconds) is int and 0 <= seconds <= IMMUNITY_MAX_S):
        raise InvalidMessage(
            f"check_immunity_s={seconds!r}; allowed are whole seconds, 0 to {IMMUNITY_MAX_S}, or None for the broker's own"
        )
