"""Push consumers for tests, whose listener does what it is told."""

from __future__ import annotations

from roquet.client.core.push_consumer import FROM_FIRST, PushConsumerCore, PushConsumerSettings
from roquet.client.core.share_changes import Notify
from roquet.client.core.stored_offsets import ProgressStore
from roquet.client.core.verdicts import Judged, Outcome, Verdict
from roquet.message import MessageQueue, ReceivedMessage
from roquet.wire.command import Command
from tests.client.fakes import FakeCluster

GROUP = "g"


class Member:
    """A consumer whose listener does what `decide` says, or holds the message when that is None."""

    def __init__(
        self,
        cluster: FakeCluster,
        name: str = "c1",
        tags: str = "*",
        decide: Verdict | None = Outcome.SUCCESS,
        topic: str = "t",
        file: MemoryFile | None = None,
        store: ProgressStore | None = None,
        on_assigned: Notify | None = None,
        on_revoked: Notify | None = None,
        **changes: object,
    ) -> None:
        self.cluster = cluster
        self.decide = decide
        self.seen: list[ReceivedMessage] = []
        self.calls: list[int] = []
        self.held: list[tuple[list[ReceivedMessage], Judged]] = []
        made = PushConsumerSettings(**{"consume_from": FROM_FIRST, **changes})  # type: ignore[arg-type] # the tests pass what it takes
        client = cluster.client(name, seed=len(cluster.cores))
        self.core = PushConsumerCore(
            client, GROUP, self.listen, made, offset_file=file, store=store, on_assigned=on_assigned, on_revoked=on_revoked
        )
        self.core.subscribe(topic, tags)

    def start(self) -> Member:
        self.core.start()
        self.cluster.run()
        assert self.core.settled.over
        return self

    def listen(self, messages: list[ReceivedMessage], judge: Judged) -> None:
        self.seen.extend(messages)
        self.calls.append(len(messages))
        if self.decide is None:
            self.held.append((messages, judge))
        else:
            judge(self.decide)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.seen]

    @property
    def share(self) -> set[MessageQueue]:
        return {queue for queue in self.core.queues if queue.topic == "t"}

    def close(self) -> None:
        done: list[bool] = []
        self.core.client.tasks.start(self.core.close(), lambda _: done.append(True))
        self.cluster.run()
        assert done == [True]


class MemoryFile:
    def __init__(self, *data: bytes) -> None:
        self.data = list(data)

    def read(self) -> list[bytes]:
        return self.data

    def replace(self, data: bytes) -> None:
        self.data = [data]


def cluster_with(queues: int = 4) -> tuple[FakeCluster, list[MessageQueue]]:
    cluster = FakeCluster("a")
    cluster.create_topic(f"%RETRY%{GROUP}", 1)
    return cluster, cluster.create_topic("t", queues)


def ask(cluster: FakeCluster, member: Member, command: Command) -> Command:
    replies: list[Command] = []
    member.core.client.receive("a:10911", command, replies.append)
    cluster.run()
    [reply] = replies
    return reply


def stored(cluster: FakeCluster, queue: MessageQueue) -> int | None:
    return cluster.offsets.get((GROUP, queue))
