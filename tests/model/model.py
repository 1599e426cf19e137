"""What a broker owes its clients, as dictionaries and a heap, beside a real broker core on a disk that can lose power.

`Model` does a step to both, then compares. Every message has a body of its own, so whatever stands in a queue can be
traced to the request that put it there. An `Intent` is one such request: a message that must come to stand in a queue
once, not before its time.

    promised    the broker said yes: it must be there in the end
    possible    asked for, not refused: it may be there (the answer got lost in a crash, or the promise did, see below)

After every step, for every queue that a consumer could read:

    what was seen before is still there, in the same place
    each record belongs to a possible intent, none to more records than there are intents, and none is early
    its properties, its count of attempts and its first topic are what the intents say
    plain messages stand where the answer said; messages of one delay level stand in the order of sending
    what was cancelled or rolled back is not there; what was committed is there once

At the end time goes on past everything that is due (the heap says when), and every promise must have been kept, soon
after its time. Transactions nobody ended must have been given up by then.

What is documented and therefore allowed:

    a power loss under ASYNC_FLUSH takes promises whose record was not flushed (`stored_by`), and what consumers saw of such records
    it may take a delivery of a delay level and leave a later one: the first is made again, and stands behind that
    a request without an answer, or answered FLUSH_DISK_TIMEOUT, may count or not
    a consumer that loses its progress gets messages again, and can send one back again: each send-back is an intent
    a consumer's progress falls back by at most flushConsumerOffsetInterval when the process ends without a stop
    a power loss while a transaction is given up leaves it pending: it stands twice in TRANS_CHECK_MAX_TIME_TOPIC, or there and committed
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from roquet.store.disk import blocking
from roquet.testing import FakePeer
from roquet.testing.clock import ManualClock
from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire.batch import join_batch
from roquet.wire.calls.members import HeartbeatBody, ProducerData
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from roquet.wire.ids import offset_message_id
from roquet.wire.names import CHECK_MAX_TIME_TOPIC
from roquet.wire.record import Record, decode_properties, decode_records

from ..broker.whole import Whole, pull_fields, send_fields

Step = tuple[Any, ...]
Place = tuple[str, int]
"""(topic, queue)."""

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
RETRY, DEAD = ("%RETRY%g", 0), ("%DLQ%g", 0)
GIVEN_UP = (CHECK_MAX_TIME_TOPIC, 0)
PLACES: list[Place] = [("T", 0), ("T", 1), ("U", 0)]
READ = [*PLACES, RETRY]
DELAYS_MS = (1_000, 2_000, 3_000, 5_000, 8_000)
ATTEMPTS_MAX = 2
"""A message that failed so often and fails again is a dead letter."""
CHECKS_MAX = 2
ASK_AFTER_MS = 2_000
CHECK_INTERVAL_MS = 5_000
SAVE_OFFSETS_MS = 5_000
SOON_MS = 300
"""A message is late when it comes so long after its time although the broker ran."""
MINUTE_MS = 60_000


@dataclass(eq=False)
class Intent:
    """A message that is to stand in a queue once. `attempt` is its count of failed attempts, `order` what it shares an order with."""

    body: bytes
    place: Place
    due_ms: int
    number: int
    attempt: int = 0
    kind: str = "plain"
    promised: bool = False
    possible: bool = True
    stored_by: int = 0
    """The log's end when it was stored. A power loss under ASYNC_FLUSH may take what was not flushed up to there."""
    queue_offset: int = -1
    first: Place | None = None
    """Of a retry: where the message stood at first."""
    origin: str = ""


@dataclass(eq=False)
class Decision:
    """A commit, a rollback or a cancellation that was asked for."""

    kind: int
    promised: bool = False
    possible: bool = True
    stored_by: int = 0


@dataclass(eq=False)
class Transaction:
    body: bytes
    place: Place
    sent_ms: int
    promised: bool = False
    stored_by: int = 0
    known_by: list[dict[str, str]] = field(default_factory=list)
    """What its producer can name it by: from the answer to its send, and from each check."""
    ends: list[Decision] = field(default_factory=list)
    checks: int = 0

    def has(self, kind: int) -> bool:
        return any(end.promised for end in self.ends if end.kind == kind)

    def may_have(self, kind: int) -> bool:
        return any(end.possible for end in self.ends if end.kind == kind)


