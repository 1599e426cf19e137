"""One of the two clusters a script is played to: raw connections, and what was seen at each step."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from differential.normal import Names, seen_answer, seen_push
from roquet.errors import Broken
from roquet.wire.command import RESPONSE, Command, decode
from roquet.wire.frame import Framer
from roquet.wire.record import Record, decode_records

PATIENCE_S = 60.0
"""For what must come; a machine may be busy with other things."""
SILENCE_S = 0.5
"""For an answer that is not expected to come, after one that was asked for later has come."""
PROBE = 106
"""A request that a name server answers, and that a broker answers with the code for requests it does not know."""
SLOW_S = 3.0
"""A group of steps that takes longer is named with its time."""


class Closed(Exception):
    """The server closed the connection."""


class Silent(Exception):
    """Nothing came in time."""


class Line:
    """One connection to a server. Answers and requests of the server are kept apart, each in the order they came."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self._server = address
        self._answers: dict[int, Command] = {}
        self._pushes: list[Command] = []
        self._opaque = 0
        self.open()

    def open(self) -> None:
        host, port = self._server.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.address = "{}:{}".format(*self.socket.getsockname()[:2])
        self._framer = Framer(limit=64 * 1024 * 1024)

    def send(self, command: Command) -> int:
        """Send a request as it is but for its number, which is returned."""
        self._opaque += 1
        command.opaque = self._opaque
        self.send_bytes(command.encode())
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Closed(str(error)) from None

    def answer(
        self, push: Command, code: int = 0, fields: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        """Answer a request of the server."""
        reply = Command(
            code, fields or {}, body, opaque=push.opaque, flag=RESPONSE, remark=remark, version=push.version, binary=push.binary
        )
        self.send_bytes(reply.encode())

    def wait_answer(self, opaque: int, patience_s: float) -> Command:
        self._read_until(lambda: opaque in self._answers, patience_s)
        return self._answers.pop(opaque)

    def wait_push(self, code: int, patience_s: float) -> Command:
        def has_come() -> bool:
            return any(push.code == code for push in self._pushes)

        self._read_until(has_come, patience_s)
        index = next(index for index, push in enumerate(self._pushes) if push.code == code)
        return self._pushes.pop(index)

    def forget_pushes(self) -> None:
        self._pushes.clear()

    def _read_until(self, done: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise Silent
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 20)
            except TimeoutError:
                raise Silent from None
            except OSError as error:
                raise Closed(str(error)) from None
            if not data:
                raise Closed
            try:
                commands = [decode(frame) for frame in self._framer.feed(data)]
            except Broken as error:
                raise Closed(f"what it sent is no frame: {error}") from None
            for command in commands:
                if command.is_response:
                    self._answers[command.opaque] = command
                else:
                    self._pushes.append(command)

    def close(self) -> None:
        self.socket.close()


@dataclass
class Answer:
    """What a later step may need of an answer: a field, or the command itself."""

    command: Command | None

    @property
    def code(self) -> int:
        return -1 if self.command is None else self.command.code

    @property
    def body(self) -> bytes:
        return b"" if self.command is None else self.command.body

    def field(self, name: str) -> str:
        return "" if self.command is None else self.command.fields.get(name, "")

    def number(self, name: str) -> int:
        text = self.field(name)
        return int(text) if text.lstrip("-").isdigit() else -1

    @property
    def physical_offset(self) -> int:
        """Out of the offset id of a send's answer; -1 without one."""
        text = self.field("msgId").split(",")[0]
        return int(text[16:], 16) if len(text) == 32 else -1


@dataclass
class Seen:
    """What was seen at one step: a value of plain types, times and ids taken out."""

    step: str
    value: Any


@dataclass
class Side:
    """Plays steps to one cluster and keeps what it saw, by group."""

    namesrv_address: str
    broker_address: str
    seen: dict[str, list[Seen]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """What the servers logged, by their names; known at the end."""
    _group: str = ""
    _lines: dict[str, Line] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _in_vain: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.broker_address, self.namesrv_address)
        self.broker = self.line("tool")
        self.namesrv = self.line("tool at the name server", self.namesrv_address)

    def line(self, name: str, address: str = "") -> Line:
        """A connection of its own to the broker, by a name that also stands for its address in what was seen."""
        known = self._lines.get(name)
        if known is None:
            known = self._lines[name] = Line(name, address or self.broker_address)
            self.names.add(known.address, f"<{name}>")
        return known

    def close_line(self, name: str) -> None:
        self._lines.pop(name).close()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        self._group = name
        self.seen[name] = []
        begin = time.monotonic()
        try:
            yield
        except Exception as error:  # the groups that follow are played all the same
            self._keep("the rest of the steps", f"not played: {type(error).__name__} {error}".strip())
        finally:
            self._seconds[name] = time.monotonic() - begin

    def slow(self) -> list[str]:
        """Groups that took long, and those that waited for something until the patience was at its end."""
        vain = {group: f", {times} waits in vain" for group, times in self._in_vain.items()}
        return [
            f"{group} took {seconds:.1f} s{vain.get(group, '')}"
            for group, seconds in self._seconds.items()
            if seconds > SLOW_S or group in vain
        ]

    def _waited_in_vain(self) -> None:
        self._in_vain[self._group] = self._in_vain.get(self._group, 0) + 1

    def _keep(self, step: str, value: Any) -> None:
        seen = self.seen[self._group]
        assert all(one.step != step for one in seen), f"two steps are called {self._group}: {step}"
        seen.append(Seen(step, value))

    # ---- steps

    def ask(self, step: str, request: Command, on: Line | None = None, *, silent: bool = False, **how: Any) -> Answer:
        """Send a request and see its answer, its silence, or that the connection is closed. `how`: see normal.seen_answer.

        `silent`: one of the two servers at least is expected to answer nothing.
        """
        line = on or self.broker
        number = self._number(line, request)
        if silent and number:
            return self._perhaps(step, line, number, request, **how)
        return self.finish(step, line, number, request, **how)

    def _perhaps(self, step: str, line: Line, number: int, request: Command, **how: Any) -> Answer:
        """An answer that may never come would have come before that to a later request, or soon after it."""
        with contextlib.suppress(Closed):  # which finish finds out as well
            line.wait_answer(line.send(Command(PROBE, version=request.version)), PATIENCE_S)
        return self.finish(step, line, number, request, patience_s=SILENCE_S, **how)

    def quietly(self, request: Command, on: Line | None = None) -> Answer:
        """Ask without looking at the answer: preparation, or what another step looks at."""
        line = on or self.broker
        return Answer(line.wait_answer(line.send(request), PATIENCE_S))

    def tell(self, request: Command, on: Line | None = None) -> None:
        """Send without waiting for anything."""
        (on or self.broker).send(request)

    def start(self, request: Command, on: Line) -> int:
        """Send a request whose answer is looked at later, by `finish`."""
        return self._number(on, request)

    def finish(self, step: str, line: Line, number: int, request: Command, *, patience_s: float = PATIENCE_S, **how: Any) -> Answer:
        try:
            command = line.wait_answer(number, patience_s) if number else None
        except Silent:
            if patience_s == PATIENCE_S:
                self._waited_in_vain()
            self._keep(step, "none")
            return Answer(None)
        except Closed:
            command = None
        if command is None:
            self._keep(step, "connection closed")
            line.close()
            line.open()  # for the steps that follow
            self.names.add(line.address, f"<{line.name}>")
            return Answer(None)
        self._keep(step, seen_answer(command, request, self.names, **how))
        return Answer(command)

    def _number(self, line: Line, request: Command) -> int:
        try:
            return line.send(request)
        except Closed:
            return 0

    def until(
        self,
        step: str,
        request: Command,
        good: Callable[[Answer], bool],
        on: Line | None = None,
        *,
        patience_s: float = PATIENCE_S,
        **how: Any,
    ) -> Answer:
        """Ask again and again until the answer is good, and see that one; or the last one when it never is."""
        answer = self.until_quietly(request, good, on, patience_s=patience_s)
        assert answer.command is not None
        self._keep(step, seen_answer(answer.command, request, self.names, **how))
        return answer

    def until_quietly(
        self, request: Command, good: Callable[[Answer], bool], on: Line | None = None, *, patience_s: float = PATIENCE_S
    ) -> Answer:
        """The same without looking: what the brokers do at different moments must have happened before the next step."""
        deadline = time.monotonic() + patience_s
        while True:
            answer = self.quietly(request, on)
            if good(answer):
                return answer
            if time.monotonic() > deadline:
                self._waited_in_vain()
                return answer
            time.sleep(0.05)

    def after(self, told: Command, request: Command, good: Callable[[Answer], bool], on: Line | None = None) -> None:
        """Tell the broker something until a request has a good answer, three times at most: without looking."""
        for _ in range(3):
            self.quietly(told, on)
            if good(self.quietly(request, on)):
                return
        self._waited_in_vain()

    def records(self, step: str, request: Command, count: int) -> None:
        """See so many records from where a pull begins, however many pulls that takes: a broker may answer with fewer."""
        self._keep(step, [self.names.record(record) for record in self.gather(request, count)])

    def gather(self, request: Command, count: int) -> list[Record]:
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        at = int(request.fields["queueOffset"])
        while len(found) < count and time.monotonic() < deadline:
            request.fields["queueOffset"] = str(at + len(found))
            answer = self.quietly(request)
            if answer.code == 0:
                found += decode_records(answer.body)
            if answer.code:
                time.sleep(0.05)
        if len(found) < count:
            self._waited_in_vain()
        return found[:count]

    def follow(self, step: str, line: Line, number: int, request: Command) -> None:
        """See what a pull that is held, or was sent on by its answer, finds in the end, as a client that goes on pulling does.

        It cannot be seen from outside when a pull is held; one that came after the message that was to wake it is told to go on.
        """
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            command = line.wait_answer(number, PATIENCE_S)
            if command.code == 0:
                self._keep(step, seen_answer(command, request, self.names))
                return
            request.fields["queueOffset"] = command.fields["nextBeginOffset"]
            number = line.send(request)
        self._waited_in_vain()
        self._keep(step, "none")

    def pushed(self, step: str, line: Line, code: int, *, patience_s: float = PATIENCE_S, **how: Any) -> Command | None:
        """See the next request with this code that the server sends on this line."""
        try:
            push = line.wait_push(code, patience_s)
        except Silent:
            self._waited_in_vain()
            self._keep(step, "none")
            return None
        self._keep(step, seen_push(push, self.names, **how))
        return push

    def raw(self, step: str, data: bytes) -> None:
        """Send bytes that are no request on a connection of their own; see that it is closed."""
        line = Line(step, self.broker_address)
        try:
            line.send_bytes(data)
            line.wait_answer(-1, PATIENCE_S)
        except Silent:
            self._waited_in_vain()
            self._keep(step, "none")
        except Closed:
            self._keep(step, "connection closed")
        finally:
            line.close()
