"""Finding messages and making topics: what any client may ask besides sending and consuming."""

from __future__ import annotations

from contextlib import suppress

from roquet.client.core.checks import valid
from roquet.client.core.failures import BadAnswer, rejected
from roquet.client.core.instance import LANGUAGE, ClientCore
from roquet.client.core.resolver import ASK_TIMEOUT_MS, masters_of, replica_of
from roquet.client.core.tasks import follow
from roquet.errors import ClientError, NoRoute, Refused, RoquetError
from roquet.message import Property, ReceivedMessage, host_text
from roquet.wire.calls.call import Answer, Records
from roquet.wire.calls.pulls import QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, QueryMessageHeader, QueryMessageResponseHeader, ViewMessageHeader
from roquet.wire.calls.routes import GET_BROKER_CLUSTER_INFO
from roquet.wire.calls.topics import UPDATE_AND_CREATE_TOPIC, CreateTopicHeader
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.ids import parse_offset_message_id
from roquet.wire.names import DEFAULT_TOPIC, check_topic
from roquet.wire.record import decode_readable, decode_records

QUERY_TIMEOUT_MS = 15_000
CREATE_TIMEOUT_MS = 5_000
FOREVER_MS = (1 << 63) - 1


class Queries:
    def __init__(self, client: ClientCore) -> None:
        self.client = client

    async def query_message(
        self, topic: str, key: str, *, count_max: int = 32, begin_ms: int = 0, end_ms: int = FOREVER_MS, unique: bool = False
    ) -> list[ReceivedMessage]:
        """Messages with this key, from every broker of the topic, oldest first. `unique`: the key is a message id."""
        header = QueryMessageHeader(
            topic=topic, key=key, max_num=count_max, begin_timestamp=begin_ms, end_timestamp=end_ms, unique_key_query=unique
        )
        route = await self.client.routes.fetch(topic)
        found_at = [(broker.broker_name, replica_of(broker.broker_addrs)) for broker in route.info.broker_datas]
        places = [(name, replica[0]) for name, replica in found_at if replica is not None]
        if not places:
            raise NoRoute(f"no broker of topic {topic!r} is known")
        found: list[ReceivedMessage] = []
        failures: list[RoquetError] = []
        answers = await self.client.tasks.each(self._query(address, header) for _, address in places)
        for (broker_name, address), answer in zip(places, answers, strict=True):
            if isinstance(answer, RoquetError):
                failures.append(answer)
            elif answer.ok:
                records, troubles = decode_readable(answer.body.data)
                found.extend(ReceivedMessage(record, broker_name) for record in records)
                failures.extend(BadAnswer(f"{address} sent a record that cannot be read: {trouble}") for trouble in troubles)
        # The index knows hashes; the real key decides here.
        real = [message for message in found if has_key(message, topic, key, unique)]
        if not real and failures:
            raise failures[0]
        return sorted(real, key=lambda message: message.store_timestamp)[-count_max:]

    async def _query(self, address: str, header: QueryMessageHeader) -> Answer[QueryMessageResponseHeader, Records]:
        accept = (0, ResponseCode.QUERY_NOT_FOUND)
        return await self.client.call(address, QUERY_MESSAGE, header, timeout_ms=QUERY_TIMEOUT_MS, accept=accept)

    async def view_message(self, message_id: str, *, topic: str | None = None) -> ReceivedMessage:
        """The message with this id. With a topic, the id may be the producer's; without, it must be the broker's (offset_message_id)."""
        if topic is None:
            return await self._view_by_offset(message_id)
        found = await self.query_message(topic, message_id, unique=True)
        if not found:
            raise ClientError(f"no message {message_id} in topic {topic!r}; it may be deleted, or the id of another topic")
        return found[-1]

    async def _view_by_offset(self, message_id: str) -> ReceivedMessage:
        try:
            host, offset = parse_offset_message_id(message_id)
            address = host_text(host)
        except Refused as refusal:
            raise ClientError(f"{refusal.remark}; to find a producer's id, give the topic too") from None
        answer = await self.client.call(address, VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset))
        try:
            [record] = decode_records(answer.body.data)
        except (RoquetError, ValueError) as error:
            raise BadAnswer(f"{address} sent no readable record for {message_id}: {error}") from None
        return ReceivedMessage(record, self.client.routes.broker_at(address))

    async def create_topic(self, topic: str, *, queues: int = 4, cluster: str | None = None, perm: int = 6) -> list[str]:
        """Create the topic, or change its queues, on every master (of the cluster). The names of the brokers."""
        valid(check_topic, topic)
        if not 1 <= queues <= 100_000:
            raise ClientError(f"queues={queues}; allowed are 1 to 100000")
        header = CreateTopicHeader(
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(Perm(perm)),
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        masters = await self._masters(cluster)
        results = await self.client.tasks.each(
            self.client.call(address, UPDATE_AND_CREATE_TOPIC, header, timeout_ms=CREATE_TIMEOUT_MS) for address in masters.values()
        )
        failures = [f"{name}: {result}" for name, result in zip(masters, results, strict=True) if isinstance(result, RoquetError)]
        if failures:
            raise ClientError(f"topic {topic!r} was not created everywhere ({'; '.join(failures)}); solve that and create it again")
        with suppress(RoquetError):  # it is created, whether or not we know the way there
            await self.client.routes.fetch(topic)
        return list(masters)

    async def _masters(self, cluster: str | None) -> dict[str, str]:
        """Broker name -> address, in order."""
        steps = self.client.name_servers.ask(lambda: GET_BROKER_CLUSTER_INFO.request(language=LANGUAGE))
        address, answer = await follow(self.client.caller, steps, ASK_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise rejected(answer, address)
        try:
            info = GET_BROKER_CLUSTER_INFO.answer(answer).body
        except RoquetError as error:
            raise BadAnswer(f"{address} sent a cluster table that cannot be read: {error}") from None
        names = info.cluster_addr_table.get(cluster, set()) if cluster else set(info.broker_addr_table)
        masters = masters_of(data for name, data in info.broker_addr_table.items() if name in names)
        if not masters:
            where = f"cluster {cluster!r}" if cluster else "this name server"
            raise NoRoute(f"no broker of {where} takes topics now; start one, or wait until it has registered")
        return dict(sorted(masters.items()))


def has_key(message: ReceivedMessage, topic: str, key: str, unique: bool) -> bool:
    if message.topic != topic:
        return False
    if message.properties.get(Property.UNIQUE_KEY) == key:
        return True
    return not unique and key in message.keys