@dataclass(frozen=True)
class Seen:
    """A record that a consumer could read."""

    body: bytes
    attempt: int
    offset: int
    end: int
    stored_ms: int


LOST = Seen(b"", 0, -1, 1 << 62, 0)
"""A number that was given to a record which a power loss took: it is not given again."""
BLANK = 0x7FFFFFFF


class Model:
    def __init__(self, flush: str, seed: int = 0, cold_ratio: float = 0.0) -> None:
        self.clock = ManualClock()
        self.disk = SimDisk(self.clock, seed=seed)
        self.disk.cold_ratio = cold_ratio
        self.sync = flush == "SYNC_FLUSH"
        self.settings: dict[str, Any] = {
            "flush_disk_type": flush, "message_delay_level": "1s 2s 3s 5s 8s", "mapped_file_size_commit_log": 32_768,
            "flush_delay_offset_interval": 2_000, "flush_consumer_offset_interval": SAVE_OFFSETS_MS,
            "transaction_time_out": ASK_AFTER_MS, "transaction_check_interval": CHECK_INTERVAL_MS, "transaction_check_max": CHECKS_MAX,
            "file_reserved_time": 10_000, "broker_fast_failure_enable": False, "max_hash_slot_num": 20, "max_index_num": 400,
        }  # fmt: skip
        self.numbers = 0
        self.intents: dict[tuple[Place, bytes, int], list[Intent]] = {}
        self.due: list[int] = []
        """The heap: moments at which something is due."""
        self.first_place: dict[bytes, Place] = {}
        self.timers: dict[bytes, tuple[Intent, list[Decision]]] = {}
        self.transactions: dict[bytes, Transaction] = {}
        self.seen: dict[Place, list[Seen]] = {}
        self.kept: dict[Place, dict[int, Seen]] = {}
        """What must be there again after a restart."""
        self.asking: dict[int, Callable[[Command], None]] = {}
        self.opaque = 0
        self.position: dict[Place, int] = {}
        """Of the consumer."""
        self.progress: dict[Place, list[tuple[int, int]]] = {}
        """(offset, time) of each commit that was answered since the last time it was surely saved."""
        self.losses = 0
        self.held = self.armed = False
        self.met: Counter[str] = Counter()
        self.start()
        for topic in ("T", "U"):
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
                "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            assert self.whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0

    # The broker's life

    def opened(self) -> Whole:
        return Whole(Path("/store"), self.disk, self.clock, **self.settings)

    def start(self) -> None:
        self.whole = self.opened()
        self.asking.clear()
        self.producer = FakePeer("127.0.0.1:50001")
        self.position.clear()
        self.seen = {}
        self.held = self.armed = False
        self.heartbeat()

    def heartbeat(self) -> None:
        body = HeartbeatBody("producer", producer_data_set=[ProducerData("pg")]).encode()
        self.whole.broker.receive(self.producer, Framer().feed(Command(RequestCode.HEART_BEAT, body=body).encode()))

    def restarted(self, *, power: bool, clean: bool) -> None:
        """The broker is gone; say what may be gone with it, and start it again."""
        flushed = self.whole.broker.store.log.flushed if power and not self.sync else 1 << 62
        for intents in self.intents.values():
            for intent in intents:
                intent.promised = intent.promised and intent.stored_by <= flushed
        for one in self.transactions.values():
            one.promised = one.promised and one.stored_by <= flushed
            # A half message that is lost leaves its place to another: its producer's end would mean that one.
            one.known_by = [known for known in one.known_by if int(known["commitLogOffset"]) < flushed]
        for decision in self.decisions():
            decision.promised = decision.promised and decision.stored_by <= flushed
        self.kept = {place: {at: one for at, one in enumerate(seen) if one.end <= flushed} for place, seen in self.seen.items()}
        progress = {place: list(commits) for place, commits in self.progress.items()}
        self.start()
        self.check()
        for place, commits in progress.items():
            self.check_progress(place, commits, clean=clean)

    def decisions(self) -> list[Decision]:
        ends = [end for one in self.transactions.values() for end in one.ends]
        return ends + [cancel for _, cancels in self.timers.values() for cancel in cancels]

    def check_progress(self, place: Place, commits: list[tuple[int, int]], *, clean: bool) -> None:
        found = self.whole.broker.offsets.find("g", *place)
        end = len(self.seen.get(place, []))
        offsets = [min(offset, end) for offset, _ in commits]
        assert found <= end, f"progress {found} in {place}, which ends at {end}"
        if clean:
            assert found == offsets[-1], f"progress in {place} is {found} after a stop, it was {offsets[-1]}"
        else:
            assert found in (-1, *offsets), f"progress in {place} is {found}, committed were {offsets}"
            if commits[0][1] < 0:
                assert found != -1, f"progress in {place} was saved and is lost"
        self.progress[place] = [(found, -1)]
        if found < 0:
            del self.progress[place]

    # Steps

    def do(self, step: Step) -> None:
        name, *values = step
        self.met[name] += 1
        try:
            getattr(self, name)(*values)
            self.listen()
        except PowerLost:
            self.lose_power()
        self.check()

    def nothing(self) -> None:
        """Hypothesis puts this in place of a step that is not needed."""

    def ask(self, code: int, fields: dict[str, str], body: bytes, answered: Callable[[Command], None], **rest: Any) -> None:
        self.opaque += 1
        self.asking[self.opaque] = answered
        self.whole.frames(Command(code, fields, body, opaque=self.opaque, **rest))
        self.listen()

    def listen(self) -> None:
        for answer in self.whole.peer.take():
            if answer.is_response:
                self.asking.pop(answer.opaque)(answer)
        for asked in self.producer.take():
            if asked.code == RequestCode.CHECK_TRANSACTION_STATE and not asked.is_response:
                self.asked_about(asked)

    def intend(self, place: Place, *, body: bytes | None = None, due_ms: int = 0, attempt: int = 0, kind: str = "plain") -> Intent:
        self.numbers += 1
        intent = Intent(body or b"m%d" % self.numbers, place, due_ms, self.numbers, attempt, kind)
        self.intents.setdefault((place, intent.body, attempt), []).append(intent)
        if due_ms:
            heapq.heappush(self.due, due_ms)
        if body is None:
            self.first_place[intent.body] = place
        return intent

    def keep(self, what: Intent | Decision | Transaction, answer: Command, usual: bool = True) -> None:
        """A request was answered: is it a promise? `usual`: nothing stands against it, so yes is the only right answer."""
        if answer.code == ResponseCode.SUCCESS:
            what.promised = True
            what.stored_by = self.whole.broker.store.log.written
        elif answer.code != ResponseCode.FLUSH_DISK_TIMEOUT:
            assert not usual, f"{what} was answered {answer.code} {answer.remark}"
            if not isinstance(what, Transaction):
                what.possible = False

    def fields(self, place: Place, body: bytes, more: str = "", **others: str) -> dict[str, str]:
        text = f"UNIQ_KEY\x01U{body.decode()}\x02KEYS\x01k{body.decode()}\x02WAIT\x01true{more}"
        return send_fields(place[0], place[1], text, **others) | {"g": str(self.clock.ms)}

    def send(self, queue: int, size: int = 0) -> None:
        intent = self.intend(PLACES[queue])

        def answered(answer: Command) -> None:
            self.keep(intent, answer)
            if answer.code == 0:
                intent.queue_offset = int(answer.fields["queueOffset"])

        # The body says which message it is up to the first dot; the rest is size.
        self.ask(310, self.fields(intent.place, intent.body), intent.body + b"." * size, answered)

    def batch(self, queue: int, count: int) -> None:
        intents = [self.intend(PLACES[queue]) for _ in range(count)]

        def answered(answer: Command) -> None:
            for number, intent in enumerate(intents):
                self.keep(intent, answer)
                if answer.code == 0:
                    intent.queue_offset = int(answer.fields["queueOffset"]) + number

        body = join_batch([(0, one.body, b"UNIQ_KEY\x01U" + one.body + b"\x02KEYS\x01k" + one.body) for one in intents])
        self.ask(320, send_fields(*PLACES[queue], "WAIT\x01true", g=str(self.clock.ms), m="true"), body, answered)

    def delayed(self, queue: int, level: int) -> None:
        due_ms = self.clock.ms + DELAYS_MS[min(level, len(DELAYS_MS)) - 1]
        intent = self.intend(PLACES[queue], due_ms=due_ms, kind=f"level {min(level, len(DELAYS_MS))}")
        self.ask(310, self.fields(intent.place, intent.body, f"\x02DELAY\x01{level}"), intent.body, partial(self.keep, intent))

    def timed(self, queue: int, delay_ms: int, name: str) -> None:
        intent = self.intend(PLACES[queue], due_ms=self.clock.ms + delay_ms, kind="timed")
        value = self.clock.ms + delay_ms if name in ("TIMER_DELIVER_MS", "__STARTDELIVERTIME") else delay_ms
        self.timers[intent.body] = intent, []
        self.ask(310, self.fields(intent.place, intent.body, f"\x02{name}\x01{value}"), intent.body, partial(self.keep, intent))

    def cancel(self, number: int) -> None:
        if not self.timers:
            return
        intent, cancels = list(self.timers.values())[number % len(self.timers)]
        # With time to spare, and nothing that could have cancelled it before: it must work.
        usual = intent.promised and not any(one.possible for one in cancels) and intent.due_ms > self.clock.ms and not self.held
        cancels.append(Decision(1))
        # The index knows a message when it is settled; a promised one is there.
        fields = {"producerGroup": "g", "topic": intent.place[0], "recallHandle": f"U{intent.body.decode()}"}
        self.ask(RequestCode.RECALL_MESSAGE, fields, b"", partial(self.keep, cancels[-1], usual=usual))

    # Transactions

    def prepare(self, queue: int) -> None:
        self.numbers += 1
        one = Transaction(b"x%d" % self.numbers, PLACES[queue], self.clock.ms)
        self.transactions[one.body] = one
        self.first_place[one.body] = one.place

        def answered(answer: Command) -> None:
            self.keep(one, answer)
            if answer.code == 0:
                offset = int(answer.fields["msgId"][-16:], 16)
                known = {"tranStateTableOffset": answer.fields["queueOffset"], "commitLogOffset": str(offset)}
                one.known_by.append(known | {"fromTransactionCheck": "false"})

        fields = self.fields(one.place, one.body, "\x02TRAN_MSG\x01true\x02PGROUP\x01pg", f="4")
        self.ask(310, fields, one.body, answered)

    def asked_about(self, asked: Command) -> None:
        record = Record.decode(asked.body)
        one = self.transactions[record.body]
        assert (record.topic, record.queue_id) == one.place
        assert not any(end.promised for end in one.ends), f"{one} has ended, and its producer is asked"
        one.checks += 1
        self.met["asked"] += 1
        names = ("tranStateTableOffset", "commitLogOffset", "transactionId")
        one.known_by.append({name: asked.fields[name] for name in names} | {"fromTransactionCheck": "true"})

    def end(self, number: int, kind: int, which: int = -1) -> None:
        """The producer says what became of a transaction, by the answer to its send or by some check."""
        known = [one for one in self.transactions.values() if one.known_by]
        if not known:
            return
        one = known[number % len(known)]
        fields = {"producerGroup": "pg", "commitOrRollback": str(kind), "msgId": f"U{one.body.decode()}"}
        fields |= one.known_by[which % len(one.known_by)]
        if kind == UNKNOWN:
            self.ask(RequestCode.END_TRANSACTION, fields, b"", lambda answer: None)
            return
        end = Decision(kind)
        # Otherwise another end, a check under way or giving up may stand against it.
        usual = one.promised and not one.ends and not self.held and not self.losses and self.clock.ms < one.sent_ms + ASK_AFTER_MS
        ended = any(other.promised for other in one.ends)
        one.ends.append(end)

        def answered(answer: Command) -> None:
            self.keep(end, answer, usual)
            if answer.code == 0:
                assert not ended, f"{one} ended twice"
                self.met["committed" if kind == COMMIT else "rolled back"] += 1

        self.ask(RequestCode.END_TRANSACTION, fields, b"", answered)

    # The consumer

    def consume(self, queue: int, count: int, fails: int, level: int = 0) -> None:
        """Pull from one of the queues that have something new; of the first `count` messages those whose bit is set in `fails`
        are sent back; then commit the progress."""
        for place in READ:
            if place not in self.position:
                self.position[place] = max(self.whole.broker.offsets.find("g", *place), 0)
        places = [place for place in READ if self.position[place] < len(self.seen.get(place, []))] or READ
        place = places[queue % len(places)]
        start = self.position[place]
        while self.seen.get(place, [])[start : start + 1] == [LOST]:
            start += 1  # as the broker would tell a consumer that asks for it
        pulled: list[Record] = []

        def answered(answer: Command) -> None:
            if answer.code == 0:
                pulled.extend(decode_records(answer.body))
                assert int(answer.fields["nextBeginOffset"]) >= start + len(pulled) == pulled[-1].queue_offset + 1 or self.losses

        self.ask(RequestCode.PULL_MESSAGE, pull_fields(*place, start), b"", answered)
        self.check()
        expected = [one.offset for one in self.seen.get(place, [])[start : start + 32] if one is not LOST]
        found = [one.physical_offset for one in pulled]
        assert found == expected[: len(found)], f"a pull of {place} from {start} found {found}, there are {expected}"
        assert found or not expected or self.held, f"a pull of {place} from {start} found {found}, there are {expected}"
        if not pulled:
            return
        for number, record in enumerate(pulled[:count]):
            self.position[place] = record.queue_offset
            if fails >> number & 1 and not self.send_back(record, level):
                break
            self.position[place] = record.queue_offset + 1
        offset = self.position[place]
        fields = {"consumerGroup": "g", "topic": place[0], "queueId": str(place[1]), "commitOffset": str(offset)}

        def committed(answer: Command) -> None:
            assert answer.code == 0
            self.progress.setdefault(place, []).append((offset, self.clock.ms))

        self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields, b"", committed)

    def send_back(self, record: Record, level: int) -> bool:
        """Whether it was answered, and the consumer may go on."""
        body, attempt, place = name_of(record), record.reconsume_times, (record.topic, record.queue_id)
        dead = level < 0 or attempt >= ATTEMPTS_MAX
        due_ms = 0 if dead else self.clock.ms + DELAYS_MS[min(level or 3 + attempt, len(DELAYS_MS)) - 1]
        intent = self.intend(DEAD if dead else RETRY, body=body, due_ms=due_ms, attempt=attempt + 1, kind="retry")
        intent.first = self.first_place[body]
        origin = decode_properties(record.properties).get("ORIGIN_MESSAGE_ID")
        assert (origin is None) == (place != RETRY)
        intent.origin = origin or offset_message_id(record.store_host, record.physical_offset)
        fields = {
            "offset": str(record.physical_offset), "group": "g", "delayLevel": str(level), "originMsgId": "", "originTopic": record.topic,
            "unitMode": "false", "bname": "broker-a", "maxReconsumeTimes": str(ATTEMPTS_MAX),
        }  # fmt: skip
        self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields, b"", partial(self.keep, intent), version=407)
        self.met["dead letter" if dead else "sent back"] += 1
        return intent.promised

    # Time and trouble

    def wait(self, ms: int) -> None:
        self.heartbeat()
        self.whole.tick(ms)
        self.whole.tick(50)
        if ms >= SAVE_OFFSETS_MS and not self.held and not self.armed:
            self.whole.tick(50)
            for place, commits in self.progress.items():
                self.progress[place] = [(commits[-1][0], -1)]  # this one is saved

    def ripen(self) -> None:
        """Time passes until the next message that waits is due, and was flushed shortly before: what follows is not flushed yet."""
        due_ms = min((due_ms for due_ms in self.due if self.clock.ms < due_ms <= self.clock.ms + MINUTE_MS), default=self.clock.ms + 100)
        self.heartbeat()
        for ms in (due_ms - self.clock.ms - 50, due_ms - max(self.clock.ms, due_ms - 50)):
            if ms > 0:
                self.whole.tick(ms)

    def hold(self, hold: bool) -> None:
        """From here on fsyncs and other work in the background take time: until `work`, or until held no longer."""
        self.held = self.whole.background.hold = hold
        if not hold:
            self.whole.background.release()

    def work(self, count: int) -> None:
        """So many of the pieces of work that are held get done."""
        background = self.whole.background
        for _ in range(min(count, len(background.waiting))):
            work, done = background.waiting.pop(0)
            try:
                result = work()
            except Exception as error:
                result = error
            done(result)

    def stop(self) -> None:
        self.hold(False)
        for _ in range(10):
            if not self.whole.broker.saving:
                break
            self.whole.tick(100)
        self.listen()
        self.whole.close()
        self.restarted(power=False, clean=True)

    def kill(self) -> None:
        self.disk.kill()
        self.restarted(power=False, clean=False)

    def unlucky(self, operations: int) -> None:
        """The process dies, and the power fails while it starts again, after so many changes to the disk."""
        self.disk.kill()
        self.disk.power_off_after(operations)
        try:
            self.opened()
        except PowerLost:
            self.met["power lost at the start"] += 1
        self.lose_power()

    def power(self, operations: int) -> None:
        """The power fails after so many more changes to the disk; 0: now."""
        if not operations:
            raise PowerLost(self.disk)
        self.armed = True
        self.disk.power_off_after(operations)

    def lose_power(self) -> None:
        self.losses += 1
        self.met["power lost"] += 1
        self.listen()  # what was answered by then is a promise
        self.disk.stay_on()
        self.disk.crash()
        self.restarted(power=True, clean=False)

    # Comparing

    def check(self) -> None:
        store = self.whole.broker.store
        fresh = False
        for place in (*READ, DEAD, GIVEN_UP):
            queue = store.find_queue(*place)
            seen = self.seen.setdefault(place, [])
            while queue is not None and len(seen) < queue.visible:
                entry = blocking(queue.entry, len(seen))
                if entry is None or entry[1] == BLANK:
                    assert self.losses, f"{place} has no message {len(seen)}, and power was never lost"
                    seen.append(LOST)
                    continue
                record = Record.decode(blocking(store.record_at, entry[0]))
                assert (record.topic, record.queue_id, record.queue_offset) == (*place, len(seen))
                size = entry[1]
                seen.append(Seen(name_of(record), record.reconsume_times, entry[0], entry[0] + size, record.store_timestamp))
                self.check_record(place, record)
                fresh = True
            kept = self.kept.pop(place, {})
            now = {at: one for at, one in enumerate(seen) if at in kept}
            assert now == kept, f"{place} held {kept} before the restart, and now {seen}"
            if fresh and place != GIVEN_UP:
                self.check_place(place, seen)
        if fresh or self.transactions or self.timers:
            self.check_decisions()

    def check_record(self, place: Place, record: Record) -> None:
        body, names = name_of(record), decode_properties(record.properties)
        assert names["UNIQ_KEY"] == f"U{body.decode()}"
        assert names["KEYS"] == f"k{body.decode()}"
        if place in (RETRY, DEAD):
            intents = self.intents.get((place, body, record.reconsume_times), [])
            assert intents, f"{body!r} is in {place} with {record.reconsume_times} attempts, which nobody sent back"
            assert names["RETRY_TOPIC"] == self.first_place[body][0]
            assert names["ORIGIN_MESSAGE_ID"] in {intent.origin for intent in intents}

    def check_place(self, place: Place, seen: list[Seen]) -> None:
        came: dict[tuple[bytes, int], list[Seen]] = {}
        last: dict[str, int] = {}
        there = [(at, one) for at, one in enumerate(seen) if one is not LOST]
        for _, one in there:
            came.setdefault((one.body, one.attempt), []).append(one)
        for (body, attempt), records in came.items():
            if body in self.transactions and place not in (RETRY, DEAD):
                continue
            intents = [one for one in self.intents.get((place, body, attempt), []) if one.possible]
            assert len(records) <= len(intents), f"{body!r} is {len(records)} times in {place}, asked for were {intents}"
            for record, due_ms in zip(records, sorted(one.due_ms for one in intents), strict=False):
                assert record.stored_ms >= due_ms, f"{body!r} came {due_ms - record.stored_ms} ms early"
        for _, one in there:
            if place in (RETRY, DEAD) or one.body in self.transactions:
                continue
            (intent,) = self.intents[place, one.body, one.attempt]
            if intent.kind != "timed":
                made_again = self.losses and not self.sync and intent.kind.startswith("level")
                assert last.get(intent.kind, 0) < intent.number or made_again, f"{one.body!r} is out of order in {place}"
                last[intent.kind] = intent.number
        for offset, one in there:
            for intent in self.intents.get((place, one.body, one.attempt), []):
                if intent.promised and intent.queue_offset >= 0:
                    assert offset == intent.queue_offset, f"{one.body!r} stands at {offset}, the answer said {intent.queue_offset}"

    def check_decisions(self) -> None:
        there = Counter(one.body for place in PLACES for one in self.seen.get(place, []))
        for body, (_, cancels) in self.timers.items():
            assert not there[body] or not any(one.promised for one in cancels), f"{body!r} was cancelled, and came"
        given_up = Counter(one.body for one in self.seen.get(GIVEN_UP, []))
        for body, one in self.transactions.items():
            count = there[body]
            assert count <= 1, f"{one} was committed {count} times"
            assert not count or one.may_have(COMMIT), f"{one} was never committed, and is there"
            assert not count or not one.has(ROLLBACK), f"{one} was rolled back, and is there"
            assert count or not one.has(COMMIT), f"{one} was committed, and is not there"
            if given_up[body]:
                assert given_up[body] == 1 or self.losses, f"{one} was given up {given_up[body]} times"
                assert self.losses or not one.has(COMMIT), f"{one} was committed, and given up"
                assert self.losses or not one.has(ROLLBACK), f"{one} was rolled back, and given up"

    # The end

    def finish(self) -> None:
        """Time passes beyond everything that is due; all promises must have been kept by then."""
        try:
            self.hold(False)
            self.listen()
        except PowerLost:
            self.lose_power()
        self.disk.stay_on()
        self.armed = False
        self.check()
        begin_ms = self.clock.ms
        for _ in range(5):
            self.whole.tick(50)
        while self.due:
            due_ms = heapq.heappop(self.due)
            if due_ms > self.clock.ms:
                self.whole.tick(due_ms - self.clock.ms - 1)
                self.whole.tick(1)
            while begin_ms < due_ms > self.clock.ms - SOON_MS:
                self.whole.tick(50)
        for _ in range(SOON_MS // 50):
            self.whole.tick(50)
        self.check()
        for intents in self.intents.values():
            self.check_kept(intents, begin_ms)
        for _ in range(CHECKS_MAX + 2):
            self.heartbeat()
            self.whole.tick(CHECK_INTERVAL_MS + 1)
            for _ in range(3):
                self.whole.tick(10)
            self.listen()
        self.check()
        there = {one.body for place in (*PLACES, GIVEN_UP) for one in self.seen.get(place, [])}
        for body, one in self.transactions.items():
            assert not one.promised or body in there or one.may_have(ROLLBACK), f"{one} is lost"
        self.met["given up"] += len(self.seen.get(GIVEN_UP, []))
        self.stop()
        self.wait(MINUTE_MS)
        self.check()
        for intents in self.intents.values():
            self.check_kept(intents, 1 << 62)

    def check_kept(self, intents: list[Intent], begin_ms: int) -> None:
        place, body, attempt = intents[0].place, intents[0].body, intents[0].attempt
        records = [one for one in self.seen.get(place, []) if (one.body, one.attempt) == (body, attempt)]
        cancelled = body in self.timers and any(one.possible for one in self.timers[body][1])
        promised = sorted(one.due_ms for one in intents if one.promised and not cancelled)
        assert len(records) >= len(promised), f"lost: {intents}, of which {len(records)} are there"
        self.met[f"came: {intents[0].kind.partition(' ')[0]}"] += len(records)
        if len(promised) == len(intents) == len(records):
            for record, due_ms in zip(records, promised, strict=True):
                late_ms = record.stored_ms - due_ms
                assert due_ms < begin_ms or late_ms <= SOON_MS, f"{body!r} came {late_ms} ms late"


def name_of(record: Record) -> bytes:
    return record.body.partition(b".")[0]
