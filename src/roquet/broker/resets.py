"""Moving a group's progress: back or forward to a time (222), from another group (314); and looking at it (223, 308).

Members keep their position themselves and write it to the broker every few seconds, so a reset goes to them (220), and
they commit it. Without a member there is nobody to tell and upstream refuses (206); the offsets can then be committed
directly (15), which `roquet group reset` does.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from itertools import islice

from roquet.broker.handler import LARGE_ROWS, Portions, answers, elsewhere, portions, send_answer, when_all
from roquet.broker.members import ConsumerGroup, Member, Members
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import Part, Shared
from roquet.broker.saving import answer_when_saved
from roquet.broker.topics import Topic, Topics
from roquet.errors import Refused, RoquetError
from roquet.message import MessageQueue
from roquet.ports import Peer
from roquet.store.disk import Cold
from roquet.wire.calls import offsets as calls
from roquet.wire.calls.offsets import CLONE_GROUP_OFFSET, QUERY_CORRECTION_OFFSET, CorrectionOffsets
from roquet.wire.codes import ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.names import check_group

log = logging.getLogger("roquet.broker")

TO_THE_END = -1
"""A reset's time that means: skip everything."""
V3_0_7 = 28
"""Clients before it (V3_0_7_SNAPSHOT) do not know a reset."""
STATUS_TIMEOUT_MS = 5_000
MEMBERS_ASKED_MAX = 1_000
"""Members of one group that are asked for their offsets at once."""
PROGRESSES = 5_000
"""Offsets of groups that are looked at or copied before others may get their turn."""
SEARCHES = 32
"""Searches by time that are made before others may get their turn."""
LOGGED_MAX = 64
"""Offsets of a reset that its line in the log shows."""
NO_CORRECTION = (1 << 63) - 1


