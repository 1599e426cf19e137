"""Messages that are not in memory and stand far from each other: one trip to the disk for an answer, not one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roquet.broker.core import Broker
from roquet.store.disk import Cold, DiskFile, RealDisk
from roquet.wire.record import decode_properties, decode_records

from .whole import Whole, pull_fields, send_fields

PAGE = 4_096


class ColdFile:
    def __init__(self, inner: DiskFile, disk: ColdDisk) -> None:
        self._inner, self._disk = inner, disk
        self.path = inner.path

    def read_now(self, offset: int, size: int) -> bytes:
        pages = {(self.path, page) for page in range(offset // PAGE, (offset + size - 1) // PAGE + 1)}
        if self._disk.cold and not pages <= self._disk.warm:
            raise Cold(lambda: self._disk.warm.update(pages))
        return self._inner.read_now(offset, size)

    def read_into(self, offset: int, room: memoryview) -> None:
        room[:] = self.read_now(offset, len(room))

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class ColdDisk(RealDisk):
    def __init__(self) -> None:
        self.cold = False
        self.warm: set[tuple[str, int]] = set()

    def open(self, path: str, *, size: int | None = None) -> DiskFile:
        file = super().open(path, size=size)
        return ColdFile(file, self) if "/commitlog/" in path else file  # type: ignore[return-value]

    def used_ratio(self, path: str) -> float:
        return 0.1


@pytest.fixture
def disk() -> ColdDisk:
    return ColdDisk()


@pytest.fixture
def went(disk: ColdDisk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return trips(disk, monkeypatch)


@pytest.fixture
def whole(went: list[int], disk: ColdDisk, tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", disk, enable_property_filter=True)
    for number in range(40):
        assert made.ask(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02a\x01{number}"), b"%d" % number).code == 0
        assert made.ask(310, send_fields("Between"), bytes(20_000)).code == 0
    disk.cold = True
    yield made
    disk.cold = False
    made.close()


def trips(disk: ColdDisk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every trip to the disk: the pages that each brought."""
    made: list[int] = []
    fetch = Broker._fetch

    def counted(self: Broker, cold: Cold, then: Callable[[], None]) -> None:
        before = len(disk.warm)
        fetch(self, cold, then)
        made.append(len(disk.warm) - before)

    monkeypatch.setattr(Broker, "_fetch", counted)
    return made


def test_32_cold_messages_far_from_each_other_are_one_answer_after_one_trip(whole: Whole, went: list[int]) -> None:
    answer = whole.ask(11, pull_fields())
    assert answer.code == 0, answer.remark
    assert [record.body for record in decode_records(answer.body)] == [b"%d" % number for number in range(32)]
    assert len(went) == 1


def test_what_is_in_memory_is_sent_and_the_rest_with_the_next_answer(whole: Whole, went: list[int]) -> None:
    whole.ask(11, pull_fields(maxMsgNums="5"))
    answer = whole.ask(11, pull_fields())
    assert [record.body for record in decode_records(answer.body)] == [b"%d" % number for number in range(5)]
    assert (answer.fields["nextBeginOffset"], len(went)) == ("5", 1)
    answer = whole.ask(11, pull_fields(offset=5))
    assert [record.body for record in decode_records(answer.body)] == [b"%d" % number for number in range(5, 37)]


def test_cold_messages_are_judged_by_an_sql_filter_after_one_trip(whole: Whole, went: list[int]) -> None:
    answer = whole.ask(11, pull_fields(subscription="a > 9 AND a < 20", expressionType="SQL92"))
    assert [record.body for record in decode_records(answer.body)] == [b"%d" % number for number in range(10, 20)]
    assert len(went) == 1


def test_due_messages_of_a_delay_level_that_are_cold_need_few_trips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ColdDisk()
    went = trips(disk, monkeypatch)
    whole = Whole(tmp_path / "store", disk)
    for number in range(200):
        assert whole.ask(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02DELAY\x011"), b"%d" % number).code == 0
        assert whole.ask(310, send_fields("Between"), bytes(20_000)).code == 0
    disk.cold = True
    for _ in range(10):
        whole.tick(1_000)
    disk.cold = False
    queue = whole.broker.store.queue("T", 0)
    assert queue.visible == 200
    assert len(went) <= 5
    record = whole.broker.store.record_at(queue.entry(0)[0])  # type: ignore[index]
    assert decode_properties(decode_records(record)[0].properties)["UNIQ_KEY"] == "U0"
    whole.close()
