"""Right and wrong uses for a type checker: tests/client/test_types.py runs mypy over this file, and each `# E:` line is an error.

Nothing here is run.
"""

from __future__ import annotations

import roquet
from roquet import (
    RETRY_LATER,
    LitePullConsumer,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    SendReceipt,
    Suspend,
    TransactionProducer,
    TransactionState,
)
from roquet.client import sync

consumer = PushConsumer("g", consume_from="first", strategy="AVG", batch_size=1)
PushConsumer("g", consume_from="earliest")  # E: Argument "consume_from" to "PushConsumer" has incompatible type "Literal['earliest']"
PushConsumer("g", strategy="RANDOM")  # E: Argument "strategy" to "PushConsumer" has incompatible type
PushConsumer("g", nonsense=5)  # E: Unexpected keyword argument "nonsense" for "PushConsumer"
Producer("p", compression="zstd", delivery_timeout_ms=5)
Producer("p", compression="rar")  # E: Argument "compression" to "Producer" has incompatible type "Literal['rar']"
Producer("p", linger_ms=5, batch_bytes=50_000)
Producer("p", linger_ms="5")  # E: Argument "linger_ms" to "Producer" has incompatible type "str"
Producer("p", send_timeout_ms="3")  # E: Argument "send_timeout_ms" to "Producer" has incompatible type "str"
LitePullConsumer("g", consume_from="last").subscribe("t", sql="a > 1")
LitePullConsumer("g", consume_from="latest")  # E: Argument "consume_from" to "LitePullConsumer" has incompatible type "Literal['latest']"


@consumer.on("orders")
async def fine(message: ReceivedMessage) -> None: ...


@consumer.on("orders")
async def undecided(message: ReceivedMessage) -> Outcome | RetryLater | Suspend | bool | None:
    return RETRY_LATER


@consumer.on("orders")
def plain(message: ReceivedMessage) -> bool:
    return True


@consumer.on_orderly("orders")
async def many(messages: list[ReceivedMessage]) -> None: ...


@consumer.on("orders")  # E: Value of type variable "F" of function cannot be "Callable[[ReceivedMessage], Coroutine[Any, Any, str]]"
async def returns_text(message: ReceivedMessage) -> str:
    return "ok"


@consumer.on("orders")  # E: Value of type variable "F" of function cannot be "Callable[[], Coroutine[Any, Any, None]]"
async def without_parameter() -> None: ...


@consumer.on_orderly("orders")  # E: Value of type variable "F" of function cannot be "Callable[[str], None]"
def takes_text(message: str) -> None: ...


reveal_type(fine)  # noqa: F821  # N: Revealed type is "def (message: roquet.message.ReceivedMessage) -> typing.Coroutine[Any, Any, None]"

consumer.subscribe("orders", "*", plain)
consumer.subscribe("orders", "*", takes_text)  # E: Argument 3 to "subscribe" of "PushConsumer" has incompatible type
PushConsumer("g", listener=fine)
PushConsumer("g", listener=without_parameter)  # E: Argument "listener" to "PushConsumer" has incompatible type


async def pay(message: Message, order: str) -> TransactionState:
    return TransactionState.COMMIT


async def was_paid(message: ReceivedMessage) -> TransactionState:
    return TransactionState.ROLLBACK


async def sending() -> None:
    payments = TransactionProducer("p", execute=pay, check=was_paid)
    TransactionProducer("p", execute=pay, check=was_paid, nonsense=5)  # E: Unexpected keyword argument "nonsense" for "TransactionProducer"
    TransactionProducer("p", execute=pay, check=pay)  # E: Argument "check" to "TransactionProducer" has incompatible type
    receipt: SendReceipt = await payments.send(Message("t", b"x"))
    await payments.send("x")  # E: Argument 1 to "send" of "Producer" has incompatible type "str"; expected "Message"
    await payments.cancel(receipt)
    Message("t", b"x", keys=17)  # E: Argument "keys" to "Message" has incompatible type "int"
    Message("t", b"x", tags=["a"])  # E: Argument "tags" to "Message" has incompatible type "list[str]"
    async with roquet.embedded(fast_retries=True) as mq:
        mq.producer(retries=0)
        mq.producer(nonsense=5)  # E: Unexpected keyword argument "nonsense" for "producer" of "Clients"
        mq.consumer(consume_from="earliest")  # E: Argument "consume_from" to "consumer" of "Clients" has incompatible type


def blocking() -> None:
    other = sync.PushConsumer("g", consume_from="first")
    sync.PushConsumer("g", consume_from="earliest")  # E: Argument "consume_from" to "PushConsumer" has incompatible type
    sync.Producer("p", nonsense=5)  # E: Unexpected keyword argument "nonsense" for "Producer"

    @other.on("orders")
    def handle(message: ReceivedMessage) -> None: ...

    @other.on("orders")  # E: Value of type variable "F" of function cannot be "Callable[[str], None]"
    def wrong(message: str) -> None: ...

    with sync.Producer("p") as producer:
        receipt: SendReceipt = producer.send(Message("t", b"x"))
        producer.send("x")  # E: Argument 1 to "send" of "Producer" has incompatible type "str"; expected "Message"
        print(receipt)


class Mine(roquet.Middleware):
    def before_send(self, event: roquet.SendEvent) -> None:
        event.message.properties["request-id"] = 17  # E: Incompatible types in assignment (expression has type "int"

    def after_consume(self, event: roquet.ConsumeEvent) -> None:
        if event.outcome == "dead":  # E: Non-overlapping equality check
            print(event.failed)

    def before_consume(self, event: roquet.SendEvent) -> None: ...  # E: Argument 1 of "before_consume" is incompatible with supertype

    async def closing(self, member: object) -> None: ...


Producer("p", middleware=[Mine()])
sync.PushConsumer("g", middleware=(Mine(),))
LitePullConsumer("g", middleware=[Mine])  # E: List item 0 has incompatible type "type[Mine]"; expected "Middleware"
count: int = sync.Producer("p").stats.sent
late: float = consumer.stats.topics["orders"].durations.p99_ms
wrong: str = consumer.stats.held_back.messages  # E: Incompatible types in assignment (expression has type "int"
