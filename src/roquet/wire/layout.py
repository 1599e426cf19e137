"""Where every field stands: in a stored record, a queue's entry and an index file. Nobody else spells these numbers;
`columns.py` has them for numpy.

A record begins with its front, whose two hosts have 8 bytes each, or 20 with IPv6 (the sys flag says which); then come

    body n | topic 1+n (V1) or 2+n (V2) | properties 2+n

An entry of a queue is 20 bytes. An index file is a header, the slots, and the entries that hang in them. In DLedger's log a head of 48
bytes stands before each record, and its own index has a unit of 32 bytes for each.
"""

from __future__ import annotations

import struct
from typing import Final

# ---------------------------------------------------------------- the record

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
"""Of 5.x, for topics longer than 127 bytes: the topic's length takes two bytes."""
BLANK_MAGIC: Final = 0xCBD43194
"""Of what stands behind the last record of a file: `left 4 | BLANK_MAGIC 4` and whatever follows."""
MAGICS: Final = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
MAGIC_START: Final = MAGICS[0][:3]
assert MAGICS[1].startswith(MAGIC_START)

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
HOST: Final = 8
HOST_V6: Final = 20
LONGER_V6: Final = HOST_V6 - HOST

FIELDS: Final = (
    ("size", "i"), ("magic", "I"), ("crc", "i"), ("queue_id", "i"), ("flag", "i"), ("queue_offset", "q"), ("physical_offset", "q"),
    ("sys_flag", "i"), ("born_ms", "q"), ("born_host", "h"), ("store_ms", "q"), ("store_host", "h"), ("reconsumed", "i"), ("prepared", "q"),
    ("body_size", "i"),
)  # fmt: skip
"""The front, field by field, in the codes of `struct`; "h" is a host."""


def host_size(name: str, hosts: int) -> int:
    return HOST_V6 if hosts & (BORN_HOST_V6 if name == "born_host" else STORE_HOST_V6) else HOST


def front_of(hosts: int, upto: int = len(FIELDS)) -> struct.Struct:
    return struct.Struct(">" + "".join(f"{host_size(name, hosts)}s" if code == "h" else code for name, code in FIELDS[:upto]))


FRONTS: Final = {hosts: front_of(hosts) for hosts in (0, BORN_HOST_V6, STORE_HOST_V6, HOSTS_V6)}
"""By the two bits of the sys flag."""
FRONT: Final = FRONTS[0]


def place(name: str) -> int:
    """Of a field in a front with short hosts."""
    return front_of(0, [field for field, _ in FIELDS].index(name)).size


MAGIC_AT: Final = place("magic")
CRC_AT: Final = place("crc")
QUEUE_ID_AT: Final = place("queue_id")
QUEUE_OFFSET_AT: Final = place("queue_offset")
OFFSET_AT: Final = place("physical_offset")
SYS_FLAG_AT: Final = place("sys_flag")
STORE_TIME_AT: Final = place("store_ms")
"""With a short born host; LONGER_V6 later with a long one."""
BODY_AT: Final = FRONT.size
"""With short hosts; LONGER_V6 later for each long one."""
PREPARED_BEFORE_BODY: Final = BODY_AT - place("prepared")

TIMED: Final = STORE_TIME_AT + 8 + LONGER_V6
"""As much of a record as has its store time, whatever its hosts. Every record is longer."""
HEAD: Final = struct.Struct(">" + "".join(code for _, code in FIELDS[:9]))
"""What stands before the hosts."""
FRONTS_ALIKE: Final = {hosts: struct.Struct(f"{HEAD.format}{front.size - HEAD.size - 4}si") for hosts, front in FRONTS.items()}
"""The same as FRONTS, where all that stands between the time of birth and the body's size is one value: see `alike`."""


def alike(born_host: bytes, store_ms: int, store_host: bytes) -> bytes:
    """What records of one turn from one peer have in common, if they are neither consumed before nor prepared."""
    return born_host + store_ms.to_bytes(8, "big", signed=True) + store_host + bytes(12)


RECORD_FRONT: Final = struct.Struct(f">iI{QUEUE_OFFSET_AT - MAGIC_AT - 4}xq")
"""Size, magic and the number in its queue."""
RECORD_FIXED: Final = FRONT.size + 2
"""Bytes of a record beside its body, its topic with the length before it, and its properties; with short hosts."""
RECORD_MIN: Final = RECORD_FIXED + 1
"""Bytes of a record with empty body, topic and properties."""
PROPERTIES_MAX: Final = 32_767
TOPIC_MAX_V1: Final = 127
TOPIC_MAX_V2: Final = 32_767
QUEUE_ID_MAX: Final = 65_535
QUEUES_MAX: Final = 65_535
"""Of a topic."""


def store_time_place(sys_flag: int) -> int:
    return STORE_TIME_AT + LONGER_V6 if sys_flag & BORN_HOST_V6 else STORE_TIME_AT


def store_time_of(head: bytes) -> int:
    """Of the record whose first TIMED bytes these are."""
    at = store_time_place(int.from_bytes(head[SYS_FLAG_AT : SYS_FLAG_AT + 4], "big"))
    return int.from_bytes(head[at : at + 8], "big")


# ---------------------------------------------------------------- the blank end of a log file

#  0        4        8
#  +--------+--------+
#  | left   | magic  |   `left` bytes up to the end of this file hold nothing
#  +--------+--------+
BLANK: Final = struct.Struct(">iI")

# ---------------------------------------------------------------- the entry of a queue

# `store/queue.py` draws it. The tag is the hash of the record's tag, or when it is due.
ENTRY: Final = struct.Struct(">qiq")
BLANK_LENGTH: Final = 0x7FFFFFFF
"""The size in an entry that stands for no message."""

# ---------------------------------------------------------------- the index file

# `store/index.py` draws it.
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_SLOT: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")

# ---------------------------------------------------------------- an entry of DLedger's log

#  0       4      8       16     24    32        36          40         44          48
#  +-------+------+-------+------+-----+---------+-----------+----------+-----------+
#  | magic | size | index | term | pos | channel | chain crc | body crc | body size | the record
#  +-------+------+-------+------+-----+---------+-----------+----------+-----------+
# `size` counts all of it, `pos` is where the magic stands in the log. Nobody fills in channel and checksums.
LEDGER_HEAD: Final = struct.Struct(">iiqqqiiii")
LEDGER_MAGIC: Final = 1
LEDGER_ENTRY_MAX: Final = 4_194_304
"""Bytes of an entry that a member written in Java can take."""

#  0       4     12     16      24     32
#  +-------+-----+------+-------+------+
#  | magic | pos | size | index | term |   of the entry with this index, at index * 32 of the index files
#  +-------+-----+------+-------+------+
LEDGER_UNIT: Final = struct.Struct(">iqiqq")
LEDGER_INDEX_FILE: Final = 5_242_880 * LEDGER_UNIT.size

#  0         4        8
#  +---------+--------+
#  | -1      | left   |   `left` bytes up to the end of this data file hold nothing
#  +---------+--------+
LEDGER_BLANK: Final = struct.Struct(">ii")
LEDGER_BLANK_MAGIC: Final = -1
