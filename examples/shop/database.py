"""What the services of the shop share: the message, where it goes, and the database with its outbox."""

import os
from dataclasses import dataclass

from sqlalchemy import create_engine, make_url

from roquet.outbox import Outbox

TOPIC = "shop-orders"


@dataclass
class Order:
    """An order, in the table of orders and as the message that tells of it."""

    id: str
    customer: str
    cents: int


url = make_url(os.environ.get("SHOP_DATABASE", "sqlite:///shop.db"))
# SQLite has one writer at a time, and the services are three: they wait for each other.
engine = create_engine(url, connect_args={"timeout": 60} if url.get_backend_name() == "sqlite" else {})
outbox = Outbox()

lease_s = float(os.environ.get("SHOP_LEASE_S", "30"))
"""What a service had in hand when it was killed is taken up again after so many seconds."""
