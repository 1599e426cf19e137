"""What middleware is told about: a send, a call of a handler, the end of a transaction, a request to a server.

Times of beginnings are wall time, ms since 1970; durations are the steady clock's. Names of topics and groups are the user's, without the
namespace. `data` belongs to the hooks: what before_... puts there, after_... finds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from roquet.message import Message, MessageQueue, Property, ReceivedMessage

if TYPE_CHECKING:
    from roquet.client.core.receipt import SendReceipt
    from roquet.client.core.transactions import TransactionState

SendKind = Literal["normal", "delay", "timed", "half", "request", "reply", "oneway"]
"""A message with a delay level, with a time, of a transaction, that asks for a reply, that is one, or that is sent without an answer."""
ConsumeOutcome = Literal["success", "retry", "dead letter", "suspend", "given up"]
"""What becomes of the messages that a handler was called with:

    success       they are done
    retry         they come again, after a time that grows
    dead letter   they failed as often as reconsume_times_max allows, or the handler said so. Without that setting the group's own limit
                  holds, which only its broker knows: then each failure is a retry
    suspend       orderly: the same ones come again after a moment, and their queue waits
    given up      broadcasting: they failed and do not come again
"""

TIMED = (Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SEC, Property.TIMER_DELIVER_MS, Property.START_DELIVER_TIME)


@dataclass(slots=True, eq=False)
class SendEvent:
    """One message on its way to a broker, from the call of send to the receipt or the error."""

    group: str
    client_id: str
    message: Message
    """As it goes out: a copy of the user's. before_send may add properties to it."""
    topic: str
    kind: SendKind
    begun_ms: int
    queue: MessageQueue | None = None
    """The chosen one; after_send: the one it was stored in, or last tried at."""
    batch_size: int = 1
    """Messages that were given to send_batch together."""
    broker_address: str = ""
    """after_send: of the broker that stored it, or was tried last; "" when none was."""
    duration_ms: int = 0
    receipt: SendReceipt | None = None
    error: BaseException | None = None
    """Both None: sent oneway."""
    data: dict[str, Any] = field(default_factory=dict)
    steady_ms: int = field(default=0, repr=False)
    """When it began, by the steady clock."""

    @property
    def message_id(self) -> str:
        """The id that consumers see. It is known before the message goes out."""
        return self.message.properties.get(Property.UNIQUE_KEY, "")


@dataclass(slots=True, eq=False)
class ConsumeEvent:
    """One call of a handler. Of a LitePullConsumer: from a poll that returns messages to the next one."""

    group: str
    client_id: str
    messages: list[ReceivedMessage]
    """Of one queue and one topic."""
    topic: str
    queue: MessageQueue
    begun_ms: int
    attempt: int
    """Of the first message: 1 when it was never tried before."""
    orderly: bool = False
    batch_size: int = 1
    duration_ms: int = 0
    outcome: ConsumeOutcome = "success"
    failed: list[ReceivedMessage] = field(default_factory=list)
    """after_consume: of the messages, those that the handler is not done with."""
    error: BaseException | None = None
    """What the handler raised."""
    data: dict[str, Any] = field(default_factory=dict)
    steady_ms: int = field(default=0, repr=False)


@dataclass(slots=True, eq=False)
class TransactionEvent:
    """A broker was told how a transaction ended, after execute() or after a check()."""

    group: str
    client_id: str
    message: Message | ReceivedMessage
    """What execute(), or check(), got to see."""
    topic: str
    message_id: str
    transaction_id: str
    state: TransactionState
    from_check: bool
    """A broker asked, and check() answered."""
    begun_ms: int
    """When it was told."""
    broker_address: str = ""
    reason: str = ""
    """What execute() or check() raised, in words; the state is UNKNOWN then."""
    error: BaseException | None = None
    """Why the broker could not be told; it will ask."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class CallEvent:
    """One request to a server: a send, a pull, a heartbeat, a question for a route. Each attempt of a send is one."""

    client_id: str
    address: str
    code: int
    """The protocol's number of the request."""
    name: str
    """The same as a word: SEND_MESSAGE_V2, PULL_MESSAGE."""
    oneway: bool
    begun_ms: int
    duration_ms: int = 0
    answer_code: int | None = None
    """What the server answered, 0 for success. None: it did not, or nobody waits for it."""
    error: BaseException | None = None
    """Why there is no answer."""
    data: dict[str, Any] = field(default_factory=dict)
    steady_ms: int = field(default=0, repr=False)


def kind_of(message: Message) -> SendKind:
    """By its properties."""
    properties = message.properties
    if not properties:
        return "normal"
    if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
        return "half"
    if any(name in properties for name in TIMED):
        return "timed"
    if Property.DELAY in properties:
        return "delay"
    if properties.get(Property.MESSAGE_TYPE) == "reply":
        return "reply"
    return "request" if Property.CORRELATION_ID in properties else "normal"
