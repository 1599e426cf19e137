"""Registration: telling every name server what this broker has, and looking whether they still know.

The whole table goes to each of them every 30 s and after a failure. What changes in between goes alone: name servers, Apache's
too, keep the topics that a registration does not name. One registration to a name server is under way at a time, and what
changes meanwhile shares the next one, so a storm of new topics costs each name server one small request after the other.

Every few seconds each is asked for the route of the topic that bears this broker's name:

    our address           all is well
    another's address     a second broker has our name and id, or somebody registered in our name: said loudly, and we register again
    nothing               it was restarted, or somebody withdrew us: we register again

Apache's name server takes topics only from a version that it does not hold. One that was restarted and heard of a single change
first holds our version without our topics, and would ignore the whole table; so after "nothing" the table gets a new version.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial

from roquet.broker.handler import when_all
from roquet.broker.part import Part, Shared
from roquet.broker.topics import Topics, encode_table
from roquet.errors import Refused, RoquetError
from roquet.ports import Caller
from roquet.routing.name_servers import split_addresses
from roquet.wire.calls import registration as calls
from roquet.wire.calls.routes import GET_ROUTEINFO_BY_TOPIC, RouteHeader
from roquet.wire.calls.topics import TopicTable
from roquet.wire.calls.versions import BrokerHeader
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import body_crc

log = logging.getLogger("roquet.broker")

RETRY_MS = 1_000
"""After a failure, instead of the full period: a name server that starts after the broker is found quickly."""
LOOK_MS = 3_000
"""Between two looks at our own route."""
LOOK_TIMEOUT_MS = 3_000
QUIET_MS = 60_000
"""A notice about another broker's address stays up for this long after it was seen last."""

Done = Callable[[], None]


@dataclass(slots=True, eq=False)
class NameServerState:
    """One name server: what it does not know yet, and what is under way."""

    address: str
    whole: bool = False
    """The whole table is to be told, not only `changed`."""
    changed: dict[str, None] = field(default_factory=dict)
    waiting: list[Done] = field(default_factory=list)
    """Who waits for the next registration."""
    calling: bool = False
    looking: bool = False
    trouble: str = ""
    retry_ms: int = 0
    missed: bool = False
    """The last look found nothing, and we have registered because of it."""
    foreign_ms: int | None = None
    """When another's address was seen last."""


