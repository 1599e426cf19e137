"""Each row of the table in docs/app.md: what fails, as what it ends, and with which reason. All rows run in one app, against one broker."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pytest

import roquet
from roquet import RETRY_LATER, Message, Producer, ReceivedMessage, RequestTimedOut
from roquet.app import App, Attempt, Depends, Header, Reject
from roquet.embed import Embedded
from roquet.errors import NoRoute, SendFailed
from roquet.wire.names import dead_letter_topic
from tests.app.broker import PATIENCE_S, SOON, app_of, until
from tests.docs.snippets import ROOT, section

ELSEWHERE = {
    "a start-up hook raises": "tests/app/test_life.py",
    "a worker process dies": "tests/app/test_commands.py",
}
"""Rows that are about a program, and the test that holds them."""


@dataclass
class Row:
    """One handler, and what was seen of it."""

    what: str
    ends: str
    """The first words of the document's second column."""
    reason: str
    topic: str
    bodies: list[bytes]
    attempts: list[int] = field(default_factory=list)
    dead: list[ReceivedMessage] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    @property
    def group(self) -> str:
        return f"group-{self.topic}"


def rows_of_the_document() -> list[tuple[str, str, str]]:
    text = section((ROOT / "docs" / "app.md").read_text(), "Whatever fails ends as one of these")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [(what, ends, reason.strip("`")) for what, ends, reason in cells[2:]]


ROWS = [
    Row(what, ends.partition(",")[0], reason, f"row-{number}", [b"{}"])
    for number, (what, ends, reason) in enumerate(rows_of_the_document())
    if what not in ELSEWHERE
]
BY_NAME = {row.what: row for row in ROWS}
SCENES: dict[str, Callable[[App, Row], None]] = {}


def scene(what: str) -> Callable[[Callable[[App, Row], None]], Callable[[App, Row], None]]:
    def register(made: Callable[[App, Row], None]) -> Callable[[App, Row], None]:
        assert what in BY_NAME, f"docs/app.md has no row {what!r}"
        SCENES[what] = made
        return made

    return register


def consumer(app: App, row: Row, **settings: Any) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = app.consumer(row.topic, group=row.group, **{"retries": 1, **settings})
    return made


@dataclass
class Purchase:
    id: int


@dataclass
class Checked:
    name: str

    def __post_init__(self) -> None:
        raise KeyError("bad")


def raising(app: App, row: Row, **settings: Any) -> None:
    @consumer(app, row, **settings)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> None:
        row.attempts.append(attempt)
        raise LookupError("not now")


class Mute(Exception):
    def __str__(self) -> str:
        return f"{1 / 0}"


@scene("the handler raises what has no text")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> None:
        row.attempts.append(attempt)
        raise Mute


scene("the handler raises")(raising)
scene("the handler raises, `orderly=True`")(partial(raising, orderly=True))
scene("the handler raises, `retry_level=-1`")(partial(raising, retry_level=-1))
scene("the handler raises, `broadcasting=True`")(partial(raising, broadcasting=True))


@scene("the handler raises `Reject`")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> None:
        row.attempts.append(attempt)
        raise Reject("nobody ordered it")


@scene("the handler returns `RETRY_LATER`, or `False` and has no publisher and no `reply`")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    def handle(message: ReceivedMessage, attempt: Attempt) -> Any:
        row.attempts.append(attempt)
        return False if attempt == 1 else RETRY_LATER


@scene("the handler returns something else, and nobody publishes it")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> str:
        row.attempts.append(attempt)
        return "ok"


@scene("the handler takes longer than `consume_timeout_ms`")
def _(app: App, row: Row) -> None:
    @consumer(app, row, consume_timeout_ms=1_000)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> None:
        row.attempts.append(attempt)
        await asyncio.sleep(PATIENCE_S)


@scene("the handler of a batch raises")
def _(app: App, row: Row) -> None:
    row.bodies = [b"1", b"2"]

    @consumer(app, row, batch=8)
    async def handle(numbers: list[int], messages: list[ReceivedMessage]) -> None:
        row.attempts.extend(message.reconsume_times + 1 for message in messages)
        raise LookupError("not now")


