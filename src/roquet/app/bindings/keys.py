"""Every key of Spring Cloud Stream and of its RocketMQ binder: served, without effect (with the reason), or refused (with what to do).

The same rows are the table in docs/bindings.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from roquet.app.bindings.files import uniform_path

Read = Callable[[str], Any]
"""From the text of a value to the value. Raises ValueError with what is expected."""


class Fate(Enum):
    """What becomes of a key."""

    SERVED = "served"
    NO_EFFECT = "without effect"
    REFUSED = "refused"


class Scope(Enum):
    """Where a key stands, with * for the name of a binding."""

    FUNCTION = "spring.cloud.function"
    STREAM = "spring.cloud.stream"
    BINDING = "spring.cloud.stream.bindings.*"
    CONSUMER = "spring.cloud.stream.bindings.*.consumer"
    PRODUCER = "spring.cloud.stream.bindings.*.producer"
    BINDER = "spring.cloud.stream.rocketmq.binder"
    ROCKETMQ_CONSUMER = "spring.cloud.stream.rocketmq.bindings.*.consumer"
    ROCKETMQ_PRODUCER = "spring.cloud.stream.rocketmq.bindings.*.producer"


@dataclass(frozen=True, slots=True)
class Key:
    """One row."""

    scope: Scope
    name: str
    """As Spring's own documents write it."""
    about: str
    """What it does here; or why it does nothing; or what to do instead."""
    fate: Fate = Fate.SERVED
    read: Read = str
    aliases: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    """Refused, but for these values: they say what is done anyway."""
    is_map: bool = False
    """Names of the user's own stand behind it."""
    is_list: bool = False

    def names(self) -> Iterator[str]:
        yield from (self.name, *self.aliases)


# -- values


def flag(text: str) -> bool:
    if (word := text.strip().lower()) in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError("true or false")


def number(low: int, high: int) -> Read:
    def read(text: str) -> int:
        if re.fullmatch(r"[+-]?\d{1,12}", text.strip()) and low <= int(text) <= high:
            return int(text)
        raise ValueError(f"a whole number from {low} to {high}")

    return read


def factor(text: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,9})?", text.strip()) and 1 <= float(text) <= 1_000:
        return float(text)
    raise ValueError("a number from 1 to 1000")


def one_of(*names: str) -> Read:
    """In any case, as Spring reads its enums."""
    known = {name.lower().replace("_", ""): name for name in names}

    def read(text: str) -> str:
        found = known.get(text.strip().lower().replace("_", "").replace("-", ""))
        if found is None:
            raise ValueError(" or ".join(names))
        return found

    return read


def content_type(text: str) -> str:
    kind = text.strip().lower().partition(";")[0]
    if kind in (JSON, TEXT, BYTES) or kind.endswith("+json"):
        return text.strip()
    raise ValueError(f"{JSON}, {TEXT} or {BYTES}; for another form give decode= to @app.bind, and send bytes")


def moment(text: str) -> int:
    """yyyyMMddHHmmss of the local time, in ms since 1970."""
    try:
        if re.fullmatch(r"\d{14}", text.strip()):
            return int(datetime.strptime(text.strip(), "%Y%m%d%H%M%S").astimezone().timestamp() * 1000)
    except ValueError:
        pass
    raise ValueError("a time as 20260131120000")


def strategy(text: str) -> str:
    for name in ("AllocateMessageQueueAveragelyByCircle", "AllocateMessageQueueConsistentHash", "AllocateMessageQueueAveragely"):
        if name.lower() in text.lower():
            return STRATEGIES[name]
    raise ValueError(" or ".join(STRATEGIES))


JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"
STRATEGIES = {
    "AllocateMessageQueueAveragely": "AVG",
    "AllocateMessageQueueAveragelyByCircle": "AVG_BY_CIRCLE",
    "AllocateMessageQueueConsistentHash": "CONSISTENT_HASH",
}
WHERE = {"CONSUME_FROM_FIRST_OFFSET": "first", "CONSUME_FROM_LAST_OFFSET": "last", "CONSUME_FROM_TIMESTAMP": "timestamp"}
MS = number(0, 86_400_000)
COUNT = number(1, 65_535)
INTERVAL, HEARTBEAT = number(100, 3_600_000), number(100, 60_000)

# -- rows

ANY = Fate.NO_EFFECT
NO = Fate.REFUSED

OF_APP = "an app has one cluster: put it under rocketmq.binder"
BALANCED = "RocketMQ shares the queues out by itself"
HOOKS = "use middleware: App.from_file(..., middleware=[...])"
NATIVE = "bodies are read and written by annotation; give decode= or send bytes"
POLLED = "polled bindings are not served; use LitePullConsumer"
TUNED = "the client decides it by itself"
UNCONSUMED = "a producer has no progress to report"


def common(scope: Scope) -> list[Key]:
    """What stands under the binder and under each of its bindings."""
    of_app = Fate.SERVED if scope is Scope.BINDER else NO
    consumes = scope is not Scope.ROCKETMQ_PRODUCER
    return [
        Key(scope, "name-server", "the name servers" if scope is Scope.BINDER else OF_APP, of_app, aliases=("namesrv-addr",), is_list=True),
        Key(scope, "access-key", "with secret-key: signs every request" if scope is Scope.BINDER else OF_APP, of_app),
        Key(scope, "secret-key", "with access-key" if scope is Scope.BINDER else OF_APP, of_app),
        Key(scope, "namespace", "the namespace" if scope is Scope.BINDER else OF_APP, of_app),
        Key(scope, "unit-name", "the unit" if scope is Scope.BINDER else OF_APP, of_app),
        Key(scope, "use-tls", "connections are encrypted" if scope is Scope.BINDER else OF_APP, of_app, flag),
        Key(scope, "access-channel", "the cloud's own channel is not served", NO, allowed=("LOCAL",)),
        Key(scope, "vip-channel-enabled", "brokers here have one port for all clients", ANY),
        Key(scope, "enable-msg-trace", "true: traces are written, as trace=True does (false here; true in newer binders)", read=flag),
        Key(scope, "customized-trace-topic", "traces are written to this topic (RMQ_SYS_TRACE_TOPIC), unless enable-msg-trace is false"),
        Key(scope, "poll-name-server-interval", "ms between two looks at the name server (30000)", read=INTERVAL),
        Key(scope, "heartbeat-broker-interval", "ms between two heartbeats (30000)", read=HEARTBEAT),
        Key(
            scope,
            "persist-consumer-offset-interval",
            "ms between two reports of progress (5000)" if consumes else UNCONSUMED,
            Fate.SERVED if consumes else ANY,
            INTERVAL,
        ),
    ]


F, S, B, C, P = Scope.FUNCTION, Scope.STREAM, Scope.BINDING, Scope.CONSUMER, Scope.PRODUCER
RC, RP = Scope.ROCKETMQ_CONSUMER, Scope.ROCKETMQ_PRODUCER

