"""Request-reply: a reply (324, 325) is passed on to the client that waits for it (326), and stored.

The requester gave its client id along (REPLY_TO_CLIENT); its heartbeat as a producer says on which connection it is. The
reply is stored whether or not it could be passed on, exactly as it came, and the answer to the replier tells how the
requester took it. Whether it could be stored is not told, as upstream has it: a reply that reached its requester has done
its work.
"""

from __future__ import annotations

from roquet.broker.handler import answers, send_answer
from roquet.broker.members import Members
from roquet.broker.part import Part, Shared
from roquet.broker.send import Sender, too_large
from roquet.broker.send_properties import KEPT_FLAGS
from roquet.errors import Refused, RoquetError
from roquet.message import Property, host_text
from roquet.ports import Peer
from roquet.store.storable import check_properties
from roquet.wire.calls import sends as calls
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.ids import offset_message_id
from roquet.wire.record import decode_properties, join_properties

NOT_STORED = "0"
"""The message id of a reply that was only passed on: clients cannot do without one."""


class Replies(Part):
    """Holds no state: who waits for whom is in the clients and in `Members`."""

    def __init__(self, shared: Shared, sender: Sender, members: Members) -> None:
        super().__init__(shared)
        self.sender = sender
        self.members = members

    @answers(calls.SEND_REPLY_MESSAGE, calls.SEND_REPLY_MESSAGE_V2)
    def reply(self, peer: Peer, command: Command) -> None:
        """324, 325. Answered when the requester has taken the reply, or has not for ten seconds."""
        header = calls.SEND_REPLY_MESSAGE_V2.read_header(command)
        text = header.properties or ""
        if len(command.body) > self.settings.max_message_size:
            raise too_large(len(command.body), self.settings.max_message_size)
        check_properties(text.encode())
        queue = self.sender.destination(header, peer)
        message_id, queue_offset = NOT_STORED, 0
        if self.settings.store_reply_message_enable:
            log_offset, queue_offset = self.store.put(
                queue,
                command.body,
                text,
                sys_flag=header.sys_flag & KEPT_FLAGS,
                flag=header.flag,
                born_ms=header.born_timestamp,
                born_host=peer.host,
                reconsumed=header.reconsume_times or 0,
            )
            message_id = offset_message_id(self.store.staging.store_host, log_offset)
        stored = self.sender.response_header(message_id, queue.queue_id, queue_offset)

        def tell(remark: str | None) -> None:
            code = ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR
            send_answer(peer, command, calls.SEND_REPLY_MESSAGE_V2.reply(command, stored, code=code, remark=remark))

        properties = decode_properties(text)
        requester = properties.get(Property.REPLY_TO_CLIENT)
        if requester is None:
            tell(f"reply message properties[{Property.REPLY_TO_CLIENT}] is null")
            return
        to = self.members.producer_with_id(requester)
        if to is None or to.closed:
            tell(f"push reply message fail, channel of <{requester[:255]}> not found.")
            return

        def taken(result: Command | RoquetError) -> None:
            ok = isinstance(result, Command) and result.code == ResponseCode.SUCCESS
            tell(None if ok else f"push reply message to {requester[:255]}fail.")

        try:
            self.members.call(to, self._push(header, properties, queue.queue_id, peer, command.body), taken)
        except Refused as refused:
            tell(f"push reply message to {requester[:255]}fail. {refused.remark}")

    def _push(self, header: calls.SendHeader, properties: dict[str, str], queue_id: int, peer: Peer, body: bytes) -> Command:
        """326; JSON always: whoever it goes to may not read the other form."""
        now_ms = self.clock.now_ms()
        push = calls.PushReplyHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=host_text(peer.host),
            store_host=host_text(self.store.staging.store_host),
            store_timestamp=now_ms,
            properties=join_properties({Property.PUSH_REPLY_TIME: str(now_ms)} | properties),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        return calls.PUSH_REPLY_MESSAGE_TO_CLIENT.request(push, body)