class Resets(Part):
    """Holds no state."""

    def __init__(self, shared: Shared, topics: Topics, offsets: ConsumerOffsets, members: Members) -> None:
        super().__init__(shared)
        self.topics = topics
        self.offsets = offsets
        self.members = members

    # Reset

    @answers(calls.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset(self, peer: Peer, command: Command) -> Portions:
        """222. Every queue that is written to goes to the time, or only back to it unless forced; the members are told.

        With 5.x's queueId and offset only that queue moves, to that offset if one is given.
        """
        header = calls.INVOKE_BROKER_TO_RESET_OFFSET.read_header(command)
        topic = self.topics.get(header.topic)
        if topic is None:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic[:255]}"
            )
        table: dict[MessageQueue, int] = {}
        yield from self._fill(table, header, topic)
        online = self.members.group(header.group)
        if online is None or not online.members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group[:255]} Topic: {topic.topic_name} "
                f"Timestamp: {header.timestamp}",
            )
        for member in online.members.values():
            check_version(member)
        queues, offsets = len(table), list(islice(table.values(), LOGGED_MAX))

        def encode() -> tuple[bytes, bytes]:
            body = calls.ResetOffsetBody(table)
            both = body.encode(), body.encode_for_cpp()
            table.clear()
            return both

        bodies = encode() if queues < LARGE_ROWS else (yield from elsewhere(encode))
        self._tell(online, header, bodies, command.language == "CPP")
        log.warning(
            "%s reset group %s in the %d queues of %s to %d: offsets %s%s",
            peer.address, header.group, queues, topic.topic_name, header.timestamp, offsets, " and so on" if queues > LOGGED_MAX else "",
        )  # fmt: skip
        # Upstream leaves the remark of an answer that nobody filled in.
        return calls.INVOKE_BROKER_TO_RESET_OFFSET.reply(command, body=bodies[0], remark="not set any response code")

    def _fill(self, table: dict[MessageQueue, int], header: calls.ResetOffsetHeader, topic: Topic) -> Generator[Cold | None, None, None]:
        chosen = header.queue_id if header.queue_id is not None and header.queue_id >= 0 else None
        if chosen is not None and chosen >= topic.write_queue_nums:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"queueId {chosen} of {topic.topic_name}, which has {topic.write_queue_nums} queues")

        def look(queue_id: int) -> None:
            consumed = self.offsets.find(header.group, topic.topic_name, queue_id)
            if consumed < 0:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group[:255]}> not exist")
            target = self._target(header, topic.topic_name, queue_id)
            if not header.is_force and target >= consumed:
                target = consumed
            table[MessageQueue(topic.topic_name, self.settings.broker_name, queue_id)] = target

        yield from portions(range(topic.write_queue_nums) if chosen is None else (chosen,), look, SEARCHES)

    def _target(self, header: calls.ResetOffsetHeader, topic: str, queue_id: int) -> int:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return 0
        if header.offset is not None and header.offset >= 0:
            if not queue.first <= header.offset <= queue.visible:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"offset {header.offset} of {topic}/{queue_id}, which holds {queue.first} to {queue.visible}"
                )
            return header.offset
        return queue.visible if header.timestamp == TO_THE_END else max(self.store.offset_by_time(queue, header.timestamp), 0)

    def _tell(self, group: ConsumerGroup, header: calls.ResetOffsetHeader, bodies: tuple[bytes, bytes], all_cpp: bool) -> None:
        """220 to every member. C++ reads another form; upstream sends it to all when the asker says it is C++."""
        asked = calls.ResetOffsetHeader(header.topic, header.group, header.timestamp, False)
        plain, cpp = (calls.RESET_CONSUMER_CLIENT_OFFSET.request(asked, body, flag=ONEWAY).encode() for body in bodies)
        for member in group.members.values():
            if not member.peer.closed:
                member.peer.send(cpp if all_cpp or member.language == "CPP" else plain)

    # Looking

    @answers(calls.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def status(self, peer: Peer, command: Command) -> Portions:
        """223: every member, or one, tells how far it is in the topic (221). Who does not answer is left out."""
        header = calls.INVOKE_BROKER_TO_GET_CONSUMER_STATUS.read_header(command)
        online = self.members.group(header.group)
        members = [] if online is None else list(online.members.values())
        if not members:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group[:255]}]")
        for member in members:
            check_version(member)
        if header.client_addr:
            members = [member for member in members if member.client_id == header.client_addr][:1]
        members = [member for member in members if not member.peer.closed][:MEMBERS_ASKED_MAX]
        table: dict[str, dict[MessageQueue, int]] = {}

        def all_answered() -> None:
            body = calls.ConsumerStatusBody(consumer_table=table)
            send_answer(peer, command, calls.INVOKE_BROKER_TO_GET_CONSUMER_STATUS.reply(command, body=body))

        one_more = when_all(len(members) + 1, all_answered)

        def ask(member: Member) -> None:
            def answered(result: Command | RoquetError) -> None:
                if isinstance(result, Command) and result.code == ResponseCode.SUCCESS and result.body:
                    try:
                        table[member.client_id] = calls.GET_CONSUMER_STATUS_FROM_CLIENT.answer(result).body.message_queue_table
                    except Refused as refused:
                        log.warning("member %s answered with offsets that cannot be read: %s", member, refused.remark)
                one_more()

            request = calls.GET_CONSUMER_STATUS_FROM_CLIENT.request(calls.ConsumerStatusHeader(header.topic, header.group))
            try:
                self.members.call(member.peer, request, answered, STATUS_TIMEOUT_MS)
            except Refused as refused:
                log.warning("member %s is not asked for its offsets: %s", member, refused.remark)
                one_more()

        yield from portions(members, ask)
        one_more()
        return None

    @answers(QUERY_CORRECTION_OFFSET)
    def correction(self, peer: Peer, command: Command) -> Portions:
        """308: per queue the smallest progress of all groups but the named ones; where the compared group is behind even that,
        the largest number. Upstream forgets the progress of the groups that are left out; nothing is changed here."""
        header = QUERY_CORRECTION_OFFSET.read_header(command)
        left_out = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}

        def look(progress: tuple[int, int]) -> None:
            queue_id, offset = progress
            queue = self.store.find_queue(header.topic, queue_id)
            if offset >= (0 if queue is None else queue.first):
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))

        for group in self.offsets.groups_of(header.topic):
            if group not in left_out:
                yield from portions(list(self.offsets.queues_of(group, header.topic).items()), look, PROGRESSES)
        compared = dict(self.offsets.queues_of(header.compare_group, header.topic))

        def answer() -> bytes:
            for queue_id, offset in compared.items():
                if smallest.get(queue_id, -1) > offset:
                    smallest[queue_id] = NO_CORRECTION
            return CorrectionOffsets(dict(sorted(smallest.items()))).encode()

        body = answer() if len(smallest) < LARGE_ROWS else (yield from elsewhere(answer))
        return QUERY_CORRECTION_OFFSET.reply(command, body=body)

    # Clone

    @answers(CLONE_GROUP_OFFSET)
    def clone(self, peer: Peer, command: Command) -> Portions:
        """314: another group goes on from where this one is, in one topic or in all."""
        header = CLONE_GROUP_OFFSET.read_header(command)
        source, target = header.src_group, header.dest_group
        check_group(target)
        online = self.members.group(source)
        for name in [header.topic] if header.topic else self.offsets.topics_of(source):
            if self.topics.get(name) is None:
                log.warning("offsets of group %s in %s are not copied: there is no such topic", source, name)
            elif not header.offline and online is not None and online.subscriptions and name not in online.subscriptions:
                log.warning("offsets of group %s in %s are not copied: its members do not subscribe to that", source, name)
            else:
                for queue_id, offset in list(self.offsets.queues_of(source, name).items()):
                    self.offsets.commit(target, name, queue_id, offset)
                    if queue_id % PROGRESSES == 0:
                        yield None
        self.offsets.saving.when_saved(answer_when_saved(peer, command))
        return None


def check_version(member: Member) -> None:
    if member.version < V3_0_7:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"the client does not support this feature. version={member.version} of {member}, needed is {V3_0_7} (V3_0_7_SNAPSHOT)",
        )
