"""The name server: which request is answered how.

A value that takes frames and ticks; sockets, the clock and the disk are given to it. One handler a request code, in one
table at the end: the place to learn what a name server answers.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Generator

from roquet.access.source import AclSource
from roquet.errors import BadSetting, Broken, Refused
from roquet.nameserver.access import WatchedRules
from roquet.nameserver.kv import ORDER_TOPICS, KvStore
from roquet.nameserver.rivals import Rivals
from roquet.ports import FOREVER, Clock, Guard, Keep, Peer, Receiver
from roquet.properties import property_line
from roquet.routing.registry import Registration, Registry
from roquet.settings import NameServerSettings
from roquet.store.disk import Disk
from roquet.wire import fastjson
from roquet.wire.calls import access as access_calls
from roquet.wire.calls import brokers as broker_calls
from roquet.wire.calls import routes, topics
from roquet.wire.calls.call import AnyCall, Carried
from roquet.wire.calls.registration import REGISTER_BROKER, UNREGISTER_BROKER, RegisterBrokerBody, RegisterBrokerResponseHeader
from roquet.wire.calls.versions import QUERY_DATA_VERSION, DataVersionResponseHeader
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.command import decode as decode_command
from roquet.wire.frame import Frame
from roquet.wire.record import body_crc

log = logging.getLogger(__name__)

STANDARD_JSON_VERSION = 401
"""Clients of 4.9.4 and later read routes as standard JSON; older Go clients need the bare numbers of fastjson."""
WHOLE_BODY_VERSION = 37
"""Brokers of 3.0.11 and later send a RegisterBrokerBody, older ones only the table of topics."""
CONFIG_SIZE_MAX = 64 * 1024

NO_ROUTE = "No topic route info in name server for the topic: {}\nSee http://rocketmq.apache.org/docs/faq/ for further details."


Portions = Generator[None, None, Command]
"""Work that others get their turn in between. What it looks at may have changed when it goes on."""


class NameServer(Receiver):
    """Owned by one thread. `settings` may change through broker_calls.UPDATE_NAMESRV_CONFIG, within its allow-list."""

    def __init__(
        self,
        settings: NameServerSettings,
        clock: Clock,
        disk: Disk,
        data_dir: str,
        keep: Keep = lambda pairs: None,
        accounts: AclSource | None = None,
    ) -> None:
        """Reads the KV configuration; raises Damaged when there is one that cannot be read. `keep`: where changed settings go. `accounts`:
        needed with aclEnable; raises BadAcl when they cannot be used."""
        self.settings = settings
        self.keep = keep
        self.clock = clock
        self.guards: list[Guard] = []
        """Each sees every request before its handler does, in this order, and may refuse it."""
        self.access = WatchedRules(settings, clock, accounts)
        if self.access.guard is not None:
            self.guards.append(self.access.guard)
        self.open_to = ""
        """The warning that everybody may come in, if so; `roquet status` shows it."""
        self.registry: Registry[Peer] = Registry()
        self._unfinished: dict[Peer, tuple[Command, Portions]] = {}  # requests that need more turns; the frames behind them wait
        self.rivals = Rivals()
        self.kv = KvStore(disk, settings.kv_config_path or f"{data_dir}/namesrv/kvConfig.json")
        self._next_scan_ms = clock.steady_ms() + settings.scan_not_active_broker_interval

    # Driven by the shell

    def receive(self, peer: Peer, frames: list[Frame], until_ms: int = FOREVER) -> list[Frame] | None:
        """Answer what has arrived, in order, with one send. A frame that is no command closes the connection. Returns what was
        left when the turn's time was over, to be handed in again, even when it is empty; None: all is done."""
        answers: list[bytes] = []
        rest: list[Frame] | None = None
        left = iter(frames)
        unfinished = self._unfinished.pop(peer, None)
        try:
            if unfinished is not None and not self._go_on(peer, *unfinished, answers, until_ms):
                return frames
            for frame in left:
                if self.clock.steady_ms() >= until_ms:
                    rest = [frame, *left]
                    break
                request = decode_command(frame)
                if request.is_response:  # we ask nobody, so this answers nothing
                    self.access.note_unasked(peer)
                elif not self._go_on(peer, request, self._answer(peer, request), answers, until_ms):
                    rest = list(left)
                    break
                if peer.closed:
                    return None  # by a guard
        except Broken as error:
            if answers:
                peer.send(b"".join(answers))
            peer.close(str(error))
            return None
        if answers:
            peer.send(b"".join(answers))
        return rest

    def has_begun(self, peer: Peer) -> bool:
        return peer in self._unfinished

    def _go_on(self, peer: Peer, request: Command, portions: Portions, answers: list[bytes], until_ms: int) -> bool:
        """Do portions of it while the turn lasts. False: it needs another turn."""
        try:
            while True:
                next(portions)
                if self.clock.steady_ms() >= until_ms:
                    self._unfinished[peer] = (request, portions)
                    return False
        except StopIteration as stop:
            answer: Command = stop.value
        except Refused as refusal:
            answer = request.reply(refusal.code, refusal.remark)
        except Broken:
            raise
        except Exception as error:
            log.exception("request %d from %s failed", request.code, peer.address)
            answer = request.reply(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}"[:4096])
        if not request.is_oneway:
            answers.append(answer.encode())
        return True

    def disconnected(self, peer: Peer) -> None:
        """A broker whose connection is gone is taken to be gone: clients learn of it at their next look."""
        self._unfinished.pop(peer, None)
        for live in self.registry.drop_link(peer):
            log.info("broker %s %s: connection lost, removed", live.broker_name, live.address)

    def tick(self, now_ms: int) -> None:
        self.access.tick(now_ms)
        if now_ms < self._next_scan_ms:
            return
        silent = self.registry.expire(now_ms)
        if not silent:  # else there may be more: the next tick looks again
            self._next_scan_ms = now_ms + self.settings.scan_not_active_broker_interval
        for live in silent:
            log.warning("broker %s %s: silent for more than %d ms, removed", live.broker_name, live.address, live.expiry_ms)
            if not live.link.closed:
                live.link.close(f"no registration for more than {live.expiry_ms} ms")

    # Requests

    def _answer(self, peer: Peer, request: Command) -> Portions:
        for guard in self.guards:
            guard(peer, request)
        handler = HANDLERS.get(request.code)
        if handler is None:
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        answer = handler(self, peer, request)
        return answer if isinstance(answer, Command) else (yield from answer)

    def register(self, peer: Peer, request: Command) -> Portions:
        """103. A table of thousands of topics takes three turns: to be read, to be looked at, and to be taken in."""
        header = REGISTER_BROKER.read_header(request)
        if header.body_crc32 and header.body_crc32 != body_crc(request.body):
            raise Refused(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        now_ms = self.clock.steady_ms()
        name, number, address = header.broker_name, header.broker_id, header.broker_addr
        digest = digest_of(request)
        if self.registry.heard_again(name, number, address, digest, peer, now_ms):
            master = self.registry.master_of(name, number)
        else:
            table, filter_servers = yield from registered_body(request, bool(header.compressed))
            yield
            now_ms = self.clock.steady_ms()
            self._check_rival(peer, name, number, address, now_ms)
            registration = Registration(
                cluster=header.cluster_name,
                broker_name=name,
                broker_id=number,
                address=address,
                ha_address=header.ha_server_addr,
                version=table.data_version,
                topics=tuple(table.topic_config_table.values()),
                filter_servers=filter_servers,
                expiry_ms=header.heartbeat_timeout_millis,
                digest=digest,
            )
            is_new = (name, address) not in self.registry.live
            master = self.registry.register(registration, peer, now_ms, expiry_ms=self.settings.broker_expiry_ms)
            if is_new:
                log.info("broker %s %s: registered as id %d of cluster %s", name, address, number, registration.cluster)
        order = self.kv.namespace(ORDER_TOPICS) if self.settings.return_order_topic_config_to_broker else None
        answer = RegisterBrokerResponseHeader(master.ha_address, master.address) if master else RegisterBrokerResponseHeader()
        return REGISTER_BROKER.reply(request, answer, b"" if order is None else broker_calls.KvTable(order))

    def _check_rival(self, peer: Peer, name: str, number: int, address: str, now_ms: int) -> None:
        """Two brokers under one name and id take the route from each other: said, and refused if the settings say so."""
        holder = self.registry.holder(name, number)
        if holder is None or holder.address == address:
            return
        alive = not holder.link.closed and holder.seen_ms + holder.expiry_ms >= now_ms
        refused = alive and self.settings.refuse_changed_broker_address
        self.rivals.met(name, number, holder.address, address, peer.address, now_ms, alive=alive, refused=refused)
        if refused:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"broker {name} with id {number} is {holder.address}, which registered {(now_ms - holder.seen_ms) // 1000} s ago and is "
                f"alive: {address} is refused (refuseChangedBrokerAddress=true). Give it another brokerName or brokerId, or stop the other "
                "one first",
            )

    def unregister(self, peer: Peer, request: Command) -> Command:
        header = UNREGISTER_BROKER.read_header(request)
        known = self.registry.unregister(header.broker_name, header.broker_addr)
        what = "unregistered" if known else "asked to be unregistered, and was not registered"
        log.info("broker %s %s: %s", header.broker_name, header.broker_addr, what)
        return request.reply()

    def data_version(self, peer: Peer, request: Command) -> Command:
        header = QUERY_DATA_VERSION.read_header(request)
        theirs = QUERY_DATA_VERSION.read_body(request)
        changed = self.registry.has_changed(header.broker_name, header.broker_addr, theirs, self.clock.steady_ms())
        ours = self.registry.version_of(header.broker_name, header.broker_addr)
        return QUERY_DATA_VERSION.reply(request, DataVersionResponseHeader(changed), b"" if ours is None else ours)

    def route(self, peer: Peer, request: Command) -> Command:
        header = routes.GET_ROUTEINFO_BY_TOPIC.read_header(request)
        route = self.registry.route(header.topic)
        if route is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, NO_ROUTE.format(header.topic))
        if self.settings.order_message_enable:
            route.order_topic_conf = self.kv.get(ORDER_TOPICS, header.topic)
        standard = request.version >= STANDARD_JSON_VERSION or bool(header.accept_standard_json_only)
        return routes.GET_ROUTEINFO_BY_TOPIC.reply(request, body=route.encode(standard))

    def topics_of_cluster(self, peer: Peer, request: Command) -> Command:
        cluster = topics.GET_TOPICS_BY_CLUSTER.read_header(request).cluster
        return topics.GET_TOPICS_BY_CLUSTER.reply(request, body=self.registry.topics_of_cluster(cluster))

    def delete_topic(self, peer: Peer, request: Command) -> Command:
        header = topics.DELETE_TOPIC_IN_NAMESRV.read_header(request)
        self.registry.delete_topic(header.topic, header.cluster_name or None)
        log.info("topic %s: deleted by %s", header.topic, peer.address)
        return request.reply()

    def wipe_write_perm(self, peer: Peer, request: Command) -> Command:
        name = routes.WIPE_WRITE_PERM_OF_BROKER.read_header(request).broker_name
        count = self.registry.wipe_write_perm(name)
        log.info("broker %s: write permission of %d topics taken by %s", name, count, peer.address)
        return routes.WIPE_WRITE_PERM_OF_BROKER.reply(request, routes.WipePermResponseHeader(count))

    def add_write_perm(self, peer: Peer, request: Command) -> Command:
        name = routes.ADD_WRITE_PERM_OF_BROKER.read_header(request).broker_name
        count = self.registry.add_write_perm(name)
        log.info("broker %s: write permission of %d topics given by %s", name, count, peer.address)
        return routes.ADD_WRITE_PERM_OF_BROKER.reply(request, routes.AddPermResponseHeader(count))

    def put_kv(self, peer: Peer, request: Command) -> Command:
        header = broker_calls.PUT_KV_CONFIG.read_header(request)
        if header.value is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the custom field <value> is null, but this request needs it")
        self.kv.put(header.namespace, header.key, header.value)
        return request.reply()

    def get_kv(self, peer: Peer, request: Command) -> Command:
        header = broker_calls.GET_KV_CONFIG.read_header(request)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return broker_calls.GET_KV_CONFIG.reply(request, broker_calls.KvResponseHeader(value))

    def delete_kv(self, peer: Peer, request: Command) -> Command:
        header = broker_calls.DELETE_KV_CONFIG.read_header(request)
        self.kv.delete(header.namespace, header.key)
        return request.reply()

    def kv_namespace(self, peer: Peer, request: Command) -> Command:
        namespace = broker_calls.GET_KVLIST_BY_NAMESPACE.read_header(request).namespace
        values = self.kv.namespace(namespace)
        if values is None:
            return request.reply(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return broker_calls.GET_KVLIST_BY_NAMESPACE.reply(request, body=broker_calls.KvTable(values))

    def register_topic(self, peer: Peer, request: Command) -> Command:
        """217 is two things. Node looks a project group up and takes 22 for "none"; 5.x would register a topic, which brokers do here."""
        return request.reply(ResponseCode.QUERY_NOT_FOUND, "No config item by value; topics are registered by their brokers")

    def update_config(self, peer: Peer, request: Command) -> Command:
        """All or nothing, and only what the table of settings allows to change at run time: never a path, never an address."""
        if len(request.body) > CONFIG_SIZE_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"configuration of {len(request.body)} bytes, limit is {CONFIG_SIZE_MAX}")
        try:
            pairs = broker_calls.UPDATE_NAMESRV_CONFIG.read_body(request).pairs()
            values = self.settings.changes(pairs)
        except UnicodeDecodeError as error:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the configuration is not UTF-8: {error}") from None
        except BadSetting as error:
            log.warning("configuration update by %s refused: %s", peer.address, error)
            raise Refused(ResponseCode.NO_PERMISSION, f"{error}. Nothing was changed") from None
        self.settings.change(values)
        log.info("configuration updated by %s: %s", peer.address, values)
        try:
            self.keep(self.settings.spelled(values))
        except OSError as error:
            remark = f"changed until the restart alone: it cannot be written to {self.settings.config_store_path}: {error}"
            log.error("%s", remark)
            raise Refused(ResponseCode.SYSTEM_ERROR, remark) from None
        return request.reply()

    def refused_calls(self, peer: Peer, request: Command) -> Command:
        audit, warnings = self.access.audit, [text for text in (self.open_to, self.access.trouble) if text]
        return access_calls.ACCESS_AUDIT.reply(request, body=access_calls.refused_calls(audit.refused, audit.calls, warnings))

    def change_accounts(self, peer: Peer, request: Command) -> Command:
        return self.access.change(peer, request)

    def accounts(self, peer: Peer, request: Command) -> Command:
        return self.access.accounts(request)

    def get_config(self, peer: Peer, request: Command) -> Command:
        lines = [property_line(key, value) for key, value in self.settings.every_item().items()]
        return broker_calls.GET_NAMESRV_CONFIG.reply(request, body="".join(lines).encode())


