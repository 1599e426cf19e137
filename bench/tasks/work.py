"""What every system does in rows tasks: the payload, the task, and how the programs here are told what to do.

The task adds one to its own byte of a file that is mapped into memory. So the bench sees from outside how far the worker is, and at the end
that every task ran once, whichever process or thread of the worker it ran in; and the task costs the same everywhere, next to nothing.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypedDict

FIRST, LAST = int(os.environ["TASKS_FIRST"]), int(os.environ["TASKS_LAST"])
"""The numbers of the tasks that are published: from FIRST, and before LAST."""
SERVER = os.environ["TASKS_SERVER"]
"""Redis' URL; a name server's address."""
QUEUE = os.environ["TASKS_QUEUE"]
FORM = os.environ["TASKS_FORM"]
"""Which of the system's settings."""
IN_FLIGHT = int(os.environ["TASKS_IN_FLIGHT"])

with open(os.environ["TASKS_MARKS"], "r+b") as file:
    MARKS = mmap.mmap(file.fileno(), 0)


class Fields(TypedDict):
    number: int
    customer: str
    cents: int


def fields(number: int) -> Fields:
    return {"number": number, "customer": "Ada Lovelace", "cents": 1250 + number % 100}


def mark(number: int) -> None:
    MARKS[number] += 1


def publish(send: Callable[[Fields], object]) -> None:
    """One after the other: these calls block."""
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(FIRST, LAST):
        send(fields(number))
    tell(began, cpu)


async def publish_async(send: Callable[[Fields], Awaitable[object]]) -> None:
    """IN_FLIGHT at a time."""
    numbers = iter(range(FIRST, LAST))

    async def some() -> None:
        for number in numbers:
            await send(fields(number))

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
    tell(began, cpu)


def tell(began: float, cpu: float) -> None:
    print(json.dumps({"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}))
