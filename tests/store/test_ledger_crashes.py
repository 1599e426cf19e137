"""A store of a DLedger group's member on a disk that loses power: whatever it did, what was committed and on disk is there, and nothing
that is not committed is seen."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from roquet.settings import BrokerSettings
from roquet.store.disk import blocking
from roquet.store.ledger_part import LedgerPart, LedgerPlace
from roquet.store.store import Store
from roquet.testing import ManualBackground, ManualClock
from roquet.testing.disk import PowerLost, SimDisk
from roquet.wire.ledger_entry import Entry
from tests.store.conftest import bodies, put

ROOT = "/node"
WHAT = ["send", "send", "batch", "commit", "commit", "tick", "flush", "down", "up", "cut", "anew", "kill", "crash", "off"]
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 200)), max_size=40)


def text_of(entry: Entry) -> bytes:
    size = int.from_bytes(entry.body[84:88], "big")
    return entry.body[88 : 88 + size]


class Member:
    """State beside the store: `known` is the largest index that was committed, `texts` what stands in the log by index."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(seed=seed)
        self.clock = ManualClock()
        self.number = 0
        self.texts: dict[int, bytes] = {}
        self.promised = -1
        """Committed and on disk: it must outlive a crash."""
        self.open()

    @property
    def part(self) -> LedgerPart:
        assert self.store.ledger is not None
        return self.store.ledger

    def open(self) -> None:
        made = BrokerSettings(
            store_path_root_dir=ROOT, mapped_file_size_commit_log=2_048, mapped_file_size_consume_queue=200, max_hash_slot_num=10,
            max_index_num=40,
        )  # fmt: skip
        self.store = Store(self.disk, made, self.clock, ManualBackground(), LedgerPlace(f"{ROOT}/dledger-n0", index_file_size=8 * 32))
        self.store.open()

    def step(self, what: str, amount: int) -> None:
        ledger, store = self.part.ledger, self.store
        if what in ("send", "batch") and not store.applier.following:
            for _ in range(1 if what == "send" else 1 + amount % 9):
                self.number += 1
                put(store, body=b"%d " % self.number * (1 + amount % 60), properties=f"KEYS\x01k{self.number}")
            store.commit()
            self.look()
        elif what == "commit":
            ledger.note_committed(amount % (ledger.end + 1) if ledger.end >= 0 else -1)
            store.applier.advance()
        elif what == "tick":
            self.clock.forward(amount * 100)
            store.tick(self.clock.steady_ms())
        elif what == "flush":
            store.flush.begin()
        elif what == "down":
            store.applier.follow()
        elif what == "up" and store.applier.following:
            ledger.note_committed(ledger.end)
            store.applier.advance()
            store.applier.lead()
            self.part.log.term += 1
        elif what == "cut" and ledger.end > ledger.committed >= 0:
            at = ledger.committed + amount % (ledger.end - ledger.committed)
            ledger.truncate(blocking(ledger.read, at, 0, 1)[0])
            self.texts = {index: text for index, text in self.texts.items() if index <= at}
        elif what == "anew" and ledger.end >= 0 and amount % 3 == 0:
            self.begin_anew(amount)
        self.promised = max(self.promised, min(ledger.committed, ledger.flushed_index))

    def begin_anew(self, amount: int) -> None:
        """The leader has nothing any more of what would come next here."""
        ledger = self.part.ledger
        self.store.applier.follow()
        entry = blocking(ledger.read, ledger.end, 0, 1)[0]
        pos = (ledger.end_pos // 2_048 + 2) * 2_048 + amount * 3
        body = bytearray(entry.body)
        body[28:36] = (pos + 48).to_bytes(8, "big")
        number = int.from_bytes(body[20:28], "big") + 50
        body[20:28] = number.to_bytes(8, "big")
        ledger.truncate(entry._replace(index=ledger.end + 50, pos=pos, body=bytes(body), term=self.part.log.term))
        self.texts = {ledger.end: text_of(entry)}
        self.promised = -1

    def look(self) -> None:
        ledger = self.part.ledger
        for index in range(ledger.begin, ledger.end + 1) if ledger.begin >= 0 else ():
            if index not in self.texts:
                self.texts[index] = text_of(blocking(ledger.read, index, 0, 1)[0])

    def reopen(self) -> None:
        before, promised = dict(self.texts), self.promised
        self.open()
        ledger = self.part.ledger
        assert ledger.end >= promised, "something committed and on disk is gone"
        assert promised < 0 or ledger.begin >= 0
        self.texts = {}
        self.look()
        for index, text in self.texts.items():
            assert before.get(index, text) == text
        assert not self.store.holes
        self.promised = max(ledger.committed, -1)

    def check(self) -> None:
        """Nobody sees more than what is committed, and the numbers of the queue are those of the log."""
        ledger = self.part.ledger
        seen = bodies(self.store)
        if ledger.begin < 0:
            assert seen == []
            return
        shown = [self.texts[index] for index in range(ledger.begin, ledger.committed + 1)]
        if self.store.applier.following:
            self.store.applier.advance()
        assert bodies(self.store)[-len(shown) :] == shown if shown else True


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, seed=st.integers(0, 1 << 32))
@example(steps=[("up", 0), ("send", 0), ("anew", 0), ("crash", 0)], seed=0)
@example(steps=[("up", 0), ("send", 0), ("anew", 3), ("crash", 0)], seed=1)
def test_a_member_that_loses_power_keeps_what_was_committed_and_on_disk(steps: list[tuple[str, int]], seed: int) -> None:
    member = Member(seed)
    for what, amount in steps:
        if what == "kill":
            member.disk.kill()
            member.reopen()
        elif what == "crash":
            member.disk.crash()
            member.reopen()
        elif what == "off":
            member.disk.power_off_after(1 + amount % 40)
        else:
            try:
                member.step(what, amount)
            except PowerLost:
                member.disk.stay_on()
                member.disk.crash()
                member.reopen()
        member.check()
