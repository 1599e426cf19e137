"""What is derived from many records at once is what the broker derives from each."""

from __future__ import annotations

import random
import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roquet.settings import BrokerSettings, delay_levels_ms
from roquet.store import derive
from roquet.store.fanout import index_keys, is_indexed, is_queued, queue_tag
from roquet.store.index import key_hash
from roquet.store.scan import parse
from roquet.wire.layout import FRONTS, MAGIC_V1, MAGIC_V2
from roquet.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC

DELAYS = delay_levels_ms(BrokerSettings().message_delay_level)
BASE = 1 << 30

names = st.sampled_from(
    ["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "TIMER_OUT_MS", "TIMER_ROLL_TIMES", "KEYSX", "XKEYS", "TAGS2", "UNIQ_KE", "UNIQ_KEY2", ""]
)
values = st.one_of(
    st.text(alphabet="ab \x01", max_size=6),
    st.text(alphabet=st.characters(exclude_characters="\0\x02", exclude_categories=["Cs"]), max_size=6),
    st.integers(0, 99).map(str),
    st.integers(1, 70).map(lambda count: " ".join(map(str, range(count)))),
)
properties = st.tuples(st.lists(st.tuples(names, values), max_size=6), st.booleans()).map(
    lambda drawn: "\x02".join(name + "\x01" + value for name, value in drawn[0]) + ("\x02" if drawn[1] and drawn[0] else "")
)
records = st.tuples(
    st.sampled_from(["T", "Топик", SCHEDULE_TOPIC, TIMER_TOPIC, "x" * 100]),
    properties,
    st.binary(max_size=12),
    st.sampled_from([0, 0x4, 0x8, 0xC]),
    st.sampled_from([0, 0x10, 0x20, 0x30]),
    st.sampled_from([MAGIC_V1, MAGIC_V2]),
    st.integers(0, 9),
    st.integers(0, 1 << 40),
)


def pack(drawn: tuple[str, str, bytes, int, int, int, int, int], offset: int) -> bytes:
    topic, text, body, kind, hosts, magic, queue_id, number = drawn
    name, tail = topic.encode(), text.encode()
    born, stored = bytes(20 if hosts & 0x10 else 8), bytes(20 if hosts & 0x20 else 8)
    field = len(name).to_bytes(1 if magic == MAGIC_V1 else 2, "big") + name
    size = FRONTS[hosts].size + len(body) + len(field) + 2 + len(tail)
    crc = zlib.crc32(body) & 0x7FFFFFFF
    front = FRONTS[hosts].pack(
        size, magic, crc, queue_id, 0, number, offset, kind | hosts, 1, born, 1_700_000_000_000 + number, stored, 0, 0, len(body)
    )
    return front + body + field + len(tail).to_bytes(2, "big") + tail


@settings(max_examples=150, deadline=None)
@given(st.lists(records, max_size=12), st.randoms(use_true_random=False), st.booleans())
def test_many_records_at_once_are_derived_as_one_by_one(
    drawn: list[tuple[str, str, bytes, int, int, int, int, int]], chance: random.Random, damage: bool
) -> None:
    data = b""
    for one in drawn:
        data += pack(one, BASE + len(data))
    starts, end = derive.walk(data, 0, len(data))
    assert len(starts) == len(drawn)
    assert end == len(data)
    if damage and data:
        spoiled = bytearray(data)
        for _ in range(3):
            at = chance.randrange(len(data))
            if not any(at - start < 8 for start in starts if at >= start):  # sizes and magic belong to the walk
                spoiled[at] = chance.randrange(128)  # a time before 1970 is no time
        data = bytes(spoiled)
    ends = [*starts, len(data)][1:]
    parsed = [parse(data[start:stop], BASE + start) for start, stop in zip(starts, ends, strict=True)]

    found, bad = derive.read(data, BASE, starts)

    whole = [one for one in parsed if one is not None]
    assert [place for place, _ in bad] == [start for start, one in zip(starts, parsed, strict=True) if one is None]
    assert found.offsets.tolist() == [one.offset for one in whole]
    assert [found.topics[number] for number in found.topic_of] == [one.topic for one in whole]
    assert found.queue_offsets.tolist() == [one.queue_offset for one in whole]
    assert found.store_ms.tolist() == [one.store_ms for one in whole]
    assert [found.texts[number] for number in range(len(found))] == [one.properties for one in whole]
    assert found.queued.tolist() == [is_queued(one.sys_flag) for one in whole]
    assert derive.queue_tags(found, DELAYS).tolist() == [queue_tag(one.topic, one.properties, one.store_ms, DELAYS) for one in whole]
    owners, hashes = derive.key_entries(found)
    expected = [
        (number, key_hash(one.topic, key))
        for number, one in enumerate(whole)
        if is_indexed(one.sys_flag)
        for key in index_keys(one.properties)
    ]
    assert list(zip(owners.tolist(), hashes.tolist(), strict=True)) == expected


def test_the_next_record_behind_damage_is_found_by_the_offset_it_carries() -> None:
    one = ("T", "TAGS\x01a", b"hello", 0, 0, MAGIC_V1, 0, 7)
    first = pack(one, BASE)
    copy = pack(one, BASE + 3)  # a record inside a body, which does not stand where it says
    inside = pack(("T", "", copy, 0, 0, MAGIC_V1, 0, 8), BASE + len(first))
    data = first + inside + pack(one, BASE + len(first) + len(inside))
    assert derive.next_record(data, 1, BASE) == len(first)
    assert derive.next_record(data, len(first) + 1, BASE) == len(first) + len(inside)
    assert derive.next_record(data, len(first) + len(inside) + 1, BASE) == -1
    assert np.array_equal(derive.walk(data, 0, len(data))[0], [0, len(first), len(first) + len(inside)])
