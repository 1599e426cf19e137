"""TLS and plain on one port, over real sockets and on both event loops: who is let in, who is not, and what the others notice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import ssl
import subprocess
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import ClientError, ConnectFailed
from roquet.net import entrance
from roquet.net.blocking import BlockingCaller
from roquet.net.connection import ConnectionOptions, Tls
from roquet.net.tls import DISABLED, ENFORCING, PERMISSIVE, BadCertificate, ServerFiles, ServerTls, subject_of
from roquet.ports import Peer
from roquet.wire.command import Command, decode
from roquet.wire.frame import Frame, Framer
from tests.certificates import Certificate, authority, client_context, issued
from tests.net.tls_line import LOOPS, Echo, asked, closed, server_files, serving, until

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return LOOPS[request.param]


def trusting(who: Certificate | None = None) -> Tls:
    return Tls(authority().file, who.cert, who.key) if who is not None else Tls(authority().file)


# ---- who is let in


@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"), [(DISABLED, True, False), (PERMISSIVE, True, True), (ENFORCING, False, True)], ids=str
)
def test_the_mode_says_who_is_served(run: Run, mode: str, plain: bool, encrypted: bool) -> None:
    async def work() -> None:
        async with serving(mode) as place:
            for tls, served in ((None, plain), (trusting(), encrypted), (None, plain)):
                answer = await place.ask(tls=tls)
                assert answer == b"hello" if served else isinstance(answer, ConnectFailed), (tls, answer)

    run(work())


@pytest.mark.parametrize("mode", [DISABLED, PERMISSIVE, ENFORCING])
def test_a_blocking_client_is_served_alike(run: Run, mode: str) -> None:
    async def work() -> None:
        async with serving(mode) as place:
            for tls, served in ((None, mode != ENFORCING), (trusting(), mode != DISABLED)):
                caller = BlockingCaller(ConnectionOptions(tls=tls))
                call = asyncio.to_thread(caller.call, place.address, Command(11, {}, b"x" * 300_000), 60)
                if served:
                    assert (await call).body == b"x" * 300_000
                else:
                    with pytest.raises(ConnectFailed):
                        await call
                caller.close()

    run(work())


CLIENTS: dict[str, Callable[[], Certificate | None]] = {
    "none": lambda: None,
    "known": lambda: issued("/O=Example/OU=shop/CN=orders"),
    "stranger": lambda: issued("/CN=orders", "somebody else"),
}


@pytest.mark.parametrize(
    ("asks", "shows", "served", "subject"),
    [
        ("none", "none", True, ""), ("none", "known", True, ""), ("none", "stranger", True, ""),
        ("optional", "none", True, ""), ("optional", "known", True, "CN=orders,OU=shop,O=Example"), ("optional", "stranger", False, ""),
        ("require", "none", False, ""), ("require", "known", True, "CN=orders,OU=shop,O=Example"), ("require", "stranger", False, ""),
    ],
)  # fmt: skip
def test_clients_certificates_are_verified_and_their_subject_is_known(run: Run, asks: str, shows: str, served: bool, subject: str) -> None:
    async def work() -> None:
        async with serving(files=server_files(client_auth=asks)) as place:
            answer = await place.ask(tls=trusting(CLIENTS[shows]()))
            if served:
                assert answer == b"hello"
                assert [peer.certificate_subject for peer in place.core.peers] == [subject]
            else:
                assert isinstance(answer, ConnectFailed)
                assert not place.core.peers

    run(work())


def test_a_client_that_does_not_trust_the_server_says_so(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            answer = await place.ask(tls=Tls())
            assert isinstance(answer, ConnectFailed)
            assert f"no encrypted connection to {place.address}" in str(answer)
            assert "certificate" in str(answer)
            assert await place.ask(tls=Tls(verify=False)) == b"hello"

    run(work())


def test_a_certificate_for_another_address_is_refused_unless_that_is_not_asked_for(run: Run) -> None:
    other = authority().issue("/CN=server", alternative="DNS:elsewhere.example")

    async def work() -> None:
        async with serving(files=ServerFiles(other.cert, other.key)) as place:
            assert isinstance(await place.ask(tls=trusting()), ConnectFailed)
            assert await place.ask(tls=Tls(authority().file, check_host=False)) == b"hello"

    run(work())


def test_authorities_of_a_file_are_the_only_ones() -> None:
    assert len(Tls(authority().file).context().get_ca_certs()) == 1


@pytest.mark.parametrize(
    ("version", "served"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)]
)
def test_tls_1_2_and_1_3_are_spoken_and_nothing_older(run: Run, version: ssl.TLSVersion, served: bool) -> None:
    context = client_context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    if not served:
        context.set_ciphers("ALL:@SECLEVEL=0")  # else our own end would refuse

    async def work() -> None:
        async with serving() as place:
            opening = asyncio.open_connection("127.0.0.1", place.port, ssl=context, server_hostname="127.0.0.1")
            if served:
                _, writer = await opening
                assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".").replace("TLSv1.", "TLSv1.")
                writer.close()
            else:
                with pytest.raises((ssl.SSLError, ConnectionResetError)):
                    await opening
            await until(lambda: not len(place.server.entrance))

    run(work())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_nobody_may_begin_a_second_handshake_on_a_connection(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            talk = await asyncio.create_subprocess_exec(
                "openssl", "s_client", "-tls1_2", "-connect", place.address, "-CAfile", authority().file,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await asyncio.wait_for(talk.communicate(b"R\n"), 120)
            assert b"RENEGOTIATING" in said
            assert b"no renegotiation" in said
            assert await place.ask(tls=trusting()) == b"hello"

    run(work())


# ---- plain ones pay nothing


def test_a_plain_connection_has_nothing_between_it_and_its_socket(run: Run) -> None:
    async def work() -> None:
        async with serving(PERMISSIVE) as place, serving(DISABLED) as before:
            for one in (place, before):
                assert await one.ask() == b"hello"
            (connection,) = place.server.connections
            (as_before,) = before.server.connections
            assert type(connection._transport) is type(as_before._transport)
            assert connection._transport.get_protocol() is connection

    run(work())


# ---- bytes


def test_large_frames_go_both_ways(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            body = bytes(range(256)) * 50_000  # 12.8 MB
            assert await place.ask(body, tls=trusting()) == body

    run(work())


def test_many_requests_at_once_are_answered_in_order(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", place.port, ssl=client_context(), server_hostname="127.0.0.1"
            )  # fmt: skip
            for number in range(2_000):
                writer.write(Command(11, {}, b"%d" % number, opaque=number).encode())
            framer, found = Framer(), list[int]()
            while len(found) < 2_000:
                data = await reader.read(65_536)
                assert data
                found += [decode(frame).opaque for frame in framer.feed(data)]
            assert found == list(range(2_000))
            writer.close()

    run(work())


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_what_comes_in_pieces_of_any_size_is_put_together(run: Run, size: int) -> None:
    """The bytes on the wire are cut everywhere: in the hello, in the handshake, in records."""

    async def work() -> None:
        async with serving() as place:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            line = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")

            async def send() -> None:
                data = outgoing.read()
                for at in range(0, len(data), size):
                    writer.write(data[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)

            while True:
                try:
                    line.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await send()
                    incoming.write(await reader.read(65_536))
            line.write(Command(11, {}, b"y" * 3_000, opaque=5).encode())
            await send()
            framer, found = Framer(), list[Frame]()
            while not found:
                incoming.write(await reader.read(65_536))
                try:
                    found = framer.feed(line.read(65_536))
                except ssl.SSLWantReadError:
                    continue
            assert decode(found[0]).body == b"y" * 3_000
            writer.close()

    run(work())


def test_a_peer_that_reads_no_answers_is_not_read_from_and_then_closed(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """As over plain connections: what is encrypted and waits counts."""

    async def work() -> None:
        async with serving() as place:
            raw = socket.create_connection(("127.0.0.1", place.port))
            line = await asyncio.to_thread(client_context().wrap_socket, raw, server_hostname="127.0.0.1")
            await asyncio.to_thread(line.sendall, Command(11, {}, b"first").encode())
            await until(lambda: bool(place.core.peers))
            (peer,) = place.core.peers
            for _ in range(80):
                peer.send(bytes(1 << 20))
            await until(lambda: peer.closed)
            line.close()

    run(work())
    assert "it does not read its answers" in caplog.text


# ---- ends


def test_a_goodbye_ends_the_connection_and_the_core_hears_of_it_once(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            assert await place.ask(tls=trusting()) == b"hello"
            await place.callers[0].close()
            await until(lambda: bool(place.core.gone))
            assert place.core.gone == place.core.peers
            assert not place.server.connections

    run(work())


def test_what_came_before_a_goodbye_is_answered_however_long_its_peer_takes_to_read(run: Run) -> None:
    class OneATurn(Echo):
        def receive(self, peer: Peer, frames: list[Frame], until_ms: int) -> list[Frame] | None:
            if not peer.unread:
                super().receive(peer, frames[:1], until_ms)
                peer.send(Command(1, {}, bytes(3 << 20), opaque=-1).encode())
                frames = frames[1:]
            return frames or None

    def asked_and_left(port: int) -> list[int]:
        """Requests and the goodbye in one piece; then all that comes."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        line = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)) as raw:
            shaken, framer, found = False, Framer(), list[int]()
            while not shaken:
                try:
                    line.do_handshake()
                    shaken = True
                except ssl.SSLWantReadError:
                    raw.sendall(outgoing.read())
                    incoming.write(raw.recv(65_536))
            line.write(b"".join(Command(11, {}, b"x", opaque=number).encode() for number in range(10)))
            with contextlib.suppress(ssl.SSLWantReadError):
                line.unwrap()
            raw.sendall(outgoing.read())
            while data := raw.recv(65_536):
                incoming.write(data)
                with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                    while piece := line.read(65_536):
                        found += [decode(frame).opaque for frame in framer.feed(piece)]
            return [opaque for opaque in found if opaque >= 0]

    async def work() -> None:
        async with serving() as place:
            place.server.core = OneATurn()
            assert await asyncio.to_thread(asked_and_left, place.port) == list(range(10))

    run(work())


