"""With the extension a broker does what it does without, byte for byte. `make sanitize` plays many more of these reads."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from roquet.broker import core
from roquet.broker.part import Part
from roquet.broker.send_properties import SPECIAL, UNUSUAL
from roquet.broker.topics import Topic
from roquet.ports import Background, Clock
from roquet.settings import BrokerSettings
from roquet.speedups import native, why_not
from roquet.store.disk import Disk, RealDisk, RealFile
from roquet.store.ledger_part import LedgerPlace
from roquet.store.store import Store
from roquet.testing import ManualBackground, ManualClock
from roquet.wire.batch import join_batch
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from tests.hostile import mutations

from .fuzzed_sends import Side, play
from .usual_sends import USUAL
from .whole import Whole, send_fields

SEND = re.compile(rb'"code": ?(10|310|320)\b|^.{8}(\x00\x0a|\x01\x36|\x01\x40)', re.DOTALL)

pytestmark = pytest.mark.skipif(native is None, reason=f"the extension is not here: {why_not}")


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path)
    made.broker.topics.put(Topic("T", 200, 200))
    yield made
    made.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_two_brokers_one_without_it_do_the_same_with_the_same_reads(tmp_path: Path, seed: int) -> None:
    report = play(120, seed, tmp_path)
    assert report.compiled > 500
    assert report.closed > 5
    assert report.together > 30


def test_they_do_the_same_where_messages_carry_the_region(tmp_path: Path) -> None:
    assert play(40, 6, tmp_path, region_in_messages="true").compiled > 100


def test_they_do_the_same_while_each_send_waits_for_its_flush(tmp_path: Path) -> None:
    assert play(40, 3, tmp_path, flush_disk_type="SYNC_FLUSH").compiled > 100


class StoreOfAGroupOfOne(Store):
    """Its log is DLedger's, and what is written is committed."""

    def __init__(self, disk: Disk, settings: BrokerSettings, clock: Clock, background: Background, *_: object) -> None:
        place = LedgerPlace(f"{settings.store_path_root_dir}/dledger-n0", index_file_size=32 * 1_000)
        super().__init__(disk, settings, clock, background, place)

    def open(self, *arguments: Any) -> None:
        super().open(*arguments)
        self.applier.lead()

    def commit(self) -> None:
        super().commit()
        assert self.ledger is not None
        self.ledger.ledger.note_committed(self.ledger.ledger.end)


@pytest.mark.parametrize("seed", [4, 5])
def test_they_do_the_same_with_the_log_of_a_dledger_group(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "Store", StoreOfAGroupOfOne)
    monkeypatch.setattr(core, "GroupMember", lambda shared, *_: Part(shared))  # no group decides here
    report = play(60, seed, tmp_path)
    assert report.compiled > 200
    segments = [path.stat().st_size for path in (tmp_path / "compiled").rglob("data/*")]
    assert len(segments) > 1
    monkeypatch.undo()
    place = LedgerPlace(f"{tmp_path / 'compiled'}/dledger-n0", index_file_size=32 * 1_000)
    settings = BrokerSettings(
        store_path_root_dir=str(tmp_path / "compiled"), mapped_file_size_commit_log=1 << 17, mapped_file_size_consume_queue=6_000
    )
    store = Store(RealDisk(), settings, ManualClock(), ManualBackground(), place)
    shutil.rmtree(tmp_path / "compiled" / "consumequeue")
    store.open()
    assert not store.holes
    assert sum(queue.visible for queue in store.queues.values()) == report.messages
    store.close()


@pytest.mark.parametrize("corpus", [mutations.wrong_fields, mutations.wrong_heads, lambda: mutations.damaged(Random(3), 60)])
def test_they_do_the_same_with_hostile_frames(tmp_path: Path, corpus: Callable[[], Iterable[bytes]]) -> None:
    sides = [Side(tmp_path / "python", compiled=False), Side(tmp_path / "compiled", compiled=True)]
    sends = [frame for frame in corpus() if SEND.search(frame[:400])]
    assert len(sends) > 10
    for frame in sends:
        for side in sides:
            side.connect(bytes(8))
            side.read(frame)
        one, other = (side.state() for side in sides)
        assert one == other, frame[:500]
    for side in sides:
        side.whole.close()
    assert sides[0].files() == sides[1].files()


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_send_of_each_client_is_done_by_it_but_to_retry_topics(tmp_path: Path, name: str) -> None:
    side = Side(tmp_path, compiled=True)
    side.read(USUAL[name] * 2)
    assert side.broker.sender.plain.compiled == (0 if "retry topic" in name else 2)
    assert side.broker.sender.fast == 2
    side.whole.close()


@pytest.mark.parametrize("name", sorted(UNUSUAL))
def test_what_asks_for_more_than_storing_is_left_to_python(whole: Whole, name: str) -> None:
    """The extension spells these names too."""
    whole.ask(310, send_fields(properties=f"{name}\x010"), b"x")
    if name in SPECIAL:
        whole.ask(320, send_fields(m="true", properties="WAIT\x01true"), join_batch([(0, b"x", f"a{name}\x010".encode())]))
    assert whole.broker.sender.plain.compiled == 0


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_a_zero_character_in_a_unique_key_is_refused(whole: Whole, binary: bool, batch: bool) -> None:
    text = "UNIQ_KEY\x01a\0b\x02WAIT\x01true"
    body = join_batch([(0, b"x", text.encode())]) if batch else b"x"
    fields = send_fields(m="true", properties="WAIT\x01true") if batch else send_fields(properties=text)
    end = whole.broker.store.log.end
    assert whole.ask(320 if batch else 310, fields, body, binary=binary).code == ResponseCode.MESSAGE_ILLEGAL
    assert whole.broker.store.log.end == end


