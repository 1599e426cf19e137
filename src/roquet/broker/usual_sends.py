"""Sends as nearly all are, read at the least cost without the extension: single messages for topics that are known, not consumed before,
with nothing in the header that was not seen before but the opaque, the time and the properties.

What it does not take is looked at properly (`PlainSends._stage`), which makes every check. What it takes that would take too, and a test
holds both to the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

import orjson

from roquet.broker.send_properties import KEPT_FLAGS
from roquet.broker.send_texts import SendTexts
from roquet.settings import BrokerSettings
from roquet.store.fanout import PREPARED
from roquet.store.queue import ConsumeQueue
from roquet.store.staging import Send
from roquet.wire.command import ONEWAY
from roquet.wire.frame import BINARY, Frame
from roquet.wire.json_shapes import JsonShapes
from roquet.wire.layout import PROPERTIES_MAX
from roquet.wire.send_shapes import CODES, SendShapes, Shaped, is_number

NO_ANSWER = -1
"""The form of the answer to a oneway request."""
USED = itemgetter(*"abcdefghijm")
KNOWN_MAX = 10_000
DIGITS_MAX = 9
"""Of a number that surely fits."""
LONG_MAX = 0x7FFFFFFFFFFFFFFF

Asked = tuple[int, int, int]
"""What the answer needs: (form, opaque, queue id)."""


class UsualSends:
    """State: what was seen before in headers."""

    def __init__(self, queues: Mapping[str, Mapping[str, ConsumeQueue]], texts: SendTexts, settings: BrokerSettings) -> None:
        """`queues`: see `Topics.plain_queues`."""
        self._queues = queues
        self._texts = texts
        self._settings = settings
        self._shapes = SendShapes()
        self._json = JsonShapes()
        self._flags: dict[tuple[Any, ...], tuple[int, int]] = {}
        """What fields of JSON headers say that nearly never change -> (sys flag, flag of the message)."""

    def read(self, frames: list[Frame], at: int) -> tuple[list[Send], list[Asked], Any]:
        """Those that stand from here on, up to the first that is another; and the header of that one, if it was read."""
        sends: list[Send] = []
        asked: list[Asked] = []
        read_binary, read_json, loads, stored = self._shapes.read, self._json.read, orjson.loads, self._texts.stored
        queues, body_max = self._queues, self._settings.max_message_size
        head: Any = None
        for form, header, body in islice(frames, at, None):
            try:
                if form == BINARY:
                    found = read_binary(header)
                else:
                    found = read_json(header)
                    if found is None:
                        head = loads(header)
                        found = self._read_whole(head)
                if found is None:
                    break
                opaque, flag, topic, queue_text, sys_flag, born_ms, user_flag, text = found
                queue, kept = queues[topic][queue_text], stored(text)
                if head is not None:
                    self._json.learn(header, head, found)
            except (KeyError, ValueError, AttributeError, TypeError):
                break
            if flag:
                if flag != ONEWAY:
                    break
                form = NO_ANSWER
            if kept is None or len(body) > body_max:
                break
            properties, tag, keys = kept
            if 0 in properties or len(properties) > PROPERTIES_MAX:
                break  # it is refused, and must not make all behind it be read again and again
            sends.append((queue, body, properties, tag, keys, sys_flag, user_flag, born_ms))
            asked.append((form, opaque, queue.queue_id))
            head = None
        return sends, asked, head

    def _read_whole(self, head: dict[str, Any]) -> Shaped | None:
        get = head.get
        fields, opaque, flag = head["extFields"], get("opaque"), get("flag", 0)
        _, topic, _, nums, queue_text, sys_text, born_text, flag_text, text, consumed, batch = USED(fields)
        rare = get("code"), nums, sys_text, flag_text, consumed, batch, fields.get("l")
        flags = self._flags.get(rare) or self._learn(rare)
        born_ms = int(born_text)
        if (
            flags is None or type(opaque) is not int or not -0x80000000 <= opaque <= 0x7FFFFFFF or type(flag) is not int
            or not (born_text.isdigit() and born_text.isascii()) or born_ms > LONG_MAX
        ):  # fmt: skip
            return None
        return opaque, flag, topic, queue_text, flags[0], born_ms, flags[1], text

    def _learn(self, rare: tuple[Any, ...]) -> tuple[int, int] | None:
        code, nums, sys_text, flag_text, consumed, batch, most = rare
        numbers = (nums, sys_text, flag_text, "0" if most is None else most)
        if code not in CODES or (consumed, batch) != ("0", "false") or not all(is_number(text) for text in numbers):
            return None
        if max(map(len, numbers)) > DIGITS_MAX or int(sys_text) & ~(KEPT_FLAGS | PREPARED):
            return None
        if len(self._flags) >= KNOWN_MAX:
            self._flags.clear()
        self._flags[rare] = found = int(sys_text) & KEPT_FLAGS, int(flag_text)
        return found
