"""Without asyncio: the same classes, blocking. Run `roquet up` first, then this file."""

import os
import threading

from roquet.client.sync import Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
COUNT = 10


def main() -> None:
    arrived = threading.Semaphore(0)

    def print_it(message: ReceivedMessage) -> None:
        print(f"{message.queue.broker_name}:{message.queue_id} @{message.queue_offset}  {message.body.decode()}")
        arrived.release()

    with Producer("example_producer", NAMESRV) as producer:
        for number in range(COUNT):
            producer.send(Message("example-blocking", f"message {number}".encode()))

    consumer = PushConsumer("example_consumer", NAMESRV, consume_from="first")
    consumer.subscribe("example-blocking", "*", print_it)
    with consumer:
        for _ in range(COUNT):
            if not arrived.acquire(timeout=30):
                raise SystemExit("not everything arrived within 30 s")


if __name__ == "__main__":
    main()
