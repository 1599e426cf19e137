"""A file in the layout of Spring Cloud Stream, read: places, spellings, placeholders, and what is told of keys that are not served."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from roquet import ReceivedMessage
from roquet.app import App
from roquet.app.bindings.expressions import BadExpression, NoValue, compiled
from roquet.app.bindings.files import DEPTH_MAX, ENTRIES_MAX, TEXT_MAX, BadBindings
from roquet.app.bindings.keys import ROWS, Fate, Scope, table
from roquet.errors import ClientError
from tests.app import seed_bindings as seeds
from tests.docs.snippets import ROOT


def app_of(tmp_path: Path, *texts: str, name: str = "application", suffix: str = ".yml", **options: Any) -> App:
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{name}{number or ''}{suffix}")
        paths[-1].write_text(text)
    return App.from_file(*paths, **{"environ": {}, **options})


def consuming(app: App, name: str) -> dict[str, Any]:
    return app.bindings[name].consuming()


def complaint(tmp_path: Path, *texts: str, **options: Any) -> str:
    with pytest.raises(BadBindings) as caught:
        app_of(tmp_path, *texts, **options)
    return str(caught.value).replace(f"{tmp_path}/", "")


# -- the seeds


def test_the_plain_block_of_the_seeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(tmp_path, seeds.PLAIN)
    assert consuming(app, "one-to-one-input") == {"group": "one-to-one-cus-group", "concurrency": 1}
    binding = app.bindings["one-to-one-input"]
    assert (binding.topics, binding.attempts.count, binding.is_consumed) == (["one-to-one"], 1, True)
    output = app.output("one-to-one-output")
    assert (output.topic, output.send_type, output.binding.producer_group) == ("one-to-one-output", "Sync", "test")
    [notice] = app.bindings.notices
    assert "line 18: rocketmq.bindings.one-to-one-output.producer.delay-level-when-next-consume has no effect" in notice
    assert notice in caplog.text


def test_the_broadcast_block_of_the_seeds(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.BROADCAST)
    assert consuming(app, "one-to-many-input") == {"group": "anonymous_one-to-many-input", "concurrency": 1, "broadcasting": True}


def test_the_ordered_block_of_the_seeds_counts_although_its_places_are_wrong(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.ORDERED)
    output = app.output("one-to-one-order-output")
    assert (output.topic, output.send_type, output.binding.producer_group) == ("one-to-one-order", "Async", "test-order")
    assert app.bindings.names == ["one-to-one-order-output", "one-to-one-order-input"]
    assert len([notice for notice in app.bindings.notices if "stands below rocketmq.binder, where Spring does not look" in notice]) == 4


def test_the_filter_block_of_the_seeds(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.FILTERED)
    assert consuming(app, "one-to-one-order-input")["tags"] == "yuan || a"


def test_the_transaction_blocks_of_the_seeds(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.TRANSACTIONS, seeds.TRANSACTION_CONSUMER)
    assert app.output("one-to-one-trans-output").binding.is_transactional
    assert consuming(app, "one-to-one-trans-input")["group"] == "one-to-one-trans-cus-group"


def test_all_blocks_of_the_seeds_together_are_one_app(tmp_path: Path) -> None:
    app = app_of(tmp_path, *seeds.ALL)
    assert len(app.bindings.names) == 7
    assert app.bindings["one-to-one-order-input"].destination == "one-to-one-order-input"


def test_a_whole_file_beside_them_may_add_what_they_leave_open(tmp_path: Path) -> None:
    app = app_of(tmp_path, *seeds.ALL, "spring: {cloud: {stream: {bindings: {one-to-one-output: {destination: one-to-one}}}}}\n")
    assert app.bindings["one-to-one-output"].destination == "one-to-one"
    assert consuming(app, "one-to-one-input")["group"] == "one-to-one-cus-group"
    assert app.bindings.layout.others == 0


# -- places and spellings

WHOLE = """
server: {port: 8080}
spring:
  application: {name: shop}
  datasource: {url: "${NOBODY_HAS_THIS}"}
  cloud:
    nacos: {discovery: {server-addr: x}}
    stream:
      rocketmq:
        binder: {name-server: "10.0.0.1:9876;10.0.0.2:9876", access-key: key, secret-key: secret, use-tls: true, namespace: eu}
        bindings: {in: {consumer: {push: {orderly: true, maxReconsumeTimes: 3}}}}
      bindings:
        in: {destination: "a, b", group: g, consumer: {concurrency: 5}}
