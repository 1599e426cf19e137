"""TransactionProducer: the asyncio face of TransactionCore.

async def pay(message: Message, order: Order) -> TransactionState:      # runs when the message is stored, but hidden
    async with database.transaction():
        ...                                                             # remember message.transaction_id, or a key of your own
    return TransactionState.COMMIT

async def was_paid(message: ReceivedMessage) -> TransactionState:       # a broker asks when it heard nothing
    return TransactionState.COMMIT if await database.is_paid(message.keys[0]) else TransactionState.ROLLBACK

async with TransactionProducer("payments", "127.0.0.1:9876", execute=pay, check=was_paid) as producer:
    result = await producer.send_in_transaction(Message("paid", b"...", keys=["order-17"]), order)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Unpack

from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.transactions import (
    CHECKS_AT_ONCE,
    Decided,
    TransactionCore,
    TransactionReceipt,
    TransactionState,
    check_immunity,
)
from roquet.client.functions import Functions
from roquet.client.keywords import ProducerKeywords
from roquet.client.producer import Producer
from roquet.errors import ClientError
from roquet.message import Message, ReceivedMessage

log = logging.getLogger(__name__)

UNKNOWN = TransactionState.UNKNOWN
CLOSED = "the producer was closed"

State = TransactionState | None
Execute = Callable[[Message, Any], State | Awaitable[State]]
"""(the message, the argument given to send_in_transaction) -> TransactionState; None is UNKNOWN. async, or plain (then in a thread)."""
Check = Callable[[ReceivedMessage], State | Awaitable[State]]
"""(the half message) -> TransactionState; None is UNKNOWN. async, or plain."""


class TransactionProducer(Producer):
    """A producer whose messages can depend on a local transaction. `send` and the rest send ordinary messages."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        execute: Execute,
        check: Check,
        checks_at_once: int = CHECKS_AT_ONCE,
        check_immunity_s: int | None = None,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        """`checks_at_once`: calls of `check` at the same time; brokers may ask for many. `check_immunity_s`: for so many seconds after a
        message was sent no broker asks about it, since execute() may take so long; None: the broker's transactionTimeOut, usually 6 s.
        The rest are Producer's settings."""
        super().__init__(group, namesrv, **settings)
        if not 1 <= checks_at_once <= 1_000:
            raise ClientError(f"checks_at_once={checks_at_once}; allowed are 1 to 1000")
        self._execute = execute
        self._check = check
        self._checks_at_once = checks_at_once
        check_immunity(check_immunity_s)
        self._check_immunity_s = check_immunity_s
        self._functions = Functions(group, 20 + checks_at_once)

    def _make(self, client: ClientCore) -> ProducerCore:
        self._functions.open()
        return TransactionCore(
            client, self.group, self._ask_check, self.settings,
            checks_at_once=self._checks_at_once, check_immunity_s=self._check_immunity_s, hooks=self._hooks, stats=self._stats,
        )  # fmt: skip

    async def _closing(self, core: ProducerCore) -> None:
        self._functions.close()

    def calls(self) -> set[asyncio.Task[None]]:
        """Calls of handlers that the loop still has."""
        return self._functions.tasks

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_ms: int | None = None, check_immunity_s: int | None = None
    ) -> TransactionReceipt:
        """Store the message hidden, call execute(message, argument), and show the message or drop it as that says. `check_immunity_s`: in
        place of the producer's.

        Raises what send raises when the message was not stored; execute was not called then. What execute raises is raised
        here too: the broker was told UNKNOWN, since nobody knows how far the transaction came, and it will call check.
        """
        core = self._part()
        assert isinstance(core, TransactionCore)

        failures: list[BaseException] = []

        def execute(given: Message, _: SendReceipt, decided: Decided) -> None:
            self._begin_call(decided, self._execute, given, argument, failures=failures)

        receipt = await self._wait(core.send_in_transaction(message, execute, timeout_ms=timeout_ms, check_immunity_s=check_immunity_s))
        for failure in failures:
            failure.add_note(f"the transaction of message {receipt.receipt.message_id} is UNKNOWN: a broker will ask check() how it ended")
            raise failure
        return receipt

    def _ask_check(self, message: ReceivedMessage, decided: Decided) -> None:
        self._begin_call(decided, self._check, message)

    def _begin_call(self, decided: Decided, function: Callable[..., Any], *args: Any, failures: list[BaseException] | None = None) -> None:
        told = False

        def once(state: TransactionState, error: str) -> None:
            nonlocal told
            if not told:
                told = True
                decided(state, error)

        self._functions.begin(self._decide, (once, failures, function, *args), partial(once, UNKNOWN, CLOSED))

    async def _decide(self, decided: Decided, failures: list[BaseException] | None, function: Callable[..., Any], *args: Any) -> None:
        """`failures`: somebody waits who is given what the function raises; else it is logged."""
        state, error = UNKNOWN, CLOSED
        try:
            answer = await self._functions.call(function, *args)
            error = ""
            if isinstance(answer, TransactionState):
                state = answer
            elif answer is not None:
                error = f"{function!r} returned {answer!r}, which is no TransactionState"
                log.error("! producer %s: %s; it counts as UNKNOWN", self.group, error)
        except (Exception, SystemExit, KeyboardInterrupt) as failure:
            error = repr(failure)
            if failures is not None:
                failures.append(failure)
                return
            log.exception("! producer %s: the transaction of %r is not decided", self.group, args[0])
        finally:
            decided(state, error)
