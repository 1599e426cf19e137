"""The members of a large JSON object, each kept as its text: a change costs the encoding of what changed, not of the whole table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from roquet.wire.fastjson import dumps


class Fragments:
    """State: `_texts`, complete except for the names in `_stale`. Members stand in the order in which they came."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        """`encode` makes the text of the value of this name, as it is now."""
        self.encode = encode
        self.encoded = 0
        """Members encoded since the start: what tests count."""
        self._texts: dict[str, bytes] = {}
        self._stale: dict[str, None] = {}

    def changed(self, names: Iterable[str]) -> None:
        self._stale.update(dict.fromkeys(names))

    def removed(self, name: str) -> None:
        self._texts.pop(name, None)
        self._stale.pop(name, None)

    def members(self) -> list[bytes]:
        """The texts as they are now. The list is the caller's: another thread may join it."""
        self._settle()
        return list(self._texts.values())

    def some(self, names: Iterable[str]) -> list[bytes]:
        """Those of these names that are there."""
        self._settle()
        return [self._texts[name] for name in names if name in self._texts]

    def _settle(self) -> None:
        for name in self._stale:
            self._texts[name] = dumps(name) + b":" + self.encode(name)
        self.encoded += len(self._stale)
        self._stale = {}
