"""Consumer groups: made and looked at, how far they are, who is in them. Producer groups: who is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from roquet.admin.asking import Asking, Broker, by_address, gather_bounded
from roquet.message import MessageQueue
from roquet.wire.calls import groups as group_calls
from roquet.wire.calls import members as member_calls
from roquet.wire.calls import offsets as offset_calls
from roquet.wire.calls.call import Answered, Call, Header
from roquet.wire.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class QueueProgress:
    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    """When the last consumed message was stored, ms; 0: not known."""

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of a consumer group by broker name: each member should be connected to every broker."""

    by_broker: dict[str, member_calls.ConsumerConnection]

    def client_ids(self) -> list[str]:
        return sorted({one.client_id for connection in self.by_broker.values() for one in connection.connection_set})


class Groups(Asking):
    async def groups(self, cluster: str | None = None) -> dict[str, group_calls.GroupConfig]:
        """Every consumer group of the cluster, by name."""
        answers = await self._from_all(by_address(await self.masters(cluster)), group_calls.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        found = {name: config for answer in answers.values() for name, config in answer.body.subscription_group_table.items()}
        return dict(sorted(found.items()))

    async def create_group(self, config: group_calls.GroupConfig, *, cluster: str | None = None) -> list[Broker]:
        """Create or change a group on every master of the cluster at once."""
        masters = await self.masters(cluster)
        await self._on_all(masters, f"group {config.group_name!r}", group_calls.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        return masters

    async def delete_group(self, group: str, *, remove_offsets: bool = False, cluster: str | None = None) -> list[Broker]:
        """On every master. `remove_offsets`: its progress too. The brokers that did it."""
        masters = await self.masters(cluster)
        header = group_calls.DeleteGroupHeader(group, remove_offsets, remove_offsets)
        await self._on_all(masters, f"group {group!r}", group_calls.DELETE_SUBSCRIPTIONGROUP, header)
        return masters

    async def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """How far the group is in every queue it has read, in order. Empty: it has read nothing yet."""
        header = offset_calls.ConsumeStatsHeader(group, topic)
        stats = await self._by_broker(offset_calls.GET_CONSUME_STATS, header, ResponseCode.TOPIC_NOT_EXIST)
        found = [
            QueueProgress(queue, offsets.broker_offset, offsets.consumer_offset, offsets.last_timestamp)
            for one in stats.values()
            for queue, offsets in one.offset_table.items()
        ]
        return sorted(found, key=lambda progress: progress.queue)

    async def progress_of_all(self, groups: Iterable[str]) -> dict[str, list[QueueProgress]]:
        """`progress` of each group, a few at a time."""
        return await gather_bounded(groups, self.progress)

    async def members(self, group: str) -> GroupMembers:
        """Who consumes in the group now, as each broker sees it. Nobody is an answer, not an error."""
        call, header = member_calls.GET_CONSUMER_CONNECTION_LIST, member_calls.GroupHeader(group)
        return GroupMembers(await self._by_broker(call, header, ResponseCode.CONSUMER_NOT_ONLINE))

    async def members_of_all(self, groups: Iterable[str]) -> dict[str, GroupMembers]:
        """`members` of each group, a few at a time."""
        return await gather_bounded(groups, self.members)

    async def producers(self, group: str) -> dict[str, member_calls.ProducerConnection]:
        """Who produces in the group now, by broker name."""
        # A group without producers is code 1 there: upstream has no code of its own for it.
        call, header = member_calls.GET_PRODUCER_CONNECTION_LIST, member_calls.ProducerGroupHeader(group)
        return await self._by_broker(call, header, ResponseCode.SYSTEM_ERROR)

    async def _by_broker(self, call: Call[Header, Any, Any, Answered], header: Header, nothing: ResponseCode) -> dict[str, Answered]:
        """Every master's answer by broker name, without those that say with the code `nothing` that they have none."""
        masters = by_address(await self.masters())
        answers = await self._from_all(masters, call, header, accept=(ResponseCode.SUCCESS, nothing))
        return {masters[address]: answer.body for address, answer in answers.items() if answer.ok}
