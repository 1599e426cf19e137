"""Chapter 4: a shop. Four orders, and what the broker does so that none is lost, shipped wrongly or forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable

from stage import Broken, Stage, say

from roquet import Admin, Message, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState
from roquet.admin.dead_letters import Choice, DeadLetters
from roquet.client import RETRY_LATER, SendReceipt
from roquet.client.core.verdicts import Outcome
from roquet.errors import NoRoute, Rejected

ORDERS, TIMEOUTS = "demo-orders", "demo-order-timeouts"
WAREHOUSE, CASHIER = "demo_warehouse", "demo_cashier"
PAY_WITHIN_S = 3.0
PATIENCE_S = 20
SETTINGS = {
    "messageDelayLevel": " ".join(["1s"] * 18),  # retries wait one second, not 10 s, 30 s, 1 min, ... : a demo is short
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
}


class Shop:
    """Its database, and the two functions that tie messages to what is in it."""

    def __init__(self) -> None:
        self.database: dict[str, str] = {}
        self.asked: list[str] = []
        self.timers: dict[str, tuple[SendReceipt, float]] = {}  # of an order: the timer's receipt, and when it is due

    async def take(self, message: Message, verdict: TransactionState) -> TransactionState:
        """Runs when the broker has the message, but hides it."""
        if verdict is not TransactionState.ROLLBACK:
            self.database[message.keys[0]] = "taken"
        return verdict

    async def is_taken(self, message: ReceivedMessage) -> TransactionState:
        """The broker asks, because it heard nothing."""
        self.asked.append(message.keys[0])
        return TransactionState.COMMIT if message.keys[0] in self.database else TransactionState.ROLLBACK

    async def order(self, producer: TransactionProducer, name: str, verdict: TransactionState) -> None:
        result = await producer.send_in_transaction(Message(ORDERS, f"ship {name}".encode(), keys=[name]), verdict)
        expect(result.receipt.ok and result.state is verdict, f"the transaction of {name} ended with {result}")

    async def start_timer(self, producer: TransactionProducer, name: str) -> None:
        """Wakes the cashier when the time to pay is over."""
        message = Message(TIMEOUTS, name.encode(), keys=[name], deliver_after=PAY_WITHIN_S)
        due = time.time() + PAY_WITHIN_S
        self.timers[name] = await producer.send(message), due


class Warehouse:
    """Ships orders. Its printer has no paper at first, and it cannot read the address of order-20."""

    def __init__(self) -> None:
        self.attempts: defaultdict[str, list[int]] = defaultdict(list)  # how often each attempt had failed before
        self.shipped: dict[str, ReceivedMessage] = {}
        self.address_is_readable = False

    async def ship(self, message: ReceivedMessage) -> Outcome | None:
        name = message.keys[0]
        self.attempts[name].append(message.reconsume_times)
        if name == "order-17" and message.reconsume_times == 0:
            return RETRY_LATER
        if name == "order-20" and not self.address_is_readable:
            return RETRY_LATER
        self.shipped[name] = message
        return None


async def order_flow(stage: Stage) -> None:
    """A shop: a transaction, a timed cancel, a retry, a dead letter and its re-drive."""
    broker = await stage.broker("broker-shop", "ShopCluster", SETTINGS)
    shop, warehouse, timed_out = Shop(), Warehouse(), dict[str, float]()

    async def cancel_order(message: ReceivedMessage) -> None:
        name = message.keys[0]
        shop.database[name] = "cancelled"
        timed_out[name] = time.time()

    async with Admin(stage.namesrv) as admin:
        for topic in (ORDERS, TIMEOUTS):
            await admin.create_topic(topic, read_queues=2, write_queues=2, cluster="ShopCluster")
        # After the second failed attempt a message is a dead letter; without this, after the 17th.
        workers = PushConsumer(WAREHOUSE, stage.namesrv, consume_from="first", reconsume_times_max=1)
        workers.subscribe(ORDERS, "*", warehouse.ship)
        cashier = PushConsumer(CASHIER, stage.namesrv, consume_from="first")
        cashier.subscribe(TIMEOUTS, "*", cancel_order)
        async with TransactionProducer("demo_shop", stage.namesrv, execute=shop.take, check=shop.is_taken) as producer, workers, cashier:
            await transactions(shop, warehouse, producer)
            await timers(shop, timed_out, producer)
            await retry(warehouse)
            await dead_letter(warehouse, admin)
        attempts = {"order-17": [0, 1], "order-19": [0], "order-20": [0, 1, 0]}  # each number: failures before it
        expect(warehouse.attempts == attempts, f"the warehouse's attempts were {dict(warehouse.attempts)}")
        expect("order-17" not in timed_out, "the timer of order-17 fired although it was cancelled")
        expect(shop.database == {"order-17": "paid", "order-19": "cancelled", "order-20": "taken"}, f"the database has {shop.database}")
    stage.fact("orders", "1 rolled back, 1 asked about, 1 timer cancelled, 1 fired, 1 retried, 1 dead letter sent again")
    await broker.stop()


async def transactions(shop: Shop, warehouse: Warehouse, producer: TransactionProducer) -> None:
    await shop.order(producer, "order-17", TransactionState.COMMIT)
    await shop.order(producer, "order-18", TransactionState.ROLLBACK)
    await shop.order(producer, "order-20", TransactionState.COMMIT)
    say("Four orders come in. order-17 is in the shop's database, and its message was committed with it: the warehouse sees it.")
    say("order-18 was refused by the database, and its message was rolled back: nobody will ever see it.")
    await shop.order(producer, "order-19", TransactionState.UNKNOWN)
    expect("order-19" not in warehouse.attempts, "the warehouse saw an order whose transaction was open")
    await until(lambda: "order-19" in warehouse.shipped, "order-19 to be shipped")
    expect("order-19" in shop.asked and "order-17" not in shop.asked, f"the broker asked about {shop.asked}")
    say("order-19 was written, but the shop never said so. The broker asked, the shop looked it up, and now it is shipped too.")


async def timers(shop: Shop, timed_out: dict[str, float], producer: TransactionProducer) -> None:
    for name in ("order-17", "order-19"):
        await shop.start_timer(producer, name)
    shop.database["order-17"] = "paid"
    receipt, _ = shop.timers["order-17"]
    await producer.cancel(receipt)
    say(f"Both must be paid within {PAY_WITHIN_S:g} s: a message timed for then will say so. order-17 is paid, so its timer is cancelled.")
    await until(lambda: "order-19" in timed_out, "the timer of order-19")
    _, due = shop.timers["order-19"]
    late = timed_out["order-19"] - due
    expect(late > -0.01, f"the timer of order-19 fired {-late:.2f} s early")  # the broker counts whole milliseconds
    expect("order-17" not in timed_out, "the timer of order-17 fired although it was cancelled")
    say(f"order-19 was not paid: its timer fired {max(0.0, late) * 1000:.0f} ms after the {PAY_WITHIN_S:g} s, and the order is cancelled.")
    try:
        await producer.cancel(shop.timers["order-19"][0])
    except Rejected:
        say("Cancelling that timer now is refused: it has fired.")
    else:
        raise Broken("a timer that had fired could be cancelled")


async def retry(warehouse: Warehouse) -> None:
    await until(lambda: "order-17" in warehouse.shipped, "order-17 to be shipped")
    expect(warehouse.attempts["order-17"] == [0, 1], f"order-17 came with {warehouse.attempts['order-17']} failures behind it")
    waited = warehouse.shipped["order-17"].store_timestamp - warehouse.shipped["order-17"].born_timestamp
    expect(waited >= 1_000, f"order-17 came again {waited} ms after it was sent, expected was a second at least")
    say("order-17 failed in the warehouse once (no paper in the printer). It came again after a second, and is shipped.")


async def dead_letter(warehouse: Warehouse, admin: Admin) -> None:
    dead = DeadLetters(admin, WAREHOUSE)
    letters: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while not letters:
            await asyncio.sleep(0.1)
            with contextlib.suppress(NoRoute):  # the topic is made for the first of them
                letters = [letter async for letter in dead.letters()]
    expect([letter.keys for letter in letters] == [["order-20"]], f"the dead letters are {letters}")
    expect(warehouse.attempts["order-20"] == [0, 1], f"order-20 came with {warehouse.attempts['order-20']} failures behind it")
    say("order-20 failed twice (nobody could read the address), which is all this group allows: now it is a dead letter, kept aside.")
    warehouse.address_is_readable = True
    async with dead:
        first = await dead.replay(await dead.plan(Choice()))
        second = await dead.replay(await dead.plan(Choice()))
    expect((first.sent, first.failed, second.sent, second.failed) == (1, "", 0, ""), f"the re-drive ended with {first} and {second}")
    await until(lambda: "order-20" in warehouse.shipped, "order-20 to be shipped")
    say("Somebody looked the address up and sent the dead letters again: order-20 is shipped. A second re-drive found nothing to send.")


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for it. Raises Broken when it does not come true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise Broken(f"waited {PATIENCE_S} s for {what}")
        await asyncio.sleep(0.02)
