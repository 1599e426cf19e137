"""`faststream run faststream_tasks:app` is the worker, `python faststream_tasks.py` publishes."""

from __future__ import annotations

from dataclasses import dataclass

import uvloop
import work
from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

broker = RedisBroker(work.SERVER, logger=None)  # it would write two lines a message
app = FastStream(broker, logger=None)


@dataclass
class Task:
    number: int
    customer: str
    cents: int


if work.FORM == "list":  # a message is gone from Redis before the handler has it

    @broker.subscriber(list=work.QUEUE)
    async def bill(task: Task) -> None:
        work.mark(task.number)

else:  # a consumer group of a stream: acknowledged after the handler, as with Roquet

    @broker.subscriber(stream=StreamSub(work.QUEUE, group=work.QUEUE, consumer="one", last_id="0", max_records=100))
    async def bill_of_stream(task: Task) -> None:
        work.mark(task.number)


async def main() -> None:
    async with broker:
        if work.FORM == "list":
            await work.publish_async(lambda fields: broker.publish(Task(**fields), list=work.QUEUE))
        else:
            await work.publish_async(lambda fields: broker.publish(Task(**fields), stream=work.QUEUE))


if __name__ == "__main__":
    uvloop.run(main())
