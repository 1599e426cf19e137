"""Sends through the outputs of `service.py`: plain, to everybody, in order with tags, and in transactions."""

import asyncio

from service import app

STEPS = ("created", "paid", "shipped")


async def main() -> None:
    async with app.publishing():
        for number in range(1, 5):
            await app.output("one-to-one-output").send({"id": number})
        await app.output("one-to-many-output").send("a word to all")
        for step in STEPS:
            for number in range(1, 4):
                # The file's subscription takes the tags yuan and a; its partition-key-expression keeps an order id together.
                tag = "other" if number == 3 else "yuan"
                await app.output("one-to-one-order-output").send({"order": number, "is": step}, headers={"orderId": number}, tags=tag)
        for number, cents in ((1, 500), (2, 20_000)):
            await app.output("one-to-one-trans-output").send({"id": number}, headers={"cents": cents})
    print("sent")


asyncio.run(main())
