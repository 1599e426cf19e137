"""ClientCore: what all producers and consumers of one client share (upstream's MQClientInstance).

Routes, heartbeats and the rhythm of everything periodic. It is driven by `tick(now_ms)` and by the Caller's callbacks,
on one thread, and reaches the world through its Caller alone.

    every    30 s   routes of every topic in use (the first time at once)
             30 s   a heartbeat to every broker
              5 s   consumers' offsets
             20 s   rebalance; also at once when a broker says that the group changed
    or as often as a member asks for: rhythm.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from roquet.client.core.failures import GroupTaken, rejected
from roquet.client.core.replies import Replies
from roquet.client.core.resolver import TopicRoute
from roquet.client.core.rhythm import HEARTBEAT_MS, PERSIST_MS, REBALANCE_MS, ROUTE_POLL_MS, Rhythm
from roquet.client.core.routes import Routes
from roquet.client.core.silence import Silence
from roquet.client.core.tasks import Tasks, Wait
from roquet.client.core.tasks import call as answered
from roquet.client.core.timers import Timer, Timers
from roquet.client.core.watched_caller import WatchedCaller
from roquet.errors import ConnectFailed, RoquetError
from roquet.message import Property, ReceivedMessage
from roquet.ports import Caller, Clock
from roquet.routing.name_servers import NameServers
from roquet.wire.calls.call import Answer, Answered, AnswerHeader, Asked, Call, Header
from roquet.wire.calls.members import HEART_BEAT, UNREGISTER_CLIENT, HeartbeatBody, ProducerData, UnregisterClientHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.ids import UniqueIds
from roquet.wire.names import DEFAULT_TOPIC
from roquet.wire.record import Record

if TYPE_CHECKING:
    from random import Random

    from roquet.client.core.group_member import GroupMember
    from roquet.client.core.hooks import Hooks
    from roquet.client.core.producer import ProducerCore

log = logging.getLogger(__name__)

LANGUAGE = "PYTHON"
CALL_TIMEOUT_MS = 3_000
REACH_AGAIN_MS = 200
REFRESH_AGAIN_MS, REFRESH_AGAIN_MAX_MS = 100, 1_000
"""Between two looks at where a topic in trouble is: the first pause, and the longest. Each is twice the one before."""
REFRESH_CALM_MS = 10_000
"""After so long without trouble the pauses begin anew."""
HEARTBEAT_AGAIN_MS = 1_000
"""Remedies (a fresh route, a heartbeat out of turn) are not tried more often than this."""

T = TypeVar("T")

Reply = Callable[[Command], None]


class ClientCore:
    """One client id, one route table, one heartbeat. Everything mutable here is touched by its own thread only."""

    def __init__(
        self,
        *,
        name_servers: Sequence[str],
        client_id: str,
        caller: Caller,
        clock: Clock,
        random: Random,
        ip: bytes = b"\x7f\x00\x00\x01",
        pid: int = 1,
    ) -> None:
        self.client_id = client_id
        self.caller = caller
        self.clock = clock
        self.random = random
        self.timers = Timers()
        self.tasks = Tasks()
        self.name_servers = NameServers(name_servers, random.randrange(max(len(name_servers), 1)))
        self.routes = Routes(self.name_servers, self.command, caller, self.tasks)
        self.routes.on_change = self._route_changed
        self.ids = UniqueIds(ip, pid, random.getrandbits(32))
        self.producers: dict[str, ProducerCore] = {}
        self.consumers: dict[str, GroupMember] = {}
        self.replies = Replies(self)
        self.silence = Silence(self)
        self.broker_versions: dict[str, int] = {}
        self.started_ms = clock.now_ms()
        self.closed = False
        self._greeted: set[str] = set()  # addresses that had a heartbeat since the set of groups last changed
        self._unreached = ""
        self._refreshed: dict[str, tuple[int, int]] = {}  # topic: when it was looked for, and the pause after that
        self._heartbeat_ms = -HEARTBEAT_AGAIN_MS  # when heartbeat_soon last sent
        members, consumers = self._members, self.consumers
        self._rhythms = [
            Rhythm(self, lambda: min((one.settings.route_poll_ms for one in members()), default=ROUTE_POLL_MS), self.poll_routes),
            Rhythm(self, lambda: min((one.settings.heartbeat_ms for one in members()), default=HEARTBEAT_MS), self.heartbeat_now),
            Rhythm(self, lambda: min((one.settings.persist_ms for one in consumers.values()), default=PERSIST_MS), self.persist_all),
            Rhythm(self, lambda: min((one.settings.rebalance_ms for one in consumers.values()), default=REBALANCE_MS), self.rebalance_all),
        ]

    # -- time

    def tick(self, now_ms: int) -> None:
        self.timers.run(now_ms)

    def next_due_ms(self) -> int:
        """A tick before this has nothing to do."""
        return self.timers.next_due_ms

    def after(self, delay_ms: int, work: Callable[[], None]) -> Timer:
        return self.timers.at(self.clock.steady_ms() + delay_ms, work)

    async def within(self, wait: Wait[T], limit_ms: int, late: T | Exception) -> T:
        """What the wait gives; when it takes longer than `limit_ms`, it ends with `late`."""
        timer = self.after(limit_ms, partial(wait.end, late))
        try:
            return await wait
        finally:
            timer.cancel()

    async def sleep(self, delay_ms: int) -> None:
        await self.within(Wait(), delay_ms, None)

    # -- calling

    def command(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return Command(int(code), fields or {}, body, language=LANGUAGE)

    async def call(
        self,
        address: str,
        call: Call[Header, Asked, AnswerHeader, Answered],
        header: Header | None = None,
        body: Asked | bytes = b"",
        *,
        timeout_ms: int = CALL_TIMEOUT_MS,
        accept: Sequence[int] = (0,),
    ) -> Answer[AnswerHeader, Answered]:
        """The answer. Raises ConnectFailed, CallTimeout, or Rejected for a code that is not in `accept`."""
        answer = await answered(self.caller, address, call.request(header, body, language=LANGUAGE), timeout_ms)
        if answer.code not in accept:
            raise rejected(answer, address)
        return call.answer(answer)

    def watch_calls(self, hooks: Hooks) -> None:
        """This middleware hears of each call from now on."""
        caller = self.caller
        if not isinstance(caller, WatchedCaller):
            caller = self.caller = self.routes.caller = WatchedCaller(caller, self.clock, self.client_id)
        caller.watch([*caller.watchers, hooks])

    def forget_watcher(self, hooks: Hooks) -> None:
        """It hears no more. Idempotent."""
        caller = self.caller
        if isinstance(caller, WatchedCaller):
            caller.watch([one for one in caller.watchers if one is not hooks])
            if not caller.watchers:
                self.caller = self.routes.caller = caller.caller

    async def reach_name_server(self, limit_ms: int) -> None:
        """Returns when one answered; asks again until then. Raises ConnectFailed when none did within `limit_ms`."""
        reached: Wait[None] = Wait()
        asking = self.tasks.start(self._ask_name_servers(reached))
        late = ConnectFailed(f"no name server answered within {limit_ms} ms")
        try:
            await self.within(reached, limit_ms, late)
        except ConnectFailed:
            raise ConnectFailed(f"{late} ({self._unreached or ', '.join(self.name_servers.addresses)})") from None
        finally:
            asking.cancel()

    async def _ask_name_servers(self, reached: Wait[None]) -> None:
        while True:
            reasons: list[str] = []
            for address in self.name_servers.addresses:
                asked = self.command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": DEFAULT_TOPIC})
                try:
                    answer = await answered(self.caller, address, asked, CALL_TIMEOUT_MS)
                except RoquetError as error:
                    reasons.append(f"{address}: {error}")
                else:
                    if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        reached.end(None)
                        return
                    reasons.append(f"{address}: this is no name server; is it the port of a broker?")
            self._unreached = "; ".join(reasons) or self.name_servers.trouble
            await self.sleep(REACH_AGAIN_MS)

    # -- who is here

    def add_producer(self, part: ProducerCore) -> None:
        if part.group in self.producers:
            raise GroupTaken(f"this client already has a producer of group {part.group!r}; share it, or pass another instance_name")
        self.producers[part.group] = part
        self._groups_changed()

    def add_consumer(self, part: GroupMember) -> None:
        if part.group in self.consumers:
            raise GroupTaken(f"this client already has a consumer of group {part.group!r}; pass another instance_name for a second one")
        self.consumers[part.group] = part
        self._groups_changed()

    async def remove_producer(self, part: ProducerCore) -> None:
        if self.producers.get(part.group) is part:
            del self.producers[part.group]
            self._members_changed()
            await self._unregister(UnregisterClientHeader(self.client_id, producer_group=part.group))

    async def remove_consumer(self, part: GroupMember) -> None:
        if self.consumers.get(part.group) is part:
            del self.consumers[part.group]
            self._members_changed()
            await self._unregister(UnregisterClientHeader(self.client_id, consumer_group=part.group))

    def _members(self) -> list[ProducerCore | GroupMember]:
        return [*self.producers.values(), *self.consumers.values()]

    def _members_changed(self) -> None:
        for rhythm in self._rhythms:
            rhythm.members_changed()

    async def _unregister(self, header: UnregisterClientHeader) -> None:
        """Tell every broker we greeted, and wait until all answered or had their three seconds."""
        greeted = sorted(self._greeted.intersection(self.routes.addresses()))
        await self.tasks.each(self.call(address, UNREGISTER_CLIENT, header) for address in greeted)

    def close(self) -> None:
        """No more timers and tasks. Remove producers and consumers first; the shell closes the Caller."""
        self.closed = True
        self.tasks.close()
        self.timers.clear()

    # -- routes

    def topics_in_use(self) -> set[str]:
        return {topic for part in self._members() for topic in part.topics()}

    def poll_routes(self) -> None:
        wanted = self.topics_in_use()
        for topic in sorted(wanted | set(self.routes.topics)):
            if topic in wanted:
                self.routes.fetch_again(topic)
            else:
                self.routes.forget(topic)

    def refresh(self, topic: str) -> None:
        """Something went wrong with this topic's brokers: look where it is now, soon again at first, then at most once a second."""
        now = self.clock.steady_ms()
        before, pause_ms = self._refreshed.get(topic, (now - REFRESH_CALM_MS, 0))
        if now - before < pause_ms:
            return
        calm = now - before >= REFRESH_CALM_MS
        self._refreshed[topic] = now, REFRESH_AGAIN_MS if calm else min(2 * pause_ms, REFRESH_AGAIN_MAX_MS)
        self.routes.fetch_again(topic)

    def _route_changed(self, route: TopicRoute) -> None:
        self.silence.route_changed(route)
        for address in self._audience():
            if address not in self._greeted:
                self.tasks.start(self._heartbeat(address))
        for consumer in list(self.consumers.values()):
            consumer.route_changed(route)

    # -- heartbeats

    def _groups_changed(self) -> None:
        self._members_changed()
        self._greeted.clear()
        self.heartbeat_now()

    def _audience(self) -> list[str]:
        """A client that only sends needs no slave."""
        return self.routes.addresses(masters_only=not self.consumers)

    def heartbeat_body(self) -> HeartbeatBody:
        return HeartbeatBody(
            client_id=self.client_id,
            producer_data_set=[ProducerData(group_name=group) for group in self.producers],
            consumer_data_set=[consumer.heartbeat() for consumer in self.consumers.values()],
        )

    async def heartbeat_all(self) -> None:
        """Returns when every broker answered, or failed to."""
        await self.tasks.all(self._heartbeat(address) for address in self._audience())

    def heartbeat_now(self) -> None:
        self.tasks.start(self.heartbeat_all())

    def heartbeat_soon(self) -> None:
        """A broker does not know us: tell all, now, but at most once a second however many queues notice."""
        now = self.clock.steady_ms()
        if now - self._heartbeat_ms >= HEARTBEAT_AGAIN_MS:
            self._heartbeat_ms = now
            self.heartbeat_now()

    async def _heartbeat(self, address: str) -> None:
        if not self.producers and not self.consumers:
            return
        self._greeted.add(address)
        try:
            answer = await self.call(address, HEART_BEAT, body=self.heartbeat_body())
        except RoquetError as error:
            self._greeted.discard(address)
            log.info("! heartbeat to %s: %s", address, error)
        else:
            self.broker_versions[address] = answer.command.version

    # -- consumers' rhythm

    def persist_all(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.persist()

    def rebalance_all(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.rebalance()

    # -- what brokers ask of us

    def receive(self, address: str, command: Command, reply: Reply) -> None:
        """A request from a broker, over a connection that we opened."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            group = command.fields.get("consumerGroup", "")
            consumer = self.consumers.get(group)
            if consumer is not None:
                consumer.rebalance()
            return
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._check_transaction(address, command)
            return
        if command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            reply(self.replies.received(command))
            return
        if command.code in TO_CONSUMER:
            group = command.fields.get("consumerGroup") or command.fields.get("group") or ""
            consumer = self.consumers.get(group)
            if consumer is None:
                reply(
                    self.answer(command, ResponseCode.SYSTEM_ERROR, f"The consumer group <{group}> is not in this client {self.client_id}")
                )
                return
            try:
                consumer.asked(address, command, reply)
            except RoquetError as error:
                reply(self.answer(command, ResponseCode.SYSTEM_ERROR, str(error)))
            return
        reply(self.answer(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported"))

    def _check_transaction(self, address: str, command: Command) -> None:
        """Oneway: nobody waits for an answer, so one that cannot be given is only logged; the broker asks again."""
        try:
            message = ReceivedMessage(Record.decode(command.body), self.routes.broker_at(address))
        except RoquetError as error:
            log.warning("! %s asks for a transaction with a message that cannot be read: %s", address, error)
            return
        group = message.properties.get(Property.PRODUCER_GROUP, "")
        producer = self.producers.get(group)
        if producer is None:
            log.info("! %s asks for a transaction of producer group %s, which is not here", address, group)
        else:
            producer.check_transaction(address, message, command)

    def answer(self, command: Command, code: int, remark: str | None = None, body: bytes = b"") -> Command:
        answer = command.reply(int(code), remark, None, body)
        answer.language = LANGUAGE
        return answer


TO_CONSUMER = frozenset(
    {
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
