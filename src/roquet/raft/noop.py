"""The entry with which a leader begins its term.

It must be something that Java's members and every store take for an ordinary record, and that nobody sees. So it is a message of a
system topic that was "rolled back": such a record has no place in any queue and no key in the index, Java's dispatch and ours pass over
it, and its number in the queue is 0, so that nothing needs to be known of the queues when it is written. Clients cannot send to that topic.
"""

from __future__ import annotations

from roquet.store.fanout import ROLLBACK
from roquet.wire.record import Record

TERM_TOPIC = "rmq_sys_ROQUET_TERM"


def noop_record(offset: int, term: int, leader: str, now_ms: int, host: bytes) -> bytes:
    """The record, which will stand at this offset. Its size does not depend on the offset."""
    body = f"term {term} begins, {leader} leads".encode()
    return Record(
        TERM_TOPIC, 0, body, physical_offset=offset, sys_flag=ROLLBACK, born_timestamp=now_ms, born_host=host, store_timestamp=now_ms,
        store_host=host,
    ).encode()  # fmt: skip
