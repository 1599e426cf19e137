"""The guard itself: keys, handlers of every form, and sentences for wrong use."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest

from roquet import ClientError, RetryLater, Suspend
from roquet.client.functions import check_handler, is_async
from roquet.idempotence import AsyncStore, MemoryStore, Once, Store, business_key, current_session
from roquet.idempotence.delays import LEVELS_MS, level_after
from roquet.idempotence.keys import shown
from roquet.message import ReceivedMessage
from roquet.settings import DELAY_LEVELS
from tests.idempotence.shops import Clock, Gate, Shop, message

# -- keys


def test_a_message_is_known_by_its_keys_first_then_by_its_unique_id_then_by_its_first_record() -> None:
    assert business_key(message("order-17", UNIQ_KEY="A")) == business_key(message("order-17", UNIQ_KEY="B"))
    assert business_key(message("", UNIQ_KEY="A", ORIGIN_MESSAGE_ID="B")) == "A"
    assert business_key(message("", ORIGIN_MESSAGE_ID="B")) == "B"
    assert business_key(first := message("")) == first.offset_message_id


def test_topic_and_tag_belong_to_the_key_and_what_was_retried_has_the_same() -> None:
    paid = message("order-17", TAGS="paid")
    others = [message("order-17", TAGS="created"), message("order-17", TAGS="paid", topic="refunds"), message("order-17 x", TAGS="paid")]
    assert business_key(paid) not in [business_key(other) for other in others]
    assert business_key(paid) == business_key(message("order-17", TAGS="paid", times=3, ORIGIN_MESSAGE_ID="B", DELAY="4"))


def test_no_two_messages_get_one_key_by_the_way_it_is_written() -> None:
    one, other = message("b c", TAGS="a"), message("c", TAGS="a b")
    assert business_key(one) != business_key(other)
    assert business_key(message("x", TAGS='a","b')) != business_key(message("b x", TAGS="a"))


def test_a_key_function_counts_in_place_of_keys_across_topics() -> None:
    handled: list[str] = []
    guard = Once(MemoryStore(), group="g", key=lambda one: one.properties["order"])(lambda one: handled.append(one.topic))
    guard(message("a", order="17"))
    guard(message("b", order="17", topic="payments"))
    assert handled == ["orders"]


@pytest.mark.parametrize("key", [None, "", 17, b"x"])
def test_a_key_that_is_no_text_fails_before_anything_is_handled(key: Any) -> None:
    handled: list[Any] = []
    with pytest.raises(ClientError, match="cannot be remembered; expected of the key function is a text"):
        Once(MemoryStore(), group="g", key=lambda _: key)(handled.append)(message())
    assert handled == []


def test_what_is_shown_of_a_key_fits_every_character_set() -> None:
    assert shown("é\0\n😀" + "x" * 300, 30) == "\\xe9??\\U0001f600" + "x" * 14


# -- handlers


def test_the_guard_of_a_plain_handler_is_plain_and_that_of_an_async_one_is_async() -> None:
    once = Once(MemoryStore(), group="g")

    @once
    def plain(message: ReceivedMessage) -> None:
        """Bills it."""

    @once
    async def other(message: ReceivedMessage) -> None:
        pass

    assert not is_async(plain)
    assert is_async(other)
    assert (plain.__name__, plain.__doc__, plain.__module__) == ("plain", "Bills it.", __name__)
    for handler in (plain, other):
        check_handler(handler, "orders")


def test_callable_objects_methods_and_partials_are_handlers_too() -> None:
    class Billing:
        def __init__(self) -> None:
            self.handled: list[str] = []

        async def bill(self, message: ReceivedMessage, by: str = "method") -> None:
            self.handled.append(by)

        async def __call__(self, message: ReceivedMessage) -> None:
            self.handled.append("object")

    billing = Billing()
    handlers: list[Any] = [billing, billing.bill, partial(billing.bill, by="partial")]
    for number, handler in enumerate(handlers):
        guard: Any = Once(MemoryStore(), group=f"g{number}")(handler)
        assert is_async(guard)
        asyncio.run(guard(message()))
    assert billing.handled == ["object", "method", "partial"]


def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async_and_the_message_is_not_done() -> None:
    async def work() -> None:
        pass

    store = MemoryStore()
    guard: Any = Once(store, group="g")(lambda _: work())
    with pytest.raises(ClientError, match="returned a coroutine, so nothing of it ran; expected is an `async def`"):
        guard(message())
    assert len(store) == 0


@pytest.mark.parametrize("shop", ["sqlite", "redis"], indirect=True)
def test_an_async_handler_may_have_a_plain_store_whose_waits_are_in_threads(shop: Shop) -> None:
    store = shop.open()
    threads: list[str] = []
    claim = store.claim

    def watched(given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return claim(given)

    store.claim = watched

    @Once(store, group="g")
    async def handle(one: ReceivedMessage) -> None:
        shop.began.append(one.keys[0])

    for _ in range(2):
        shop.wait(handle(message()))
    assert shop.began == ["order-17"]
    assert all(name.startswith("asyncio_") for name in threads)


@pytest.mark.parametrize("shop", ["sqlite-async", "redis-async", "memory", "sqlite"], indirect=True)
def test_an_async_handler_that_is_cancelled_is_not_done_and_may_be_handled_at_once(shop: Shop) -> None:
    @Once(shop.store, group="billing")
    async def handle(one: ReceivedMessage) -> None:
        shop.began.append("cancelled")
        await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.ensure_future(handle(message()))
        while not shop.began:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    shop.wait(cancel())
    assert shop.call(shop.guard(), message()) is None
    assert shop.effects() == ["order-17"]


def test_what_a_thread_cannot_stop_is_waited_for_when_its_task_is_cancelled() -> None:
    """Else a transaction would be begun behind the back of who has ended it."""
    gate = Gate()
    begun: list[str] = []

    class Slow(MemoryStore):
        blocks = True

        def begin(self, claim: Any) -> None:
            gate.stand()
            begun.append("begin")

        def fail(self, claim: Any) -> None:
            begun.append("fail")
            super().fail(claim)

    async def work() -> None:
        async def handle(one: ReceivedMessage) -> None: ...

        task = asyncio.ensure_future(Once(Slow(), group="g")(handle)(message()))
        await asyncio.to_thread(gate.reached.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert begun == ["begin", "fail"]


def test_counts_are_right_when_many_threads_handle_at_once() -> None:
    once = Once(MemoryStore(), group="g")
    guard = once(lambda one: None)
    threads = [threading.Thread(target=lambda: [guard(message(str(n))) for n in range(200)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert once.handled == 200
    assert once.dropped + once.postponed == 7 * 200


# -- when it comes again


def test_the_levels_are_those_of_the_broker() -> None:
    seconds = {"s": 1, "m": 60, "h": 3600}
    assert [int(level[:-1]) * seconds[level[-1]] * 1000 for level in DELAY_LEVELS.split()] == LEVELS_MS


@pytest.mark.parametrize(
    ("left_ms", "times", "level"),
    [(0, 0, 3), (1_000, 0, 3), (10_000, 0, 3), (10_001, 0, 4), (60_000, 0, 5), (60_000, 4, 7), (10**9, 0, 18), (0, 99, 18)],
)
def test_a_delivery_that_was_put_off_comes_after_the_lease_and_no_sooner_than_one_that_failed(left_ms: int, times: int, level: int) -> None:
    assert level_after(left_ms, times) == level


@pytest.mark.parametrize(("left_ms", "ms"), [(0, 1_000), (5, 10), (20_000, 20_000), (60_000, 30_000)])
def test_an_orderly_queue_waits_for_the_lease_and_half_a_minute_at_most(left_ms: int, ms: int) -> None:
    class Running(MemoryStore):
        def claim(self, claim: Any) -> Any:
            from roquet.idempotence import Standing, State

            return [Standing(State.RUNNING, left_ms) for _ in claim.marks]

    assert Once(Running(), group="g", orderly=True)(lambda one: None)(message()) == Suspend(ms)
    assert isinstance(Once(Running(), group="g")(lambda one: None)(message()), RetryLater)


# -- memory


def test_memory_forgets_what_is_too_old_and_the_oldest_beyond_the_count() -> None:
    clock = Clock(0.0)
    store = MemoryStore(keep_s=60, count_max=3, clock=clock)
    handled: list[str] = []
    guard = Once(store, group="g")(lambda one: handled.append(one.keys[0]))
    for key in "abcda":
        guard(message(key))
    assert handled == ["a", "b", "c", "d", "a"]
    assert len(store) == 3
    clock.now += 61
    assert len(store) == 0
    guard(message("d"))
    assert handled[-1] == "d"


# -- wrong use


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"store": "redis"}, "store='redis'; expected is a store of marks, such as MemoryStore()"),
        ({"group": ""}, "group=''; expected is the name of the consumer's group, a text of 1 to 255 characters"),
        ({"key": "order"}, "key='order'; expected is a function of a message that returns a text"),
        ({"lease_s": 0}, "lease_s=0; allowed are 0.05 to 86400 seconds"),
        ({"store_away": "skip"}, """store_away='skip'; allowed are "retry" and "run\""""),
    ],
)
def test_wrong_options_are_told_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ClientError) as caught:
        Once(**{"store": MemoryStore(), "group": "g", **options})
    assert str(caught.value) == sentence


