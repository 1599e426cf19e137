"""Requests of one task on their way to the brokers: several at once, each until it is acknowledged.

A request that must go to one queue (a queue or an order key was given) waits until the one before it to that queue is
acknowledged, and is tried again there and nowhere else; so rows keep their order even when a broker is away for a moment.
All others take turns over the topic's queues, and a broker that failed is avoided by the next attempt. When a broker says
that it is busy, fewer are sent at once; many tasks then share what it can take.

An attempt without an answer may have been stored: trying again can make duplicates, which carry the same unique ids.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from roquet.client.core.failures import RETRIED, rejected
from roquet.client.core.receipt import STATUSES, SendStatus
from roquet.client.core.resolver import Resolver, TopicRoute, writable
from roquet.client.core.send_command import SendCommand, SendTemplate
from roquet.errors import ClientError, NoRoute, RoquetError, SendFailed
from roquet.message import MessageQueue
from roquet.net.blocking import BlockingCaller, Call, follow
from roquet.routing.choose import QueueChoice
from roquet.routing.name_servers import NameServers
from roquet.spark.requests import Request
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import DEFAULT_TOPIC

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 3.0
PAUSE_S, PAUSE_S_MAX = 0.1, 5.0
"""Before the second attempt, doubled from one to the next."""
DEFAULT_QUEUES = 4


@dataclass(slots=True, eq=False)
class Pending:
    """A request and what became of its attempts."""

    request: Request
    attempts: list[tuple[str, str]] = field(default_factory=list)
    queue: MessageQueue | None = None
    not_before: float = 0.0


@dataclass(slots=True)
class Counts:
    rows: int = 0
    requests: int = 0
    retries: int = 0
    unsure: int = 0
    """Rows that a broker has stored, but not as safely as it is set to (a slow disk, a slave that is away)."""


class Sending:
    """Blocking, for one thread. Nothing is sure before `finish` has returned."""

    def __init__(
        self,
        caller: BlockingCaller,
        name_servers: Sequence[str],
        group: str,
        *,
        in_flight_max: int = 8,
        timeout_s: float = 10.0,
        retries: int = 8,
        turn: int = 0,
    ) -> None:
        self.counts = Counts()
        self.caller = caller
        self._resolver = Resolver(NameServers(name_servers))
        self.group = group
        self.in_flight_max = in_flight_max
        self.window: float = in_flight_max
        """How many may be under way now: halved by every "busy", and back up by one for every windowful that is stored."""
        self.timeout_s = timeout_s
        self.retries = retries
        self._turn = turn
        self._routes: dict[str, TopicRoute] = {}
        self._stale: set[str] = set()  # topics whose route is to be asked for again
        self._choices: dict[str, QueueChoice] = {}
        self._templates: dict[tuple[str, str, bool], SendTemplate] = {}
        self._ready: deque[Pending] = deque()
        self._under_way: deque[tuple[Call, Pending]] = deque()
        self._later: list[Pending] = []
        self._behind: dict[MessageQueue, deque[Pending]] = {}  # of queues that a request is on its way to: what waits for it

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Those that take writes. Raises NoRoute, ConnectFailed."""
        return self._route(topic).write_queues

    def send(self, requests: Iterable[Request]) -> None:
        """Returns when at most `in_flight_max` are without an answer; those are on their way meanwhile. Raises SendFailed."""
        for request in requests:
            self._take(Pending(request))
        while self._left() > self.in_flight_max:
            self._step()
        while self._ready and len(self._under_way) < int(self.window):
            self._start(self._ready.popleft())

    def finish(self) -> None:
        """Returns when everything is acknowledged. Raises SendFailed."""
        while self._left():
            self._step()

    # -- one at a time

    def _left(self) -> int:
        return len(self._ready) + len(self._under_way) + len(self._later) + sum(map(len, self._behind.values()))

    def _take(self, pending: Pending) -> None:
        queue = pending.request.queue
        if queue is not None:
            behind = self._behind.get(queue)
            if behind is not None:
                behind.append(pending)
                return
            self._behind[queue] = deque()
        self._ready.append(pending)

    def _step(self) -> None:
        if self._later:
            now = time.monotonic()
            due = [pending for pending in self._later if pending.not_before <= now]
            if due:
                self._later = [pending for pending in self._later if pending.not_before > now]
                self._ready.extend(due)
        if self._ready and len(self._under_way) < int(self.window):
            self._start(self._ready.popleft())
        elif self._under_way:
            call, pending = self._under_way.popleft()
            try:
                answer = self.caller.wait(call)
            except ClientError as error:
                self._failed(pending, error)
            else:
                self._answered(pending, answer, call.address)
        elif self._later:
            time.sleep(max(0.0, min(pending.not_before for pending in self._later) - time.monotonic()))

    def _start(self, pending: Pending) -> None:
        request = pending.request
        try:
            route = self._route(request.topic)
            avoid = pending.attempts[-1][0] if pending.attempts else None
            queue = pending.queue = request.queue or self._choice(request.topic).next(route.write_queues, 0, avoid)
            command = SendCommand(
                self._template(request, queue.broker_name), queue.queue_id, 0, int(time.time() * 1000), request.flag, request.properties,
                body=b"",
            )  # fmt: skip
            address = route.masters.get(queue.broker_name)
            if address is None:
                raise NoRoute(f"broker {queue.broker_name!r} has no master that is known; queue {queue} cannot be written now")
            self._under_way.append((self.caller.start(address, command, self.timeout_s, request.body), pending))
        except ClientError as error:
            self._failed(pending, error)

    def _answered(self, pending: Pending, answer: Command, address: str) -> None:
        status = STATUSES.get(answer.code)
        if status is None:
            refusal = rejected(answer, address)
            if answer.code not in RETRIED or refusal.of_keys:
                raise SendFailed(f"{pending.request.rows}: not sent to {pending.request.topic!r}: {refusal}", self._tried(pending, refusal))
            if answer.code == ResponseCode.SYSTEM_BUSY:
                self.window = max(1.0, self.window / 2)
            self._failed(pending, refusal)
            return
        request = pending.request
        self.window = min(self.in_flight_max, self.window + 1 / self.window)
        self.counts.rows += request.count
        self.counts.requests += 1
        if status is not SendStatus.SEND_OK:
            self.counts.unsure += request.count
            log.warning("! %s: %s stored it with %s", request.rows, address, status)
        if request.queue is not None:
            behind = self._behind[request.queue]
            if behind:
                self._ready.append(behind.popleft())
            else:
                del self._behind[request.queue]

    def _failed(self, pending: Pending, error: RoquetError) -> None:
        """Try it again later, or give up."""
        request = pending.request
        pending.attempts = self._tried(pending, error)
        self._stale.add(request.topic)
        if len(pending.attempts) > self.retries:
            tried = "; ".join(f"{broker}: {reason}" for broker, reason in dict.fromkeys(pending.attempts))
            raise SendFailed(
                f"{request.rows}: not confirmed by topic {request.topic!r} after {len(pending.attempts)} attempts ({tried});"
                " it may be stored nevertheless, and a repetition carries the same unique id",
                pending.attempts,
            ) from None
        self.counts.retries += 1
        pause = min(PAUSE_S * 2 ** (len(pending.attempts) - 1), PAUSE_S_MAX)
        log.warning("! %s: attempt %d failed, again in %.1f s: %s", request.rows, len(pending.attempts), pause, error)
        pending.not_before = time.monotonic() + pause
        self._later.append(pending)

    def _tried(self, pending: Pending, error: RoquetError) -> list[tuple[str, str]]:
        return [*pending.attempts, (pending.queue.broker_name if pending.queue else "no broker", str(error))]

    # -- where topics are

    def _choice(self, topic: str) -> QueueChoice:
        made = self._choices.get(topic)
        if made is None:
            made = self._choices[topic] = QueueChoice(self._turn)
        return made

    def _template(self, request: Request, broker_name: str) -> SendTemplate:
        key = (request.topic, broker_name, request.batch)
        made = self._templates.get(key)
        if made is None:
            made = self._templates[key] = SendTemplate(
                self.group, request.topic, broker_name, default_topic=DEFAULT_TOPIC, default_queues=DEFAULT_QUEUES, batch=request.batch
            )
        return made

    def _route(self, topic: str) -> TopicRoute:
        known = self._routes.get(topic)
        if known is not None and topic not in self._stale:
            return known
        self._stale.discard(topic)
        try:
            # As every producer does: the brokers that create topics on demand create this one with its first message.
            found = writable(follow(self.caller, self._resolver.find(topic, DEFAULT_QUEUES), ASK_TIMEOUT_S))
        except ClientError:
            if known is None:
                raise
            return known  # what was true a moment ago is the best there is
        self._routes[topic] = found
        return found
