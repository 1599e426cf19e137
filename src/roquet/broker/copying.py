"""A slave and its master: the log is copied over the HA connection, and topics, groups and progress every ten seconds.

    away ── the master is known ── dialing ── connected ── comparing ── the logs agree ── copying ── the connection is gone ── away

The connection is open before the logs are compared, and is the one that is used: a master that was restarted meanwhile, and has another
log now, is not on it any more.

Who the master is, haMasterAddress says or a name server's answer to the registration. Before anything is copied both logs are compared
(`ha/compare.py`; a Java master is asked for the record at this log's end), so that a log that went on otherwise is never continued:
it is cut back to where both agree, with what goes kept in lost/, or the operator is told why nothing is copied.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from roquet.broker.delay import Delays
from roquet.broker.groups import Groups
from roquet.broker.log_pieces import doubtful, read_doubtful
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import Part, Shared
from roquet.broker.portions import Work, unhurried
from roquet.broker.register import Registration
from roquet.broker.roles import is_slave
from roquet.broker.saving import Done
from roquet.broker.topics import Topic, Topics
from roquet.errors import Refused, RoquetError
from roquet.ha.compare import BeginAt, CutBack, GoOn, Own, Refuse, Told, Verdict, compare
from roquet.ha.master_link import MasterLink
from roquet.ha.stream import BadStream
from roquet.ports import Caller, Dialer, Stream
from roquet.store.disk import Cold, blocking
from roquet.store.scan import records_between
from roquet.wire.calls import brokers, groups, log_pieces, offsets, pulls, topics
from roquet.wire.calls.call import Answer, Answered, AnswerHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.layout import BLANK_LENGTH

log = logging.getLogger("roquet.broker")

CALL_MS = 3_000
DIAL_MS = 5_000
RETRY_MS = 1_000
"""From a failure to the next try."""
REFUSED_MS = 10_000
"""The same where an operator must do something first."""
METADATA_FIRST_MS = 3_000
METADATA_MS = 10_000
IN_A_GROUP_MS = 1_000
"""Between two copies in a DLedger group, where any member may lead the next moment. Large tables are copied as seldom as otherwise."""
LARGE_BYTES = 256 * 1024
WHO_LEADS_MS = 2_000
"""As long as no master answers, name servers are asked again so often."""
APPLY_AT = 128 * 1024
"""Bytes that wait to be applied from which on that is done at once: many records together cost a fifth. Fewer wait for the next tick."""
APPLY_MS = 3
"""How long they are applied then; the rest is the store's tick's."""
SHOWN_MS = 10_000
"""Between two lines that say how far the copy is."""
NOTICE = "master"

T = TypeVar("T")
Asking = Generator[Command | Cold, Any, T]
"""Yields requests to the master, is sent their answers (Command), and returns what came of them. An answer that fails ends it with
RoquetError. Or yields what must be read from disk first, and goes on when that is in memory."""


class NotMine(RoquetError):
    """The master's log is not this slave's: nothing is copied until somebody mends that."""


class Copying(Part):
    """State: `master` and `ha_master` are the addresses of the master's two ports; `link` is the open connection."""

    def __init__(
        self, shared: Shared, caller: Caller, dialer: Dialer | None, registration: Registration, topics_: Topics, groups_: Groups,
        offsets_: ConsumerOffsets, delays: Delays,
    ) -> None:  # fmt: skip
        super().__init__(shared)
        self._caller = caller
        self._dialer = dialer
        self._topics, self._groups, self._offsets, self._delays = topics_, groups_, offsets_, delays
        self.master = ""
        self.ha_master = ""
        self.link: MasterLink | None = None
        self._stream: Stream | None = None  # the connection, while the logs are compared
        self._agreed = False  # since the start of this process a master was found to have all that is here
        self.doing = "away"
        self.master_is_java = False
        self.master_end = 0
        """Where the master's log ended when it was asked last."""
        self.master_start: int | None = None
        """And where it began."""
        self._next_ms = 0
        self._metadata_ms: int | None = None
        self._metadata_under_way = False
        self._metadata_said: str | None = None
        self._metadata_bytes = 0
        self._who_leads_ms = 0
        self._queues: set[tuple[str, int]] = set()  # those whose topics were looked at
        self.known_to = 0
        """Topics of messages that stand before this in the log were told by the master, if it had them."""
        self.copied_to = 0
        """Changes of topics and groups that stand before this in the log are in this broker's tables."""
        self._fresh: dict[str, int] = {}
        """Topic -> how many queues it has, of messages behind that."""
        self._ignores_masters = False
        self._shown_ms = 0
        self._said = ""
        self.signs: Callable[[], bool] = lambda: False
        """Whether requests are signed: then the master hears who this is before it is asked for its log."""
        self._registration = registration
        registration.on_master = self.found_master

    # Who is the master?

    def open(self) -> None:
        if is_slave(self.settings):
            self.became_slave()
        self.copied_to = 0  # of what was copied before the start nobody knows how far it reached

    def became_slave(self) -> None:
        self._next_ms = 0
        self._queues = set(self.store.queues)
        self.known_to = self.copied_to = self.store.log.safe  # what is there it knew as a master, or heard of before it was stopped
        self._metadata_ms = self.clock.steady_ms() + (METADATA_FIRST_MS if self.store.ledger is None else IN_A_GROUP_MS)
        given = self.settings.ha_master_address
        if given:
            host, _, port = given.rpartition(":")
            self.found_master(f"{host}:{int(port) - 1}", given)  # the HA port is the next one after the master's own
        elif not self.settings.namesrv_addr:
            log.warning("this slave knows no master: set haMasterAddress, or namesrvAddr so that name servers tell it")

    def became_master(self) -> None:
        if self.link is not None or self._stream is not None:
            self._leave("this broker became a master")
        self.doing = "away"
        self.master = self.ha_master = ""
        self._make_topics_of_new_messages()

    @contextlib.contextmanager
    def ignoring_masters(self) -> Iterator[None]:
        """This broker prepares to lead: what name servers say of a master is old, and so are the tables that such a master would tell."""
        self._ignores_masters = True
        self.master = ""  # what was asked of the old one counts for nothing any more
        try:
            yield
        finally:
            self._ignores_masters = False

    def finish(self) -> None:
        """A clean stop: queues that the last bytes make belong to topics, too. The next start may be that of a master."""
        if is_slave(self.settings) and self.store.ledger is None and not self.store.trouble.failed:
            with contextlib.suppress(OSError):  # the store says so when it is closed
                self.store.flush_now()
                self.store.applier.finish()
            self._topics.widen_at_stop(self._new_queues())

    def prepare_to_lead(self) -> Work[None]:
        self._fresh = {}
        for queue in list(self.store.queues.values()):
            entry = (yield from unhurried(queue.entry, queue.next - 1)) if queue.next > queue.first else None
            yield None
            if entry is not None and entry[0] >= self.known_to:
                self._fresh[queue.topic] = max(self._fresh.get(queue.topic, 0), queue.queue_id + 1)

    def _make_topics_of_new_queues(self) -> None:
        """Before the master tells of them: it may be lost first, and this slave restarted as the master."""
        queues = self.store.queues
        if len(queues) != len(self._queues):
            for topic, queue_id in self._new_queues().items():
                self._topics.make_reachable(topic, queue_id)
            self._queues = set(queues)

    def when_topics_are_saved(self, done: Done) -> None:
        """Calls back when the topics of all messages so far are on disk, those of queues included that this slave has just made."""
        if is_slave(self.settings) and self.store.ledger is None:
            self._make_topics_of_new_queues()
        self._topics.saving.when_saved(done)

    def _new_queues(self) -> dict[str, int]:
        """Topic -> the last of its queues that are new."""
        return dict(sorted(self.store.queues.keys() - self._queues))

    def _make_topics_of_new_messages(self) -> None:
        """The old master may have died before it told of a topic that it made, or of more queues, and this log has messages there."""
        for name, count in sorted(self._fresh.items()):
            topic = self._topics.get(name) or Topic(name, 0, 0)
            if topic.read_queue_nums < count:
                log.warning("topic %s has %d queues now: their messages are here, and the old master did not tell of them", name, count)
                more = replace(topic, read_queue_nums=count, write_queue_nums=max(count, topic.write_queue_nums))
                with contextlib.suppress(Refused):
                    self._topics.put(more)

    def found_master(self, master: str, ha_master: str) -> None:
        """A name server told it, or the settings."""
        if not is_slave(self.settings) or self._ignores_masters:
            return
        ha_master = self.settings.ha_master_address or ha_master
        if (master and master != self.master) or (ha_master and ha_master != self.ha_master):
            log.info("the master of this slave is %s, its HA address %s", master or self.master, ha_master or self.ha_master)
            self.master, self.ha_master = master or self.master, ha_master or self.ha_master
            self._next_ms = 0

    # Copying

    def tick(self, now_ms: int) -> None:
        if not is_slave(self.settings):
            return
        if self.store.ledger is None:
            self._make_topics_of_new_queues()
        link, settings = self.link, self.settings
        if self.store.trouble.failed:
            if link is not None:
                self._leave(f"this slave's store has failed: {self.store.trouble.failed}")
        elif link is not None:
            link.tick(now_ms, settings.ha_send_heartbeat_interval)
            if now_ms - link.heard_ms > settings.ha_housekeeping_interval:
                self._leave(f"the master said nothing for more than haHousekeepingInterval={settings.ha_housekeeping_interval} ms")
            else:
                self._show(now_ms)
        elif self._dialer is not None and self.doing == "away" and now_ms >= self._next_ms and self.ha_master:
            self.doing = "dialing"
            if self.signs() and self.master:
                self._ask(self._ask_master(), self._dial)
            else:
                self._dial(None)
        elif self.doing == "connected" and self._stream is not None:
            self._compare(self._stream)
        if self._metadata_ms is not None and now_ms >= self._metadata_ms and self.master and not self._metadata_under_way:
            often = self.store.ledger is not None and self._metadata_bytes < LARGE_BYTES
            self._metadata_ms = now_ms + (IN_A_GROUP_MS if often else METADATA_MS)
            self._metadata_under_way = True
            self._ask(self._metadata(), self._metadata_done)
        if self.store.ledger is not None and (not self.master or self._metadata_said) and now_ms >= self._who_leads_ms:
            self._who_leads_ms = now_ms + WHO_LEADS_MS
            self._registration.now()  # the answer tells who leads

    def _dial(self, told: object) -> None:
        """`told`: what came of asking the master first."""
        if isinstance(told, RoquetError):
            self._away(str(told), RETRY_MS)
        elif self._dialer is not None and self.doing == "dialing":
            self._dialer.dial(self.ha_master, self, DIAL_MS)

    def _away(self, why: str, pause_ms: int) -> None:
        self.doing, self._next_ms = "away", self.clock.steady_ms() + pause_ms
        if why != self._said:  # once, however often it is tried
            log.warning("nothing is copied from the master %s: %s", self.ha_master, why)
        self._said = why

    def _compare(self, stream: Stream) -> None:
        if not self.store.applier.advance(self.clock.steady_ms() + APPLY_MS):
            return  # the next tick tries again
        self.doing = "comparing"
        log_ = self.store.log
        try:
            if log_.safe < log_.written:
                # What is half here, or not flushed, is sent again. It must go before the comparison: a flush that is under way would make
                # it part of this log while the rest is compared.
                log_.truncate(log_.safe)
        except OSError as error:
            self._leave(f"the end of this slave's log could not be taken back: {error}", REFUSED_MS)
            return

        def compared(result: Verdict | RoquetError) -> None:
            if self._stream is not stream:
                return  # it is gone, and so is what was compared
            if isinstance(result, RoquetError):
                if isinstance(result, NotMine):
                    self.notices.warn(NOTICE, f"nothing is copied from the master {self.ha_master}: {result}")
                self._leave(str(result), REFUSED_MS if isinstance(result, NotMine) else RETRY_MS)
                return
            try:
                self._prepare(result)
            except BlockingIOError as error:
                self._leave(str(error), RETRY_MS)
                return
            except (OSError, ValueError) as error:
                self._leave(f"this slave's log could not be brought in line with the master's: {error}", REFUSED_MS)
                return
            self.notices.clear(NOTICE)
            self._agreed = True
            self._begin(stream)

        self._ask(self._agree(), compared)

    def _begin(self, stream: Stream) -> None:
        self.doing, self._said, self._stream = "copying", "", None
        self.link = MasterLink(stream, self.store, self.clock.steady_ms())
        log.info("> the master %s is connected; this slave's log ends at %d", self.ha_master, self.store.log.written)
        self.link.begin(self.clock.steady_ms())

    def _prepare(self, verdict: Verdict) -> None:
        store = self.store
        if isinstance(verdict, CutBack):
            end = store.cut_back(verdict.offset)
            self.notices.warn(
                "cut back",
                f"this slave's log was not its master's behind offset {end}: it was cut back to there, and what stood behind is kept in "
                f"{store.root}/lost. If these messages are missed, bring them back from there",
            )
        elif isinstance(verdict, BeginAt):
            store.begin_at(verdict.offset)
            log.info("the copy begins at %d, the master's log ends at %d", verdict.offset, verdict.master_end)
        if isinstance(verdict, BeginAt | GoOn) and verdict.data:
            store.log.append_raw(verdict.data)
        if not isinstance(verdict, Refuse):
            self.master_end = verdict.master_end

    def _agree(self) -> Asking[Verdict]:
        """Raises NotMine through `_ask` when the logs do not belong together."""
        store = self.store
        own = Own(
            store.log.start, store.log.safe, store.log.segments.size, lambda offset, size: blocking(store.log.read, offset, size),
            () if self._agreed else doubtful(store),
            lambda begin, end: [(found.offset, found.size) for found in records_between(store.log.segments, begin, end)],
        )  # fmt: skip
        comparing = compare(own)
        piece = next(comparing)
        while True:
            answer = yield log_pieces.LOG_PIECE.request(log_pieces.LogPieceHeader(piece.offset, piece.size, piece.with_bytes))
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self.master_is_java = True
                return (yield from self._agree_with_java())
            self.master_is_java = False
            header = expect(log_pieces.LOG_PIECE.answer(answer)).header
            yield from self._warm(piece.offset, piece.size)
            try:
                doubted = tuple(read_doubtful(header.doubtful))
                piece = comparing.send(Told(header.start, header.end, header.file_size, header.checksum, answer.body, doubted))
            except StopIteration as stop:
                if isinstance(stop.value, Refuse):
                    raise NotMine(stop.value.why) from None
                verdict: Verdict = stop.value
                if isinstance(verdict, CutBack) and store.rejoining.last_whole(verdict.offset) <= store.log.start:
                    raise NotMine(
                        "this slave's log and the master's differ from their first record on: they were never one. Empty the store of the "
                        "one that is wrong, or give each its own brokerName"
                    ) from None
                return verdict

    def _warm(self, offset: int, size: int) -> Asking[None]:
        """What is about to be compared comes into memory."""
        end = min(offset + size, self.store.log.safe)
        while self.store.log.start <= offset < end:
            try:
                self.store.log.read(offset, end - offset)
                return
            except Cold as cold:
                yield cold

    def _agree_with_java(self) -> Asking[Verdict]:
        """It knows no checksums. The size of its files, its end, and its record at the place of this slave's last one are compared."""
        store = self.store
        answer = yield brokers.GET_BROKER_CONFIG.request()
        sizes = expect(brokers.GET_BROKER_CONFIG.answer(answer)).body.pairs().get("mappedFileSizeCommitLog", "")
        if sizes and sizes != str(store.log.segments.size):
            raise NotMine(
                f"files of the master's log have {sizes} bytes, of this slave's {store.log.segments.size}: records would stand elsewhere. "
                f"Set mappedFileSizeCommitLog={sizes} here, with an empty store"
            )
        answer = yield brokers.GET_BROKER_RUNTIME_INFO.request()
        table = expect(brokers.GET_BROKER_RUNTIME_INFO.answer(answer)).body.table
        start, end = number(table, "commitLogMinOffset"), number(table, "commitLogMaxOffset")
        if store.log.safe == store.log.start:
            return GoOn(end)  # empty: the master's last file, as RocketMQ has it
        if store.log.safe > end:
            raise NotMine(
                f"this slave's log ends at {store.log.safe}, the master's at {end}: the master lost messages, or is another one. Keep the "
                "one that has what you need, and empty the other's store"
            )
        if store.log.safe < start:
            raise NotMine(
                f"this slave's log ends at {store.log.safe}, and the master's begins at {start}: what is between is gone. Empty this store"
            )
        last = self._last_record()
        if last is not None and last[0] >= start:
            answer = yield pulls.VIEW_MESSAGE_BY_ID.request(pulls.ViewMessageHeader(last[0]))
            if answer.code or answer.body != blocking(store.log.read, *last):
                raise NotMine(
                    f"the master has another record than this slave at offset {last[0]}, or none: their logs went apart before that. Empty "
                    "this slave's store, and it copies the master's"
                )
        return GoOn(end)

    def _last_record(self) -> tuple[int, int] | None:
        """(offset, size) of the last one that stands in a queue."""
        found = [blocking(queue.entry, queue.visible - 1) for queue in self.store.queues.values() if queue.visible > queue.first]
        return max(((entry[0], entry[1]) for entry in found if entry is not None and entry[1] != BLANK_LENGTH), default=None)

    # The connection

    def opened(self, stream: Stream) -> None:
        if self.doing != "dialing":
            stream.close("nobody wants it any more")
            return
        self.doing, self._stream = "connected", stream
        self._compare(stream)

    def received(self, stream: Stream, data: bytes) -> None:
        link = self.link
        if link is None or link.stream is not stream:
            return
        store = self.store
        try:
            link.receive(data, self.clock.steady_ms())
        except (BadStream, ValueError) as error:
            self._leave(str(error))
            return
        except OSError as error:
            self._leave(str(store.trouble.cannot_write(error)), REFUSED_MS)
            return
        if store.log.wants_flush:
            store.flush.begin()
        if store.log.appliable - store.applier.applied >= APPLY_AT:
            store.applier.advance(self.clock.steady_ms() + APPLY_MS)

    def lost(self, stream: Stream | None, why: str) -> None:
        if stream is None:
            if self.doing == "dialing":
                self._away(why, RETRY_MS)
        elif stream is self._stream or (self.link is not None and self.link.stream is stream):
            copied = self.link is not None
            self.link = self._stream = None
            self._away(f"the connection is gone: {why}", 0 if copied else RETRY_MS)

    def _leave(self, why: str, pause_ms: int = RETRY_MS) -> None:
        stream = self._stream if self.link is None else self.link.stream
        self.link = self._stream = None
        if stream is not None:
            stream.close(why)
        self._away(why, pause_ms)

    def _show(self, now_ms: int) -> None:
        left = self.master_end - self.store.log.written
        if left > 0 and now_ms >= self._shown_ms:
            self._shown_ms = now_ms + SHOWN_MS
            start = self.store.log.start
            share = 100 * (self.store.log.written - start) // max(1, self.master_end - start)
            log.info("copying the master's log: %d %%, %d MiB are left", share, left >> 20)

    def may_drop(self, end: int) -> bool:
        """A slave keeps what its master keeps while they are connected: the master moves delayed and timed messages out of old files."""
        return self.link is None or self.master_start is None or end <= self.master_start

    # Topics, groups and progress

    def _metadata(self) -> Asking[None]:
        """Upstream's order. What fails is left for the next round, and does not keep the others from being copied."""
        log_end = self.store.applier.applied
        yield from self._ask_master()
        answer = yield topics.GET_ALL_TOPIC_CONFIG.request()
        self._metadata_bytes = len(answer.body)
        with_body(topics.GET_ALL_TOPIC_CONFIG.answer(answer), self._topics.take_over)
        if not answer.code:
            self.known_to = log_end
        answer = yield offsets.GET_ALL_CONSUMER_OFFSET.request()
        self._metadata_bytes += len(answer.body)
        with_body(offsets.GET_ALL_CONSUMER_OFFSET.answer(answer), self._take_offsets)
        answer = yield offsets.GET_ALL_DELAY_OFFSET.request()
        with_body(offsets.GET_ALL_DELAY_OFFSET.answer(answer), lambda table: self._delays.take_over(table, log_end))
        answer = yield groups.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.request()
        with_body(groups.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.answer(answer), self._groups.take_over)
        if not answer.code and self.known_to == log_end:
            self.copied_to = log_end

    def _ask_master(self) -> Asking[None]:
        """Where its log begins and ends, and whether it is one: a member that led before may have come back with old tables."""
        if self.master_is_java:
            return
        answer = yield log_pieces.LOG_PIECE.request(log_pieces.LogPieceHeader(0, 0))
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # Java says so
            return
        header = expect(log_pieces.LOG_PIECE.answer(answer)).header
        if header.slave:
            raise RoquetError(f"{self.master} is a slave itself by now; name servers will tell who the master is")
        self.master_start, self.master_end = header.start, header.end

    def _take_offsets(self, table: offsets.OffsetTable) -> None:
        for group, topic, queue_id, offset in self._offsets.ahead_of(table):
            header = offsets.UpdateOffsetHeader(group, topic, queue_id, offset)
            request = offsets.UPDATE_CONSUMER_OFFSET.request(header, flag=ONEWAY)
            self._caller.oneway(self.master, request)
        self._offsets.take_over(table)

    def _metadata_done(self, result: object) -> None:
        self._metadata_under_way = False
        trouble = str(result) if isinstance(result, RoquetError) else ""
        if trouble and trouble != self._metadata_said:
            log.warning("topics, groups and progress were not all copied from the master %s: %s", self.master, trouble)
        elif self._metadata_said is None or (self._metadata_said and not trouble):
            log.info("topics, groups and progress are the master's, %s", self.master)
        self._metadata_said = trouble

    def _ask(self, asking: Asking[T], done: Callable[[T | RoquetError], None]) -> None:
        """Go on with it, answer by answer, until it returns, or another one is the master."""
        self._go_on(asking, self.master, done, None)

    def _go_on(self, asking: Asking[T], master: str, done: Callable[[T | RoquetError], None], answer: Command | RoquetError | None) -> None:
        if self.master != master:
            answer = RoquetError(f"{master} is the master no more")
        if isinstance(answer, RoquetError):
            asking.close()
            done(answer)
            return
        go_on = partial(self._go_on, asking, master, done)
        try:
            request = next(asking) if answer is None else asking.send(answer)
            if isinstance(request, Cold):
                return self.shared.fetch(request, lambda: go_on(None))
        except StopIteration as stop:
            done(stop.value)
        except RoquetError as error:
            done(error)
        else:
            self._caller.call(master, request, CALL_MS, go_on)

    def metrics(self) -> Mapping[str, object]:
        if not is_slave(self.settings):
            return {}
        return {
            "roquetMaster": self.ha_master,
            "roquetCopying": self.doing,
            "roquetCopied": self.store.log.written,
            "roquetApplied": self.store.applier.applied,
            "roquetMasterEnd": max(self.master_end, self.store.log.written),
        }


def expect(answer: Answer[AnswerHeader, Answered]) -> Answer[AnswerHeader, Answered]:
    """Raises Refused when it is not a success."""
    if not answer.ok:
        raise Refused(answer.code, f"the master refuses it: {answer.command.remark}")
    return answer


def with_body(answer: Answer[AnswerHeader, Answered], take: Callable[[Answered], object]) -> None:
    """Hand over the body of a success. One that cannot be read, or is refused, is said and left."""
    try:
        take(expect(answer).body)
    except Refused as refused:
        log.warning("a table of the master was not taken over: %s", refused.remark)


def number(table: Mapping[str, str], key: str) -> int:
    text = table.get(key, "")
    if not text.lstrip("-").isdigit():
        raise NotMine(f"the master says {key}={text[:40]!r}, expected a number")
    return max(0, int(text))
