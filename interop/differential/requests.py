"""The requests of the script, short to write. Times that a client chooses are fixed, so that both sides store the same."""

from __future__ import annotations

from roquet.message import MessageQueue
from roquet.routing.subscription import subscribe
from roquet.wire import headers
from roquet.wire.batch import join_batch
from roquet.wire.bodies import Body
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.members import (
    CheckClientBody,
    ConsumerData,
    ConsumeType,
    HeartbeatBody,
    MessageModel,
    ProducerData,
    SubscriptionData,
    UnregisterClientHeader,
)
from roquet.wire.calls.offsets import QueryOffsetHeader, UpdateOffsetHeader
from roquet.wire.calls.pulls import PullHeader
from roquet.wire.calls.queues import LockBody, QueueHeader
from roquet.wire.calls.sends import SendBackHeader, SendHeader
from roquet.wire.calls.table import CALLS
from roquet.wire.calls.topics import CreateTopicHeader
from roquet.wire.calls.transactions import EndTransactionHeader
from roquet.wire.codes import RequestCode as Code
from roquet.wire.command import ONEWAY, Command
from roquet.wire.record import encode_properties

BORN = 1_700_000_000_000
CLIENT_VERSION = 407
"""What the requests say they come from: a 4.9.7 client."""
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1


def request(code: int, fields: dict[str, object] | None = None, body: bytes | Body = b"", *, version: int = CLIENT_VERSION) -> Command:
    texts = {name: _text(value) for name, value in (fields or {}).items() if value is not None}
    return Command(code, texts, body if isinstance(body, bytes) else body.encode(), version=version)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def of(code: int, header: object = None, body: bytes | Body = b"", *, short: bool = False) -> Command:
    """The request of this code. The table says what header and body it has; another is a mistake of the script."""
    call = CALLS[code]
    assert header is None or isinstance(header, call.header_type), f"{call.code.name} has a {call.header_type.__name__}, not {header!r}"
    assert isinstance(body, bytes | call.body_type), f"{call.code.name} has a {call.body_type.__name__}, not {body!r}"
    fields = {} if header is None else headers.encode(header, short=short)
    return Command(code, fields, body if isinstance(body, bytes) else body.encode(), version=CLIENT_VERSION)


def oneway(command: Command) -> Command:
    command.flag |= ONEWAY
    return command


def binary(command: Command) -> Command:
    command.binary = True
    return command


def with_fields(command: Command, **fields: object) -> Command:
    """The same request with some fields changed; None takes one out."""
    for name, value in fields.items():
        if value is None:
            command.fields.pop(name, None)
        else:
            command.fields[name] = _text(value)
    return command


def from_language(command: Command, language: str, version: int) -> Command:
    command.language, command.version = language, version
    return command


# ---- sends


def property_text(properties: dict[str, object]) -> str:
    """Properties as they go over the wire."""
    return encode_properties({name: _text(value) for name, value in properties.items()})


def send(
    topic: str,
    body: bytes = b"hello",
    queue: int = 0,
    *,
    code: int = Code.SEND_MESSAGE_V2,
    group: str = "producers",
    default_topic: str = "TBW102",
    queues: int = 4,
    sys_flag: int = 0,
    flag: int = 0,
    reconsumed: int | None = 0,
    max_reconsumed: int | None = None,
    batch: bool | None = False,
    born: int = BORN,
    text: str | None = None,
    **properties: object,
) -> Command:
    """A send. `text`: the properties as they go over the wire, instead of `properties`."""
    header = SendHeader(
        producer_group=group,
        topic=topic,
        default_topic=default_topic,
        default_topic_queue_nums=queues,
        queue_id=queue,
        sys_flag=sys_flag,
        born_timestamp=born,
        flag=flag,
        properties=property_text(properties) if text is None else text,
        reconsume_times=reconsumed,
        unit_mode=False,
        max_reconsume_times=max_reconsumed,
        batch=batch,
    )
    return of(code, header, body, short=code not in (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE))


