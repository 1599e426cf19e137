"""A group of members of `roquet.raft`, simulated from a seed: only the rules, each on a ledger in memory, hundreds of runs a minute.

What goes wrong: messages are late, lost, doubled, out of order; members cannot reach each other, both ways or one; they stand still, are
killed, lose power (where entries count only when they are flushed), and come back with what their disks hold; the leadership is handed
over.

What must hold all the same is checked at every step:

    one leader a term, and no term twice, not even by the same member in another life
    an entry that one member knows to be committed is the same for all members, for ever (so nothing acknowledged is lost, and
    nobody ever saw what was taken back), and what a member knows to be committed does not become less while it lives
    two entries with the same index and term are the same entry
    when everything works again, there is a leader, it commits, and all ledgers are equal
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from roquet.raft import dense
from roquet.raft.codes import Code, Role
from roquet.raft.member import Ask, Member, Reply
from roquet.raft.messages import CALLS, Answer, DensePush, PushAnswer, Request, TransferRequest, answer_of, body_of, request_of
from roquet.raft.options import Options
from roquet.testing.memory_ledger import MemoryLedger
from roquet.testing.simulation import SECOND, Simulation
from roquet.wire.ledger_entry import Entry

MS = 1_000
GROUP = "broker-a"
QUORUM_MS = 2_500


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass(frozen=True)
class Rules:
    """The rules under test. A planted bug changes one of these."""

    member: Callable[..., Member] = Member
    saves_terms: bool = True
    save_us: tuple[int, int] = (100, 8 * MS)
    """How long the disk takes for a term and a vote."""
    applies: Callable[[MemoryLedger], int] = lambda ledger: ledger.committed
    """Up to where entries are shown and acknowledged."""
    options: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Sent:
    """A message of a client that waits to be committed."""

    entry: Entry
    deadline_us: int


class Node:
    """One machine. State that survives the process: `disk_term`, and of the ledger what the crash leaves."""

    def __init__(self, group: RaftGroup, name: str) -> None:
        self.group = group
        self.name = name
        self.life = 0
        self.member: Member | None = None
        self.ledger = MemoryLedger(group.file_size)
        self.disk_term = (0, "")
        self.still_until_us = 0
        self.unheard = 0
        """What it said in this life, or an earlier one, and has not arrived never will."""
        self.applied = -1
        self._saving = self._flushing = False
        self._sent: list[Sent] = []

    @property
    def now_ms(self) -> int:
        return self.group.simulation.now_us // MS + self.life * 7_919

    def start(self) -> None:
        group = self.group
        self.life += 1
        self._saving = self._flushing = False
        self._sent = []
        self.applied = -1
        self.still_until_us = 0
        options = group.options_of(self.name)
        random = Random(group.simulation.random.random())
        self.member = group.rules.member(options, self.ledger, self.disk_term, random, self.now_ms)
        self._after()
        self._tick_later(self.life)

    def stop(self, *, power: bool) -> None:
        random = self.group.simulation.random
        self.member = None
        if power or random.random() < 0.5:
            self.unheard = self.life
        self.ledger = self.ledger.after_power_loss(random) if power else self.ledger.after_kill()

    def _tick_later(self, life: int) -> None:
        def tick() -> None:
            if self.life == life and self.member is not None:
                self.run(lambda member: member.tick(self.now_ms))
                self._tick_later(life)

        self.group.simulation.after(self.group.simulation.random.randrange(5 * MS, 25 * MS), tick)

    def run(self, step: Callable[[Member], None]) -> None:
        """One step of the member: now, or when it goes on after standing still. Of a process that ended meanwhile: never."""
        simulation, life = self.group.simulation, self.life
        if simulation.now_us < self.still_until_us:
            simulation.at(self.still_until_us, lambda: self.run(step) if life == self.life else None)
        elif self.member is not None:
            step(self.member)
            self._after()

    def _after(self) -> None:
        """What the shell does after each step: saves, flushes, sends, serves."""
        member = self.member
        assert member is not None
        for change in member.changes:
            self.group.simulation.note(f"{self.name} {change.role} term {change.term}: {change.why}")
            if change.role is Role.LEADER:
                self.group.leads(self, change.term)
                self.append(b"begin %d" % change.term)
        member.changes.clear()
        self._save(member)
        self._flush(member)
        while member.out:
            out, member.out = member.out, []
            for message in out:
                self.group.send(self, message)
        self._serve(member)

    def _save(self, member: Member) -> None:
        if member.unsaved is None or self._saving:
            return
        self._saving = True
        life, wanted, simulation = self.life, member.unsaved, self.group.simulation

        def done() -> None:
            if life == self.life and self.member is member:
                self._saving = False
                if self.group.rules.saves_terms:
                    self.disk_term = wanted
                self.run(lambda member: member.saved(*wanted, self.now_ms))

        simulation.after(simulation.between(*self.group.rules.save_us), done)

    def _flush(self, member: Member) -> None:
        if self.ledger.flushed_index == self.ledger.end or self._flushing:
            return
        self._flushing = True
        life, done, simulation = self.life, self.ledger.begin_flush(), self.group.simulation

        def flushed() -> None:
            if life == self.life and self.member is member:
                self._flushing = False
                done()
                self.run(lambda member: member.stored(self.now_ms))

        simulation.after(simulation.between(500, 15 * MS), flushed)

    def append(self, body: bytes) -> Entry:
        member = self.member
        assert member is not None
        entry = self.ledger.lead(member.term, body)
        self.group.appended(entry)
        member.stored(self.now_ms)
        return entry

    def send(self, body: bytes) -> None:
        """A client's message, if this member thinks that it leads."""

        def step(member: Member) -> None:
            if member.leading.may_append() is Code.SUCCESS:
                entry = self.append(body)
                self._sent.append(Sent(entry, self.group.simulation.now_us + QUORUM_MS * MS))

        self.run(step)

    def _serve(self, member: Member) -> None:
        """Show what is committed, and acknowledge it to those who sent it."""
        upto = min(self.group.rules.applies(self.ledger), self.ledger.end)
        if upto < self.applied:
            raise Violation(f"{self.name} showed entries up to {self.applied}, and now {upto} is the last that is committed")
        while self.applied < upto:
            self.applied = max(self.applied + 1, self.ledger.begin)
            self.group.shown(self, self.ledger.read(self.applied, 1, 1)[0])
        if not self._sent:
            return
        for sent in self._sent:
            if sent.entry.index <= self.applied and member.role is Role.LEADER and member.term == sent.entry.term:
                self.group.acknowledged(sent.entry)
        now_us = self.group.simulation.now_us
        leads = member.role is Role.LEADER
        self._sent = [each for each in self._sent if leads and each.entry.index > self.applied and each.deadline_us > now_us]