"""


def test_a_whole_file_with_properties_of_others(tmp_path: Path) -> None:
    app = app_of(tmp_path, WHOLE)
    assert app.namesrv == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert app.group == "shop"
    assert {**app.connecting}.keys() == {"credentials", "tls", "namespace"}
    assert consuming(app, "in") == {"group": "g", "concurrency": 5, "orderly": True, "retries": 3}
    assert app.bindings["in"].topics == ["a", "b"]
    assert app.bindings.notices == []
    assert app.bindings.layout.others == 3


INTERVALS = """
rocketmq:
  binder:
    {poll-name-server-interval: 5000, heartbeat-broker-interval: 10000, persist-consumer-offset-interval: 2000, enable-msg-trace: true}
  bindings:
    in: {consumer: {pollNameServerInterval: 7000, customized-trace-topic: my_traces}}
    out: {producer: {group: g, enableMsgTrace: false, retry-times-when-send-failed: 5, retry-times-when-send-async-failed: 1}}
"""


def test_intervals_traces_and_retries_reach_the_members_that_they_are_for(tmp_path: Path) -> None:
    app = app_of(tmp_path, INTERVALS, producer={"heartbeat_ms": 11_000})
    assert app.bindings.notices == []
    assert app.connecting == {"trace": True}
    assert app._consumer_settings == {"route_poll_ms": 5_000, "heartbeat_ms": 10_000, "persist_ms": 2_000}
    assert app._producer_settings.items() >= {"route_poll_ms": 5_000, "heartbeat_ms": 11_000}.items()
    assert "persist_ms" not in app._producer_settings
    assert consuming(app, "in").items() >= {"route_poll_ms": 7_000, "trace": "my_traces"}.items()
    assert app.output("out").binding.producing() == {"retries": 5, "async_retries": 1, "trace": False}


def test_what_is_given_in_the_program_goes_before_the_file(tmp_path: Path) -> None:
    app = app_of(tmp_path, WHOLE, namesrv="127.0.0.1:1", group="mine")
    assert (app.namesrv, app.group) == ("127.0.0.1:1", "mine")


FLAT = """
spring.cloud.stream.bindings.in.destination: t
spring.cloud.stream.bindings.in.group: g
spring.cloud.stream.bindings.in.consumer.maxAttempts: 2
spring.cloud.stream.rocketmq.bindings.in.consumer.delayLevelWhenNextConsume: -1
spring.cloud.stream.rocketmq.bindings.in.consumer.consume-from-where: consume_from_first_offset
spring.cloud.stream.rocketmq.bindings.in.consumer.pull_batch_size: 7
"""


@pytest.mark.parametrize("suffix", [".yml", ".properties"])
def test_flat_keys_in_any_case_and_with_any_dashes(suffix: str, tmp_path: Path) -> None:
    app = app_of(tmp_path, FLAT if suffix == ".yml" else FLAT.replace(": ", "="), suffix=suffix)
    assert consuming(app, "in") == {"group": "g", "concurrency": 1, "retry_level": -1, "consume_from": "first", "pull_batch_size": 7}
    assert app.bindings["in"].attempts.count == 2


def test_a_name_with_dots_stands_in_brackets(tmp_path: Path) -> None:
    app = app_of(tmp_path, "spring.cloud.stream.bindings[a.b].destination: t\n")
    assert app.bindings["a.b"].destination == "t"


def test_defaults_for_all_bindings_and_a_binding_that_overrides_one(tmp_path: Path) -> None:
    text = """
