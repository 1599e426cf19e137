"""Queues held for ordered consuming."""

from __future__ import annotations

from dataclasses import field

from roquet.message import MessageQueue
from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.codes import RequestCode as Code


class LockBody(Body):
    consumer_group: str
    client_id: str
    mq_set: set[MessageQueue] = field(default_factory=set)
    only_this_broker: bool | None = None


class LockResult(Body):
    lock_ok_mq_set: set[MessageQueue] = field(default_factory=set, metadata={"name": "lockOKMQSet"})


LOCK_BATCH_MQ = Call(Code.LOCK_BATCH_MQ, Nothing, LockBody, Nothing, LockResult)
UNLOCK_BATCH_MQ = Call(Code.UNLOCK_BATCH_MQ, Nothing, LockBody, Nothing, Nothing)
