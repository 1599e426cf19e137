"""Brokers as a Place: queues are read with ordinary pulls, so any broker of RocketMQ 4.x or 5.x will do.

A pull of upstream's brokers answers at most 32 messages, so several are kept under way, each for the next 32. Roquet's own
brokers are asked for a large answer (`scanBytes`, broker/scans.py); others do not know that field and answer as ever.
Whoever reads a chunk has the next one on its way already.

Pulls carry their filter and commit nothing: no heartbeat is needed, and real consumers of the group are not disturbed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from roquet.client.core.failures import BadAnswer, rejected
from roquet.client.core.queue_calls import queue_header, read_header
from roquet.client.core.resolver import Resolver, read_queues, replica_of
from roquet.errors import CallTimeout, ClientError, ConnectFailed, NoRoute, Rejected
from roquet.message import MessageQueue
from roquet.net.blocking import BlockingCaller, Call, Room, follow
from roquet.net.buffers import keep_memory
from roquet.net.connection import PLAIN, ConnectionOptions
from roquet.routing.name_servers import NameServers, parse_name_servers
from roquet.routing.subscription import ALL, SQL92, TAG
from roquet.spark.answers import ANSWER_BYTES, Gathered
from roquet.spark.places import Chunk, DataGone, Wanted
from roquet.spark.tags import TagCheck
from roquet.wire.calls.call import AnyCall
from roquet.wire.calls.offsets import UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader
from roquet.wire.calls.pulls import PULL_MESSAGE, PullHeader, PullResponseHeader
from roquet.wire.calls.queues import GET_MAX_OFFSET, GET_MIN_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, SearchOffsetHeader
from roquet.wire.calls.routes import RouteInfo
from roquet.wire.calls.topics import GET_ALL_TOPIC_LIST_FROM_NAMESERVER
from roquet.wire.codes import PullFlag, ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import store_time_of

TIMEOUT_S = 120.0
CALL_S = 15.0
"""One request: a broker may have to read what it answers from a slow disk."""
ASK_S = 3.0
ROUTE_S = 5.0
"""How long a route is believed."""
END_WAIT_S = 5.0
"""How long a queue may end before what was asked for: a broker that just started, or a slave, may have to catch up."""
BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

PULL_COUNT = 32
"""What upstream's brokers answer at most by default."""
AHEAD = 8
"""Pulls under way for one queue."""
SCAN_BYTES = ANSWER_BYTES

BUSY = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY))
"""Answers after which the same request may succeed later."""


class EndMissing(DataGone):
    """A queue ends before messages that it had: its broker lost its tail, or the topic was made anew. `available` is its end."""

    def __init__(self, queue: MessageQueue, start: int, available: int) -> None:
        super().__init__(queue, start, available)
        where = f"{queue.topic}/{queue.queue_id} on {queue.broker_name}"
        self.args = (
            f"{where}: offset {start} was asked for, but the queue now ends at {available}; its broker lost messages in a crash, "
            "or the topic was deleted and made anew",
        )

    def __reduce__(self) -> tuple[type[EndMissing], tuple[MessageQueue, int, int]]:
        return EndMissing, (self.queue, self.start, self.available)


