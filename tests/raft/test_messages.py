"""The bodies of DLedger's requests and answers: Java's bytes both ways, and whatever else may come."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.raft import dense
from roquet.raft.codes import Call, Code, PushType, VoteResult
from roquet.raft.ledger import HEAD, entries_of, entry_bytes
from roquet.raft.messages import (
    CALLS,
    DensePush,
    GetRequest,
    HeartBeatAnswer,
    HeartBeatRequest,
    MetadataRequest,
    PushAnswer,
    PushRequest,
    Request,
    TransferRequest,
    Unreadable,
    VoteAnswer,
    VoteRequest,
    answer_of,
    body_of,
    request_of,
)
from roquet.wire.layout import LEDGER_MAGIC
from roquet.wire.ledger_entry import Entry, Misplaced
from tests.raft.recordings import frames

JAVA = [frame for frame in frames() if frame.is_java and frame.body and frame.status in (200, frame.code)]

longs = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.none() | st.text(max_size=20)


fields = st.sampled_from(["entry", "batchEntry", "term", "type", "body", "size", "index", "peers", "entries"])
values = st.recursive(
    st.none() | st.booleans() | longs | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=5),
    max_leaves=12,
)


@st.composite
def entries(draw: st.DrawFn, first: int | None = None) -> Entry:
    body = draw(st.binary(max_size=60))
    index = draw(st.integers(0, 1 << 40)) if first is None else first
    numbers = [draw(st.integers(0, 1 << 40)) for _ in range(2)]
    crcs = [draw(st.integers(-(1 << 31), (1 << 31) - 1)) for _ in range(3)]
    return Entry._make((LEDGER_MAGIC, HEAD + len(body), index, *numbers, *crcs, body))


@st.composite
def runs(draw: st.DrawFn) -> list[Entry]:
    start = draw(st.integers(0, 1 << 40))
    return [draw(entries(start + at)) for at in range(draw(st.integers(1, 4)))]


def common(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "group": draw(names),
        "remote_id": draw(names),
        "local_id": draw(names),
        "leader_id": draw(names),
        "term": draw(longs),
        "code": draw(st.sampled_from(list(Code))),
        "ours": draw(st.integers(0, 3)),
    }


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.integers(0, 5))
    base = common(draw)
    if kind == 0:
        return VoteRequest(**base, ledger_end_index=draw(longs), ledger_end_term=draw(longs), trial=draw(st.booleans()))
    if kind == 1:
        return HeartBeatRequest(**base, every_ms=draw(st.integers(0, 10_000)))
    if kind == 2:
        found = draw(runs() | st.just([]))
        batch = len(found) > 1 or (bool(found) and draw(st.booleans()))
        return PushRequest(**base, kind=draw(st.sampled_from(PushType)), commit_index=draw(longs), entries=found, batch=batch)
    if kind == 3:
        return TransferRequest(**base, transfer_id=draw(names), transferee_id=draw(names), take_leadership_ledger_index=draw(longs))
    return MetadataRequest(**base) if kind == 4 else GetRequest(**base, begin_index=draw(longs))


@pytest.mark.parametrize("code", sorted({frame.code for frame in JAVA}))
def test_what_java_wrote_is_read_and_written_again_byte_for_byte(code: int) -> None:
    count = 0
    for frame in JAVA:
        if frame.code == code:
            read = request_of(code, frame.body.encode()) if frame.way == "request" else answer_of(code, frame.body.encode())
            assert body_of(read).decode() == frame.body
            count += 1
    assert count


def test_every_recorded_entry_is_a_record_that_knows_its_place() -> None:
    seen = 0
    for frame in JAVA:
        if frame.code == Call.PUSH and frame.way == "request":
            push = request_of(frame.code, frame.body.encode())
            assert isinstance(push, PushRequest)
            for entry in push.entries:
                assert int.from_bytes(entry.body[:4], "big") == len(entry.body)
                assert int.from_bytes(entry.body[28:36], "big") == entry.pos + HEAD
                assert entries_of(entry_bytes(entry)) == [entry]
                seen += 1
    assert seen > 50


def test_a_request_with_nothing_in_it_has_javas_defaults() -> None:
    vote, push, transfer = request_of(Call.VOTE, b"{}"), request_of(Call.PUSH, b"{}"), request_of(Call.LEADERSHIP_TRANSFER, b"{}")
    assert vote == VoteRequest(term=-1, ledger_end_index=-1, ledger_end_term=-1, code=200)
    assert push == PushRequest(kind=PushType.APPEND, commit_index=-1, entries=[], term=-1)
    assert transfer == TransferRequest(take_leadership_ledger_index=0)
    assert answer_of(Call.HEART_BEAT, b"{}") == HeartBeatAnswer(code=200, term=-1)
    assert answer_of(Call.VOTE, b"{}") == VoteAnswer(result=VoteResult.UNKNOWN)


def test_names_that_nobody_knows_are_passed_over() -> None:
    read = request_of(Call.HEART_BEAT, b'{"newerField":{"a":[1]},"term":4,"another":null,"leaderId":"n1"}')
    assert read == HeartBeatRequest(term=4, leader_id="n1")


def test_a_java_partner_sees_nothing_of_ours_in_an_answer() -> None:
    assert body_of(HeartBeatAnswer(code=Code.SUCCESS)) == b'{"code":200,"term":-1}'
    assert body_of(PushAnswer(group="g", index=1, count=1, end_index=1, term=1, committed=1)) == (
        b'{"beginIndex":0,"code":200,"count":1,"endIndex":1,"group":"g","index":1,"term":1}'
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON"),
        (b"{not json", "not JSON"),
        (b"[1]", "expected an object"),
        (b'{"term":"4"}', "term is '4'"),
        (b'{"term":1.5}', "term is 1.5"),
        (b'{"term":true}', "term is True"),
        (b'{"term":9223372036854775808}', "64 bits"),
        (b'{"code":2147483648}', "32 bits"),
        (b'{"leaderId":7}', "leaderId is 7"),
        (b'{"type":"NEWTYPE"}', "expected one of APPEND, COMMIT, COMPARE, TRUNCATE"),
        (b'{"entry":[]}', "an entry is"),
        (b'{"entry":{"body":"%%","size":48}}', "expected base64"),
        (b'{"entry":{"body":"AAAA","size":48}}', "expected size 51"),
        (b'{"entry":{"body":"","size":48,"index":-1}}', "no number below 0"),
        (b'{"batchEntry":{}}', "expected at most"),
        (b'{"batchEntry":[{"size":48,"index":1},{"size":48,"index":3}]}', "entry 3 follows entry 1"),
    ],
)
def test_a_body_that_is_no_push_is_refused_with_what_is_wrong(body: bytes, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        request_of(Call.PUSH, body)


@settings(max_examples=100, deadline=None)
@given(requests())
def test_what_is_written_is_read_back(request: Request) -> None:
    body = body_of(request)
    assert request_of(CALLS[type(request)], body) == request
    assert list(json.loads(body)) == sorted(json.loads(body))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(set(Call) - {Call.PULL, Call.DENSE_PUSH})), values)
def test_any_json_is_a_message_or_unreadable_and_nothing_else(code: int, value: object) -> None:
    for read in (request_of, answer_of):
        try:
            read(code, json.dumps(value).encode())
        except Unreadable:
            continue


@settings(max_examples=60, deadline=None)
@given(runs(), longs.filter(lambda term: term >= 0), longs, longs)
def test_a_dense_push_is_read_back(run: list[Entry], term: int, commit: int, before: int) -> None:
    data = b"".join(map(entry_bytes, run))
    push = DensePush(group="g", leader_id="n1", local_id="n1", remote_id="n2", term=term, ours=1, commit_index=commit, first=run[0].index)
    push.count, push.before_term, push.data = len(run), before, data
    read = dense.push_of(dense.body_of_push(push))
    assert entries_of(read.data) == run
    read.data = data
    assert read == push
    for cut in range(len(data)):
        try:
            entries_of(data[:cut])
        except Misplaced:
            continue
        assert cut in {0, *(sum(entry.size for entry in run[: at + 1]) for at in range(len(run)))}


@given(st.binary(max_size=80))
def test_any_bytes_are_a_dense_push_or_unreadable_and_nothing_else(body: bytes) -> None:
    try:
        dense.push_of(body)
    except Unreadable:
        return


def test_the_answer_to_a_dense_push_is_read_back() -> None:
    answer = PushAnswer(code=Code.SUCCESS, term=7, index=12, begin_index=3, end_index=14, committed=9, ours=1)
    assert dense.answer_of_push(dense.body_of_answer(answer)) == answer
    with pytest.raises(Unreadable, match="3 bytes"):
        dense.answer_of_push(b"abc")
