"""The requests of the script, short to write. Times that a client chooses are fixed, so that both sides store the same."""

from __future__ import annotations

from roquet.message import MessageQueue
from roquet.routing.subscription import subscribe
from roquet.wire import headers
from roquet.wire.batch import join_batch
from roquet.wire.bodies import Body
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.locks import LockBody
from roquet.wire.calls.members import (
    CheckClientBody,
    ConsumerData,
    ConsumeType,
    HeartbeatBody,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from roquet.wire.calls.pulls import PullHeader
from roquet.wire.calls.sends import SendHeader
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


def of(code: int, header: object, body: bytes | Body = b"") -> Command:
    return request(code, dict(headers.encode(header)), body)


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
    long = code in (Code.SEND_MESSAGE, Code.SEND_REPLY_MESSAGE)
    return Command(code, headers.encode(header, short=not long), body, version=CLIENT_VERSION)


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
    return request(Code.HEART_BEAT, None, body)


def leave(client: str, *, producer: str | None = None, consumer: str | None = None) -> Command:
    return request(Code.UNREGISTER_CLIENT, {"clientID": client, "producerGroup": producer, "consumerGroup": consumer})


def lock(code: int, client: str, group: str, *queues: tuple[str, int]) -> Command:
    return request(code, None, LockBody(group, client, {MessageQueue(topic, "broker-a", queue) for topic, queue in queues}))


def check_client(client: str, group: str, subscription: SubscriptionData) -> Command:
    return request(Code.CHECK_CLIENT_CONFIG, None, CheckClientBody(client, group, subscription))


# ---- topics, groups, offsets


def create_topic(
    topic: str, queues: int = 4, *, write: int | None = None, perm: int = 6, order: bool = False, sys_flag: int = 0
) -> Command:
    fields: dict[str, object] = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues if write is None else write,
        "perm": perm,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": sys_flag,
        "order": order,
    }
    return request(Code.UPDATE_AND_CREATE_TOPIC, fields)


def create_group(config: GroupConfig) -> Command:
    return request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)


def commit(group: str, topic: str, offset: int, queue: int = 0) -> Command:
    fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
    return request(Code.UPDATE_CONSUMER_OFFSET, fields)


def committed(group: str, topic: str, queue: int = 0) -> Command:
    return request(Code.QUERY_CONSUMER_OFFSET, {"consumerGroup": group, "topic": topic, "queueId": queue})


def of_queue(code: int, topic: str, queue: int = 0) -> Command:
    """30, 31, 32."""
    return request(code, {"topic": topic, "queueId": queue})


def of_group(code: int, group: str, **more: object) -> Command:
    return request(code, {"consumerGroup": group, **more})


def of_topic(code: int, topic: str, **more: object) -> Command:
    return request(code, {"topic": topic, **more})


def send_back(group: str, offset: int, level: int = 0, **more: object) -> Command:
    return request(Code.CONSUMER_SEND_MSG_BACK, {"offset": offset, "group": group, "delayLevel": level, "unitMode": False, **more})


def end_transaction(group: str, half_offset: int, place: int, state: int, **more: object) -> Command:
    fields: dict[str, object] = {
        "producerGroup": group,
        "tranStateTableOffset": half_offset,
        "commitLogOffset": place,
        "commitOrRollback": state,
        "fromTransactionCheck": False,
        "msgId": "made-up",
        **more,
    }
    return request(Code.END_TRANSACTION, fields)
