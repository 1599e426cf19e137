"""Topics, made and looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from roquet.admin.asking import Asking, Broker
from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.wire.calls import routes as route_calls
from roquet.wire.calls import topics as topic_calls
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.names import DEFAULT_TOPIC

ROUTE_WAIT_MS = 5_000
"""How long create_topic waits until the name servers show the topic on every broker that made it."""


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


class Topics(Asking):
    async def topic_names(self) -> list[str]:
        """Every topic that the name server knows, system topics included, sorted."""
        return sorted((await self.ask(topic_calls.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).body.topic_list)

    async def topic_names_of_cluster(self, cluster: str) -> list[str]:
        """Every topic of one cluster, sorted."""
        return sorted((await self.ask(topic_calls.GET_TOPICS_BY_CLUSTER, topic_calls.ClusterHeader(cluster))).body.topic_list)

    async def topic_table(self, address: str) -> topic_calls.TopicTable:
        """Every topic that one broker has."""
        return (await self.call(address, topic_calls.GET_ALL_TOPIC_CONFIG)).body

    async def topic_status(self, topic: str) -> list[QueueStatus]:
        """Every queue of the topic on every master that has it, in order."""
        answers = await self._from_all(await self.masters_with(topic), topic_calls.GET_TOPIC_STATS_INFO, topic_calls.TopicHeader(topic))
        found = [
            QueueStatus(queue, offsets.min_offset, offsets.max_offset, offsets.last_update_timestamp)
            for answer in answers.values()
            for queue, offsets in answer.body.offset_table.items()
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
        brokers: Sequence[str] = (),
    ) -> list[Broker]:
        """Create or change a topic on every master of the cluster at once, or on those of these names; the masters that have it.

        Returns when every name server shows it on all of them, so that a client which starts now sees the whole topic
        and not the part that was registered first.
        """
        header = topic_calls.CreateTopicHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=read_queues,
            write_queue_nums=write_queues,
            perm=int(perm),
            topic_filter_type="SINGLE_TAG",
            order=order,
            topic_sys_flag=0,
        )
        masters = await self.masters_named(brokers, cluster) if brokers else await self.masters(cluster)
        await self._on_all(masters, f"topic {topic!r}", topic_calls.UPDATE_AND_CREATE_TOPIC, header)
        await self._until_routed(topic, {broker.name for broker in masters})
        return masters

    async def _until_routed(self, topic: str, names: set[str]) -> None:
        deadline = asyncio.get_running_loop().time() + ROUTE_WAIT_MS / 1000
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        for address in self.name_server_addresses:
            while True:
                answer = await self.call(address, route_calls.GET_ROUTEINFO_BY_TOPIC, route_calls.RouteHeader(topic, True), accept=accept)
                shown = {queues.broker_name for queues in answer.body.queue_datas} if answer.ok else set()
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
        await self._on_all(masters, f"topic {topic!r}", topic_calls.DELETE_TOPIC_IN_BROKER, topic_calls.DeleteTopicHeader(topic))
        await self._on_name_servers(topic_calls.DELETE_TOPIC_IN_NAMESRV, topic_calls.DeleteTopicHeader(topic, cluster))
        return masters

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that consume it or have offsets in it."""
        answers = await self._from_all(
            await self.masters_with(topic), topic_calls.QUERY_TOPIC_CONSUME_BY_WHO, topic_calls.TopicHeader(topic)
        )
        return sorted({group for answer in answers.values() for group in answer.body.group_list})
