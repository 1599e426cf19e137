"""Sends that are signed by somebody who may send them: found frame by frame, so that they go the short way to the log.

What is not sure is left alone, and the guard looks at it with every field and says why it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from roquet.access.guard import AccessGuard
from roquet.access.signatures import is_signed
from roquet.errors import Broken
from roquet.ports import Peer
from roquet.speedups import native
from roquet.wire.binary import read_header
from roquet.wire.codes import RequestCode
from roquet.wire.frame import JSON, Frame
from roquet.wire.signing import ACCESS_KEY

RUN_MAX = 256
"""Frames that are looked at together. Were the turn over before they are all taken, the rest is looked at again."""
LONG_NAMES = int(RequestCode.SEND_MESSAGE)
TOPIC_FIELDS = {
    LONG_NAMES: ("topic", "b"),
    int(RequestCode.SEND_MESSAGE_V2): ("b", "topic"),
    int(RequestCode.SEND_BATCH_MESSAGE): ("b", "topic"),
}
"""By code: the field with the topic, and the one that must not be there: who reads it instead would read another topic."""

Find = Callable[[list[Frame], int, int, dict[bytes, bytes], set[bytes], bytes], tuple[int, bytes | None]]


class SignedSends:
    def __init__(self, guard: AccessGuard) -> None:
        self._guard = guard
        self.find: Find = signed_sends if native is None else native.signed_sends

    def run(self, peer: Peer, frames: list[Frame], at: int) -> int:
        """How many frames from here on are sends that this peer may make. The first request of a connection is the guard's: whoever has
        shown nothing yet is not worth more than that."""
        if not peer.principal:
            return 0
        guard = self._guard
        begun, stop = at, min(len(frames), at + RUN_MAX)
        while at < stop:
            at, pair = self.find(frames, at, stop, guard.secrets, guard.may_send, guard.broker_name)
            if pair is None or not guard.allows_sends(pair):
                break
        return at - begun


def signed_sends(
    frames: list[Frame], at: int, stop: int, secrets: dict[bytes, bytes], may: set[bytes], broker_name: bytes
) -> tuple[int, bytes | None]:
    """Where the first frame stands that is no signed send, or not sure. `secrets`: by access key. `may`: access key, zero, topic. If all
    that is missing is that `may` does not have it, that is returned too."""
    while at < stop:
        pair = _look(frames[at], secrets, broker_name)
        if pair is None or pair not in may:
            return at, pair
        at += 1
    return at, None


def _look(frame: Frame, secrets: dict[bytes, bytes], broker_name: bytes) -> bytes | None:
    """Who sends where, if that is signed."""
    form, header, body = frame
    try:
        if form == JSON:
            head = orjson.loads(header)
            code, fields = head.get("code"), head.get("extFields")
        else:
            code, _, _, fields, _, _, _ = read_header(header)
        names = TOPIC_FIELDS.get(code)
        if names is None or not _all_texts(fields) or names[1] in fields:
            return None
        key, topic = fields[ACCESS_KEY].encode(), fields[names[0]].encode()
        secret = secrets[key]
        named = fields.get("n") or fields.get("bname")
        if not topic or (named and named.encode() != broker_name) or not is_signed(fields, body, secret):
            return None
    except (Broken, ValueError, KeyError, AttributeError, TypeError):
        return None
    return bytes(key + b"\0" + topic)


def _all_texts(fields: Any) -> bool:
    return type(fields) is dict and all(type(value) is str for value in fields.values())
