"""A store whose log is DLedger's: directories of Apache RocketMQ 4.9.7, leading, following, crashes, old files, a plain log before it."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import Damaged, StoreUnavailable
from roquet.settings import BrokerSettings
from roquet.spark.files import store_at
from roquet.spark.pipelines.store_files import layout_of
from roquet.store.disk import Disk, blocking
from roquet.store.entry_log import EntryLog
from roquet.store.ledger_part import LedgerPart, LedgerPlace
from roquet.store.reader import StoreReader
from roquet.store.store import Store
from roquet.testing import ManualBackground, ManualClock
from roquet.wire.layout import ENTRY
from roquet.wire.ledger_entry import Entry
from tests.store.conftest import RoomyDisk, bodies, put
from tests.store.test_reader import bodies as read_by

VECTORS = Path(__file__).parent.parent / "vectors"
INDEX_FILE = 32 * 64


class LedgerKit:
    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.clock = ManualClock()
        self.background = ManualBackground()
        self.settings: dict[str, Any] = {
            "mapped_file_size_commit_log": 16_384,
            "mapped_file_size_consume_queue": 600,
            "max_hash_slot_num": 100,
            "max_index_num": 400,
            **settings,
        }
        self.opened: list[Store] = []
        self.index_file_size = INDEX_FILE

    def open(self, disk: Disk | None = None, *, plain: bool = False, leads: bool = False, **settings: Any) -> Store:
        self.settings.update(settings)
        made = BrokerSettings(store_path_root_dir=str(self.root), **self.settings)
        place = None if plain else LedgerPlace(f"{self.root}/dledger-n0", index_file_size=self.index_file_size)
        store = Store(disk or RoomyDisk(), made, self.clock, self.background, place)
        store.open()
        self.opened.append(store)
        if leads:
            commit_all(store)
            store.applier.lead()
        return store

    def crash(self, store: Store) -> None:
        store.locks.close()
        self.opened.remove(store)


def part(store: Store) -> LedgerPart:
    assert store.ledger is not None
    return store.ledger


def entry_log(store: Store) -> EntryLog:
    return part(store).log


def commit_all(store: Store) -> None:
    """The group says that all of it is committed."""
    ledger = part(store).ledger
    ledger.note_committed(ledger.end)
    store.applier.advance()


def sends(store: Store, *texts: bytes, queue_id: int = 0, topic: str = "T") -> None:
    for text in texts:
        put(store, topic=topic, queue_id=queue_id, body=text, properties="KEYS\x01k" + text.decode())
    store.commit()


def entries_of(ledger_store: Store) -> list[Entry]:
    ledger = part(ledger_store).ledger
    found: list[Entry] = []
    while ledger.begin >= 0 and ledger.begin + len(found) <= ledger.end:
        found += blocking(ledger.read, ledger.begin + len(found), 1 << 30, 1 << 30)
    return found


def follow(store: Store, leader: Store, upto: int | None = None) -> None:
    """Take over what the leader has."""
    mine = part(store).ledger
    new = [entry for entry in entries_of(leader) if entry.index > mine.end and (upto is None or entry.index <= upto)]
    mine.append(new)


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[LedgerKit]:
    made = LedgerKit(tmp_path / "store")
    yield made
    for store in made.opened:
        store.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LedgerKit]:
    made = LedgerKit(tmp_path / "other")
    yield made
    for store in made.opened:
        store.close()


def unpacked(name: str, to: Path) -> LedgerKit:
    with tarfile.open(VECTORS / f"dledger-4.9.7-{name}.tar.gz") as archive:
        archive.extractall(to, filter="data")
    kit = LedgerKit(to / "node0", mapped_file_size_commit_log=65_536)
    kit.index_file_size = 167_772_160
    return kit


def queue_files(root: Path) -> dict[str, bytes]:
    """The entries in each queue's file, those that were written."""
    found: dict[str, bytes] = {}
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        raw = path.read_bytes()
        while raw.endswith(bytes(ENTRY.size)):
            raw = raw[: -ENTRY.size]
        found[f"{path.parent.parent.name}/{path.parent.name}"] = raw
    return found


