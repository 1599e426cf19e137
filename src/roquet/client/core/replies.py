"""Request and reply: a message that somebody consumes and answers, over the brokers both are connected to.

requester ── message with CORRELATION_ID, REPLY_TO_CLIENT, TTL ──> topic ──> consumer
    ^                                                                            │ <cluster>_REPLY_TOPIC, MSG_TYPE=reply
    └──── PUSH_REPLY_MESSAGE_TO_CLIENT ──── broker that has the requester <──────┘
"""

from __future__ import annotations

import logging
from ipaddress import ip_address
from typing import TYPE_CHECKING

from roquet.client.core.tasks import Wait
from roquet.errors import CallTimeout, InvalidMessage, Refused, RoquetError
from roquet.message import Message, Property, ReceivedMessage
from roquet.wire.calls.sends import PUSH_REPLY_MESSAGE_TO_CLIENT
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import REPLY_SUFFIX
from roquet.wire.record import Record, decode_properties, encode_properties

if TYPE_CHECKING:
    from roquet.client.core.instance import ClientCore

log = logging.getLogger(__name__)

REPLY = "reply"


class RequestTimedOut(CallTimeout):
    """Nobody replied in time. The request may have been consumed nevertheless, or may be later."""


class Replies:
    """The requests of one client that wait for their reply, by correlation id."""

    def __init__(self, client: ClientCore) -> None:
        self._client = client
        self._waiting: dict[str, Wait[ReceivedMessage]] = {}

    def expect(self, correlation_id: str) -> Wait[ReceivedMessage]:
        reply = self._waiting[correlation_id] = Wait()
        return reply

    def forget(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    def received(self, command: Command) -> Command:
        """A broker's PUSH_REPLY_MESSAGE_TO_CLIENT. The answer is a success even when nobody waits any more, as upstream's."""
        try:
            message = reply_of(command, self._client.clock.now_ms())
        except RoquetError as error:
            return self._client.answer(command, ResponseCode.SYSTEM_ERROR, f"process reply message fail: {error}")
        correlation_id = message.properties.get(Property.CORRELATION_ID, "")
        reply = self._waiting.pop(correlation_id, None)
        if reply is not None:
            reply.end(message)
        else:
            log.info("! a reply to %s came, but nobody waits for it (any more)", correlation_id)
        return self._client.answer(command, ResponseCode.SUCCESS)


def reply_message(request: ReceivedMessage, body: bytes, *, properties: dict[str, str] | None = None) -> Message:
    """The message that answers this request: send it with any producer. Raises InvalidMessage when it is no request."""
    given = request.properties
    cluster = given.get(Property.CLUSTER)
    wanted = {name: given.get(name) for name in (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)}
    if not cluster or not wanted[Property.CORRELATION_ID] or not wanted[Property.REPLY_TO_CLIENT]:
        raise InvalidMessage(
            f"{request!r} asks for no reply: it has no CORRELATION_ID, REPLY_TO_CLIENT or CLUSTER; was it sent with request()?"
        )
    carried = {name: value for name, value in wanted.items() if value is not None}
    return Message(cluster + REPLY_SUFFIX, body, properties={**(properties or {}), Property.MESSAGE_TYPE: REPLY, **carried})


def reply_of(command: Command, now_ms: int) -> ReceivedMessage:
    try:
        header = PUSH_REPLY_MESSAGE_TO_CLIENT.read_header(command)
    except Refused as refusal:
        raise InvalidMessage(refusal.remark) from None
    properties = decode_properties((header.properties or "").encode())
    properties[Property.ARRIVE_TIME] = str(now_ms)
    record = Record(
        header.topic,
        header.queue_id,
        command.body,
        encode_properties(properties).encode(),
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=host_bytes(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=host_bytes(header.store_host),
        reconsume_times=header.reconsume_times or 0,
    )
    return ReceivedMessage(record, header.broker_name or "")


def host_bytes(text: str) -> bytes:
    """ "ip:port" as records have it; zeros for what cannot be read (a reply is not lost over that)."""
    ip, _, port = text.lstrip("/").rpartition(":")
    try:
        return ip_address(ip.strip("[]")).packed + int(port).to_bytes(4, "big")
    except (ValueError, OverflowError):
        return bytes(8)
