"""Large pulls: the same messages as ordinary pulls give, in fewer answers, within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.broker import pull as pull_module
from roquet.broker import scans as scans_module
from roquet.broker.scans import AWAY_MS, BUSY_BYTES, UNREAD_MAX, Readers, spans
from roquet.store.disk import Cold, RealFile
from roquet.store.queue import ConsumeQueue
from roquet.testing import FakePeer
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_records

from .whole import Whole, pull_fields, send_fields

MIB = 1 << 20


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", enable_property_filter=True)
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def send(whole: Whole, *bodies: bytes, tag: str = "", queue_id: int = 0) -> None:
    properties = f"TAGS\x01{tag}\x02n\x01{len(tag)}" if tag else "a\x01b"
    for body in bodies:
        assert whole.ask(310, send_fields(properties=properties, queue_id=queue_id), body).code == 0


def scan(whole: Whole, offset: int = 0, size: int = MIB, *, binary: bool = False, **more: str) -> Command:
    return whole.ask(11, pull_fields(offset=offset, scanBytes=str(size)) | more, binary=binary)


def split(answer: Command) -> list[bytes]:
    """The records of a large answer, cut by the sizes that follow them."""
    count = int(answer.fields["scanCount"])
    sizes = np.frombuffer(answer.body[-4 * count :], ">i4").tolist()
    assert sum(sizes) == len(answer.body) - 4 * count
    ends = np.cumsum(sizes).tolist()
    return [answer.body[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(b"".join(split(answer)))]


class TestAScan:
    def test_answers_more_than_a_pull_does(self, whole: Whole) -> None:
        for n in range(300):
            send(whole, b"%d" % n, queue_id=0)
            send(whole, b"other", queue_id=1)
        answer = scan(whole)
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert bodies(answer) == [b"%d" % n for n in range(300)]
        assert answer.fields == {
            "suggestWhichBrokerId": "0", "nextBeginOffset": "300", "minOffset": "0", "maxOffset": "300", "scanCount": "300",
        }  # fmt: skip

    def test_is_the_same_in_the_binary_form(self, whole: Whole) -> None:
        send(whole, b"a", b"bb", b"ccc")
        plain, binary = scan(whole), scan(whole, binary=True)
        assert (binary.code, binary.fields, binary.body, binary.remark) == (0, plain.fields, plain.body, "FOUND")

    def test_stops_where_it_is_told(self, whole: Whole) -> None:
        send(whole, *(b"%d" % n for n in range(100)))
        answer = scan(whole, 10, scanStop="60")
        assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"%d" % n for n in range(10, 60)], "60")

    def test_never_waits_for_messages(self, whole: Whole) -> None:
        send(whole, b"x")
        assert scan(whole, 1, sysFlag="6").code == ResponseCode.PULL_NOT_FOUND

    def test_shows_only_what_the_flush_level_made_safe(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "sync", flush_disk_type="SYNC_FLUSH")
        whole.background.hold = True
        whole.frames(Command(310, send_fields(), b"x", opaque=1))
        assert scan(whole).code == ResponseCode.PULL_NOT_FOUND
        whole.background.hold = False
        whole.background.release()
        whole.peer.take()  # the answer to the send
        assert bodies(scan(whole)) == [b"x"]
        whole.close()

    def test_is_counted_as_a_pull_is(self, whole: Whole) -> None:
        send(whole, *[b"x"] * 50)
        scan(whole)
        row = whole.broker.stats._gets["T@g"]
        assert (row.count, row.times) == (50, 1)


class TestFilters:
    def test_tags_are_judged_by_their_hash(self, whole: Whole) -> None:
        for n in range(200):
            send(whole, b"%d" % n, tag=("Aa", "BB", "C")[n % 3])  # Aa and BB have one hash
        answer = scan(whole, subscription="Aa")
        assert bodies(answer) == [b"%d" % n for n in range(200) if n % 3 != 2]
        assert answer.fields["nextBeginOffset"] == "200"

    def test_the_offset_moves_over_what_nobody_wants(self, whole: Whole) -> None:
        send(whole, *[b"x"] * 100, tag="C")
        answer = scan(whole, subscription="D")
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "100")
        assert "scanCount" not in answer.fields

    def test_sql_is_judged_by_the_same_judge(self, whole: Whole) -> None:
        for n in range(100):
            send(whole, b"%d" % n, tag="x" * (1 + n % 4))
        answer = scan(whole, subscription="n >= 3", expressionType="SQL92")
        assert bodies(answer) == [b"%d" % n for n in range(100) if n % 4 >= 2]

    def test_an_expensive_filter_judges_fewer_in_one_answer(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pull_module, "WORK_MAX", 20)
        send(whole, *[b"x"] * 30, tag="x")
        answer = scan(whole, subscription="n = 1", expressionType="SQL92")
        assert 0 < int(answer.fields["nextBeginOffset"]) <= 20


class TestLimits:
    def test_bytes_of_the_reader_and_of_the_broker(self, whole: Whole) -> None:
        send(whole, *[bytes(10_000)] * 40)
        assert len(bodies(scan(whole, size=60_000))) == 5
        assert len(bodies(scan(whole, size=1))) == 1  # the first whatever its size
        whole.settings.max_scan_bytes = 30_000
        assert len(bodies(scan(whole))) == 2

    def test_while_messages_are_sent_answers_are_short(self, whole: Whole) -> None:
        send(whole, *[bytes(10_000)] * 150)
        assert len(bodies(scan(whole, size=4 * MIB))) == 150
        send(whole, b"another")
        assert len(bodies(scan(whole, size=4 * MIB))) == BUSY_BYTES // 10_100
        assert len(bodies(scan(whole, size=4 * MIB))) == 151

    def test_the_more_readers_there_are_the_shorter_are_answers(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scans_module, "UNREAD_MAX", 100_000)
        monkeypatch.setattr(scans_module, "SHARE_MIN", 30_000)
        send(whole, *[bytes(10_000)] * 20)
        first, others = whole.peer, [FakePeer(f"127.0.0.1:{number}") for number in range(1, 10)]
        assert [len(bodies(scan(whole))) for _ in range(2)] == [9, 9]
        whole.peer = others[0]
        assert len(bodies(scan(whole))) == 4  # half for each of two
        for whole.peer in others:
            assert len(bodies(scan(whole))) in (4, 3, 2)
        assert len(bodies(scan(whole))) == 2  # never less than that
        for peer in others:
            whole.broker.disconnected(peer)
        whole.peer = first
        assert len(bodies(scan(whole))) == 9

    def test_a_reader_that_asks_no_more_counts_no_more(self) -> None:
        readers, busy, silent = Readers(), FakePeer("127.0.0.1:1"), [FakePeer(f"127.0.0.1:{number}") for number in range(2, 33)]
        assert readers.share(busy, 1_000) == UNREAD_MAX
        for peer in silent:
            readers.share(peer, 2_000)
        assert readers.share(busy, 2_000 + AWAY_MS) == UNREAD_MAX // 32
        assert readers.share(busy, 2_001 + AWAY_MS) == UNREAD_MAX

    def test_entries_that_one_answer_looks_at_go_by_the_size_of_the_first_messages(
        self, whole: Whole, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(whole, *[bytes(1_000)] * 400)
        read, asked = ConsumeQueue.read, list[int]()

        def counted(self: ConsumeQueue, offset: int, count_max: int) -> bytes:
            asked.append(count_max)
            return read(self, offset, count_max)

        monkeypatch.setattr(ConsumeQueue, "read", counted)
        assert len(bodies(scan(whole, size=100_000))) == 89  # as many as there is room for
        assert max(asked) < 160

    def test_a_long_row_of_blank_entries_is_stepped_over_at_once(self, whole: Whole) -> None:
        send(whole, b"x")
        queue = whole.broker.store.queue("T", 0)
        for _ in range(1_000):
            queue.append(0, 0x7FFFFFFF, 0)
        queue.visible = queue.next
        assert scan(whole, 1).fields["nextBeginOffset"] == "1001"

    def test_bytes_read_over_foreign_messages(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scans_module, "SPAN_MAX", 20_000)
        monkeypatch.setattr(scans_module, "READ_BYTES_MAX", 60_000)
        for n in range(40):
            send(whole, b"%d" % n)
            send(whole, bytes(9_000), queue_id=1)
        answer = scan(whole)
        count = len(bodies(answer))
        assert 0 < count < 15
        assert answer.fields["nextBeginOffset"] == str(count)

    def test_reads_of_one_answer(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scans_module, "GAP_MAX", 1_000)
        monkeypatch.setattr(scans_module, "READS_MAX", 3)
        for n in range(10):
            send(whole, b"%d" % n)
            send(whole, bytes(2_000), queue_id=1)
        assert bodies(scan(whole)) == [b"0", b"1", b"2"]

    def test_turned_off_it_is_an_ordinary_pull(self, whole: Whole) -> None:
        send(whole, *[b"x"] * 50)
        whole.settings.max_scan_bytes = 0
        answer = scan(whole)
        assert "scanCount" not in answer.fields
        assert len(decode_records(answer.body)) == 32

    @pytest.mark.parametrize("text", ["0", "-1", "16777217", "many", "", "9" * 100, "\u0663"])
    def test_a_bad_number_of_bytes_is_refused_with_the_value_and_the_limit(self, whole: Whole, text: str) -> None:
        send(whole, b"x")
        answer = whole.ask(11, pull_fields(scanBytes=text))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"scanBytes={text[:40]!r}" in str(answer.remark)
        assert "16777216" in str(answer.remark)

    @pytest.mark.parametrize("text", ["5", "-1", "x"])
    def test_a_bad_stop_is_refused_with_the_value_and_the_limit(self, whole: Whole, text: str) -> None:
        send(whole, *[b"x"] * 9)
        answer = scan(whole, 5, scanStop=text)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"scanStop={text!r}" in str(answer.remark)
        assert "queueOffset=5" in str(answer.remark)

    def test_what_a_pull_may_not_a_scan_may_not(self, whole: Whole) -> None:
        send(whole, b"x")
        assert scan(whole, topic="Nobody").code == ResponseCode.TOPIC_NOT_EXIST
        assert "queueId[9] is illegal" in str(scan(whole, queueId="9").remark)
        whole.settings.broker_permission = 2
        assert scan(whole).code == ResponseCode.NO_PERMISSION


class TestAColdRead:
    def test_is_waited_for_elsewhere_and_all_of_it_at_once(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scans_module, "SPAN_MAX", 5_000)
        send(whole, *[bytes(1_000)] * 40)
        warm: set[tuple[int, int]] = set()
        read_now, fetched = RealFile.read_now, []

        def sometimes(self: RealFile, offset: int, size: int) -> bytes:
            if "commitlog" in self.path and (offset, size) not in warm:

                def fetch() -> None:
                    warm.add((offset, size))
                    fetched.append(size)

                raise Cold(fetch)
            return read_now(self, offset, size)

        def sometimes_into(self: RealFile, offset: int, room: memoryview) -> None:
            room[:] = sometimes(self, offset, len(room))

        monkeypatch.setattr(RealFile, "read_now", sometimes)
        monkeypatch.setattr(RealFile, "read_into", sometimes_into)
        trips: list[Cold] = []
        fetch = whole.broker.puller.fetch

        def counted(cold: Cold, then: Callable[[], None]) -> None:
            trips.append(cold)
            fetch(cold, then)

        monkeypatch.setattr(whole.broker.puller, "fetch", counted)
        assert len(bodies(scan(whole))) == 40
        assert len(trips) == 1
        assert len(fetched) > 5


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_scans_give_exactly_what_pulls_give(data: st.DataObject) -> None:
    messages = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(["", "a", "Aa", "BB"]), st.sampled_from([0, 7, 7, 7, 100, 3_000, 20_000])),
            min_size=1,
            max_size=120,
        )
    )
    subscription = data.draw(st.sampled_from(["*", "a", "Aa || zz", "zz"]))
    with TemporaryDirectory() as root:
        whole = Whole(Path(root) / "store", mapped_file_size_commit_log=65_536)
        for number, (queue_id, tag, size) in enumerate(messages):
            send(whole, b"%d" % number + bytes(size), tag=tag, queue_id=queue_id)
        for queue_id in range(3):
            end = sum(one[0] == queue_id for one in messages)
            pulls, at = b"", 0
            while at < end:
                answer = whole.ask(11, pull_fields(queue_id=queue_id, offset=at, subscription=subscription))
                pulls += answer.body
                at = int(answer.fields["nextBeginOffset"])
            found, at = b"", 0
            while at < end:
                size = data.draw(st.sampled_from([1, 300, 5_000, 50_000, MIB]))
                answer = scan(whole, at, size, queueId=str(queue_id), subscription=subscription)
                assert int(answer.fields["nextBeginOffset"]) > at
                if answer.code == 0:
                    found += b"".join(split(answer))
                at = int(answer.fields["nextBeginOffset"])
            assert found == pulls
        whole.close()


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(91, 300_000)), max_size=60))
def test_spans_cover_every_record_once_inside_one_file(pairs: list[tuple[int, int]]) -> None:
    file_size, at = 400_000, 0
    offsets, sizes = [], []
    for gap, size in pairs:
        at += gap
        if at % file_size + size > file_size:
            at += file_size - at % file_size
        offsets.append(at)
        sizes.append(size)
        at += size
    found = list(spans(np.array(offsets, np.int64), np.array(sizes, np.int64), file_size))
    begin = 0
    for span in found:
        assert span.start == offsets[begin]
        assert span.start + span.length == offsets[span.stop - 1] + sizes[span.stop - 1]
        assert span.size == sum(sizes[begin : span.stop])
        assert span.start // file_size == (span.start + span.length - 1) // file_size
        assert span.length <= scans_module.SPAN_MAX or span.stop == begin + 1
        begin = span.stop
    assert begin == len(offsets)
