"""The numbers of the layout, once more and by hand: whoever changes one breaks every store there is."""

from __future__ import annotations

from roquet.wire import columns, layout


def test_a_record_is_laid_out_as_upstream_lays_it_out() -> None:
    assert {hosts: front.size for hosts, front in layout.FRONTS.items()} == {0: 88, 0x10: 100, 0x20: 100, 0x30: 112}
    assert {hosts: dtype.itemsize for hosts, dtype in columns.COLUMNS.items()} == {0: 88, 0x10: 100, 0x20: 100, 0x30: 112}
    assert layout.FRONT.format == ">iIiiiqqiq8sq8siqi"
    assert (layout.MAGIC_AT, layout.CRC_AT, layout.QUEUE_ID_AT, layout.QUEUE_OFFSET_AT) == (4, 8, 12, 20)
    assert (layout.OFFSET_AT, layout.SYS_FLAG_AT, layout.STORE_TIME_AT, layout.BODY_AT) == (28, 36, 56, 88)
    assert (layout.RECORD_FIXED, layout.RECORD_MIN, layout.TIMED, layout.HEAD.size) == (90, 91, 76, 48)
    assert layout.RECORD_FRONT.size == 28


def test_the_store_time_is_found_whatever_the_born_host_is() -> None:
    for hosts, long in ((0, 0), (0x10, 12), (0x20, 0), (0x30, 12)):
        head = bytearray(layout.TIMED)
        head[36:40] = hosts.to_bytes(4, "big")
        head[56 + long : 64 + long] = (1_700_000_000_000).to_bytes(8, "big")
        assert layout.store_time_of(bytes(head)) == 1_700_000_000_000


def test_entries_and_index_files_are_laid_out_as_upstream_lays_them_out() -> None:
    assert (layout.ENTRY.size, columns.ENTRIES.itemsize, layout.BLANK.size) == (20, 20, 8)
    assert (layout.INDEX_HEADER.size, layout.INDEX_SLOT, layout.INDEX_ENTRY.size, columns.INDEX_ENTRIES.itemsize) == (40, 4, 20, 20)
