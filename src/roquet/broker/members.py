"""Members: which clients are connected, in which groups, and what they subscribe to.

Everything here follows heartbeats and is forgotten with the connection. A group's subscriptions are, as upstream has it,
what the last heartbeats said: the newest version of each wins, and a topic that the latest heartbeat lacks is removed. So
members that disagree take topics away from each other, and messages reach nobody. Upstream accepts that without a word;
here it is accepted and a notice names the clients.
"""

from __future__ import annotations

import itertools
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from roquet.broker.filters import check_filter
from roquet.broker.groups import Groups
from roquet.broker.handler import LARGE, Portions, answers, elsewhere
from roquet.broker.newcomers import host_of
from roquet.broker.offsets import RETRY_TOPIC_LENGTH_MAX
from roquet.broker.part import Part, Shared
from roquet.broker.topics import Topics
from roquet.errors import CallTimeout, ConnectFailed, Refused, RoquetError
from roquet.ports import Peer
from roquet.routing.subscription import EXPRESSION_LENGTH_MAX, is_tag_type
from roquet.wire.calls import members as wire
from roquet.wire.calls.consumers import CONSUME_MESSAGE_DIRECTLY, GET_CONSUMER_RUNNING_INFO
from roquet.wire.codes import ResponseCode, TopicFlag
from roquet.wire.command import ONEWAY, Command
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.layout import QUEUES_MAX
from roquet.wire.names import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX, check, check_group, retry_topic
from roquet.wire.pending import Done, PendingCalls
from roquet.wire.signing import unsigned

log = logging.getLogger("roquet.broker")

SCAN_MS = 10_000
REMOVED_MAX = 20
"""Silent clients that one tick removes."""
NOTIFIED_MAX = 2_000
"""Members of groups that lost some which are looked at, and told, between two ticks; the other groups wait for the next one."""
LOOK_COST = 20
"""What it costs to look at a group, in members."""
CALL_TIMEOUT_MS = 10_000
CALLS_MAX = 256
"""Calls to one client that may wait for its answer."""
EXPIRED_MAX = 200
"""Calls that one tick gives up, each with an answer to somebody. Others that are due have the next turns of the loop."""
V3_1_8 = 62
"""Clients before it (V3_1_8_SNAPSHOT) do not know the calls that brokers make."""

HEARTBEAT_MAX = 4 * 1024 * 1024
"""Bytes of one heartbeat, or of a subscription that is asked about."""
CLIENT_GROUPS_MAX = 2_000
"""Groups one connection may be in, producing and consuming together."""
SUBSCRIPTIONS_MAX = 10_000
"""Topics one consumer may subscribe to."""
CLIENT_ID_MAX = 1_024
NAMES_A_TURN = 100
"""Groups that one heartbeat, or one tick, makes with their retry topics; the others wait for the next ticks."""
WAITING_MAX = 10_000
"""Groups that wait to be made."""
DIFFERENCES_MAX = 5
"""Differences spelled out in one notice."""

Names = dict[str, None]
"""Names in the order they came: a set's order differs from run to run, and a simulation must not."""

Signature = frozenset[tuple[str, str, str]]
"""What a member subscribes to, in a form that is equal for members that agree: (topic, type, expression)."""


