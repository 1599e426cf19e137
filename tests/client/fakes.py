"""A clock that is moved by hand, and a cluster in a few dicts behind a Caller: just enough of a broker for the client's tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from random import Random

from roquet.client.core.instance import ClientCore
from roquet.errors import CallTimeout, ConnectFailed, RoquetError
from roquet.message import MessageQueue
from roquet.ports import Answered
from roquet.testing.clock import ManualClock
from roquet.wire.batch import split_batch
from roquet.wire.calls.members import ConsumerList, HeartbeatBody
from roquet.wire.calls.pulls import PullHeader, PullResponseHeader
from roquet.wire.calls.queues import LockBody, LockResult
from roquet.wire.calls.routes import BrokerData, ClusterInfo, QueueData, RouteInfo
from roquet.wire.calls.sends import PushReplyHeader, SendBackHeader, SendHeader, SendResponseHeader
from roquet.wire.codes import PullFlag, RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command
from roquet.wire.headers import decode, encode
from roquet.wire.ids import offset_message_id
from roquet.wire.record import Record, decode_properties, encode_properties

DELAYS_MS = [1000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)]
START_MS = 1_700_000_000_000
NAME_SERVER = "ns:9876"
STORE_HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])

Override = Callable[[str, Command], Command | RoquetError | None]


class FakeCluster:
    """A Caller whose servers live in this object. Answers are delivered by run(), never inside call()."""

    def __init__(self, *broker_names: str, name_servers: tuple[str, ...] = (NAME_SERVER,)) -> None:
        self.clock = ManualClock(START_MS)
        self.name_servers = name_servers
        self.masters = {name: f"{name}:10911" for name in broker_names}
        self.topics: dict[str, dict[str, QueueData]] = {}  # topic -> broker name -> queues
        self.log: dict[MessageQueue, list[Record]] = defaultdict(list)
        self.first: dict[MessageQueue, int] = defaultdict(int)  # offset of the first one that still exists
        self.offsets: dict[tuple[str, MessageQueue], int] = {}
        self.members: dict[str, list[str]] = defaultdict(list)  # group -> client ids
        self.refused: set[str] = set()  # addresses with nobody listening
        self.silent: set[str] = set()  # addresses that never answer
        self.overrides: dict[int, Override] = {}
        self.asked: list[tuple[str, Command]] = []
        self.heartbeats: list[tuple[str, HeartbeatBody]] = []
        self.cores: list[ClientCore] = []
        self.locks: dict[tuple[str, MessageQueue], tuple[str, int]] = {}  # (group, queue) -> (client id, until)
        self.delayed: list[tuple[int, MessageQueue, Record]] = []  # what is delivered at a time
        self.half: list[Record] = []
        self.retry_max = 16  # of every group
        self.push: Callable[[str, Command], object] = self.ask  # how a broker reaches a client of its own accord
        self._out: list[tuple[str, Command, int, Answered | None]] = []
        self._held: list[tuple[str, Command, int, int, Answered]] = []  # address, pull, hold until, times out at, done
        self._due: list[tuple[int, Answered]] = []  # calls to the silent

    # -- building

    def client(self, name: str = "c1", seed: int = 7) -> ClientCore:
        core = ClientCore(name_servers=self.name_servers, client_id=name, caller=self, clock=self.clock, random=Random(seed))
        self.cores.append(core)
        return core

    def create_topic(self, topic: str, queues: int = 4, brokers: list[str] | None = None, perm: int = 6) -> list[MessageQueue]:
        names = brokers or list(self.masters)
        self.topics[topic] = {name: QueueData(name, queues, queues, perm) for name in names}
        return [MessageQueue(topic, name, queue_id) for name in names for queue_id in range(queues)]

    def append(self, queue: MessageQueue, body: bytes, properties: str = "") -> Record:
        return self.store(queue, Record(queue.topic, queue.queue_id, body, properties.encode(), born_host=STORE_HOST))

    def store(self, queue: MessageQueue, record: Record) -> Record:
        record.topic, record.queue_id = queue.topic, queue.queue_id
        record.queue_offset = self.first[queue] + len(self.log[queue])
        record.physical_offset = 1000 * sum(len(log) for log in self.log.values())
        record.store_timestamp, record.store_host = self.clock.ms, STORE_HOST
        self.log[queue].append(record)
        return record

    def ask(self, name: str, command: Command) -> list[Command]:
        """A broker's request to the client of this name; its answers."""
        answers: list[Command] = []
        core = next(core for core in self.cores if core.client_id == name)
        core.receive(next(iter(self.masters.values())), command, answers.append)
        return answers

    # -- time

    def run(self) -> None:
        """Deliver until nothing is left to deliver now."""
        while self._out or self._ready_pulls():
            out, self._out = self._out, []
            for address, command, timeout_ms, done in out:
                self._deliver(address, command, timeout_ms, done)

    def advance(self, ms: int, step_ms: int = 10) -> None:
        end = self.clock.ms + ms
        self.run()
        while self.clock.ms < end:
            self.clock.ms += min(step_ms, end - self.clock.ms)
            due = [(queue, record) for at_ms, queue, record in self.delayed if at_ms <= self.clock.ms]
            self.delayed = [one for one in self.delayed if one[0] > self.clock.ms]
            for queue, record in due:
                self.store(queue, record)
            late = [done for due, done in self._due if due <= self.clock.ms]
            self._due = [(due, done) for due, done in self._due if due > self.clock.ms]
            for done in late:
                done(CallTimeout("no answer in time"))
            for core in self.cores:
                if not core.closed:
                    core.tick(self.clock.ms)
            self.run()

    def advance_until(self, condition: Callable[[], bool], limit_ms: int = 5_000) -> None:
        end = self.clock.ms + limit_ms
        self.run()
        while not condition():
            assert self.clock.ms < end, f"did not happen within {limit_ms} ms"
            self.advance(10)

    # -- ports.Caller

    def call(self, address: str, command: Command, timeout_ms: int, done: Answered) -> None:
        self._out.append((address, command, timeout_ms, done))

    def oneway(self, address: str, command: Command) -> None:
        command.flag |= ONEWAY
        self._out.append((address, command, 0, None))

    def hang_up(self, address: str) -> None:
        pass

    # -- what arrived, for assertions

    def requests(self, code: int) -> list[Command]:
        return [command for _, command in self.asked if command.code == code]

    def addresses(self, code: int) -> list[str]:
        return [address for address, command in self.asked if command.code == code]

    # -- the servers

    def _deliver(self, address: str, command: Command, timeout_ms: int, done: Answered | None) -> None:
        self.asked.append((address, command))
        if address in self.refused:
            if done is not None:
                done(ConnectFailed(f"cannot connect to {address}"))
            return
        if address in self.silent:
            if done is not None:
                self._due.append((self.clock.ms + timeout_ms, done))
            return
        answer = self.overrides[command.code](address, command) if command.code in self.overrides else None
        if answer is None:
            answer = self._answer(address, command, timeout_ms, done)
        if answer is not None and done is not None:
            done(answer)

    def _answer(self, address: str, command: Command, timeout_ms: int, done: Answered | None) -> Command | None:
        fields = command.fields
        match command.code:
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = self.topics.get(fields["topic"])
                if queues is None:
                    return command.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
                brokers = [BrokerData("c", name, {0: self.masters[name]}) for name in queues if name in self.masters]
                return command.reply(body=RouteInfo(list(queues.values()), brokers).encode(standard=True))
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                table = {name: BrokerData("c", name, {0: address}) for name, address in self.masters.items()}
                return command.reply(body=ClusterInfo(table, {"c": set(table)}).encode())
            case RequestCode.HEART_BEAT:
                body = HeartbeatBody.decode(command.body)
                self.heartbeats.append((address, body))
                for consumer in body.consumer_data_set:
                    if body.client_id not in self.members[consumer.group_name]:
                        self.members[consumer.group_name].append(body.client_id)
                return command.reply()
            case RequestCode.UNREGISTER_CLIENT:
                members = self.members[fields.get("consumerGroup", "")]
                if fields["clientID"] in members:
                    members.remove(fields["clientID"])
                return command.reply()
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return command.reply(body=ConsumerList(list(self.members[fields["consumerGroup"]])).encode())
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._stored(address, command)
            case RequestCode.SEND_REPLY_MESSAGE_V2:
                return self._replied(command)
            case RequestCode.CONSUMER_SEND_MSG_BACK:
                return self._sent_back(command)
            case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
                return self._lock(command)
            case RequestCode.END_TRANSACTION:
                return None
            case RequestCode.PULL_MESSAGE:
                assert done is not None
                if int(fields["sysFlag"]) & PullFlag.COMMIT_OFFSET:  # now, not when it is answered
                    self.offsets[fields["consumerGroup"], self._queue(fields)] = int(fields["commitOffset"])
                suspend = int(fields["suspendTimeoutMillis"]) if int(fields["sysFlag"]) & PullFlag.SUSPEND else 0
                self._held.append((address, command, self.clock.ms + suspend, self.clock.ms + timeout_ms, done))
                return None
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.offsets.get((fields["consumerGroup"], self._queue(fields)))
                return command.reply(ResponseCode.QUERY_NOT_FOUND) if offset is None else command.reply(fields={"offset": str(offset)})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offsets[fields["consumerGroup"], self._queue(fields)] = int(fields["commitOffset"])
                return command.reply()
            case RequestCode.GET_MAX_OFFSET:
                queue = self._queue(fields)
                return command.reply(fields={"offset": str(self.first[queue] + len(self.log[queue]))})
            case RequestCode.GET_MIN_OFFSET:
                return command.reply(fields={"offset": str(self.first[self._queue(fields)])})
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                name = next(name for name, there in self.masters.items() if there == address)
                count = int(fields["readQueueNums"])
                self.topics.setdefault(fields["topic"], {})[name] = QueueData(name, count, count, int(fields["perm"]))
                return command.reply()
        return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {command.code} not supported")

    def _queue(self, fields: dict[str, str]) -> MessageQueue:
        return MessageQueue(fields["topic"], fields["bname"], int(fields["queueId"]))

    def _stored(self, address: str, command: Command) -> Command:
        header = decode(SendHeader, command.fields)
        assert header.broker_name is not None
        queue = MessageQueue(header.topic, header.broker_name, header.queue_id)
        if header.batch:
            records = [self.append(queue, body, properties.decode()) for _, body, properties in split_batch(command.body)]
        else:
            properties = decode_properties(header.properties or "")
            if "CORRELATION_ID" in properties:
                properties["CLUSTER"] = "c"  # a real broker adds it to all
            record = Record(
                queue.topic, queue.queue_id, command.body, encode_properties(properties).encode(), born_host=STORE_HOST,
                sys_flag=header.sys_flag, flag=header.flag, reconsume_times=header.reconsume_times or 0,
            )  # fmt: skip
            records = [record]
            level = int(properties.get("DELAY", "0"))
            if properties.get("TRAN_MSG") == "true":
                record.queue_offset, record.physical_offset = len(self.half), 7_000_000 + len(self.half)
                self.half.append(record)
            elif queue.topic.startswith("%RETRY%") and record.reconsume_times >= self._most(header.max_reconsume_times):
                self.store(MessageQueue(queue.topic.replace("%RETRY%", "%DLQ%"), queue.broker_name, 0), record)
            elif level:
                self._later(queue, record, level)
            else:
                self.store(queue, record)
        ids = ",".join(offset_message_id(STORE_HOST, record.physical_offset) for record in records)
        return command.reply(fields=encode(SendResponseHeader(ids, queue.queue_id, records[0].queue_offset, msg_region="DefaultRegion")))

    def _later(self, queue: MessageQueue, record: Record, level: int) -> None:
        self.delayed.append((self.clock.ms + DELAYS_MS[level - 1], queue, record))

    def _most(self, asked: int | None) -> int:
        return self.retry_max if asked is None else asked

    def _sent_back(self, command: Command) -> Command:
        header = decode(SendBackHeader, command.fields)
        found = next((record for log in self.log.values() for record in log if record.physical_offset == header.offset), None)
        if found is None:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        properties = decode_properties(found.properties)
        properties.setdefault("RETRY_TOPIC", found.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", header.origin_msg_id or "")
        copy = replace(found, properties=encode_properties(properties).encode(), reconsume_times=found.reconsume_times + 1)
        assert header.broker_name is not None
        if header.delay_level < 0 or found.reconsume_times >= self._most(header.max_reconsume_times):
            self.store(MessageQueue(f"%DLQ%{header.group}", header.broker_name, 0), copy)
        else:
            queue = MessageQueue(f"%RETRY%{header.group}", header.broker_name, 0)
            self._later(queue, copy, header.delay_level or 3 + found.reconsume_times)
        return command.reply()

    def _lock(self, command: Command) -> Command:
        body = LockBody.decode(command.body)
        locked: set[MessageQueue] = set()
        for queue in body.mq_set:
            owner, until = self.locks.get((body.consumer_group, queue), ("", 0))
            if command.code == RequestCode.UNLOCK_BATCH_MQ:
                if owner == body.client_id:
                    del self.locks[body.consumer_group, queue]
            elif owner in ("", body.client_id) or until <= self.clock.ms:
                self.locks[body.consumer_group, queue] = (body.client_id, self.clock.ms + 60_000)
                locked.add(queue)
        return command.reply(body=LockResult(locked).encode() if command.code == RequestCode.LOCK_BATCH_MQ else b"")

    def _replied(self, command: Command) -> Command:
        header = decode(SendHeader, command.fields)
        properties = decode_properties(header.properties or "")
        pushed = PushReplyHeader(
            header.producer_group, header.topic, header.default_topic, header.default_topic_queue_nums, header.queue_id,
            header.sys_flag, header.born_timestamp, header.flag, "10.0.0.9:555", "10.0.0.1:10911", self.clock.ms, header.properties,
        )  # fmt: skip
        push = Command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, encode(pushed), command.body)
        self.push(properties["REPLY_TO_CLIENT"], push)
        return command.reply(fields=encode(SendResponseHeader("0", header.queue_id, 0)))

    def _ready_pulls(self) -> bool:
        """Answer the held pulls that have something now, or whose time is over. True: some were."""
        ready: list[tuple[Answered, Command | RoquetError]] = []
        kept = []
        for held in self._held:
            address, command, until, _, done = held
            answer = self._pulled(command, self.clock.ms >= until)
            if answer is None:
                kept.append(held)
            elif address in self.refused:
                ready.append((done, ConnectFailed(f"the connection to {address} was lost")))
            else:
                ready.append((done, answer))
        self._held = kept
        for tell, result in ready:
            tell(result)
        return bool(ready)

    def _pulled(self, command: Command, over: bool) -> Command | None:
        header = decode(PullHeader, command.fields)
        assert header.broker_name is not None
        queue = MessageQueue(header.topic, header.broker_name, header.queue_id)
        first, end = self.first[queue], self.first[queue] + len(self.log[queue])
        if not first <= header.queue_offset <= end:
            place = first if header.queue_offset < first else end
            fields = encode(PullResponseHeader(0, place, first, end))
            return command.reply(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", fields)
        start = header.queue_offset - first
        found = self.log[queue][start : start + header.max_msg_nums]
        if found:
            body = b"".join(record.encode() for record in found)
            return command.reply(0, "FOUND", encode(PullResponseHeader(0, header.queue_offset + len(found), first, end)), body)
        if over:
            return command.reply(ResponseCode.PULL_NOT_FOUND, "none", encode(PullResponseHeader(0, header.queue_offset, first, end)))
        return None


class Results(list[object]):
    """Collects what callbacks get: pass `results.append`."""

    @property
    def only(self) -> object:
        assert len(self) == 1, f"expected one result, got {list(self)}"
        return self[0]
