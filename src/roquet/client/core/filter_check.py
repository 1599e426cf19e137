"""46: asking the brokers of a topic whether they take its SQL filter, before the first pull. As upstream's consumers do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from roquet.client.core.instance import ClientCore
from roquet.client.core.routes import TopicRoute
from roquet.errors import Rejected, RoquetError
from roquet.routing.subscription import is_tag_type
from roquet.wire.calls.members import CheckClientBody, SubscriptionData
from roquet.wire.codes import RequestCode
from roquet.wire.command import Command

log = logging.getLogger(__name__)


def check_filters(
    client: ClientCore, group: str, subscriptions: Iterable[SubscriptionData], done: Callable[[Rejected | None], None]
) -> None:
    """`done` gets the first refusal, or None. Topics without a route and brokers that do not answer are no reason to refuse."""
    filters = [one for one in subscriptions if not is_tag_type(one.expression_type)]
    left = len(filters)
    refusal: Rejected | None = None
    if not left:
        done(None)

    def finished() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done(refusal)

    def answered(address: str, result: Command | RoquetError) -> None:
        nonlocal refusal
        if isinstance(result, Rejected):
            refusal = refusal or result
        elif isinstance(result, RoquetError):
            log.warning("! group %s could not ask %s about its filter: %s", group, address, result)
        finished()

    def known(subscription: SubscriptionData, result: TopicRoute | RoquetError) -> None:
        nonlocal left
        addresses: list[str] = []
        if isinstance(result, TopicRoute):
            names = dict.fromkeys(queue.broker_name for queue in result.read_queues)
            found = [client.routes.reader(name) for name in names]
            addresses = [one[0] for one in found if one is not None]
        left += len(addresses)
        body = CheckClientBody(client.client_id, group, subscription).encode()
        for address in addresses:
            client.call(address, RequestCode.CHECK_CLIENT_CONFIG, {}, partial(answered, address), body=body)
        finished()

    for one in filters:
        client.routes.fetch(one.topic, partial(known, one))