class TestADirectoryOfApache:
    @pytest.mark.parametrize(("name", "committed"), [("killed", 20), ("stopped", 34)])
    def test_opens_with_every_entry_and_with_the_queues_that_java_made(self, name: str, committed: int, tmp_path: Path) -> None:
        kit = unpacked(name, tmp_path)
        java = queue_files(kit.root)
        store = kit.open()
        ledger = part(store).ledger
        assert (ledger.begin, ledger.end, ledger.end_term, ledger.committed, ledger.end_pos) == (0, 34, 4, committed, 84_475)
        assert part(store).terms.load() == (4, "n2")
        assert not store.holes
        shown = sum(queue.visible for queue in store.queues.values())
        assert shown == committed + 1
        commit_all(store)
        assert {f"{queue.topic}/{queue.queue_id}": queue.visible for queue in store.queues.values()} == {
            "T1/0": 14, "T1/1": 8, "T2/0": 6, "T2/1": 6, "SCHEDULE_TOPIC_XXXX/0": 1,
        }  # fmt: skip
        for queue in store.queues.values():
            raw = b"".join(blocking(queue.read, offset, 1) for offset in range(queue.next))
            mine = java[f"{queue.topic}/{queue.queue_id}"]
            assert raw == mine if name == "stopped" else raw.startswith(mine), "Java was killed before it had written the last"
        store.close()
        assert name == "killed" or queue_files(kit.root) == java
        assert (kit.root / "dledger-n0" / "checkpoint").read_bytes() == b"committedIndex=34\nendIndex=34\n"

    @pytest.mark.parametrize("name", ["killed", "stopped", "mixed"])
    def test_is_as_it_was_after_opening_and_closing(self, name: str, tmp_path: Path) -> None:
        kit = unpacked(name, tmp_path)
        before = {path: path.read_bytes() for path in kit.root.rglob("*") if path.parent.name in ("data", "index", "commitlog")}
        before = {path: raw for path, raw in before.items() if len(raw) in (65_536, 167_772_160)}
        assert before
        store = kit.open()
        commit_all(store)
        store.close()
        for path, raw in before.items():
            assert path.read_bytes() == raw

    def test_with_a_plain_log_before_it_reads_both(self, tmp_path: Path) -> None:
        kit = unpacked("mixed", tmp_path)
        java = queue_files(kit.root)
        store = kit.open()
        ledger = part(store).ledger
        assert (ledger.begin, ledger.end, ledger.end_term, ledger.committed, ledger.end_pos) == (0, 3, 0, 3, 66_208)
        assert store.queue("T1", 0).visible == 6
        assert store.queue("T1", 1).visible == 2
        assert all(blocking(store.record_at, entry_at(store, "T1", 0, offset)) for offset in range(6))
        store.applier.lead()
        sends(store, b"ours", topic="T1")
        assert ledger.place_of(4)[0] == 66_208
        commit_all(store)
        store.close()
        assert queue_files(kit.root)["T1/0"][: len(java["T1/0"])] == java["T1/0"]
        shutil.rmtree(kit.root / "consumequeue")
        shutil.rmtree(kit.root / "index")
        store = kit.open()
        assert bodies(store, "T1")[-1] == b"ours"
        assert queue_files(kit.root)["T1/0"][: len(java["T1/0"])] == java["T1/0"]

    def test_goes_on_in_the_next_term(self, tmp_path: Path) -> None:
        kit = unpacked("killed", tmp_path)
        store = kit.open(leads=True)
        entry_log(store).term = 5
        sends(store, b"ours", topic="T1")
        commit_all(store)
        store.close()
        store = kit.open()
        entry = entries_of(store)[-1]
        assert (entry.index, entry.term, entry.pos) == (35, 5, 84_475)
        assert bodies(store, "T1")[-1] == b"ours"
        assert store.queue("T1", 0).next == 15


def entry_at(store: Store, topic: str, queue_id: int, offset: int) -> int:
    entry = blocking(store.queue(topic, queue_id).entry, offset)
    assert entry is not None
    return entry[0]