@scene("the body does not fit the annotation")
def _(app: App, row: Row) -> None:
    row.bodies = [b'{"id": "x"}']

    @consumer(app, row)
    async def handle(order: Purchase) -> None:
        row.attempts.append(1)


@scene("the body is no JSON, or no UTF-8")
def _(app: App, row: Row) -> None:
    row.bodies = [b"{", b"\xff"]

    @consumer(app, row)
    async def handle(order: Purchase) -> None:
        row.attempts.append(1)


@scene("the body cannot be decompressed")
def _(app: App, row: Row) -> None:
    row.bodies = [b"damaged"]

    @consumer(app, row)
    async def handle(order: Purchase) -> None:
        row.attempts.append(1)


@scene("`decode=` raises")
def _(app: App, row: Row) -> None:
    def own(body: bytes) -> int:
        raise KeyError(5)

    @consumer(app, row, decode=own)
    async def handle(number: int) -> None:
        row.attempts.append(1)


@scene("a model's own check raises")
def _(app: App, row: Row) -> None:
    row.bodies = [b'{"name": "a"}']

    @consumer(app, row)
    def handle(checked: Checked) -> None:
        row.attempts.append(1)


@scene("a property that a `Header` needs is missing or does not fit")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, region: Annotated[str, Header()]) -> None:
        row.attempts.append(1)


@scene("a body of a batch does not fit")
def _(app: App, row: Row) -> None:
    row.bodies = [b"1", b"{", b"2"]

    @consumer(app, row, batch=8)
    def handle(numbers: list[int]) -> None:
        row.attempts.extend(numbers)


@scene("the body does not fit, `broadcasting=True`")
def _(app: App, row: Row) -> None:
    row.bodies = [b"{"]

    @consumer(app, row, broadcasting=True)
    async def handle(order: Purchase) -> None:
        row.attempts.append(1)


async def database() -> str:
    raise ConnectionError("it is down")


@scene("a dependency raises")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, found: Annotated[str, Depends(database)]) -> None:
        raise AssertionError("it has no database")


def not_ours(attempt: Attempt) -> None:
    raise Reject("not for us")


@scene("a dependency raises `Reject`")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    def handle(message: ReceivedMessage, ours: Annotated[None, Depends(not_ours)]) -> None:
        raise AssertionError("it is not ours")


def commit() -> Iterator[int]:
    yield 1
    raise ConnectionError("no commit")


@scene("a dependency raises after its `yield`")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    async def handle(message: ReceivedMessage, attempt: Attempt, session: Annotated[int, Depends(commit)]) -> None:
        row.attempts.append(attempt)


@scene("`when=` raises")
def _(app: App, row: Row) -> None:
    def condition(message: ReceivedMessage) -> bool:
        row.attempts.append(message.reconsume_times + 1)
        raise LookupError("no condition")

    @consumer(app, row, when=condition)
    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError("it has no condition")


@scene("no handler takes the message")
def _(app: App, row: Row) -> None:
    @consumer(app, row, when=lambda message: False)
    async def handle(message: ReceivedMessage) -> None:
        row.attempts.append(1)


def publishing(app: App, row: Row, value: Any, **how: Any) -> None:
    @app.publisher(f"results-{row.topic}", **how)
    @consumer(app, row)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> Any:
        row.attempts.append(attempt)
        return value


def no_key(value: Any) -> str:
    raise LookupError("no key")


class Failing(Producer):
    async def send(self, message: Message, **how: Any) -> Any:
        raise SendFailed("all brokers are away", [])


scene("what the handler returned has no form in JSON")(partial(publishing, value=object()))
scene("`key=`, `tags=` or `encode=` of a publisher raises")(partial(publishing, value=1, key=no_key))


@scene("a broker does not take what the handler returned")
def _(app: App, row: Row) -> None:
    publishing(app, row, 1, producer=app.add(Failing("failing", app.namesrv)))


@scene("`app.publish` in the handler raises")
def _(app: App, row: Row) -> None:
    @consumer(app, row)
    def handle(message: ReceivedMessage, attempt: Attempt) -> None:
        row.attempts.append(attempt)
        app.from_thread(app.publish("nowhere", object()))


@scene("the reply cannot be sent, since nobody waits for it any more")
def _(app: App, row: Row) -> None:
    @consumer(app, row, reply=True)
    async def handle(message: ReceivedMessage, attempt: Attempt) -> str:
        row.attempts.append(attempt)
        return "answer"