ROWS: tuple[Key, ...] = (
    Key(F, "definition", "functions that must be bound at the start: a;b"),
    Key(F, "autodetect", "functions are bound with @app.bind", ANY),
    Key(F, "routing-expression", "give @app.bind a condition=", NO),
    Key(S, "function.definition", "the same as spring.cloud.function.definition"),
    Key(S, "function.bindings", "another name for a function's binding: uppercase-in-0: input", is_map=True),
    Key(S, "function.autodetect", "functions are bound with @app.bind", ANY),
    Key(S, "function.batch-mode", "use consumer.batch-mode of the binding", NO, allowed=("false",)),
    Key(S, "function.routing.enabled", "give @app.bind a condition=", NO, allowed=("false",)),
    Key(S, "default-binder", "only RocketMQ is served", NO, allowed=("rocketmq",)),
    Key(S, "binders", "one app has one cluster: make an App for each, and put its settings under rocketmq.binder", NO, is_map=True),
    Key(S, "instance-count", BALANCED, ANY),
    Key(S, "instance-index", BALANCED, ANY),
    Key(S, "instance-index-list", BALANCED, ANY, is_list=True),
    Key(S, "dynamic-destinations", "app.publish(topic, value) sends to any topic", ANY, is_list=True),
    Key(S, "dynamic-destination-cache-size", "app.publish(topic, value) sends to any topic", ANY),
    Key(S, "binding-retry-interval", "a name server or broker that is away is asked again until it is there", ANY),
    Key(S, "override-cloud-connectors", "there are no cloud connectors here", ANY),
    Key(S, "source", "app.output(name) sends", ANY),
    Key(S, "input-bindings", "bindings are made by @app.bind", ANY),
    Key(S, "output-bindings", "bindings are made by app.output", ANY),
    Key(S, "pollable-source", POLLED, NO),
    Key(S, "poller", "nothing is polled: call app.output(name).send when there is something to send", ANY, is_map=True),
    Key(S, "kafka", "it is for another binder", ANY, is_map=True),
    Key(S, "rabbit", "it is for another binder", ANY, is_map=True),
    Key(S, "pulsar", "it is for another binder", ANY, is_map=True),
    Key(B, "destination", "the topic; of a consumer several, with commas. Without it: the binding's name"),
    Key(B, "group", "the consumer group. Without it: anonymous_ and the topic"),
    Key(B, "content-type", "what the body is: application/json (this is the default), text/plain, application/octet-stream",
        read=content_type),
    Key(B, "binder", "rocketmq; a binding for another binder has no effect here"),
    Key(B, "error-handler-definition", "catch exceptions in the handler", NO),
    Key(C, "max-attempts", "calls of the handler for one delivery (3), with pauses between them; 1: no retry here",
        read=number(1, 100)),
    Key(C, "back-off-initial-interval", "ms before the second call (1000)", read=MS),
    Key(C, "back-off-max-interval", "ms between two calls at most (10000)", read=MS),
    Key(C, "back-off-multiplier", "each pause is so many times longer (2.0)", read=factor),
    Key(C, "default-retryable", "false: no retry here, as max-attempts 1", read=flag),
    Key(C, "concurrency", "calls of the handler at a time (1)", read=number(1, 10_000)),
    Key(C, "batch-mode", "the handler gets lists of up to push.consume-message-batch-max-size", read=flag),
    Key(C, "auto-startup", "use rocketmq.bindings.*.consumer.enabled", NO, allowed=("true",)),
    Key(C, "retryable-exceptions", "raise Reject for what no retry helps", NO, is_map=True),
    Key(C, "retry-template-name", "use max-attempts and back-off-*", NO),
    Key(C, "partitioned", BALANCED, ANY),
    Key(C, "instance-count", BALANCED, ANY),
    Key(C, "instance-index", BALANCED, ANY),
    Key(C, "instance-index-list", BALANCED, ANY, is_list=True),
    Key(C, "header-mode", "headers are properties of the message", NO, allowed=("headers", "none")),
    Key(C, "use-native-decoding", NATIVE, NO, allowed=("false",)),
    Key(C, "multiplex", "a consumer takes all its topics anyway", ANY),
    Key(P, "partition-key-expression", "messages with the same key stay in order: headers['orderId'], payload.orderId"),
    Key(P, "partition-key-extractor-name", "the same with a function of the message: app.bean(name, function)"),
    Key(P, "partition-count", "the queues of the topic count, as in Spring's binder", ANY),
    Key(P, "partition-selector-expression", "use message-queue-selector", NO),
    Key(P, "partition-selector-name", "use message-queue-selector", NO),
    Key(P, "required-groups", "brokers keep messages for every group", ANY, is_list=True),
    Key(P, "auto-startup", "use rocketmq.bindings.*.producer.enabled", NO, allowed=("true",)),
    Key(P, "header-mode", "headers are properties of the message", NO, allowed=("headers", "none")),
    Key(P, "use-native-encoding", NATIVE, NO, allowed=("false",)),
    Key(P, "error-channel-enabled", "send() raises what failed; what is sent async is logged", ANY),
    Key(P, "dynamic-partition-updates-enabled", "new queues are used as soon as the client knows them", ANY),
    Key(P, "split-mode", "send the parts one by one", NO, allowed=("false",)),
    Key(P, "poller", "nothing is polled: call app.output(name).send when there is something to send", ANY, is_map=True),
    *common(Scope.BINDER),
    Key(Scope.BINDER, "group", "the group of the app's own producer"),
    Key(Scope.BINDER, "enabled", "leave the file out where nothing shall run", NO, allowed=("true",)),
    *common(RC),
    Key(RC, "enabled", "false: the handler is bound, but nothing is consumed", read=flag),
    Key(RC, "group", "the consumer group, where the binding has none"),
    Key(RC, "message-model", "CLUSTERING, or BROADCASTING: every process gets every message",
        read=one_of("CLUSTERING", "BROADCASTING")),
    Key(RC, "broadcasting", "true: the same as message-model BROADCASTING", read=flag),
    Key(RC, "subscription", "tags: a || b; or SQL: sql:(a > 1)", aliases=("push.subscription",)),
    Key(RC, "tags", "tags: a || b"),
    Key(RC, "sql", "SQL over properties: a > 1"),
    Key(RC, "orderly", "messages of a queue one after the other", read=flag, aliases=("push.orderly",)),
    Key(RC, "delay-level-when-next-consume",
        "when the calls failed. 0: it comes again, later each time. 1, 2 ...: after that delay level. -1: a dead letter at once",
        read=number(-1, 1_000), aliases=("push.delay-level-when-next-consume",)),
    Key(RC, "suspend-current-queue-time-millis", "orderly: ms that a queue waits after a failure (1000)", read=number(10, 30_000),
        aliases=("push.suspend-current-queue-time-millis",)),
    Key(RC, "max-reconsume-times", "deliveries after the first before it becomes a dead letter (16; orderly, no limit)",
        read=number(-1, 2**31 - 1), aliases=("push.max-reconsume-times",)),
    Key(RC, "consume-message-batch-max-size", "with batch-mode: messages in one list", read=number(1, 1_024),
        aliases=("push.consume-message-batch-max-size",)),
    Key(RC, "consume-from-where", "where a new group begins", read=one_of(*WHERE)),
    Key(RC, "consume-timestamp", "for CONSUME_FROM_TIMESTAMP", read=moment),
    Key(RC, "pull-batch-size", "messages in one answer of a broker (32)", read=number(1, 1_024)),
    Key(RC, "pull-threshold-for-queue", "messages held of a queue (1000)", read=COUNT),
    Key(RC, "pull-threshold-size-for-queue", "MiB held of a queue (100)", read=number(1, 1_024)),
    Key(RC, "consume-max-span", "how far apart held messages of a queue may be (2000)", read=COUNT,
        aliases=("consume-concurrently-max-span",)),
    Key(RC, "allocate-message-queue-strategy", "how queues are shared out", read=strategy),
    Key(RC, "pull-time-delay-mills-when-exception", TUNED, ANY),
    Key(RC, "push.pull-interval", "pulls cannot be slowed down; use concurrency", NO, aliases=("pull-interval",), allowed=("0",)),
    Key(RC, "push.pull-threshold-for-topic", "use pull-threshold-for-queue", NO, allowed=("-1",)),
    Key(RC, "push.pull-threshold-size-for-topic", "use pull-threshold-size-for-queue", NO, allowed=("-1",)),
    Key(RC, "pull", POLLED, NO, is_map=True),
    Key(RC, "trusted-packages", "headers are never made into objects", ANY, is_list=True),
    Key(RC, "should-requeue", POLLED, ANY),
    *common(RP),
    Key(RP, "enabled", "false: send() raises", read=flag),
    Key(RP, "group", "the producer group. Without it: the app's own producer"),
    Key(RP, "sync", "true (the default here): send() waits for the broker. false: send() returns at once, what fails is logged", read=flag),
    Key(RP, "send-type", "Sync, Async, or OneWay: nobody knows whether it arrived", read=one_of("Sync", "Async", "OneWay")),
    Key(RP, "orderly", "messages with the same key stay in order; needs partition-key-expression", read=flag),
    Key(RP, "producer-type", "Normal, or Trans: messages of a transaction", read=one_of("Normal", "Trans")),
    Key(RP, "transactional", "true: the same as producer-type Trans", read=flag),
    Key(RP, "transaction-listener", "the object with execute() and check(): app.bean(name, object)"),
    Key(RP, "message-queue-selector", "the function (queues, message, key) -> queue: app.bean(name, function)"),
    Key(RP, "send-msg-timeout", "ms that an attempt waits (3000)", read=number(1, 3_600_000), aliases=("send-message-timeout",)),
    Key(RP, "compress-msg-body-threshold", "bodies of so many bytes are compressed (4096)", read=number(0, 1 << 30),
        aliases=("compress-message-body-threshold",)),
    Key(RP, "retry-times-when-send-failed", "attempts after the first (2)", read=number(0, 100)),
    Key(RP, "retry-times-when-send-async-failed", "the same, when it is sent async (2)", read=number(0, 100)),
    Key(RP, "retry-another-broker", "true: also when a broker stored it, but not as safely as asked", read=flag,
        aliases=("retry-next-server", "retry-another-broker-when-not-store-ok")),
    Key(RP, "max-message-size", "bytes of a body at most (4194304)", read=number(1, 15 << 20)),
    Key(RP, "send-call-back", "await send(); what is sent async and fails is logged", NO),
    Key(RP, "send-failure-channel", "send() raises what failed; what is sent async is logged", NO),
    Key(RP, "error-message-strategy", "send() raises what failed; what is sent async is logged", NO),
    Key(RP, "check-forbidden-hook", HOOKS, NO),
    Key(RP, "send-message-hook", HOOKS, NO),
    Key(RP, "delay-level-when-next-consume",
        "consumers retry, producers do not: move it to rocketmq.bindings.*.consumer of the input", ANY,
        aliases=("push.delay-level-when-next-consume",)),
)  # fmt: skip

KNOWN: dict[Scope, dict[tuple[str, ...], Key]] = {scope: {} for scope in Scope}
for _key in ROWS:
    for _name in _key.names():
        KNOWN[_key.scope][uniform_path(_name.split("."))] = _key


def find(scope: Scope, path: tuple[str, ...]) -> Key | None:
    known, wanted = KNOWN[scope], uniform_path(path)
    if wanted in known:
        return known[wanted]
    for length in range(len(wanted) - 1, 0, -1):
        found = known.get(wanted[:length])
        if found is not None and found.is_map:
            return found
    return None


def table() -> str:
    """As docs/bindings.md has it."""
    lines: list[str] = []
    for scope in Scope:
        lines += [f"### `{scope.value}`", "| key | here | |", "|---|---|---|"]
        for key in ROWS:
            if key.scope is scope:
                name = " ".join(f"`{one}`" for one in key.names()) + (" `.*`" if key.is_map else "")
                fate = key.fate.value + (f", but for {' or '.join(f'`{value}`' for value in key.allowed)}" if key.allowed else "")
                about = key.about.replace("|", r"\|")
                lines.append(f"| {name} | {fate} | {about} |")
        lines.append("")
    return "\n".join(lines).strip() + "\n"
