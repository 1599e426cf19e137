"""Which messages of a batch differ in nothing but bodies and unique keys. What is stored of them is in test_staging and test_send."""

from __future__ import annotations

import pytest

from roquet.store.alike import Alike
from roquet.wire.batch import InnerMessage, join_batch

KEY = b"UNIQ_KEY\x01%032X\x02WAIT\x01true"


def messages(*others: InnerMessage) -> bytes:
    return join_batch([*[(0, b"body %d" % n, KEY % n) for n in range(4)], *others])


def test_messages_that_differ_in_body_and_unique_key_are_alike() -> None:
    alike = Alike.of(messages((0, b"other!", KEY % (1 << 100))))
    assert alike is not None
    assert (len(alike), alike.body_size, alike.text) == (5, 6, KEY % 0)
    assert alike.keys == b"".join(b"%032X" % n for n in (0, 1, 2, 3, 1 << 100))


@pytest.mark.parametrize(
    "other",
    [
        (7, b"body 4", KEY % 4),
        (0, b"body", KEY % 4),
        (0, b"body 4", b"UNIQ_KEY\x01%032X\x02WAIT\x01nope" % 4),
        (0, b"body 4", b"UNIQ_KEX\x01%032X\x02WAIT\x01true" % 4),
        (0, b"body 4", b"UNIQ_KEY\x01%030X\x02a\x02WAIT\x01true" % 4),
        (0, b"body 4", b"UNIQ_KEY\x01%030X\x01a\x02WAIT\x01true" % 4),
        (0, b"body 4", b"UNIQ_KEY\x01%031X\0\x02WAIT\x01true" % 4),
        (0, b"body 4", b"UNIQ_KEY\x01%030X\xc3\xa4\x02WAIT\x01true" % 4),
        (0, b"body 45678901234567890", b"UNIQ_KEY\x01%017X\x02WAIT\x01true" % 4),
    ],
    ids=["flag", "size of the body", "property", "name", "separator", "mark", "zero", "no ASCII", "same size, other parts"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_one_that_differs_in_anything_else_makes_them_another_kind(other: InnerMessage, at: int) -> None:
    assert Alike.of(messages(other)) is None
    if at:
        assert Alike.of(join_batch([other]) + messages()) is None


@pytest.mark.parametrize(
    "text", [b"", b"WAIT\x01true", b"UNIQ_KEY\x01", b"xUNIQ_KEY\x01a", b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b", b"UNIQ_KEY\x01a\x02KEYS\x01k"]
)
def test_without_one_unique_key_and_no_others_they_are_looked_at_in_another_way(text: bytes) -> None:
    assert Alike.of(join_batch([(0, b"body", text)] * 9)) is None
