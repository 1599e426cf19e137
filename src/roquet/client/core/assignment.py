"""Assignment: which queues of a topic this member reads. Every member works it out alone from the same two lists.

The members come from a broker (GET_CONSUMER_LIST_BY_GROUP), the queues from the route. When the members cannot be
learned, or the broker does not list us yet, we keep what we have: giving it up would only make others repeat our work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from roquet.client.core.instance import ClientCore, Finished
from roquet.client.core.routes import TopicRoute
from roquet.errors import Rejected, RoquetError
from roquet.message import MessageQueue
from roquet.routing.assign import Strategy
from roquet.wire.calls.members import ConsumerList, GroupHeader
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command
from roquet.wire.headers import encode

log = logging.getLogger(__name__)

RETRY_MS = 1_000

Planned = Callable[[set[MessageQueue] | None], None]
"""The queues to read from now on; None: unknown, keep what there is."""


def diff(held: Collection[MessageQueue], wanted: Collection[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """(to let go, to take), each sorted."""
    return sorted(set(held) - set(wanted)), sorted(set(wanted) - set(held))


class Assignment:
    def __init__(self, client: ClientCore, group: str, *, strategy: Strategy, broadcasting: bool) -> None:
        self.client = client
        self.group = group
        self.strategy = strategy
        self.broadcasting = broadcasting

    def plan(self, topic: str, done: Planned, *, unlisted: Finished, unreachable: Finished) -> None:
        """Before `done(None)`, `unlisted` is called when the broker does not know us as a member yet, `unreachable` when it
        could not be asked."""
        route = self.client.routes.get(topic)
        if route is None:
            done(None)
            return
        queues = list(route.read_queues)
        if self.broadcasting:
            done(set(queues))
            return
        address = self._somebody(route)
        if address is None:
            done(None)
            return

        def answered(result: Command | RoquetError) -> None:
            if isinstance(result, RoquetError):
                log.info("! members of group %s are not known: %s", self.group, result)
                (unlisted if isinstance(result, Rejected) else unreachable)()  # code 1: "no consumer for this group"
                done(None)
                return
            try:
                members = ConsumerList.decode(result.body).consumer_id_list
                mine = self.strategy(self.group, self.client.client_id, queues, members)
            except Exception as error:  # an answer that cannot be read, or a strategy of the user's
                log.error("! group %s cannot share the queues of %s: %s", self.group, topic, error)
                done(None)
                return
            if self.client.client_id not in members:
                unlisted()
                done(None)
                return
            done(set(mine))

        self.client.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, encode(GroupHeader(consumer_group=self.group)), answered)

    def _somebody(self, route: TopicRoute) -> str | None:
        """A broker of the topic, at random: every one knows all members, since heartbeats go to all."""
        brokers = [broker for broker in route.info.broker_datas if broker.broker_addrs]
        if not brokers:
            return None
        addresses = self.client.random.choice(brokers).broker_addrs
        return addresses.get(0) or addresses[self.client.random.choice(sorted(addresses))]