stream:
  default: {group: everybody, consumer: {concurrency: 9}}
  bindings: {one: {destination: t}, two: {destination: t, group: own}}
  rocketmq: {default: {consumer: {orderly: true}}, bindings: {two: {consumer: {orderly: false}}}}
"""
    app = app_of(tmp_path, text)
    assert consuming(app, "one") == {"group": "everybody", "concurrency": 9, "orderly": True}
    assert consuming(app, "two") == {"group": "own", "concurrency": 9}


def test_later_documents_and_files_override_and_anchors_are_followed(tmp_path: Path) -> None:
    first = """
bindings:
  one: &both {destination: t, group: g}
  two: {<<: *both, group: other}
---
bindings: {one: {group: later}}
"""
    app = app_of(tmp_path, first, "bindings: {two: {destination: last}}\n")
    assert consuming(app, "one")["group"] == "later"
    assert (consuming(app, "two")["group"], app.bindings["two"].destination) == ("other", "last")


PROFILES = """
spring: {cloud: {stream: {bindings: {in: {destination: t, group: dev}}}}}
---
spring:
  config: {activate: {on-profile: "prod, live"}}
  cloud: {stream: {bindings: {in: {group: prod}}}}
"""


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ({}, "dev"),
        ({"profiles": ["live"]}, "prod"),
        ({"environ": {"SPRING_PROFILES_ACTIVE": "x,prod"}}, "prod"),
        ({"environ": {"SPRING_PROFILES_ACTIVE": "prod"}, "profiles": []}, "dev"),
    ],
)
def test_a_document_for_a_profile_counts_when_that_is_active(options: dict[str, Any], group: str, tmp_path: Path) -> None:
    assert consuming(app_of(tmp_path, PROFILES, **options), "in")["group"] == group


def test_an_expression_of_profiles_is_not_served(tmp_path: Path) -> None:
    assert "only names of profiles are served" in complaint(tmp_path, PROFILES.replace("prod, live", "!dev"))


# -- placeholders


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${TOPIC}", {"TOPIC": "orders"}, "orders"),
        ("${TOPIC:other}", {}, "other"),
        ("${TOPIC:}x", {}, "x"),
        ("a-${ONE:${TWO:three}}-b", {}, "a-three-b"),
        ("a-${ONE:${TWO:three}}-b", {"TWO": "2"}, "a-2-b"),
        ("${my.topic-name}", {"MY_TOPIC_NAME": "relaxed"}, "relaxed"),
        ("${spring.application.name}-topic", {}, "shop-topic"),
        ("${HOST:127.0.0.1:9876}", {}, "127.0.0.1:9876"),
    ],
)
def test_placeholders(text: str, environ: Mapping[str, str], value: str, tmp_path: Path) -> None:
    whole = f"spring:\n  application: {{name: shop}}\n  cloud.stream.bindings.in.destination: '{text}'\n"
    assert app_of(tmp_path, whole, environ=environ).bindings["in"].destination == value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("${TOPIC}", "uses ${TOPIC}, and there is no such variable; set it, or give a default: ${TOPIC:value}"),
        ("${TOPIC", "has a '${' without its '}'"),
        ("${bindings.in.group}", "uses ${bindings.in.group}, which leads back to itself"),
    ],
)
def test_a_placeholder_that_cannot_be_filled_is_told(text: str, told: str, tmp_path: Path) -> None:
    whole = f"bindings:\n  in:\n    destination: '{text}'\n    group: '{text}'\n"
    assert complaint(tmp_path, whole) == f"application.yml, line 3: bindings.in.destination {told}"


# -- unknown, refused, without effect


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bindings: {in: {destinaton: t}}", "bindings.in.destinaton is unknown; the nearest known key is"
         " spring.cloud.stream.bindings.in.destination"),
        ("bindings: {in: {consumer: {maxAttempt: 1}}}", "bindings.in.consumer.maxAttempt is unknown; the nearest known key is"
         " spring.cloud.stream.bindings.in.consumer.max-attempts"),
        ("rocketmq: {bindings: {in: {consumer: {subscriptoin: a}}}}", "rocketmq.bindings.in.consumer.subscriptoin is unknown; the nearest"
         " known key is spring.cloud.stream.rocketmq.bindings.in.consumer.subscription"),
        ("rocketmq: {binder: {name-srv: a}}", "rocketmq.binder.name-srv is unknown; the nearest known key is"
         " spring.cloud.stream.rocketmq.binder.name-server"),
        ("rocketmq: {bindngs: {in: {consumer: {sql: a}}}}", "rocketmq.bindngs.in.consumer.sql is unknown; the nearest known key is"
         " spring.cloud.stream.rocketmq.bindings.in.consumer.sql"),
        ("stream: {binding: {in: {destination: t}}}", "stream.binding.in.destination is unknown; the nearest known key is"
         " spring.cloud.stream.bindings.in.destination"),
        ("spring: {clould: {stream: {source: a}}}", "spring.clould.stream.source is unknown; the nearest known key is"
         " spring.cloud.stream.source"),
        ("sprng: {cloud: {stream: 1}}\nspring: {x: 1}", "sprng.cloud.stream is unknown; the nearest known key is spring.cloud.stream"),
        ("binding: {in: {destination: t}}", "binding.in.destination is no place of bindings; the nearest known is bindings:"),
        ("bindings: {in: {consumer: {orderly: true}}}", "bindings.in.consumer.orderly is unknown there; it belongs to"
         " spring.cloud.stream.rocketmq.bindings.in.consumer: spring.cloud.stream.rocketmq.bindings.in.consumer.orderly"),
        ("rocketmq: {bindings: {in: {orderly: true}}}", "rocketmq.bindings.in.orderly is unknown; expected is"
         " spring.cloud.stream.rocketmq.bindings.in.consumer or .producer"),
        ("server: {port: 1}\nspring: {x: 1}", "application.yml has no bindings; expected is spring.cloud.stream.bindings.NAME"),
        ("bindings: {in: {consumer: {max-attempts: none}}}", "bindings.in.consumer.max-attempts is 'none'; expected is a whole number"
         " from 1 to 100"),
        ("bindings: {in: {consumer: {max-attempts: 0}}}", "expected is a whole number from 1 to 100"),
        ("bindings: {in: {content-type: application/x-java-object}}", "expected is application/json, text/plain or"),
        ("rocketmq: {bindings: {in: {consumer: {messageModel: ALL}}}}", "is 'ALL'; expected is CLUSTERING or BROADCASTING"),
        ("rocketmq: {bindings: {in: {consumer: {enabled: perhaps}}}}", "is 'perhaps'; expected is true or false"),
        ("rocketmq: {bindings: {in: {consumer: {consumeTimestamp: now}}}}", "expected is a time as 20260131120000"),
        ("bindings: {in: {destination: [a, b]}}", "is a list; expected is one value"),
        ("bindings: {in: {destination: '#{topics.one}'}}", "expressions are not served in values"),
        ("rocketmq: {binder: {access-key: a}}", "rocketmq.binder.access-key stands alone; secret-key must stand beside it"),
        ("rocketmq: {bindings: {in: {consumer: {tags: a, sql: b}}}}", "and tags exclude each other"),
        ("rocketmq: {bindings: {in: {consumer: {broadcasting: false, messageModel: BROADCASTING}}}}", "is false, but message-model is"),
        ("rocketmq: {bindings: {in: {consumer: {orderly: false, push: {orderly: true}}}}}", "is True, but line 1 says False"),
        ("rocketmq: {bindings: {out: {producer: {sync: true, sendType: OneWay}}}}", "is true, but send-type is OneWay"),
        ("rocketmq: {bindings: {out: {producer: {orderly: true}}}}", "is true, but nothing says what stays in order; set"
         " spring.cloud.stream.bindings.out.producer.partition-key-expression"),
        ("rocketmq: {bindings: {out: {producer: {producerType: Trans}}}}", "needs a transaction-listener beside it"),
        ("bindings: {out: {producer: {partition-key-expression: T(java.lang.Runtime)}}}", "'T' is not served"),
        ("bindings: {in: {consumer: {batch-mode: true}}}", "set push.consume-message-batch-max-size to 2 or more"),
        ("bindings: {in: {destination: a, destination: b}}", "application.yml, line 1: 'destination' stands twice"),
        ("bindings:\n\t- x", "application.yml, line 2: this is not YAML"),
        ("- a", "application.yml, line 1: expected are names with values"),
        ("bindings: &x {in: *x}", "it is nested deeper than"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_with_the_file_and_the_key(text: str, told: str, tmp_path: Path) -> None:
    found = complaint(tmp_path, text)
    assert "application.yml" in found
    assert told in found


def test_what_yaml_cannot_read_is_not_quoted(tmp_path: Path) -> None:
    """It may be a secret."""
    assert "hidden" not in complaint(tmp_path, "rocketmq:\n  binder:\n    secret-key: *hidden12\n")


@pytest.mark.parametrize("key", [key for key in ROWS if key.fate is Fate.REFUSED], ids=lambda key: f"{key.scope.value}.{key.name}")
def test_every_refused_key_is_refused_with_its_sentence(key: Any, tmp_path: Path) -> None:
    place = key.scope.value.replace("*", "it")
    tail = ".a" if key.is_map else ""
    assert complaint(tmp_path, f"{place}.{key.name}{tail}: something\n").endswith(f": {key.about}")
    for value in key.allowed:
        app = app_of(tmp_path, f"{place}.{key.name}: {value}\nspring.cloud.stream.bindings.x.group: g\n")
        assert app.bindings.notices == []


@pytest.mark.parametrize("key", [key for key in ROWS if key.fate is Fate.NO_EFFECT], ids=lambda key: f"{key.scope.value}.{key.name}")
def test_every_key_without_effect_is_told_with_its_reason(key: Any, tmp_path: Path) -> None:
    tail = ".a" if key.is_map else ""
    line = f"{key.scope.value.replace('*', 'it')}.{key.name}{tail}: 1\n"
    app = app_of(tmp_path, line + "spring.cloud.stream.bindings.x.group: g\n")
    [notice] = app.bindings.notices
    assert notice.endswith(f"{tail} has no effect: {key.about}")


def test_a_delay_level_beside_orderly_is_told(tmp_path: Path) -> None:
    app = app_of(tmp_path, "rocketmq: {bindings: {in: {consumer: {orderly: true, delayLevelWhenNextConsume: -1}}}}\n")
    assert consuming(app, "in") == {"group": "anonymous_in", "concurrency": 1, "orderly": True}
    [notice] = app.bindings.notices
    assert "an orderly consumer tries again in its place" in notice


def test_secrets_are_not_in_complaints(tmp_path: Path) -> None:
    told = complaint(tmp_path, "rocketmq: {bindings: {in: {consumer: {secret-key: hush}}}}\n")
    assert "hush" not in told
    assert "is not served" in told


def test_the_page_has_every_key() -> None:
    assert table() in (ROOT / "docs" / "bindings.md").read_text(), "put keys.table() into docs/bindings.md"
    assert {key.scope for key in ROWS} == set(Scope)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bindings: " + "".join(f"{{a{n}: " for n in range(DEPTH_MAX + 2)) + "1" + "}" * (DEPTH_MAX + 2), "nested deeper than"),
        ("\n".join(f"k{n}: 1" for n in range(ENTRIES_MAX + 1)), f"more than {ENTRIES_MAX} properties"),
        ("a: &a [1,1,1,1]\nb: &b [[1],*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e]\n"
         "g: &g [*f,*f,*f,*f]\nh: &h [*g,*g,*g,*g]\ni: [*h,*h,*h,*h]", f"more than {ENTRIES_MAX} properties"),
        ("#" * (TEXT_MAX + 1), f"allowed are {TEXT_MAX}"),
    ],
    ids=["deep", "many", "laughs", "long"],
)  # fmt: skip
def test_a_file_is_bounded(text: str, told: str, tmp_path: Path) -> None:
    assert told in complaint(tmp_path, text)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadBindings, match="cannot be read: No such file"):
        App.from_file(tmp_path / "nothing.yml")


# -- binding


def test_a_binding_that_the_file_has_not_is_told_with_the_nearest(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.PLAIN)
    with pytest.raises(ClientError, match="has no binding 'one-to-one-inptu'; the nearest is 'one-to-one-input'"):
        app.bind("one-to-one-inptu")(lambda message: None)
    with pytest.raises(ClientError, match="has no binding 'one-output'; the nearest is 'one-to-one-output'"):
        app.output("one-output")


def test_an_app_without_a_file_has_no_bindings() -> None:
    with pytest.raises(ClientError, match="make it from a file"):
        App().output("x")


def test_a_binding_of_another_binder_is_not_bound(tmp_path: Path) -> None:
    app = app_of(tmp_path, "stream: {bindings: {in: {destination: t, binder: kafka}}, kafka: {binder: {brokers: x}}}\n")
    with pytest.raises(ClientError, match="is for 'kafka'; only RocketMQ is served here"):
        app.bind("in")(lambda message: None)


FUNCTIONS = """
spring:
  cloud:
    function.definition: upperCase;count
    stream:
      bindings:
        upperCase-in-0: {destination: words, group: g}
        upperCase-out-0: {destination: WORDS}
        numbers: {destination: numbers, group: n}
      function.bindings.count-in-0: numbers
