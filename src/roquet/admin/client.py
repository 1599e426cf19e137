"""Every administrative call, typed.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", read_queues=8, write_queues=8)
        for queue in await admin.progress("billing"):
            print(queue.queue, queue.lag)

What concerns a whole cluster goes to all its masters at once and is joined here; what concerns one server takes its
address. A server's refusal is Rejected with its code; a cluster-wide change that only some brokers made is PartlyDone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal, TypeVar

from roquet.client.core.failures import rejected
from roquet.client.core.name_servers import NameServers, parse_name_servers
from roquet.errors import ClientError, NoRoute, Refused, Rejected, RoquetError
from roquet.message import MessageQueue, Property, ReceivedMessage, host_text
from roquet.net.caller import AsyncCaller
from roquet.properties import parse_properties
from roquet.wire import headers
from roquet.wire.calls.groups import DeleteGroupHeader, GroupConfig, GroupTable
from roquet.wire.calls.kv import KvHeader, KvResponseHeader, KvTable, NamespaceHeader
from roquet.wire.calls.members import ConsumerConnection, GroupHeader, ProducerConnection, ProducerGroupHeader
from roquet.wire.calls.offsets import CloneOffsetHeader, QueryOffsetHeader, UpdateOffsetHeader
from roquet.wire.calls.progress import ConsumeStats, ConsumeStatsHeader
from roquet.wire.calls.queries import QueryMessageHeader, ViewMessageHeader
from roquet.wire.calls.queues import OffsetResponseHeader, QueueHeader, SearchOffsetHeader
from roquet.wire.calls.resets import ConsumerStatusBody, ConsumerStatusHeader, ResetOffsetBody, ResetOffsetHeader
from roquet.wire.calls.routes import AddPermResponseHeader, BrokerNameHeader, ClusterInfo, RouteHeader, RouteInfo, WipePermResponseHeader
from roquet.wire.calls.sends import RecallMessageHeader
from roquet.wire.calls.topics import (
    ClusterHeader,
    CreateTopicHeader,
    DeleteTopicHeader,
    GroupList,
    TopicHeader,
    TopicList,
    TopicStats,
    TopicTable,
)
from roquet.wire.calls.transactions import ResumeCheckHeader
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.names import DEFAULT_TOPIC
from roquet.wire.record import decode_readable, decode_records

T = TypeVar("T")
K = TypeVar("K")

MASTER = 0
FAR_FUTURE_MS = (1 << 63) - 1
AT_ONCE_MAX = 32
"""Calls under way at a time when many are needed (the progress of every group, say)."""
ROUTE_WAIT_MS = 5_000
"""How long create_topic waits until the name servers show the topic on every broker that made it."""


class PartlyDone(ClientError):
    """Some brokers did it and some did not. `failed` says which and why; doing it again is safe."""

    def __init__(self, text: str, failed: Mapping[str, RoquetError]) -> None:
        super().__init__(text)
        self.failed = dict(failed)


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue of a topic as its broker has it."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_timestamp: int
    """ms; 0: nothing in it."""

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """How far a group is in one queue."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    """When the last consumed message was stored, ms; 0: not known."""

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class QueueMove:
    """Where a group goes on in one queue, and where it was; None: it had not read there."""

    queue: MessageQueue
    consumed: int | None
    target: int


@dataclass(frozen=True, slots=True)
class ProgressReset:
    group: str
    topic: str
    moves: list[QueueMove]
    members: list[str]
    """Client ids of the members that were told; empty: the offsets were committed."""


ResetTo = Literal["first", "last"] | datetime | int
"""The first or the end of what is there, a time, or a queue offset."""


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a consumer group by broker name: each member should be connected to every broker."""

    by_broker: dict[str, ConsumerConnection]

    def client_ids(self) -> list[str]:
        return sorted({one.client_id for connection in self.by_broker.values() for one in connection.connection_set})


