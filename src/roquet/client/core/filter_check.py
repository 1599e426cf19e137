"""46: asking the brokers of a topic whether they take its SQL filter, before the first pull. As upstream's consumers do."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from roquet.client.core.instance import ClientCore
from roquet.errors import ClientError, Rejected, RoquetError
from roquet.routing import sql92
from roquet.routing.subscription import is_tag_type, sql_subscription, subscribe
from roquet.wire.calls.members import CHECK_CLIENT_CONFIG, CheckClientBody, SubscriptionData

log = logging.getLogger(__name__)


def filter_of(topic: str, tags: str = "*", sql: str | None = None, version: int = 0) -> SubscriptionData:
    """A subscription by tags, or by SQL in their place. Raises BadExpression; for `sql` it is BadSql, with the place."""
    if sql is None:
        return subscribe(topic, tags, version)
    check_sql(tags, sql)
    return sql_subscription(topic, sql, version)


def check_subscription(topic: object, tags: object) -> None:
    """Raises ClientError for what is no text: a function, where the decorator was given no topic, or a list of tags."""
    if not isinstance(topic, str):
        given = getattr(topic, "__name__", None) or repr(topic)
        raise ClientError(f'the topic is {given}, a {type(topic).__name__}; expected is a text: @consumer.on("topic"), subscribe("topic")')
    if tags is not None and not isinstance(tags, str):
        raise ClientError(f'tags is {tags!r}; expected is one text: "*" for all messages, or "a || b" for some')


def check_sql(tags: str, sql: str) -> None:
    """Raises BadSql here and now: the brokers would only say so at the start."""
    if tags != "*":
        raise ClientError(f"both tags={tags!r} and sql={sql[:80]!r}; filter by one, the tag is the property TAGS in SQL: TAGS = 'a'")
    sql92.compiled(sql)


async def check_filters(client: ClientCore, group: str, subscriptions: Iterable[SubscriptionData]) -> Rejected | None:
    """The first refusal, or None. Topics without a route and brokers that do not answer are no reason to refuse."""
    filters = [one for one in subscriptions if not is_tag_type(one.expression_type)]
    refusals = await client.tasks.each(_check(client, group, one) for one in filters)
    return next((one for one in refusals if isinstance(one, Rejected)), None)


async def _check(client: ClientCore, group: str, subscription: SubscriptionData) -> Rejected | None:
    try:
        route = await client.routes.fetch(subscription.topic)
    except RoquetError:
        return None
    names = dict.fromkeys(queue.broker_name for queue in route.read_queues)
    addresses = [found[0] for found in map(client.routes.reader, names) if found is not None]
    body = CheckClientBody(client.client_id, group, subscription)
    answers = await client.tasks.each(client.call(address, CHECK_CLIENT_CONFIG, body=body) for address in addresses)
    refusal = None
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, Rejected):
            refusal = refusal or answer
        elif isinstance(answer, RoquetError):
            log.warning("! group %s could not ask %s about its filter: %s", group, address, answer)
    return refusal