"""


def test_functions_are_bound_by_their_names(tmp_path: Path) -> None:
    app = app_of(tmp_path, FUNCTIONS)

    @app.bind
    def upper_case(word: str) -> str:
        return word.upper()

    @app.bind("count")
    def anything(message: ReceivedMessage) -> None: ...

    assert [(handler.topic, handler.group, [one.topic for one in handler.publishers]) for handler in app.handlers] == [
        ("words", "g", ["WORDS"]),
        ("numbers", "n", []),
    ]
    assert upper_case("a") == "A", "a bound function is still the function that it was"


def test_a_function_that_nobody_bound_is_told_at_the_start(tmp_path: Path) -> None:
    app = app_of(tmp_path, FUNCTIONS)
    with pytest.raises(ClientError, match=r"names the function 'upperCase' .* write @app.bind\('upperCase'\)"):
        app._bound_members(consuming=True)
    assert app._bound_members(consuming=False)


def test_composed_functions_are_not_served(tmp_path: Path) -> None:
    app = app_of(tmp_path, FUNCTIONS.replace("upperCase;count", "upperCase|count"))
    with pytest.raises(BadBindings, match="composes functions"):
        app._bound_members(consuming=True)


def test_types_of_the_place_are_found(tmp_path: Path) -> None:
    from dataclasses import dataclass

    @dataclass
    class Local:
        id: int

    app = app_of(tmp_path, seeds.PLAIN)

    @app.bind("one-to-one-input")
    async def handle(local: Local) -> None: ...

    assert app.handlers[0].payload is Local


def test_a_binding_that_is_off_consumes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = app_of(tmp_path, seeds.PLAIN.replace("enabled: true", "enabled: false"))
    with caplog.at_level(logging.WARNING):
        app.bind("one-to-one-input")(lambda message: None)
    assert app.handlers == []
    assert "binding one-to-one-input is disabled" in caplog.text


def test_a_listener_that_nobody_gave_or_that_lacks_a_method_is_told_at_the_start(tmp_path: Path) -> None:
    app = app_of(tmp_path, seeds.TRANSACTIONS, beans={"oneToOneListener": object()})
    with pytest.raises(BadBindings, match=r"no bean has this name; the nearest bean is 'oneToOneListener'; give it before the start"):
        app._bound_members(consuming=False)
    app.bean("one_to_one_trans_listener", object())
    with pytest.raises(BadBindings, match=r"is a object without execute\(\)"):
        app._bound_members(consuming=False)


def test_two_listeners_in_one_group_are_refused(tmp_path: Path) -> None:
    text = """
