"""`celery -A celery_tasks worker` is the worker, `python celery_tasks.py` publishes."""

from __future__ import annotations

import work
from celery import Celery

app = Celery("tasks", broker=work.SERVER)
app.conf.update(task_default_queue=work.QUEUE, task_ignore_result=True)
if work.FORM == "many":  # "Optimizing" in Celery's guide: many short tasks want a large multiplier
    app.conf.worker_prefetch_multiplier = 128


@app.task(name="bill")
def bill(number: int, customer: str, cents: int) -> None:
    work.mark(number)


if __name__ == "__main__":
    work.publish(lambda fields: bill.delay(**fields))
