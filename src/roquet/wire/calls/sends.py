"""Messages on their way in: sends, replies to a request, what failed and goes back, what is called off."""

from __future__ import annotations

from roquet.message import Property
from roquet.wire.calls.call import Batch, Call, Message, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class SendFields(Header):
    """What every send says. Long names or letters, the same fields."""

    producer_group: str = wire("producerGroup", short="a")
    topic: str = wire("topic", short="b")
    default_topic: str = wire("defaultTopic", short="c")
    default_topic_queue_nums: int = wire("defaultTopicQueueNums", short="d")
    queue_id: int = wire("queueId", short="e")
    """Negative: the broker chooses."""
    sys_flag: int = wire("sysFlag", short="f")
    born_timestamp: int = wire("bornTimestamp", short="g", bits=64)
    flag: int = wire("flag", short="h")


class SendHeader(SendFields):
    properties: str | None = optional("properties", short="i")
    reconsume_times: int | None = optional("reconsumeTimes", short="j")
    unit_mode: bool | None = optional("unitMode", short="k")
    max_reconsume_times: int | None = optional("maxReconsumeTimes", short="l")
    batch: bool | None = optional("batch", short="m")
    """The body is a batch. This decides, not the code: C++ sends batches as 310."""
    broker_name: str | None = optional("bname", short="n")


class SendResponseHeader(Header):
    msg_id: str = wire("msgId")
    """Offset id; of a batch, all of them joined with commas."""
    queue_id: int = wire("queueId")
    queue_offset: int = wire("queueOffset", bits=64)
    """Of a batch, the first one's."""
    transaction_id: str | None = optional("transactionId")
    msg_region: str | None = optional(Property.MSG_REGION)
    trace_on: str | None = optional(Property.TRACE_ON)
    """ "true" as text: Go takes an empty one for off."""
    batch_uniq_id: str | None = optional("batchUniqId")
    recall_handle: str | None = optional("recallHandle")


class SendBackHeader(Header):
    offset: int = wire("offset", bits=64)
    """Physical."""
    group: str = wire("group")
    delay_level: int = wire("delayLevel")
    """Negative: dead letter at once. 0: by the number of times it was consumed."""
    origin_msg_id: str | None = optional("originMsgId")
    origin_topic: str | None = optional("originTopic")
    unit_mode: bool | None = optional("unitMode")
    max_reconsume_times: int | None = optional("maxReconsumeTimes")
    broker_name: str | None = optional("bname")
    failure: str | None = optional("failure")
    """Ours: why it failed. Apache's brokers read the fields that they know, and do not see this one."""


class RecallMessageHeader(Header):
    producer_group: str = wire("producerGroup")
    topic: str = wire("topic")
    recall_handle: str = wire("recallHandle")
    """5.x's, out of the answer to a send; Roquet also takes a message id."""
    broker_name: str | None = optional("bname")


class PushReplyHeader(SendFields):
    """A reply, and where it was born and stored as "ip:port"."""

    born_host: str = wire("bornHost")
    store_host: str = wire("storeHost")
    store_timestamp: int = wire("storeTimestamp", bits=64)
    properties: str | None = optional("properties")
    reconsume_times: int | None = optional("reconsumeTimes")
    unit_mode: bool | None = optional("unitMode")
    broker_name: str | None = optional("bname")


SEND_MESSAGE = Call(Code.SEND_MESSAGE, SendHeader, Message, SendResponseHeader, Nothing)
SEND_MESSAGE_V2 = Call(Code.SEND_MESSAGE_V2, SendHeader, Message, SendResponseHeader, Nothing)
SEND_BATCH_MESSAGE = Call(Code.SEND_BATCH_MESSAGE, SendHeader, Batch, SendResponseHeader, Nothing)
SEND_REPLY_MESSAGE = Call(Code.SEND_REPLY_MESSAGE, SendHeader, Message, SendResponseHeader, Nothing)
SEND_REPLY_MESSAGE_V2 = Call(Code.SEND_REPLY_MESSAGE_V2, SendHeader, Message, SendResponseHeader, Nothing)
PUSH_REPLY_MESSAGE_TO_CLIENT = Call(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, PushReplyHeader, Message, Nothing, Nothing)
CONSUMER_SEND_MSG_BACK = Call(Code.CONSUMER_SEND_MSG_BACK, SendBackHeader, Nothing, Nothing, Nothing)
RECALL_MESSAGE = Call(Code.RECALL_MESSAGE, RecallMessageHeader, Nothing, SendResponseHeader, Nothing)