rocketmq:
  bindings:
    one: {producer: {group: g, producerType: Trans, transactionListener: a}}
    two: {producer: {group: g, transactional: true, transactionListener: b}}
"""

    class Listener:
        def execute(self, message: object, argument: object) -> None: ...

        def check(self, message: object) -> None: ...

    app = app_of(tmp_path, text, beans={"a": Listener(), "b": Listener()})
    with pytest.raises(BadBindings, match="give each listener a group of its own"):
        app._bound_members(consuming=False)


# -- expressions

HEADERS = {"key": "tag", "n": "17", "flag": "true", "x-y": "z"}
PAYLOAD = {"id": 3, "customer": {"order_id": "A", "tags": ["x", "y"]}, "none": None, "text": "5"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("headers['key']", "tag"),
        ('headers["key"] == "tag"', True),
        ("headers['key'] == 'tag'", True),
        ("headers['key'] eq 'other'", False),
        ("headers.key != 'tag'", False),
        ("headers['x-y']", "z"),
        ("headers['nothing']", None),
        ("headers['nothing'] == 'tag'", False),
        ("headers['nothing'] == null", True),
        ("headers['n'] > 5", True),
        ("headers['n'] == 17", True),
        ("headers['n'] < 3.5", False),
        ("headers['key'] > 5", False),
        ("headers['flag'] == true", True),
        ("payload.id", 3),
        ("payload.id >= 3 and headers['key'] == 'tag'", True),
        ("payload.id > 3 || !(headers['key'] != 'tag')", True),
        ("not (payload.id == 3 && true)", False),
        ("payload.customer.orderId", "A"),
        ("payload['customer']['tags'][1]", "y"),
        ("payload.none?.id", None),
        ("'it''s'", "it's"),
        ("payload.id == -3", False),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert compiled(text)(HEADERS.get, lambda: PAYLOAD) == value


@pytest.mark.parametrize(
    "text",
    ["", "T(java.lang.Runtime).getRuntime()", "@bean.x", "payload.getId()", "new String('x')", "headers['a'", "headers['a'] ==", "headers",
     "headers['a']['b']", "payload.id + 1", "payload.id ? 1 : 2", "__import__('os')", "payload.id payload.id", "(" * 30 + "1" + ")" * 30,
     "'x" , "a" * 2_000, "#root", "payload matches '(a+)+'"],
)  # fmt: skip
def test_what_is_no_expression_of_ours_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        compiled(text)


@pytest.mark.parametrize("text", ["payload.nothing", "payload.none.id", "payload.customer.tags[9]", "payload.__class__", "payload.keys"])
def test_a_field_that_is_not_there_has_no_value(text: str) -> None:
    with pytest.raises(NoValue):
        compiled(text)(HEADERS.get, lambda: PAYLOAD)


def test_nothing_of_an_object_but_its_fields_can_be_reached() -> None:
    for text in ("payload.__class__", "payload.method", "payload._hidden"):
        with pytest.raises(NoValue):
            compiled(text)(HEADERS.get, lambda: Held())
    assert compiled("payload.shown")(HEADERS.get, lambda: Held()) == 1


class Held:
    shown = 1
    _hidden = 2

    def method(self) -> None: ...
