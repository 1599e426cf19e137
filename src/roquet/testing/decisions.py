"""Decisions: what the databases of those who send in transactions say. They outlive every process.

    half message stored ── execute ── decided, for ever
    the broker asks, and nothing was executed ── it never will be: rolled back, for ever

Checked: a message is shown only when its transaction was committed, and at rest when, and not twice.
"""

from __future__ import annotations

from collections.abc import Collection

from roquet.client.core.transactions import TransactionState


class Decisions:
    """State: the names of all transactions that began, and what was decided of each. `stored` are those whose half message was
    acknowledged: somebody must be told of their end."""

    def __init__(self) -> None:
        self.begun: set[bytes] = set()
        self.decided: dict[bytes, TransactionState] = {}
        self.stored: set[bytes] = set()

    def begins(self, name: bytes) -> None:
        self.begun.add(name)

    def executes(self, name: bytes, wish: TransactionState) -> TransactionState:
        """The half message is stored. What holds is what was decided first."""
        self.stored.add(name)
        return self.decided.setdefault(name, wish)

    def asked(self, name: bytes) -> TransactionState:
        return self.decided.setdefault(name, TransactionState.ROLLBACK)

    def forbids(self, name: bytes) -> str:
        """Why this message must not be seen; "" when it may."""
        state = self.decided.get(name)
        if state is TransactionState.COMMIT:
            return ""
        return "its transaction is not decided" if state is None else "its transaction was rolled back"

    def unseen(self, consumed: Collection[bytes]) -> list[bytes]:
        """Of transactions that were committed, what is not among these."""
        return [
            name for name, state in self.decided.items()
            if state is TransactionState.COMMIT and name in self.stored and name not in consumed
        ]  # fmt: skip
