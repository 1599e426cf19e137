"""The keyword arguments of producers and consumers, for type checkers and editors. What each means, and its default, stands in the
settings of the same kind in `client/core`; a test holds that both name the same."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from roquet.client.middleware import Middleware
from roquet.net.connection import ConnectionOptions, Tls
from roquet.routing.assign import Strategy
from roquet.wire.calls.members import ConsumeFromWhere
from roquet.wire.signing import Credentials

if TYPE_CHECKING:
    from roquet.client.handlers import Function
    from roquet.client.offset_store import OffsetStore
    from roquet.client.share_functions import ShareFunction


class MemberKeywords(TypedDict, total=False):
    namespace: str
    instance_name: str | None
    unit_name: str
    connection: ConnectionOptions
    credentials: Credentials | None
    tls: Tls | None
    start_timeout_ms: int
    middleware: Sequence[Middleware]
    trace: bool | str


class ClientKeywords(MemberKeywords, total=False):
    route_poll_ms: int
    heartbeat_ms: int


class ProducerKeywords(ClientKeywords, total=False):
    send_timeout_ms: int
    delivery_timeout_ms: int
    retries: int
    async_retries: int
    sends_in_flight_max: int
    retry_when_not_ok: bool
    compress_over: int
    compression: Literal["zlib", "lz4", "zstd"]
    compression_level: int
    message_size_max: int
    batch_size_max: int
    linger_ms: int | None
    batch_bytes: int | None
    avoid_slow_brokers: bool
    default_queues: int


class GroupKeywords(ClientKeywords, total=False):
    rebalance_ms: int
    persist_ms: int
    consume_from: Literal["first", "last", "timestamp"] | ConsumeFromWhere
    consume_timestamp_ms: int | None
    strategy: Literal["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"] | Strategy
    count_max: int
    size_max: int


class PushConsumerKeywords(GroupKeywords, total=False):
    broadcasting: bool
    concurrency: int
    batch_size: int
    pull_batch_size: int
    span_max: int
    reconsume_times_max: int
    consume_timeout_ms: int
    orderly: bool
    auto_commit: bool
    suspend_queue_ms: int
    continuous_ms: int
    lock_ms: int
    suspend_ms: int
    pull_timeout_ms: int


class PushConsumerArguments(PushConsumerKeywords, total=False):
    """With those that are no settings."""

    listener: Function | None
    offsets_directory: str | os.PathLike[str] | None
    close_wait_ms: int
    offset_store: OffsetStore | None
    on_assigned: ShareFunction | None
    on_revoked: ShareFunction | None


class LitePullKeywords(GroupKeywords, total=False):
    auto_commit: bool
    auto_commit_ms: int
    pull_batch_size: int
    count_all_max: int
    block_ms: int


class LitePullArguments(LitePullKeywords, total=False):
    """With those that are no settings."""

    offset_store: OffsetStore | None
    on_assigned: ShareFunction | None
    on_revoked: ShareFunction | None
