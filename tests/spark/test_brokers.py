"""Brokers as a Place: what is read is what was sent, whatever the broker answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet import Message
from roquet.errors import ClientError, ConnectFailed, NoRoute, Rejected
from roquet.message import MessageQueue
from roquet.net.blocking import Call, Room
from roquet.routing.subscription import TagFilter, subscribe
from roquet.spark import answers, brokers
from roquet.spark.answers import CHUNK_BYTES, CHUNK_ROWS, ROOM_BYTES
from roquet.spark.brokers import BrokerPlace, EndMissing
from roquet.spark.places import Chunk, DataGone, Wanted
from roquet.spark.tags import TagCheck
from roquet.wire.calls.call import AnyCall
from roquet.wire.calls.offsets import QUERY_CONSUMER_OFFSET, QueryOffsetHeader
from roquet.wire.calls.routes import BrokerData, QueueData, RouteInfo
from roquet.wire.command import Command
from roquet.wire.layout import MAGIC_V1, MAGIC_V2
from roquet.wire.record import Record, decode_properties, decode_records

from .conftest import Servers


def records(chunk: Chunk) -> list[Record]:
    assert (np.diff(chunk.positions) > 0).all()
    places = zip(chunk.positions.tolist(), chunk.sizes.tolist(), strict=True)
    return decode_records(b"".join(bytes(chunk.data[at : at + size]) for at, size in places))


def read(place: BrokerPlace, queue: MessageQueue, start: int, stop: int, wanted: Wanted | None = None) -> list[Record]:
    return [record for chunk in place.chunks(queue, start, stop, wanted or Wanted()) for record in records(chunk)]


def offsets(found: list[Record]) -> list[int]:
    return [record.queue_offset for record in found]


# ---- real servers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(servers: Servers) -> Iterator[BrokerPlace]:
    made = BrokerPlace(servers.namesrv, group="spark_reader", timeout_s=10)
    yield made
    made.close()


class TestARealBroker:
    def test_is_read_message_by_message_once_and_in_order(self, servers: Servers, place: BrokerPlace) -> None:
        topic = servers.topic("BrokersAll", 3)
        bodies = [f"body {n}".encode() for n in range(1_000)]
        servers.send(Message(topic, body) for body in bodies)
        queues = place.queues(topic)
        assert [queue.queue_id for queue in queues] == [0, 1, 2]
        assert topic in place.topics()
        bounds = place.bounds(queues)
        found: list[bytes] = []
        for queue in queues:
            first, end = bounds[queue]
            got = read(place, queue, first, end)
            assert offsets(got) == list(range(first, end))
            found += [record.body for record in got]
        assert sorted(found) == sorted(bodies)

    def test_answers_large_pulls_and_reads_the_same_without_them(
        self, servers: Servers, place: BrokerPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = servers.topic("BrokersPlain", 1)
        servers.send(Message(topic, b"x" * (1 + n % 300)) for n in range(2_000))
        (queue,) = place.queues(topic)
        large = read(place, queue, 3, 1_999)
        assert place._scans == {place.address_of(queue): True}
        plain = BrokerPlace(servers.namesrv, group="spark_reader")
        monkeypatch.setattr(brokers, "SCAN_BYTES", 0)
        assert read(plain, queue, 3, 1_999) == large
        assert plain._scans == {place.address_of(queue): False}
        assert offsets(large) == list(range(3, 1_999))
        plain.close()

    def test_that_was_asked_for_a_time_still_answers_large_pulls(self, servers: Servers, place: BrokerPlace) -> None:
        topic = servers.topic("BrokersBoth", 1)
        servers.send(Message(topic, b"x") for _ in range(500))
        (queue,) = place.queues(topic)
        assert place.offsets_at([queue], 1) == {queue: 0}
        assert offsets(read(place, queue, 0, 500)) == list(range(500))
        assert place._scans == {place.address_of(queue): True}

    def test_that_learns_large_pulls_while_plain_ones_are_under_way_answers_nothing_twice(
        self, servers: Servers, place: BrokerPlace
    ) -> None:
        topic = servers.topic("BrokersLearn", 1)
        servers.send(Message(topic, b"x") for _ in range(500))
        (queue,) = place.queues(topic)
        place._scans[place.address_of(queue)] = False
        assert offsets(read(place, queue, 0, 500)) == list(range(500))

    def test_filters_by_the_tag_itself_and_not_by_its_hash(self, servers: Servers, place: BrokerPlace) -> None:
        topic = servers.topic("BrokersTags", 1)
        servers.send(Message(topic, b"%d" % n, tags=("Aa", "BB", "C")[n % 3]) for n in range(300))  # Aa and BB have one hash
        (queue,) = place.queues(topic)
        assert [int(record.body) % 3 for record in read(place, queue, 0, 300, Wanted(tags="BB"))] == [1] * 100
        assert len(read(place, queue, 10, 290, Wanted(tags="Aa || C"))) == sum(n % 3 != 1 for n in range(10, 290))
        assert read(place, queue, 0, 300, Wanted(tags="nobody")) == []

    def test_filters_by_sql_where_brokers_do(self, start_servers: Callable[..., Servers], servers: Servers, place: BrokerPlace) -> None:
        refusing = MessageQueue(servers.topic("BrokersNoSql", 1), "broker-a", 0)
        with pytest.raises(Rejected) as caught:
            read(place, refusing, 0, 1, Wanted(sql="n >= 150"))
        assert str(caught.value).count("enablePropertyFilter=true") == 1  # what to do is said, and said once
        willing = start_servers(settings={"enablePropertyFilter": "true"})
        topic = willing.topic("BrokersSql", 1)
        willing.send(Message(topic, b"%d" % n, properties={"n": str(n)}) for n in range(200))
        other = BrokerPlace(willing.namesrv, group="spark_reader")
        (queue,) = other.queues(topic)
        assert [int(record.body) for record in read(other, queue, 0, 190, Wanted(sql="n >= 150"))] == list(range(150, 190))
        other.close()

    def test_finds_the_first_message_of_a_moment(self, servers: Servers, place: BrokerPlace) -> None:
        topic = servers.topic("BrokersTime", 1)
        servers.send(Message(topic, b"%d" % n) for n in range(50))
        for n in range(50, 60):
            servers.send([Message(topic, b"%d" % n)])
        (queue,) = place.queues(topic)
        times = [record.store_timestamp for record in read(place, queue, 0, 60)]
        for moment in {*times, times[0] - 1, times[-1] + 1, times[30] + 1}:
            expected = next((n for n, at in enumerate(times) if at >= moment), 60)
            assert place.offsets_at([queue], moment) == {queue: expected}

    def test_remembers_a_group_s_progress_only_when_told(self, servers: Servers, place: BrokerPlace) -> None:
        topic = servers.topic("BrokersCommit", 2)
        servers.send(Message(topic, b"x") for _ in range(20))
        queues = place.queues(topic)
        bounds = place.bounds(queues)
        for queue in queues:
            read(place, queue, *bounds[queue])

        place.commit("brokers_progress", {queue: bounds[queue][1] for queue in queues})
        assert place._numbers(queues, QUERY_CONSUMER_OFFSET, lambda queue: committed(queue, "brokers_progress")) == {
            queue: bounds[queue][1] for queue in queues
        }
        # Of a group that never committed, brokers say that it stands at the beginning.
        others = place._numbers(queues, QUERY_CONSUMER_OFFSET, lambda queue: committed(queue, "spark_reader"))
        assert others == dict.fromkeys(queues, 0)

    def test_says_what_is_gone_and_what_is_not_there_any_more(
        self, servers: Servers, place: BrokerPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(brokers, "END_WAIT_S", 0.05)
        topic = servers.topic("BrokersEnd", 1)
        servers.send(Message(topic, b"x") for _ in range(10))
        (queue,) = place.queues(topic)
        for start, stop in ((5, 20), (10, 11), (15, 20)):
            with pytest.raises(EndMissing, match="the queue now ends at 10") as caught:
                read(place, queue, start, stop)
            assert caught.value.available == 10

    def test_a_topic_that_nobody_has_has_no_route(self, place: BrokerPlace) -> None:
        with pytest.raises(NoRoute, match="BrokersNobody"):
            place.queues("BrokersNobody")
        assert place.bounds([MessageQueue("BrokersNobody", "broker-x", 0)]) == {}


def committed(queue: MessageQueue, group: str) -> QueryOffsetHeader:
    return QueryOffsetHeader(group, queue.topic, queue.queue_id)


def test_no_name_server_is_said_with_its_address() -> None:
    with pytest.raises(ConnectFailed, match=r"no name server answered .*127\.0\.0\.1:1"):
        BrokerPlace("127.0.0.1:1", group="g").topics()


# ---- a broker that answers as upstream's do, without sockets ----------------------------------------------------------

QUEUE = MessageQueue("T", "b", 0)


@dataclass
class Upstream:
    """Stands in for the connections: answers at most `most` messages, knows no scanBytes, and fails when told to."""

    end: int
    first: int = 0
    most: int = 32
    failures: int = 0
    """So many of the next pulls fail."""
    holes: frozenset[int] = frozenset()
    namesrv: bool = True
    pulls: list[tuple[int, int]] = field(default_factory=list)
    under_way: dict[int, Command | ClientError] = field(default_factory=dict)
    most_under_way: int = 0
    in_room: bool = False
    """Large bodies are received where the reader wants them."""

    def call(self, address: str, command: Command, timeout_s: float) -> Command:
        if not self.namesrv:
            raise ConnectFailed("nobody there")
        route = RouteInfo(queue_datas=[QueueData("b", 1, 1, 6)], broker_datas=[BrokerData("c", "b", {0: "broker:1"})])
        return command.reply(0, None, {}, route.encode())

    def start(self, address: str, command: Command, timeout_s: float) -> Call:
        begin, count = int(command.fields["queueOffset"]), int(command.fields["maxMsgNums"])
        self.pulls.append((begin, count))
        number = len(self.pulls)
        self.under_way[number] = self.answer(command, begin, count)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return Call(address, number, 0.0, None)  # type: ignore[arg-type]

    def answer(self, command: Command, begin: int, count: int) -> Command | ClientError:
        if self.failures:
            self.failures -= 1
            return ConnectFailed("the connection was lost")
        fields = {"suggestWhichBrokerId": "0", "minOffset": str(self.first), "maxOffset": str(self.end)}
        if begin < self.first:
            return command.reply(21, "OFFSET_TOO_SMALL", fields | {"nextBeginOffset": str(self.first)})
        if begin >= self.end:
            return command.reply(19 if begin == self.end else 21, "OVERFLOW", fields | {"nextBeginOffset": str(self.end)})
        after = min(begin + min(count, self.most), self.end)
        body = b"".join(Record("T", 0, b"%d" % n, queue_offset=n).encode() for n in range(begin, after) if n not in self.holes)
        return command.reply(0, "FOUND", fields | {"nextBeginOffset": str(after)}, body)

    def wait(self, call: Call, room: Room | None = None) -> Command:
        answer = self.under_way.pop(call.opaque)
        if isinstance(answer, ClientError):
            raise answer
        if room is not None and self.in_room and len(answer.body) <= room.left:
            room.put(answer.body)
            answer.body = b""
        return answer

    def forget(self, call: Call) -> None:
        del self.under_way[call.opaque]


@dataclass
class Scanned(Upstream):
    """Answers large pulls: up to `scan_bytes` of records that grow from 100 bytes on."""

    scan_bytes: int = 100_000
    body_bytes: int = 0
    in_room: bool = True

    def answer(self, command: Command, begin: int, count: int) -> Command | ClientError:
        stop = min(int(command.fields["scanStop"]), self.end)
        found: list[bytes] = []
        for n in range(begin, stop):
            found.append(Record("T", 0, b"%d" % n + bytes(self.body_bytes + n % 97), queue_offset=n).encode())
            if len(found) > 1 and sum(map(len, found)) > self.scan_bytes:
                found.pop()
                break
        sizes = b"".join(len(one).to_bytes(4, "big") for one in found)
        fields = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(self.end), "scanCount": str(len(found))}
        return command.reply(0, "FOUND", fields | {"nextBeginOffset": str(begin + len(found))}, b"".join(found) + sizes)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(brokers, "time", made)
    return made


def place_of(upstream: Upstream) -> BrokerPlace:
    made = BrokerPlace("n:1", group="g")
    made._caller = upstream  # type: ignore[assignment]
    return made


def gather(place: BrokerPlace, found: list[Record]) -> None:
    """The first 200, one chunk after another: what came before a failure stays in `found`."""
    for chunk in place.chunks(QUEUE, 0, 200, Wanted()):
        found += records(chunk)


class TestABrokerThatAnswersLargePulls:
    def test_has_the_next_answer_on_its_way_while_one_is_used(self, clock: Clock) -> None:
        scanned = Scanned(20_000)
        chunks = place_of(scanned).chunks(QUEUE, 5, 19_990, Wanted())
        found = records(next(chunks))
        assert len(scanned.under_way) == 1
        for chunk in chunks:
            found += records(chunk)
        assert offsets(found) == list(range(5, 19_990))
        assert not scanned.under_way
        whole = 19_985 * len(Record("T", 0, bytes(52)).encode())
        assert len(scanned.pulls) < 1.1 * whole / scanned.scan_bytes + 1

    def test_and_answers_less_from_some_moment_on_leaves_no_hole(self, clock: Clock) -> None:
        scanned, found = Scanned(9_000), list[Record]()
        for chunk in place_of(scanned).chunks(QUEUE, 0, 9_000, Wanted()):
            found += records(chunk)
            scanned.scan_bytes = 30_000 if scanned.scan_bytes > 30_000 else 80_000
        assert offsets(found) == list(range(9_000))

    def test_fills_chunks_with_several_answers_in_one_stretch_of_memory(self, clock: Clock) -> None:
        scanned = Scanned(24_000, body_bytes=1_000, scan_bytes=1 << 20)
        chunks = list(place_of(scanned).chunks(QUEUE, 0, 24_000, Wanted()))
        assert offsets([record for chunk in chunks for record in records(chunk)]) == list(range(24_000))
        assert all(chunk.data.nbytes >= CHUNK_BYTES - 10_000 for chunk in chunks[:-1])
        assert len(chunks) < len(scanned.pulls)
        assert all(chunk.data.obj.nbytes == ROOM_BYTES for chunk in chunks)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("in_room", [True, False])
    @pytest.mark.parametrize(("scan_bytes", "room_bytes"), [(9_000_000, ROOM_BYTES), (3_000_000, 5_000_000)])
    def test_with_more_than_there_is_room_for_is_read_all_the_same(
        self, clock: Clock, monkeypatch: pytest.MonkeyPatch, scan_bytes: int, room_bytes: int, in_room: bool
    ) -> None:
        monkeypatch.setattr(answers, "ROOM_BYTES", room_bytes)
        scanned = Scanned(3_000, body_bytes=6_000, scan_bytes=scan_bytes, in_room=in_room)
        assert offsets(read(place_of(scanned), QUEUE, 0, 3_000)) == list(range(3_000))

    def test_leaves_earlier_chunks_as_they_were(self, clock: Clock) -> None:
        chunks = place_of(Scanned(12_000)).chunks(QUEUE, 0, 12_000, Wanted())
        first = next(chunks)
        before = bytes(first.data)
        list(chunks)
        assert bytes(first.data) == before


class TestABrokerOfUpstream:
    def test_is_asked_for_several_answers_ahead(self, clock: Clock) -> None:
        upstream = Upstream(1_000)
        assert offsets(read(place_of(upstream), QUEUE, 5, 990)) == list(range(5, 990))
        assert upstream.most_under_way == brokers.AHEAD
        assert len(upstream.pulls) == -(-985 // 32)  # not one message was asked for twice
        assert not upstream.under_way

    @pytest.mark.parametrize("most", [1, 7, 31])
    def test_that_answers_less_than_asked_leaves_no_hole(self, clock: Clock, most: int) -> None:
        upstream = Upstream(500, most=most)
        assert offsets(read(place_of(upstream), QUEUE, 0, 500)) == list(range(500))
        assert len(upstream.pulls) < 500 / most + 3 * brokers.AHEAD + 500 / 32

    def test_small_answers_are_gathered_to_large_chunks(self, clock: Clock) -> None:
        chunks = list(place_of(Upstream(10_000)).chunks(QUEUE, 0, 10_000, Wanted()))
        assert [len(chunk.sizes) for chunk in chunks] == [CHUNK_ROWS, 10_000 - CHUNK_ROWS]
        assert offsets([record for chunk in chunks for record in records(chunk)]) == list(range(10_000))

    def test_that_is_away_for_a_while_is_waited_for(self, clock: Clock) -> None:
        upstream = Upstream(200)
        place = place_of(upstream)
        chunks = place.chunks(QUEUE, 0, 200, Wanted())
        upstream.failures = 20
        assert offsets([record for chunk in chunks for record in records(chunk)]) == list(range(200))
        assert clock.now > 1_003

    def test_that_is_away_too_long_fails_with_what_was_read_and_how_long_it_took(self, clock: Clock) -> None:
        upstream = Upstream(200, failures=10_000)
        with pytest.raises(ConnectFailed, match=r"reading T/0 on b at offset 7, tried for 120 s"):
            read(place_of(upstream), QUEUE, 7, 200)
        assert 1_120 <= clock.now < 1_125

    def test_is_read_on_when_the_name_servers_are_away(self, clock: Clock) -> None:
        upstream = Upstream(200)
        place = place_of(upstream)
        assert offsets(read(place, QUEUE, 0, 50)) == list(range(50))
        upstream.namesrv = False
        upstream.failures = 3
        clock.sleep(100)
        assert offsets(read(place, QUEUE, 50, 200)) == list(range(50, 200))
        with pytest.raises(ConnectFailed, match="no name server answered"):
            place.queues("Other")

    def test_that_removed_messages_says_from_where_on_they_are_there(self, clock: Clock) -> None:
        with pytest.raises(DataGone) as caught:
            read(place_of(Upstream(200, first=50)), QUEUE, 10, 200)
        assert (caught.value.start, caught.value.available) == (10, 50)

    def test_that_leaves_a_message_out_is_noticed(self, clock: Clock) -> None:
        found: list[Record] = []
        with pytest.raises(DataGone) as caught:
            gather(place_of(Upstream(200, holes=frozenset((70, 71)))), found)
        assert (caught.value.start, caught.value.available) == (70, 72)
        assert offsets(found) == list(range(70))

    def test_whose_queue_ends_too_early_is_given_a_moment_and_then_fails(self, clock: Clock) -> None:
        found: list[Record] = []
        with pytest.raises(EndMissing) as caught:
            gather(place_of(Upstream(100)), found)
        assert offsets(found) == list(range(100))
        assert (caught.value.start, caught.value.available) == (100, 100)
        assert clock.now - 1_000 >= brokers.END_WAIT_S

    def test_an_abandoned_read_leaves_nothing_under_way(self, clock: Clock) -> None:
        upstream = Upstream(100_000)
        chunks = place_of(upstream).chunks(QUEUE, 0, 100_000, Wanted())
        next(chunks)
        assert upstream.under_way
        chunks.close()  # type: ignore[attr-defined]
        assert not upstream.under_way


# ---- tags -------------------------------------------------------------------------------------------------------------

PROPERTIES = st.lists(
    st.tuples(st.sampled_from(["TAGS", "TAG", "XTAGS", "KEYS", "a"]), st.sampled_from(["a", "b", "ab", "TAGS", "\u00e9", ""])), max_size=5
)


@given(
    st.lists(
        st.tuples(PROPERTIES, st.binary(max_size=40), st.booleans(), st.sampled_from([8, 20]), st.sampled_from([MAGIC_V1, MAGIC_V2])),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from(["a", "a || b", "\u00e9||ab", "TAGS", "nobody"]),
)
def test_tags_are_found_as_the_careful_decoder_finds_them(
    drawn: list[tuple[list[tuple[str, str]], bytes, bool, int, int]], expression: str
) -> None:
    made = []
    for pairs, body, ends, host, magic in drawn:
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + ("\x02" if ends else "")
        body = body + b"TAGS\x01a\x02"  # a body may look like a property
        made.append(Record("T", 0, body, text.encode(), born_host=bytes(host), magic=magic))
    data = [record.encode() for record in made]
    sizes = np.array([len(one) for one in data], np.int32)
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    check = TagCheck.of(expression)
    assert check is not None
    takes = TagFilter.of(subscribe("T", expression)).takes_tag
    expected = [takes(decode_properties(record.properties).get("TAGS")) for record in made]
    assert check.takes(memoryview(b"".join(data)), positions, sizes).tolist() == expected


def test_everything_needs_no_check() -> None:
    assert TagCheck.of(None) is TagCheck.of("*") is TagCheck.of("") is None


def test_a_search_by_time_names_its_broker_and_no_other_field_by_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(Upstream(10))
    asked: list[tuple[int, dict[str, str]]] = []

    def numbers(queues: list[MessageQueue], call: AnyCall, header: Callable[[MessageQueue], object]) -> dict[MessageQueue, int]:
        asked.extend((command.code, command.fields) for command in (call.request(header(queue)) for queue in queues))
        return {}

    monkeypatch.setattr(place, "_numbers", numbers)
    place.offsets_at([QUEUE], 1_700_000_000_000)
    assert asked[0] == (29, {"topic": QUEUE.topic, "queueId": "0", "timestamp": "1700000000000", "bname": QUEUE.broker_name})
