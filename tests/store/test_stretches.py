"""Stretches of the log that are kept for several readers."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from roquet.store import stretches
from roquet.store.disk import Cold, RealDisk
from roquet.store.log import CommitLog
from roquet.store.segments import OpenFiles, Segments
from roquet.store.stretches import LogStretches
from roquet.store.window import LogWindow

from .test_window import Reads

FILE = 1_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    for name, value in (
        ("STRETCH", 100),
        ("BEHIND", 20),
        ("KEPT_MAX", 3),
        ("PIECE_MAX", 45),
        ("WORTH", 50),
        ("PAID", 150),
        ("COUNTED_MAX", 4),
    ):
        monkeypatch.setattr(stretches, name, value)
    made = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/commitlog", FILE))
    made.start_at(0)
    return made


def kept(log: CommitLog) -> LogStretches:
    return LogStretches(log, LogWindow(log).view)


def test_a_stretch_is_read_once_for_all_who_look_through_it(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for offset, size in ((200, 90), (210, 95), (299, 5), (230, 90)):
        assert shown.view(offset, size) == data[offset : offset + size]
    assert reads.seen == [(200, 120)]
    assert shown.view(280, 41) == data[280:321], "it ends farther behind"
    assert shown.view(400, 49) == data[400:449], "not worth a stretch"
    assert reads.seen[1:] == [(280, 41), (400, 49)]


def test_a_stretch_of_which_enough_was_wanted_in_small_pieces_is_read_whole(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for offset in (210, 250, 230, 270, 299):  # far from each other for a window, which would read on from the first
        assert shown.view(offset, 20) == data[offset : offset + 20]
    assert reads.seen == [(210, 20), (250, 20), (200, 120)]


def test_pieces_of_many_stretches_are_counted_for_the_last_ones_alone(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for offset in (500, 100, 200, 300, 400, 500, 100):  # 400 is one too many: all are forgotten
        assert shown.view(offset, 40) == data[offset : offset + 40]
    assert [size for _, size in reads.seen] == [40] * 7
    assert shown.view(500, 40) == data[500:540]
    assert reads.seen[-1] == (500, 120), "twice since then"


def test_with_more_readers_than_stretches_each_reads_little_more_than_its_own(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would find that another has taken the place of its stretch, and read it whole again for one piece."""
    monkeypatch.setattr(stretches, "COUNTED_MAX", 256)
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    wanted = 0
    for piece in range(3):
        for reader in range(9):
            offset = reader * 100 + piece * 30
            assert shown.view(offset, 30) == data[offset : offset + 30]
            wanted += 30
    assert sum(size for _, size in reads.seen) < 2 * wanted


def test_a_stretch_that_nobody_comes_back_to_goes_in_the_end(log: CommitLog) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown = kept(log)
    for number in (1, 2, 3, 1, 2, 3):
        shown.view(number * 100, 30)
    assert list(shown._kept) == [1, 2, 3]
    for _ in range(20):
        assert shown.view(500, 40) == data[500:540]
    assert list(shown._kept) == [2, 3, 5]


@pytest.mark.parametrize("by_others", [False, True])
def test_the_first_makes_room_when_enough_was_seen_in_all_of_them_and_not_before(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, by_others: bool
) -> None:
    """Wherever it was seen: in the last, or by somebody who looks into them without asking."""
    monkeypatch.setattr(stretches, "AGE", 1 << 30)
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown = kept(log)

    def want(number: int) -> list[int]:
        """30 bytes are seen in it, if it is read: the first piece alone is not worth that. Returns those that are there then."""
        for offset in (number * 100, number * 100 + 30):
            assert shown.view(offset, 30) == data[offset : offset + 30]
        assert shown._read_at.keys() == shown.kept().keys()
        return list(shown.kept())

    assert [want(number) for number in (1, 2, 3)][-1] == [1, 2, 3]
    assert shown.viewed == 90
    for size, there in ((59, [1, 2, 3]), (1, [2, 3, 5])):
        if by_others:
            assert len(shown.kept()[3]) == 120
            shown.viewed += size
        else:
            shown.view(320, size)
        assert want(5) == there
    assert [want(number) for number in (6, 7, 8)] == [[3, 5, 6], [5, 6, 7], [5, 6, 7]], "since each of them was read"


@pytest.mark.parametrize(("offset", "size"), [(250, 46), (250, 49), (280, 41), (295, 26)])
def test_a_piece_that_no_stretch_could_show_is_no_reason_to_read_one(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, offset: int, size: int
) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for _ in range(5):
        assert shown.view(offset, size) == data[offset : offset + size]
    assert reads.seen == [(offset, size)], "the window has it then"


