"""`dramatiq dramatiq_tasks` is the worker, `python dramatiq_tasks.py` publishes."""

from __future__ import annotations

import dramatiq
import work
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=work.SERVER))


@dramatiq.actor(queue_name=work.QUEUE)
def bill(number: int, customer: str, cents: int) -> None:
    work.mark(number)


if __name__ == "__main__":
    work.publish(lambda fields: bill.send(**fields))
