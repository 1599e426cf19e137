"""What one consumer is asked through its broker: what it is doing, and to consume a message now."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from roquet.message import MessageQueue
from roquet.wire.bodies import Body, int32, named
from roquet.wire.calls.call import Call, Nothing, Records
from roquet.wire.calls.members import SubscriptionData
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class ConsumerRunningInfoHeader(Header):
    """From the tool and on to the client."""

    consumer_group: str = wire("consumerGroup")
    client_id: str = wire("clientId")
    jstack_enable: bool | None = optional("jstackEnable")


class ProcessQueueInfo(Body):
    """A queue as one consumer sees it. `droped` is upstream's spelling."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = int32(0)
    cached_msg_size_in_mib: int = named("cachedMsgSizeInMiB", bits=32, default=0)
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = int32(0)
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class ConsumeStatus(Body):
    pull_rt: float = named("pullRT", default=0.0)
    pull_tps: float = named("pullTPS", default=0.0)
    consume_rt: float = named("consumeRT", default=0.0)
    consume_ok_tps: float = named("consumeOKTPS", default=0.0)
    consume_failed_tps: float = named("consumeFailedTPS", default=0.0)
    consume_failed_msgs: int = 0


class ConsumerRunningInfo(Body):
    """From the client and on to the tool."""

    properties: dict[str, str] = field(default_factory=dict)
    subscription_set: list[SubscriptionData] = field(default_factory=list)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] | None = None
    jstack: str | None = None


class ConsumeDirectlyHeader(Header):
    consumer_group: str = wire("consumerGroup")
    client_id: str | None = optional("clientId")
    msg_id: str | None = optional("msgId")
    broker_name: str | None = optional("brokerName")


class ConsumeDirectlyResult(Body):
    SUCCESS: ClassVar[str] = "CR_SUCCESS"
    LATER: ClassVar[str] = "CR_LATER"
    THROW_EXCEPTION: ClassVar[str] = "CR_THROW_EXCEPTION"

    consume_result: str
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


GET_CONSUMER_RUNNING_INFO = Call(Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfoHeader, Nothing, Nothing, ConsumerRunningInfo)
CONSUME_MESSAGE_DIRECTLY = Call(Code.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader, Records, Nothing, ConsumeDirectlyResult)
