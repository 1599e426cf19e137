"""The payment service: one payment for each order, however often its message comes.

The guard gives the handler a connection. What is written through it, and the mark that this order is paid, are committed together.
"""

from typing import Annotated

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table

from roquet.app import App, Depends
from roquet.idempotence import Once, SqlStore, current_session
from shop.database import TOPIC, Order, engine, lease_s

GROUP = "shop_payments"
metadata = MetaData()
# An order may have several rows here, as far as the table is concerned: that it has one is the guard's work.
payments = Table(
    "payments", metadata, Column("id", Integer, primary_key=True), Column("order_id", String(40)), Column("cents", Integer)
)  # fmt: skip
store = SqlStore(engine)
app = App(group=GROUP, consumer={"consume_from": "first", "concurrency": 4})


@app.on_startup
def make_tables() -> None:
    metadata.create_all(engine)
    store.create()


@app.consumer(TOPIC, tags="placed", wrap=Once(store, group=GROUP, lease_s=lease_s))
def pay(order: Order, connection: Annotated[Connection, Depends(current_session)]) -> None:
    connection.execute(payments.insert().values(order_id=order.id, cents=order.cents))


if __name__ == "__main__":
    app.run()
