"""Properties of plain sends: what is remembered of a text says the same of the next one as taking it apart does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet.broker import send_texts
from roquet.broker.send_texts import SendTexts

ADDED = "CLUSTER\x01c"
ITEMS = [
    "UNIQ_KEY\x01A", "UNIQ_KEY\x01B", "UNIQ_KEY\x01", "UNIQ_KEY\x01UNIQ_KEY\x01A", "xUNIQ_KEY\x01A", "WAIT\x01true", "WAIT\x01false",
    "TAGS\x01a", "TAGS\x01b", "KEYS\x01k", "KEYS\x01 ", "KEYS\x01A", "KEYS\x01k l", "a\x01b", "a\x01", "", "x", "DELAY\x011", "größe\x01ü",
]  # fmt: skip


def taken_apart(text: str) -> tuple[bytes, int, list[str]] | None:
    items = SendTexts(ADDED).take_apart(text)
    return None if items is None else ("\x02".join([*items.kept, ADDED]).encode(), items.tag, items.keys)


@given(texts=st.lists(st.lists(st.sampled_from(ITEMS), max_size=4).map("\x02".join), min_size=2, max_size=12))
def test_a_text_is_stored_the_same_whatever_was_seen_before_it(texts: list[str]) -> None:
    known = SendTexts(ADDED)
    for text in texts + texts:
        found = known.stored(text)
        assert (found if found is None else (found[0], found[1], list(found[2]))) == taken_apart(text)


def test_texts_that_differ_in_the_unique_key_are_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SendTexts(ADDED)
    known.stored("TAGS\x01a\x02UNIQ_KEY\x01A\x02WAIT\x01true")
    monkeypatch.setattr(known, "take_apart", None)
    found = known.stored("TAGS\x01a\x02UNIQ_KEY\x01other\x02WAIT\x01true")
    assert found == (b"TAGS\x01a\x02UNIQ_KEY\x01other\x02CLUSTER\x01c", ord("a"), ("other",))


def test_what_is_remembered_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_texts, "KNOWN_MAX", 10)
    known = SendTexts(ADDED)
    for number in range(100):
        assert known.stored(f"a\x01{number}\x02UNIQ_KEY\x01A") is not None
        assert known.stored(f"a\x01{number}{'x' * 300}\x02UNIQ_KEY\x01A") is not None
        assert len(known._around) <= 10
