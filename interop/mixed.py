"""Clients of several languages together: what one sends the other receives, and both are members of one group."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import apache
from agents import Agent, Agents, Event
from client_logs import PassedOver
from entry import AS_THEY_ARE, Entry
from java_client import JavaClient
from report import Reporter, Section

from roquet.admin import Admin
from roquet.wire.calls.groups import GroupConfig

T = TypeVar("T")
Body = Callable[[], None]

BROKER = "broker-a"
DELAYS_MS = {1: 1_000, 2: 5_000}  # the broker's first two levels
WORK_MS = 40  # a message of an orderly queue takes so long
FEED_S = 0.2  # two messages a queue: less than half of what a member can do, so that what waits for a lock is soon caught up with
REPEATED_MAX = 16  # of an orderly queue, when it changes hands
RETRY_ROUNDS = 5
SCENARIOS_AT_ONCE = 12  # they wait most of the time

NO_LITE_PULL = "this client has no lite pull consumer"


class Wrong(AssertionError):
    """A check did not hold."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)


def same(what: str, expected: object, found: object) -> None:
    require(expected == found, f"{what}: expected {expected}, found {found}")


class Stage:
    """One cluster, a prefix for names, and the agents that play on it."""

    def __init__(self, prefix: str, namesrv: str, agents: list[Agent], early_ms: int, entry: Entry = AS_THEY_ARE) -> None:
        self.prefix = prefix
        self.entry = entry
        self.namesrv = namesrv
        self.agents = agents
        self.early_ms = early_ms
        """How much before its time the broker may deliver a timed message."""

    # ---------------------------------------------------------------- the cluster

    def administer(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        async def run() -> T:
            async with Admin(self.namesrv, timeout_ms=60_000, **self.entry.python()) as admin:
                return await work(admin)

        return asyncio.run(run())

    def name(self, what: str) -> str:
        """For topics, groups and clients: agents are shared, and topics have no dots."""
        return f"{self.prefix}_{what}".replace(".", "-")

    def topic(self, name: str, queues: int = 4) -> str:
        self.administer(lambda admin: admin.create_topic(name, read_queues=queues, write_queues=queues))
        return name

    def group(self, name: str, *, retry_queues: int = 1, retry_max: int = 16) -> str:
        """A group whose retry topic is there before its first member: Go's client would look for it again only after 30 s."""

        async def create(admin: Admin) -> None:
            await admin.create_group(GroupConfig(group_name=name, retry_queue_nums=retry_queues, retry_max_times=retry_max))
            await admin.create_topic(f"%RETRY%{name}", read_queues=retry_queues, write_queues=retry_queues)

        self.administer(create)
        return name

    def await_routed(self, topic: str) -> None:
        def routed() -> bool:
            return topic in self.administer(lambda admin: admin.topic_names())

        apache.wait_until(routed, f"{topic} at the name server", every_s=0.3)

    def await_producer(self, group: str) -> None:
        """Until brokers know a producer of the group, and can ask it or pass it a reply: after its first heartbeat."""

        def known() -> bool:
            return bool(self.administer(lambda admin: admin.producers(group)))

        apache.wait_until(known, f"a producer of {group} at the broker", every_s=0.3)

    # ---------------------------------------------------------------- what happened

    def events(self, kind: str, *clients: str) -> list[Event]:
        """What happened to these clients, in the order it happened."""
        found = [event for agent in self.agents for event in agent.events if event.kind == kind and event.client in clients]
        return sorted(found, key=lambda event: int(event.fields.get("now", event.at_ms * 1000)))

    def bodies(self, *clients: str) -> list[str]:
        return [event.body for event in self.events("got", *clients)]

    def await_bodies(self, expected: Iterable[str], *clients: str, timeout_s: float = apache.PATIENCE_S) -> list[Event]:
        """Until these clients together have been handed all of these; and they were handed nothing else."""
        wanted = set(expected)
        await_that(
            lambda: wanted <= set(self.bodies(*clients)),
            lambda: f"{shown(wanted - set(self.bodies(*clients)))} of {len(wanted)} did not come to {', '.join(clients)}",
            timeout_s,
        )
        events = self.events("got", *clients)
        other = {event.body for event in events} - wanted
        require(not other, f"{shown(other)} came and was not asked for")
        return events

    def await_exactly(self, expected: Iterable[str], *clients: str, timeout_s: float = apache.PATIENCE_S) -> list[Event]:
        """The same, and each once."""
        events = self.await_bodies(expected, *clients, timeout_s=timeout_s)
        twice = [body for body, count in Counter(event.body for event in events).items() if count > 1]
        require(not twice, f"{shown(twice)} came more than once")
        return events


def await_that(condition: Callable[[], bool], otherwise: Callable[[], str], timeout_s: float = apache.PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong(f"after {timeout_s:.0f} s {otherwise()}")
        time.sleep(0.05)


def shown(things: Iterable[str]) -> str:
    listed = sorted(things)
    return f"{len(listed)} ({', '.join(listed[:4])}{'...' if len(listed) > 4 else ''})"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def numbered(stem: str, count: int) -> list[str]:
    return [f"{stem} {number}" for number in range(count)]


# ---------------------------------------------------------------- one sends, the other receives


class Between(Stage):
    """Checks with a sender and a receiver; each is made both ways."""

    def delay_levels(self, sender: Agent, receiver: Agent) -> None:
        what = self.name(f"delay_{sender.language}")
        topic, client = self.topic(what, 2), f"{what}.consumer"
        sender.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        receiver.ask("consume", name=client, group=f"{what}_g", topic=topic)
        sent = {}
        for level in DELAYS_MS:
            sent[level] = now_ms()
            sender.ask("send", producer=f"{what}.producer", topic=topic, body=f"level {level}", delay=level, tags="later", keys="a b")
        for event in self.await_exactly([f"level {level}" for level in DELAYS_MS], client):
            level = int(event.body.split()[1])
            took = event.at_ms - sent[level]
            require(DELAYS_MS[level] <= took, f"level {level} came after {took} ms")
            same("topic, tags, keys", (topic, "later", "a b"), (event.fields["topic"], event.fields["tags"], event.fields["keys"]))

    def timed(self, sender: Agent, receiver: Agent) -> None:
        what = self.name(f"timed_{sender.language}")
        topic, client = self.topic(what, 2), f"{what}.consumer"
        sender.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        receiver.ask("consume", name=client, group=f"{what}_g", topic=topic)
        due = {"soon": now_ms() + 2_700, "later": now_ms() + 6_200, "at once": now_ms() - 5_000}
        for body, at in due.items():
            sender.ask("send", producer=f"{what}.producer", topic=topic, body=body, at=at)
        for event in self.await_exactly(due, client):
            late = event.at_ms - due[event.body]
            require(-self.early_ms <= late, f"{event.body!r} came {late} ms after its time")

    def filters(self, sender: Agent, receiver: Agent) -> None:
        what = self.name(f"filter_{sender.language}")
        topic = self.topic(what, 2)
        sender.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        sql = "u_size BETWEEN 5 AND 16 AND u_colour IN ('red', 'grün') AND TAGS <> 'c'"
        receiver.ask("consume", name=f"{what}.tags", group=f"{what}_tags", topic=topic, tags="a || c")
        receiver.ask("consume", name=f"{what}.sql", group=f"{what}_sql", topic=topic, sql=sql)
        for number in range(24):
            tags, colour = "abc"[number % 3], ("red", "blue", "grün", "yellow")[number % 4]
            given = {"p_u_size": number, "p_u_colour": colour} if number != 6 else {}  # one that has no properties
            sender.ask("send", producer=f"{what}.producer", topic=topic, body=f"{number}", tags=tags, **given)
        tagged = self.await_exactly([f"{number}" for number in range(24) if number % 3 != 1], f"{what}.tags")
        for event in tagged:
            same(f"tags of {event.body}", "abc"[int(event.body) % 3], event.fields["tags"])
        wanted = [f"{number}" for number in range(5, 17) if number % 2 == 0 and number % 3 != 2 and number != 6]
        for event in self.await_exactly(wanted, f"{what}.sql"):
            same(f"colour of {event.body}", "red" if int(event.body) % 4 == 0 else "grün", event.fields["p.u_colour"])

    def request_reply(self, asker: Agent, answerer: Agent) -> None:
        what = self.name(f"request_{asker.language}")
        topic = self.topic(what, 2)
        asker.ask("produce", name=f"{what}.asker", group=f"{what}_p")
        answerer.ask("produce", name=f"{what}.answerer", group=f"{what}_r")
        answerer.ask("consume", name=f"{what}.consumer", group=f"{what}_g", topic=topic, reply=f"{what}.answerer")
        # Go's client says who it is to brokers that it has sent something to
        prelude = self.topic(f"{what}_prelude", 1)
        asker.ask("send", producer=f"{what}.asker", topic=prelude, body="prelude")
        self.await_producer(f"{what}_p")
        waiting = [
            asker.begin("request", producer=f"{what}.asker", topic=topic, body=body, timeout=120_000) for body in numbered("question", 10)
        ]
        for body, answer in zip(numbered("question", 10), waiting, strict=True):
            same("reply", f"re: {body}", answer())

    def namespaces(self, sender: Agent, receiver: Agent) -> None:
        what, namespace = self.name(f"space_{sender.language}"), f"{self.prefix}-tenant"
        topic, group = what, f"{what}_g"
        self.topic(f"{namespace}%{topic}", 2)
        self.topic(topic, 2)
        sender.ask("produce", name=f"{what}.inside", group=f"{what}_p", namespace=namespace)
        sender.ask("produce", name=f"{what}.outside", group=f"{what}_p")
        receiver.ask("consume", name=f"{what}.in", group=group, topic=topic, namespace=namespace)
        receiver.ask("consume", name=f"{what}.out", group=group, topic=topic)
        for body in numbered("message", 8):
            sender.ask("send", producer=f"{what}.inside", topic=topic, body=f"inside {body}")
            sender.ask("send", producer=f"{what}.outside", topic=topic, body=f"outside {body}")
        for event in self.await_exactly([f"inside {body}" for body in numbered("message", 8)], f"{what}.in"):
            # Go's consumer does not take the namespace off again
            same(
                "topic as the consumer sees it",
                topic,
                event.fields["topic"].removeprefix(f"{namespace}%" if receiver.language == "go" else ""),
            )
        self.await_exactly([f"outside {body}" for body in numbered("message", 8)], f"{what}.out")

    def dead_letters(self, failing: Agent, reader: Agent) -> None:
        """One language fails a message until it is a dead letter, the other reads that as any topic."""
        what = self.name(f"dead_{failing.language}")
        topic, group = self.topic(what, 1), self.group(f"{what}_g", retry_max=2)
        failing.ask("consume", name=f"{what}.failing", group=group, topic=topic, fail=99, retries=2)
        reader.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        reader.ask("send", producer=f"{what}.producer", topic=topic, body="hopeless", tags="t", keys="k", p_u_colour="red")
        await_that(
            lambda: len(self.events("got", f"{what}.failing")) >= 3,
            lambda: f"it was delivered {len(self.events('got', f'{what}.failing'))} times and not 3",
        )
        self.await_routed(f"%DLQ%{group}")
        reader.ask("consume", name=f"{what}.reader", group=f"{what}_reader", topic=f"%DLQ%{group}")
        (letter,) = self.await_exactly(["hopeless"], f"{what}.reader")
        same("tags, keys, property", ("t", "k", "red"), tuple(letter.fields[name] for name in ("tags", "keys", "p.u_colour")))
        times = [(event.number("times"), event.fields["topic"]) for event in self.events("got", f"{what}.failing")]
        same("deliveries before it was given up", [(0, topic), (1, topic), (2, topic)], times)

    # ---------------------------------------------------------------- transactions

    def transactions(self, sender: Agent, receiver: Agent) -> None:
        what = self.name(f"trans_{sender.language}")
        topic = self.topic(what, 2)
        sender.ask("produce", name=f"{what}.producer", group=f"{what}_p", transaction=1)
        receiver.ask("consume", name=f"{what}.consumer", group=f"{what}_g", topic=topic)
        for body, local, checked in (
            ("committed", "commit", "rollback"),
            ("rolled back", "rollback", "commit"),
            ("unknown, then committed", "unknown", "commit"),
            ("unknown, then rolled back", "unknown", "rollback"),
        ):
            sender.ask(
                "send", producer=f"{what}.producer", topic=topic, body=body, p_local=local, p_checked=checked, tags="t", p_u_colour="red"
            )

        def checked_bodies() -> set[str]:
            return {event.body for event in self.events("checked", f"{what}.producer")}

        unknown = {"unknown, then committed", "unknown, then rolled back"}
        await_that(lambda: unknown <= checked_bodies(), lambda: f"the broker asked about {shown(checked_bodies())} only")
        for event in self.await_exactly(["committed", "unknown, then committed"], f"{what}.consumer"):
            same("tags, property", ("t", "red"), (event.fields["tags"], event.fields["p.u_colour"]))
        same("asked about", unknown, checked_bodies())
        same("executed", 4, len(self.events("executed", f"{what}.producer")))

    def killed_in_transaction(self, first: Agent, second: Agent, receiver: Agent) -> None:
        """The first producer is killed between the half message and its decision; the second, of its group, is asked about it."""
        what = self.name(f"killed_{first.language}_{second.language}")
        topic, group = self.topic(what, 2), f"{what}_p"
        receiver.ask("consume", name=f"{what}.consumer", group=f"{what}_g", topic=topic)
        first.ask("produce", name=f"{what}.first", group=group, transaction=1)
        first.begin("send", producer=f"{what}.first", topic=topic, body="orphan", p_local="hang", p_checked="commit")
        await_that(lambda: bool(self.events("executed", f"{what}.first")), lambda: "the half message was not sent")
        first.kill()
        same("delivered without a decision", [], self.bodies(f"{what}.consumer"))
        second.ask("produce", name=f"{what}.second", group=group, transaction=1)
        second.ask("send", producer=f"{what}.second", topic=topic, body="after", p_local="commit", p_checked="rollback")
        self.await_exactly(["orphan", "after"], f"{what}.consumer")
        same("asked about", {"orphan"}, {event.body for event in self.events("checked", f"{what}.second")})


# ---------------------------------------------------------------- several in one group


class Together(Stage):
    """Checks with members of several languages in one group."""

    def sharing(self, members: list[Agent]) -> None:
        """Every queue has one member, shares are even, and messages are handed out once."""
        what, queues = self.name(f"share_{len(members)}"), 2 * len(members)
        topic, group = self.topic(what, queues), self.group(f"{what}_g")
        clients = self._join("consume", what, members, group=group, topic=topic)
        members[-1].ask("produce", name=f"{what}.producer", group=f"{what}_p")
        self._await_shares(what, topic, members[-1], queues, clients, [2] * len(members))
        wanted = [f"shared {number}" for number in range(10 * queues)]
        for number, body in enumerate(wanted):
            members[-1].ask("send", producer=f"{what}.producer", topic=topic, body=body, queue=number % queues, broker=BROKER)
        await_that(lambda: set(wanted) <= set(self.bodies(*clients)), lambda: f"missing {shown(set(wanted) - set(self.bodies(*clients)))}")
        events = [event for event in self.events("got", *clients) if event.body in set(wanted)]
        same("messages handed out", len(wanted), len(events))
        holders = {(event.fields["queue"], event.client) for event in events}
        same("queues with one member", queues, len(holders))

    def lite_pull(self, members: list[Agent]) -> None:
        what = self.name("lite")
        topic = self.topic(what, 4)
        clients = self._join("lite", what, members, group=f"{what}_g", topic=topic)
        members[-1].ask("produce", name=f"{what}.producer", group=f"{what}_p")
        self._await_shares(what, topic, members[-1], 4, clients, [2, 2])
        wanted = numbered("lite", 40)
        for number, body in enumerate(wanted):
            members[-1].ask("send", producer=f"{what}.producer", topic=topic, body=body, queue=number % 4, broker=BROKER)
        await_that(lambda: set(wanted) <= set(self.bodies(*clients)), lambda: f"missing {shown(set(wanted) - set(self.bodies(*clients)))}")
        events = [event for event in self.events("got", *clients) if event.body in set(wanted)]
        same("messages polled", 40, len(events))
        same("queues with one member", 4, len({(event.fields["queue"], event.client) for event in events}))

    def broadcasting(self, members: list[Agent]) -> None:
        what = self.name(f"broadcast_{len(members)}")
        topic = self.topic(what, 4)
        clients = self._join("consume", what, members, group=f"{what}_g", topic=topic, broadcasting=1)
        wanted = []
        for member in members:
            member.ask("produce", name=f"{what}.{member.language}.producer", group=f"{what}_p")
            for body in numbered(f"from {member.language}", 15):
                member.ask("send", producer=f"{what}.{member.language}.producer", topic=topic, body=body)
                wanted.append(body)
        for client in clients:
            self.await_exactly(wanted, client)

    def retries(self, members: list[Agent]) -> None:
        """Every message fails at first; some of what one language failed, another consumes again."""
        what, queues = self.name(f"retry_{len(members)}"), len(members)
        topic, group = self.topic(what, queues), self.group(f"{what}_g", retry_queues=queues)
        clients = self._join("consume", what, members, group=group, topic=topic, fail=1)
        members[-1].ask("produce", name=f"{what}.producer", group=f"{what}_p")
        self._await_shares(what, topic, members[-1], queues, clients, [1] * queues)
        failed_by: dict[str, set[str]] = defaultdict(set)  # language that consumed it at last -> those that failed it
        for number in range(RETRY_ROUNDS):  # which retry queue a message goes to is left to chance, and who has it may still change
            for body, (first, second) in self._failed_once(
                f"fails {number}", topic, f"{what}.producer", members[-1], queues, clients
            ).items():
                same(f"topics of {body!r}", {topic}, {first.fields["topic"], second.fields["topic"]})
                same(f"property of {body!r}", ("red", "red"), (first.fields["p.u_colour"], second.fields["p.u_colour"]))
                same(f"id of {body!r}", first.fields["id"], second.fields["id"])
                again_ms = (second.number("now") - first.number("now")) // 1000
                require(again_ms >= 900, f"{body!r} came again after {again_ms} ms and not after 1 s")
                failed_by[second.language].add(first.language)
            alone = [one.language for one in members if not failed_by[one.language] - {one.language}]
            if not alone:
                return
        raise Wrong(f"{', '.join(alone)} got no retry of what another language failed: {dict(failed_by)}")

    def _failed_once(
        self, stem: str, topic: str, producer: str, sender: Agent, queues: int, clients: list[str]
    ) -> dict[str, tuple[Event, Event]]:
        """Send messages that fail once; the two deliveries of each."""
        wanted = numbered(stem, 8 * queues)
        for number, body in enumerate(wanted):
            sender.ask("send", producer=producer, topic=topic, body=body, queue=number % queues, broker=BROKER, p_u_colour="red")

        def deliveries() -> dict[str, list[Event]]:
            found: dict[str, list[Event]] = {body: [] for body in wanted}
            for event in self.events("got", *clients):
                if event.body in found:
                    found[event.body].append(event)
            return found

        def again() -> int:
            return sum(any(event.number("times") == 1 for event in events) for events in deliveries().values())

        await_that(lambda: again() == len(wanted), lambda: f"only {again()} of {len(wanted)} came again")
        for body, events in deliveries().items():
            same(f"deliveries of {body!r}", [0, 1], [event.number("times") for event in events])
        return {body: (events[0], events[1]) for body, events in deliveries().items()}

    def orderly(self, members: list[Agent]) -> None:
        """Keys in four queues, sent and consumed while members come and go: no key's messages out of order, none lost."""
        what = self.name(f"orderly_{len(members)}")
        topic, group = self.topic(what, 4), self.group(f"{what}_g")
        feed = Feed(self, what, topic, members)
        joined: dict[str, Agent] = {}
        clients: list[str] = []

        def join(member: Agent) -> str:
            client = f"{what}.{member.language}.{len(clients)}"
            clients.append(client)
            member.ask("consume", name=client, group=group, topic=topic, orderly=1, work=WORK_MS)
            joined[client] = member
            return client

        def leave(client: str) -> None:
            joined.pop(client).ask("close", name=client)

        def settled(*shares: int) -> None:
            begin = time.time_ns() // 1000

            def held() -> dict[str, int]:
                holder = {event.fields["queue"]: event.client for event in self.events("got", *clients) if event.number("now") > begin}
                return Counter(holder.values())

            def good() -> bool:
                return sorted(held().values()) == sorted(shares) and set(held()) == set(joined)

            await_that(good, lambda: f"the queues are held as {dict(held())} and not {list(shares)}")

        try:
            first = join(members[-1])
            settled(4)
            second = join(members[0])
            settled(2, 2)
            leave(first)
            settled(4)
            third = join(members[-1])
            settled(2, 2)
            if len(members) > 2:
                join(members[1])
                settled(1, 1, 2)
            leave(second)
            settled(*([2, 2] if len(members) > 2 else [4]))
            if len(members) > 2:
                leave(third)
                settled(4)
        finally:
            sent = feed.stop()
        self.await_bodies(sent, *clients)
        self._in_order(self.events("got", *clients))

    @staticmethod
    def _in_order(events: list[Event]) -> None:
        """A queue has one member at a time, and its messages come in order. A member that takes a queue over may begin with
        what the one before has consumed and not yet reported: that much is repeated, and nothing is passed over."""
        queues: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            queues[event.fields["queue"]].append(event)
        for queue, run in queues.items():
            last, by, busy_until, before = -1, "", 0, set()
            for event in run:
                require(event.number("now") >= busy_until, f"queue {queue}: {event.body} by {event.client} while {by} was at work")
                busy_until = event.number("now") + (WORK_MS - 1) * 1000
                offset = event.number("offset")
                if event.client != by:
                    require(event.client not in before, f"queue {queue}: {event.client} consumes while {by} does")
                    before.add(event.client)
                    repeated = last + 1 - offset
                    require(
                        0 <= repeated <= REPEATED_MAX,
                        f"queue {queue}: {event.client} begins at {offset}, and {by or 'nobody'} ended at {last}",
                    )
                    by = event.client
                else:
                    require(offset == last + 1, f"queue {queue}: {offset} by {by} after {last}")
                last = offset
        keys: dict[str, int] = defaultdict(int)
        for event in events:
            key, number = event.body.split(":")
            require(int(number) <= keys[key], f"key {key}: {number} came before {keys[key]}")
            keys[key] = max(keys[key], int(number) + 1)

    def reset_by_mqadmin(self, admin: Agent, member: Agent) -> None:
        what = self.name(f"reset_{admin.language}")
        topic, group, client, wanted = self._consumed(what, member)
        long_ago = 1  # ms since 1970; -1 would be the end
        printed = admin.ask("mqadmin", line=f"resetOffsetByTime -n {self.namesrv} -g {group} -t {topic} -s {long_ago}")
        self._came_again(client, wanted, printed)

    def reset_by_roquet(self, member: Agent) -> None:
        topic, group, client, wanted = self._consumed(self.name("reset_roquet"), member)
        command = [sys.executable, "-m", "roquet", "group", "reset", group, topic, "--to", "first", "--yes", "-n", self.namesrv]
        environment = os.environ | self.entry.environment()
        done = subprocess.run(command, capture_output=True, text=True, timeout=apache.PATIENCE_S, check=False, env=environment)
        same("exit code", 0, done.returncode)
        self._came_again(client, wanted, done.stdout + done.stderr)

    def _consumed(self, what: str, member: Agent) -> tuple[str, str, str, list[str]]:
        """A consumer that is online, has consumed 20 messages, and has told the broker so."""
        topic, group, client, wanted = self.topic(what, 2), f"{what}_g", f"{what}.consumer", numbered("again", 20)
        member.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        member.ask("consume", name=client, group=group, topic=topic)
        for body in wanted:
            member.ask("send", producer=f"{what}.producer", topic=topic, body=body)
        self.await_exactly(wanted, client)

        def committed() -> bool:
            progress = self.administer(lambda admin: admin.progress(group, topic))
            return sum(one.consumer_offset for one in progress) == 20

        apache.wait_until(committed, f"the offsets of {group} at the broker", every_s=0.3)
        return topic, group, client, wanted

    def _came_again(self, client: str, wanted: list[str], printed: str) -> None:
        await_that(
            lambda: all(count == 2 for count in Counter(self.bodies(client)).values()),
            lambda: f"came {sorted(Counter(self.bodies(client)).values())} times; printed: {printed[:400]}",
        )
        same("bodies", sorted(wanted * 2), sorted(self.bodies(client)))

    def _join(self, verb: str, what: str, members: list[Agent], **given: object) -> list[str]:
        clients = [f"{what}.{member.language}" for member in members]
        for answer in [member.begin(verb, name=client, **given) for member, client in zip(members, clients, strict=True)]:
            answer()
        return clients

    def _await_shares(self, what: str, topic: str, sender: Agent, queues: int, clients: list[str], shares: list[int]) -> None:
        """Send a message to every queue, round after round, until those of a round are handed out as said."""
        give_up = time.monotonic() + apache.PATIENCE_S
        number = 0
        while time.monotonic() < give_up:
            number += 1
            body = f"{what} round {number}"
            for queue in range(queues):
                sender.ask("send", producer=f"{what}.producer", topic=topic, body=body, queue=queue, broker=BROKER)

            def holders(body: str = body) -> dict[str, str]:
                return {
                    event.fields["queue"]: event.client
                    for event in self.events("got", *clients)
                    if event.body == body and event.number("times") == 0
                }

            deadline = time.monotonic() + 1.0 + 0.5 * number  # a slow machine gets more in each round
            while len(holders()) < queues and time.monotonic() < deadline:
                time.sleep(0.05)
            held = Counter(holders().values())
            if sorted(held.values()) == sorted(shares):
                return
        raise Wrong(f"after {number} rounds the queues are held as {dict(held)}, and not {shares}")


class Feed:
    """Sends numbered messages of 8 keys, each key by one producer and to one queue, until it is stopped."""

    def __init__(self, stage: Stage, what: str, topic: str, senders: list[Agent]) -> None:
        self._stopping = threading.Event()
        self._sent: list[str] = []
        self._problem: Exception | None = None
        for sender in senders:
            sender.ask("produce", name=f"{what}.producer", group=f"{what}_p")
        self._thread = threading.Thread(target=self._run, args=(what, topic, senders))
        self._thread.start()

    def _run(self, what: str, topic: str, senders: list[Agent]) -> None:
        try:
            number = 0
            while not self._stopping.wait(FEED_S):
                waiting = []
                for key in range(8):
                    sender, body = senders[key % len(senders)], f"key{key}:{number}"
                    waiting.append(sender.begin("send", producer=f"{what}.producer", topic=topic, body=body, queue=key % 4, broker=BROKER))
                    self._sent.append(body)
                for answer in waiting:  # the next of a key only when this one is stored
                    answer()
                number += 1
        except Exception as problem:
            self._problem = problem

    def stop(self) -> list[str]:
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._sent


# ---------------------------------------------------------------- all of it


def checks_of_pair(
    section: Section, stages: tuple[Between, Together], foreign: Agent, python: Agent, fresh: Callable[[str], Agent]
) -> list[tuple[str, Body]]:
    between, together = stages
    other, java = foreign.language, foreign.language.startswith("java")
    checks: list[tuple[str, Body]] = []
    for sender, receiver in ((foreign, python), (python, foreign)):
        way = f"{sender.language} to {receiver.language}"
        for name, body in (
            ("delay levels, not early", between.delay_levels),
            ("tag and SQL filters", between.filters),
            ("request and reply", between.request_reply),
            ("namespaces", between.namespaces),
            ("transactions committed, rolled back, checked", between.transactions),
            ("timed messages, not early", between.timed),
        ):
            checks.append((f"{name}, {way}", lambda body=body, one=sender, two=receiver: body(one, two)))  # type: ignore[misc]
        name = f"dead letters of {sender.language}, read by {receiver.language}"
        checks.append((name, lambda one=sender, two=receiver: between.dead_letters(one, two)))  # type: ignore[misc]

    def killed(language: str, receiver: Agent) -> None:
        first, second = fresh(language), fresh(language)
        between.agents += [first, second]
        between.killed_in_transaction(first, second, receiver)

    checks.append((f"a {other} producer killed in its transaction, asked when it is back", lambda: killed(other, python)))
    if other == "go":
        checks.append(("a python producer killed in its transaction, asked when it is back", lambda: killed("python", foreign)))
    both = [foreign, python]
    checks += [
        ("one group: queues are shared alike", lambda: together.sharing(both)),
        ("one group: broadcasting, each member gets all", lambda: together.broadcasting(both)),
        ("one group: failed by one, retried by the other", lambda: together.retries(both)),
        (f"offsets reset by roquet, {other} online", lambda: together.reset_by_roquet(foreign)),
    ]
    if java:
        checks += [
            ("one group: orderly, members come and go", lambda: together.orderly(both)),
            ("one group: lite pull", lambda: together.lite_pull(both)),
            (f"offsets reset by mqadmin {other.removeprefix('java-')}, python online", lambda: together.reset_by_mqadmin(foreign, python)),
        ]
    else:
        section.skip("one group: lite pull", NO_LITE_PULL)
    return checks


def checks_of_all(stages: tuple[Between, Together], everyone: list[Agent], fresh: Callable[[str], Agent]) -> list[tuple[str, Body]]:
    between, together = stages
    java = [agent for agent in everyone if agent.language != "go"]

    def succeeded() -> None:
        first = fresh("go")
        between.agents.append(first)
        between.killed_in_transaction(first, everyone[-1], everyone[0])

    return [
        ("queues are shared alike", lambda: together.sharing(everyone)),
        ("broadcasting, each member gets all", lambda: together.broadcasting(everyone)),
        ("failed by one, retried by another", lambda: together.retries(everyone)),
        ("orderly, two java and python members come and go", lambda: together.orderly(java)),
        ("a go producer killed in its transaction, python asked", succeeded),
    ]


def run_checks(section: Section, checks: list[tuple[str, Body]], only: tuple[str, ...] = ()) -> None:
    """All at once, more or less; reported in their order."""

    def outcome(body: Body) -> str | None:
        try:
            body()
        except (Wrong, apache.InteropError) as problem:
            return str(problem)
        except Exception as problem:
            return f"{type(problem).__name__}: {problem}"
        return None

    with ThreadPoolExecutor(SCENARIOS_AT_ONCE) as pool:
        running = [(name, pool.submit(outcome, body)) for name, body in checks if not only or any(word in name for word in only)]
        for name, each in running:
            section.judge(name, each.result())


def check(
    reporter: Reporter,
    namesrv: str,
    directory: Path,
    java: dict[str, JavaClient],
    go: Path | None,
    *,
    early_ms: int,
    expected: list[tuple[str, str]],
    extra: tuple[PassedOver, ...] = (),
    only: tuple[str, ...] = (),
    entry: Entry = AS_THEY_ARE,
    how: str = "",
) -> None:
    """A section for each language with Python, and one for all of them in one group. `only`: checks with one of these words. `entry`,
    `how`: the way in, and what it is called in the titles."""
    agents = Agents(namesrv, directory, java, go, extra, entry)
    try:
        languages = [f"java-{version}" for version in java] + (["go"] if go is not None else [])
        with ThreadPoolExecutor() as pool:
            *foreign, python = pool.map(agents.start, [*languages, "python"])
        everyone = [*foreign, python]

        def stages(prefix: str, members: list[Agent]) -> tuple[Between, Together]:
            between = Between(prefix, namesrv, list(members), early_ms, entry)
            return between, Together(prefix, namesrv, list(members), early_ms, entry)

        def pair(section: Section, other: Agent) -> None:
            prefix = f"mx{other.language.removeprefix('java-')[0]}"
            run_checks(section, checks_of_pair(section, stages(prefix, [other, python]), other, python, agents.start), only)

        def all_of_them(section: Section) -> None:
            if len(everyone) < 4:
                section.skip("all checks", "java or go is missing")
                return
            run_checks(section, checks_of_all(stages("mxa", everyone), everyone, agents.start), only)

        def logs(section: Section) -> None:
            for agent in everyone:
                section.judge(f"{agent.language}: no warning or error", agent.log_problem(kept=True))
            for agent in agents.all:
                if agent not in everyone:
                    problem = agent.log_problem()
                    if problem is not None:
                        section.fail(f"{agent.language} of the killed and restarted: no warning or error", problem)

        with ThreadPoolExecutor() as pool:
            waiting = [
                pool.submit(reporter.run, Section(f"mixed{how}: {each.language} and python", expected=expected), partial(pair, other=each))
                for each in foreign
            ]
            waiting.append(pool.submit(reporter.run, Section(f"mixed{how}: all in one group", expected=expected), all_of_them))
            for each in waiting:
                each.result()
        if not only or how:
            reporter.run(Section(f"mixed{how}: what the clients logged", expected=expected), logs)
    finally:
        agents.end()