def send_batch(topic: str, bodies: list[bytes], queue: int = 0, *, code: int = Code.SEND_BATCH_MESSAGE, **properties: object) -> Command:
    """Messages with a tag and a key each."""
    body = join_batch((index, each, f"TAGS\x01t{index}\x02KEYS\x01batch{index}".encode()) for index, each in enumerate(bodies))
    return send(topic, body, queue, code=code, batch=True, text=property_text(properties))


# ---- pulls


def pull(
    topic: str,
    offset: int,
    queue: int = 0,
    *,
    group: str = "pullers",
    count: int = 32,
    sub: str | None = "*",
    kind: str | None = "TAG",
    version: int = 0,
    commit: int | None = None,
    suspend_ms: int = 0,
    code: int = Code.PULL_MESSAGE,
) -> Command:
    """A pull. `sub` None: the subscription is the heartbeat's. `commit`: an offset to remember. `suspend_ms`: may be held so long."""
    sys_flag = (SUBSCRIPTION if sub is not None else 0) | (COMMIT if commit is not None else 0) | (SUSPEND if suspend_ms else 0)
    header = PullHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=sys_flag,
        commit_offset=commit or 0,
        suspend_timeout_millis=suspend_ms,
        sub_version=version,
        subscription=sub,
        expression_type=kind,
    )
    return of(code, header)


# ---- clients


def subscription(topic: str, expression: str = "*", *, version: int = 1, kind: str = "TAG") -> SubscriptionData:
    if kind != "TAG":
        return SubscriptionData(topic, expression, sub_version=version, expression_type=kind)
    return subscribe(topic, expression, version)


def heartbeat(
    client: str,
    consumes: dict[str, list[SubscriptionData]] | None = None,
    produces: tuple[str, ...] = (),
    *,
    model: MessageModel = MessageModel.CLUSTERING,
    how: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
) -> Command:
    body = HeartbeatBody(
        client,
        [ProducerData(group) for group in produces],
        [ConsumerData(group, how, model, subscription_data_set=subscriptions) for group, subscriptions in (consumes or {}).items()],
    )
    return of(Code.HEART_BEAT, None, body)


def leave(client: str, *, producer: str | None = None, consumer: str | None = None) -> Command:
    return of(Code.UNREGISTER_CLIENT, UnregisterClientHeader(client, producer, consumer))


def lock(code: int, client: str, group: str, *queues: tuple[str, int]) -> Command:
    return of(code, None, LockBody(group, client, {MessageQueue(topic, "broker-a", queue) for topic, queue in queues}))


def check_client(client: str, group: str, subscription: SubscriptionData) -> Command:
    return of(Code.CHECK_CLIENT_CONFIG, None, CheckClientBody(client, group, subscription))


# ---- topics, groups, offsets


def create_topic(
    topic: str, queues: int = 4, *, write: int | None = None, perm: int = 6, order: bool = False, sys_flag: int = 0
) -> Command:
    header = CreateTopicHeader(topic, "TBW102", queues, queues if write is None else write, perm, "SINGLE_TAG", order, sys_flag)
    return of(Code.UPDATE_AND_CREATE_TOPIC, header)


def create_group(config: GroupConfig) -> Command:
    return of(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)


def commit(group: str, topic: str, offset: int, queue: int = 0) -> Command:
    return of(Code.UPDATE_CONSUMER_OFFSET, UpdateOffsetHeader(group, topic, queue, offset))


def committed(group: str, topic: str, queue: int = 0) -> Command:
    return of(Code.QUERY_CONSUMER_OFFSET, QueryOffsetHeader(group, topic, queue))


def of_queue(code: int, topic: str, queue: int = 0) -> Command:
    """30, 31, 32."""
    return of(code, QueueHeader(topic, queue))


def of_group(code: int, group: str, **more: object) -> Command:
    return request(code, {"consumerGroup": group, **more})


def of_topic(code: int, topic: str, **more: object) -> Command:
    return request(code, {"topic": topic, **more})


def send_back(group: str, offset: int, level: int = 0, **more: object) -> Command:
    return with_fields(of(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, group, level, unit_mode=False)), **more)


def end_transaction(group: str, half_offset: int, place: int, state: int, **more: object) -> Command:
    header = EndTransactionHeader(group, half_offset, place, state, "made-up", from_transaction_check=False)
    return with_fields(of(Code.END_TRANSACTION, header), **more)
