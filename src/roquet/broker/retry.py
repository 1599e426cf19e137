"""Messages that could not be consumed: send-back (36), and the way to the dead letters.

A consumer that fails a message names its log offset. The message is stored once more for %RETRY%<group>, to which the
group's members subscribe, through the delay levels: level 3 after the first failure (10 s), 4 after the second, up to 2 h.
After 16 failures, or as many as the group or the consumer says, it goes to %DLQ%<group>, which nobody reads by itself
(`roquet dead-letters`). RETRY_TOPIC keeps the topic it was sent to, ORIGIN_MESSAGE_ID the id of its first record.

The answer waits for the flush under SYNC_FLUSH, although upstream's does not: the consumer counts the message as done
after it, so the copy must be as safe as the message was.
"""

from __future__ import annotations

from roquet.broker.delay import Delays
from roquet.broker.groups import Groups
from roquet.broker.handler import answers
from roquet.broker.part import Part, Shared
from roquet.broker.send import Sender
from roquet.broker.sent_back import FIRST_LEVEL, INT_MAX, SAYS_MAX_SINCE, SentBack
from roquet.broker.stats import Stats
from roquet.broker.stored import take_apart
from roquet.broker.topics import Topic, Topics
from roquet.broker.writer import Draft, Writer
from roquet.errors import Refused
from roquet.message import FAILURE_MAX, Property, failure_text
from roquet.ports import Peer
from roquet.store.queue import ConsumeQueue
from roquet.store.scan import TOPIC
from roquet.wire.calls.groups import GroupConfig
from roquet.wire.calls.sends import CONSUMER_SEND_MSG_BACK, SendHeader
from roquet.wire.codes import Perm, ResponseCode, TopicFlag
from roquet.wire.command import Command
from roquet.wire.ids import offset_message_id
from roquet.wire.layout import PROPERTIES_MAX, QUEUES_MAX
from roquet.wire.names import RETRY_PREFIX, check_topic, dead_letter_topic, retry_topic
from roquet.wire.record import BadRecord, Record

WRITE = int(Perm.WRITE)
DEAD_LETTER_QUEUES = 1
FAILURE_ROOM = 4 * FAILURE_MAX + 512
"""For the reason of a failure, and for what a retried message gets besides: one that has less room comes again without the reason."""
FAQ = "See http://rocketmq.apache.org/docs/faq/ for further details."