class TestALeader:
    def test_shows_nothing_before_it_is_committed(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, b"a", b"b")
        assert bodies(store) == []
        part(store).ledger.note_committed(0)
        assert bodies(store) == [b"a"]
        part(store).ledger.note_committed(1)
        assert bodies(store) == [b"a", b"b"]

    def test_that_steps_down_takes_back_what_is_not_committed_and_applies_it_when_it_is(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, b"a", b"b", b"c")
        part(store).ledger.note_committed(0)
        kit.clock.forward(20_000)
        store.tick(kit.clock.steady_ms())
        store.applier.follow()
        assert store.queue("T", 0).next == 1
        with pytest.raises(StoreUnavailable):
            sends(store, b"refused")
        part(store).ledger.note_committed(1)
        store.applier.advance()
        assert bodies(store) == [b"a", b"b"]
        part(store).ledger.note_committed(2)
        store.applier.advance()
        store.applier.lead()
        sends(store, b"d")
        commit_all(store)
        assert bodies(store) == [b"a", b"b", b"c", b"d"]
        assert [len(store.query("T", f"k{key}", 9, 0, 1 << 60)[0]) for key in "abcd"] == [1, 1, 1, 1]

    @pytest.mark.parametrize("how", ["stopped", "killed"])
    def test_that_ended_with_something_uncommitted_has_no_queue_entries_for_it(self, kit: LedgerKit, how: str) -> None:
        store = kit.open(leads=True)
        sends(store, b"a", b"b", b"c")
        part(store).ledger.note_committed(1)
        for _ in range(3):
            kit.clock.forward(20_000)
            store.tick(kit.clock.steady_ms())
            kit.background.release()
        if how == "stopped":
            store.close()
        else:
            kit.crash(store)
        store = kit.open()
        assert (part(store).ledger.committed, part(store).ledger.end) == (1, 2)
        assert bodies(store) == [b"a", b"b"]
        assert store.queue("T", 0).next == 2
        assert [len(store.query("T", f"k{key}", 9, 0, 1 << 60)[0]) for key in "abc"] == [1, 1, 0]
        ledger = part(store).ledger
        ledger.truncate(entries_of(store)[1])
        store.applier.lead()
        sends(store, b"d")
        commit_all(store)
        assert bodies(store) == [b"a", b"b", b"d"]

    def test_a_leader_that_is_told_to_truncate_follows_at_once(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, b"a", b"b", b"c")
        commit_all(store)
        sends(store, b"d", b"e")
        part(store).ledger.truncate(entries_of(store)[3])
        assert store.applier.following
        assert store.queue("T", 0).next == 3
        commit_all(store)
        assert bodies(store) == [b"a", b"b", b"c", b"d"]


