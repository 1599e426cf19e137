"""Every call by its request code."""

from __future__ import annotations

from roquet.wire.calls import (
    brokers,
    consumers,
    groups,
    kv,
    locks,
    members,
    offsets,
    progress,
    pulls,
    queries,
    queues,
    registration,
    resets,
    routes,
    sends,
    settings,
    topics,
    transactions,
    versions,
)
from roquet.wire.calls.call import AnyCall, Call

NOUNS = (
    brokers, consumers, groups, kv, locks, members, offsets, progress, pulls, queries, queues, registration, resets, routes, sends,
    settings, topics, transactions, versions,
)  # fmt: skip

CALLS: dict[int, AnyCall] = {call.code: call for noun in NOUNS for call in vars(noun).values() if isinstance(call, Call)}