@scene("a shutdown hook raises")
def _(app: App, row: Row) -> None:
    row.bodies = []

    @app.on_shutdown
    def fail() -> None:
        raise LookupError("no end")


# -- all of them at once


class Listening(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


async def dead_of(reader: roquet.PullConsumer, row: Row) -> list[ReceivedMessage]:
    try:
        [queue] = await reader.fetch_queues(dead_letter_topic(row.group))
    except NoRoute:
        return []
    return (await reader.pull(queue, 0)).messages


async def fill(mq: Embedded, row: Row, patch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {}
    if row.what == "the body cannot be decompressed":
        how["compress_over"] = 1
        patch.setattr("roquet.client.core.producer.compress", lambda *_: b"?")
    if row.what.startswith("the reply cannot be sent"):
        how["instance_name"] = "gone"
    async with mq.producer(f"sender-{row.topic}", **how) as producer:
        await producer.create_topic(row.topic, 1)
        for body in row.bodies:
            message = Message(row.topic, body)
            if "instance_name" in how:
                with suppress(RequestTimedOut):  # and then its client is gone
                    await producer.request(message, 500)
            else:
                await producer.send(message)
    patch.undo()


async def run_all(mq: Embedded, offsets: Path, patch: pytest.MonkeyPatch) -> None:
    app = app_of(mq, offsets_directory=offsets)
    for row in ROWS:
        SCENES[row.what](app, row)
        await fill(mq, row, patch)
    async with mq.pull_consumer("reader") as reader:
        async with app:
            for row in ROWS:
                if row.ends != "log line":
                    wanted = 1 if row.what == "a body of a batch does not fit" else len(row.bodies)
                    while len(row.dead) < wanted:
                        row.dead = await dead_of(reader, row)
                        await asyncio.sleep(SOON)
                elif row.bodies:
                    await until(lambda row=row: any(is_told(row, text) for text in HEARD.texts))  # type: ignore[misc]
            for one in app.consumers:
                one.hurry()  # one handler does not end
        for row in ROWS:
            row.dead = await dead_of(reader, row)
            row.logged = [text for text in HEARD.texts if is_told(row, text)]


def is_told(row: Row, text: str) -> bool:
    pattern = ".*".join(re.escape(part.strip()) for part in row.reason.split("..."))
    return re.search(pattern, text) is not None


HEARD = Listening()


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S), roquet.embedded(fast_retries=True) as mq:
            await run_all(mq, tmp_path_factory.mktemp("offsets"), patch)

    logging.getLogger("roquet").addHandler(HEARD)
    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(scenario())
    logging.getLogger("roquet").removeHandler(HEARD)


def test_every_row_has_a_scene_or_a_test_elsewhere() -> None:
    assert set(SCENES) == set(BY_NAME)
    for what, file in ELSEWHERE.items():
        assert what in {row for row, _, _ in rows_of_the_document()}
        assert (ROOT / file).exists()
    assert len(ROWS) > 25


@pytest.mark.usefixtures("seen")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_the_document_says_as_what_it_ends(row: Row) -> None:
    if row.ends == "retry":
        assert len(row.dead) == len(row.bodies)
        assert all(message.reconsume_times == 2 for message in row.dead) or "orderly" in row.what, "it came twice"
        if row.attempts:
            assert sorted(row.attempts) == sorted([1, 2] * len(row.bodies))
    elif row.ends == "dead letter":
        assert all(message.reconsume_times <= 1 for message in row.dead)
        assert row.attempts in ([], [1], [1, 2][: len(row.attempts)])
    else:
        assert row.ends == "log line"
        assert row.logged
        assert not row.dead
        assert row.attempts in ([], [1])
    if row.ends != "log line" and row.reason:
        assert all(message.failure.startswith(row.reason) for message in row.dead), [message.failure for message in row.dead]


@pytest.mark.usefixtures("seen")
def test_the_others_of_a_batch_were_handled() -> None:
    assert sorted(BY_NAME["a body of a batch does not fit"].attempts) == [1, 2]
    assert [message.body for message in BY_NAME["a body of a batch does not fit"].dead] == [b"{"]
