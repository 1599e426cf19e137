"""AsyncCaller over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any

import pytest

from roquet.errors import CallTimeout, ConnectFailed, RoquetError
from roquet.net.caller import BACKLOG_MAX, LARGE, MUCH, AsyncCaller
from roquet.net.unfinished import Unfinished
from roquet.wire.command import Command
from roquet.wire.frame import Framer
from tests.client.tcp import fake_server

Result = Command | RoquetError


def run(test: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(600):
            await test

    asyncio.run(bounded())


def ask(caller: AsyncCaller, address: str, command: Command, timeout_ms: int = 3_000) -> asyncio.Future[Result]:
    answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
    caller.call(address, command, timeout_ms, answer.set_result)
    return answer


def test_many_calls_share_one_connection_and_one_write() -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            answers = await asyncio.gather(*(ask(caller, server.address, Command(106)) for _ in range(50)))
            assert all(isinstance(answer, Command) and answer.code == 0 for answer in answers)
            [connection] = server.connections
            assert connection.reads == [50]
            await caller.close()

    run(test())


def test_the_first_large_frame_of_a_turn_leaves_at_once_and_those_after_it_in_a_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            [line] = caller._lines.values()
            written: list[list[bytes]] = []  # bodies of the frames of each write
            monkeypatch.setattr(line._transport, "write", lambda data: written.append([body for _, _, body in Framer().feed(data)]))

            def turn(*bodies: bytes) -> list[list[bytes]]:
                for body in bodies:
                    caller.oneway(server.address, Command(10, body=body))
                at_once = written.copy()
                written.clear()
                return at_once

            large, rest = bytes(LARGE), MUCH // LARGE
            assert turn(*[large] * (2 * rest + 2)) == [[large], [large] * rest, [large] * rest], "the server need not wait for all of them"
            assert caller.backlog(server.address) > LARGE
            await asyncio.sleep(0)
            assert written == [[large]]
            assert caller.backlog(server.address) == 0
            written.clear()
            assert turn(*[bytes(LARGE // 2)] * 100) == []
            await asyncio.sleep(0)
            assert written == [[bytes(LARGE // 2)] * 100], "small ones of a turn leave together"
            written.clear()
            assert turn(large, bytes(MUCH)) == [[large], [bytes(MUCH)]], "none of these has to wait"
            await asyncio.sleep(0)
            assert written == []
            await caller.close()

    run(test())


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected yet"])
def test_those_who_wait_for_room_go_on_when_the_system_takes_all_at_once(monkeypatch: pytest.MonkeyPatch, connected: bool) -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            if connected:
                await ask(caller, server.address, Command(106))
                [line] = caller._lines.values()
                monkeypatch.setattr(line._transport, "write", lambda data: None)
            body, waited = bytes(LARGE - 256), 0

            async def send() -> None:
                nonlocal waited
                caller.oneway(server.address, Command(10, body=body))
                waited += caller.backlog(server.address) > BACKLOG_MAX
                await caller.drained(server.address)

            async with asyncio.timeout(30):
                await asyncio.gather(*(send() for _ in range(BACKLOG_MAX // len(body) + 100)))
            assert waited > 50
            await caller.close()

    run(test())


def test_nobody_listening_fails_the_call_and_the_next_use_connects_again() -> None:
    async def test() -> None:
        caller = AsyncCaller()
        async with fake_server() as server:
            address = server.address
        failure = await ask(caller, address, Command(106))
        assert isinstance(failure, ConnectFailed)
        assert address in str(failure)
        assert caller.addresses() == []
        async with fake_server() as server:
            assert isinstance(await ask(caller, server.address, Command(106)), Command)
            server.connections[0].transport.abort()
            while caller.addresses():
                await asyncio.sleep(0)
            assert isinstance(await ask(caller, server.address, Command(106)), Command)
        await caller.close()

    run(test())


def test_an_address_that_makes_no_sense_fails_the_call() -> None:
    async def test() -> None:
        caller = AsyncCaller()
        for address in ("nonsense", "127.0.0.1:99999999", ":"):
            assert isinstance(await ask(caller, address, Command(106)), ConnectFailed)
        await caller.close()

    run(test())


def test_no_answer_in_time_is_a_timeout_and_a_late_answer_is_ignored() -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            assert isinstance(await ask(caller, server.address, Command(106), timeout_ms=20), CallTimeout)
            server.connections[0].transport.write(Command(0, opaque=2, flag=1).encode())
            server.cluster.silent = set()
            assert isinstance(await ask(caller, server.address, Command(106)), Command)
            await caller.close()

    run(test())


def test_an_answer_that_came_while_the_loop_stood_still_is_read_before_the_call_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop, stood_still = asyncio.get_running_loop(), 0
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + stood_still)
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            answer = ask(caller, server.address, Command(106), timeout_ms=3_000)
            stood_still = 4
            assert isinstance(await answer, Command)
            server.cluster.silent = {server.address}
            answer = ask(caller, server.address, Command(106), timeout_ms=3_000)
            stood_still = 8
            assert isinstance(await answer, CallTimeout)
            await caller.close()

    run(test())


def test_calls_that_are_due_soon_after_the_loop_stood_still_have_no_less_time_than_those_that_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        loop, stood_still = asyncio.get_running_loop(), 0.0
        now = loop.time
        monkeypatch.setattr("roquet.net.caller.GRACE_MS", 60_000)
        monkeypatch.setattr("roquet.net.caller.LATE_MS", 900)  # so that a busy machine is not taken for the loop that stood still
        monkeypatch.setattr(loop, "time", lambda: now() + stood_still)
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            answers = [ask(caller, server.address, Command(106), timeout_ms=ms) for ms in (3_000, 4_040)]
            stood_still = 4
            for _ in range(3):
                await asyncio.sleep(0)
            assert isinstance(await ask(caller, server.address, Command(106), timeout_ms=80), CallTimeout)
            for opaque in (2, 3):
                server.connections[0].transport.write(Command(0, opaque=opaque, flag=1).encode())
            assert [type(await answer) for answer in answers] == [Command, Command]
            await caller.close()

    run(test())


def test_a_connection_is_not_silent_while_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow answer to one call and a loop that stood still for long: the other call goes on waiting, and nothing is sent twice."""

    async def test() -> None:
        loop, stood_still = asyncio.get_running_loop(), 0
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + stood_still)
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            short, longer = [ask(caller, server.address, Command(106), timeout_ms=ms) for ms in (1_000, 60_000)]
            stood_still = 15
            assert isinstance(await short, CallTimeout)
            server.connections[0].transport.write(Command(0, opaque=3, flag=1).encode())
            assert isinstance(await longer, Command)
            await caller.close()

    run(test())


