"""Which connections have shown which account, so that those can be found whose account has changed."""

from __future__ import annotations

from collections.abc import Iterable

from roquet.ports import Peer


class Shown:
    """State: by access key the connections that have shown it, and by connection its keys, which may be several, one after another."""

    def __init__(self) -> None:
        self._peers: dict[str, dict[Peer, None]] = {}
        self._keys: dict[Peer, set[str]] = {}

    def note(self, peer: Peer, key: str) -> None:
        if not peer.closed:
            self._peers.setdefault(key, {})[peer] = None
            self._keys.setdefault(peer, set()).add(key)

    def forget(self, peer: Peer) -> None:
        """Its connection is gone."""
        for key in self._keys.pop(peer, ()):
            those = self._peers[key]
            del those[peer]
            if not those:
                del self._peers[key]

    def accounts(self) -> list[str]:
        return list(self._peers)

    def peers_of(self, keys: Iterable[str]) -> dict[Peer, None]:
        return {peer: None for key in keys for peer in self._peers[key]}
