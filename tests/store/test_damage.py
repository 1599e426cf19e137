"""Damage: what is broken is stepped over, reported and kept; what is whole is never lost with it."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roquet.errors import Damaged
from roquet.store import lost, scan
from roquet.store.disk import blocking
from roquet.store.scan import SECTOR, ZEROS, Found, Hole, Walk
from roquet.store.segments import OpenFiles, Segments
from roquet.store.store import Store
from roquet.testing import ManualBackground, SimDisk
from roquet.testing.clock import ManualClock
from roquet.testing.disk import PowerLost
from roquet.wire.layout import BLANK_LENGTH

from .conftest import RoomyDisk, StoreKit, bodies, put

COUNT = 60


def body(n: int) -> bytes:
    return b"message %d " % n + b"x" * 100


def filled(kit: StoreKit, count: int = COUNT) -> list[int]:
    """A store of several files with queues T/0 to T/2, and where its records begin. It is open."""
    store = kit.open(mapped_file_size_commit_log=4_096)
    places = []
    for n in range(count):
        places.append(put(store, queue_id=n % 3, body=body(n), properties=f"TAGS\x01a\x02KEYS\x01k{n}")[0])
        store.commit()
    return places


def stop(kit: StoreKit, how: str) -> None:
    """`clean`, `killed` (nothing was synced since the start), or `checkpointed` and killed."""
    store = kit.opened[-1]
    if how == "clean":
        store.close()
    else:
        if how == "checkpointed":
            kit.clock.ms += 20_000
            store.tick(kit.clock.ms)
        kit.crash(store)


def spoil(root: Path, offset: int, raw: bytes, size: int = 4_096) -> None:
    with open(root / "commitlog" / f"{offset - offset % size:020d}", "r+b") as file:
        file.seek(offset % size)
        file.write(raw)


def read_all(store: Store) -> list[bytes]:
    return sorted((one for queue_id in range(3) for one in bodies(store, queue_id=queue_id)), key=lambda one: int(one.split()[1]))


def forget_manifest(root: Path) -> None:
    for name in ("roquet.json", "roquet.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)


REASONS: dict[str, Callable[[Path], object]] = {
    "the index is gone": lambda root: shutil.rmtree(root / "index"),
    "a queue is gone": lambda root: shutil.rmtree(root / "consumequeue" / "T" / "1", ignore_errors=True),
    "every queue is gone": lambda root: shutil.rmtree(root / "consumequeue"),
    "roquet.json is gone": lambda root: forget_manifest(root),
    "the checkpoint is gone": lambda root: (root / "checkpoint").unlink(missing_ok=True),
    "index headers are damaged": lambda root: [one.write_bytes(b"\xff" * 40 + one.read_bytes()[40:]) for one in (root / "index").iterdir()],
    "nothing": lambda root: None,
}


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("how", ["clean", "killed", "checkpointed"])
def test_one_flipped_byte_of_a_body_costs_that_message_at_most(
    kit: StoreKit, how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    places = filled(kit)
    stop(kit, how)
    spoil(kit.root, places[7] + 150, b"\xff")
    REASONS[reason](kit.root)
    before = {path.name: path.read_bytes() for path in (kit.root / "commitlog").iterdir()}
    store = kit.open()
    found = read_all(store)
    assert {body(n) for n in range(COUNT) if n != 7} <= set(found)
    if store.holes:
        assert [(hole.offset, hole.size) for hole in store.holes] == [(places[7], places[8] - places[7])]
        assert any("checksum" in line and str(places[7]) in line for line in caplog.messages)
    # Nothing of the old log is overwritten, and what is new gets numbers of its own.
    number = store.queue("T", 0).next
    assert number == COUNT // 3
    offset, queue_offset = put(store, body=b"message 999 new")
    store.commit()
    assert (queue_offset, offset >= places[-1]) == (number, True)
    for name, raw in before.items():
        stop_at = min(len(raw), max(0, offset - int(name)))
        assert (kit.root / "commitlog" / name).read_bytes()[:stop_at] == raw[:stop_at]
    store.close()
    assert read_all(kit.open())[-1] == b"message 999 new"


@pytest.mark.parametrize("how", ["clean", "killed", "checkpointed"])
@pytest.mark.parametrize(
    ("what", "at", "raw"),
    [
        ("a wrong length", 0, struct.pack(">i", 100_000)),
        ("a short length", 0, struct.pack(">i", 92)),
        ("no magic", 4, b"\0\0\0\0"),
        ("another place", 28, struct.pack(">q", 17)),
        ("a queue far away", 12, struct.pack(">i", 2_000_000_000)),
        ("a number far ahead", 20, struct.pack(">q", 1 << 60)),
        ("a number ahead", 20, struct.pack(">q", 5_000)),
        ("a number far behind", 20, struct.pack(">q", 1)),
        ("a body of a negative length", 84, struct.pack(">i", -5)),
        ("zeros", 0, bytes(700)),
        ("noise", 0, bytes(range(256)) * 3),
    ],
)
def test_a_damaged_head_costs_what_it_covers_and_nothing_else(kit: StoreKit, how: str, what: str, at: int, raw: bytes) -> None:
    places = filled(kit)
    stop(kit, how)
    spoil(kit.root, places[8] + at, raw)
    shutil.rmtree(kit.root / "consumequeue")
    store = kit.open()
    hurt = {n for n, place in enumerate(places) if place < places[8] + at + len(raw) and n >= 8}
    assert {body(n) for n in range(COUNT) if n not in hurt} <= set(read_all(store)), what
    for queue_id in range(3):
        assert store.queue("T", queue_id).next == COUNT // 3
        for offset in range(COUNT // 3):
            entry = store.queue("T", queue_id).entry(offset)
            assert entry is not None
            n = offset * 3 + queue_id
            assert entry[0] == places[n] if n not in hurt else entry[1] == BLANK_LENGTH or entry[0] == places[n]


@pytest.mark.parametrize("clean", [True, False])
def test_a_blank_at_a_file_s_end_that_is_damaged_does_not_hide_the_next_file(kit: StoreKit, clean: bool) -> None:
    places = filled(kit)
    stop(kit, "clean" if clean else "killed")
    last = max(place for place in places if place < 4_096)
    size = int.from_bytes((kit.root / "commitlog" / f"{0:020d}").read_bytes()[last : last + 4], "big")
    spoil(kit.root, last + size, b"\xff" * 8)
    shutil.rmtree(kit.root / "consumequeue")
    assert read_all(kit.open()) == [body(n) for n in range(COUNT)]


def test_a_message_with_zeros_in_its_properties_that_is_in_the_log_hides_nothing(kit: StoreKit) -> None:
    store = kit.open(flush_disk_type="SYNC_FLUSH")
    # As earlier versions took them; today they are refused, so the zeros come into what was staged.
    put(store, topic="Odd", body=b"odd", properties="a0b\x01c\x02")
    put(store, topic="Odd", body=b"odder", properties="TAGS\x01t0\x02")
    store.log.staged[:] = [piece.replace(b"a0b", b"a\0b").replace(b"t0\x02", b"t\0\x02") for piece in store.log.staged]
    for n in range(200):
        put(store, body=b"%d" % n)
    store.commit()
    store.close()
    (kit.root / "config" / "roquet.json").unlink()
    store = kit.open()
    assert bodies(store) == [b"%d" % n for n in range(200)]
    assert bodies(store, topic="Odd") == [b"odd", b"odder"]
    kit.crash(store)
    store = kit.open()
    assert bodies(store) == [b"%d" % n for n in range(200)]
    assert bodies(store, topic="Odd") == [b"odd", b"odder"]


def test_the_log_s_last_record_stays_when_it_is_damaged_after_a_clean_stop(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "clean")
    spoil(kit.root, places[-1] + 150, b"\xff")
    forget_manifest(kit.root)
    shutil.rmtree(kit.root / "consumequeue")
    store = kit.open()
    assert read_all(store) == [body(n) for n in range(COUNT - 1)]
    assert put(store)[0] > places[-1]
    assert not (kit.root / "lost").exists()


def test_nothing_below_a_sync_is_cut_though_all_of_its_end_is_damaged(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "checkpointed")
    end = kit.opened[-1].log.written
    spoil(kit.root, places[-1], os.urandom(end - places[-1]))
    store = kit.open()
    assert store.log.end == end
    assert read_all(store) == [body(n) for n in range(COUNT - 1)]
    assert [store.queue("T", queue_id).next for queue_id in range(3)] == [COUNT // 3] * 3


def test_what_is_cut_is_kept_and_the_line_says_how_much(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    places = filled(kit)
    kit.crash(kit.opened[-1])
    end = kit.opened[-1].log.written
    size = end - places[-2]
    raw = (kit.root / "commitlog" / f"{places[-2] - places[-2] % 4_096:020d}").read_bytes()[places[-2] % 4_096 :][:size]
    spoil(kit.root, places[-2] + 4, b"none")
    spoil(kit.root, places[-1] + 150, b"\xff")
    store = kit.open()
    # Nothing whole follows, nothing vouches for them, and the broker died: as far as anybody can tell they were never written whole.
    assert read_all(store) == [body(n) for n in range(COUNT - 2)]
    (kept,) = (kit.root / "lost").iterdir()
    assert kept.name.startswith(f"{places[-2]:020d}.")
    assert kept.read_bytes()[8:200] == raw[8:200]
    assert len(kept.read_bytes()) == size
    assert any(f"{size} bytes in which 1 records begin" in line for line in caplog.messages)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data(), how=st.sampled_from(["clean", "killed", "checkpointed"]))
def test_whatever_is_damaged_every_record_that_it_leaves_whole_is_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, how: str
) -> None:
    kit = StoreKit(tmp_path_factory.mktemp("store"))
    places = filled(kit, 40)
    end = kit.opened[-1].log.written
    stop(kit, how)
    hurt: set[int] = set()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end - 1))
        raw = data.draw(st.binary(min_size=1, max_size=300) | st.integers(1, 900).map(bytes))
        raw = raw[: 4_096 - at % 4_096]
        spoil(kit.root, at, raw)
        hurt |= {n for n, place in enumerate(places) if place < at + len(raw) and at < place + 400}
    if data.draw(st.booleans()):
        shutil.rmtree(kit.root / "consumequeue")
    store = kit.open()
    wanted = {body(n) for n in range(40) if n not in hurt}
    lost = b"".join(path.read_bytes() for path in (kit.root / "lost").iterdir()) if (kit.root / "lost").exists() else b""
    found = set()
    for queue_id in range(3):
        queue = store.queue("T", queue_id)
        for offset in range(queue.first, queue.next):
            entry = queue.entry(offset)
            assert entry is not None
            if entry[1] != BLANK_LENGTH:
                found.add(store.log.read(entry[0], entry[1])[88 : 88 + 111])
    missing = {one for one in wanted if not any(one in seen or seen.startswith(one) for seen in found)}
    # Only records at the very end may be cut, after a kill, and then they are kept.
    assert all(one in lost for one in missing), missing
    store.close()


def walked(kit: StoreKit) -> list[Found | Hole]:
    """What is in the log files, for somebody who knows nothing else of the store."""
    segments = Store(RoomyDisk(), kit.opened[0].settings, ManualClock(), ManualBackground()).log.segments
    segments.load()
    return list(Walk(segments, 0))


def test_the_walk_names_each_hole_with_its_place(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "killed")
    spoil(kit.root, places[3] + 150, b"\xff")
    spoil(kit.root, places[20] + 4, b"none")
    found = walked(kit)
    holes = [one for one in found if isinstance(one, Hole)]
    assert [(hole.offset, hole.size) for hole in holes] == [
        (places[3], places[4] - places[3]),
        (places[20], places[21] - places[20]),
    ]
    assert sum(isinstance(one, Found) for one in found) == COUNT - 2


@pytest.mark.parametrize("chunk", [64, 100, 256, 300])
def test_the_next_record_is_found_wherever_the_parts_begin_that_a_file_is_read_in(
    kit: StoreKit, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = filled(kit)
    stop(kit, "killed")
    for number in range(0, COUNT - 1, 2):
        spoil(kit.root, places[number], b"none")
    monkeypatch.setattr(scan, "CHUNK", chunk)
    assert [one.offset for one in walked(kit) if isinstance(one, Found)] == places[1::2]


def test_a_record_with_a_sector_of_its_properties_missing_is_a_hole_with_a_name(kit: StoreKit) -> None:
    store = kit.open()
    put(store, body=b"before")
    place, number = put(store, body=b"torn", properties="KEYS\x01" + "k" * 3 * SECTOR)
    put(store, body=b"behind")
    store.commit()
    stop(kit, "killed")
    spoil(kit.root, place + 2 * SECTOR - (place % SECTOR), bytes(SECTOR), size=16_384)
    before, hole, behind = walked(kit)
    assert isinstance(hole, Hole)
    assert (hole.offset, hole.why) == (place, ZEROS)
    assert hole.record is not None
    assert (hole.record.queue_offset, isinstance(before, Found), isinstance(behind, Found)) == (number, True, True)


def test_a_record_that_belongs_elsewhere_is_a_hole_and_not_a_message(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "killed")
    raw = (kit.root / "commitlog" / f"{0:020d}").read_bytes()[places[3] : places[4]]
    assert places[5] - places[4] == len(raw)
    spoil(kit.root, places[4], raw)
    holes = [one for one in walked(kit) if isinstance(one, Hole)]
    assert [(hole.offset, hole.size, hole.why) for hole in holes] == [(places[4], len(raw), f"it says that it stands at {places[3]}")]
    assert read_all(kit.open()) == [body(n) for n in range(COUNT) if n != 4]


def test_a_record_that_ends_in_a_zero_is_whole_when_another_follows_and_half_written_when_none_does(kit: StoreKit) -> None:
    store = kit.open()
    put(store, body=b"1", properties="TAGS\x01t0")
    put(store, body=b"2", properties="TAGS\x01t0")
    store.log.staged[:] = [piece[:-1] + b"\0" if piece.endswith(b"t0") else piece for piece in store.log.staged]
    store.commit()
    stop(kit, "killed")
    assert [type(one) for one in walked(kit)] == [Found]
    assert kit.open().queue("T", 0).next == 1


# Queues


def test_a_damaged_number_that_no_log_could_reach_is_a_hole_and_no_number(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    store = kit.open()
    put(store, topic="Other")
    place, _ = put(store, topic="T")
    store.commit()
    stop(kit, "killed")
    spoil(kit.root, place + 20, (1 << 40).to_bytes(8, "big"), size=16_384)
    assert kit.open().queue("T", 0).next <= 1
    assert "its number in its queue cannot be" in caplog.text


def test_the_number_of_a_queue_s_last_message_is_not_given_again_when_its_record_is_damaged(kit: StoreKit) -> None:
    store = kit.open()
    put(store, topic="T", body=b"first")
    place, number = put(store, topic="T", body=b"last")
    put(store, topic="Other")
    store.commit()
    stop(kit, "killed")
    spoil(kit.root, place + 88, b"\xff", size=16_384)
    store = kit.open()
    assert bodies(store) == [b"first"]
    assert put(store, topic="T")[1] == number + 1


def test_numbers_go_on_when_all_messages_of_a_queue_expired_and_everything_was_derived_anew(kit: StoreKit) -> None:
    store = kit.open()
    for _ in range(5):
        put(store, topic="Old")
    for _ in range(400):
        put(store, topic="New")
    store.commit()
    kit.clock.ms += 100 * 3_600_000
    for base in store.log.segments.bases:
        os.utime(store.log.segments.path(base), (1, 1))
    store.delete_expired_now()
    store.tick(kit.clock.ms)
    assert store.queue("Old", 0).first == 5
    store.close()
    (kit.root / "checkpoint").unlink()
    shutil.rmtree(kit.root / "consumequeue" / "New")
    for _ in range(3):
        store = kit.open()
        assert (store.queue("Old", 0).first, store.queue("Old", 0).next) == (5, 5)
        store.close()
    shutil.rmtree(kit.root / "consumequeue")
    store = kit.open()
    assert put(store, topic="Old")[1] == 5
    store.commit()
    kit.crash(store)
    assert kit.open().queue("Old", 0).next == 6


def test_a_number_that_was_given_again_after_a_hole_is_the_newer_message_s_at_every_later_start(kit: StoreKit) -> None:
    store = kit.open(mapped_file_size_commit_log=4_096)
    put(store, body=body(0))
    lost = put(store, body=body(1))[0]
    garbage = put(store, topic="U", body=body(2))[0]
    put(store, topic="U", body=body(3))
    store.commit()
    kit.crash(store)
    spoil(kit.root, lost + 150, b"\xff")
    spoil(kit.root, garbage + 4, b"none")
    store = kit.open()  # the hole reaches to the next whole record, so nobody knows that it held number 1
    assert put(store, body=body(4))[1] == 1
    store.commit()
    kit.clock.ms += 20_000
    for _ in range(100):
        store.tick(kit.clock.ms)
    kit.crash(store)
    shutil.rmtree(kit.root / "consumequeue")
    store = kit.open()  # what was synced says more of the hole: that it held number 1
    assert bodies(store) == [body(0), body(4)]
    assert bodies(store, topic="U") == [body(3)]


def test_entries_that_a_power_loss_took_from_the_middle_of_a_queue_s_end_are_made_again(kit: StoreKit) -> None:
    store = kit.open(mapped_file_size_commit_log=4_096)
    for n in range(28):
        put(store, body=body(n))
    store.commit()
    kit.clock.ms += 20_000
    for _ in range(100):
        store.tick(kit.clock.ms)  # synced, and vouched for
    for n in range(28, 40):
        put(store, body=body(n))
    store.commit()
    store.tails.write()
    kit.crash(store)
    path = kit.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: 29 * 20] + bytes(20))  # 29 was never written, what is behind it in the next file was
    store = kit.open()
    assert bodies(store) == [body(n) for n in range(40)]
    assert store.queue("T", 0).next == 40


@pytest.mark.parametrize("bit", [0x80, 0x01])
def test_an_entry_that_a_power_loss_spoiled_before_it_was_synced_is_made_again(kit: StoreKit, bit: int) -> None:
    """Found by the simulation of groups (seeds 4171, 4513, 4957): one flipped bit made an entry older than all that is read again."""
    store = kit.open(mapped_file_size_commit_log=4_096)
    for n in range(5):
        put(store, body=body(n))
    store.commit()
    kit.clock.ms += 20_000
    for _ in range(100):
        store.tick(kit.clock.ms)  # synced, and vouched for
    for n in range(5, 9):
        put(store, body=body(n))
    store.commit()
    store.tails.write()
    kit.crash(store)
    path = kit.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[5 * 20] ^= bit  # of its log offset
    path.write_bytes(bytes(raw))
    store = kit.open()
    assert bodies(store) == [body(n) for n in range(9)]


def test_a_cut_leaves_no_short_file_before_others() -> None:
    """Found by the simulation of groups (seed 4491): a power loss in the middle of a cut left a short file, and the start was refused."""
    for stop in range(1, 60):
        disk = SimDisk(ManualClock(), str(stop))
        disk.make_dir("/s/commitlog")
        segments = Segments(OpenFiles(disk), "/s/commitlog", 4_096)
        for base in (0, 4_096, 8_192):
            segments.create(base).write(0, b"x" * 4_096 if base < 8_192 else b"")
            segments.file(base).sync()
        for directory in ("/s/commitlog", "/s", "/"):
            disk.sync_dir(directory)
        disk.power_off_after(stop)
        try:
            lost.cut(disk, segments, "/s", 1_000, 1)
        except PowerLost:
            disk.crash()
            again = Segments(OpenFiles(disk), "/s/commitlog", 4_096)
            again.load(crashed=True)
            assert again.bases[0] == 0
        else:
            assert stop > 5
            assert segments.bases == [0]
            break


@pytest.mark.parametrize("blanks", [(0,), (3,), (0, 1, 2), (2, 3, 4, 5, 6), (5, 9), (9,)])
def test_a_search_by_log_offset_is_not_led_astray_by_blanks(kit: StoreKit, blanks: tuple[int, ...]) -> None:
    from roquet.store.recovery import first_at_or_after

    queue = kit.open().queue("Q", 0)
    for n in range(10):
        queue.append(*((0, BLANK_LENGTH) if n in blanks else ((n + 1) * 100, 50)), 0)
    for wanted in range(0, 1_200, 50):
        good = [n for n in range(10) if n not in blanks and (n + 1) * 100 >= wanted]
        assert first_at_or_after(queue, wanted) == (good[0] if good else 10), (wanted, blanks)
    queue.truncate(0)


def test_entries_that_are_zeros_in_the_middle_of_a_queue_are_found_at_a_restart_that_derives(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "clean")
    path = kit.root / "consumequeue" / "T" / "0" / f"{0:020d}"
    raw = bytearray(path.read_bytes())
    raw[5 * 20 : 9 * 20] = bytes(80)
    path.write_bytes(raw)
    shutil.rmtree(kit.root / "consumequeue" / "T" / "1")
    store = kit.open()
    assert [(store.queue("T", 0).entry(n) or (0,))[0] for n in range(4, 10)] == [places[n * 3] for n in range(4, 10)]


# Files that are gone, and starts that are refused


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("how", ["clean", "killed", "checkpointed"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"mapped_file_size_commit_log": 8_192}, "mappedFileSizeCommitLog is 8192, but .* was written with 4096"),
        ({"mapped_file_size_commit_log": 2_048}, "mappedFileSizeCommitLog is 2048, but .* was written with 4096"),
        ({"mapped_file_size_consume_queue": 1_200}, "mappedFileSizeConsumeQueue is 1200, but .* was written with 600"),
    ],
)
def test_a_start_with_other_sizes_is_refused_and_leaves_everything_as_it_was(
    kit: StoreKit, how: str, change: dict[str, Any], sentence: str
) -> None:
    filled(kit, 5)  # one log file
    stop(kit, how)
    before, settings_before = everything(kit.root), dict(kit.settings)
    for _ in range(2):
        with pytest.raises(Damaged, match=sentence):
            kit.open(**change)
        assert everything(kit.root) == before
    kit.settings = settings_before
    assert read_all(kit.open()) == [body(n) for n in range(5)]


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_a_log_file_in_the_middle_that_is_short_is_refused_and_stays_so(kit: StoreKit, how: str) -> None:
    filled(kit)
    stop(kit, how)
    path = kit.root / "commitlog" / f"{4_096:020d}"
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])
    before = everything(kit.root)
    with pytest.raises(Damaged, match=r"4091 bytes.*truncate -s 4096"):
        kit.open()
    assert everything(kit.root) == before
    path.write_bytes(raw)
    assert read_all(kit.open()) == [body(n) for n in range(COUNT)]


def test_the_newest_log_file_that_is_gone_after_a_kill_is_told_by_the_entries_that_lead_there(
    kit: StoreKit, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kit)
    store = kit.opened[-1]
    store.tails.write()
    kit.crash(store)  # nothing vouches for the log yet
    max((kit.root / "commitlog").iterdir()).unlink()
    kit.open()
    assert any("entries of 3 queues lead to no record of the log" in line for line in caplog.messages)


def test_a_log_that_is_gone_altogether_is_refused_with_what_to_do(kit: StoreKit) -> None:
    places = filled(kit)
    stop(kit, "clean")
    shutil.rmtree(kit.root / "commitlog")
    with pytest.raises(Damaged, match="is that mounted"):
        kit.open()
    forget_manifest(kit.root)
    store = kit.open()
    # What the sentence says is true: numbers and offsets go on.
    assert [store.queue("T", queue_id).next for queue_id in range(3)] == [COUNT // 3] * 3
    offset, number = put(store, body=b"new")
    assert (number, offset > places[-1]) == (COUNT // 3, True)
    store.commit()
    assert bodies(store) == [b"new"]
    store.close()
    assert bodies(kit.open()) == [b"new"]


def test_the_newest_log_file_that_is_gone_is_named_and_its_numbers_are_not_given_again(
    kit: StoreKit, caplog: pytest.LogCaptureFixture
) -> None:
    places = filled(kit)
    end = kit.opened[-1].log.written
    stop(kit, "clean")
    newest = max((kit.root / "commitlog").iterdir())
    newest.unlink()
    store = kit.open()
    assert any(newest.name in line and "missing" in line for line in caplog.messages)
    assert read_all(store) == [body(n) for n, place in enumerate(places) if place < int(newest.name)]
    offset, number = put(store)
    assert (number, offset) == (COUNT // 3, end)
    store.commit()
    store.close()
    assert kit.open().queue("T", 0).next == COUNT // 3 + 1


@pytest.mark.parametrize("how", ["clean", "checkpointed"])
@pytest.mark.parametrize("with_manifest", [True, False])
@pytest.mark.parametrize("files", [1, 2])
def test_the_oldest_files_of_a_queue_that_are_gone_are_derived_again(
    kit: StoreKit, how: str, with_manifest: bool, files: int, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kit, 210)
    stop(kit, how)
    for file in sorted((kit.root / "consumequeue" / "T" / "1").iterdir())[:files]:
        file.unlink()
    if not with_manifest:
        forget_manifest(kit.root)
    store = kit.open()
    assert read_all(store) == [body(n) for n in range(210)]
    assert any("T@1" in line and "missing" in line for line in caplog.messages)
    store.close()
    assert read_all(kit.open()) == [body(n) for n in range(210)]


def test_a_queue_that_began_there_when_we_stopped_is_not_derived_again(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    """As retention leaves it when the first record that stays is the first one of a file of the queue."""
    filled(kit, 210)
    stop(kit, "clean")
    store = kit.open()
    queue = store.queue("T", 1)
    queue.first = 30
    queue.segments.drop_first()
    store.close()
    again = kit.open()
    assert again.recovered_records == 0
    assert not caplog.messages
    assert again.queue("T", 1).first == 30


def test_nonsense_behind_the_entries_of_a_queue_gives_no_numbers(kit: StoreKit) -> None:
    """Entries whose place in the log is negative are none of messages that left with old files."""
    filled(kit)
    stop(kit, "checkpointed")
    newest = max((kit.root / "consumequeue" / "T" / "1").iterdir())
    newest.write_bytes(newest.read_bytes()[:400] + struct.pack(">qiq", -5, 200, 7) * 10)
    (kit.root / "checkpoint").unlink()
    store = kit.open()
    assert store.queue("T", 1).next == COUNT // 3
    assert read_all(store) == [body(n) for n in range(COUNT)]


@pytest.mark.parametrize("how", ["clean", "checkpointed"])
def test_the_oldest_log_file_that_is_gone_is_named(kit: StoreKit, how: str, caplog: pytest.LogCaptureFixture) -> None:
    places = filled(kit)
    stop(kit, how)
    min((kit.root / "commitlog").iterdir()).unlink()
    store = kit.open()
    assert any("begins at offset 4096, and began at 0" in line and "files are missing" in line for line in caplog.messages)
    assert read_all(store) == [body(n) for n, place in enumerate(places) if place >= 4_096]
    store.close()
    caplog.clear()
    kit.open()
    assert not caplog.messages


def test_a_checkpoint_that_is_another_than_we_left_is_named(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    filled(kit)
    stop(kit, "clean")
    with open(kit.root / "checkpoint", "r+b") as file:
        file.write(b"\0\0\0\1")
    store = kit.open()
    assert any("checkpoint says" in line for line in caplog.messages)
    assert read_all(store) == [body(n) for n in range(COUNT)]


def test_a_manifest_that_is_missing_is_named(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    filled(kit)
    assert not caplog.messages, "a new store has none, and that is right"
    stop(kit, "clean")
    forget_manifest(kit.root)
    store = kit.open()
    assert any("roquet.json is missing" in line for line in caplog.messages)
    assert read_all(store) == [body(n) for n in range(COUNT)]


def test_a_checkpoint_that_cannot_be_read_refuses_the_start_before_anything_is_written(kit: StoreKit) -> None:
    filled(kit)
    stop(kit, "clean")
    (kit.root / "checkpoint").unlink()
    (kit.root / "checkpoint").mkdir()
    before = everything(kit.root)
    with pytest.raises(Damaged, match="checkpoint is a directory"):
        kit.open()
    assert everything(kit.root) == before


@pytest.mark.parametrize(
    "raw",
    [
        b'{"broker":"b","clean":true,"end":"x","checkpoint":[0,0,0],"queues":{},"indexes":[]}',
        b'{"broker":"b","clean":true,"end":0,"checkpoint":[0,0,0],"queues":{"T@0":"five"},"indexes":[]}',
        b'{"broker":"b","clean":true,"end":-5,"checkpoint":[0,0,0],"queues":{"T@x":5},"indexes":[]}',
        b'{"broker":"b","clean":true,"end":7,"checkpoint":"abc","queues":[],"indexes":3}',
        b"[]",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_manifest_that_is_nonsense_is_named_and_costs_nothing(kit: StoreKit, raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    filled(kit)
    stop(kit, "clean")
    for name in ("roquet.json", "roquet.json.bak"):
        (kit.root / "config" / name).write_bytes(raw)
    assert read_all(kit.open()) == [body(n) for n in range(COUNT)]
    assert any("roquet.json cannot be used" in line for line in caplog.messages)


def test_two_stores_do_not_share_a_log_directory(kit: StoreKit, tmp_path: Path) -> None:
    kit.open(store_path_commit_log=str(tmp_path / "log"))
    other = StoreKit(tmp_path / "other")
    with pytest.raises(Damaged, match="storePathCommitLog"):
        other.open(store_path_commit_log=str(tmp_path / "log"))
    kit.opened[-1].close()
    other.open().close()


def test_a_log_directory_is_locked_against_other_processes(kit: StoreKit, tmp_path: Path) -> None:
    import subprocess
    import sys

    kit.open(store_path_commit_log=str(tmp_path / "log"))
    code = f"import fcntl, os; fcntl.flock(os.open({str(tmp_path / 'log')!r}, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode != 0
    kit.opened[-1].close()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_kill_at_any_step_of_a_recovery_loses_nothing() -> None:
    from roquet.testing import PowerLost, SimDisk

    def fresh() -> StoreKit:
        made = StoreKit(Path("/store"))
        made.settings["mapped_file_size_commit_log"] = 4_096
        return made

    for steps in range(1, 400):
        disk = SimDisk(seed=steps)
        kit = fresh()
        store = kit.open(disk)
        for n in range(30):
            put(store, queue_id=n % 3, body=body(n))
            store.commit()
        store.flush_now()
        disk.crash()
        disk.power_off_after(steps)
        try:
            fresh().open(disk)
        except PowerLost:
            disk.crash()
        else:
            assert steps > 20, "the recovery changes more than that"
            return
        disk.stay_on()
        again = fresh().open(disk)
        assert read_all(again) == [body(n) for n in range(30)], steps
    raise AssertionError("400 steps, and no recovery came to its end")


def keys_found(store: Store, count: int) -> list[int]:
    """Which of the messages that `filled` put are found by their key."""
    found = []
    for n in range(count):
        records, _, _ = blocking(store.query, "T", f"k{n}", 32, 0, 1 << 62)
        if any(body(n) in record for record in records):
            found.append(n)
    return found


def zero_header(file: Path) -> None:
    with open(file, "r+b") as raw:
        raw.write(bytes(40))


def zero_all(file: Path) -> None:
    size = file.stat().st_size
    file.write_bytes(bytes(size))


def wrong_begin(file: Path) -> None:
    with open(file, "r+b") as raw:
        raw.write(b"\x55")


def zero_last_entries(file: Path) -> None:
    data = file.read_bytes()
    stop = len(data.rstrip(b"\0"))
    file.write_bytes(data[: stop - 90].ljust(len(data), b"\0"))


@pytest.mark.parametrize("damage", [Path.unlink, zero_header, zero_all, wrong_begin, zero_last_entries])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("how", ["clean", "checkpointed"])
def test_an_index_file_that_is_gone_or_damaged_is_named_and_built_again(
    kit: StoreKit, damage: Callable[[Path], None], which: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    kit.settings["max_index_num"] = 40
    filled(kit, 100)
    stop(kit, how)
    file = sorted((kit.root / "index").iterdir())[which]
    damage(file)
    store = kit.open()
    assert keys_found(store, 100) == list(range(100))
    assert how != "clean" or any("/index/" in line for line in caplog.messages)
    store.close()
    caplog.clear()
    again = kit.open()
    assert keys_found(again, 100) == list(range(100))
    assert not caplog.messages


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("how", ["clean", "checkpointed"])
def test_keys_of_an_index_file_that_is_gone_are_found_again_though_nobody_knows_of_it(
    kit: StoreKit, which: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    kit.settings["max_index_num"] = 40
    filled(kit, 100)
    stop(kit, how)
    sorted((kit.root / "index").iterdir())[which].unlink()
    for manifest in (kit.root / "config").glob("roquet.json*"):
        manifest.unlink()
    store = kit.open()
    assert keys_found(store, 100) == list(range(100))
    assert how != "clean" or any("/index" in line for line in caplog.messages)


def test_an_index_that_is_whole_is_kept_though_nobody_knows_its_files(kit: StoreKit, caplog: pytest.LogCaptureFixture) -> None:
    kit.settings["max_index_num"] = 40
    filled(kit, 100)
    stop(kit, "clean")
    for manifest in (kit.root / "config").glob("roquet.json*"):
        manifest.unlink()
    store = kit.open()
    assert store.index.intact
    assert keys_found(store, 100) == list(range(100))
    assert not [line for line in caplog.messages if "/index" in line]


def test_a_manifest_that_cannot_be_written_leaves_a_checkpoint_that_fits_the_one_before(
    kit: StoreKit, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The two vouch for each other; with one alone the numbers of queues count for nothing. A full disk takes new files, and the
    checkpoint is written in place."""
    filled(kit)
    store = kit.opened[-1]
    kit.clock.ms += 20_000
    store.tick(kit.clock.ms)
    store.begin(kit.clock.ms)
    put(store, body=body(COUNT))
    store.commit()

    def full(data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(store.manifest.document, "save", full)
    kit.clock.ms += 20_000
    store.tick(kit.clock.ms)
    kit.crash(store)
    caplog.clear()
    kit.open()
    assert not [line for line in caplog.messages if "checkpoint" in line]


@pytest.mark.parametrize("clean", [True, False])
def test_a_kill_between_manifest_and_checkpoint_leaves_two_that_fit(
    kit: StoreKit, clean: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(kit)
    store = kit.opened[-1]

    def killed() -> None:
        raise OSError(errno.EIO, "the process was killed here")

    monkeypatch.setattr(store.checkpoint, "save", killed)
    monkeypatch.setattr(store.checkpoint, "begin_save", lambda: killed)
    if clean:
        store.close()
    else:
        kit.clock.ms += 20_000
        store.tick(kit.clock.ms)
        kit.crash(store)
    caplog.clear()
    again = kit.open()
    assert again.crashed
    assert read_all(again) == [body(n) for n in range(COUNT)]
    assert not caplog.messages


@pytest.mark.parametrize("how", ["clean", "checkpointed"])
@pytest.mark.parametrize("size", [20, 1_200])
def test_another_size_of_queue_files_is_refused_where_nobody_remembers_it_too(kit: StoreKit, how: str, size: int) -> None:
    """As in a store that Apache RocketMQ wrote."""
    filled(kit)
    stop(kit, how)
    forget_manifest(kit.root)
    before = everything(kit.root)
    with pytest.raises(Damaged, match="mappedFileSizeConsumeQueue is"):
        kit.open(mapped_file_size_consume_queue=size)
    assert everything(kit.root) == before
    assert read_all(kit.open(mapped_file_size_consume_queue=600)) == [body(n) for n in range(COUNT)]
