"""on_assigned and on_revoked: which queues came and went, told in order, before the first message and after the last."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import roquet
from roquet import LitePullConsumer, Message, MessageQueue, PushConsumer, ReceivedMessage
from roquet.client import sync
from roquet.client.core.lite_pull import LitePullCore, LitePullSettings
from roquet.client.core.push_consumer import FROM_FIRST
from roquet.client.core.verdicts import Outcome
from roquet.embed import Embedded
from roquet.errors import ClientError
from tests.client.fakes import FakeCluster, Results
from tests.client.members import GROUP, Member, cluster_with, stored
from tests.client.programs import PATIENCE_S

RETRY = f"%RETRY%{GROUP}"


class Heard:
    """Two functions of the core that write down what they hear, and end at once or when they are told to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.holds: set[str] = set()
        self.held: list[Callable[[], None]] = []
        self.look: Callable[[], object] | None = None
        self.looked: list[object] = []

    def functions(self) -> dict[str, Any]:
        return {"on_assigned": self._function("+"), "on_revoked": self._function("-")}

    def _function(self, sign: str) -> Callable[[list[MessageQueue], Callable[[], None]], None]:
        def hear(queues: list[MessageQueue], ended: Callable[[], None]) -> None:
            self.lines.append(sign + " ".join(str(queue.queue_id) for queue in queues if queue.topic == "t"))
            if self.look is not None:
                self.looked.append(self.look())
            if sign in self.holds:
                self.held.append(ended)
            else:
                ended()

        return hear

    def let_go(self) -> None:
        held, self.held = self.held, []
        for ended in held:
            ended()


def start(cluster: FakeCluster, heard: Heard, name: str = "c1", **changes: Any) -> Member:
    member = Member(cluster, name, **heard.functions(), **changes).start()
    cluster.advance(10)
    return member


# -- the core


def test_all_queues_of_a_turn_are_told_at_once_and_nothing_is_read_before_the_function_has_ended() -> None:
    cluster, queues = cluster_with(4)
    for queue in queues:
        cluster.append(queue, b"x")
    heard = Heard()
    heard.holds = {"+"}
    member = start(cluster, heard)
    cluster.advance(5_000)
    assert heard.lines == ["+0 1 2 3"]
    assert not cluster.requests(11), "nothing is pulled"
    heard.let_go()
    cluster.advance(20)
    assert len(member.seen) == 4
    cluster.advance(60_000, 100)
    assert heard.lines == ["+0 1 2 3"], "a rebalance that changes nothing is not told"


def test_retry_queues_are_told_too() -> None:
    cluster, _ = cluster_with(1)
    seen: list[MessageQueue] = []

    def hear(queues: list[MessageQueue], ended: Callable[[], None]) -> None:
        seen.extend(queues)
        ended()

    Member(cluster, on_assigned=hear).start()
    cluster.advance(10)
    assert [queue.topic for queue in seen] == [RETRY, "t"]


def test_a_function_that_takes_long_is_said_and_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    cluster, [queue] = cluster_with(1)
    cluster.append(queue, b"x")
    heard = Heard()
    heard.holds = {"+"}
    member = start(cluster, heard)
    cluster.advance(120_000, 100)
    assert not member.seen
    assert caplog.text.count("on_assigned has not returned after 30 s; nothing of its queues is read until it has") == 1


def test_a_queue_is_told_as_gone_when_its_calls_have_ended_and_its_progress_is_written() -> None:
    cluster, queues = cluster_with(2)
    heard = Heard()
    heard.look = lambda: stored(cluster, queues[1])
    one = start(cluster, heard, decide=None)
    for queue in queues:
        cluster.append(queue, b"0")
        cluster.append(queue, b"1")
    cluster.run()
    by_queue = {(messages[0].queue_id, messages[0].body): judge for messages, judge in one.held}
    by_queue[1, b"0"](Outcome.SUCCESS)
    Member(cluster, "c2").start()
    one.core.rebalance()
    cluster.advance(100)
    assert one.share == {queues[0]}
    assert heard.lines == ["+0 1"], "a call still runs"
    by_queue[1, b"1"](Outcome.SUCCESS)
    cluster.advance(10)
    assert heard.lines == ["+0 1", "-1"]
    assert heard.looked[-1] == 1, "as far as it was when the queue went: what ended later may come again"