def test_where_a_disk_cannot_read_a_stretch_the_piece_is_read_alone(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, read = kept(log), log.read_into

    def damaged(offset: int, room: memoryview) -> None:
        if len(room) > 60:
            raise OSError(5, "a bad sector")
        read(offset, room)

    monkeypatch.setattr(log, "read_into", damaged)
    assert shown.view(510, 55) == data[510:565]


def test_what_is_written_and_not_yet_safe_is_not_kept(tmp_path: Path, log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    other = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/other", FILE), sync_flush=True)
    other.start_at(0)
    data = Random(1).randbytes(FILE)
    other.append_raw(data)
    shown, reads = kept(other), Reads(other, monkeypatch)
    assert shown.view(200, 90) == data[200:290]
    assert (200, 120) not in reads.seen
    other.note_flushed(FILE)
    assert shown.view(200, 90) == data[200:290]
    assert (200, 120) in reads.seen


def test_a_stretch_that_cannot_be_read_is_not_tried_again_at_once(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, read = kept(log), log.read_into
    seen: list[tuple[int, int]] = []

    def small(offset: int, room: memoryview) -> None:
        seen.append((offset, len(room)))
        if len(room) > 30:
            raise Cold(lambda: None)
        read(offset, room)

    monkeypatch.setattr(log, "read_into", small)
    for offset in (210, 240, 270, 220, 250, 280):
        assert shown.view(offset, 25) == data[offset : offset + 25]
    assert seen.count((200, 120)) == 3, "after each second piece, and not for each"


def test_the_one_that_was_read_first_goes_first(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for number in (1, 2, 3, 1, 4, 3, 2, 1):  # each is used whole
        assert shown.view(number * 100, 100) == data[number * 100 : number * 100 + 100]
    assert [offset for offset, _ in reads.seen] == [100, 200, 300, 400, 100]


def test_a_stretch_ends_with_its_file_and_what_may_be_taken_back_is_not_kept(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE + 119)
    log.append_raw(data)
    shown, reads = kept(log), Reads(log, monkeypatch)
    for offset, size in ((900, 100), (910, 90), (FILE, 100), (FILE, 100)):
        assert shown.view(offset, size) == data[offset : offset + size]
    assert reads.seen[0] == (900, 100)
    assert FILE // 100 not in shown._kept, "a byte is missing"
    log.append_raw(b"x")
    assert shown.view(FILE, 100) == data[FILE : FILE + 100]
    assert reads.seen[-1] == (FILE, 120)
    with pytest.raises(LookupError):
        shown.view(FILE + 100, 100)


@pytest.mark.parametrize("size", [950, 1_050])
def test_files_that_are_no_stretches_long(tmp_path: Path, log: CommitLog, size: int) -> None:
    other = CommitLog(Segments(OpenFiles(RealDisk()), f"{tmp_path}/other", size))
    other.start_at(0)
    data = Random(1).randbytes(size * 3)
    for at in range(0, len(data), size):
        other.append_raw(data[at : at + size])
    shown, random = kept(other), Random(2)
    for _ in range(500):
        offset, length = random.randrange(len(data)), random.randrange(1, 130)
        if offset % size + length <= size:
            assert shown.view(offset, length) == data[offset : offset + length]


def test_a_log_that_is_cut_back_is_read_again(log: CommitLog) -> None:
    log.append_raw(b"a" * 400)
    shown = kept(log)
    assert shown.view(0, 100) == shown.view(0, 100) == shown.view(100, 100) == b"a" * 100
    assert list(shown.kept()) == [0, 1]
    log.start_at(50)
    log.append_raw(b"c" * 150)
    assert not shown.kept(), "whoever looks there finds nothing from before it"
    assert shown.view(0, 100) == b"a" * 50 + b"c" * 50
    assert list(shown._read_at) == list(shown.kept()) == [0]


def test_where_only_a_part_is_in_memory_that_part_is_read(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    data = Random(1).randbytes(FILE)
    log.append_raw(data)
    shown, read = kept(log), log.read_into

    def half(offset: int, room: memoryview) -> None:
        if offset + len(room) > 90:
            raise Cold(lambda: None)
        read(offset, room)

    monkeypatch.setattr(log, "read_into", half)
    assert shown.view(10, 80) == data[10:90]
    with pytest.raises(Cold):
        shown.view(11, 80)