class TestAFollower:
    def test_has_the_leaders_queues_as_far_as_is_committed(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, *[b"m%d" % n * 40 for n in range(200)])
        commit_all(leader)
        follow(store, leader)
        assert bodies(store) == []
        part(store).ledger.note_committed(99)
        store.applier.advance()
        assert bodies(store) == bodies(leader)[:100]
        commit_all(store)
        assert bodies(store) == bodies(leader)
        leader.close()
        store.close()
        assert queue_files(kit.root) == queue_files(other.root)
        for name in ("data", "index"):
            mine, theirs = kit.root / "dledger-n0" / name, other.root / "dledger-n0" / name
            assert {path.name: path.read_bytes() for path in mine.iterdir()} == {path.name: path.read_bytes() for path in theirs.iterdir()}

    def test_e9_that_was_killed_has_entries_for_all_that_it_knew_to_be_committed(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, b"a", b"b", b"c")
        follow(store, leader)
        part(store).ledger.note_committed(1)
        other.clock.forward(4_000)
        store.flush_now()
        store.tick(other.clock.steady_ms())  # the ledger's checkpoint; queues are in memory yet
        other.background.release()
        other.crash(store)
        store = other.open()
        assert bodies(store) == [b"a", b"b"]
        assert part(store).ledger.end == 2

    def test_e7_whose_checkpoint_tells_more_than_it_holds_opens_with_what_it_holds(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, b"a", b"b", b"c")
        follow(store, leader, 1)
        commit_all(store)
        store.close()
        (other.root / "dledger-n0" / "checkpoint").write_bytes(b"committedIndex=9\nendIndex=9\n")
        store = other.open()
        assert (part(store).ledger.committed, part(store).ledger.end) == (1, 1)
        follow(store, leader)
        commit_all(store)
        assert bodies(store) == [b"a", b"b", b"c"]

    def test_that_lost_its_data_gets_all_from_the_leader_again(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, b"a", b"b", b"c")
        follow(store, leader)
        commit_all(store)
        store.close()
        shutil.rmtree(other.root / "dledger-n0")
        with pytest.raises(Damaged, match="holds no file"):
            other.open()
        for name in ("roquet.json", "roquet.json.bak"):
            (other.root / "config" / name).unlink(missing_ok=True)
        store = other.open()
        follow(store, leader)
        commit_all(store)
        assert bodies(store) == [b"a", b"b", b"c"]
        assert store.queue("T", 0).next == 3

    def test_that_fell_behind_what_the_leader_still_has_begins_anew(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, *[b"%d " % n * 100 for n in range(100)])
        commit_all(leader)
        follow(store, leader, 4)
        commit_all(store)
        entries = entries_of(leader)
        for first, last in ((60, 70), (80, 99)):  # in the middle of a file
            part(store).ledger.truncate(entries[first])
            follow(store, leader, last)
            commit_all(store)
            other.background.release()
            queue = store.queue("T", 0)
            assert (queue.first, queue.next) == (first, last + 1)
            assert bodies(store) == bodies(leader)[first : last + 1]
        for how in ("stopped", "killed"):
            if how == "stopped":
                store.close()
            else:
                other.crash(store)
            store = other.open()
            assert part(store).ledger.begin == 80
            assert not store.holes
            commit_all(store)
            assert bodies(store) == bodies(leader)[80:]

    def test_that_was_killed_while_it_began_anew_opens_empty_and_is_given_all_again(self, kit: LedgerKit, other: LedgerKit) -> None:
        leader, store = kit.open(leads=True), other.open()
        sends(leader, *[b"%d " % n * 100 for n in range(60)])
        follow(store, leader, 4)
        commit_all(store)
        store.close()
        store = other.open()
        entry_log(store).on_anew(44_000)
        other.crash(store)
        for path in (other.root / "dledger-n0" / "data").iterdir():
            path.unlink()
        store = other.open()
        assert part(store).ledger.end == -1
        part(store).ledger.truncate(entries_of(leader)[50])
        follow(store, leader)
        commit_all(store)
        assert bodies(store)[-10:] == [b"%d " % n * 100 for n in range(50, 60)]


class TestAPlainLogBefore:
    def plain(self, kit: LedgerKit, *texts: bytes) -> None:
        store = kit.open(plain=True)
        sends(store, *texts)
        store.close()

    @pytest.mark.parametrize("how", ["stopped", "killed"])
    def test_is_read_below_the_ledger_which_goes_on_behind_its_last_file(self, kit: LedgerKit, how: str) -> None:
        store = kit.open(plain=True)
        sends(store, b"a", b"b")
        end = store.log.written
        if how == "stopped":
            store.close()
        else:
            kit.crash(store)
        store = kit.open(leads=True)
        raw = (kit.root / "commitlog" / ("0" * 20)).read_bytes()
        assert raw[end : end + 8] == (16_384 - end).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        assert bodies(store) == [b"a", b"b"]
        sends(store, b"c")
        assert part(store).ledger.place_of(0)[0] == 16_384
        commit_all(store)
        for _ in range(2):
            assert bodies(store) == [b"a", b"b", b"c"]
            store.close()
            store = kit.open()
        shutil.rmtree(kit.root / "consumequeue")
        kit.crash(store)
        store = kit.open()
        assert bodies(store) == [b"a", b"b", b"c"]
        assert not store.holes

    def test_killed_right_after_the_ledger_began_goes_on(self, kit: LedgerKit) -> None:
        self.plain(kit, b"a")
        kit.crash(kit.open())
        store = kit.open(leads=True)
        sends(store, b"b")
        commit_all(store)
        assert bodies(store) == [b"a", b"b"]

    def test_and_a_ledger_may_not_be_opened_as_a_plain_one_afterwards(self, kit: LedgerKit) -> None:
        self.plain(kit, b"a")
        store = kit.open(leads=True)
        sends(store, b"b")
        commit_all(store)
        store.close()
        with pytest.raises(Damaged, match="enableDLegerCommitLog"):
            kit.open(plain=True)


