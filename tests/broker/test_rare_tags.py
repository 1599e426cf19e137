"""Pulls by tags that few messages have: the next of a kind judges more where the last one's answer did not become full."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from roquet.broker import pull as pull_module
from roquet.broker import pull_requests
from roquet.broker.gather import gather
from roquet.broker.pull_requests import SCAN_MAX, TAGGED_MAX, KnownPull
from roquet.routing.subscription import TagFilter
from roquet.speedups import native
from roquet.store.queue import ENTRY_SIZE
from roquet.wire.calls.pulls import PullHeader
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.record import decode_records

from .whole import Whole, pull_fields, send_fields

COUNT = 9_000
RARE = 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """One message in RARE has the tag `rare`, one in COUNT // 2 the tag `seldom`; records of another topic stand between some."""
    whole = Whole(
        tmp_path_factory.mktemp("rare") / "store", mapped_file_size_consume_queue=ENTRY_SIZE * COUNT, mapped_file_size_commit_log=1 << 22
    )
    random = Random(3)
    for begin in range(0, COUNT, 100):
        requests = []
        for number in range(begin, begin + 100):
            tag = "rare" if number % RARE == 50 else "seldom" if number % (COUNT // 2) == 4_400 else "often"
            requests.append(Command(310, send_fields(properties=f"UNIQ_KEY\x01U{number}\x02TAGS\x01{tag}"), b"%d" % number, opaque=number))
            if random.random() < 0.1:
                requests.append(Command(310, send_fields("Between"), bytes(random.choice((10, 3_000))), opaque=COUNT + number))
        whole.frames(*requests)
        assert all(answer.code == 0 for answer in whole.peer.take())
    for _ in range(5):
        whole.tick(2_000)  # the entries are in their files
    yield whole
    whole.close()


@pytest.fixture(params=["as it runs", "in Python"])
def whole(made: Whole, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Whole:
    if request.param == "in Python":
        monkeypatch.setattr(pull_module, "gather_for", lambda codes: gather)
    made.broker.puller.requests = pull_requests.PullRequests()
    return made


def read_all(whole: Whole, tag: str, limits: dict[str, str] | None = None) -> tuple[list[int], list[int]]:
    """The bodies of all that match, and how many entries each pull judged."""
    at, bodies, judged = 0, [], []
    while at < COUNT:
        answer = whole.ask(11, pull_fields(offset=at, subscription=tag) | (limits or {}))
        found = [int(record.body) for record in decode_records(answer.body)]
        assert answer.code == (0 if found else ResponseCode.PULL_RETRY_IMMEDIATELY)
        following = int(answer.fields["nextBeginOffset"])
        assert all(at <= one < following for one in found)
        judged.append(following - at)
        bodies += found
        at = following
    return bodies, judged


@pytest.mark.parametrize("limits", [{}, {"maxMsgNums": "3"}, {"maxMsgBytes": "2000"}, {"sysFlag": "6"}])
def test_everything_that_matches_comes_once_and_in_order(whole: Whole, limits: dict[str, str]) -> None:
    for _ in range(2):
        bodies, _ = read_all(whole, "rare", limits)
        assert bodies == list(range(50, COUNT, RARE))


def test_answers_become_full(whole: Whole) -> None:
    _, first = read_all(whole, "rare")
    assert first[:3] == [SCAN_MAX, SCAN_MAX * 5 // 4, SCAN_MAX * 25 // 16], "as upstream, then more"
    _, judged = read_all(whole, "rare")
    assert max(first + judged) in range(31 * RARE, 33 * RARE)
    assert len(judged) < len(first)
    _, judged = read_all(whole, "often")
    assert judged[-1] < SCAN_MAX
    assert max(judged) < 40


def test_where_nothing_matches_a_pull_judges_up_to_a_limit(whole: Whole) -> None:
    for _ in range(3):
        bodies, judged = read_all(whole, "seldom")
        assert bodies == [4_400, 4_400 + COUNT // 2]
    assert SCAN_MAX < max(judged) <= TAGGED_MAX
    assert read_all(whole, "none")[0] == []


def test_what_is_judged_next_has_bounds() -> None:
    known = KnownPull(PullHeader("g", "T", 0, 0, 32, 0, 0), b"", Command(11), ("T", 0), 32, 1 << 20, commits=False, binary=False)
    seen = []
    for count in (5, SCAN_MAX, 1_000, 6_000, TAGGED_MAX, 1 << 40, 0, 700):
        known.note_judged(count)
        seen.append(known.entries_max)
    assert seen == [SCAN_MAX, SCAN_MAX + SCAN_MAX // 4, 1_250, TAGGED_MAX, TAGGED_MAX, TAGGED_MAX, SCAN_MAX, 875]


@pytest.mark.parametrize("spoiled", [bytes(ENTRY_SIZE), b"\x01" * ENTRY_SIZE])
def test_a_damaged_entry_far_on_is_mended_and_not_much_is_looked_at_one_by_one(
    whole: Whole, spoiled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_all(whole, "rare")  # the next pulls judge many
    queue = whole.broker.store.queue("T", 0)
    sound, looked = queue.read(2_050, 1), []
    pick = pull_module.Puller._pick

    def counted(self: pull_module.Puller, pull: pull_module.Pull, raw: bytes, *rest: int) -> pull_module.Found:
        looked.append(len(raw) // ENTRY_SIZE)
        return pick(self, pull, raw, *rest)

    monkeypatch.setattr(pull_module.Puller, "_pick", counted)
    for number in (2_050, 2_051):
        whole.broker.puller.ahead.clear()
        good = queue.read(number, 1)
        queue.replace(number, spoiled)
        assert read_all(whole, "rare")[0] == list(range(50, COUNT, RARE))
        assert queue.read(number, 1) == good
    assert queue.read(2_050, 1) == sound
    assert looked
    assert max(looked) <= SCAN_MAX


@pytest.mark.skipif(native is None, reason="the extension is not here")
def test_of_many_entries_both_forms_take_the_same(made: Whole) -> None:
    assert native is not None
    log, queue, random = made.broker.store.log, made.broker.store.queue("T", 0), Random(8)
    view, codes = made.broker.puller.stretches.view, TagFilter(False, {hash_of("rare"), hash_of("seldom")}).hashes
    for _ in range(60):
        number = random.randrange(COUNT)
        raw = bytearray(queue.read(number, TAGGED_MAX))
        if random.random() < 0.5:
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        limits = random.choice((1, 3, 32)), random.choice((1, 700, 1 << 18))
        arguments = (bytes(raw), codes, number, *limits, log.start, log.written, 1 << 26, view, 1 << 19)
        assert native.gather(*arguments) == gather(*arguments)


def hash_of(tag: str) -> int:
    code = 0
    for letter in tag:
        code = code * 31 + ord(letter) & 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code
