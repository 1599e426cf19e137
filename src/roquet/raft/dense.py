"""The dense push between Roquet members: a head of fixed size, the names, then entries as they stand in the data files.

    request   term, commit index, first index, term before it (longs), entries (int), lengths of group, leader and receiver (a byte each),
              these names, data
    answer    code (int), term, last index, begin, end, committed (longs)

Java never sees it: it goes only to members whose messages say that they know it (`messages.OURS`).
"""

from __future__ import annotations

import struct

from roquet.raft.codes import Code
from roquet.raft.ledger import HEAD
from roquet.raft.messages import OURS, DensePush, PushAnswer, Unreadable

REQUEST = struct.Struct(">qqqqiBBB")
ANSWER = struct.Struct(">iqqqqq")


def body_of_push(push: DensePush) -> bytes:
    names = [(name or "").encode() for name in (push.group, push.leader_id, push.remote_id)]
    head = REQUEST.pack(push.term, push.commit_index, push.first, push.before_term, push.count, *map(len, names))
    return b"".join((head, *names, push.data))


def push_of(body: bytes) -> DensePush:
    """Raises Unreadable. The entries themselves are checked where they are stored."""
    try:
        term, commit, first, before_term, count, *lengths = REQUEST.unpack_from(body)
    except struct.error:
        raise Unreadable(f"a dense push of {len(body)} bytes, expected at least {REQUEST.size}") from None
    start, names = REQUEST.size, []
    for length in lengths:
        try:
            names.append(body[start : start + length].decode())
        except UnicodeDecodeError:
            raise Unreadable("a name in a dense push is not UTF-8") from None
        start += length
    room = len(body) - start
    if count < 1 or first < 0 or term < 0 or count * HEAD > room:
        raise Unreadable(f"a dense push of {count} entries from {first} on in term {term} has {room} bytes; expected {HEAD} and more each")
    group, leader, remote = names
    return DensePush(
        group=group,
        leader_id=leader,
        local_id=leader,
        remote_id=remote,
        term=term,
        ours=OURS,
        commit_index=commit,
        first=first,
        count=count,
        before_term=before_term,
        data=memoryview(body)[start:],
    )


def body_of_answer(answer: PushAnswer) -> bytes:
    index = -1 if answer.index is None else answer.index
    return ANSWER.pack(answer.code, answer.term, index, answer.begin_index, answer.end_index, answer.committed)


def answer_of_push(body: bytes) -> PushAnswer:
    """Raises Unreadable."""
    try:
        code, term, index, begin, end, committed = ANSWER.unpack(body)
    except struct.error:
        raise Unreadable(f"the answer to a dense push has {len(body)} bytes, expected {ANSWER.size}") from None
    return PushAnswer(
        code=code if code in Code._value2member_map_ else Code.UNKNOWN,
        term=term,
        index=index,
        begin_index=begin,
        end_index=end,
        committed=committed,
        ours=OURS,
    )
