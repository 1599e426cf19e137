"""The outbox: messages that are written in the transaction of your own data, and published once that is committed.

    outbox = Outbox()
    outbox.create(engine)                                          # once: its tables

    with Session(engine) as session, session.begin():
        session.add(Order(id=17, total=30))
        outbox.add(session, Message("orders", b"..."), key="order-17")     # committed with the order, or not at all

    async with Producer("orders-service") as producer, Relay(outbox, engine, producer):
        ...                                                        # publishes what is committed

    row written ──> committed ──> claimed by one relay, for the time of its lease ──> sent ──> marked ──> deleted later
                                        ^                                              │
                                        └─ lease over, or the send failed: after a pause ┘

What is promised, and what each promise costs:

- *Not without your data, and not lost*: a message is published if and only if its transaction commits.
- *At least once*: a relay that dies between sending and marking sends again, with the same message id.
- *In order for each key*: messages with one key are sent in the order in which their transactions commit; a later one waits until the one
  before is sent. `add` holds a lock for its key until the transaction ends, so call it last.
- *Nobody waits for another key*: a message that cannot be sent holds back its own key, and nothing else.

Needs SQLAlchemy 2 (`pip install "roquet[sql]"`) and a driver for SQLite, PostgreSQL, MariaDB or MySQL.
"""

from __future__ import annotations

try:
    import sqlalchemy as _sqlalchemy
except ImportError as error:
    raise ImportError('roquet.outbox needs SQLAlchemy 2, which is not installed: pip install "roquet[sql]"') from error
if int(_sqlalchemy.__version__.split(".")[0]) < 2:
    raise ImportError(f'roquet.outbox needs SQLAlchemy 2, and {_sqlalchemy.__version__} is installed: pip install "roquet[sql]"')

from roquet.outbox.outbox import Outbox, Stored
from roquet.outbox.relay import Relay, RelaySettings
from roquet.outbox.rows import Row
from roquet.outbox.transactions import LocalTransactions, TransactionOver

__all__ = ["LocalTransactions", "Outbox", "Relay", "RelaySettings", "Row", "Stored", "TransactionOver"]
