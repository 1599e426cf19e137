"""`roquet run roquet_tasks:app` is the worker, `python roquet_tasks.py` publishes."""

from __future__ import annotations

from dataclasses import dataclass

import work

from roquet.app import App
from roquet.system import fast_loop

app = App(work.SERVER, consumer={"consume_from": "first"})


@dataclass
class Task:
    number: int
    customer: str
    cents: int


if work.FORM == "async":

    @app.consumer(work.QUEUE, group=work.QUEUE)
    async def bill(task: Task) -> None:
        work.mark(task.number)

elif work.FORM == "thread":

    @app.consumer(work.QUEUE, group=work.QUEUE)
    def bill_in_thread(task: Task) -> None:
        work.mark(task.number)

else:

    @app.consumer(work.QUEUE, group=work.QUEUE, batch=32)
    async def bill_many(tasks: list[Task]) -> None:
        for task in tasks:
            work.mark(task.number)


async def main() -> None:
    async with app.publishing():
        await work.publish_async(lambda fields: app.publish(work.QUEUE, Task(**fields)))


if __name__ == "__main__":
    import asyncio

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(main())