class TestOldFiles:
    def test_go_and_the_ledger_begins_later_and_so_does_its_index(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, *[b"%d " % n * 100 for n in range(400)])
        assert len(entry_log(store).segments.bases) > 5
        commit_all(store)
        store.flush_now()
        self.let_go(kit, store, 3)
        ledger = part(store).ledger
        begin = ledger.begin
        assert ledger.place_of(begin)[0] == store.log.start == 3 * 16_384
        assert entry_log(store).index.segments.start == begin * 32 // INDEX_FILE * INDEX_FILE > 0
        with pytest.raises(LookupError):
            ledger.term_of(begin - 1)
        store.close()
        for _ in range(2):
            store = kit.open()
            assert (part(store).ledger.begin, part(store).ledger.end) == (begin, 399)
            assert len(bodies(store)) == 400 - begin
            kit.crash(store)

    def test_stay_while_something_in_them_is_not_committed(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, *[b"%d " % n * 100 for n in range(400)])
        part(store).ledger.note_committed(60)
        self.let_go(kit, store, 3)
        assert store.log.start == 2 * 16_384

    def let_go(self, kit: LedgerKit, store: Store, count: int) -> None:
        from roquet.store.retention import Decision, LogFile

        bases = store.log.segments.bases[:count]
        store.old_files._give_up(Decision(tuple(LogFile(base, 0) for base in bases), True, "a test"))
        kit.background.release()


class TestRefusing:
    def test_a_full_disk_appends_nothing_and_says_so(self, kit: LedgerKit) -> None:
        store = kit.open(leads=True)
        sends(store, b"a")
        before = store.log.written
        put(store, body=b"b")
        log = entry_log(store)
        write, log._write_runs = log._write_runs, failing  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="full"):
            store.commit()
        log._write_runs = write  # type: ignore[method-assign]
        assert (log.written, part(store).ledger.end, store.queue("T", 0).next) == (before, 0, 1)


def failing() -> None:
    import errno

    raise OSError(errno.ENOSPC, "No space left on device")