def registered_body(request: Command, compressed: bool) -> Generator[None, None, tuple[topics.TopicTable, tuple[str, ...] | None]]:
    """The topics and filter servers of a registration; no body means no topics."""
    if not request.body:
        return topics.TopicTable(), None
    if compressed and request.version >= WHOLE_BODY_VERSION:
        body = RegisterBrokerBody.decode_compressed(request.body)
        return body.topics, tuple(body.filter_server_list)
    value = fastjson.loads(request.body)
    yield
    if request.version < WHOLE_BODY_VERSION:
        return topics.TopicTable.from_json(value), None
    body = RegisterBrokerBody.from_json(value)
    return body.topics, tuple(body.filter_server_list)


def digest_of(request: Command) -> bytes:
    """Of everything that a registration says. A large one comes every 30 s, unchanged most of the time, and is then not read again."""
    digest = hashlib.blake2b(repr((request.version, sorted(request.fields.items()))).encode("utf-8", "backslashreplace"), digest_size=16)
    digest.update(request.body)
    return digest.digest()


Handler = Callable[[NameServer, Peer, Command], Command | Portions]


def shows(call: AnyCall, of: Callable[[Registry[Peer]], Carried]) -> Handler:
    """A request without conditions: this of the registry is the body of the answer."""
    return lambda server, peer, request: call.reply(request, body=of(server.registry))