class BrokerPlace:
    """State: connections, routes with the time they were asked for, and which brokers answer large pulls."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        connection: ConnectionOptions = PLAIN,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`timeout_s`: how long a broker may be away before reading from it fails. Raises ClientError for a bad address or file."""
        self.name_servers = parse_name_servers(name_servers)
        self.group = group
        self.timeout_s = timeout_s
        self._caller = BlockingCaller(connection)
        self._resolver = Resolver(NameServers(self.name_servers))
        self._routes: dict[str, tuple[float, RouteInfo]] = {}
        self._addresses: dict[str, str] = {}  # broker name -> where it was last known to be
        self._scans: dict[str, bool] = {}  # address -> it answers large pulls

    def close(self) -> None:
        self._caller.close()

    # -- what is there

    def topics(self) -> list[str]:
        steps = self._resolver.name_servers.ask(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.request)
        address, answer = follow(self._caller, steps, ASK_S)
        if answer.code != ResponseCode.SUCCESS:
            raise rejected(answer, address)
        return sorted(set(GET_ALL_TOPIC_LIST_FROM_NAMESERVER.answer(answer).body.topic_list))

    def queues(self, topic: str) -> list[MessageQueue]:
        return sorted(read_queues(topic, self._route(topic)))

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        first = self._numbers(queues, GET_MIN_OFFSET, queue_header)
        # The end is asked for afterwards: it only rises, so it never lies before the first.
        end = self._numbers(list(first), GET_MAX_OFFSET, queue_header)
        return {queue: (max(0, first[queue]), max(0, first[queue], end[queue])) for queue in queues if queue in end}

    def offsets_at(self, queues: Sequence[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        def header(queue: MessageQueue) -> SearchOffsetHeader:
            return SearchOffsetHeader(queue.topic, queue.queue_id, max(0, time_ms), broker_name=queue.broker_name)

        near = self._numbers(queues, SEARCH_OFFSET_BY_TIMESTAMP, header)
        bounds = self.bounds(list(near))
        # Brokers answer what was stored nearest, before or after, and any of several of one moment.
        return {queue: self._first_at(queue, near[queue], *bounds[queue], time_ms) for queue in queues if queue in bounds}

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Remember how far a group has come. Raises the first failure, after all were tried."""

        def header(queue: MessageQueue) -> UpdateOffsetHeader:
            return UpdateOffsetHeader(group, queue.topic, queue.queue_id, offsets[queue], queue.broker_name)

        failed: ClientError | None = None
        for _, answer, address in self._call_all(list(offsets), UPDATE_CONSUMER_OFFSET, header):
            if isinstance(answer, ClientError):
                failed = failed or answer
            elif answer.code != ResponseCode.SUCCESS:
                failed = failed or rejected(answer, address)
        if failed is not None:
            raise failed

    # -- reading

    def chunks(self, queue: MessageQueue, start: int, stop: int, wanted: Wanted) -> Iterator[Chunk]:
        keep_memory()
        reading = _Reading(self, queue, start, stop, wanted)
        gathered = Gathered(queue, start, stop, reading.filtered, TagCheck.of(wanted.tags))
        try:
            while reading.offset < stop and reading.gone is None:
                reading.ask_ahead()
                # Only now: while the chunk is used, the next answers are on their way.
                if gathered.is_large:
                    yield from gathered.take()
                answer = reading.next_answer(gathered.next_room())
                if answer is not None:
                    gathered.add(answer)
            # What was read before something is missing is not lost with it.
            yield from gathered.take()
            if reading.gone is not None:
                raise reading.gone
        finally:
            reading.forget_all()

    def _first_at(self, queue: MessageQueue, near: int, first: int, end: int, time_ms: int) -> int:
        """The first offset stored at or after `time_ms`: doubling steps away from a near guess, then halving."""
        low, high = first, end  # all before low are older, all from high on are not
        probe, step = min(max(near, first), max(first, end - 1)), 1
        while low < high:
            stored = self._stored_at(queue, probe)
            if stored is not None and stored >= time_ms:
                high, probe = probe, max(low, probe - step)
            else:
                low, probe = probe + 1, min(high - 1, probe + step)
            step *= 2
            if low > first and high < end:
                probe = (low + high) // 2
        return low

    def _stored_at(self, queue: MessageQueue, offset: int) -> int | None:
        """When the message at this offset was stored, ms; None when it is gone."""
        reading = _Reading(self, queue, offset, offset + 1, Wanted(), scans=False)
        answer: Command | None = None
        try:
            while answer is None and reading.gone is None:
                reading.ask_ahead()
                answer = reading.next_answer()
        finally:
            reading.forget_all()
        if answer is None:
            if isinstance(reading.gone, EndMissing):
                raise reading.gone
            return None
        return store_time_of(answer.body)

    # -- asking

    def _numbers(self, queues: Sequence[MessageQueue], call: AnyCall, header: Callable[[MessageQueue], object]) -> dict[MessageQueue, int]:
        """One number of every queue whose broker answers. Raises Rejected when one answers that it will not."""
        found: dict[MessageQueue, int] = {}
        for queue, answer, address in self._call_all(queues, call, header):
            if isinstance(answer, ClientError):
                self._routes.pop(queue.topic, None)
            elif answer.code != ResponseCode.SUCCESS:
                if answer.code not in BUSY:
                    raise rejected(answer, address)
            else:
                found[queue] = read_header(call.answer(answer), address).offset
        return found

    def _call_all(
        self, queues: Sequence[MessageQueue], call: AnyCall, header: Callable[[MessageQueue], object]
    ) -> Iterator[tuple[MessageQueue, Command | ClientError, str]]:
        reached: list[tuple[MessageQueue, str]] = []
        for queue in queues:
            try:
                reached.append((queue, self.address_of(queue)))
            except NoRoute as error:
                yield queue, error, ""
        answers = self._caller.call_all(((address, call.request(header(queue))) for queue, address in reached), CALL_S)
        for (queue, address), answer in zip(reached, answers, strict=True):
            yield queue, answer, address

    def address_of(self, queue: MessageQueue) -> str:
        """Where its broker is; where it was, when it is not registered now. Raises NoRoute when nobody ever knew, ConnectFailed
        when no name server can be asked."""
        trouble: ClientError | None = None
        try:
            self._route(queue.topic)
        except (NoRoute, ConnectFailed) as error:
            trouble = error
        address = self._addresses.get(queue.broker_name)
        if address is None:
            if isinstance(trouble, ConnectFailed):
                raise trouble
            raise NoRoute(f"no broker {queue.broker_name!r} has topic {queue.topic!r} now; it may be down") from trouble
        return address

    def _route(self, topic: str) -> RouteInfo:
        asked, route = self._routes.get(topic, (0.0, None))
        now = time.monotonic()
        if route is not None and now - asked < ROUTE_S:
            return route
        try:
            found = follow(self._caller, self._resolver.ask(topic), ASK_S)
        except ConnectFailed:
            if route is None:
                raise
            return route  # brokers work on without name servers, and so do we
        if isinstance(found, NoRoute):
            raise found
        self._routes[topic] = (now, found)
        for broker in found.broker_datas:
            replica = replica_of(broker.broker_addrs)
            if replica is not None:
                self._addresses[broker.broker_name] = replica[0]
        return found

    def __repr__(self) -> str:
        return f"<BrokerPlace {';'.join(self.name_servers)} as {self.group}>"


class _Reading:
    """The pulls of one queue, in order. `offset`: everything before it was answered, or is not wanted."""

    def __init__(self, place: BrokerPlace, queue: MessageQueue, start: int, stop: int, wanted: Wanted, *, scans: bool = True) -> None:
        self.place = place
        self.queue = queue
        self.offset = start
        self.stop = stop
        self.filtered = wanted.sql is not None or wanted.tags not in (None, "", ALL)
        self.scans = scans
        self.step = PULL_COUNT
        self.pulls: deque[tuple[int, int, Call]] = deque()  # (from, up to, call), next to each other
        self.failures = 0
        self.failing_since = 0.0
        self.ending_since = 0.0
        self.gone: DataGone | None = None
        """Why it goes no further, once messages turned out to be missing."""
        self.header = PullHeader(
            place.group,
            queue.topic,
            queue.queue_id,
            start,
            PULL_COUNT,
            PullFlag.SUBSCRIPTION,
            subscription=wanted.sql if wanted.sql is not None else wanted.tags or ALL,
            expression_type=SQL92 if wanted.sql is not None else TAG,
            broker_name=queue.broker_name,
            scan_bytes=str(SCAN_BYTES) if scans and SCAN_BYTES else None,
        )

    def ask_ahead(self) -> None:
        """Have as many pulls under way as make sense. A failure shows in next_answer."""
        try:
            address = self.place.address_of(self.queue)
            # Where an answer ends is not known before, unless a broker is known to answer 32 of what is not filtered.
            known = not self.filtered and self.place._scans.get(address) is False
            while len(self.pulls) < (AHEAD if known else 1):
                begin = self.pulls[-1][1] if self.pulls else self.offset
                if begin >= self.stop:
                    break
                self._pull(address, begin, min(begin + self.step, self.stop) if known else self.stop)
        except (ConnectFailed, CallTimeout, NoRoute) as error:
            self._failed(error)

    def _pull(self, address: str, begin: int, end: int, *, in_front: bool = False) -> None:
        header = replace(self.header, queue_offset=begin, max_msg_nums=min(PULL_COUNT, end - begin), scan_stop=str(end))
        call = self.place._caller.start(address, PULL_MESSAGE.request(header), CALL_S)
        if in_front:
            self.pulls.appendleft((begin, end, call))
        else:
            self.pulls.append((begin, end, call))

    def next_answer(self, room: Room | None = None) -> Command | None:
        """The next answer with records, these in `room` if they fit; None when it had none, or has to be asked for again.
        Moves `offset`."""
        if not self.pulls:
            return None
        begin, end, call = self.pulls.popleft()
        try:
            answer = self.place._caller.wait(call, room)
            if answer.code in BUSY:
                raise rejected(answer, call.address)
        except (ConnectFailed, CallTimeout, Rejected) as error:
            self._failed(error)
            return None
        self.failures = 0
        if answer.code not in PULL_CODES:
            raise rejected(answer, call.address)
        header = read_header(PULL_MESSAGE.answer(answer), call.address)
        after = header.next_begin_offset
        if answer.code != ResponseCode.SUCCESS:
            self._nothing(begin, after, header)
            return None
        if self.scans:
            self.place._scans[call.address] = "scanCount" in answer.fields
        if after <= begin:
            raise BadAnswer(f"{call.address} answered a pull of {self._where} from {begin} with records, and the next offset {after}")
        self.ending_since = 0.0
        self.offset = min(after, end)
        if after < end:
            if self.pulls:
                self._pull(call.address, after, end, in_front=True)
            self.step = max(1, after - begin)
        elif self.step < PULL_COUNT:
            self.step = min(PULL_COUNT, self.step * 2)
        return answer

    def _nothing(self, begin: int, after: int, header: PullResponseHeader) -> None:
        """An answer without records: filtered out, gone, or not there (yet, again)."""
        if after > begin and (self.filtered and begin >= header.min_offset):
            self.forget_all()
            self.offset = min(after, self.stop)
            self.ending_since = 0.0
        elif after > begin:
            self.gone = DataGone(self.queue, begin, after)
        else:
            self.forget_all()
            now = time.monotonic()
            self.ending_since = self.ending_since or now
            if now - self.ending_since > min(END_WAIT_S, self.place.timeout_s):
                self.gone = EndMissing(self.queue, begin, min(begin, header.max_offset))
            time.sleep(BACK_OFF_S[0])

    def _failed(self, error: ClientError) -> None:
        """Try again later, or raise when the broker was away too long."""
        self.forget_all()
        now = time.monotonic()
        if self.failures == 0:
            self.failing_since = now
        if now - self.failing_since >= self.place.timeout_s:
            error.args = (f"{error.args[0]} (reading {self._where} at offset {self.offset}, tried for {self.place.timeout_s:g} s)",)
            raise error
        self.place._routes.pop(self.queue.topic, None)
        time.sleep(BACK_OFF_S[min(self.failures, len(BACK_OFF_S) - 1)])
        self.failures += 1

    def forget_all(self) -> None:
        while self.pulls:
            self.place._caller.forget(self.pulls.popleft()[2])

    @property
    def _where(self) -> str:
        return f"{self.queue.topic}/{self.queue.queue_id} on {self.queue.broker_name}"


PULL_CODES = frozenset(
    (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
)
