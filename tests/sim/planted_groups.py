"""Bugs that groups like ours have had, planted into whole brokers: each is one thing wrong, and the simulation of groups must find it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roquet.broker.core import Broker
from roquet.raft.leading import Leading
from roquet.store.entry_log import EntryLog
from roquet.store.synced_log import SyncedLog
from tests.raft.planted import CountsOnlyItself, CountsWhoAnswers


def leading_as(kind: type[Leading]) -> Callable[..., Broker]:
    """Brokers whose members lead so."""

    def make(*parts: Any) -> Broker:
        broker = Broker(*parts)
        if broker.group is not None:
            group, open_group = broker.group, broker.group.open

            def open_and_plant() -> None:
                open_group()
                group.member.leading = kind(group.member)

            group.open = open_and_plant  # type: ignore[method-assign] # that is the plant
        return broker

    return make


acknowledges_before_the_quorum = leading_as(CountsOnlyItself)
goes_on_alone = leading_as(CountsWhoAnswers)


class ShowsAtOnce(EntryLog):
    @property
    def appliable(self) -> int:
        return self.written


def applies_before_the_commit(*parts: Any) -> Broker:
    broker = Broker(*parts)
    if isinstance(broker.store.log, EntryLog):
        broker.store.log.__class__ = ShowsAtOnce
    return broker


def acknowledges_before_the_slave(*parts: Any) -> Broker:
    """SYNC_MASTER in name only."""
    broker = Broker(*parts)
    log = broker.store.log
    if isinstance(log, SyncedLog):
        log.when_safe = log.when_local  # that is the plant
    return broker
