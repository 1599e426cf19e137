"""The life of orders: created, paid, shipped, refunded, in that order for each order. Run `roquet up` first, then this file."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass

from roquet import Suspend
from roquet.app import App, Attempt

LIFE = ("created", "paid", "shipped", "refunded")
ORDERS = range(1, 7)


@dataclass
class Event:
    order: int
    step: str


app = App(group="example_order_life", consumer={"consume_from": "first"})
# The order key chooses the queue: events of one order stay in one queue, in the order in which they were sent.
events = app.publisher("example-order-life", Event, key=lambda event: f"{event.order}-{event.step}", order_key=lambda event: event.order)

lives: defaultdict[int, list[str]] = defaultdict(list)
over = asyncio.Event()


# Orderly: a queue has one consumer at a time, which gets its messages one after the other.
@app.consumer("example-order-life", orderly=True)
async def follow(event: Event, attempt: Attempt) -> Suspend | None:
    if event == Event(2, "paid") and attempt == 1:
        print("order 2: the bank does not answer")
        return Suspend(100)  # the same event again after 100 ms; nothing of its queue overtakes it
    lives[event.order].append(event.step)
    print(f"order {event.order}: {event.step}")
    if sum(map(len, lives.values())) == len(ORDERS) * len(LIFE):
        over.set()
    return None


@app.on_startup
async def make_topic(app: App) -> None:
    await app.producer.create_topic("example-order-life", queues=4)


async def main() -> None:
    async with app, asyncio.timeout(30):
        for step in LIFE:
            for order in ORDERS:
                await events.publish(Event(order, step))
        await over.wait()
    for order in ORDERS:
        if tuple(lives[order]) != LIFE:
            raise SystemExit(f"order {order} was {', '.join(lives[order])}")
    print("every order was created, paid, shipped and refunded, in that order")


if __name__ == "__main__":
    asyncio.run(main())
