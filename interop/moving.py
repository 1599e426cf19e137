"""Clients of several languages while the master of their broker changes: sends go on, nothing is lost, consumers go on from their offsets.

Three ways: the leader of a DLedger group is killed; a master is killed and its slave started as the master; an Apache master is replaced
by a Roquet slave, in the steps of docs/replication.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apache
import dledger_groups
from agents import Agent, Agents
from java_client import JavaClient
from mixed import Stage, shown
from replication import Connection
from report import Section
from steady import Load
from store_exchange import Peer

from roquet.wire.codes import RequestCode, ResponseCode

TOPIC, QUEUES, BROKER = "Moving", 4, "broker-a"
BEFORE = 50
"""Acknowledged messages of each language before anything happens."""
PAUSE_S = 0.02
POLL_MS = 30_000
"""So often Apache's Java clients ask for routes by themselves."""
GROUPS = STAYING, LEAVING = "stays", "leaves"
ASK_AGAIN_S, REST_S = 10.0, 3.0
SETTINGS: dict[str, object] = {"waitTimeMillsInSendQueue": 10_000, "flushConsumerOffsetInterval": 1_000}
JAVA = "4.9.8"


class Clients:
    """Each language sends, and consumes in two groups of its own what all of them send: the consumer of one stays, that of the other
    leaves before anything moves, and comes back afterwards. Then it has nothing but the offsets that the brokers know."""

    def __init__(self, section: Section, namesrv: str, everyone: Sequence[Agent], poll_ms: int) -> None:
        self.section, self.everyone = section, everyone
        self.stage = Stage("moving", namesrv, list(everyone), 0)
        self.stage.topic(TOPIC, QUEUES)
        self.stage.await_routed(TOPIC)
        for agent in everyone:
            for kind in GROUPS:
                self.stage.group(self.group(agent, kind))
                self._consume(agent, kind, "first")
        self.loads = [Load(agent, TOPIC, pause_s=PAUSE_S, poll=poll_ms, timeout=3_000) for agent in everyone]
        self._settled: set[str] = set()
        self._moved_ms = 0

    @staticmethod
    def group(agent: Agent, kind: str) -> str:
        return f"{kind}_{agent.language}".replace(".", "-")

    def _client(self, agent: Agent, kind: str, which: str) -> str:
        return f"{self.group(agent, kind)}.{which}"

    def _consume(self, agent: Agent, kind: str, which: str) -> None:
        agent.ask("consume", name=self._client(agent, kind, which), group=self.group(agent, kind), topic=TOPIC)

    def settle(self, brokers: Sequence[str]) -> None:
        """Wait until what was sent by now is consumed, and these brokers know that."""
        apache.wait_until(lambda: all(len(load.acknowledged) >= BEFORE for load in self.loads), f"{BEFORE} messages of each language")
        settled = self._sent()
        lines = {address: Connection(address) for address in brokers}
        ends = self._numbers(lines[brokers[0]], RequestCode.GET_MAX_OFFSET, {})
        for address, line in lines.items():
            for agent, kind in itertools.product(self.everyone, GROUPS):
                header = {"consumerGroup": self.group(agent, kind)}
                apache.wait_until(
                    lambda line=line, header=header: self._passed(line, header, ends),  # type: ignore[misc]
                    f"the progress of {header['consumerGroup']} at {address}: it must reach {ends}",
                    every_s=0.2,
                )
        self._settled = settled
        for agent in self.everyone:
            agent.ask("close", name=self._client(agent, LEAVING, "first"))

    def _passed(self, line: Connection, header: dict[str, str], ends: list[int]) -> bool:
        return all(at >= end for at, end in zip(self._numbers(line, RequestCode.QUERY_CONSUMER_OFFSET, header), ends, strict=True))

    @staticmethod
    def _numbers(line: Connection, code: int, header: dict[str, str]) -> list[int]:
        answers = [line.ask(code, {"topic": TOPIC, "queueId": str(queue), **header}) for queue in range(QUEUES)]
        return [int(each.fields["offset"]) if each.code == ResponseCode.SUCCESS else -1 for each in answers]

    def _sent(self) -> set[str]:
        return set().union(*(load.bodies() for load in self.loads))

    def moves(self) -> float:
        """The moment that it begins."""
        self._moved_ms = time.time_ns() // 1_000_000
        return time.monotonic()

    def went_on(self, since: float) -> None:
        """Wait until every language's sends are acknowledged again."""
        for load in self.loads:
            took = load.first_after(since) - since
            failed = sum(when > since for when, _ in load.failures)
            self.section.notes.append(f"{load.language}: acknowledged again after {took:.1f} s, {failed} sends failed meanwhile")
            self.section.ok(f"{load.language}: sends go on")
            if load.language == "python":
                self.section.judge("python: no send fails, each waits", f"{failed} did: {load.failures[-1][1]}" if failed else None)

    def all_come_to_a_new_group(self, source: str) -> None:
        java, client = self.everyone[0], "new.client"
        java.ask("consume", name=client, group="new", topic=TOPIC)
        with contextlib.suppress(apache.InteropError):
            apache.wait_until(lambda: self._sent() <= set(self.stage.bodies(client)), "all messages", every_s=0.3)
        missing = self._sent() - set(self.stage.bodies(client))
        self.section.judge(
            f"a new group gets all from {source}", f"{shown(missing)} of {len(self._sent())} did not come" if missing else None
        )

    def end(self) -> None:
        """The consumers that left come back. Then all must have come to every group, and nothing settled again."""
        for agent in self.everyone:
            self._consume(agent, LEAVING, "second")
        for load in self.loads:
            load.first_after(time.monotonic())
            load.stop()
        sent = self._sent()
        for agent, kind in itertools.product(self.everyone, GROUPS):
            names = [self._client(agent, kind, which) for which in ("first", "second")]
            with contextlib.suppress(apache.InteropError):
                apache.wait_until(lambda names=names: sent <= set(self.stage.bodies(*names)), "all messages", every_s=0.3)  # type: ignore[misc]
            events = self.stage.events("got", *names)
            missing = sent - {event.body for event in events}
            what = f"{agent.language}, a consumer that {kind}: it had all that was acknowledged"
            self.section.judge(what, f"{shown(missing)} of {len(sent)} never came" if missing else None)
            again = {event.body for event in events if event.at_ms > self._moved_ms} & self._settled
            what = f"{agent.language}, a consumer that {kind}: it went on from its offsets"
            self.section.judge(what, f"{shown(again)} of {len(self._settled)} that were committed came again" if again else None)


