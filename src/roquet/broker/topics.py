"""Topics of this broker: their configuration, kept in config/topics.json as upstream writes it, and automatic creation.

`plain_queues` is what makes a send cheap: topic -> text of a queue id as it stands in a send header -> that queue. It holds only
topics that a plain send may enter (writable, not a system or retry topic), and is made when a topic changes, not per message.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from roquet.broker.fragments import Fragments, member
from roquet.broker.handler import answers
from roquet.broker.part import Shared
from roquet.broker.saving import Done, SavedDocument, SavedPart, answer_when_saved, by_size
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.store.disk import blocking
from roquet.store.queue import ConsumeQueue
from roquet.store.store import Store
from roquet.wire import names
from roquet.wire.calls import topics as calls
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import QUEUES_MAX

log = logging.getLogger("roquet.broker")

DELAY_LEVELS = 18

Changed = Callable[[Iterable[str], Callable[[], None]], None]
"""Tell the name servers of these topics; the second argument is called when all of them know (or did not answer in time)."""


Topic = calls.TopicConfig
"""A topic is its configuration. Only `Topics` changes it."""


def spelled(topic: Topic) -> str:
    """As upstream's remarks spell it."""
    perm = "".join(letter if topic.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums}, writeQueueNums={topic.write_queue_nums}, "
        f"perm={perm}, topicFilterType={topic.topic_filter_type}, topicSysFlag={topic.topic_sys_flag}, order={str(topic.order).lower()}]"
    )


