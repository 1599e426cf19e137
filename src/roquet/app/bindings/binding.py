"""One binding of a file, as what @app.consumer and producers take."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from roquet.app.bindings.expressions import BadExpression, Evaluate, compiled
from roquet.app.bindings.files import BadBindings
from roquet.app.bindings.keys import BYTES, JSON, TEXT, WHERE, Scope
from roquet.app.bindings.layout import Setting
from roquet.app.parameters import Reject
from roquet.app.payloads import Unsendable, encode
from roquet.client.functions import is_async, name_of

log = logging.getLogger(__name__)

C, P = Scope.CONSUMER, Scope.PRODUCER
RC, RP = Scope.ROCKETMQ_CONSUMER, Scope.ROCKETMQ_PRODUCER
SQL = "sql:"
ATTEMPTS, FIRST_MS, LONGEST_MS, TIMES = 3, 1_000, 10_000, 2.0
"""Spring's own defaults."""
CONSUMER_SETTINGS = {
    "suspend-current-queue-time-millis": "suspend_queue_ms",
    "consume-timestamp": "consume_timestamp_ms",
    "pull-batch-size": "pull_batch_size",
    "pull-threshold-for-queue": "count_max",
    "consume-max-span": "span_max",
    "allocate-message-queue-strategy": "strategy",
}
PRODUCER_SETTINGS = {
    "send-msg-timeout": "send_timeout_ms",
    "compress-msg-body-threshold": "compress_over",
    "retry-times-when-send-failed": "retries",
    "retry-times-when-send-async-failed": "async_retries",
    "retry-another-broker": "retry_when_not_ok",
    "max-message-size": "message_size_max",
}
CLIENT_SETTINGS = {
    "poll-name-server-interval": "route_poll_ms",
    "heartbeat-broker-interval": "heartbeat_ms",
    "persist-consumer-offset-interval": "persist_ms",
}


def client_settings(get: Callable[[str], Any]) -> dict[str, Any]:
    """Of a producer or a consumer: its intervals, and whether it writes traces."""
    found = {name: value for key, name in CLIENT_SETTINGS.items() if (value := get(key)) is not None}
    traced, topic = get("enable-msg-trace"), get("customized-trace-topic")
    if traced is not None or topic is not None:
        found["trace"] = traced is not False and (topic or True)
    return found