@contextlib.contextmanager
def clients(
    section: Section, namesrv: str, directory: Path, java: JavaClient, go: Path | None, *, python: bool = True, poll_ms: int = POLL_MS
) -> Iterator[Clients]:
    agents = Agents(namesrv, directory, {JAVA: java}, go, ())
    found: Clients | None = None
    try:
        chosen = [f"java-{JAVA}", *(["go"] if go else []), *(["python"] if python else [])]
        with ThreadPoolExecutor() as pool:
            everyone = list(pool.map(agents.start, chosen))
        found = Clients(section, namesrv, everyone, poll_ms)
        yield found
    finally:
        for load in found.loads if found else ():
            load.stop()
        agents.end()


# ---------------------------------------------------------------- the leader of a group is killed


def check_leader(section: Section, peer: Peer, directory: Path, java: JavaClient, go: Path | None) -> None:
    with peer.name_server(apache.free_port(), directory / "namesrv") as namesrv:
        group = dledger_groups.Group([peer] * 3, namesrv.address, directory)
        try:
            leader = group.wait_leader()
            with clients(section, namesrv.address, directory / "agents", java, go) as playing:
                addresses = [group.members[number].address for number in (leader, *(set(group.members) - {leader}))]
                playing.settle(addresses)
                leader = group.wait_leader()
                since = playing.moves()
                group.members.pop(leader).kill()
                playing.went_on(since)
                playing.end()
        finally:
            group.stop()


