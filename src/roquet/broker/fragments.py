"""The members of a large JSON object, each kept as its text: a change costs the encoding of what changed, not of the whole table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from roquet.wire.fastjson import dumps

K = TypeVar("K", bound=Hashable)


class Fragments(Generic[K]):
    """State: `texts`, complete except for what is in `stale`. Members stand in the order in which they came, and so do the stale ones: a
    set's order differs from run to run."""

    def __init__(self, encode: Callable[[K], bytes], portion: int = 1_000) -> None:
        """`encode` makes the text of a member as it is now, its name included. `portion`: how many of them before others get their turn."""
        self.encode = encode
        self.portion = portion
        self.encoded = 0
        """Members encoded since the start: what tests count."""
        self.texts: dict[K, bytes] = {}
        self.stale: dict[K, None] = {}

    def changed(self, keys: Iterable[K]) -> None:
        self.stale.update(dict.fromkeys(keys))

    def removed(self, key: K) -> None:
        self.texts.pop(key, None)
        self.stale.pop(key, None)

    def members(self) -> list[bytes]:
        """The texts as they are now. The list is the caller's: another thread may join it."""
        self.settle(list(self.stale))
        return list(self.texts.values())

    def some(self, keys: Iterable[K]) -> list[bytes]:
        self.settle(list(self.stale))
        return [self.texts[key] for key in keys if key in self.texts]

    def settle(self, keys: Iterable[K]) -> None:
        for key in keys:
            if self.stale.pop(key, self) is None:  # not made meanwhile, nor removed
                self.texts[key] = self.encode(key)
                self.encoded += 1

    def settle_in_portions(self) -> Iterator[None]:
        """What changes between two of them is in the later one, or stays stale."""
        keys = list(self.stale)
        for at in range(0, len(keys), self.portion):
            if at:
                yield
            self.settle(keys[at : at + self.portion])


def member(name: str, value: bytes) -> bytes:
    return dumps(name) + b":" + value