@pytest.mark.parametrize("after", ["hello", "half a hello", "handshake", "half a request"])
def test_a_peer_that_ends_in_the_middle_is_forgotten(run: Run, after: str) -> None:
    async def work() -> None:
        async with serving() as place:
            raw = socket.create_connection(("127.0.0.1", place.port))
            if after in ("handshake", "half a request"):
                line = await asyncio.to_thread(client_context().wrap_socket, raw, server_hostname="127.0.0.1")
                if after == "half a request":
                    await asyncio.to_thread(line.sendall, Command(11, {}, bytes(1_000)).encode()[:500])
                await until(lambda: len(place.server.connections) == 1)
                line.close()
            else:
                hello = client_hello()
                raw.sendall(hello if after == "hello" else hello[:20])
                await until(lambda: len(place.server.entrance.shaking) == 1)
            raw.close()
            await until(lambda: not place.server.connections and not len(place.server.entrance))
            assert not place.core.peers
            assert await place.ask(tls=trusting()) == b"hello"

    run(work())


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    line = client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        line.do_handshake()
    return outgoing.read()


def test_a_server_that_stops_says_goodbye_to_tls_clients(run: Run) -> None:
    async def work() -> None:
        async with serving() as place:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port, ssl=client_context(), server_hostname="127.0.0.1")
            writer.write(Command(11, {}, b"x").encode())
            assert await reader.read(65_536)
            silent = await asyncio.open_connection("127.0.0.1", place.port)
            await place.server.close()
            assert await closed(reader) == b""
            assert await closed(silent[0]) == b""
            writer.close()
            silent[1].close()

    run(work())