def test_a_call_that_hangs_holds_this_up_until_its_timeout() -> None:
    cluster, queues = cluster_with(2)
    heard = Heard()
    one = start(cluster, heard, decide=None, consume_timeout_ms=2_000)
    cluster.append(queues[1], b"0")
    cluster.run()
    Member(cluster, "c2").start()
    one.core.rebalance()
    cluster.advance(1_000)
    assert heard.lines == ["+0 1"]
    cluster.advance(4_000)
    assert heard.lines == ["+0 1", "-1"]


def test_a_queue_that_comes_back_is_not_taken_before_the_function_has_ended() -> None:
    cluster, queues = cluster_with(1)
    heard = Heard()
    heard.holds = {"-"}
    one = start(cluster, heard)
    one.core.drop(queues[0])
    one.core.rebalance()
    cluster.advance(5_000)
    assert heard.lines == ["+0", "-0"]
    assert not one.share
    heard.let_go()
    cluster.advance(2_000)
    assert heard.lines == ["+0", "-0", "+0"]
    assert one.share == {queues[0]}


@pytest.mark.parametrize("ends", [True, False])
def test_an_orderly_queue_goes_to_the_next_member_after_the_function_has_ended_or_thirty_seconds(
    ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, queues = cluster_with(2)
    heard = Heard()
    heard.holds = {"-"}
    one = start(cluster, heard, orderly=True)
    two = Member(cluster, "c2", orderly=True).start()
    one.core.rebalance()
    cluster.advance(20_000, 100)
    assert heard.lines == ["+0 1", "-1"]
    assert (one.share, two.share) == ({queues[0]}, set())
    if ends:
        heard.let_go()
        cluster.advance(5_000, 100)
        assert "on_revoked has not returned" not in caplog.text
    else:
        cluster.advance(20_000, 100)
        assert "on_revoked has not returned after 30 s; its queues go without it" in caplog.text
    assert two.share == {queues[1]}
    two.close()
    one.core.rebalance()
    cluster.advance(2_000)
    assert heard.lines == ["+0 1", "-1", "+1"], "one that hangs does not keep others from being told"


def test_a_lock_that_was_lost_is_a_queue_that_went_and_came() -> None:
    cluster, [queue] = cluster_with(1)
    heard = Heard()
    one = start(cluster, heard, orderly=True, decide=None)
    cluster.append(queue, b"x")
    cluster.run()
    cluster.locks[GROUP, queue] = ("somebody", cluster.clock.ms + 30_000)
    cluster.advance(25_000, 100)
    assert heard.lines == ["+0"], "the call for it still runs"
    one.held[0][1](Outcome.SUCCESS)
    cluster.advance(60_000, 100)
    assert heard.lines == ["+0", "-0", "+0"]
    assert len(one.held) == 2, "what was consumed without the lock counts for nothing"


@pytest.mark.parametrize("orderly", [False, True])
def test_at_the_end_all_queues_go_when_progress_is_written(orderly: bool) -> None:
    cluster, queues = cluster_with(2)
    heard = Heard()
    one = start(cluster, heard, orderly=orderly)
    for queue in queues:
        cluster.append(queue, b"x")
    cluster.run()
    heard.look = lambda: ([stored(cluster, queue) for queue in queues], list(cluster.members[GROUP]))
    done: list[object] = []
    one.core.client.tasks.start(one.core.close(), done.append)
    cluster.advance(100)
    assert done == [None]
    assert heard.lines == ["+0 1", "-0 1"]
    assert heard.looked == [([1, 1], ["c1"])], "and before it leaves the group"


def test_a_topic_that_is_unsubscribed_goes() -> None:
    cluster, _ = cluster_with(2)
    heard = Heard()
    one = start(cluster, heard)
    one.core.unsubscribe("t")
    cluster.advance(100)
    assert heard.lines == ["+0 1", "-0 1"]


def test_an_operators_reset_moves_no_queue() -> None:
    cluster, [queue] = cluster_with(1)
    for number in range(3):
        cluster.append(queue, b"%d" % number)
    heard = Heard()
    heard.holds = {"+"}
    one = start(cluster, heard)
    one.core._restart(queue, 2)
    cluster.advance(1_000)
    assert not one.seen, "the function has not ended"
    heard.let_go()
    cluster.advance(100)
    assert one.bodies == [b"2"]
    assert heard.lines == ["+0"]


def lite(cluster: FakeCluster, heard: Heard, name: str = "c1", **changes: Any) -> LitePullCore:
    settings = LitePullSettings(**{"consume_from": FROM_FIRST, **changes})
    return LitePullCore(cluster.client(name, seed=len(cluster.cores)), GROUP, settings, **heard.functions())


def test_a_lite_consumer_may_seek_before_anything_is_read_and_hears_what_it_gave_away() -> None:
    cluster, queues = cluster_with(2)
    for queue in queues:
        for number in range(3):
            cluster.append(queue, b"%d" % number)
    heard = Heard()
    heard.holds = {"+"}
    core = lite(cluster, heard)
    core.subscribe("t")
    core.start()
    cluster.advance(100)
    assert heard.lines == ["+0 1"]
    for queue in queues:
        core.client.tasks.start(core.seek(queue, 2))
    cluster.advance(1_000)
    assert not cluster.requests(11)
    heard.let_go()
    cluster.advance(100)
    results = Results()
    for _ in range(3):
        core.client.tasks.start(core.poll(1_000), results.append)
    cluster.advance(1_500)
    polled = [message.body for messages in results for message in messages]  # type: ignore[attr-defined]
    assert polled == [b"2", b"2"]
    core.client.tasks.start(core.poll(1), results.append)  # now they are finished
    heard.look = lambda: stored(cluster, queues[1])
    other = lite(cluster, Heard(), "c2")
    other.subscribe("t")
    other.start()
    cluster.run()
    core.rebalance()
    cluster.advance(100)
    assert heard.lines == ["+0 1", "-1"]
    assert heard.looked == [3], "its progress is written"
    core.client.tasks.start(core.close())
    cluster.advance(100)
    assert heard.lines == ["+0 1", "-1", "-0"]


def test_who_chooses_queues_by_hand_is_told_nothing() -> None:
    cluster, queues = cluster_with(2)
    heard = Heard()
    core = lite(cluster, heard)
    core.assign(queues)
    core.start()
    cluster.advance(100)
    core.assign(queues[:1])
    cluster.advance(100)
    core.client.tasks.start(core.close())
    cluster.advance(100)
    assert heard.lines == []


# -- through the front door


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq, mq.admin() as admin:
            await admin.create_topic("orders", read_queues=4, write_queues=4)
            await test(mq)

    asyncio.run(scenario())


class Shared:
    """Who has which queue of the topic, as the functions of two members say."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.handled: list[tuple[str, bool]] = []

    def member(self, mq: Embedded, name: str, kind: str) -> PushConsumer:
        def came(queues: list[MessageQueue]) -> None:
            for queue in queues:
                if queue.topic == "orders":
                    assert queue.queue_id not in self.owners
                    self.owners[queue.queue_id] = name

        def went(queues: list[MessageQueue]) -> None:
            for queue in queues:
                if queue.topic == "orders":
                    assert self.owners.pop(queue.queue_id) == name

        async def came_async(queues: list[MessageQueue]) -> None:
            await asyncio.sleep(0)
            came(queues)

        async def went_async(queues: list[MessageQueue]) -> None:
            await asyncio.sleep(0)
            went(queues)

        made = mq.consumer(
            "g", consume_from="first", orderly=True, rebalance_ms=500, instance_name=name,
            on_assigned=came_async if kind == "async" else came, on_revoked=went_async if kind == "async" else went,
        )  # fmt: skip

        @made.on("orders")
        async def handle(message: ReceivedMessage) -> None:
            self.handled.append((name, self.owners.get(message.queue_id) == name))

        return made

    async def until(self, **counts: int) -> None:
        while {name: list(self.owners.values()).count(name) for name in counts} != counts:
            await asyncio.sleep(0.01)


def test_two_members_hear_who_has_which_queue_at_every_moment(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        shared = Shared()
        one, two = shared.member(mq, "one", "async"), shared.member(mq, "two", "plain")
        async with mq.producer() as producer:

            async def send() -> None:
                for _ in range(40):
                    await producer.send(Message("orders", b"x"))

            async with one:
                await shared.until(one=4)
                await send()
                async with two:
                    await shared.until(one=2, two=2)
                    await send()
                await shared.until(one=4)
                await send()
                while len(shared.handled) < 120:
                    await asyncio.sleep(0.01)
        assert shared.owners == {}
        assert all(mine for _, mine in shared.handled), "every message was handled by who had its queue"
        assert {name for name, _ in shared.handled} == {"one", "two"}
        assert "failed with" not in caplog.text, "no queue had two owners"

    against_a_broker(test)


def test_what_such_a_function_raises_is_logged_and_the_consumer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        def fails(queues: list[MessageQueue]) -> None:
            raise LookupError("no such state")

        seen = asyncio.Event()
        consumer = mq.consumer("g", consume_from="first", on_assigned=fails, on_revoked=fails)

        @consumer.on("orders")
        async def handle(message: ReceivedMessage) -> None:
            seen.set()

        async with mq.producer() as producer, consumer:
            await producer.send(Message("orders", b"x"))
            await seen.wait()
        lines = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "group g: on_assigned fails failed with" in lines[0].getMessage()
        assert "LookupError: no such state; the consumer goes on as if it had not" in lines[0].getMessage()
        assert lines[0].exc_info is not None
        assert "on_revoked fails failed with" in lines[-1].getMessage()

    against_a_broker(test)


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked"])
def test_such_a_function_may_close_its_consumer(name: str) -> None:
    async def test(mq: Embedded) -> None:
        async def close(queues: list[MessageQueue]) -> None:
            await consumer.close()

        for consumer in (
            mq.consumer("g", listener=lambda message: None, **{name: close}),  # type: ignore[arg-type] # its own name
            LitePullConsumer("lite", mq.namesrv, **{name: close}),  # type: ignore[arg-type]
        ):
            consumer.subscribe("orders")
            await consumer.start()
            if name == "on_revoked":
                await consumer.close()
            await consumer.closed()

    against_a_broker(test)


def test_the_blocking_face_calls_them_in_threads() -> None:
    async def test(mq: Embedded) -> None:
        heard: list[tuple[str, int, bool]] = []

        def program() -> None:
            def came(queues: list[MessageQueue]) -> None:
                mine = [queue for queue in queues if queue.topic == "orders"]
                positions = [consumer.position(queue) for queue in mine]
                heard.append(("came", len(positions), threading.current_thread().name.startswith("roquet-g-own")))
                arrived.set()

            def went(queues: list[MessageQueue]) -> None:
                heard.append(("went", len(queues), threading.current_thread().name.startswith("roquet-g-own")))

            arrived = threading.Event()
            consumer = sync.LitePullConsumer("g", mq.namesrv, on_assigned=came, on_revoked=went)
            consumer.subscribe("orders")
            with consumer:
                arrived.wait(PATIENCE_S)

        await asyncio.to_thread(program)
        assert heard == [("came", 4, True), ("went", 4, True)]

    against_a_broker(test)


@pytest.mark.parametrize("wrong", [5, "print", lambda: None])
def test_what_cannot_be_called_with_queues_is_refused(wrong: Any) -> None:
    for kind in (PushConsumer, LitePullConsumer):
        with pytest.raises(ClientError, match=r"on_revoked is .*; expected is a function of one parameter, the list of queues"):
            kind("g", on_revoked=wrong)
