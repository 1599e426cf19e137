"""Access keys: the source and the sink at an Apache broker with aclEnable. Right keys work; others are refused, at once and in words.

The broker that the exchange has just left is started anew on its store, so there is something to read already.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial

import apache
from report import Section
from spark_exchange import ROWS, SETTINGS, WRITTEN, Exchange, Wrong, judge, same, same_rows
from store_exchange import Peer

from roquet.wire.signing import Credentials

RIGHT = {"accessKey": "spark-both", "secretKey": "secret-of-both"}
READER = {"accessKey": "spark-reader", "secretKey": "secret-of-reader"}
WRITER = {"accessKey": "spark-writer", "secretKey": "secret-of-writer"}
WRONG = {"accessKey": RIGHT["accessKey"], "secretKey": "secret-of-nobody"}
ACCOUNTS = [
    {**keys, "admin": "false", "defaultTopicPerm": may, "defaultGroupPerm": "PUB|SUB"}
    for keys, may in ((RIGHT, "PUB|SUB"), (READER, "SUB"), (WRITER, "PUB"))
]

REFUSED_S = 90.0  # far below the time that a source retries for, and enough for a busy machine
"""A refusal that takes longer was tried again: the sink goes on for 16 s when it believes that it helps."""
ADVICE = re.compile(r"AclException: .*; .*accessKey and secretKey")
"""What the broker said, and what to do."""


class Keys:
    """What is done with keys; `rows` of them are in the topic that the sink writes to."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.rows = ROWS

    def read(self, **keys: str) -> None:
        same_rows(self.exchange.rows, self.exchange.table(self.exchange.sent, **keys))

    def stream(self, **keys: str) -> None:
        options = {"namesrvAddr": self.exchange.namesrv, "subscribe": WRITTEN, "startingOffsets": "earliest", "groupId": "spark_acl"}
        stream = self.exchange.spark.readStream.format("rocketmq").options(**options, **keys).load()
        query = stream.writeStream.format("memory").queryName("acl").trigger(availableNow=True).start()
        try:
            if not query.awaitTermination(60):
                raise Wrong("the stream did not end within 60 s")
        finally:
            query.stop()
        same("rows of the stream", self.rows, self.exchange.spark.table("acl").count())

    def write(self, queues: list[int], keys: dict[str, str], delay: int | None = None) -> None:
        """A row to each of these queues. Delayed ones are sent one by one, others as batches, which Apache 4.9 takes of every key."""
        rows = [(f"acl {queue}", queue, delay) for queue in queues]
        frame = self.exchange.spark.createDataFrame(rows, "body string, queue_id int, delay_level int").coalesce(1)
        frame.write.format("rocketmq").options(namesrvAddr=self.exchange.namesrv, topic=WRITTEN, **keys).mode("append").save()

    def write_and_read(self) -> None:
        self.write([2], RIGHT, delay=1)
        self.write([0, 0, 1], RIGHT)
        self.rows += 4
        self.exchange.await_held(WRITTEN, self.rows, Credentials(RIGHT["accessKey"], RIGHT["secretKey"]))
        found = self.exchange.table([WRITTEN], **RIGHT)
        same("rows in the topic", self.rows, len(found))
        written = [(row["queue_id"], bytes(row["body"])) for row in found if bytes(row["body"]).startswith(b"acl")]
        same("queues and bodies", [(queue, f"acl {queue}".encode()) for queue in (0, 0, 1, 2)], written)

    def refused(self, attempt: Callable[[], None]) -> None:
        """In a thread, so that one that is never answered ends as a failed check."""
        ends: list[Exception | None] = []

        def run() -> None:
            try:
                attempt()
            except Exception as problem:
                ends.append(problem)
            else:
                ends.append(None)

        context = self.exchange.spark.sparkContext
        context.setLogLevel("OFF")  # Spark prints the whole trace of what is meant to fail, several times
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(REFUSED_S)
        context.setLogLevel("ERROR")
        if not ends:
            raise Wrong(f"not refused within {REFUSED_S:.0f} s")
        text = str(ends[0])
        if ends[0] is None:
            raise Wrong("not refused")
        if not ADVICE.search(text):
            said = next((line for line in text.splitlines() if "AclException" in line), text[-300:])
            raise Wrong(f"does not say what to do: {said}")
        told = [account["secretKey"] for account in [*ACCOUNTS, WRONG] if account["secretKey"] in text]
        same("secrets in the error", [], told)

    def untouched(self) -> None:
        same("rows in the topic", self.rows, len(self.exchange.table([WRITTEN], **RIGHT)))


def check(section: Section, exchange: Exchange, peer: Peer) -> None:
    directory = exchange.store.parent
    apache.write_accounts(directory, ACCOUNTS)
    with peer.broker(apache.free_port(), exchange.namesrv, directory, SETTINGS | {"aclEnable": True}) as broker:
        keys = Keys(exchange)
        judge(section, "ACL, right keys: what Java sent", partial(keys.read, **RIGHT))
        judge(section, "ACL, right keys: the sink writes, the source reads it", keys.write_and_read)
        judge(section, "ACL, right keys: a stream", partial(keys.stream, **RIGHT))
        attempts: list[tuple[str, Callable[[], None]]] = [
            ("keys that may not read, source", partial(keys.read, **WRITER)),
            ("keys that may not write, sink", partial(keys.write, [2], READER, delay=1)),
        ]
        for whose, given in {"wrong keys": WRONG, "no keys": {}}.items():
            attempts += [
                (f"{whose}, source", partial(keys.read, **given)),
                (f"{whose}, stream", partial(keys.stream, **given)),
                (f"{whose}, sink", partial(keys.write, [2], given)),
            ]
        for what, attempt in attempts:
            judge(section, f"ACL, {what}: refused at once, with what to do", partial(keys.refused, attempt))
        judge(section, "ACL: what was refused is not there", keys.untouched)
        broker.kill()  # nobody needs what it would leave behind, and it takes long to leave