class TestWhoReadsTheFilesAlone:
    @pytest.mark.parametrize(("name", "count"), [("killed", 13), ("stopped", 14), ("mixed", 6)])
    def test_sees_what_is_committed_in_a_directory_of_apache(self, name: str, count: int, tmp_path: Path) -> None:
        kit = unpacked(name, tmp_path)
        reader = StoreReader(str(kit.root))
        seen = read_by(reader, "T1")
        assert len(seen) == count
        assert seen == bodies(kit.open(), "T1")

    @pytest.mark.parametrize("written", ["in files", "in memory"])
    def test_sees_of_a_leader_that_runs_only_what_is_known_to_be_committed(self, kit: LedgerKit, written: str) -> None:
        store = kit.open(leads=True)
        sends(store, *[b"%d " % n * 50 for n in range(100)])
        part(store).ledger.note_committed(59)
        reader = StoreReader(str(kit.root))
        if written == "in files":
            store.tails.write()
        store.flush_now()
        kit.clock.forward(4_000)
        part(store).tick(kit.clock.steady_ms())
        reader.refresh()
        assert read_by(reader) == bodies(store)
        assert len(bodies(store)) == 60
        part(store).ledger.note_committed(99)
        kit.clock.forward(4_000)
        part(store).tick(kit.clock.steady_ms())
        reader.refresh()
        assert read_by(reader) == bodies(store)
        assert len(bodies(store)) == 100

    def test_sees_a_plain_log_before_the_ledger(self, kit: LedgerKit) -> None:
        store = kit.open(plain=True)
        sends(store, b"a", b"b")
        store.close()
        store = kit.open(leads=True)
        assert read_by(StoreReader(str(kit.root))) == [b"a", b"b"]
        sends(store, b"c", b"d")
        part(store).ledger.note_committed(0)
        store.close()
        assert read_by(StoreReader(str(kit.root))) == [b"a", b"b", b"c"]

    def test_is_told_when_a_check_or_a_rebuild_knows_plain_logs_only(self, kit: LedgerKit) -> None:
        kit.open().close()
        with pytest.raises(Damaged, match="the log of a DLedger group's member"):
            layout_of(str(kit.root))
        assert store_at(kit.root.parent) == kit.root

    def test_is_told_when_there_are_two_ledgers(self, kit: LedgerKit) -> None:
        kit.open().close()
        shutil.copytree(kit.root / "dledger-n0", kit.root / "dledger-n1")
        with pytest.raises(Damaged, match="ledgers of 2 members: dledger-n0, dledger-n1"):
            StoreReader(str(kit.root))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_many_entries_at_once_get_what_they_get_one_by_one(
    tmp_path: Path, kit: LedgerKit, other: LedgerKit, seed: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    if not compiled:
        monkeypatch.setattr("roquet.store.apply_many.native", None)
    leader = other.open(leads=True)
    for number in range(300):
        properties, sys_flag = chance.choice(["TAGS\x01a\x02KEYS\x01x y", "", "UNIQ_KEY\x01u"]), chance.choice([0, 0, 0, 4, 8, 12])
        queue = leader.queue("T", chance.randrange(4))
        leader.put(queue, chance.randbytes(number % 300), properties, sys_flag=sys_flag, flag=0, born_ms=1, born_host=bytes(8))
        leader.commit()
    commit_all(leader)
    slow = LedgerKit(tmp_path / "slow")
    found = []
    for each, many in ((kit, True), (slow, False)):
        if not many:
            monkeypatch.setattr("roquet.store.apply_many.native", None)
            monkeypatch.setattr("roquet.store.apply_many.MANY", 1 << 30)
        store = each.open()
        ledger, pieces = part(store).ledger, random.Random(seed)
        while ledger.end < part(leader).ledger.end:
            follow(store, leader, ledger.end + pieces.randrange(1, 60))
            commit_all(store)
        store.derived.settle()
        index = [path.read_bytes()[40:] for path in sorted((each.root / "index").iterdir())]
        queues = [[blocking(queue.entry, number) for number in range(queue.visible)] for _, queue in sorted(store.queues.items())]
        found.append((queues, index, store.applier.records))
    assert found[0] == found[1]
    assert found[0][2] == 300
    assert found[0][0] == [[blocking(queue.entry, at) for at in range(queue.visible)] for _, queue in sorted(leader.queues.items())]
    for store in slow.opened:
        store.close()


def test_a_member_whose_start_was_followed_by_a_cut_counts_what_it_flushes(kit: LedgerKit, tmp_path: Path) -> None:
    """The opening's own fsync reached farther than the log does after the cut; the member was stuck. Found by the simulation of groups."""
    store = kit.open(flush_disk_type="SYNC_FLUSH", leads=True)
    sends(store, b"one", b"two", b"three")
    leader = LedgerKit(tmp_path / "leader").open(leads=True)
    sends(leader, b"o")
    kit.crash(store)
    store = kit.open()
    mine = part(store).ledger
    mine.truncate(entries_of(leader)[0])
    store.flush.begin()
    assert (mine.end, mine.flushed_index) == (0, 0)
    leader.close()


def test_a_clean_stop_waits_for_the_checkpoint_that_is_being_written(kit: LedgerKit) -> None:
    store = kit.open(leads=True)
    sends(store, b"one")
    commit_all(store)
    store.flush.begin()
    kit.background.hold = True
    part(store).tick(kit.clock.steady_ms() + 10_000)
    assert store.busy
    kit.background.hold = False
    kit.background.release()
    assert not store.busy


def test_a_ledger_does_not_begin_anew_while_its_checkpoint_is_being_written(kit: LedgerKit) -> None:
    """What is under way would come last, and speak of the old ledger."""
    store = kit.open(leads=True)
    sends(store, b"one")
    commit_all(store)
    store.flush.begin()
    kit.background.hold = True
    part(store).tick(kit.clock.steady_ms() + 10_000)
    with pytest.raises(OSError, match="is being written"):
        entry_log(store).begin_anew(40, 32_768)
    kit.background.hold = False
    kit.background.release()
    entry_log(store).begin_anew(40, 32_768)
    assert part(store).checkpoint.load() == (-1, 32_768)