@dataclass(slots=True, eq=False)
class Member:
    """One client in one group, on one connection."""

    peer: Peer
    client_id: str
    language: str
    version: int
    heard_ms: int
    """Steady time of its last heartbeat."""
    signature: Signature = frozenset()

    def __str__(self) -> str:
        return f"{self.client_id} ({self.peer.address})"


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """A group that has members now."""

    name: str
    consume_type: wire.ConsumeType = wire.ConsumeType.CONSUME_PASSIVELY
    message_model: wire.MessageModel = wire.MessageModel.CLUSTERING
    consume_from_where: wire.ConsumeFromWhere = wire.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, wire.SubscriptionData] = field(default_factory=dict)

    def client_ids(self) -> list[str]:
        """Each once. Upstream repeats an id that two connections share, and then the second share of queues is nobody's."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


class Members(Part):
    """State: consumer groups and producer groups by name, and by connection the names it is in; calls to clients by connection."""

    def __init__(self, shared: Shared, groups: Groups, topics: Topics) -> None:
        super().__init__(shared)
        self.groups = groups
        self.topics = topics
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Member]] = {}
        self._consuming: dict[Peer, Names] = {}
        self._producing: dict[Peer, Names] = {}
        self._calls: dict[Peer, PendingCalls] = {}
        self._producing_as: dict[str, Peer] = {}  # client id -> the connection its last heartbeat as a producer came from
        self._called: dict[Peer, str] = {}  # and back: a connection has one client id at a time
        self._waiting: dict[str, dict[str, bool]] = {}  # address -> groups that wait to be made -> unit mode
        self._shared_ids: dict[str, set[str]] = {}  # group -> client ids that a notice is up for
        self._silent: OrderedDict[Peer, Member] = OrderedDict()  # to be removed
        self._smaller: dict[str, ConsumerGroup] = {}  # groups that lost members, and were not looked at since
        self._may_notify = NOTIFIED_MAX  # members, before the next tick
        self._scan_due_ms = self.clock.steady_ms() + SCAN_MS
        self.on_heard: list[Callable[[str, list[wire.SubscriptionData]], None]] = []
        """Told of every heartbeat of a consumer: its group, and what it subscribes to."""
        self.on_left: list[Callable[[str], None]] = []
        """Told when a group lost its last member."""

    # Looking

    def group(self, name: str) -> ConsumerGroup | None:
        """None: nobody of this group is connected."""
        return self._consumers.get(name)

    def subscription(self, group: str, topic: str) -> wire.SubscriptionData | None:
        found = self._consumers.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def groups_subscribing(self, topic: str) -> list[str]:
        return [name for name, group in self._consumers.items() if topic in group.subscriptions]

    def producers(self, group: str) -> list[Peer]:
        return list(self._producers.get(group, ()))

    def producer_with_id(self, client_id: str) -> Peer | None:
        return self._producing_as.get(client_id)

    @property
    def clients(self) -> int:
        """Connections that sent a heartbeat."""
        return len(self._consuming.keys() | self._producing.keys())

    # Heartbeats

    @answers(wire.HEART_BEAT)
    def heartbeat(self, peer: Peer, command: Command) -> Command | Portions:
        """34. Everything is checked before anything is taken in."""
        check_size(command, "heartbeat")
        if len(command.body) >= LARGE:
            return self._large_heartbeat(peer, command)
        return self._take_in(peer, command, read_heartbeat(command))

    def _large_heartbeat(self, peer: Peer, command: Command) -> Portions:
        """With thousands of subscriptions: read and checked elsewhere, all that depends on nothing here."""
        heard = yield from elsewhere(lambda: read_heartbeat(command))
        return self._take_in(peer, command, heard)

    def _take_in(self, peer: Peer, command: Command, heard: tuple[wire.HeartbeatBody, list[Signature]]) -> Command:
        body, signatures = heard
        self._check(peer, body)
        heard_ms = self.clock.steady_ms()
        for data, signature in zip(body.consumer_data_set, signatures, strict=True):
            member = Member(peer, body.client_id, command.language, command.version, heard_ms, signature)
            self._register_consumer(member, data)
        self._make_groups(peer, body.consumer_data_set)
        if self._called.get(peer) != body.client_id:
            self._forget_id(peer)
        for producer in body.producer_data_set:
            member = Member(peer, body.client_id, command.language, command.version, heard_ms)
            self._producers.setdefault(producer.group_name, {})[peer] = member
            self._producing.setdefault(peer, {})[producer.group_name] = None
        if body.producer_data_set and self._may_be_called(body.client_id, peer):
            self._producing_as[body.client_id] = peer
            self._called[peer] = body.client_id
        return command.reply()

    def _may_be_called(self, client_id: str, peer: Peer) -> bool:
        """Replies go to whoever has the client id. One that somebody else's account has already is not taken over."""
        holder = self._producing_as.get(client_id)
        if holder is None or holder.closed or holder.principal == peer.principal:
            return True
        first, second = holder.principal or "-", peer.principal or "-"
        self.notices.warn(
            f"client ids of {first} and {second}",
            f"clients with the access keys {first} and {second} have the same client id: replies go to the first alone. Give each its own",
        )
        return False

    def _forget_id(self, peer: Peer) -> None:
        """Replies to the client id that this connection had go there no more."""
        client_id = self._called.pop(peer, None)
        if client_id is not None and self._producing_as.get(client_id) is peer:
            del self._producing_as[client_id]

    def _check(self, peer: Peer, body: wire.HeartbeatBody) -> None:
        if not 0 < len(body.client_id) <= CLIENT_ID_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"clientID of {len(body.client_id)} characters, allowed are 1 to {CLIENT_ID_MAX}")
        consuming = {data.group_name for data in body.consumer_data_set}
        producing = {data.group_name for data in body.producer_data_set}
        for name in sorted(consuming | producing):
            check_group(name)
        count = len(consuming | self._consuming.get(peer, {}).keys()) + len(producing | self._producing.get(peer, {}).keys())
        if count > CLIENT_GROUPS_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"client {body.client_id} is in {count} groups, limit is {CLIENT_GROUPS_MAX}")
        limit = self.settings.accept_groups_max
        for fresh, known in ((consuming - self._consumers.keys(), self._consumers), (producing - self._producers.keys(), self._producers)):
            if fresh and len(known) + len(fresh) > limit:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{len(known)} groups are connected, limit is acceptGroupsMax={limit}")

    def _register_consumer(self, member: Member, data: wire.ConsumerData) -> None:
        name = data.group_name
        self._watch_length(name)
        group = self._consumers.setdefault(name, ConsumerGroup(name))
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(member.peer)
        group.members[member.peer] = member
        self._consuming.setdefault(member.peer, {})[name] = None
        changed = update_subscriptions(group, data.subscription_data_set) or known is None
        if known is None or known.client_id != member.client_id:
            self._watch_shared_ids(group)
        if known is None or known.signature != member.signature:
            self._watch_differences(group)
        if changed:
            self._notify(group)
        for listener in self.on_heard:
            listener(name, data.subscription_data_set)

    # New groups

    def _make_groups(self, peer: Peer, consumers: list[wire.ConsumerData]) -> None:
        """Groups that are new, and their retry topics. Those that are too many now wait for the next ticks. Their members are
        members already: a client that came a moment too early is not kept waiting for its next heartbeat."""
        fresh = {data.group_name: data.unit_mode for data in consumers if self._is_to_be_made(data.group_name)}
        if fresh:
            host = host_of(peer)
            room = max(0, WAITING_MAX - sum(map(len, self._waiting.values())))
            waiting = self._waiting.setdefault(host, {})
            waiting |= itertools.islice(fresh.items(), room)  # who finds no room comes again with the next heartbeat
            self._make_waiting(host, NAMES_A_TURN)

    def _is_to_be_made(self, group: str) -> bool:
        if group not in self.groups:
            return self.groups.may_make(group)
        topic = retry_topic(group)
        return self.topics.get(topic) is None and len(topic) <= TOPIC_LENGTH_MAX

    def _make_waiting(self, host: str, most: int) -> int:
        """Make groups that this address brought, as many as it may bring now; how many."""
        newcomers, waiting = self.shared.newcomers, self._waiting.pop(host)
        made = 0
        with newcomers.own_work():
            while waiting and made < most and newcomers.may_enter(host):
                group = next(iter(waiting))
                unit_mode = waiting.pop(group)
                config = self.groups.find(group) if group in self._consumers else None
                if config is not None:
                    self._ensure_retry_topic(group, config.retry_queue_nums, unit_mode)
                made += 1
        if waiting:
            self._waiting[host] = waiting  # behind the others: each has its turn
        return made

    def _ensure_retry_topic(self, group: str, queues: int, unit_mode: bool) -> None:
        topic = retry_topic(group)
        if self.topics.get(topic) is not None or len(topic) > TOPIC_LENGTH_MAX:
            return
        try:
            # A group that wants no retry queues gets one all the same: its members ask for the topic's route anyway.
            self.topics.ensure(topic, min(max(queues, 1), QUEUES_MAX), sys_flag=int(TopicFlag.UNIT_SUB) if unit_mode else 0)
        except Refused as refused:
            self.notices.warn(f"retry {group}", f"group {group} has no retry topic: {refused.remark}")
        else:
            self.notices.clear(f"retry {group}")

    @answers(wire.UNREGISTER_CLIENT)
    def unregister(self, peer: Peer, command: Command) -> Command:
        header = wire.UNREGISTER_CLIENT.read_header(command)
        if header.producer_group:
            self._drop_producer(peer, header.producer_group)
        if header.consumer_group:
            self._take_out(peer, header.consumer_group)
            self._look_at_smaller()
        return command.reply()

    def disconnected(self, peer: Peer) -> None:
        """The connection is gone, and with it all that it said."""
        self._forget(peer)
        self._look_at_smaller()

    def _forget(self, peer: Peer) -> None:
        for name in list(self._consuming.get(peer, ())):
            self._take_out(peer, name)
        for name in list(self._producing.get(peer, ())):
            self._drop_producer(peer, name)
        self._forget_id(peer)
        calls = self._calls.pop(peer, None)
        if calls is not None:
            calls.fail_all(ConnectFailed(f"the connection to {peer.address} is closed"))

    def _drop_producer(self, peer: Peer, name: str) -> None:
        forget(self._producing, peer, name)
        members = self._producers.get(name)
        if members is not None and members.pop(peer, None) is not None and not members:
            del self._producers[name]
        if peer not in self._producing:
            self._forget_id(peer)

    def _take_out(self, peer: Peer, name: str) -> None:
        """It is a member no more; `_look_at_smaller` follows."""
        forget(self._consuming, peer, name)
        group = self._consumers.get(name)
        if group is not None and group.members.pop(peer, None) is not None:
            if not group.members:
                del self._consumers[name]
            self._smaller[name] = group

    def _look_at_smaller(self) -> None:
        """Groups that lost members: each once, however many these were, since it costs in proportion to those that are left. A client may
        be in a thousand groups, and thousands may leave together: so some at a time."""
        while self._smaller and self._may_notify > 0:
            name = next(iter(self._smaller))
            lost = self._smaller.pop(name)
            group = self._consumers.get(name)
            self._may_notify -= LOOK_COST + len(lost.members if group is None else group.members)
            self._watch_shared_ids(group or lost)
            self._watch_differences(group or lost)
            if group is not None:
                self._notify(group)
            else:
                for listener in self.on_left:
                    listener(name)

    def _notify(self, group: ConsumerGroup) -> None:
        """40: everybody in the group shares out its queues anew."""
        config = self.groups.get(group.name)
        if not self.settings.notify_consumer_ids_changed_enable or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        frame = wire.NOTIFY_CONSUMER_IDS_CHANGED.request(wire.GroupHeader(group.name), flag=ONEWAY).encode()
        for peer in group.members:
            if not peer.closed:
                peer.send(frame)

    # What upstream is silent about

    def _watch_length(self, group: str) -> None:
        length = len(retry_topic(group))
        if length > TOPIC_LENGTH_MAX:
            self.notices.warn(
                f"retry {group}",
                f"group {group[:40]}... has a name of {len(group)} characters. Its retry topic would have {length}, and the limit is "
                f"{TOPIC_LENGTH_MAX}: messages it fails to consume cannot be delivered again. Use a shorter name.",
            )

    def _watch_differences(self, group: ConsumerGroup) -> None:
        key = f"subscriptions of {group.name}"
        members = iter(group.members.values())
        first = next(members, None)
        other = next((member for member in members if first is not None and member.signature != first.signature), None)
        if first is None or other is None:
            self.notices.clear(key)
            return
        self.notices.warn(
            key,
            f"the members of group {group.name} subscribe to different things, so some messages reach nobody. {first} and {other}: "
            f"{'; '.join(differences(first, other))}. Give all members of a group the same topics and tags, or use two groups.",
        )

    def _watch_shared_ids(self, group: ConsumerGroup) -> None:
        """Broadcasting members share no queues, and Java gives those of one host one id by default: only clustering is watched."""
        seen: dict[str, Member] = {}
        shared: set[str] = set()
        if group.message_model is wire.MessageModel.CLUSTERING:
            for member in group.members.values():
                other = seen.setdefault(member.client_id, member)
                if other is not member and not other.peer.closed and not member.peer.closed:
                    shared.add(member.client_id)
                    self.notices.warn(
                        f"client id {member.client_id} in {group.name}",
                        f"two consumers of group {group.name} have the client id {member.client_id}: {other.peer.address} and "
                        f"{member.peer.address}. Both take the same queues and each message is consumed twice. "
                        "Give each its own instance name.",
                    )
        for client_id in sorted(self._shared_ids.pop(group.name, set()) - shared):
            self.notices.clear(f"client id {client_id} in {group.name}")
        if shared:
            self._shared_ids[group.name] = shared

    # Time

    def tick(self, now_ms: int) -> None:
        most = EXPIRED_MAX
        for calls in list(self._calls.values()):
            most -= calls.expire(now_ms, most)
            if not most:
                self.more_due = True
                return
        self.more_due = False
        self._may_notify = NOTIFIED_MAX
        self._remove_silent(now_ms)
        most = NAMES_A_TURN
        for host in list(self._waiting):
            if most > 0:
                most -= self._make_waiting(host, most)
        if now_ms < self._scan_due_ms:
            return
        self._scan_due_ms = now_ms + SCAN_MS
        self._calls = {peer: calls for peer, calls in self._calls.items() if len(calls)}
        oldest_ms = now_ms - self.settings.channel_expired_timeout_ms
        silent = self._silent
        for members in (*(group.members for group in self._consumers.values()), *self._producers.values()):
            silent.update({peer: member for peer, member in members.items() if member.heard_ms < oldest_ms})
        self._remove_silent(now_ms)

    def _remove_silent(self, now_ms: int) -> None:
        """Some of them a tick, but only one while groups wait to be looked at: restless clients must not keep the dead in."""
        self._look_at_smaller()
        for number in range(min(REMOVED_MAX, len(self._silent))):
            waiting = len(self._smaller) * LOOK_COST + sum(len(group.members) for group in self._smaller.values())
            if number and waiting >= self._may_notify:
                break
            peer, member = self._silent.popitem(last=False)
            if self._last_heard_ms(peer) != member.heard_ms:
                continue  # gone by itself, or heard of since
            log.info("client %s sent no heartbeat for %d s: removed", member, (now_ms - member.heard_ms) // 1000)
            self._forget(peer)
            peer.close(f"no heartbeat for {self.settings.channel_expired_timeout_ms // 1000} s")
        self._look_at_smaller()

    def _last_heard_ms(self, peer: Peer) -> int | None:
        """None: it is in no group."""
        found = [self._consumers[name].members[peer].heard_ms for name in self._consuming.get(peer, ())]
        found += [self._producers[name][peer].heard_ms for name in self._producing.get(peer, ())]
        return max(found, default=None)

    # Who is there?

    @answers(wire.GET_CONSUMER_LIST_BY_GROUP)
    def consumer_list(self, peer: Peer, command: Command) -> Command:
        name = wire.GET_CONSUMER_LIST_BY_GROUP.read_header(command).consumer_group
        group = self._consumers.get(name)
        if group is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name[:GROUP_LENGTH_MAX]}")
        return wire.GET_CONSUMER_LIST_BY_GROUP.reply(command, body=wire.ConsumerList(group.client_ids()))

    @answers(wire.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, peer: Peer, command: Command) -> Command:
        name = wire.GET_CONSUMER_CONNECTION_LIST.read_header(command).consumer_group
        group = self._consumers.get(name)
        if group is None:
            raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name[:GROUP_LENGTH_MAX]}] not online")
        body = wire.ConsumerConnection(
            connections(group.members.values()), group.subscriptions, group.consume_type, group.message_model, group.consume_from_where
        )
        return wire.GET_CONSUMER_CONNECTION_LIST.reply(command, body=body)

    @answers(wire.GET_PRODUCER_CONNECTION_LIST)
    def producer_connections(self, peer: Peer, command: Command) -> Command:
        name = wire.GET_PRODUCER_CONNECTION_LIST.read_header(command).producer_group
        members = self._producers.get(name)
        if members is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:GROUP_LENGTH_MAX]}] not exist")
        return wire.GET_PRODUCER_CONNECTION_LIST.reply(command, body=wire.ProducerConnection(connections(members.values())))

    @answers(wire.GET_ALL_PRODUCER_INFO)
    def all_producers(self, peer: Peer, command: Command) -> Command:
        started_ms = self.clock.now_ms() - self.clock.steady_ms()  # the wall clock's reading where the steady one began
        table = {
            name: [
                wire.ProducerInfo(
                    member.client_id, f"/{member.peer.address}", member.language, member.version, started_ms + member.heard_ms
                )  # with the slash that Java prints before an address
                for member in members.values()
            ]
            for name, members in self._producers.items()
        }
        return wire.GET_ALL_PRODUCER_INFO.reply(command, body=wire.ProducerTable(table))

    @answers(wire.CHECK_CLIENT_CONFIG)
    def check_client(self, peer: Peer, command: Command) -> Portions:
        """46: would this filter work here? Asked at a consumer's start. A large one is read elsewhere."""
        check_size(command, "subscription")
        read = partial(wire.CHECK_CLIENT_CONFIG.read_body, command)
        subscription = (read() if len(command.body) < LARGE else (yield from elsewhere(read))).subscription_data
        if not is_tag_type(subscription.expression_type):
            check_filter(subscription.expression_type, subscription.sub_string, self.settings)
        return command.reply()

    # Calls to a client

    @answers(GET_CONSUMER_RUNNING_INFO)
    def running_info(self, peer: Peer, command: Command) -> None:
        """307: the client itself knows; its answer is passed on."""
        header = GET_CONSUMER_RUNNING_INFO.read_header(command)
        self._pass_on(peer, command, header.consumer_group, header.client_id, command.fields, command.body)

    @answers(CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, peer: Peer, command: Command) -> None:
        """309: the record goes along."""
        header = CONSUME_MESSAGE_DIRECTLY.read_header(command)
        if header.msg_id is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the custom field <msgId> is null, which message is to be consumed?")
        _, offset = parse_offset_message_id(header.msg_id)
        record = self.record_at(offset, f"can not find message by the id, {header.msg_id}")
        fields = command.fields | {"brokerName": self.settings.broker_name}
        self._pass_on(peer, command, header.consumer_group, header.client_id or "", fields, record)

    def _pass_on(self, asker: Peer, command: Command, group: str, client_id: str, fields: dict[str, str], body: bytes) -> None:
        found = self._consumers.get(group)
        members = [] if found is None else found.members.values()
        member = next((member for member in members if member.client_id == client_id), None)
        if member is None or member.peer.closed:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group[:255]}> <{client_id[:255]}> not online")
        if member.version < V3_1_8:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT",
            )

        def answered(result: Command | RoquetError) -> None:
            if asker.closed or command.is_oneway:
                return
            if isinstance(result, Command):
                reply = command.reply(result.code, result.remark, unsigned(result.fields), result.body)
            elif isinstance(result, CallTimeout):
                reply = command.reply(ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: {result}")
            else:
                reply = command.reply(ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {result}")
            asker.send(reply.encode())

        self.call(member.peer, Command(command.code, unsigned(fields), body), answered)

    def call(self, peer: Peer, command: Command, done: Done, timeout_ms: int = CALL_TIMEOUT_MS) -> None:
        """Ask a client. `done` is called exactly once, with its answer or the error. Raises Refused when too many wait already."""
        calls = self._calls.setdefault(peer, PendingCalls())
        if len(calls) >= CALLS_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"{len(calls)} calls to the client at {peer.address} wait for its answer: try later")
        command.opaque = calls.add(done, self.clock.steady_ms() + timeout_ms)
        peer.send(command.encode())

    def answer(self, peer: Peer, command: Command) -> bool:
        """A response came from this peer. False: nobody waits for it."""
        calls = self._calls.get(peer)
        return calls is not None and calls.answer(command)


def forget(table: dict[Peer, Names], peer: Peer, name: str) -> None:
    names = table.get(peer)
    if names is not None:
        names.pop(name, None)
        if not names:
            del table[peer]


def connections(members: Iterable[Member]) -> list[wire.Connection]:
    return [wire.Connection(member.client_id, member.peer.address, member.language, member.version) for member in members]


def check_size(command: Command, what: str) -> None:
    if len(command.body) > HEARTBEAT_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"{what} of {len(command.body)} bytes, limit is {HEARTBEAT_MAX}")