class Registration(Part):
    """State: one `NameServerState` for each name server, and when the next round and the next look are due."""

    def __init__(self, shared: Shared, topics: Topics, caller: Caller) -> None:
        super().__init__(shared)
        self.topics = topics
        self.caller = caller
        self.address = ""
        """ "ip:port" that clients use; set when the port is known."""
        self.ha_address = ""
        self.stopped = False
        self.held = False
        """No name server is told of this broker yet."""
        self.on_master: Callable[[str, str], None] = lambda master, ha_master: None
        """Told the addresses of the master that a name server knows, where this is a slave."""
        self._due_ms: int | None = None
        self._look_ms = self.clock.steady_ms() + LOOK_MS
        self._servers: dict[str, NameServerState] = {}
        topics.changed = self.tell

    @property
    def name_servers(self) -> list[str]:
        return split_addresses(self.settings.namesrv_addr)

    @property
    def silent(self) -> bool:
        """Name servers are told nothing: it stops, is not ready yet, or is to go."""
        return self.stopped or self.held or not self.settings.register_broker

    @property
    def failing(self) -> dict[str, str]:
        return {server.address: server.trouble for server in self._servers.values() if server.trouble}

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if "register_name_server_period" in names:
            self._due_ms = 0  # a new interval begins at once, and not when the old one, which may be long, is over
        if "register_broker" in names:
            self.topics.touch()
            if self.settings.register_broker:
                self.now()
            else:
                self._withdraw(list(self._servers), nothing)
        if "broker_permission" in names:
            self.topics.touch()  # of a version that they have, name servers take nothing
            self.now()

    def listening(self, address: str, ha_address: str) -> None:
        self.address, self.ha_address = address, ha_address

    def tick(self, now_ms: int) -> None:
        if not self.address or self.stopped:
            return
        if self._due_ms is None or now_ms >= self._due_ms:
            self._due_ms = now_ms + self.settings.register_name_server_period
            self.now()
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            for server in self._all():
                self._look(server)
        for server in self._servers.values():
            if server.trouble:
                self._step(server)

    def now(self, done: Done | None = None) -> None:
        """Tell all of them everything; `done` when each has answered or failed."""
        for server in self._all():
            server.whole = True
        self._go(lambda server: True, done)

    def tell(self, names: Iterable[str], done: Done | None = None) -> None:
        """Tell all of them of these topics; `done` when each has answered, or failed. Who failed before is not waited for."""
        fresh = dict.fromkeys(names)
        for server in self._all():
            server.changed.update(fresh)
        self._go(lambda server: not server.trouble, done)

    def _all(self) -> list[NameServerState]:
        if not self.address or self.silent:
            return []
        return [self._servers.setdefault(address, NameServerState(address)) for address in self.name_servers]

    def _go(self, awaited: Callable[[NameServerState], bool], done: Done | None) -> None:
        servers = self._all()
        one = when_all(1 + sum(map(awaited, servers)), done or nothing)
        for server in servers:
            # Also when nothing is told: a deletion is answered after the registrations that still held the topic.
            server.waiting.append(one if awaited(server) else nothing)
            self._step(server)
        one()

    # One registration

    def _step(self, server: NameServerState) -> None:
        """Register with it if there is something to tell, nothing under way, and no failure a moment ago."""
        if server.calling or self.stopped or not (server.whole or server.changed or server.waiting):
            return
        dones, server.waiting = server.waiting, []
        if self.silent or (server.trouble and self.clock.steady_ms() < server.retry_ms):
            for done in dones:
                done()
            return
        whole, names = server.whole, server.changed
        server.whole, server.changed, server.calling = False, {}, True

        def send(body: bytes | Exception) -> None:
            answered = partial(self._answered, server, dones)
            if isinstance(body, Exception):
                answered(RoquetError(f"the table of topics could not be encoded: {body!r}"))
                return
            self.caller.call(server.address, self._request(body), self.settings.register_broker_timeout_mills, answered)

        encode = self._encoder(None if whole else names)
        if whole and not self._is_plain:
            self.shared.background.run(encode, send)
        else:
            send(encode())

    def _answered(self, server: NameServerState, dones: list[Done], result: Command | RoquetError) -> None:
        server.calling = False
        trouble = str(result) if isinstance(result, RoquetError) else f"code {result.code}: {result.remark}" if result.code else ""
        if trouble:
            self._failed(server, trouble)
            if isinstance(result, Command):
                self.notices.warn(f"register {server.address}", f"name server {server.address} refuses to register this broker: {trouble}")
        elif server.trouble:
            log.info("registered with name server %s", server.address)
            server.trouble = ""
            self.notices.clear(f"register {server.address}")
        if isinstance(result, Command) and not trouble:
            self._hear_of_master(result)
        for done in dones:
            done()
        self._step(server)

    def _hear_of_master(self, answer: Command) -> None:
        try:
            header = calls.REGISTER_BROKER.answer(answer).header
        except Refused:
            return
        if header.master_addr or header.ha_server_addr:
            self.on_master(header.master_addr or "", header.ha_server_addr or "")

    def _failed(self, server: NameServerState, trouble: str) -> None:
        if not server.trouble:
            log.warning("registering with name server %s failed: %s", server.address, trouble)
        server.trouble = trouble
        server.whole = True
        server.changed = {}
        server.retry_ms = self.clock.steady_ms() + RETRY_MS

    @property
    def _is_plain(self) -> bool:
        """Topics are told as they are in the table: thousands of them are joined from their texts at once. All else costs more."""
        return bool(self.settings.broker_permission & Perm.WRITE) and not self.settings.compressed_register

    def _encoder(self, names: Iterable[str] | None) -> Callable[[], bytes]:
        """Makes the body for these topics, None for all, each with the permissions that the broker's own leaves it. What it returns may
        be called in another thread."""
        topics, version = self.topics, self.topics.data_version
        if self._is_plain:
            texts = topics.texts.members() if names is None else topics.texts.some(names)
            return lambda: wrapped(encode_table(texts, version))
        found = list(topics.all()) if names is None else [topic for topic in map(topics.get, names) if topic is not None]
        permission, compressed = self.settings.broker_permission, self.settings.compressed_register
        mask = 7 if permission & Perm.WRITE else permission

        def encode() -> bytes:
            table = TopicTable({topic.topic_name: replace(topic, perm=topic.perm & mask) for topic in found}, version)
            body = calls.RegisterBrokerBody(table, [])
            return body.encode_compressed() if compressed else body.encode()

        return encode

    def _request(self, body: bytes) -> Command:
        settings = self.settings
        header = calls.RegisterBrokerHeader(
            broker_name=settings.broker_name,
            broker_addr=self.address,
            cluster_name=settings.broker_cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=settings.broker_id,
            compressed=settings.compressed_register,
            body_crc32=body_crc(body),
        )
        return calls.REGISTER_BROKER.request(header, body)

    # Looking

    def _look(self, server: NameServerState) -> None:
        if server.looking or server.calling or server.trouble:
            return
        server.looking = True
        request = GET_ROUTEINFO_BY_TOPIC.request(RouteHeader(self.settings.broker_name))
        self.caller.call(server.address, request, LOOK_TIMEOUT_MS, partial(self._looked, server))

    def _looked(self, server: NameServerState, result: Command | RoquetError) -> None:
        server.looking = False
        if self.silent or server.calling or server.trouble:
            return  # what it said may be older than what we are telling it
        if isinstance(result, RoquetError):
            self._failed(server, str(result))
            return
        try:
            found = self._address_in(result)
        except Refused:
            return  # no route, but no "there is none" either: the next registration says more
        if found == self.address:
            server.missed = False
            if server.foreign_ms is not None and self.clock.steady_ms() - server.foreign_ms >= QUIET_MS:
                server.foreign_ms = None
                self.notices.clear(f"route {server.address}")
        elif found:
            self._other_has_our_name(server, found)
        elif not server.missed:
            log.warning("name server %s does not know this broker any more: it is registered again", server.address)
            server.missed = True
            self.topics.touch()
            server.whole = True
            self._step(server)

    def _address_in(self, answer: Command) -> str:
        """The address under our name and id; "" when there is none. Raises Refused for an answer that is none."""
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return ""
        if answer.code:
            raise Refused(answer.code, answer.remark or "")
        for group in GET_ROUTEINFO_BY_TOPIC.answer(answer).body.broker_datas:
            if group.broker_name == self.settings.broker_name:
                return group.broker_addrs.get(self.settings.broker_id, "")
        return ""

    def _other_has_our_name(self, server: NameServerState, found: str) -> None:
        settings = self.settings
        server.foreign_ms = self.clock.steady_ms()
        self.notices.warn(
            f"route {server.address}",
            f"name server {server.address} gave {found} as the address of broker {settings.broker_name} with id {settings.broker_id}, "
            f"which is this one, {self.address}: another broker has the same brokerName and brokerId, or somebody registered in our name. "
            "Clients are sent to one or the other in turns. Give each its own brokerName; a name server with "
            "refuseChangedBrokerAddress=true keeps whoever came first.",
        )
        server.whole = True
        self._step(server)

    # The end

    def unregister(self, done: Done) -> None:
        """A clean stop: routes vanish at once."""
        servers = [server.address for server in self._all()]
        self.stopped = True
        self._withdraw(servers, done)

    def _withdraw(self, servers: Sequence[str], done: Done) -> None:
        one = when_all(len(servers) + 1, done)
        settings = self.settings
        for server in servers:
            header = BrokerHeader(settings.broker_name, self.address, settings.broker_cluster_name, settings.broker_id)
            self.caller.call(server, calls.UNREGISTER_BROKER.request(header), 1_000, lambda result: one())
        one()


def nothing() -> None:
    """Nobody waits, for a name server that failed a moment ago as little as for what nobody asked for."""


def wrapped(table: bytes) -> bytes:
    """A RegisterBrokerBody around a table that is encoded already."""
    return b'{"topicConfigSerializeWrapper":' + table + b',"filterServerList":[]}'