class RaftGroup:
    """State: the nodes, who cannot reach whom, and all that was promised."""

    def __init__(self, seed: int, rules: Rules | None = None, *, show: Callable[[str], None] | None = None) -> None:
        self.rules = rules or Rules()
        self.simulation = simulation = Simulation(seed, show=show)
        random = simulation.random
        self.hunted = random.random() < 0.4
        """Whoever begins to lead is soon in trouble, and whoever commits an earlier leader's entry is so at once: entries are left here and
        there, as in figure 8 of the paper on Raft."""
        self.size = 3 if self.hunted else random.choice((3, 3, 3, 5))
        self.sync = random.random() < (0.2 if self.hunted else 0.5)
        self.coded = random.random() < 0.15
        self.java = {name for name in self.names() if random.random() < 0.3} if random.random() < 0.25 else set()
        """Members that speak as Java does: none of ours goes to them, none comes from them."""
        self.file_size = random.choice((512, 4_096))
        self.loss = 0.0
        self.limits = {
            "push_entries": random.choice((1, 2, 4_096)),
            "java_push_entries": random.choice((1, 3, 128)),
            "frames_max": random.choice((1, 4, 32)),
            "sync_flush": self.sync,
            "preferred": ("n1",) if random.random() < 0.1 else (),
        }
        self.blocked: set[tuple[str, str]] = set()
        self.leaders: dict[int, tuple[str, int]] = {}
        self.truth: dict[int, Entry] = {}
        self.known: dict[tuple[int, int], bytes] = {}
        self.acked: dict[int, Entry] = {}
        self._count = 0
        self.trouble_until_us = 0
        if self.hunted:
            self.limits |= {"push_entries": 1, "java_push_entries": 1, "frames_max": 1}
        self.nodes = {name: Node(self, name) for name in self.names()}

    def names(self) -> list[str]:
        return [f"n{number}" for number in range(self.size)]

    def options_of(self, name: str) -> Options:
        peers = {each: f"127.0.0.1:{40_000 + at}" for at, each in enumerate(self.names())}
        return replace(Options(GROUP, name, peers), **self.limits, **self.rules.options)  # type: ignore[arg-type]

    # The network

    def send(self, node: Node, message: Ask | Reply) -> None:
        if isinstance(message, Reply):
            deliver = message.token
            assert callable(deliver)
            deliver(message.answer)
        else:
            self._call(node, message)

    def _call(self, node: Node, ask: Ask) -> None:
        simulation, target = self.simulation, self.nodes[ask.member]
        life, answered = node.life, False

        def done(answer: Answer | None) -> None:
            nonlocal answered
            if not answered and node.life == life and node.member is not None:
                answered = True
                node.run(lambda member: ask.done(answer, node.now_ms))

        def back(answer: Answer) -> None:
            self._carry(target.name, node.name, lambda: done(self._coded_answer(ask.request, answer)))

        def arrive() -> None:
            if target.member is None:
                return simulation.after(100, lambda: done(None))  # the connection is refused
            request = self._coded(ask.request)
            target.run(lambda member: member.receive(back, replace(request), target.now_ms))

        if isinstance(ask.request, DensePush) and (node.name in self.java or target.name in self.java):
            raise Violation(f"{node.name} sent {target.name} a dense push, and one of them is Java")
        self._carry(node.name, target.name, arrive)
        simulation.after(ask.timeout_ms * MS, lambda: done(None))

    def _carry(self, source: str, target: str, deliver: Callable[[], object]) -> None:
        simulation, node = self.simulation, self.nodes[source]
        if (source, target) in self.blocked or simulation.random.random() < self.loss:
            return
        life = node.life

        def arrive() -> None:
            if life > node.unheard:
                deliver()

        simulation.after(simulation.between(50, 30 * MS), arrive)
        if simulation.random.random() < 0.01:
            simulation.after(simulation.between(50, 200 * MS), arrive)

    def _coded(self, request: Request) -> Request:
        """As it arrives: through its bytes in some runs, and without our additions between Java and us."""
        if request.remote_id in self.java or request.local_id in self.java:
            request = replace(request, ours=0)
        if not self.coded:
            return request
        if isinstance(request, DensePush):
            return dense.push_of(dense.body_of_push(request))
        return request_of(CALLS[type(request)], body_of(request))

    def _coded_answer(self, request: Request, answer: Answer) -> Answer:
        if not self.coded:
            return answer
        if isinstance(request, DensePush):
            assert isinstance(answer, PushAnswer)
            return dense.answer_of_push(dense.body_of_answer(answer))
        return answer_of(CALLS[type(request)], body_of(answer))

    # What is promised

    def leads(self, node: Node, term: int) -> None:
        who = (node.name, node.life)
        if self.leaders.setdefault(term, who) != who:
            raise Violation(f"term {term} has two leaders: {self.leaders[term]} and {who}")
        self._hunt(node, 0.75, 50 * MS)

    def _hunt(self, node: Node, chance: float, within_us: int, away_us: int = 800 * MS) -> None:
        simulation, life = self.simulation, node.life
        random = simulation.random
        if self.hunted and random.random() < chance and simulation.now_us < self.trouble_until_us:
            away_us = random.randrange(away_us // 8, away_us)
            simulation.after(random.randrange(within_us), lambda: self._crash(node, away_us) if node.life == life else None)

    def appended(self, entry: Entry) -> None:
        if self.known.setdefault((entry.index, entry.term), entry.body) != entry.body:
            raise Violation(f"two different entries have index {entry.index} and term {entry.term}")

    def shown(self, node: Node, entry: Entry) -> None:
        fresh = entry.index not in self.truth
        if self.truth.setdefault(entry.index, entry) != entry:
            other = self.truth[entry.index]
            raise Violation(f"{node.name} has committed entry {entry.index} of term {entry.term}; elsewhere it was of term {other.term}")
        if fresh and node.member is not None and entry.term < node.member.term:
            self._hunt(node, 0.8, 3 * MS, 1_500 * MS)

    def acknowledged(self, entry: Entry) -> None:
        self.acked[entry.index] = entry

    # What goes wrong

    def trouble(self) -> None:
        random, simulation = self.simulation.random, self.simulation
        node = self.nodes[random.choice(self.names())]
        leaders = [each for each in self.nodes.values() if each.member is not None and each.member.role is Role.LEADER]
        if leaders and random.random() < 0.5:
            node = random.choice(leaders)
        match random.randrange(9):
            case 0 | 1 | 2:
                self._crash(node)
            case 3:
                side = set(random.sample(self.names(), random.randrange(1, self.size)))
                self.blocked = {(a, b) for a in self.names() for b in self.names() if (a in side) != (b in side)}
                simulation.note(f"cut: {sorted(side)} from the others")
            case 4:
                others = random.sample(self.names(), random.randrange(1, self.size))
                pairs = {(node.name, each) for each in others} if random.random() < 0.5 else {(each, node.name) for each in others}
                self.blocked = pairs
                simulation.note(f"one way: {sorted(pairs)}")
            case 5:
                self.blocked = set()
                self.loss = random.choice((0.0, 0.0, 0.05, 0.2))
                simulation.note(f"healed, loss {self.loss}")
            case 6:
                node.still_until_us = simulation.now_us + simulation.between(100 * MS, 4 * SECOND)
                simulation.note(f"{node.name} stands still")
            case 7:
                self._hand_over(node)
            case 8:
                self.blocked = {(a, node.name) for a in self.names()} | {(node.name, a) for a in self.names()}
                simulation.note(f"{node.name} is alone")
        simulation.after(random.randrange(50 * MS, 1_500 * MS) * (4 if self.hunted else 1), self._more_trouble)

    def _more_trouble(self) -> None:
        if self.simulation.now_us < self.trouble_until_us:
            self.trouble()

    def _crash(self, node: Node, away_us: int | None = None) -> None:
        if node.member is None:
            return
        random, simulation = self.simulation.random, self.simulation
        power = self.sync and random.random() < 0.7
        node.stop(power=power)
        simulation.note(f"{node.name} {'loses power' if power else 'is killed'}; its ledger ends at {node.ledger.end}")
        for each in self.nodes.values():
            if each is not node and not power:
                each.run(partial(self._connection_lost, each, node.name))
        away_us = simulation.between(10 * MS, 4 * SECOND) if away_us is None else away_us
        simulation.after(away_us, lambda: self._restart(node))

    def _connection_lost(self, node: Node, other: str, member: Member) -> None:
        member.connection_lost(other, node.now_ms)

    def _restart(self, node: Node) -> None:
        if node.member is None:
            node.start()
            self.simulation.note(f"{node.name} starts, term {node.disk_term}")

    def _hand_over(self, node: Node) -> None:
        if node.member is not None and node.member.role is Role.LEADER:
            self.hand_over(node, self.simulation.random.choice([name for name in self.names() if name != node.name]), node.member.term)

    def hand_over(self, node: Node, other: str, term: int) -> None:
        request = TransferRequest(group=GROUP, remote_id=node.name, transfer_id=node.name, transferee_id=other, term=term)
        node.run(lambda member: member.receive(lambda answer: None, request, node.now_ms))

    # A run

    def _client(self) -> None:
        self._count += 1
        self.nodes[self.simulation.random.choice(self.names())].send(b"message %d" % self._count)
        self.simulation.after(self.simulation.between(2 * MS, 120 * MS), self._client)

    def run(self, trouble_s: int = 12, rest_s: int = 30) -> RaftGroup:
        """Trouble for a while, then none: everything must work again."""
        simulation = self.simulation
        self.trouble_until_us = trouble_s * SECOND * (2 if self.hunted else 1)
        for node in self.nodes.values():
            node.start()
        self._client()
        simulation.after(simulation.random.randrange(SECOND), self.trouble)
        simulation.run(self.trouble_until_us)
        self.blocked, self.loss = set(), 0.0
        for node in self.nodes.values():
            self._restart(node)
        simulation.note("everything works again")
        acked = len(self.acked)
        if not simulation.run(self.trouble_until_us + rest_s * SECOND, lambda: self._settled(acked)):
            raise Violation(f"nothing works {rest_s} s after the last trouble: {self.describe()}")
        self._compare()
        return self

    def _settled(self, acked: int) -> bool:
        """Does somebody lead, is something new acknowledged, and does everybody know?"""
        if len(self.acked) <= acked + 3:
            return False
        newest = max(self.acked)
        return all(node.applied >= newest - 20 for node in self.nodes.values())

    def _compare(self) -> None:
        """Everything that was ever acknowledged is in every ledger, unchanged."""
        for node in self.nodes.values():
            for entry in node.ledger.entries[: node.applied + 1 - max(node.ledger.begin, 0)]:
                if self.truth.get(entry.index) != entry:
                    raise Violation(f"{node.name} has another entry {entry.index} than was committed")
        for index, entry in self.acked.items():
            if self.truth[index] != entry:
                raise Violation(f"entry {index} was acknowledged, and another one was committed")

    def describe(self) -> str:
        def of(node: Node) -> str:
            member, ledger = node.member, node.ledger
            role = f"{member.role} term {member.term} leader {member.leader} {member.following.conflict}" if member else "down"
            return f"{node.name}: {role}, ends {ledger.end} (term {ledger.end_term}), committed {ledger.committed}"

        return "; ".join(map(of, self.nodes.values()))


def run_seed(seed: int, rules: Rules | None = None, *, show: Callable[[str], None] | None = None) -> RaftGroup:
    """One run. Raises Violation with the last lines of the trace and the command that replays it."""
    group = RaftGroup(seed, rules, show=show)
    try:
        return group.run()
    except Violation as error:
        lines = "\n".join(list(group.simulation.lines)[-15:])
        raise Violation(f"seed {seed}: {error}\n{lines}\nreplay: python -m roquet.testing.raft_group --seed {seed} --trace") from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m roquet.testing.raft_group", description="a DLedger group, simulated from a seed")
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--seeds", default="0:200", help="run these, first:last+1 (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print every line of what happens")
    options = parser.parse_args(arguments)
    show = print if options.trace else None
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last)) if options.seed is None else (options.seed,)
    failed = acked = terms = 0
    for seed in seeds:
        try:
            group = run_seed(seed, show=show)
            acked += len(group.acked)
            terms += len(group.leaders)
        except Violation as error:
            failed += 1
            print(error)
    print(f"{len(seeds)} seeds, {failed} failed, {acked} messages acknowledged, {terms} terms with a leader")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