def read_heartbeat(command: Command) -> tuple[wire.HeartbeatBody, list[Signature]]:
    """What it says, and what each of its consumers subscribes to. Raises Refused. Looks at nothing else, so it may be done elsewhere."""
    body = wire.HEART_BEAT.read_body(command)
    for data in body.consumer_data_set:
        if len(data.subscription_data_set) > SUBSCRIPTIONS_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"group {data.group_name[:GROUP_LENGTH_MAX]} subscribes to {len(data.subscription_data_set)} topics, limit is "
                f"{SUBSCRIPTIONS_MAX}",
            )
        for one in data.subscription_data_set:
            check(one.topic, "topic", RETRY_TOPIC_LENGTH_MAX)
            if len(one.sub_string) > EXPRESSION_LENGTH_MAX:
                text = f"the expression for {one.topic} has {len(one.sub_string)} characters, limit is {EXPRESSION_LENGTH_MAX}"
                raise Refused(ResponseCode.SYSTEM_ERROR, text)
    return body, [signature_of(data) for data in body.consumer_data_set]


def update_subscriptions(group: ConsumerGroup, fresh: list[wire.SubscriptionData]) -> bool:
    """Take over what a heartbeat says. True when a topic came or went; a newer version of a known one is no change."""
    table = group.subscriptions
    changed = False
    for subscription in fresh:
        known = table.get(subscription.topic)
        if known is None or subscription.sub_version > known.sub_version:
            table[subscription.topic] = subscription
            changed = changed or known is None
    gone = table.keys() - {subscription.topic for subscription in fresh}
    for topic in gone:
        del table[topic]
    return changed or bool(gone)


def signature_of(data: wire.ConsumerData) -> Signature:
    return frozenset(
        (one.topic, one.expression_type or "TAG", " || ".join(sorted(one.tags_set)) if one.tags_set else one.sub_string or "*")
        for one in data.subscription_data_set
    )


def differences(one: Member, other: Member) -> list[str]:
    """In words, the first few."""
    mine = {topic: (kind, expression) for topic, kind, expression in one.signature}
    theirs = {topic: (kind, expression) for topic, kind, expression in other.signature}
    found: list[str] = []
    for topic in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(topic), theirs.get(topic)
        if left == right:
            continue
        if len(found) == DIFFERENCES_MAX:
            found.append("and more")
            break
        if left is None or right is None:
            found.append(f"only {(one if right is None else other).client_id} subscribes to {topic}")
        else:
            found.append(f"{topic} with {shown(left)} here and {shown(right)} there")
    return found


def shown(expression: tuple[str, str]) -> str:
    kind, text = expression
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"'{text}'" if kind == "TAG" else f"{kind} '{text}'"
