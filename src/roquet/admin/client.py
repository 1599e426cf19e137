"""Every administrative call, typed.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", read_queues=8, write_queues=8)
        for queue in await admin.progress("billing"):
            print(queue.queue, queue.lag)

What concerns a whole cluster goes to all its masters at once and is joined here; what concerns one server takes its
address. A server's refusal is Rejected with its code; a cluster-wide change that only some brokers made is PartlyDone.
"""

from __future__ import annotations

from roquet.admin.accounts import Accounts
from roquet.admin.copies import Copies
from roquet.admin.expansion import Expansion
from roquet.admin.offsets import OffsetCalls
from roquet.admin.traces import Traces


class Admin(OffsetCalls, Traces, Copies, Accounts, Expansion):
    """Belongs to the event loop it is entered in. Connections are made on first use and kept until it is closed."""
