"""The life of an app: hooks, lifespan, start, and an end that finishes what runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from roquet import Message, Producer
from roquet.app import App
from roquet.embed import Embedded
from roquet.errors import ClientError, ConnectFailed, NotStarted
from tests.app.broker import against_a_broker, app_of, sent, stored, until
from tests.client.programs import program


def test_hooks_run_around_the_handlers_and_may_publish() -> None:
    async def test(mq: Embedded) -> None:
        steps: list[str] = []

        @asynccontextmanager
        async def lifespan(app: App) -> AsyncIterator[None]:
            app.state["pool"] = "pool"
            steps.append("lifespan begins")
            yield
            steps.append("lifespan ends")

        app = app_of(mq, lifespan=lifespan)

        @app.on_startup
        def plain() -> None:
            steps.append(f"plain {app.state['pool']}")

        @app.on_startup
        async def first(app: App) -> None:
            await app.publish("words", "from a hook")
            steps.append("startup")

        @app.on_shutdown
        async def last(app: App) -> None:
            await app.publish("ends", "bye")
            steps.append("shutdown 1")

        @app.on_shutdown
        def before() -> None:
            steps.append("shutdown 2")

        @app.consumer("words", group="g")
        async def handle(text: str) -> None:
            steps.append(f"begins {text}")
            await asyncio.sleep(0.05)
            steps.append(f"ends {text}")

        async with app:
            await until(lambda: "begins from a hook" in steps)
        assert steps == [
            "lifespan begins", "plain pool", "startup", "begins from a hook",
            "ends from a hook", "shutdown 2", "shutdown 1", "lifespan ends",
        ]  # fmt: skip
        await stored(mq, "ends", 1)
        async with app:  # once more
            pass
        assert steps[-1] == "lifespan ends"
        assert steps.count("startup") == 2

    against_a_broker(test)


def test_a_startup_hook_that_fails_ends_the_start_and_closes_what_was_open() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []
        other = app.add(Producer("other", mq.namesrv))

        @app.on_startup
        async def fail() -> None:
            raise LookupError("no database")

        @app.on_shutdown
        async def shut() -> None:
            steps.append("shut")

        with pytest.raises(LookupError, match="no database"):
            await app.start()
        with pytest.raises(NotStarted):
            app.producer  # noqa: B018 (looking is the test)
        with pytest.raises(NotStarted):
            await other.send(Message("t", b"x"))
        assert steps == ["shut"]
        await app.closed()

    against_a_broker(test)


def test_a_shutdown_hook_that_fails_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []

        @app.on_shutdown
        def first() -> None:
            steps.append("first")

        @app.on_shutdown
        async def fail() -> None:
            raise LookupError("no database")

        async with app:
            pass
        assert steps == ["first"]

    against_a_broker(test)
    assert "the shutdown hook fail failed; the app goes on closing" in caplog.text


def test_a_handler_may_close_its_app() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []

        @app.consumer("words", group="g")
        async def handle(text: str) -> None:
            await app.close()
            steps.append("handler ended")

        async with sent(mq, "words", Message("words", b"a")):
            await app.start()
            await app.closed()
        assert steps == ["handler ended"]

    against_a_broker(test)


def test_the_end_of_the_block_waits_for_a_close_that_is_under_way() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        steps: list[str] = []
        asked = asyncio.Event()

        @app.on_shutdown
        async def last() -> None:
            asked.set()
            await app.close()  # does not wait for itself
            await asyncio.sleep(0.05)
            steps.append("shutdown")

        @app.consumer("words", group="g")
        async def handle(text: str) -> None:
            await app.close()

        async with sent(mq, "words", Message("words", b"stop")):
            async with app:
                await asked.wait()
            assert steps == ["shutdown"]
            assert app.running == 0

    against_a_broker(test)


def test_a_start_up_hook_that_closes_the_app_ends_the_start() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)

        @app.on_startup
        async def unwilling(app: App) -> None:
            await app.close()

        @app.consumer("words", group="g")
        async def handle(text: str) -> None: ...

        with pytest.raises(ClientError, match="the start-up hook unwilling closed the app, so it does not start"):
            await app.start()
        assert not app.consumers

    against_a_broker(test)


def test_an_app_without_a_name_server_says_so() -> None:
    app = App("127.0.0.1:1", start_timeout_ms=200)
    with pytest.raises(ConnectFailed, match="Producer 'app' is not started"):
        asyncio.run(app.start())


def test_handlers_that_come_while_it_runs_are_refused() -> None:
    async def test(mq: Embedded) -> None:
        app = app_of(mq)
        async with app:
            with pytest.raises(ClientError, match="comes too late: the app runs"):
                app.consumer("t")(lambda: None)

    against_a_broker(test)


def test_the_name_server_is_the_environments_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    assert App().namesrv == "10.0.0.1:9876"
    assert App("10.0.0.2:9876").namesrv == "10.0.0.2:9876"
    monkeypatch.delenv("NAMESRV_ADDR")
    assert App().namesrv == "127.0.0.1:9876"


PROGRAM = """
    import asyncio, os
    from roquet.app import App

    app = App("{namesrv}", consumer={{"consume_from": "first", "concurrency": 2}})

    @app.on_shutdown
    def bye():
        os.write(1, b"bye\\n")

    @app.consumer("words", group="g")
    {keyword} handle(text: str) -> None:
        os.write(1, b"begins\\n")
        {pause}
        os.write(1, b"ends\\n")
        {more}

    app.run()
    print("after run", flush=True)
"""


@pytest.mark.parametrize(("keyword", "pause"), [("async def", "await asyncio.sleep(0.3)"), ("def", "import time; time.sleep(0.3)")])
def test_a_signal_lets_running_handlers_finish(keyword: str, pause: str) -> None:
    async def test(mq: Embedded) -> None:
        code = PROGRAM.format(namesrv=mq.namesrv, keyword=keyword, pause=pause, more="")
        messages = [Message("words", b"%d" % number) for number in range(10)]
        async with sent(mq, "words", *messages), program(code) as running:
            await running.until("begins")
            running.signal(signal.SIGTERM)
            assert await running.end() == 0
        assert running.printed.count("begins") == running.printed.count("ends")
        assert running.printed.endswith("bye\nafter run\n")

    against_a_broker(test)


def test_sys_exit_in_a_handler_ends_the_program_with_its_code() -> None:
    async def test(mq: Embedded) -> None:
        code = PROGRAM.format(namesrv=mq.namesrv, keyword="async def", pause="", more="raise SystemExit(7)")
        async with sent(mq, "words", Message("words", b"a")), program(code) as running:
            assert await running.end() == 7
        assert "bye" in running.printed

    against_a_broker(test)


def test_middleware_goes_to_the_producer_and_every_consumer() -> None:
    middleware = pytest.importorskip("roquet.client.middleware")
    seen: list[str] = []

    class Noting(middleware.Middleware):  # type: ignore[misc, name-defined]
        def before_send(self, event: Any) -> None:
            seen.append(f"send {event.message.topic}")

        def after_consume(self, event: Any) -> None:
            seen.append(f"consumed {event.group} {event.outcome}")

    async def test(mq: Embedded) -> None:
        app = app_of(mq, middleware=[Noting()])

        @app.consumer("words", group="g")
        async def handle(text: str) -> None: ...

        @app.consumer("words", group="h")
        def refuse(number: int) -> None: ...

        async with sent(mq, "words"), app:
            await app.publish("words", "a")
            await until(lambda: len(seen) == 3)
        assert seen[0] == "send words"
        assert sorted(seen[1:]) == ["consumed g success", "consumed h dead letter"]

    against_a_broker(test)