def test_a_short_call_does_not_take_the_grace_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop, stood_still = asyncio.get_running_loop(), 0
        now = loop.time
        monkeypatch.setattr("roquet.net.caller.GRACE_MS", 60_000)
        monkeypatch.setattr("roquet.net.caller.LATE_MS", 900)  # so that a busy machine is not taken for the loop that stood still
        monkeypatch.setattr(loop, "time", lambda: now() + stood_still)
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            answer = ask(caller, server.address, Command(106), timeout_ms=3_000)
            stood_still = 4
            for _ in range(3):
                await asyncio.sleep(0)
            assert isinstance(await ask(caller, server.address, Command(106), timeout_ms=10), CallTimeout)
            server.connections[0].transport.write(Command(0, opaque=2, flag=1).encode())
            assert isinstance(await answer, Command)
            await caller.close()

    run(test())


def test_a_call_is_given_up_in_a_loop_that_stands_still_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop, leaps = asyncio.get_running_loop(), count()
        now = loop.time
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            answer = ask(caller, server.address, Command(106), timeout_ms=3_000)
            monkeypatch.setattr(loop, "time", lambda: now() + next(leaps))
            assert isinstance(await answer, CallTimeout)
            monkeypatch.undo()
            await caller.close()

    run(test())


def test_a_connection_that_has_gone_silent_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        monkeypatch.setattr("roquet.net.caller.SILENT_MS", 10)
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            [before] = server.connections
            server.cluster.silent = {server.address}
            waiting = ask(caller, server.address, Command(106), timeout_ms=60_000)
            assert isinstance(await ask(caller, server.address, Command(106), timeout_ms=20), CallTimeout)
            assert isinstance(await waiting, ConnectFailed)
            server.cluster.silent = set()
            assert isinstance(await ask(caller, server.address, Command(106)), Command)
            assert before not in server.connections
            await caller.close()

    run(test())


