"""A service of Spring Cloud Stream whose settings stay as they are, with Python functions in place of its Java ones.

The files beside this one are the blocks of a Spring project, as people write them; `ours.yml` adds what they leave open. Run `roquet up`
first, then this file in two terminals, and `send.py` in a third one. Ctrl-C ends it; what runs is finished.
"""

from pathlib import Path

from roquet import Message, ReceivedMessage, TransactionState
from roquet.app import App

HERE = Path(__file__).parent
FILES = ("plain", "broadcast", "ordered", "filtered", "transactions", "transaction_consumer", "ours")

app = App.from_file(*(HERE / f"{name}.yml" for name in FILES))


@app.bind("one-to-one-input")
async def one_of_us(order: dict[str, int]) -> None:
    print(f"one of us got order {order['id']}", flush=True)


@app.bind("one-to-many-input")
async def all_of_us(text: str) -> None:
    print(f"all of us got {text}", flush=True)


@app.bind("one-to-one-order-input")
async def in_order(step: dict[str, int | str]) -> None:
    print(f"order {step['order']} is {step['is']}", flush=True)


@app.bind("one-to-one-trans-input")
async def paid(payment: dict[str, int]) -> None:
    print(f"payment {payment['id']} was committed", flush=True)


class Payments:
    """What the file calls oneToOneTransListener."""

    def execute(self, message: Message, argument: object) -> TransactionState:
        return TransactionState.COMMIT if int(message.properties["cents"]) <= 10_000 else TransactionState.ROLLBACK

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.ROLLBACK  # whoever executed it is gone, and has not paid


app.bean("oneToOneTransListener", Payments())


@app.on_startup
def ready() -> None:
    print("ready", flush=True)


if __name__ == "__main__":
    app.run()
