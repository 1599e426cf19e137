"""Wrong payload types: each `# E:` line is an error of mypy. tests/client/test_types.py runs it over this file.

It stands here because mypy does not look into this folder otherwise. Nothing here is run."""

from __future__ import annotations

from dataclasses import dataclass

from roquet import RetryLater
from roquet.app import App


@dataclass
class Order:
    id: int


@dataclass
class Shipment:
    order: int


app = App()
orders = app.publisher("orders", Order, key=lambda order: order.id)
app.publisher("orders", Order, key=lambda order: order.number)  # E: "Order" has no attribute "number"
App(nonsense=5)  # E: Unexpected keyword argument "nonsense" for "App"
App(producer={"linger": 5})  # E: Argument "producer" to "App" has incompatible type


@app.consumer("orders", payload=Order)  # E: Argument 1 to "__call__" of "Takes" has incompatible type "Callable[[Shipment]
async def other_payload(shipment: Shipment) -> None: ...


@app.consumer("orders", payload=Order, batch=10)  # E: Argument 1 to "__call__" of "Takes" has incompatible type "Callable[[Order]
async def one_of_a_batch(order: Order) -> None: ...


@app.consumer("orders", payload=Order)  # E: Argument 1 to "__call__" of "Takes" has incompatible type "Callable[[list[Order]]
async def batch_of_one(orders: list[Order]) -> None: ...


@app.consumer("orders", payload=Order)  # E: Argument 1 to "__call__" of "Takes" has incompatible type "Callable[[]
async def without_payload() -> None: ...


@app.consumer("orders", consume_from="earliest")  # E: No overload variant of "consumer" of "App" matches argument types "str", "str"
async def from_where(order: Order) -> None: ...


@orders  # E: Argument 1 to "__call__" of "Publisher" has incompatible type "Callable[[int], Coroutine[Any, Any, Shipment]]"
@app.consumer("numbers")
async def wrong_result(number: int) -> Shipment:
    return Shipment(number)


@orders  # E: Argument 1 to "__call__" of "Publisher" has incompatible type "Callable[[int], str]"
@app.consumer("numbers")
def wrong_plain_result(number: int) -> str:
    return str(number)


@orders
@app.consumer("numbers")
async def right_result(number: int) -> Order | RetryLater | None:
    return Order(number)


async def send() -> None:
    await orders.publish(Order(1), tags="paid")
    await orders.publish(Shipment(1))  # E: Argument 1 to "publish" of "Publisher" has incompatible type "Shipment"; expected "Order"
    await orders.publish({"id": 1})  # E: Argument 1 to "publish" of "Publisher" has incompatible type "dict[str, int]"; expected "Order"
    await app.publish("orders", Order(1), tag="paid")  # E: Unexpected keyword argument "tag" for "publish" of "App"
    await app.publish("orders", Order(1), key=17)  # E: Argument "key" to "publish" of "App" has incompatible type "int"
    await right_result("17")  # E: Argument 1 to "right_result" has incompatible type "str"; expected "int"