class Admin:
    """Belongs to the event loop it is entered in. Connections are made on first use and kept until it is closed."""

    def __init__(self, namesrv: str | Sequence[str], *, timeout_ms: int = 5_000) -> None:
        self.name_server_addresses = parse_name_servers(namesrv)
        self.timeout_ms = timeout_ms
        self._caller: AsyncCaller | None = None
        self._name_servers: NameServers | None = None

    async def __aenter__(self) -> Admin:
        self._caller = AsyncCaller()
        self._name_servers = NameServers(self.name_server_addresses, self._caller, random.Random())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._caller is not None:
            await self._caller.close()

    # -- the cluster

    async def cluster(self) -> ClusterInfo:
        return ClusterInfo.decode((await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)

    async def brokers(self, cluster: str | None = None) -> list[Broker]:
        """Every broker that the name server knows now, sorted by cluster, name and id."""
        found = [
            Broker(data.cluster, data.broker_name, broker_id, address)
            for data in (await self.cluster()).broker_addr_table.values()
            for broker_id, address in data.broker_addrs.items()
            if cluster is None or data.cluster == cluster
        ]
        if cluster is not None and not found:
            raise ClientError(f"no broker of cluster {cluster!r} is registered; see which are: roquet status")
        return sorted(found)

    async def masters(self, cluster: str | None = None) -> list[Broker]:
        found = [broker for broker in await self.brokers(cluster) if broker.is_master]
        if not found:
            names = ", ".join(self.name_server_addresses)
            raise ClientError(f"no broker is registered with {names}; start one (roquet broker -n {self.name_server_addresses[0]})")
        return found

    async def until_registered(self, names: Iterable[str], *, timeout_s: float = 10.0) -> None:
        """Wait until every name server knows a master of each of these brokers: what listens is not yet known to clients."""
        wanted = set(names)
        deadline = asyncio.get_running_loop().time() + timeout_s
        for address in self.name_server_addresses:
            while True:
                info = ClusterInfo.decode((await self.call(address, RequestCode.GET_BROKER_CLUSTER_INFO)).body)
                missing = wanted - {name for name, data in info.broker_addr_table.items() if MASTER in data.broker_addrs}
                if not missing:
                    break
                if asyncio.get_running_loop().time() > deadline:
                    raise ClientError(f"{address} does not know {', '.join(sorted(missing))} after {timeout_s:g} s; see the brokers' logs")
                await asyncio.sleep(0.01)

    # -- topics

    async def topic_names(self) -> list[str]:
        return sorted(TopicList.decode((await self.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body).topic_list)

    async def topic_names_of_cluster(self, cluster: str) -> list[str]:
        answer = await self.ask(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader(cluster))
        return sorted(TopicList.decode(answer.body).topic_list)

    async def route(self, topic: str) -> RouteInfo:
        """Raises NoRoute when no name server knows the topic."""
        try:
            answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic, True))
        except Rejected as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise NoRoute(f"no name server knows the topic {topic!r}") from None
            raise
        return RouteInfo.decode(answer.body)

    async def topic_table(self, address: str) -> TopicTable:
        """Every topic that one broker has."""
        return TopicTable.decode((await self.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body)

    async def topic_status(self, topic: str) -> list[QueueStatus]:
        """Every queue of the topic on every master that has it, in order."""
        masters = masters_of(await self.route(topic))

        async def one(address: str) -> TopicStats:
            return TopicStats.decode((await self.call(address, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(topic))).body)

        answers = await self._from_all(masters, one)
        found = [
            QueueStatus(queue, offsets.min_offset, offsets.max_offset, offsets.last_update_timestamp)
            for stats in answers.values()
            for queue, offsets in stats.offset_table.items()
        ]
        return sorted(found, key=lambda status: status.queue)

    async def create_topic(
        self,
        topic: str,
        *,
        read_queues: int = 8,
        write_queues: int = 8,
        perm: int = Perm.READ | Perm.WRITE,
        order: bool = False,
        cluster: str | None = None,
    ) -> list[Broker]:
        """Create or change a topic on every master of the cluster at once; the masters that have it.

        Returns when every name server shows it on all of them, so that a client which starts now sees the whole topic
        and not the part that was registered first.
        """
        header = CreateTopicHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=int(perm),
            topic_filter_type="SINGLE_TAG",
            order=order,
            topic_sys_flag=0,
        )
        masters = await self.masters(cluster)
        await self._on_all(masters, f"topic {topic!r}", lambda address: self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header))
        await self._until_routed(topic, {broker.name for broker in masters})
        return masters

    async def _until_routed(self, topic: str, names: set[str]) -> None:
        deadline = asyncio.get_running_loop().time() + ROUTE_WAIT_MS / 1000
        for address in self.name_server_addresses:
            while True:
                answer = await self.call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic, True), accept=(0, 17))
                shown = {queues.broker_name for queues in RouteInfo.decode(answer.body).queue_datas} if answer.code == 0 else set()
                if names <= shown:
                    break
                if asyncio.get_running_loop().time() > deadline:
                    missing = ", ".join(sorted(names - shown))
                    raise ClientError(
                        f"{topic!r} was made, but {address} does not show it on {missing} yet; look again: roquet topic route {topic}"
                    )
                await asyncio.sleep(0.02)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[Broker]:
        """Delete it from every master of the cluster, then from every name server. Its messages are gone for consumers."""
        masters = await self.masters(cluster)
        header = DeleteTopicHeader(topic)
        await self._on_all(masters, f"topic {topic!r}", lambda address: self.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header))
        everywhere = DeleteTopicHeader(topic, cluster)
        await self._of_name_servers(RequestCode.DELETE_TOPIC_IN_NAMESRV, everywhere)
        return masters

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that consume it or have offsets in it."""

        async def one(address: str) -> GroupList:
            return GroupList.decode((await self.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader(topic))).body)

        answers = await self._from_all(masters_of(await self.route(topic)), one)
        return sorted({group for found in answers.values() for group in found.group_list})

    # -- groups

    async def groups(self, cluster: str | None = None) -> dict[str, GroupConfig]:
        """Every consumer group of the cluster, by name."""

        async def one(address: str) -> GroupTable:
            return GroupTable.decode((await self.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body)

        answers = await self._from_all(by_address(await self.masters(cluster)), one)
        found = {name: config for table in answers.values() for name, config in table.subscription_group_table.items()}
        return dict(sorted(found.items()))

    async def create_group(self, config: GroupConfig, *, cluster: str | None = None) -> list[Broker]:
        """Create or change a group on every master of the cluster at once."""
        masters = await self.masters(cluster)
        body = config.encode()
        await self._on_all(
            masters,
            f"group {config.group_name!r}",
            lambda address: self.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body),
        )
        return masters

    async def delete_group(self, group: str, *, remove_offsets: bool = False, cluster: str | None = None) -> list[Broker]:
        masters = await self.masters(cluster)
        header = DeleteGroupHeader(group, remove_offsets, remove_offsets)
        await self._on_all(masters, f"group {group!r}", lambda address: self.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header))
        return masters

    async def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """How far the group is in every queue it has read, in order. Empty: it has read nothing yet."""
        header = ConsumeStatsHeader(group, topic)

        async def one(address: str) -> ConsumeStats | None:
            try:
                return ConsumeStats.decode((await self.call(address, RequestCode.GET_CONSUME_STATS, header)).body)
            except Rejected as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return None  # this broker has no queue of it
                raise

        answers = await self._from_all(by_address(await self.masters()), one)
        found = [
            QueueProgress(queue, offsets.broker_offset, offsets.consumer_offset, offsets.last_timestamp)
            for stats in answers.values()
            if stats is not None
            for queue, offsets in stats.offset_table.items()
        ]
        return sorted(found, key=lambda progress: progress.queue)

    async def progress_of_all(self, groups: Iterable[str]) -> dict[str, list[QueueProgress]]:
        return await gather_bounded(groups, self.progress)

    async def members(self, group: str) -> GroupMembers:
        """Who consumes in the group now, as each broker sees it. Nobody is an answer, not an error."""

        async def one(address: str) -> ConsumerConnection | None:
            answer = await self.call(
                address,
                RequestCode.GET_CONSUMER_CONNECTION_LIST,
                GroupHeader(group),
                accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
            )
            return ConsumerConnection.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None

        masters = await self.masters()
        answers = await self._from_all(by_address(masters), one)
        names = {broker.address: broker.name for broker in masters}
        return GroupMembers({names[address]: found for address, found in answers.items() if found is not None})

    async def members_of_all(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        return await gather_bounded(groups, self.members)

    async def producers(self, group: str) -> dict[str, ProducerConnection]:
        """Who produces in the group now, by broker name."""

        async def one(address: str) -> ProducerConnection | None:
            header = ProducerGroupHeader(group)
            # A group without producers is code 1 there: upstream has no code of its own for it.
            answer = await self.call(address, RequestCode.GET_PRODUCER_CONNECTION_LIST, header, accept=(0, 1))
            return ProducerConnection.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None

        masters = await self.masters()
        answers = await self._from_all(by_address(masters), one)
        names = {broker.address: broker.name for broker in masters}
        return {names[address]: found for address, found in answers.items() if found is not None}

    # -- offsets

    async def consumer_offset(self, group: str, queue: MessageQueue) -> int | None:
        """The queue offset the group reads next; None when it has none."""
        header = QueryOffsetHeader(group, queue.topic, queue.queue_id)
        answer = await self.call(
            await self.master_of(queue),
            RequestCode.QUERY_CONSUMER_OFFSET,
            header,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return headers.decode(OffsetResponseHeader, answer.fields).offset if answer.code == ResponseCode.SUCCESS else None

    async def set_consumer_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Members that are running keep their own position; stop them first."""
        header = UpdateOffsetHeader(group, queue.topic, queue.queue_id, offset)
        await self.call(await self.master_of(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def reset_progress(
        self, group: str, topic: str, to: ResetTo, *, queue_id: int | None = None, dry_run: bool = False
    ) -> ProgressReset:
        """Let a group read a topic again, or skip a part of it: from its first or last message, from a time, or from an offset.

        Members that run are told by their broker and go there; they commit it within seconds. Without members the offsets
        are committed here. Members cannot be told of one queue or of an offset: raises ClientError while any are running.
        """
        found = [one for one in await self.topic_status(topic) if queue_id is None or one.queue.queue_id == queue_id]
        if not found:
            raise ClientError(f"topic {topic!r} has no queue {queue_id}; see which it has: roquet topic status {topic}")
        consumed = {one.queue: one.consumer_offset for one in await self.progress(group, topic)}
        targets = await gather_bounded(found, lambda one: self._target(one, to))
        members = (await self.members(group)).client_ids()
        moves = [QueueMove(one.queue, consumed.get(one.queue), target) for one, target in targets.items()]
        if not dry_run and members:
            if queue_id is not None or not isinstance(to, str | datetime):
                raise ClientError(
                    f"group {group!r} has {len(members)} running members, and members can be told to move in all queues to a time only; "
                    f"stop them first ({', '.join(members[:3])}), or leave out the queue and the offset"
                )
            moves = await self._reset_members(group, topic, to, moves)
        elif not dry_run:
            await gather_bounded(moves, lambda move: self.set_consumer_offset(group, move.queue, move.target))
        return ProgressReset(group, topic, moves, members)

    async def _target(self, status: QueueStatus, to: ResetTo) -> int:
        if to == "first":
            return status.min_offset
        if to == "last":
            return status.max_offset
        if isinstance(to, datetime):
            return await self.search_offset(status.queue, int(to.timestamp() * 1000))
        if not isinstance(to, int) or not status.min_offset <= to <= status.max_offset:
            queue = status.queue
            raise ClientError(
                f"{to!r} is no offset of {queue.topic} {queue.queue_id} on {queue.broker_name}, which holds "
                f"{status.min_offset} to {status.max_offset}"
            )
        return to

    async def _reset_members(self, group: str, topic: str, to: str | datetime, moves: list[QueueMove]) -> list[QueueMove]:
        """222 to every broker; where the group has no member connected, its offsets are committed."""
        timestamp_ms = int(to.timestamp() * 1000) if isinstance(to, datetime) else {"first": 0, "last": -1}[to]
        header = ResetOffsetHeader(topic, group, timestamp_ms, True)

        async def one(address: str) -> dict[MessageQueue, int] | None:
            accept = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
            answer = await self.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, accept=accept)
            return ResetOffsetBody.decode(answer.body).offset_table if answer.code == ResponseCode.SUCCESS else None

        masters = masters_of(await self.route(topic))
        answers = await self._from_all(masters, one)
        told = {queue: offset for table in answers.values() if table is not None for queue, offset in table.items()}
        alone = {masters[address] for address, table in answers.items() if table is None}
        await gather_bounded(
            [move for move in moves if move.queue.broker_name in alone],
            lambda move: self.set_consumer_offset(group, move.queue, move.target),
        )
        return [QueueMove(move.queue, move.consumed, told.get(move.queue, move.target)) for move in moves]

    async def clone_progress(self, source: str, target: str, topic: str | None = None, *, offline: bool = True) -> list[Broker]:
        """Another group goes on from where this one is, in one topic or in all. Members of the target must not be running.

        `offline`: copy also topics that the running members of the source do not subscribe to any more.
        """
        members = (await self.members(target)).client_ids()
        if members:
            raise ClientError(
                f"group {target!r} has {len(members)} running members, which would write their own progress over the copy; "
                f"stop them first: {', '.join(members[:3])}"
            )
        masters = await self.masters()
        header = CloneOffsetHeader(source, target, topic, offline)
        await self._on_all(masters, f"progress of {target!r}", lambda address: self.call(address, RequestCode.CLONE_GROUP_OFFSET, header))
        return masters

    async def member_positions(self, group: str, topic: str, client_id: str | None = None) -> dict[str, dict[MessageQueue, int]]:
        """How far each running member says it is, by client id. Raises Rejected when a broker knows no member."""
        header = ConsumerStatusHeader(topic, group, client_id)

        async def one(address: str) -> ConsumerStatusBody:
            return ConsumerStatusBody.decode((await self.call(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)).body)

        found: dict[str, dict[MessageQueue, int]] = {}
        for status in (await self._from_all(masters_of(await self.route(topic)), one)).values():
            for name, positions in status.consumer_table.items():
                found.setdefault(name, {}).update(positions)
        return found

    async def resume_transaction(self, offset_message_id: str) -> None:
        """A message in TRANS_CHECK_MAX_TIME_TOPIC is prepared again, and its producer is asked about it."""
        try:
            host, _ = parse_offset_message_id(offset_message_id)
        except Refused as error:
            raise ClientError(error.remark) from None
        await self.call(host_text(host), RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHeader(offset_message_id))

    async def min_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.queue_id))

    async def max_offset(self, queue: MessageQueue) -> int:
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, QueueHeader(queue.topic, queue.queue_id))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first queue offset stored at that time or later."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: object) -> int:
        answer = await self.call(await self.master_of(queue), code, header)
        return headers.decode(OffsetResponseHeader, answer.fields).offset

    async def master_of(self, queue: MessageQueue) -> str:
        for address, name in masters_of(await self.route(queue.topic)).items():
            if name == queue.broker_name:
                return address
        raise NoRoute(f"no master of {queue.broker_name} is registered, which has {queue.topic} {queue.queue_id}")

    # -- messages

    async def view_message(self, offset_message_id: str) -> ReceivedMessage:
        """By the id that the broker made. Raises Rejected when there is no such message (any more)."""
        try:
            host, offset = parse_offset_message_id(offset_message_id)
        except Refused as error:
            raise ClientError(error.remark) from None
        address = host_text(host)
        answer = await self.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        found = [ReceivedMessage(record) for record in decode_records(answer.body)]
        if not found:
            raise ClientError(f"{address} answered without a message for {offset_message_id}")
        return found[0]

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = FAR_FUTURE_MS,
    ) -> list[ReceivedMessage]:
        """Messages with this key, oldest first."""
        header = QueryMessageHeader(topic, key, count_max, begin_ms, end_ms)
        return [message for message in await self._query(topic, header) if key in message.keys]

    async def query_by_unique_key(self, topic: str, unique_key: str) -> list[ReceivedMessage]:
        """The message with this producer's id; more than one when the producer sent it again."""
        header = QueryMessageHeader(topic, unique_key, 32, 0, FAR_FUTURE_MS, True)
        return [message for message in await self._query(topic, header) if message.properties.get(Property.UNIQUE_KEY) == unique_key]

    async def _query(self, topic: str, header: QueryMessageHeader) -> list[ReceivedMessage]:
        masters = masters_of(await self.route(topic))

        async def one(address: str) -> list[ReceivedMessage]:
            found = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
            answer = await self.call(address, RequestCode.QUERY_MESSAGE, header, accept=found)
            # The index knows hashes only: another key or topic may share one, so callers compare.
            records, _ = decode_readable(answer.body) if answer.code == ResponseCode.SUCCESS else ([], [])
            return [ReceivedMessage(record, masters[address]) for record in records if record.topic == topic]

        answers = await self._from_all(masters, one)
        # Within a millisecond the place in the log decides.
        every = [message for found in answers.values() for message in found]
        return sorted(every, key=lambda message: (message.store_timestamp, message.queue.broker_name, message.physical_offset))

    async def cancel(self, message_id: str) -> list[Broker]:
        """Cancel a pending timed message by its id (the producer's or the broker's) or its recall handle; the brokers that had it.

        Raises Rejected when none has such a message pending, with what a broker says about it.
        """
        header = RecallMessageHeader("roquet_admin", "", message_id)
        masters = await self.masters()

        async def one(address: str) -> Command:
            return await self.call(address, RequestCode.RECALL_MESSAGE, header, accept=(0, ResponseCode.QUERY_NOT_FOUND))

        answers = await self._from_all([broker.address for broker in masters], one)
        found = [broker for broker in masters if answers[broker.address].code == 0]
        if not found:
            address, answer = max(answers.items(), key=lambda pair: "already" in (pair[1].remark or ""))
            raise rejected(answer, address)
        return found

    # -- brokers

    async def runtime(self, address: str) -> dict[str, str]:
        """What a broker says of itself: version, rates, sizes, and its warnings under `roquetWarning_<n>`."""
        return KvTable.decode((await self.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)).body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        return parse_properties((await self.call(address, RequestCode.GET_BROKER_CONFIG)).body.decode())

    async def update_broker_config(self, address: str, pairs: Mapping[str, str]) -> None:
        """All or nothing: a refused key changes none of them."""
        await self.call(address, RequestCode.UPDATE_BROKER_CONFIG, body=properties_text(pairs))

    # -- name servers

    async def namesrv_config(self, address: str) -> dict[str, str]:
        return parse_properties((await self.call(address, RequestCode.GET_NAMESRV_CONFIG)).body.decode())

    async def update_namesrv_config(self, pairs: Mapping[str, str]) -> None:
        await self._of_name_servers(RequestCode.UPDATE_NAMESRV_CONFIG, body=properties_text(pairs))

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        await self._of_name_servers(RequestCode.PUT_KV_CONFIG, KvHeader(namespace, key, value))

    async def kv_get(self, namespace: str, key: str) -> str | None:
        answer = await self.ask(
            RequestCode.GET_KV_CONFIG, KvHeader(namespace, key), accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        )
        return headers.decode(KvResponseHeader, answer.fields).value

    async def kv_delete(self, namespace: str, key: str) -> None:
        await self._of_name_servers(RequestCode.DELETE_KV_CONFIG, KvHeader(namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader(namespace), accept=accept)
        return KvTable.decode(answer.body).table if answer.code == ResponseCode.SUCCESS else {}

    async def wipe_write_permission(self, broker_name: str) -> int:
        """Routes no longer offer the broker for writing, until it registers a change. How many topics that concerned."""
        answer = await self._of_name_servers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name))
        return headers.decode(WipePermResponseHeader, answer.fields).wipe_topic_count

    async def add_write_permission(self, broker_name: str) -> int:
        answer = await self._of_name_servers(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name))
        return headers.decode(AddPermResponseHeader, answer.fields).add_topic_count

    async def _of_name_servers(self, code: RequestCode, header: object | None = None, body: bytes = b"") -> Command:
        """A change, told to every name server, since they do not tell each other. The last one's answer."""
        answers = [await self.call(address, code, header, body=body) for address in self.name_server_addresses]
        return answers[-1]

    # -- asking

    async def ask(self, code: RequestCode, header: object | None = None, *, accept: Sequence[int] = (0,)) -> Command:
        """Ask the name servers: the next one when one does not answer."""
        if self._name_servers is None:
            raise ClientError("this Admin is not open; use it in `async with Admin(...) as admin:`")
        answered: asyncio.Future[tuple[str, Command | RoquetError]] = asyncio.get_running_loop().create_future()
        self._name_servers.ask(lambda: request(code, header), self.timeout_ms, lambda address, result: settle(answered, (address, result)))
        address, result = await answered
        return checked(result, address, accept)

    async def call(
        self, address: str, code: RequestCode, header: object | None = None, *, body: bytes = b"", accept: Sequence[int] = (0,)
    ) -> Command:
        """One request to one server. Raises Rejected for an answer whose code is not in `accept`."""
        if self._caller is None:
            raise ClientError("this Admin is not open; use it in `async with Admin(...) as admin:`")
        answered: asyncio.Future[Command | RoquetError] = asyncio.get_running_loop().create_future()
        self._caller.call(address, request(code, header, body), self.timeout_ms, lambda result: settle(answered, result))
        return checked(await answered, address, accept)

    async def _from_all(self, addresses: Iterable[str], one: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """Ask every address; any failure is the whole's, since a part would read like everything."""
        return await gather_bounded(addresses, one)

    async def _on_all(self, masters: Sequence[Broker], what: str, one: Callable[[str], Awaitable[object]]) -> None:
        """Change something on every master at once. One master's failure alone is raised as it is, else as PartlyDone."""
        results = await asyncio.gather(*(one(broker.address) for broker in masters), return_exceptions=True)
        failed: dict[str, RoquetError] = {}
        for broker, result in zip(masters, results, strict=True):
            if isinstance(result, RoquetError):
                failed[broker.name] = result
            elif isinstance(result, BaseException):
                raise result
        if not failed:
            return
        if len(failed) == len(masters) == 1:
            raise next(iter(failed.values()))
        done = ", ".join(broker.name for broker in masters if broker.name not in failed) or "none"
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise PartlyDone(f"{what} was changed on {done}, but not on {reasons}; mend that and do it again", failed)


def request(code: RequestCode, header: object | None = None, body: bytes = b"") -> Command:
    return Command(int(code), None if header is None else headers.encode(header), body, language="PYTHON")


def settle(future: asyncio.Future[K], value: K) -> None:
    if not future.done():  # the waiter may have been cancelled meanwhile
        future.set_result(value)


def checked(result: Command | RoquetError, address: str, accept: Sequence[int]) -> Command:
    if isinstance(result, RoquetError):
        raise result
    if result.code not in accept:
        raise rejected(result, address)
    return result


def masters_of(route: RouteInfo) -> dict[str, str]:
    """Master address -> broker name, of the brokers that have a topic."""
    return {data.broker_addrs[MASTER]: data.broker_name for data in route.broker_datas if MASTER in data.broker_addrs}


def by_address(brokers: Sequence[Broker]) -> dict[str, str]:
    return {broker.address: broker.name for broker in brokers}


def properties_text(pairs: Mapping[str, str]) -> bytes:
    for key, value in pairs.items():
        if "\n" in key or "\n" in value or "=" in key:
            raise ClientError(f"setting {key!r}={value!r} cannot be written as one key=value line")
    return "".join(f"{key}={value}\n" for key, value in pairs.items()).encode()


async def gather_bounded(keys: Iterable[K], one: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """{key: await one(key)}, at most AT_ONCE_MAX at a time, in the order of the keys."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def bounded(key: K) -> tuple[K, T]:
        async with slots:
            return key, await one(key)

    return dict(await asyncio.gather(*(bounded(key) for key in keys)))