class Topics(SavedPart):
    """State: `_table` is the truth, `plain_queues` and `texts` are derived from it, the document follows in the background."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.newcomers = shared.newcomers
        self.data_version = DataVersion(self.clock.now_ms(), 0)
        self.plain_queues: dict[str, dict[str, ConsumeQueue]] = {}
        self.retry_queues: dict[str, dict[str, ConsumeQueue]] = {}
        """The same of retry topics, for sends that are still to be tried (`Retries.plain_queues`)."""
        self.changed: Changed = lambda names, done: done()
        """Set by the core to the registration's `tell`."""
        self.record: Callable[[Mapping[str, Topic | None], Done], None] = lambda changed, done: done(None)
        """Told of changes that somebody waits for; None: the topic is deleted. `done` when no failover can undo them."""
        self.on_delete: Callable[[str], None] = lambda topic: None
        self.made_by_send: Callable[[str, str], None] = lambda topic, default_topic: None
        """Told of a topic that its first message made, and in whose image."""
        self.texts = Fragments[str](lambda name: member(name, self._table[name].encode()))
        self.saving = SavedDocument(shared, "topics.json", self._snapshot, pause=by_size(lambda: len(self._table)))
        self._table: dict[str, Topic] = {}
        settings = self.settings
        own = (settings.broker_cluster_name, settings.broker_name, settings.broker_cluster_name + names.REPLY_SUFFIX)
        self._system = names.SYSTEM_TOPICS | frozenset(own)
        self._found_again: set[str] = set()  # topics that were found again from their messages

    def load(self) -> None:
        table = self.saving.load(calls.TopicTable.decode)
        if table is not None:
            self.data_version = table.data_version
            self._table = {topic.topic_name: topic for topic in table.topic_config_table.values()}

    def open(self) -> None:
        """Add the topics every broker has, and those whose messages are here."""
        for name, deletion in self.store.deletions.table.items():
            if deletion.topics_version > self.data_version.counter and self._table.pop(name, None) is not None:
                log.warning("topic %s is in %s, but it was deleted after that was written", name, self.saving.document.path)
        self._count_on()
        settings = self.settings
        inherit = Perm.READ | Perm.WRITE | Perm.INHERIT
        self._seed(names.SELF_TEST_TOPIC, 1)
        self._settle(self._default_topic())
        self._seed(names.BENCHMARK_TOPIC, 1_024)
        self._settle(Topic(settings.broker_cluster_name, 16, 16, int(inherit if settings.cluster_topic_enable else Perm.INHERIT)))
        self._settle(Topic(settings.broker_name, 1, 1, int(inherit if settings.broker_topic_enable else Perm.INHERIT)))
        self._seed(names.OFFSET_MOVED_TOPIC, 1)
        self._seed(names.SCHEDULE_TOPIC, DELAY_LEVELS)
        schedule, levels = self._table[names.SCHEDULE_TOPIC], len(self.store.delays_ms)
        schedule.read_queue_nums, schedule.write_queue_nums = max(schedule.read_queue_nums, levels), max(schedule.write_queue_nums, levels)
        if settings.trace_topic_enable:
            self._seed(settings.msg_trace_topic_name, 1)
        self._seed(settings.broker_cluster_name + names.REPLY_SUFFIX, 1)
        self._find_lost()
        self.texts.changed(self._table)
        for topic in self._table.values():
            self._set_plain_queues(topic)

    def _count_on(self) -> None:
        """Where topics.json was lost its version begins anew; what is made from now on must not look older than a deletion."""
        newest = max((deletion.topics_version for deletion in self.store.deletions.table.values()), default=0)
        if newest > self.data_version.counter:
            self.data_version = replace(self.data_version, counter=newest)

    def _is_recent(self, queue: ConsumeQueue) -> bool:
        """Was its last message stored since the last checkpoint before a crash? Then topics.json may be older than it is. What was hidden
        before that was hidden by an operator, who made the topic smaller."""
        entry = blocking(queue.entry, queue.next - 1) if self.store.crashed else None
        return entry is not None and entry[0] >= self.store.recovered_from

    def _find_lost(self) -> None:
        """A topic made by a send just before a crash may not have reached topics.json, or the file is gone, while its messages are
        safe in the log: they were acknowledged, so they must be reachable."""
        widened = False
        for (name, queue_id), queue in sorted(self.store.queues.items()):
            if queue.next > queue.first:
                known = self._table.get(name)
                if known is None or name in self._found_again:
                    path = self.saving.document.path
                    log.warning("topic %s is not in %s, but queue %d has messages: it is made again", name, path, queue_id)
                    self._found_again.add(name)
                    self._table[name] = Topic(name, queue_id + 1, queue_id + 1)
                elif known.read_queue_nums <= queue_id and self._is_recent(queue):
                    log.warning("topic %s has %d queues now: a crash left messages in a queue that it did not have yet", name, queue_id + 1)
                    count = max(known.write_queue_nums, queue_id + 1)
                    self._table[name] = replace(known, read_queue_nums=queue_id + 1, write_queue_nums=count)
                    widened = True
        if self._found_again or widened:
            self.data_version = self.data_version.next(self.clock.now_ms())
            self.saving.unsaved = True  # the first tick writes it: nothing is written before everything is open

    def _seed(self, name: str, queues: int) -> None:
        if name not in self._table:
            self._table[name] = Topic(name, queues, queues)

    def _settle(self, wanted: Topic | None) -> None:
        """A topic that the settings alone decide: nobody can change it, so the file's, of an earlier start, does not count."""
        if wanted is not None and self._table.get(wanted.topic_name) != wanted:
            if wanted.topic_name in self._table:
                self.data_version = self.data_version.next(self.clock.now_ms())
            self._table[wanted.topic_name] = wanted

    def _default_topic(self) -> Topic | None:
        """TBW102, from which automatic topics are made. None: there is none, and none is wanted."""
        automatic, queues = self.settings.auto_create_topic_enable, self.settings.default_topic_queue_nums
        if not automatic and names.DEFAULT_TOPIC not in self._table:
            return None
        return Topic(names.DEFAULT_TOPIC, queues, queues, int(Perm.READ | Perm.WRITE | (Perm.INHERIT if automatic else 0)))

    # Looking

    def get(self, name: str) -> Topic | None:
        return self._table.get(name)

    def all(self) -> Iterable[Topic]:
        return self._table.values()

    def __len__(self) -> int:
        return len(self._table)

    def encode(self) -> bytes:
        """All of it, as upstream writes it: a TopicTable."""
        return self._snapshot()()

    def _snapshot(self) -> Callable[[], bytes]:
        members, version = self.texts.members(), self.data_version
        return lambda: encode_table(members, version)

    def system_topics(self) -> list[str]:
        return sorted(self._system)

    def is_system(self, name: str) -> bool:
        return name in self._system or name.startswith(names.SYSTEM_TOPIC_PREFIX)

    # Changing

    def ensure(self, name: str, queues: int = 1, *, perm: int = 6, sys_flag: int = 0) -> Topic:
        found = self._table.get(name)
        return found if found is not None else self.put(Topic(name, queues, queues, perm, topic_sys_flag=sys_flag))

    def reachable(self, name: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if consumers are told of it. None: `make_reachable` comes first. A pull that waits makes a queue, too, which its topic
        may not have."""
        queue = self.store.find_queue(name, queue_id)
        if queue is None or queue.next:
            return queue
        known = self._table.get(name)
        return queue if known is not None and queue_id < known.read_queue_nums else None

    def make_reachable(self, name: str, queue_id: int) -> None:
        """The first message of this queue comes from elsewhere in the log: a transaction, a delay. Its topic may have been made by another
        node that told nobody of it, and consumers read no queue that their topic does not have. A deleted topic stays deleted."""
        wider = self._wider(name, queue_id)
        if wider is not None:
            with contextlib.suppress(Refused):
                self.put(wider)

    def widen_at_stop(self, queues: Mapping[str, int]) -> None:
        """The same for all of these, at a clean stop: nothing may begin in the background, and `save_now` comes after this."""
        for name, queue_id in queues.items():
            wider = self._wider(name, queue_id)
            if wider is not None:
                self._table[name] = wider
                self.texts.changed([name])
                self.data_version = self.data_version.next(self.clock.now_ms())
                self.saving.unsaved = True

    def _wider(self, name: str, queue_id: int) -> Topic | None:
        """The topic with this queue. None: it has it already, or is deleted."""
        known = self._table.get(name)
        if known is None and name not in self.store.deletions.table:
            known = Topic(name, 0, 0)
        if known is None or queue_id < known.read_queue_nums:
            return None
        count = queue_id + 1
        log.warning("topic %s has %d queues now, it had %d: a message of the log belongs there", name, count, known.read_queue_nums)
        return replace(known, read_queue_nums=count, write_queue_nums=max(count, known.write_queue_nums))

    def create_on_send(self, name: str, default_topic: str, producer: str, queues_wanted: int) -> Topic | None:
        """Automatic creation: as many queues as the producer wants and the default topic allows. None: not allowed."""
        if name.startswith(names.RETRY_PREFIX):
            return self.ensure(name)
        default = self._table.get(default_topic)
        if default is None or not default.perm & Perm.INHERIT:
            return None
        if default_topic == names.DEFAULT_TOPIC and not self.settings.auto_create_topic_enable:
            return None
        queues = max(0, min(queues_wanted, default.write_queue_nums))
        if queues == 0:
            return None
        log.info("topic %s made with %d queues for producer %s", name, queues, producer)
        made = self.put(Topic(name, queues, queues, default.perm & ~int(Perm.INHERIT)))
        self.made_by_send(name, default_topic)
        return made

    def put(self, topic: Topic, done: Done | None = None) -> Topic:
        """Create or replace. `done` is called when it is on disk and the name servers know it, or with why it is not on disk."""
        self.put_all([topic], done)
        return topic

    def put_all(self, topics: Sequence[Topic], done: Done | None = None) -> None:
        """All or none: one change, one save, one registration. Raises Refused."""
        fresh = len({topic.topic_name for topic in topics if topic.topic_name not in self._table})
        if fresh and len(self._table) + fresh > self.settings.accept_topics_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker holds {len(self._table)} topics, limit is acceptTopicsMax={self.settings.accept_topics_max}",
            )
        if fresh:
            self.newcomers.let_in(fresh)
        for topic in topics:
            known = self._table.get(topic.topic_name)
            if known is not None:
                self._warn_of_hidden_messages(known, topic)
            self._table[topic.topic_name] = topic
            self._set_plain_queues(topic)
        self._next_version([topic.topic_name for topic in topics], done)

    def delete(self, name: str, done: Done | None = None) -> None:
        """`done` is called when no crash can bring it back and the name servers know, or with what could not be written."""
        self.plain_queues.pop(name, None)
        self.retry_queues.pop(name, None)
        known = self._table.pop(name, None) is not None
        if known:
            self.texts.removed(name)

        def noted(error: Exception | None) -> None:
            # Not before: should a crash come between, the topic is still whole, or known to be deleted.
            if error is None and known:
                self._next_version((), done, gone=name)
            elif done is not None:
                done(error)

        self.store.delete_topic(name, self.data_version.counter + 1, noted)
        self.on_delete(name)
        self.notices.clear(f"hidden {name}")

    def _next_version(self, names: Sequence[str], done: Done | None, gone: str = "") -> None:
        """These topics changed, or this one is gone."""
        self.data_version = self.data_version.next(self.clock.now_ms())
        self.texts.changed(names)
        if done is None:
            self.saving.changed()
            self.changed(names, lambda: None)
            return
        waiting: list[Exception | None] = []

        def one(error: Exception | None = None) -> None:
            waiting.append(error)
            if len(waiting) == 3:
                done(next(filter(None, waiting), None))

        self.record({name: self._table.get(name) for name in (*names, *filter(None, [gone]))}, one)
        self.saving.changed(one)
        self.changed(names, one)

    def take_over(self, table: calls.TopicTable) -> bool:
        """A slave's table is its master's, as long as that has another version. False: it has this one."""
        if table.data_version == self.data_version:
            return False
        gone = self._table.keys() - table.topic_config_table.keys()
        for name in gone:
            del self._table[name]
            self.plain_queues.pop(name, None)
            self.retry_queues.pop(name, None)
            self.texts.removed(name)
        changed = [name for name, topic in table.topic_config_table.items() if self._table.get(name) != topic]
        for name in changed:
            topic = self._table[name] = table.topic_config_table[name]
            self._set_plain_queues(topic)
        self.data_version = table.data_version
        self.texts.changed(changed)
        self.saving.changed()
        return True

    def touch(self) -> None:
        """A new version of the same table, for a name server that holds this version and not all of its topics."""
        self.data_version = self.data_version.next(self.clock.now_ms())
        self.saving.changed()

    def settings_changed(self, names: AbstractSet[str]) -> None:
        if "broker_permission" in names:
            for topic in self._table.values():
                self._set_plain_queues(topic)
        if names & {"default_topic_queue_nums", "auto_create_topic_enable"}:
            self._defaults_changed()

    def _defaults_changed(self) -> None:
        """What automatic topics are made from is now as the settings say, and the name servers hear of it."""
        wanted = self._default_topic()
        if wanted is not None and self._table.get(names.DEFAULT_TOPIC) != wanted:
            self._table[names.DEFAULT_TOPIC] = wanted  # not through `put`: no limit may refuse what the settings say already
            self._set_plain_queues(wanted)
            self._next_version([names.DEFAULT_TOPIC], None)

    def _set_plain_queues(self, topic: Topic) -> None:
        name = topic.topic_name
        plain = not name.startswith(names.DLQ_PREFIX) and name not in names.NOT_ALLOWED_SEND_TOPICS
        queues = self.retry_queues if name.startswith(names.RETRY_PREFIX) else self.plain_queues
        if plain and topic.perm & Perm.WRITE and not (topic.order and not self.settings.broker_permission & Perm.WRITE):
            queues[name] = PlainQueues(self.store, topic)
        else:
            queues.pop(name, None)

    def _warn_of_hidden_messages(self, old: Topic, new: Topic) -> None:
        """Fewer read queues than before hide what is in the others: nothing is lost, but somebody should know."""
        name, reached = new.topic_name, new.read_queue_nums
        hidden = [queue for queue in self.store.queues_of(name) if queue.queue_id >= reached and queue.visible > queue.first]
        if not hidden:
            self.notices.clear(f"hidden {name}")
            return
        count = sum(queue.visible - queue.first for queue in hidden)
        self.notices.warn(
            f"hidden {name}",
            f"topic {name}: {count} messages stand in queues {', '.join(str(queue.queue_id) for queue in hidden)}, which its "
            f"{reached} read queues no longer reach (it had {old.read_queue_nums}). They are kept: raise readQueueNums to read them. "
            "To shrink without this, lower writeQueueNums first and readQueueNums when those queues are consumed.",
        )

    # Requests

    @answers(calls.UPDATE_AND_CREATE_TOPIC)
    def update(self, peer: Peer, command: Command) -> None:
        header = calls.UPDATE_AND_CREATE_TOPIC.read_header(command)
        topic = Topic(
            header.topic, header.read_queue_nums, header.write_queue_nums, header.perm, header.topic_filter_type or "SINGLE_TAG",
            header.topic_sys_flag or 0, bool(header.order),
        )  # fmt: skip
        self.check(topic)
        if header.only_if_absent and topic.topic_name in self._table:
            answer_when_saved(peer, command)(None)
            return
        log.info("%s asked for %s", peer.address, spelled(topic))
        # Upstream leaves this remark on its success; clients ignore it, the golden frame has it.
        self.put(topic, answer_when_saved(peer, command, command.reply(0, "not set any response code")))

    @answers(calls.UPDATE_AND_CREATE_TOPIC_LIST)
    def update_many(self, peer: Peer, command: Command) -> None:
        """18, of 5.x: a list of configurations, all or none."""
        topics = calls.UPDATE_AND_CREATE_TOPIC_LIST.read_body(command).topic_config_list
        if not topics:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the body holds no topicConfigList")
        for topic in topics:
            self.check(topic)
        self.put_all(topics, answer_when_saved(peer, command))

    def check(self, topic: Topic) -> None:
        """Raises Refused for what nobody may ask for."""
        names.check_topic(topic.topic_name)
        if self.is_system(topic.topic_name):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The topic[{topic.topic_name}] is conflict with system topic.")
        for what, count in (("readQueueNums", topic.read_queue_nums), ("writeQueueNums", topic.write_queue_nums)):
            if not 0 < count <= QUEUES_MAX:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"{what}={count}: allowed are 1 to {QUEUES_MAX}")
        if not 0 <= topic.perm <= 7:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"perm={topic.perm}: allowed are 0 to 7 (4 read, 2 write, 1 inherit)")
        if topic.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topicFilterType={topic.topic_filter_type!r}: expected SINGLE_TAG or MULTI_TAG")

    @answers(calls.GET_ALL_TOPIC_CONFIG)
    def get_all(self, peer: Peer, command: Command) -> Command:
        return calls.GET_ALL_TOPIC_CONFIG.reply(command, body=self.encode())

    @answers(calls.DELETE_TOPIC_IN_BROKER)
    def remove(self, peer: Peer, command: Command) -> None:
        name = calls.DELETE_TOPIC_IN_BROKER.read_header(command).topic
        names.check_topic(name)
        if self.is_system(name):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        log.info("topic %s deleted from %s", name, peer.address)
        self.delete(name, answer_when_saved(peer, command))


class PlainQueues(dict[str, ConsumeQueue]):
    """Text of a queue id -> queue, filled at first use; what it does not hold is not a queue that takes plain sends."""

    def __init__(self, store: Store, topic: Topic) -> None:
        super().__init__()
        self.store = store
        self.topic = topic

    def __missing__(self, text: str) -> ConsumeQueue:
        queue_id = int(text)  # ValueError for anything else: the caller takes the slow path
        if str(queue_id) != text or not 0 <= queue_id < max(self.topic.read_queue_nums, self.topic.write_queue_nums):
            raise KeyError(text)
        queue = self[text] = self.store.queue(self.topic.topic_name, queue_id)
        return queue


def encode_table(members: Sequence[bytes], version: DataVersion) -> bytes:
    """A TopicTable of topics that are texts already."""
    return b'{"topicConfigTable":{' + b",".join(members) + b'},"dataVersion":' + version.encode() + b"}"