def test_a_handler_that_cannot_take_a_message_is_told_when_it_is_decorated() -> None:
    def handle() -> None: ...

    with pytest.raises(ClientError, match=r"handler handle\(\) cannot be called with a message; expected is: def handle\(message\)"):
        Once(MemoryStore(), group="g")(handle)  # type: ignore[arg-type]


def test_there_is_no_session_outside_of_a_handler() -> None:
    with pytest.raises(ClientError, match="no handler with a session runs here"):
        current_session()


def test_the_stores_are_what_the_protocols_say() -> None:
    plain: Store = MemoryStore()
    assert not plain.has_session
    from roquet.idempotence import AsyncRedisStore, AsyncSqlStore, RedisStore, SqlStore

    stores: list[type[Store]] = [RedisStore, SqlStore]
    async_stores: list[type[AsyncStore]] = [AsyncRedisStore, AsyncSqlStore]
    assert all(kind.__doc__ and "Guarantee: " in kind.__doc__ for kind in (*stores, *async_stores, MemoryStore))


def test_neither_sqlalchemy_nor_redis_is_loaded_before_their_stores_are_named() -> None:
    code = "import sys, roquet.idempotence, roquet.client.idempotent; print(sorted({'sqlalchemy', 'redis'} & set(sys.modules)))\n"
    code += "sys.modules['redis'] = None\ntry:\n  from roquet.idempotence import RedisStore\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nRedisStore needs redis, which is not installed: pip install 'roquet[redis]'\n"
