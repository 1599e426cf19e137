"""The order service: takes orders over HTTP, and writes each one together with its message.

It never talks to a broker, so no broker can keep it from taking an order. To ask twice is safe: a client that got no answer asks again.
"""

import json
import os
import re
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sqlalchemy import Column, Integer, MetaData, String, Table
from sqlalchemy.exc import IntegrityError

from roquet import Message
from shop.database import TOPIC, Order, engine, outbox

BODY_MAX = 10_000
ID = re.compile("[a-z0-9]{1,40}")
"""Of an order. No others: some databases take `a1`, `A1` and `á1` for one, and the second order would be lost."""
metadata = MetaData()
orders = Table(
    "orders", metadata, Column("id", String(40), primary_key=True), Column("customer", String(100)), Column("cents", Integer)
)  # fmt: skip


def place(order: Order) -> bool:
    """Whether it is new. The order and its message are committed together, or none of them is."""
    row = asdict(order)
    try:
        with engine.begin() as connection:
            connection.execute(orders.insert().values(row))
            outbox.add(connection, Message(TOPIC, json.dumps(row).encode(), tags="placed", keys=[order.id]), key=order.id)
    except IntegrityError:
        return False
    return True


def read_order(path: str, body: bytes) -> Order:
    """Raises ValueError for what is no order."""
    match path.split("/"), json.loads(body):
        case ["", "orders", id], {"customer": str(customer), "cents": int(cents)}:
            if ID.fullmatch(id) and len(customer) <= 100 and 0 < cents < 1_000_000:
                return Order(id, customer, cents)
    raise ValueError('expected is PUT /orders/17 with {"customer": "Ada", "cents": 1250}; an id has lower case letters a-z and digits')


class OrderService(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        try:
            order = read_order(self.path, self.rfile.read(min(int(self.headers["Content-Length"] or 0), BODY_MAX)))
        except ValueError as error:
            self.send_error(HTTPStatus.BAD_REQUEST, str(error))
            return
        self.send_response(HTTPStatus.CREATED if place(order) else HTTPStatus.OK)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not a line for each order."""


def main() -> None:
    metadata.create_all(engine)
    outbox.create(engine)
    with ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("SHOP_PORT", "8080"))), OrderService) as server:
        print(f"The order service listens on port {server.server_port}.", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
