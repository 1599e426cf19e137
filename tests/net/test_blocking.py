"""Blocking calls: answers find their requests, limits hold, and a lost connection is opened anew."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from roquet.errors import CallTimeout, ClientError, ConnectFailed, Rejected
from roquet.net.blocking import SMALL, BlockingCaller, Room
from roquet.net.connection import ConnectionOptions, Tls
from roquet.wire.command import Command, decode
from roquet.wire.frame import Framer
from roquet.wire.signing import Credentials, sign

Write = Callable[[bytes], None]
Serve = Callable[[list[Command], Write], bool]
"""(requests that arrived together, write) -> go on with this connection?"""


class FakeServer:
    """Accepts connections and lets the test answer."""

    def __init__(self, serve: Serve, context: ssl.SSLContext | None = None) -> None:
        self.serve = serve
        self.context = context
        self.connections = 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self.listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._talk, args=(line,), daemon=True).start()

    def _talk(self, line: socket.socket) -> None:
        framer = Framer()
        try:
            if self.context is not None:
                line = self.context.wrap_socket(line, server_side=True)
            while data := line.recv(65_536):
                requests = [decode(frame) for frame in framer.feed(data)]
                if requests and not self.serve(requests, line.sendall):
                    break
        except OSError:
            pass
        finally:
            line.close()


@pytest.fixture
def start() -> Iterator[Callable[..., FakeServer]]:
    made: list[FakeServer] = []

    def begin(serve: Serve, context: ssl.SSLContext | None = None) -> FakeServer:
        made.append(FakeServer(serve, context))
        return made[-1]

    yield begin
    for server in made:
        server.listening.close()


def echo(requests: list[Command], write: Write) -> bool:
    for request in requests:
        write(request.reply(0, None, request.fields, request.body).encode())
    return True


def test_a_call_gets_its_answer(start: Callable[..., FakeServer]) -> None:
    server, caller = start(echo), BlockingCaller()
    answer = caller.call(server.address, Command(11, {"a": "b"}, b"body"), 5)
    assert (answer.code, answer.fields, answer.body) == (0, {"a": "b"}, b"body")
    caller.call(server.address, Command(11), 5)
    assert server.connections == 1
    caller.close()


def test_a_large_body_arrives_whole(start: Callable[..., FakeServer]) -> None:
    body = bytes(range(256)) * 20_000
    caller = BlockingCaller()
    assert caller.call(start(echo).address, Command(11, {}, body), 10).body == body
    caller.close()


@pytest.mark.parametrize("credentials", [None, Credentials("key", "secret")])
@pytest.mark.parametrize("size", [1, 100, 5_000_000])
def test_a_body_that_is_sent_from_where_it_lies_arrives_as_one_that_the_command_has(
    start: Callable[..., FakeServer], size: int, credentials: Credentials | None
) -> None:
    body = (bytes(range(256)) * 20_000)[:size]
    server, caller = start(echo), BlockingCaller(ConnectionOptions(credentials=credentials))
    beside = caller.wait(caller.start(server.address, Command(11, {"a": "b"}), 10, memoryview(body)))
    inside = caller.call(server.address, Command(11, {"a": "b"}, body), 10)
    assert (beside.body, beside.fields) == (body, inside.fields)
    caller.close()


def test_large_bodies_go_one_behind_the_other_into_the_room_as_long_as_they_fit(start: Callable[..., FakeServer]) -> None:
    server, caller, room = start(echo), BlockingCaller(), Room(memoryview(bytearray(110_000)))
    bodies = [bytes([n]) * 50_000 for n in range(1, 4)]
    calls = [caller.start(server.address, Command(11, {}, body), 10) for body in bodies]
    answers = [caller.wait(call, room) for call in calls]
    assert [answer.body for answer in answers] == [b"", b"", bodies[2]]
    assert bytes(room.data[: room.used]) == bodies[0] + bodies[1]
    assert bytes(room.data[room.used :]) == bytes(10_000)
    caller.close()


def test_a_small_body_and_one_of_another_call_do_not_go_into_the_room(start: Callable[..., FakeServer]) -> None:
    server, caller, room = start(echo), BlockingCaller(), Room(memoryview(bytearray(200_000)))
    other = caller.start(server.address, Command(11, {}, b"o" * 50_000), 10)
    small = caller.start(server.address, Command(11, {}, b"s" * (SMALL - 1_000)), 10)
    assert caller.wait(small, room).body == b"s" * (SMALL - 1_000)
    assert caller.wait(other, room).body == b"o" * 50_000
    assert room.used == 0
    caller.close()


@pytest.mark.parametrize("reason", ["nothing in time", "closed it"])
def test_a_body_that_stops_in_its_middle_leaves_the_room_as_it_was(start: Callable[..., FakeServer], reason: str) -> None:
    def torn(requests: list[Command], write: Write) -> bool:
        write(requests[0].reply(0, None, {}, b"x" * 50_000).encode()[:-1])
        return reason == "nothing in time"

    server, caller, room = start(torn), BlockingCaller(), Room(memoryview(bytearray(100_000)))
    with pytest.raises(ClientError, match=reason):
        caller.wait(caller.start(server.address, Command(11), 0.05 if reason == "nothing in time" else 10), room)
    assert room.used == 0
    caller.close()


def test_answers_find_their_requests_in_any_order(start: Callable[..., FakeServer]) -> None:
    held: list[Command] = []

    def backwards(requests: list[Command], write: Write) -> bool:
        held.extend(requests)
        if len(held) == 3:
            echo(held[::-1], write)
        return True

    server, caller = start(backwards), BlockingCaller()
    calls = [caller.start(server.address, Command(11, {}, b"%d" % n), 5) for n in range(3)]
    assert [caller.wait(calls[n]).body for n in (1, 0, 2)] == [b"1", b"0", b"2"]
    caller.close()


def test_an_answer_that_nobody_wants_any_more_is_thrown_away(start: Callable[..., FakeServer]) -> None:
    server, caller = start(echo), BlockingCaller()
    caller.forget(caller.start(server.address, Command(11, {}, b"old"), 5))
    assert caller.call(server.address, Command(11, {}, b"new"), 5).body == b"new"
    assert not caller._lines[server.address].arrived
    caller.close()


def test_many_calls_are_answered_in_order_and_failures_stand_in_their_places(start: Callable[..., FakeServer]) -> None:
    server, caller = start(echo), BlockingCaller()
    free = socket.create_server(("127.0.0.1", 0))
    nobody = f"127.0.0.1:{free.getsockname()[1]}"
    free.close()
    requests = [(server.address if n % 3 else nobody, Command(11, {}, b"%d" % n)) for n in range(500)]
    for n, result in enumerate(caller.call_all(requests, 5)):
        if n % 3:
            assert isinstance(result, Command)
            assert result.body == b"%d" % n
        else:
            assert isinstance(result, ConnectFailed)
    caller.close()


def test_an_error_code_is_an_answer_to_call_and_an_exception_to_ask(start: Callable[..., FakeServer]) -> None:
    def refuse(requests: list[Command], write: Write) -> bool:
        for request in requests:
            write(request.reply(17, "no such topic").encode())
        return True

    server, caller = start(refuse), BlockingCaller()
    assert caller.call(server.address, Command(11), 5).code == 17
    with pytest.raises(Rejected, match="answered code 17: no such topic"):
        caller.ask(server.address, Command(11), 5)
    caller.close()


def test_a_call_that_is_too_slow_leaves_the_connection_in_use(start: Callable[..., FakeServer]) -> None:
    held: list[Command] = []

    def late(requests: list[Command], write: Write) -> bool:
        held.extend(requests)
        if len(held) == 2:
            echo(held, write)
        return True

    server, caller = start(late), BlockingCaller()
    with pytest.raises(CallTimeout, match="no answer from"):
        caller.call(server.address, Command(11, {}, b"slow"), 0.05)
    assert caller.call(server.address, Command(11, {}, b"quick"), 5).body == b"quick"
    assert server.connections == 1
    caller.close()


def test_an_answer_that_stops_in_its_middle_ends_the_connection(start: Callable[..., FakeServer]) -> None:
    left_out = iter([1, 0])

    def torn(requests: list[Command], write: Write) -> bool:
        frame = requests[0].reply(0, None, {}, b"x" * 100).encode()
        write(frame[: len(frame) - next(left_out)])
        return True

    server, caller = start(torn), BlockingCaller()
    with pytest.raises(CallTimeout, match="part of an answer"):
        caller.call(server.address, Command(11), 0.05)
    assert caller.call(server.address, Command(11), 5).body == b"x" * 100
    assert server.connections == 2
    caller.close()


def test_a_lost_connection_fails_all_calls_on_it_and_is_opened_anew(start: Callable[..., FakeServer]) -> None:
    def hang_up(requests: list[Command], write: Write) -> bool:
        return requests[0].body == b"stay" and echo(requests, write)

    server, caller = start(hang_up), BlockingCaller()
    calls = [caller.start(server.address, Command(11, {}, b"go"), 5) for _ in range(2)]
    for call in calls:
        with pytest.raises(ConnectFailed, match="was lost"):
            caller.wait(call)
    assert caller.call(server.address, Command(11, {}, b"stay"), 5).code == 0
    assert server.connections == 2
    caller.close()


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "frame length 1213486160, allowed are 4 to 1000000"),
        ((1_000_001).to_bytes(4, "big") + bytes(4), "frame length 1000001, allowed are 4 to 1000000"),
        ((8).to_bytes(4, "big") + (5).to_bytes(4, "big") + bytes(4), "bad header length 5"),
        ((8).to_bytes(4, "big") + (4).to_bytes(4, "big") + b"rubb", "header is not JSON"),
    ],
)
def test_bytes_that_are_not_the_protocol_end_the_connection(start: Callable[..., FakeServer], sent: bytes, reason: str) -> None:
    def rubbish(requests: list[Command], write: Write) -> bool:
        write(sent)
        return True

    server, caller = start(rubbish), BlockingCaller(frame_size_max=1_000_000)
    with pytest.raises(ConnectFailed, match=reason):
        caller.call(server.address, Command(11), 5)
    caller.close()


def test_nobody_listening_is_said_with_the_address() -> None:
    for address in ("127.0.0.1:1", "nonsense", "127.0.0.1:99999"):
        with pytest.raises(ConnectFailed, match=f"cannot connect to {address}"):
            BlockingCaller().call(address, Command(11), 1)


def test_a_port_that_there_cannot_be_is_not_taken_for_another(start: Callable[..., FakeServer]) -> None:
    """65536 more is the same port to the C library."""
    server = start(lambda requests, write: True)
    host, port = server.address.split(":")
    with pytest.raises(ConnectFailed, match=r"is not a port from 1 to 65535"):
        BlockingCaller().call(f"{host}:{int(port) + 65536}", Command(11), 1)


def test_requests_are_signed(start: Callable[..., FakeServer]) -> None:
    credentials = Credentials("who", "secret")
    caller = BlockingCaller(ConnectionOptions(credentials=credentials))
    answer = caller.call(start(echo).address, Command(11, {"topic": "T"}, b"body"), 5)
    expected = Command(11, {"topic": "T"}, b"body")
    sign(expected, credentials)
    assert answer.fields == expected.fields
    caller.close()


# ---- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's certificate that vouches for itself, with its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the program openssl")
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", "/CN=roquet test", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(place / "key.pem"), "-out", str(place / "certificate.pem"),
        ],
        check=True, capture_output=True, timeout=900,
    )  # fmt: skip
    both = place / "both.pem"
    both.write_text((place / "certificate.pem").read_text() + (place / "key.pem").read_text())
    return both


def server_context(certificate: Path, *, asks_who: bool = False) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate)
    if asks_who:
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(certificate)
    return made


def test_an_encrypted_body_goes_into_the_room_too(start: Callable[..., FakeServer], certificate: Path) -> None:
    server, room = start(echo, server_context(certificate)), Room(memoryview(bytearray(300_000)))
    caller = BlockingCaller(ConnectionOptions(tls=Tls(ca_file=str(certificate))))
    assert caller.wait(caller.start(server.address, Command(11, {}, b"x" * 300_000), 10), room).body == b""
    assert bytes(room.data) == b"x" * 300_000
    caller.close()


def test_a_certificate_that_is_known_is_trusted(start: Callable[..., FakeServer], certificate: Path) -> None:
    server, caller = start(echo, server_context(certificate)), BlockingCaller(ConnectionOptions(tls=Tls(ca_file=str(certificate))))
    body = bytes(300_000)
    assert caller.call(server.address, Command(11, {}, body), 10).body == body
    caller.close()


def test_a_certificate_that_is_not_known_is_refused_unless_told_otherwise(start: Callable[..., FakeServer], certificate: Path) -> None:
    server = start(echo, server_context(certificate))
    with pytest.raises(ConnectFailed, match=r"no encrypted connection to .*certificate"):
        BlockingCaller(ConnectionOptions(tls=Tls())).call(server.address, Command(11), 5)
    caller = BlockingCaller(ConnectionOptions(tls=Tls(verify=False)))
    assert caller.call(server.address, Command(11), 5).code == 0
    caller.close()


def test_a_server_that_asks_who_we_are_is_told(start: Callable[..., FakeServer], certificate: Path) -> None:
    server = start(echo, server_context(certificate, asks_who=True))
    caller = BlockingCaller(ConnectionOptions(tls=Tls(ca_file=str(certificate), cert_file=str(certificate))))
    assert caller.call(server.address, Command(11), 5).code == 0
    caller.close()
    with pytest.raises(ConnectFailed):
        BlockingCaller(ConnectionOptions(tls=Tls(ca_file=str(certificate)))).call(server.address, Command(11), 5)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"authorities in .*nowhere.pem"):
        BlockingCaller(ConnectionOptions(tls=Tls(ca_file=str(tmp_path / "nowhere.pem"))))
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(ClientError, match=r"certificate and key in .*empty.pem"):
        BlockingCaller(ConnectionOptions(tls=Tls(cert_file=str(tmp_path / "empty.pem"))))
