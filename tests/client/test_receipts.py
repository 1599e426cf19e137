"""Receipts of a batch are a sequence like any other, made at the first look."""

from __future__ import annotations

import pytest

from roquet.client.core.receipt import Receipts, SendReceipt, SendStatus, per_message
from roquet.message import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 3)
IDS = ("A0", "A1", "A2")
OF_ALL = SendReceipt(SendStatus.SEND_OK, ",".join(IDS), "F0,F1,F2", QUEUE, 7, region="eu")


def test_each_message_has_its_own_ids_and_its_own_offset() -> None:
    receipts = Receipts(OF_ALL, IDS)
    assert len(receipts) == 3
    assert [(one.message_id, one.offset_message_id, one.queue_offset) for one in receipts] == [
        ("A0", "F0", 7),
        ("A1", "F1", 8),
        ("A2", "F2", 9),
    ]
    assert {(one.status, one.queue, one.region) for one in receipts} == {(SendStatus.SEND_OK, QUEUE, "eu")}
    assert all(type(one) is SendReceipt for one in receipts)


def test_they_are_used_as_a_list_is() -> None:
    receipts, made = Receipts(OF_ALL, IDS), per_message(OF_ALL, IDS)
    assert receipts == made
    assert receipts == Receipts(OF_ALL, IDS)
    assert receipts != made[:2]
    assert (receipts[-1], receipts[:2], list(reversed(receipts))) == (made[-1], made[:2], made[::-1])
    assert made[1] in receipts
    assert receipts[1] is receipts[1], "they are made once"
    assert repr(receipts) == repr(made)
    with pytest.raises(IndexError):
        receipts[3]