class Retries(Part):
    """No state of its own: everything is in the log."""

    def __init__(
        self, shared: Shared, topics: Topics, groups: Groups, writer: Writer, sender: Sender, delays: Delays, stats: Stats
    ) -> None:
        super().__init__(shared)
        self.topics = topics
        self.groups = groups
        self.writer = writer
        self.sender = sender
        self.delays = delays
        self.stats = stats
        self.in_runs = SentBack(self)
        sender.on_retry_topic = self.on_send
        sender.plain.retry_queues = self.plain_queues

    @answers(CONSUMER_SEND_MSG_BACK)
    def send_back(self, peer: Peer, command: Command) -> Command | None:
        """36: upstream's checks in upstream's order."""
        header = CONSUMER_SEND_MSG_BACK.read_header(command)
        group = self._group(header.group)
        if not self.settings.broker_permission & WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{self.settings.broker_ip1}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return command.reply()  # this group wants no retries: the message is done with
        topic = self._topic(retry_topic(group.group_name), group.retry_queue_nums, unit_mode=bool(header.unit_mode))
        if not topic.perm & WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
        draft, origin, size = self._draft(header.offset)
        if self.check_record is not None:
            self.check_record(peer, command, origin)
        self.sender.check_stored(self.store.trouble.refuse_writes())
        properties, consumed = draft.properties, draft.reconsumed
        origin = self.mark(draft, origin, header.offset, header.failure, size)
        asked_max = header.max_reconsume_times if command.version >= SAYS_MAX_SINCE else None
        if header.delay_level < 0 or consumed >= (group.retry_max_times if asked_max is None else asked_max):
            self._make_dead_letter(draft, group.group_name)
            properties[Property.DELAY] = "0"
        else:
            self._come_again(draft, group, topic, header.delay_level or FIRST_LEVEL + consumed)
        draft.reconsumed = min(consumed + 1, INT_MAX)
        self.writer.put_as_is(draft)
        self.stats.sent_back(group.group_name, origin)
        self.sender.answer_when_stored(command)
        return None

    def mark(self, draft: Draft, topic: str, offset: int, failure: str | None, size: int) -> str:
        """Note in its properties where it came from, the record there in this topic, and why it failed. `size`: their bytes before.
        Returns the topic that it was sent to."""
        properties = draft.properties
        origin = properties.setdefault(Property.RETRY_TOPIC, topic)
        if Property.ORIGIN_MESSAGE_ID not in properties:
            properties[Property.ORIGIN_MESSAGE_ID] = offset_message_id(draft.store_host or bytes(8), offset)
        properties[Property.WAIT] = "false"
        if failure and size + FAILURE_ROOM <= PROPERTIES_MAX:
            properties[Property.FAILURE] = failure_text(failure)
        return origin

    def _come_again(self, draft: Draft, group: GroupConfig, topic: Topic, level: int) -> None:
        """It goes to the group's retry topic, after this delay."""
        draft.properties[Property.DELAY] = str(level)
        draft.topic, draft.queue_id = topic.topic_name, self.queue_id(group, topic)
        # By hand and not through all diversions: what was a transaction or a timed message once is an ordinary one by now.
        self.delays.divert(draft)

    def queue_id(self, group: GroupConfig, topic: Topic) -> int:
        queues = self.queue_count(group, topic)
        return self.shared.random.randrange(queues) if queues > 1 else 0

    def queue_count(self, group: GroupConfig, topic: Topic) -> int:
        # The group may have been given more queues than its retry topic has: nobody would read those.
        return min(group.retry_queue_nums, topic.read_queue_nums)

    def on_send(self, draft: Draft, header: SendHeader, version: int) -> None:
        """A send to a retry topic, as clients do when their send-back fails: after the last attempt it is a dead letter too.

        The delay it asks for still comes before that, as with Apache RocketMQ 4.9.7.
        """
        group = self._group(draft.topic.removeprefix(RETRY_PREFIX))
        asked_max = header.max_reconsume_times if version >= SAYS_MAX_SINCE else None
        if draft.reconsumed >= (group.retry_max_times if asked_max is None else asked_max):
            self._make_dead_letter(draft, group.group_name)

    def plain_queues(self, topic: str, consumed: int, asked_max: str | None) -> dict[str, ConsumeQueue] | None:
        """Where a plain send to this retry topic goes that `on_send` would leave as it is, whatever the client's version. None: unsure."""
        queues = self.topics.retry_queues.get(topic)
        if queues is None or (asked_max is not None and not consumed < int(asked_max)):
            return None
        name = topic.removeprefix(RETRY_PREFIX)
        group = self.groups.find(name) if name in self.groups else None
        return queues if group is not None and consumed < group.retry_max_times else None

    def _make_dead_letter(self, draft: Draft, group: str) -> None:
        draft.topic = self._topic(dead_letter_topic(group), DEAD_LETTER_QUEUES).topic_name
        draft.queue_id = self.shared.random.randrange(DEAD_LETTER_QUEUES)

    def _group(self, name: str) -> GroupConfig:
        found = self.groups.find(name)
        if found is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name[:255]} {FAQ}")
        return found

    def _topic(self, name: str, queues: int, *, unit_mode: bool = False) -> Topic:
        check_topic(name)
        return self.topics.ensure(name, min(queues, QUEUES_MAX), sys_flag=int(TopicFlag.UNIT_SUB) if unit_mode else 0)

    def _draft(self, offset: int) -> tuple[Draft, str, int]:
        """The message to put again, its topic, and the bytes of its properties. Raises Cold when it is not in memory: nothing was changed
        so far that would hurt twice."""
        try:
            raw = self.store.raw_at(offset)
            stored = take_apart(raw, offset)
            if stored is not None and TOPIC.fullmatch(stored.topic.encode()):
                return stored.draft(), stored.topic, len(stored.raw)
            record = Record.decode(self.store.record_at(offset))
        except (LookupError, BadRecord):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {offset}") from None
        return Draft.again(record), record.topic, len(record.properties)
