"""Sends that are signed by somebody who may send them: found frame by frame, so that they go the short way to the log.

What is not sure is left alone, and the guard looks at it with every field and says why it refuses.
"""

from __future__ import annotations

from typing import Any

import orjson

from roquet.access.guard import AccessGuard
from roquet.errors import Broken
from roquet.ports import Peer
from roquet.wire.binary import read_header
from roquet.wire.codes import RequestCode
from roquet.wire.frame import JSON, Frame

RUN_MAX = 256
"""Frames that are looked at together. Were the turn over before they are all taken, the rest is looked at again."""
LONG_NAMES = int(RequestCode.SEND_MESSAGE)
TOPIC_FIELDS = {
    LONG_NAMES: ("topic", "b"),
    int(RequestCode.SEND_MESSAGE_V2): ("b", "topic"),
    int(RequestCode.SEND_BATCH_MESSAGE): ("b", "topic"),
}
"""By code: the field with the topic, and the one that must not be there: who reads it instead would read another topic."""


class SignedSends:
    def __init__(self, guard: AccessGuard) -> None:
        self._guard = guard

    def run(self, peer: Peer, frames: list[Frame], at: int) -> int:
        """How many frames from here on are sends that this peer may make."""
        may = self._may
        stop = min(len(frames), at + RUN_MAX)
        begun = at
        while at < stop and may(frames[at]):
            at += 1
        return at - begun

    def _may(self, frame: Frame) -> bool:
        form, header, body = frame
        try:
            if form == JSON:
                head = orjson.loads(header)
                code, fields = head.get("code"), head.get("extFields")
            else:
                code, _, _, fields, _, _, _ = read_header(header)
            names = TOPIC_FIELDS.get(code)
            if names is None or not self._all_texts(fields):
                return False
            topic, other = names
            return other not in fields and self._guard.may_send(fields, fields[topic], body)
        except (Broken, ValueError, KeyError, AttributeError, TypeError):
            return False

    def _all_texts(self, fields: Any) -> bool:
        return type(fields) is dict and all(type(value) is str for value in fields.values())
