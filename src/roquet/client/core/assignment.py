"""Assignment: which queues of a topic this member reads. Every member works it out alone from the same two lists.

The members come from a broker (GET_CONSUMER_LIST_BY_GROUP), the queues from the route. When the members cannot be
learned, or the broker does not list us yet, we keep what we have: giving it up would only make others repeat our work.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from roquet.client.core.instance import ClientCore
from roquet.client.core.resolver import TopicRoute
from roquet.errors import Rejected, RoquetError
from roquet.message import MessageQueue
from roquet.routing.assign import Strategy
from roquet.wire.calls.members import GET_CONSUMER_LIST_BY_GROUP, GroupHeader

log = logging.getLogger(__name__)

RETRY_MS = 1_000


class NotListed(RoquetError):
    """The broker does not know us as a member of the group yet."""


class NotReached(RoquetError):
    """The members could not be asked for."""


def diff(held: Collection[MessageQueue], wanted: Collection[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """(to let go, to take), each sorted."""
    return sorted(set(held) - set(wanted)), sorted(set(wanted) - set(held))


class Assignment:
    def __init__(self, client: ClientCore, group: str, *, strategy: Strategy, broadcasting: bool) -> None:
        self.client = client
        self.group = group
        self.strategy = strategy
        self.broadcasting = broadcasting

    async def plan(self, topic: str) -> set[MessageQueue] | None:
        """The queues to read from now on; None: unknown, keep what there is. Raises NotListed, or NotReached."""
        route = self.client.routes.get(topic)
        if route is None:
            return None
        queues = list(route.read_queues)
        if self.broadcasting:
            return set(queues)
        address = self._somebody(route)
        if address is None:
            return None
        try:
            answer = await self.client.call(address, GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self.group))
        except RoquetError as error:
            log.info("! members of group %s are not known: %s", self.group, error)
            raise (NotListed if isinstance(error, Rejected) else NotReached)(str(error)) from None  # code 1: "no consumer for this group"
        try:
            members = answer.body.consumer_id_list
            mine = self.strategy(self.group, self.client.client_id, queues, members)
        except Exception as error:  # an answer that cannot be read, or a strategy of the user's
            log.error("! group %s cannot share the queues of %s: %s", self.group, topic, error)
            return None
        if self.client.client_id not in members:
            raise NotListed(f"{address} does not know this client as a member of group {self.group!r} yet")
        return set(mine)

    def _somebody(self, route: TopicRoute) -> str | None:
        """A broker of the topic, at random: every one knows all members, since heartbeats go to all."""
        brokers = [broker for broker in route.info.broker_datas if broker.broker_addrs]
        if not brokers:
            return None
        addresses = self.client.random.choice(brokers).broker_addrs
        return addresses.get(0) or addresses[self.client.random.choice(sorted(addresses))]
