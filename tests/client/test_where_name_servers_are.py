"""Where the name servers are: said, in the environment, or told by an HTTP server, which is a real one here."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import roquet
from roquet import Admin, ConnectFailed, LitePullConsumer, Message, Producer, Tracing
from roquet.cli.main import main
from roquet.client import lookup, sync
from roquet.embed import Embedded
from roquet.errors import ClientError
from roquet.routing.name_servers import NameServers, lookup_url, parse_name_servers
from tests.client.programs import PATIENCE_S
from tests.client.tcp import until

NOBODY = "127.0.0.1:1"
PATH = "/rocketmq/nsaddr"


def against_a_broker(test: Callable[[Embedded], Coroutine[Any, Any, None]]) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded() as mq:
            await test(mq)

    asyncio.run(scenario())


# -- in the environment


def test_a_client_that_is_told_nothing_asks_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def test(mq: Embedded) -> None:
        monkeypatch.setenv("NAMESRV_ADDR", f" {mq.namesrv} ")
        async with Producer("p") as producer, Admin() as admin:
            assert (await producer.send(Message("orders", b"x"))).ok
            assert await admin.masters()
        reader = LitePullConsumer("g", consume_from="first")
        reader.subscribe("orders")
        async with reader:
            assert (await reader.poll(60_000))[0].body == b"x"

        def program() -> bool:
            with sync.Producer("blocking") as blocking:
                return blocking.send(Message("orders", b"x")).ok

        assert await asyncio.to_thread(program)
        assert await asyncio.to_thread(main, ["topic", "list", "--json"]) == 0
        assert "orders" in capsys.readouterr().out
        monkeypatch.setenv("NAMESRV_ADDR", NOBODY)
        async with Producer("p", mq.namesrv) as producer:
            assert (await producer.send(Message("orders", b"what is said holds"))).ok

    against_a_broker(test)


def test_without_a_word_it_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "  ")
    assert Producer("p")._options.name_servers == ("127.0.0.1:9876",)


def test_an_empty_text_is_a_mistake_and_not_the_default() -> None:
    with pytest.raises(ClientError, match="no name server in ''"):
        Producer("p", "")


# -- over HTTP


class Place:
    """An HTTP server that tells what it is told to."""

    def __init__(self) -> None:
        self.status, self.body, self.length = 200, b"", True
        self.asked: list[str] = []
        self.held = threading.Event()
        self.held.set()
        place = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place.asked.append(self.path)
                place.held.wait(PATIENCE_S)
                # Read once, the last that is set first: what is set meanwhile is told whole or not at all.
                length, body, status = place.length, place.body, place.status
                self.send_response(status)
                if length:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}{PATH}"

    async def asked_again(self) -> None:
        """Twice, so that what was answered to the first is known."""
        count = len(self.asked)
        await until(lambda: len(self.asked) >= count + 2)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place()
    yield made
    made.held.set()
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize("length", [True, False], ids=["with its length", "until the end"])
def test_a_client_asks_the_place_where_its_name_servers_are(place: Place, length: bool) -> None:
    async def test(mq: Embedded) -> None:
        place.body, place.length = f"{mq.namesrv};{NOBODY}\r\n".encode(), length
        async with Producer("p", place.url) as producer, Producer("q", place.url):
            assert (await producer.send(Message("orders", b"x"))).ok
            assert producer._client().name_servers.addresses == (mq.namesrv, NOBODY)
        assert place.asked == [PATH], "two members of a program, one client, one question"

    against_a_broker(test)


def test_so_do_its_traces(place: Place) -> None:
    async def test(mq: Embedded) -> None:
        place.body = mq.namesrv.encode()
        traces = Tracing("my_traces")
        async with Producer("p", place.url, middleware=[traces]) as producer:
            assert (await producer.send(Message("orders", b"x"))).ok
        assert (traces.written, traces.dropped) == (1, 0)
        assert place.asked == [PATH], "they share the client, too"

    against_a_broker(test)


def test_so_do_the_commands(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(mq: Embedded) -> None:
        place.body = mq.namesrv.encode()
        assert await asyncio.to_thread(main, ["send", "orders", "hello", "-n", place.url]) == 0
        monkeypatch.setenv("NAMESRV_ADDR", place.url)
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["nameServers"] == [mq.namesrv]
        place.status = 503
        assert await asyncio.to_thread(main, ["status"]) == 1
        assert f"the name servers could not be looked up at {place.url}: it answered 503" in capsys.readouterr().err

    against_a_broker(test)


def test_the_list_follows_what_the_place_tells(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "EVERY_S", 0.01)

    async def test(mq: Embedded) -> None:
        async with other_name(mq) as other:
            place.body = f"{NOBODY};{other}".encode()
            async with Producer("p", place.url) as producer:
                assert (await producer.send(Message("orders", b"x"))).ok
                servers = producer._client().name_servers
                assert servers.current == other
                place.body = f"{mq.namesrv};{other}".encode()
                await until(lambda: servers.addresses == (mq.namesrv, other))
                assert servers.current == other, "one that answers is kept to"
                place.body = mq.namesrv.encode()
                await until(lambda: servers.addresses == (mq.namesrv,))
                assert (await producer.send(Message("another", b"needs a route"))).ok

    against_a_broker(test)


@asynccontextmanager
async def other_name(mq: Embedded) -> AsyncIterator[str]:
    """The same name server under another address: a port that leads there."""

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = mq.namesrv.rpartition(":")
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        tasks = [asyncio.ensure_future(copy(reader, there_writer)), asyncio.ensure_future(copy(there_reader, writer))]
        await asyncio.wait(tasks)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"10.0.0.1:9876", "it answered 500 Internal Server Error; expected is 200"),
        (302, b"", "it answered 302 Found; expected is 200"),
        (200, b"", "tells no name servers but ''; expected is a line such as 10.0.0.1:9876;10.0.0.2:9876"),
        (200, b"no such page", "tells no name servers but 'no such page'"),
        (200, b"\xff\xfe:9876", "tells no name servers but "),
        (200, b"10.0.0.1:99999", "tells no name servers but '10.0.0.1:99999'"),
        (200, b"a" * 70_000, "the answer is longer than 65536 bytes"),
    ],
)
def test_what_makes_no_sense_leaves_the_list_as_it_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, status: int, body: bytes, says: str
) -> None:
    monkeypatch.setattr(lookup, "EVERY_S", 0.01)

    async def test(mq: Embedded) -> None:
        place.body = mq.namesrv.encode()
        async with Producer("p", place.url) as producer:
            await producer.send(Message("orders", b"x"))
            for length in (True, False):
                place.status, place.body, place.length = status, body, length
                caplog.clear()
                await place.asked_again()
                assert producer._client().name_servers.addresses == (mq.namesrv,)
                [line, *_] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
                assert says in line
                assert line.endswith(f"; {mq.namesrv} stay")

    against_a_broker(test)


def test_a_place_that_does_not_answer_in_time_is_asked_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(lookup, "AGAIN_S", 0.01)

    async def test(mq: Embedded) -> None:
        place.body = mq.namesrv.encode()
        place.held.clear()
        with pytest.raises(ConnectFailed, match=f"could not be looked up at {place.url}: no answer within 0.05 s"):
            await Producer("p", place.url, start_timeout_ms=300).start()
        waiting = asyncio.ensure_future(Producer("p", place.url).start())
        await place.asked_again()
        place.held.set()
        producer = await waiting
        assert (await producer.send(Message("orders", b"x"))).ok
        await producer.close()

    against_a_broker(test)


def test_a_client_may_start_before_the_place_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "AGAIN_S", 0.01)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    async def test(mq: Embedded) -> None:
        async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + mq.namesrv.encode())
            writer.close()

        async with Producer("p", f"http://127.0.0.1:{port}{PATH}", start_timeout_ms=0) as producer:
            sending = asyncio.ensure_future(producer.send(Message("orders", b"x")))
            await until(lambda: "could not be looked up" in producer._client().name_servers.trouble)
            async with await asyncio.start_server(tell, "127.0.0.1", port):
                assert (await sending).ok

    against_a_broker(test)


# -- what is what


@pytest.mark.parametrize(
    ("text", "is_place"),
    [
        ("http://host/rocketmq/nsaddr", True),
        ("https://host:8443/a?b=c", True),
        ("http://[::1]:80/a", True),
        ("http://host:9876", False),
        ("http://host:9876/", False),
        ("host:9876", False),
        ("http://host:99999/a", False),
        ("http://host/a b", False),
        ("http://host/a;10.0.0.1:9876", False),
        ("http:///a", False),
    ],
)
def test_a_place_has_a_path_and_an_address_has_none(text: str, is_place: bool) -> None:
    assert lookup_url(text) == (text if is_place else None)


@pytest.mark.parametrize("text", ["http://host/a;10.0.0.1:9876", "http://host/a b", "host/a", "10.0.0.1:9876,http://host/a"])
def test_a_place_stands_alone(text: str) -> None:
    with pytest.raises(ClientError, match='is not "host:port"; where an HTTP server tells them, give that alone: "http://host/path"'):
        Producer("p", text)
    assert parse_name_servers("http://host:9876/") == ("host:9876",)


def test_a_list_that_shrinks_while_a_question_is_under_way_is_asked_to_its_end() -> None:
    servers = NameServers(("a:1", "b:1", "c:1"), 2)
    steps = servers.ask(lambda: None)  # type: ignore[arg-type,return-value]
    assert next(steps)[0] == "c:1"
    servers.change(("a:1",))
    with pytest.raises(ConnectFailed, match="c:1: away"):
        steps.send(ConnectFailed("away"))
