"""Members of a group told to go on elsewhere, or asked where they are; each as a tool asks the broker, and as the broker asks a client."""

from __future__ import annotations

from dataclasses import field

from roquet.message import MessageQueue
from roquet.wire.bodies import Body, write_queue
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.groups import TopicGroupHeader
from roquet.wire.codes import RequestCode as Code
from roquet.wire.fastjson import dumps
from roquet.wire.headers import optional, wire


class ResetOffsetHeader(TopicGroupHeader):
    timestamp: int = wire("timestamp", bits=64)
    """-1: to the end of every queue."""
    is_force: bool | None = optional("isForce")
    queue_id: int | None = optional("queueId")
    offset: int | None = optional("offset", bits=64)


class ResetOffsetBody(Body):
    """Where each queue goes on."""

    offset_table: dict[MessageQueue, int] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """C++ cannot read object keys and gets an array."""
        return dumps({"offsetTable": [{**write_queue(queue), "offset": offset} for queue, offset in self.offset_table.items()]})


class ConsumerStatusHeader(TopicGroupHeader):
    client_addr: str | None = optional("clientAddr")


class ConsumerStatusBody(Body):
    """The first table is a client's answer, the second (client id -> the same) a broker's."""

    message_queue_table: dict[MessageQueue, int] = field(default_factory=dict)
    consumer_table: dict[str, dict[MessageQueue, int]] = field(default_factory=dict)


INVOKE_BROKER_TO_RESET_OFFSET = Call(Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader, Nothing, Nothing, ResetOffsetBody)
RESET_CONSUMER_CLIENT_OFFSET = Call(Code.RESET_CONSUMER_CLIENT_OFFSET, ResetOffsetHeader, ResetOffsetBody, Nothing, Nothing)
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = Call(
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader, Nothing, Nothing, ConsumerStatusBody
)
GET_CONSUMER_STATUS_FROM_CLIENT = Call(Code.GET_CONSUMER_STATUS_FROM_CLIENT, ConsumerStatusHeader, Nothing, Nothing, ConsumerStatusBody)