@pytest.mark.parametrize(("asks", "inside"), [("DELAY\x011", "SCHEDULE_TOPIC_XXXX"), ("TRAN_MSG\x01true", "RMQ_SYS_TRANS_HALF_TOPIC")])
def test_a_message_that_goes_elsewhere_first_opens_that_place_to_no_other(whole: Whole, asks: str, inside: str) -> None:
    waits = Command(310, send_fields(properties=f"UNIQ_KEY\x01U1\x02{asks}"), b"it waits", opaque=1)
    direct = [Command(310, send_fields(inside, number), b"it must not", opaque=2 + number) for number in range(2)]
    whole.frames(waits, *direct)
    codes = {answer.opaque: answer.code for answer in whole.peer.take()}
    assert codes == {1: 0, 2: ResponseCode.NO_PERMISSION, 3: ResponseCode.NO_PERMISSION}


def test_a_read_that_touches_more_queues_than_one_run_holds_is_done_in_several(whole: Whole) -> None:
    sends = [Command(310, send_fields(queue_id=number), b"x", opaque=number) for number in range(200)]
    whole.frames(*sends)
    assert [answer.opaque for answer in whole.peer.take()] == list(range(200))
    assert whole.broker.sender.plain.compiled == 200


def test_a_write_that_fails_is_answered_to_everyone_of_a_run(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RealFile, "write", fail)
    sends = [Command(310, send_fields(), b"x", opaque=number, binary=number % 2 == 1) for number in range(4)]
    sends.append(Command(310, send_fields(), b"x", opaque=9, flag=2))
    whole.frames(*sends)
    answers = whole.peer.take()
    assert [(answer.opaque, answer.binary, answer.code) for answer in answers] == [
        (number, number % 2 == 1, ResponseCode.SERVICE_NOT_AVAILABLE) for number in range(4)
    ]
    assert whole.broker.sender.failed == 5
    assert whole.broker.store.queue("T", 0).next == 0
    assert whole.broker.store.index.waiting == 0


def test_a_mistake_inside_is_answered_and_the_other_requests_go_on(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = whole.broker.sender.plain, []

    class Faulty:
        def take_sends(self, reads: Any, at: int, *rest: Any) -> Any:
            calls.append(at)
            if len(calls) <= 2:  # with what others sent in the same turn, and alone
                raise MemoryError("on purpose")
            assert native is not None
            return native.take_sends(reads, at, *rest)

    monkeypatch.setattr(plain, "native", Faulty())
    whole.frames(*(Command(310, send_fields(), b"x", opaque=number) for number in range(3)))
    assert [(answer.opaque, answer.code) for answer in whole.peer.take()] == [(0, ResponseCode.SYSTEM_ERROR), (1, 0), (2, 0)]
    assert whole.broker.store.queue("T", 0).next == 2


def test_a_mistake_in_the_second_run_of_a_read_is_answered_once_and_those_of_the_first_are_stored(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken again, those of the first run would be stored twice."""
    plain, calls = whole.broker.sender.plain, []

    class Faulty:
        def take_sends(self, reads: Any, at: int, *rest: Any) -> Any:
            calls.append(at)
            if len(calls) == 2:
                raise MemoryError("on purpose")
            assert native is not None
            return native.take_sends(reads, at, *rest)

    monkeypatch.setattr(plain, "native", Faulty())
    whole.frames(*(Command(310, send_fields(queue_id=number), b"x", opaque=number) for number in range(70)))
    answers = [(answer.opaque, answer.code) for answer in whole.peer.take()]
    assert sorted(answers) == [(number, ResponseCode.SYSTEM_ERROR if number == 64 else 0) for number in range(70)]
    assert [whole.broker.store.queue("T", number).next for number in range(70)] == [int(number != 64) for number in range(70)]


FIXED = (b"", b"", b"", b"", b"12345", b"", b"")
NOBODY = SimpleNamespace(host=bytes(8))
NOTHING_SENT: tuple[Any, ...] = ([(NOBODY, [])], 0, {}, {}, FIXED, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {0: ()}, {0: [5]}, {0: [()]}, {0: [(NOBODY, [], 0)]}, {0: [(NOBODY, ())]}, {0: [(NOBODY, [5])]}, {0: [(NOBODY, [(0, b"")])]},
        {0: [(NOBODY, [(0, "text", b"")])]}, {0: [(NOBODY, [("JSON", b"", b"")])]}, {0: [(NOBODY, []), (NOBODY, 5)]},
        {0: [(SimpleNamespace(host="text"), [])]}, {0: [(SimpleNamespace(host=None), [])]}, {0: [(SimpleNamespace(), [])]},
        {1: -1}, {1: "0"}, {2: []}, {3: []}, {4: ()}, {4: ("text", *FIXED[1:])}, {4: (*FIXED[:4], b"1234", *FIXED[5:])}, {4: FIXED[:6]},
        {4: [*FIXED]}, {5: "0"}, {6: "0"}, {7: 1.5}, {8: None},
    ],
)  # fmt: skip
def test_wrong_arguments_are_exceptions(wrong: dict[int, Any]) -> None:
    assert native is not None
    assert native.take_sends(*NOTHING_SENT) == (0, 0, b"", [(0, b"")], [], [], b"")
    with pytest.raises((TypeError, ValueError, AttributeError)):
        native.take_sends(*[wrong.get(at, argument) for at, argument in enumerate(NOTHING_SENT)])


def test_frames_come_out_of_the_compiled_framer(whole: Whole) -> None:
    assert native is not None
    assert Framer().feed(USUAL["ours"])[0] == native.cut_frames(USUAL["ours"], 1 << 20)[0][0]
