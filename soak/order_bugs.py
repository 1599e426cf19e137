"""Services of the shop with a bug that a run must find.

python -m soak.order_bugs BUG MODULE      in place of `python -m MODULE`
"""

from __future__ import annotations

import asyncio
import runpy
import sys
import uuid
from collections.abc import Callable
from functools import partial

from roquet import idempotence
from roquet.outbox import Relay, Row
from roquet.outbox.rows import Failure

LATE_S = 1.0


def pay_again() -> None:
    """Each delivery has a key of its own, so the guard knows none of them."""
    setattr(idempotence, "Once", partial(idempotence.Once, key=lambda message: uuid.uuid4().hex))  # noqa: B010


def mark_early() -> None:
    """The relay marks a message as sent, and sends it a little later."""
    send, under_way = Relay._send, set[asyncio.Task[Failure | None]]()

    async def later(self: Relay, row: Row, timeout_ms: int) -> Failure | None:
        await asyncio.sleep(LATE_S)
        return await send(self, row, timeout_ms)

    async def begin(self: Relay, row: Row, timeout_ms: int) -> Failure | None:
        task = asyncio.create_task(later(self, row, timeout_ms))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
        return None

    setattr(Relay, "_send", begin)  # noqa: B010


BUGS: dict[str, Callable[[], None]] = {"pay-again": pay_again, "mark-early": mark_early}

if __name__ == "__main__":
    _, bug, module = sys.argv
    BUGS[bug]()
    runpy.run_module(module, run_name="__main__")