# ---------------------------------------------------------------- a slave becomes the master


def check_promoted(section: Section, peer: Peer, directory: Path, java: JavaClient, go: Path | None) -> None:
    with peer.name_server(apache.free_port(), directory / "namesrv") as namesrv, contextlib.ExitStack() as stack:

        def start(port: int, name: str, role: str, number: int) -> apache.Server:
            return stack.enter_context(
                peer.broker(port, namesrv.address, directory / name, SETTINGS | {"brokerRole": role, "brokerId": number})
            )

        slave_port = apache.free_port()
        master = start(apache.free_port(), "master", "SYNC_MASTER", 0)
        slave = start(slave_port, "slave", "SLAVE", 1)
        line = Connection(master.address)
        apache.wait_until(lambda: line.send(0) == ResponseCode.SUCCESS, "a send that the slave has confirmed", every_s=0.2)
        with clients(section, namesrv.address, directory / "agents", java, go) as playing:
            playing.settle([master.address, slave.address])
            since = playing.moves()
            master.kill()
            slave.stop()
            start(slave_port, "slave", "ASYNC_MASTER", 0)
            playing.went_on(since)
            playing.end()


# ---------------------------------------------------------------- an Apache master is replaced by a Roquet slave


def check_migration(section: Section, old: Peer, new: Peer, directory: Path, java: JavaClient) -> None:
    """As docs/replication.md says, step by step."""
    with old.name_server(apache.free_port(), directory / "namesrv") as namesrv, contextlib.ExitStack() as stack:
        slave_port = apache.free_port()

        def start(peer: Peer, port: int, name: str, role: str, number: int) -> apache.Server:
            return stack.enter_context(
                peer.broker(port, namesrv.address, directory / name, SETTINGS | {"brokerRole": role, "brokerId": number})
            )

        master = start(old, apache.free_port(), "master", "ASYNC_MASTER", 0)
        with clients(section, namesrv.address, directory / "agents", java, None, python=False, poll_ms=2_000) as playing:
            slave = start(new, slave_port, "slave", "SLAVE", 1)
            playing.settle([master.address, slave.address])
            playing.moves()
            await_rest(master.address, lambda: send_away(playing.everyone[0], namesrv.address))
            section.ok("mqadmin sends producers away")
            apache.wait_until(lambda: behind(namesrv.address) == 0, "`roquet ha status`: 0 bytes behind", every_s=0.5)
            section.ok("roquet ha status says that the slave has all")
            since = time.monotonic()
            master.stop()
            playing.all_come_to_a_new_group("the slave alone")
            slave.stop()
            start(new, slave_port, "slave", "ASYNC_MASTER", 0)
            playing.went_on(since)
            playing.end()


def send_away(admin: Agent, namesrv: str) -> None:
    printed = admin.ask("mqadmin", line=f"wipeWritePerm -n {namesrv} -b {BROKER}")
    if " OK, " not in printed:
        raise apache.InteropError(f"mqadmin wipeWritePerm: {printed}")


def await_rest(address: str, send_away: Callable[[], None]) -> None:
    """Until nobody sends any more. Producers ask for routes now and then; a topic that is new at the master gives the permission back."""
    line, last, grew, asked = Connection(address), "", time.monotonic(), 0.0

    def rests() -> bool:
        nonlocal last, grew, asked
        end, now = line.runtime()["commitLogMaxOffset"], time.monotonic()
        if end != last:
            last, grew = end, now
            if now - asked > ASK_AGAIN_S:
                asked = now
                send_away()
        return now - grew > REST_S

    apache.wait_until(rests, "a log that does not grow", every_s=0.2)


def behind(namesrv: str) -> int | None:
    """What an operator reads."""
    command = [sys.executable, "-m", "roquet", "ha", "status", "--json", "-n", namesrv]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=apache.PATIENCE_S, check=False)
    slaves = [row for row in json.loads(printed.stdout)["brokers"] if row["role"].startswith("slave")]
    return slaves[0]["behindBytes"] if slaves else None
