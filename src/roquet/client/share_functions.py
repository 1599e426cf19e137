"""The user's functions that hear which queues a consumer was given, and which it gave away: on_assigned, on_revoked."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from roquet.client.core.namespaces import Namespace
from roquet.client.core.share_changes import Notify
from roquet.client.functions import Functions, name_of
from roquet.errors import ClientError
from roquet.message import MessageQueue

log = logging.getLogger(__name__)

ShareFunction = Callable[[list[MessageQueue]], Awaitable[Any] | Any]
"""Takes the queues. async, or plain (then it runs in a thread)."""


def check_share_function(name: str, function: object) -> None:
    """Raises ClientError for what cannot be called with queues."""
    if function is None:
        return
    if callable(function) and not inspect.isasyncgenfunction(function) and not inspect.isgeneratorfunction(function):
        try:
            inspect.signature(function).bind([])
        except TypeError:
            pass
        except ValueError:
            return  # written in C, without a signature
        else:
            return
    raise ClientError(f"{name} is {function!r}; expected is a function of one parameter, the list of queues: def {name}(queues)")


def notifier(name: str, function: ShareFunction | None, group: str, namespace: Namespace, functions: Functions) -> Notify | None:
    """How the core calls it."""
    if function is None:
        return None

    async def call(queues: list[MessageQueue], ended: Callable[[], None]) -> None:
        try:
            await functions.call(function, queues)
        except Exception as error:
            log.error(
                "! group %s: %s %s failed with %d queues: %s: %.500s; the consumer goes on as if it had not",
                group, name, name_of(function), len(queues), type(error).__name__, error, exc_info=True,
            )  # fmt: skip
        finally:
            ended()

    def notify(queues: list[MessageQueue], ended: Callable[[], None]) -> None:
        functions.begin(call, ([namespace.unwrap_queue(queue) for queue in queues], ended), ended)

    return notify
