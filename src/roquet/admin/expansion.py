"""A new broker gets what the others have: topics, groups, accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from roquet.admin.asking import Asking, Broker, gather_bounded
from roquet.client.core.tasks import Tasks
from roquet.client.running import finished
from roquet.errors import ClientError, Refused, Rejected, RoquetError
from roquet.routing.expansion import ORDER_TOPICS, Holdings, Plan, look, plan
from roquet.routing.talks import Talk
from roquet.wire.calls import access, groups, topics
from roquet.wire.calls.brokers import GET_KVLIST_BY_NAMESPACE, NamespaceHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import DEFAULT_TOPIC

T = TypeVar("T")

BUSY_S = 1.0
"""A broker that takes no more new names now (newNamesPerSecond) is asked again after this time."""
BUSY_TRIES = 120


class Expansion(Asking):
    async def plan_expansion(
        self, broker: str, *, sources: Sequence[str] = (), topics: Collection[str] = (), overwrite: bool = False
    ) -> Plan:  # fmt: skip
        """What the broker of this name lacks of what the others of its cluster have, or of what those named in `sources` have.

        `topics`: these are copied too although a rule leaves them out. `overwrite`: what it has otherwise is changed to theirs.
        Raises ClientError when there is no other broker, or none has a topic that is named."""
        (new,) = await self.masters_named([broker])
        others = [one for one in await self.masters(new.cluster) if one.name != broker]
        if sources:
            others = [one for one in await self.masters_named(sources, new.cluster) if one.name != broker]
        if not others:
            raise ClientError(f"{broker} is the only broker of cluster {new.cluster}: there is nothing to copy from")
        found = {one.name: await self._holdings(one) for one in others}
        missing = [name for name in topics if not any(name in one.topics for one in found.values())]
        if missing:
            raise ClientError(f"no broker of {', '.join(found)} has a topic {missing[0]!r}; see which there are: roquet topic list")
        names = {one.name for one in await self.brokers()} | {one.cluster for one in await self.brokers()}
        ordered = await self._ordered()
        return plan(found, await self._holdings(new), own_names=names, ordered=ordered, named=topics, overwrite=overwrite)

    async def expand(self, broker: str, found: Plan, *, overwrite: bool = False) -> None:
        """Make all of a plan on the broker: accounts, then groups, then topics. `overwrite`: as it was planned. Doing it again, or going on
        after a failure, is safe."""
        (new,) = await self.masters_named([broker])
        for account in found.accounts:
            await self.call(new.address, access.UPDATE_AND_CREATE_ACL_CONFIG, account_header(account))
        if found.white:
            header = access.WhiteAddressesHeader(",".join(found.white))
            await self.call(new.address, access.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)
        await gather_bounded(range(len(found.groups)), lambda number: self._make_group(new, found.groups[number]))
        await gather_bounded(range(len(found.topics)), lambda number: self._make_topic(new, found.topics[number], overwrite))

    async def _make_group(self, broker: Broker, group: groups.GroupConfig) -> None:
        await self._patiently(broker, lambda: self.call(broker.address, groups.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))

    async def _make_topic(self, broker: Broker, topic: topics.TopicConfig, overwrite: bool) -> None:
        header = topics.CreateTopicHeader(
            topic=topic.topic_name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_filter_type=topic.topic_filter_type,
            order=topic.order,
            topic_sys_flag=topic.topic_sys_flag,
            only_if_absent=None if overwrite else True,
        )
        await self._patiently(broker, lambda: self.call(broker.address, topics.UPDATE_AND_CREATE_TOPIC, header))

    async def _patiently(self, broker: Broker, ask: Callable[[], Awaitable[object]]) -> None:
        for _ in range(BUSY_TRIES):
            try:
                await ask()
                return
            except Rejected as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
            await asyncio.sleep(BUSY_S)
        raise ClientError(f"{broker.name} has been too busy for {BUSY_TRIES * BUSY_S:g} s; run the command again, it goes on where it was")

    async def _ordered(self) -> Collection[str]:
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self.ask(GET_KVLIST_BY_NAMESPACE, NamespaceHeader(ORDER_TOPICS), accept=accept)
        return answer.body.table if answer.ok else ()

    async def _holdings(self, broker: Broker) -> Holdings:
        return await self._follow(look(broker.address, self.connection.credentials))

    async def _follow(self, talk: Talk[T]) -> T:
        answer: Command | RoquetError | None = None
        while True:
            try:
                asked = talk.throw(answer) if isinstance(answer, RoquetError) else next(talk) if answer is None else talk.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            except Refused as refused:
                raise Rejected(refused.code, refused.remark) from None
            try:
                answer = await finished(Tasks(), self._exchange(*asked))
            except RoquetError as error:
                answer = error


def account_header(account: access.PlainAccessConfig) -> access.AccountHeader:
    return access.AccountHeader(
        account.access_key,
        account.secret_key,
        account.white_remote_address or None,
        account.admin,
        account.default_topic_perm,
        account.default_group_perm,
        ",".join(account.topic_perms) or None,
        ",".join(account.group_perms) or None,
    )