HANDLERS: dict[int, Handler] = {
    RequestCode.ACCESS_AUDIT: NameServer.refused_calls,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: NameServer.change_accounts,
    RequestCode.DELETE_ACL_CONFIG: NameServer.change_accounts,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: NameServer.change_accounts,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: NameServer.accounts,
    RequestCode.PUT_KV_CONFIG: NameServer.put_kv,
    RequestCode.GET_KV_CONFIG: NameServer.get_kv,
    RequestCode.DELETE_KV_CONFIG: NameServer.delete_kv,
    RequestCode.REGISTER_BROKER: NameServer.register,
    RequestCode.UNREGISTER_BROKER: NameServer.unregister,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: NameServer.route,
    RequestCode.GET_BROKER_CLUSTER_INFO: shows(routes.GET_BROKER_CLUSTER_INFO, Registry.cluster_info),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: NameServer.wipe_write_perm,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: shows(topics.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Registry.all_topics),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: NameServer.delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: NameServer.register_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: NameServer.kv_namespace,
    RequestCode.GET_TOPICS_BY_CLUSTER: NameServer.topics_of_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: shows(topics.GET_SYSTEM_TOPIC_LIST_FROM_NS, Registry.system_topics),
    RequestCode.GET_UNIT_TOPIC_LIST: shows(topics.GET_UNIT_TOPIC_LIST, Registry.unit_topics),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: shows(topics.GET_HAS_UNIT_SUB_TOPIC_LIST, Registry.unit_sub_topics),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: shows(topics.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, Registry.unit_sub_not_unit_topics),
    RequestCode.UPDATE_NAMESRV_CONFIG: NameServer.update_config,
    RequestCode.GET_NAMESRV_CONFIG: NameServer.get_config,
    RequestCode.QUERY_DATA_VERSION: NameServer.data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: NameServer.add_write_perm,
}
"""What a name server answers; everything else gets code 3."""
