"""Roquet's own client as an agent, like java/Agent.java and go/agent.go: does what it is told on stdin. The verbs are in agents.py.

python interop/python_client.py NAMESRV NAME LOG
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from entry import from_environment

from roquet import LitePullConsumer, Message, MessageQueue, Producer, PushConsumer, ReceivedMessage, TransactionProducer, TransactionState
from roquet.client import RETRY_LATER, Outcome, RetryLater

Given = dict[str, str]
STATES = {"commit": TransactionState.COMMIT, "rollback": TransactionState.ROLLBACK}


def say(*fields: str) -> None:
    sys.stdout.write("\t".join(fields) + "\n")
    sys.stdout.flush()


def got(client: str, message: ReceivedMessage) -> None:
    say(
        "- got",
        f"client={client}",
        f"topic={message.topic}",
        f"body={message.body.decode()}",
        f"queue={message.queue_id}",
        f"offset={message.queue_offset}",
        f"times={message.reconsume_times}",
        f"tags={message.tags}",
        f"keys={' '.join(message.keys)}",
        f"born={message.born_timestamp}",
        f"stored={message.store_timestamp}",
        f"id={message.message_id}",
        f"now={time.time_ns() // 1_000}",
        *(f"p.{name}={value}" for name, value in sorted(message.properties.items()) if name.startswith("u_")),
    )


class Agent:
    def __init__(self, namesrv: str, name: str) -> None:
        self.namesrv = namesrv
        self.name = name
        self.entry = from_environment()
        self.producers: dict[str, Producer] = {}
        self.endings: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}

    async def answer(self, number: str, verb: str, given: Given) -> None:
        try:
            say(number, "ok", await getattr(self, verb)(given))
        except Exception as failure:
            say(number, "fail", " ".join(f"{type(failure).__name__}: {failure}".split()))

    def about(self, given: Given) -> dict[str, Any]:
        return {"instance_name": f"{self.name}-{given['name']}", "namespace": given.get("namespace", ""), **self.entry.python()}

    # ---------------------------------------------------------------- producers

    async def produce(self, given: Given) -> str:
        name = given["name"]
        producer: Producer
        if "transaction" in given:

            async def execute(message: Message, _: object) -> TransactionState | None:
                say("- executed", f"client={name}", f"body={message.body.decode()}")
                if message.properties.get("local") == "hang":
                    await asyncio.Event().wait()  # until this process is killed
                return STATES.get(message.properties.get("local", ""))

            def check(message: ReceivedMessage) -> TransactionState | None:  # plain, so that such functions are tried as well
                say("- checked", f"client={name}", f"body={message.body.decode()}")
                return STATES.get(message.properties.get("checked", ""))

            producer = TransactionProducer(given["group"], self.namesrv, execute=execute, check=check, **self.about(given))
        else:
            producer = Producer(given["group"], self.namesrv, **self.about(given))
        self.producers[name] = await producer.start()
        self.endings[name] = producer.close
        return ""

    def message(self, given: Given) -> Message:
        return Message(
            given["topic"],
            given["body"].encode(),
            tags=given.get("tags", ""),
            keys=given.get("keys", "").split(),
            properties={key[2:]: value for key, value in given.items() if key.startswith("p.")},
            delay_level=int(given.get("delay", "0")),
            deliver_at=int(given["at"]) if "at" in given else None,
        )

    async def send(self, given: Given) -> str:
        producer = self.producers[given["producer"]]
        if isinstance(producer, TransactionProducer):
            receipt = (await producer.send_in_transaction(self.message(given))).receipt
        elif "queue" in given:
            receipt = await producer.send(self.message(given), queue=MessageQueue(given["topic"], given["broker"], int(given["queue"])))
        else:
            receipt = await producer.send(self.message(given))
        return f"{receipt.status.name} {receipt.message_id}"

    async def request(self, given: Given) -> str:
        reply = await self.producers[given["producer"]].request(self.message(given), int(given["timeout"]))
        return reply.body.decode()

    # ---------------------------------------------------------------- consumers

    async def consume(self, given: Given) -> str:
        name, failures = given["name"], int(given.get("fail", "0"))
        settings: dict[str, Any] = {"reconsume_times_max": int(given["retries"])} if "retries" in given else {}
        consumer = PushConsumer(
            given["group"],
            self.namesrv,
            consume_from="first",
            broadcasting="broadcasting" in given,
            orderly="orderly" in given,
            **settings,
            **self.about(given),
        )

        async def take(message: ReceivedMessage) -> Outcome | RetryLater | None:
            got(name, message)
            if "work" in given:
                await asyncio.sleep(int(given["work"]) / 1000)
            if "reply" in given:
                await consumer.reply(message, b"re: " + message.body)
            if message.reconsume_times < failures:
                return RETRY_LATER if "orderly" in given else RetryLater(delay_level=1)  # again after 1 s
            return None

        consumer.subscribe(given["topic"], given.get("tags", "*"), take, sql=given.get("sql"))
        await consumer.start()
        self.endings[name] = consumer.close
        return ""

    async def lite(self, given: Given) -> str:
        name = given["name"]
        consumer = LitePullConsumer(given["group"], self.namesrv, consume_from="first", auto_commit_ms=1_000, **self.about(given))
        consumer.subscribe(given["topic"], given.get("tags", "*"))
        await consumer.start()

        async def poll() -> None:
            while True:
                for message in await consumer.poll(200):
                    got(name, message)

        polling = asyncio.create_task(poll())

        async def end() -> None:
            polling.cancel()
            await consumer.close()

        self.endings[name] = end
        return ""

    async def close(self, given: Given) -> str:
        await self.endings.pop(given["name"])()
        return ""


async def main(namesrv: str, name: str, log: Path) -> None:
    logging.basicConfig(filename=log, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s - %(message)s")
    agent = Agent(namesrv, name)
    requests = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    running: set[asyncio.Task[None]] = set()
    say("- ready")
    while line := (await requests.readline()).decode():
        number, verb, *fields = line.rstrip("\n").split("\t")
        given = dict(field.partition("=")[::2] for field in fields)
        task = asyncio.create_task(agent.answer(number, verb, given))
        running.add(task)
        task.add_done_callback(running.discard)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