# ---- strangers


def test_plaintext_to_an_enforcing_port_is_closed_with_one_line(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving() as place:
            for _ in range(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
                writer.write(Command(11, {}, b"in the clear").encode())
                assert await closed(reader) == b""
                writer.close()
            assert not place.core.peers
            assert await place.ask(tls=trusting()) == b"hello"

    with caplog.at_level(logging.INFO):
        run(work())
    assert caplog.text.count("does not speak TLS") == 1


def test_log_lines_that_were_left_out_are_counted(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    complaints = entrance.Complaints()
    for _ in range(5):
        complaints.say("x %s closed", "10.0.0.1:1")
    now += entrance.COMPLAINT_S
    complaints.say("x %s closed", "10.0.0.2:2")
    assert [record.getMessage() for record in caplog.records] == [
        "x 10.0.0.1:1 closed", "x 10.0.0.2:2 closed (and 4 more like this before)",
    ]  # fmt: skip


@pytest.mark.parametrize("junk", [b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", b"\x16" + bytes(300), b"\x16" * 200_000], ids=len)
def test_rubbish_that_begins_like_tls_reaches_nobody(run: Run, junk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKE_S", 0.5)

    async def work() -> None:
        async with serving(PERMISSIVE) as place:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(junk)
            await closed(reader)
            writer.close()
            await until(lambda: not len(place.server.entrance))
            assert not place.core.peers
            assert await place.ask() == b"hello"

    run(work())


def test_half_open_handshakes_by_the_hundred_do_not_keep_honest_clients_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    hello = client_hello()

    async def work() -> None:
        async with serving(PERMISSIVE) as place, contextlib.AsyncExitStack() as stack:
            lines = [stack.enter_context(socket.socket()) for _ in range(600)]
            for number, line in enumerate(lines):
                line.setblocking(False)
                await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", place.port))
                line.send(hello if number % 2 else hello[:50])
                if number % 100 == 0:
                    assert await place.ask(tls=trusting()) == b"hello"
                    assert await place.ask() == b"hello"
            assert await place.ask(tls=trusting()) == b"hello"
            assert await place.ask() == b"hello"
            assert entrance.HANDSHAKES_MAX - 2 <= len(place.server.entrance.shaking) <= entrance.HANDSHAKES_MAX
            for line in lines:
                line.close()
            await until(lambda: not len(place.server.entrance))

    run(work())
    assert caplog.text.count("is given up") == 1


def test_a_handshake_that_does_not_end_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKE_S", 0.3)

    async def work() -> None:
        async with serving() as place:
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(client_hello()[:30])
            await closed(reader)
            assert not len(place.server.entrance)
            writer.close()

    run(work())
    assert "did not end within" in caplog.text


def test_when_there_are_too_many_handshakes_the_address_with_most_loses_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrance, "HANDSHAKES_MAX", 5)
    hello = client_hello()

    async def open_from(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pair = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        pair[1].write(hello[:40])
        return pair

    async def work() -> None:
        async with serving() as place:
            honest = await open_from("127.0.0.2", place.port)
            await until(lambda: len(place.server.entrance.shaking) == 1)
            flood = [await open_from("127.0.0.1", place.port) for _ in range(20)]
            await until(lambda: len(place.server.entrance.shaking) == 5)
            assert await closed(flood[0][0]) == b""
            honest[1].write(hello[40:])
            assert await asyncio.wait_for(honest[0].read(1), 60)  # the server goes on with it
            for _, writer in (honest, *flood):
                writer.close()

    run(work())


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"], ids=["silent", "half a hello"])
def test_where_room_is_made_for_those_who_are_known_newcomers_make_room_first(run: Run, said: bytes) -> None:
    """As at the port of a group's members, which has few connections."""

    async def work() -> None:
        async with serving(connections_max=8) as place:
            place.server.is_spare = lambda peer: False
            assert await place.ask(tls=trusting()) == b"hello"
            strangers = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(12)]
            for _, writer in strangers:
                writer.write(said)
            await until(lambda: len(place.server.entrance) == 7)
            assert await place.ask(tls=trusting()) == b"hello"
            assert await asked(place.callers[0], place.address, b"still here") == b"still here"
            for _, writer in strangers:
                writer.close()

    run(work())


def test_who_says_nothing_counts_as_a_connection_and_is_closed_in_the_end(run: Run) -> None:
    async def work() -> None:
        async with serving(PERMISSIVE, idle_s=1, connections_max=3) as place:
            silent = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(3)]
            await until(lambda: len(place.server.entrance) == 3)
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            assert await closed(reader) == b""
            assert len(place.server.entrance) <= 3
            for one, other in silent:
                assert await closed(one) == b""
                other.close()
            writer.close()
            assert await place.ask() == b"hello"

    run(work())


# ---- certificates


def copied(certificate: Certificate, place: Path) -> ServerFiles:
    shutil.copy(certificate.cert, place / "server.pem")
    shutil.copy(certificate.key, place / "server.key")
    return ServerFiles(str(place / "server.pem"), str(place / "server.key"))


async def shown_by(port: int) -> bytes:
    context = client_context()
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def test_a_new_certificate_is_shown_without_a_restart_and_a_broken_one_is_not(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = issued("/CN=first"), issued("/CN=second")

    async def work() -> None:
        async with serving(files=copied(first, tmp_path)) as place:
            watching = asyncio.create_task(place.tls.keep_fresh(0.02))
            assert await place.ask(tls=trusting()) == b"hello"
            before = await shown_by(place.port)
            copied(second, tmp_path)
            await until(lambda: "a new certificate is in force" in caplog.text)
            after = await shown_by(place.port)
            assert after != before
            assert await asked(place.callers[0], place.address, b"the old connection") == b"the old connection"
            (tmp_path / "server.pem").write_text("nothing that is a certificate")
            await until(lambda: "a new certificate is refused, and the old one stays in force" in caplog.text)
            assert await shown_by(place.port) == after
            watching.cancel()

    with caplog.at_level(logging.INFO):
        run(work())
    assert caplog.text.count("is refused") == 1
    assert "server.pem" in caplog.text


def test_files_that_are_being_written_are_left_alone_until_they_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = issued("/CN=first"), issued("/CN=second")
    tls = ServerTls(ENFORCING, copied(first, tmp_path))
    shutil.copy(second.cert, tmp_path / "server.pem")  # and its key is not there yet
    tls.look()
    shutil.copy(second.key, tmp_path / "server.key")
    tls.look()
    tls.look()
    tls.look()
    assert "refused" not in caplog.text


def test_a_client_takes_new_files_for_its_next_connection(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = copied(issued("/CN=first"), tmp_path)

    async def work() -> None:
        async with serving(files=server_files(client_auth="require")) as place:
            assert await place.ask(tls=Tls(authority().file, files.cert_file, files.key_file)) == b"hello"
            copied(issued("/CN=second"), tmp_path)
            caller = place.callers[0]
            caller.hang_up(place.address)
            assert await asked(caller, place.address, b"again") == b"again"
            (tmp_path / "server.key").write_text("")
            caller.hang_up(place.address)
            assert await asked(caller, place.address, b"third") == b"third"
            assert [peer.certificate_subject for peer in place.core.peers] == ["CN=first", "CN=second", "CN=second"]

    run(work())
    assert "those before stay in force" in caplog.text


def test_the_self_signed_certificate_serves_and_can_even_be_verified(run: Run) -> None:
    async def work() -> None:
        async with serving(files=ServerFiles()) as place:
            assert await place.ask(tls=Tls(verify=False)) == b"hello"
            assert isinstance(await place.ask(tls=Tls()), ConnectFailed)

    run(work())


def test_the_self_signed_certificate_is_a_sound_one(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    from roquet.net.self_signed import self_signed

    file = tmp_path / "own.pem"
    file.write_text(self_signed("Ünsigned", datetime.now(UTC)))
    context = ssl.create_default_context(cafile=str(file))
    # OpenSSL checks its signature with its own key, in a handshake in memory.
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(file)
    context.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = context.wrap_bio(back, there), server_side.wrap_bio(there, back, server_side=True)
    for one in (client, server, client, server):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert subject_of(client.getpeercert()) == "CN=Ünsigned"


def test_files_that_cannot_be_used_are_refused_with_a_sentence(tmp_path: Path) -> None:
    good, other = issued(), issued("/CN=other")
    (tmp_path / "empty.pem").write_text("")
    for files, said in (
        (ServerFiles(str(tmp_path / "nowhere.pem"), good.key), "nowhere.pem' cannot be read: No such file"),
        (ServerFiles(good.cert, str(tmp_path / "nowhere.key")), "nowhere.key' cannot be read"),
        (ServerFiles(good.cert, other.key), "cannot be used: .*; give PEM files that belong together"),
        (ServerFiles(str(tmp_path / "empty.pem"), good.key), "cannot be used"),
        (
            ServerFiles(good.cert, good.key, trust_file=str(tmp_path / "empty.pem"), client_auth="require"),
            "authorities in .* cannot be used",
        ),
    ):
        with pytest.raises(BadCertificate, match=said):
            ServerTls(ENFORCING, files)


def test_a_key_with_a_password_is_opened_with_it_and_nobody_is_asked_at_the_terminal() -> None:
    locked = authority().issue(password="open sesame")
    ServerTls(ENFORCING, ServerFiles(locked.cert, locked.key, "open sesame"))
    Tls(None, locked.cert, locked.key, key_password="open sesame").context()
    with pytest.raises(BadCertificate, match="has a password and none was given"):
        ServerTls(ENFORCING, ServerFiles(locked.cert, locked.key))
    with pytest.raises(BadCertificate, match="cannot be used") as wrong:
        ServerTls(ENFORCING, ServerFiles(locked.cert, locked.key, "guessed"))
    assert "guessed" not in str(wrong.value)
    with pytest.raises(ClientError, match="has a password and none was given"):
        Tls(None, locked.cert, locked.key).context()
    for kept in (ServerFiles(locked.cert, locked.key, "open sesame"), Tls(None, locked.cert, key_password="open sesame")):
        assert "sesame" not in repr(kept)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([("commonName", "orders")], "CN=orders"),
        ([("countryName", "DE"), ("organizationName", "Example"), ("commonName", "orders")], "CN=orders,O=Example,C=DE"),
        ([("commonName", "admin,O=Example")], "CN=admin\\,O\\=Example"),
        ([("commonName", " #a+b\n")], "CN=\\ #a\\+b\\0A"),
        ([("commonName", "# ")], "CN=\\#\\ "),
        ([("emailAddress", "a@b")], "emailAddress=a@b"),
        ([], ""),
    ],
)
def test_nobody_s_name_can_look_like_another_s(names: list[tuple[str, str]], text: str) -> None:
    assert subject_of({"subject": tuple((one,) for one in names)}) == text


@pytest.mark.parametrize("certificate", [None, {}])
def test_who_shows_no_certificate_has_no_subject(certificate: object) -> None:
    assert subject_of(certificate) == ""
