"""A message that appears when, and only when, a database transaction commits. Run `roquet up` first, then this file."""

import asyncio
import os
import sqlite3

from roquet import Message, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-payments"

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE payments (order_id TEXT PRIMARY KEY, cents INTEGER CHECK (cents > 0))")


async def pay(message: Message, cents: int) -> TransactionState:
    """Runs when the broker has stored the message, but hides it."""
    try:
        with database:
            database.execute("INSERT INTO payments VALUES (?, ?)", (message.keys[0], cents))
    except sqlite3.IntegrityError:
        return TransactionState.ROLLBACK
    return TransactionState.COMMIT


async def was_paid(message: ReceivedMessage) -> TransactionState:
    """A broker that heard nothing asks any producer of the group: after 6 s, then every minute, 15 times."""
    found = database.execute("SELECT 1 FROM payments WHERE order_id = ?", message.keys).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


async def main() -> None:
    arrived: asyncio.Queue[str] = asyncio.Queue()
    consumer = PushConsumer("example_shipping", NAMESRV, consume_from="first")

    @consumer.on(TOPIC)
    async def ship(message: ReceivedMessage) -> None:
        await arrived.put(message.keys[0])

    async with TransactionProducer("example_payments", NAMESRV, execute=pay, check=was_paid) as producer:
        for order_id, cents in (("order-1", -5), ("order-2", 995)):
            result = await producer.send_in_transaction(Message(TOPIC, str(cents).encode(), keys=[order_id]), cents)
            print(f"{order_id}: {result.state}")

        async with consumer, asyncio.timeout(20):
            first = await arrived.get()
    if first != "order-2":
        raise SystemExit(f"{first} was rolled back, and yet its message came")
    print(f"shipped {first}; the message of order-1 never appeared")


if __name__ == "__main__":
    asyncio.run(main())