@dataclass(frozen=True, slots=True)
class Attempts:
    """Spring's retry template: calls of one handler for one delivery."""

    count: int
    first_ms: int
    longest_ms: int
    times: float

    def pause_s(self, failures: int) -> float:
        return min(self.first_ms * self.times ** (failures - 1), self.longest_ms) / 1000

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, called again when it raises. Reject is no failure: nothing else would come of it."""
        if self.count == 1:
            return function

        def failed(number: int, error: Exception) -> float:
            if number == self.count or isinstance(error, Reject):
                raise error
            pause = self.pause_s(number)
            log.warning(
                "! handler %s failed, call %d of %d; it is called again after %g s: %s: %s",
                name_of(function), number, self.count, pause, type(error).__name__, error,
            )  # fmt: skip
            return pause

        async def in_loop(*values: Any, **named: Any) -> Any:
            number = 1
            while True:
                try:
                    return await function(*values, **named)
                except Exception as error:
                    await asyncio.sleep(failed(number, error))
                number += 1

        def in_thread(*values: Any, **named: Any) -> Any:
            number = 1
            while True:
                try:
                    return function(*values, **named)
                except Exception as error:
                    time.sleep(failed(number, error))
                number += 1

        bare = function if inspect.isroutine(function) else function.__call__  # type: ignore[operator]
        return functools.wraps(bare)(in_loop if is_async(function) else in_thread)


class Binding:
    """What the file says of one binding, with the defaults for all."""

    def __init__(self, name: str, settings: Mapping[tuple[Scope, str], Setting]) -> None:
        self.name = name
        self.settings = settings

    def get(self, scope: Scope, key: str, default: Any = None) -> Any:
        found = self.settings.get((scope, key))
        return default if found is None else found.value

    def wrong(self, scope: Scope, key: str, text: str) -> BadBindings:
        return self.settings[scope, key].entry.wrong(text)

    @property
    def destination(self) -> str:
        return str(self.get(Scope.BINDING, "destination") or self.name)

    @property
    def binder(self) -> str:
        return str(self.get(Scope.BINDING, "binder", "rocketmq"))

    @property
    def content_type(self) -> str:
        return str(self.get(Scope.BINDING, "content-type", JSON))

    # -- consuming

    @property
    def topics(self) -> list[str]:
        return [word.strip() for word in self.destination.split(",") if word.strip()]

    @property
    def group(self) -> str:
        given = self.get(Scope.BINDING, "group") or self.get(RC, "group")
        return str(given or f"anonymous_{self.topics[0]}")

    @property
    def is_consumed(self) -> bool:
        return bool(self.get(RC, "enabled", True))

    @property
    def is_orderly(self) -> bool:
        return bool(self.get(RC, "orderly", False))

    @property
    def attempts(self) -> Attempts:
        count = self.get(C, "max-attempts", ATTEMPTS) if self.get(C, "default-retryable", True) else 1
        return Attempts(
            count,
            self.get(C, "back-off-initial-interval", FIRST_MS),
            self.get(C, "back-off-max-interval", LONGEST_MS),
            self.get(C, "back-off-multiplier", TIMES),
        )

    def consuming(self) -> dict[str, Any]:
        """The keyword arguments of @app.consumer. Raises BadBindings for settings that contradict each other."""
        found: dict[str, Any] = {"group": self.group, "concurrency": self.get(C, "concurrency", 1), **self._filter()}
        for key, name in CONSUMER_SETTINGS.items():
            if (value := self.get(RC, key)) is not None:
                found[name] = value
        if (size := self.get(RC, "pull-threshold-size-for-queue")) is not None:
            found["size_max"] = size << 20
        if (where := self.get(RC, "consume-from-where")) is not None:
            found["consume_from"] = WHERE[where]
        if (retries := self.get(RC, "max-reconsume-times", -1)) >= 0:
            found["retries"] = retries
        if self._is_broadcasting():
            found["broadcasting"] = True
        if self.is_orderly:
            found["orderly"] = True
        elif level := self.get(RC, "delay-level-when-next-consume", 0):
            found["retry_level"] = level
        if self.get(C, "batch-mode", False):
            found["batch"] = self._batch()
        return {**found, **self._of_client(RC)}

    def notices(self) -> list[str]:
        """What has no effect beside the others, each with its reason."""
        setting = self.settings.get((RC, "delay-level-when-next-consume"))
        if setting is None or not setting.value or not self.is_orderly:
            return []
        entry = setting.entry
        why = "an orderly consumer tries again in its place, after suspend-current-queue-time-millis"
        return [f"{entry.file}, line {entry.line}: {entry.key} has no effect: {why}"]

    def _filter(self) -> dict[str, Any]:
        given = [key for key in ("subscription", "tags", "sql") if self.get(RC, key) is not None]
        if len(given) > 1:
            raise self.wrong(RC, given[1], f"and {given[0]} exclude each other; keep one of them")
        if not given:
            return {}
        text = str(self.get(RC, given[0]))
        if given == ["sql"] or (given == ["subscription"] and text.lower().startswith(SQL)):
            return {"sql": text[len(SQL) :].strip() if text.lower().startswith(SQL) else text}
        return {"tags": text}

    def _is_broadcasting(self) -> bool:
        model, flag = self.get(RC, "message-model"), self.get(RC, "broadcasting")
        if model is not None and flag is not None and (model == "BROADCASTING") != flag:
            raise self.wrong(RC, "broadcasting", f"is {str(flag).lower()}, but message-model is {model}; remove one of them")
        return bool(flag) or model == "BROADCASTING"

    def _batch(self) -> int:
        size = int(self.get(RC, "consume-message-batch-max-size", 1))
        if size < 2:
            raise self.wrong(
                C, "batch-mode", "is true, but a list would hold one message; set push.consume-message-batch-max-size to 2 or more"
            )
        return size

    # -- producing

    @property
    def producer_group(self) -> str | None:
        found = self.get(RP, "group")
        return None if found is None else str(found)

    @property
    def is_transactional(self) -> bool:
        kind, flag = self.get(RP, "producer-type"), self.get(RP, "transactional")
        if kind is not None and flag is not None and (kind == "Trans") != flag:
            raise self.wrong(RP, "transactional", f"is {str(flag).lower()}, but producer-type is {kind}; remove one of them")
        return bool(flag) or kind == "Trans"

    @property
    def send_type(self) -> str:
        kind, sync = self.get(RP, "send-type"), self.get(RP, "sync")
        if kind is not None and sync is not None and (kind == "Sync") != sync:
            raise self.wrong(RP, "sync", f"is {str(sync).lower()}, but send-type is {kind}; remove one of them")
        return str(kind or ("Async" if sync is False else "Sync"))

    def producing(self) -> dict[str, Any]:
        """Settings of its producer, beside those for all."""
        found = {name: value for key, name in PRODUCER_SETTINGS.items() if (value := self.get(RP, key)) is not None}
        return {**found, **self._of_client(RP)}

    def _of_client(self, scope: Scope) -> dict[str, Any]:
        return client_settings(lambda name: self.get(scope, name))

    def partition_key(self) -> Evaluate | None:
        expression = self.get(P, "partition-key-expression")
        if expression is None:
            return None
        try:
            return compiled(str(expression))
        except BadExpression as error:
            raise self.wrong(P, "partition-key-expression", f"cannot be used: {error}") from None

    def check_output(self) -> None:
        """Raises BadBindings for settings that contradict each other."""
        by_key = [key for key in ("partition-key-expression", "partition-key-extractor-name") if self.get(P, key) is not None]
        if len(by_key) > 1:
            raise self.wrong(P, by_key[1], f"and {by_key[0]} exclude each other; keep one of them")
        if self.get(RP, "orderly", False) and not by_key:
            raise self.wrong(
                RP,
                "orderly",
                f"is true, but nothing says what stays in order; set {P.value.replace('*', self.name)}.partition-key-expression",
            )
        if self.is_transactional:
            if self.get(RP, "transaction-listener") is None:
                key = "producer-type" if self.get(RP, "producer-type") else "transactional"
                raise self.wrong(RP, key, "needs a transaction-listener beside it: the name of the object that app.bean() is given")
            if by_key:
                raise self.wrong(
                    P, by_key[0], "cannot be combined with transactions: a broker chooses the queue of their messages by itself"
                )
        self.partition_key()
        self.send_type  # noqa: B018 (it is checked there)

    def encoded(self, value: Any) -> bytes:
        """The body, as the binding's content type wants it. Raises Unsendable."""
        kind = self.content_type.lower().partition(";")[0]
        if kind == TEXT and not isinstance(value, (str, bytes)):
            raise Unsendable(f"binding {self.name} sends {TEXT}, and a {type(value).__name__} is none; send a str")
        if kind == BYTES and not isinstance(value, (bytes, bytearray, memoryview)):
            raise Unsendable(f"binding {self.name} sends {BYTES}, and a {type(value).__name__} is none; send bytes")
        return encode(value)[0]
