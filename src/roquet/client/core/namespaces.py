"""Namespaces: many tenants' topics and groups with the same names on one cluster, told apart by the client alone.

name                as sent to the servers, in namespace "blue"
orders              blue%orders
%RETRY%billing      %RETRY%blue%billing
TBW102              TBW102                 what belongs to the system stays as it is
"""

from __future__ import annotations

from roquet.errors import ClientError
from roquet.message import MessageQueue
from roquet.wire.names import ALLOWED, DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic

SEPARATOR = "%"
LENGTH_MAX = 64


class Namespace:
    """Wrapping twice is wrapping once. The empty namespace changes nothing."""

    __slots__ = ("name",)

    def __init__(self, name: str = "") -> None:
        if name and (len(name) > LENGTH_MAX or ALLOWED.fullmatch(name) is None or SEPARATOR in name):
            raise ClientError(f"namespace {name!r}; allowed are up to {LENGTH_MAX} letters, digits, '-', '_' and '|'")
        self.name = name

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap(self, name: str) -> str:
        if not self.name or not name or is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX):
            return name
        prefix, rest = split(name)
        return name if rest.startswith(self.name + SEPARATOR) else f"{prefix}{self.name}{SEPARATOR}{rest}"

    def unwrap(self, name: str) -> str:
        if not self.name:
            return name
        prefix, rest = split(name)
        return prefix + rest.removeprefix(self.name + SEPARATOR)

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return MessageQueue(self.wrap(queue.topic), queue.broker_name, queue.queue_id) if self.name else queue

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id) if self.name else queue


NO_NAMESPACE = Namespace()


def split(name: str) -> tuple[str, str]:
    """(%RETRY%, %DLQ% or nothing, the rest)."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