def test_a_lost_connection_and_hanging_up_fail_the_calls_under_way() -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            server.cluster.silent = {server.address}
            waiting = ask(caller, server.address, Command(106))
            await asyncio.sleep(0)
            server.connections[0].transport.abort()
            assert isinstance(await waiting, ConnectFailed)
            waiting = ask(caller, server.address, Command(106))
            caller.hang_up(server.address)
            assert isinstance(await waiting, ConnectFailed)
            waiting = ask(caller, server.address, Command(106))
            await caller.close()
            assert isinstance(await waiting, ConnectFailed)
            assert isinstance(await ask(caller, server.address, Command(106)), ConnectFailed)

    run(test())


def test_bytes_that_are_not_the_protocol_end_the_connection_with_a_hint() -> None:
    async def test() -> None:
        async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(http, "127.0.0.1", 0)
        caller = AsyncCaller()
        failure = await ask(caller, f"127.0.0.1:{server.sockets[0].getsockname()[1]}", Command(106))
        assert isinstance(failure, ConnectFailed)
        assert "RocketMQ port" in str(failure)
        await caller.close()
        server.close()
        await server.wait_closed()

    run(test())


def test_requests_of_the_server_reach_the_handler_and_its_reply_goes_back() -> None:
    async def test() -> None:
        async with fake_server() as server:
            seen: list[Command] = []

            def handler(address: str, command: Command, reply: object) -> None:
                assert address == server.address
                seen.append(command)
                if command.code == 307:
                    raise ValueError("a bug")
                assert callable(reply)
                reply(command.reply(0, "done"))

            caller = AsyncCaller(handler)
            await ask(caller, server.address, Command(106))
            [connection] = server.connections
            connection.transport.write(
                Command(221, opaque=7).encode() + Command(307, opaque=8).encode() + Command(40, opaque=9, flag=2).encode()
            )
            while len(seen) < 3 or len(connection.answers) < 2:
                await asyncio.sleep(0.001)
            assert [(answer.opaque, answer.code) for answer in connection.answers] == [(7, 0), (8, 1)]
            await caller.close()

    run(test())


def test_oneway_frames_are_marked_and_a_full_pipe_makes_senders_wait() -> None:
    async def test() -> None:
        async with fake_server() as server:
            caller = AsyncCaller()
            await ask(caller, server.address, Command(106))
            [connection] = server.connections
            connection.transport.pause_reading()
            for _ in range(64):
                caller.oneway(server.address, Command(10, body=bytes(256 * 1024)))
            await asyncio.sleep(0)
            assert caller.backlog(server.address) > 4 * 1024 * 1024
            waiting = asyncio.ensure_future(caller.drained(server.address))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            connection.transport.resume_reading()
            await waiting
            while len(server.cluster.requests(10)) < 64:
                await asyncio.sleep(0.001)
            assert all(command.is_oneway for command in server.cluster.requests(10))
            await caller.close()

    run(test())


def test_answers_that_never_end_are_bounded_over_all_servers_and_an_honest_server_is_heard() -> None:
    async def test() -> None:
        begun = (16 * 1024 * 1024 - 4).to_bytes(4, "big") + (10).to_bytes(4, "big") + b'{"code":0}' + bytes(15 * 1024 * 1024)

        async def never_end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(begun)

        writers: list[asyncio.StreamWriter] = []
        caller = AsyncCaller()
        caller.unfinished = Unfinished(64 * 1024 * 1024)
        greedy = [await asyncio.start_server(never_end, "127.0.0.1", 0) for _ in range(12)]
        asked = [ask(caller, f"127.0.0.1:{one.sockets[0].getsockname()[1]}", Command(106), 60_000) for one in greedy]
        async with fake_server() as server:
            while caller.unfinished.held < 45 * 1024 * 1024:
                await asyncio.sleep(0.01)
            assert isinstance(await ask(caller, server.address, Command(106)), Command)
            assert caller.unfinished.held <= 64 * 1024 * 1024
            assert caller.unfinished.waiting
            # Those that stopped are given up, so that the others come in.
            failed, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert "unfinished frames" in str(failed.pop().result())
        await caller.close()
        for one in greedy:
            one.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    run(test())
