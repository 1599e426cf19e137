"""A scheduler: the broker keeps each reminder until it is due. Run `roquet up` first, then this file, and type:

    in 90 fetch the cake
    in 5 tea is ready
    cancel 1

Ctrl-D ends it when the last reminder has come. One that is killed loses none: they come when it runs again.
"""

import os
import sys
import threading

from roquet import ClientError, SendReceipt
from roquet.client.sync import Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "example-reminders"


class Scheduler:
    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.receipts: dict[str, SendReceipt] = {}
        self.pending: set[str] = set()
        self.changed = threading.Condition()

    def obey(self, line: str) -> str:
        """Do what it says; what there is to tell."""
        match line.strip().split(maxsplit=2):
            case ["in", seconds, text]:
                number = str(len(self.receipts) + 1)
                with self.changed:  # it must not ring before it is known
                    receipt = self.producer.send(Message(TOPIC, text.encode(), deliver_after=float(seconds)))
                    self.receipts[number] = receipt
                    self.pending.add(receipt.message_id)
                return f"{number}: in {seconds} s, {text}"
            case ["cancel", number] if number in self.receipts:
                self.forget(self.producer.cancel(self.receipts[number]))
                return f"{number} is cancelled"
        return "expected is `in SECONDS TEXT`, or `cancel NUMBER` with a number from here"

    def ring(self, message: ReceivedMessage) -> None:
        print(f"now: {message.body.decode()}", flush=True)
        self.forget(message.message_id)

    def forget(self, message_id: str) -> None:
        with self.changed:
            self.pending.discard(message_id)
            self.changed.notify_all()


def main() -> None:
    with Producer("example_scheduler", NAMESRV) as producer:
        producer.create_topic(TOPIC)
        scheduler = Scheduler(producer)
        consumer = PushConsumer("example_reminders", NAMESRV, consume_from="first")
        consumer.subscribe(TOPIC, "*", scheduler.ring)
        with consumer:
            for line in sys.stdin:
                try:
                    print(scheduler.obey(line), flush=True)
                except (ClientError, ValueError) as error:  # too late to cancel, no number of seconds ...
                    print(f"not done: {error}", flush=True)
            with scheduler.changed:
                scheduler.changed.wait_for(lambda: not scheduler.pending)


if __name__ == "__main__":
    main()
