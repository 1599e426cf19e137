"""Brokers with a bug on purpose. A checker that does not find them is no checker."""

from __future__ import annotations

import contextlib
from typing import Any

from roquet.broker.core import Broker


def answers_before_the_flush(*parts: Any) -> Broker:
    """SYNC_FLUSH in name only: sends are answered when they are written."""
    broker = Broker(*parts)
    broker.store.log.when_safe = lambda target, deadline_ms, wake: wake(True)  # type: ignore[method-assign] # that is the plant
    return broker


def shows_before_the_flush(*parts: Any) -> Broker:
    """Consumers see a message when it is written, as upstream does it."""
    broker = Broker(*parts)
    store = broker.store
    commit = store.commit

    def commit_and_show() -> None:
        commit()
        shown = list(store._unsafe)
        store._unsafe.clear()
        store._show(shown)

    store.commit = commit_and_show  # type: ignore[method-assign] # that is the plant
    return broker


def counts_a_failed_fsync(*parts: Any) -> Broker:
    """Upstream's E1: an fsync that failed counts as done."""
    broker = Broker(*parts)
    store = broker.store
    sure = store.log.syncer

    def syncer() -> Any:
        target, work = sure()

        def hopeful() -> None:
            with contextlib.suppress(OSError):
                work()

        return target, hopeful

    store.log.syncer = syncer  # type: ignore[method-assign] # that is the plant
    return broker
