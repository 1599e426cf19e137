"""`roquet run` and `roquet docs`: real processes on a user's project, against a real broker."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from roquet import Message
from roquet.app.loading import AppFailed, NoApp, load
from roquet.app.watching import changed, snapshot
from roquet.cli.main import main
from roquet.embed import Embedded
from tests.app.broker import against_a_broker, sent, until
from tests.client.programs import Running

SHOP = """
import asyncio, os
from roquet.app import App

app = App("127.0.0.1:1", title="shop", consumer={"consume_from": "first"})

@app.consumer("words", group="g")
async def handle(text: str) -> None:
    os.write(1, f"begins {text} {os.getpid()}\\n".encode())
    await asyncio.sleep(0.2)
    os.write(1, f"ends {text}\\n".encode())
"""


@asynccontextmanager
async def roquet(place: Path, *arguments: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "roquet", *arguments, cwd=place, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


async def send(mq: Embedded, *texts: str) -> None:
    async with mq.producer() as producer:
        for text in texts:
            await producer.send(Message("words", text.encode()))


def test_an_app_of_a_project_runs_until_it_is_asked_to_stop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    async def test(mq: Embedded) -> None:
        async with sent(mq, "words", Message("words", b"one")), roquet(tmp_path, "run", "shop:app", "-n", mq.namesrv) as running:
            await running.until("begins one")
            running.signal(signal.SIGTERM)
            assert await running.end() == 0
        assert re.search(r"The app\[shop, process \d+\] boot success. handlers: 1, groups: g", running.printed)
        assert "ends one" in running.printed

    against_a_broker(test)


def test_workers_share_the_work_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    async def test(mq: Embedded) -> None:
        async with sent(mq, "words", queues=4), roquet(tmp_path, "run", "shop:app", "-n", mq.namesrv, "--workers", "2") as running:
            await running.until("worker-1 | The app")
            await running.until("worker-2 | The app")
            victim = int(re.search(r"worker-1 starts, pid (\d+)", running.printed)[1])  # type: ignore[index]
            os.kill(victim, signal.SIGKILL)
            await running.until("worker-1 died (SIGKILL); starting it again in 0.2 s")
            first, running.printed = running.printed, ""
            await send(mq, *(f"w{number}" for number in range(8)))
            for number in range(8):
                await running.until(f"begins w{number} ")
            await running.until("worker-1 | The app")
            running.signal(signal.SIGTERM)
            assert await running.end() == 0
        begun, ended = re.findall(r"begins (w\d)", running.printed), re.findall(r"ends (w\d)", running.printed)
        assert sorted(begun) == sorted(ended)
        workers = re.findall(r"starts, pid (\d+)", first + running.printed)
        assert len(workers) == 3
        assert not any(is_alive(int(pid)) for pid in workers)

    against_a_broker(test)


def test_a_second_signal_does_not_wait_for_handlers(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.replace("0.2", "600"))

    async def test(mq: Embedded) -> None:
        arguments = ("run", "shop:app", "-n", mq.namesrv, "--workers", "2", "--stop-timeout", "500")
        async with sent(mq, "words", Message("words", b"one")), roquet(tmp_path, *arguments) as running:
            await running.until("begins one")
            running.signal(signal.SIGTERM)
            await running.until("waiting for 1 calls of handlers to end")
            running.signal(signal.SIGTERM)
            assert await running.end() == 128 + signal.SIGTERM
            workers = [int(pid) for pid in re.findall(r"starts, pid (\d+)", running.printed)]
            await until(lambda: not any(is_alive(pid) for pid in workers))

    against_a_broker(test)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    async def test(mq: Embedded) -> None:
        async with sent(mq, "words"), roquet(tmp_path, "run", "shop", "-n", mq.namesrv, "--workers", "2") as running:
            await running.until("worker-1 | The app")
            await running.until("worker-2 | The app")
            workers = [int(pid) for pid in re.findall(r"starts, pid (\d+)", running.printed)]
            running.signal(signal.SIGKILL)
            await running.process.wait()
            await until(lambda: not any(is_alive(pid) for pid in workers))

    against_a_broker(test)


def test_a_changed_source_starts_the_app_again_and_a_broken_one_is_waited_for(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    source.write_text(SHOP)
    written_ns = source.stat().st_mtime_ns // 1_000_000_000 * 1_000_000_000
    os.utime(source, ns=(written_ns, written_ns))

    async def test(mq: Embedded) -> None:
        async with (
            sent(mq, "words", Message("words", b"one")),
            roquet(tmp_path, "run", "shop:app", "-n", mq.namesrv, "--reload") as running,
        ):
            await running.until("begins one")
            of_the_same_size = SHOP.replace('"begins', '"anew').replace("0.2", "0.001")
            assert len(of_the_same_size) == len(SHOP)
            source.write_text(of_the_same_size)
            os.utime(source, ns=(written_ns, written_ns + 1))  # in the same second, too
            await running.until("changed: shop.py; starting again")
            assert "ends one" in running.printed, "what ran has finished"
            await send(mq, "two")
            await running.until("anew two")
            source.write_text("app = (")
            await running.until("waiting for a change of the source")
            assert "SyntaxError: '(' was never closed" in running.printed
            source.write_text(SHOP.replace('"begins', '"repaired'))
            await send(mq, "three")
            await running.until("repaired three")
            running.signal(signal.SIGINT)
            assert await running.end() == 0

    against_a_broker(test)


def test_an_app_that_cannot_start_ends_with_1_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP + "@app.on_startup\ndef fail():\n    raise LookupError('no database')\n")

    async def test(mq: Embedded) -> None:
        async with roquet(tmp_path, "run", "shop:app", "-n", mq.namesrv) as alone:
            assert await alone.end() == 1
        assert "roquet: shop:app failed: LookupError: no database" in alone.printed

    against_a_broker(test)


# -- module:app


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that is the current one, and whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_app_is_found_by_its_name_and_may_be_made_by_a_function(project: Path) -> None:
    (project / "found_shop.py").write_text(
        "from roquet.app import App\napp = App(group='a')\nclass Inner:\n    two = App(group='b')\ndef make():\n    return App(group='c')\n"
    )
    assert [load(place).group for place in ("found_shop", "found_shop:app", "found_shop:Inner.two", "found_shop:make")] == [
        "a",
        "a",
        "b",
        "c",
    ]


WRONG: list[tuple[str, str, str, type[Exception]]] = [
    ("", "nothing_there:app", "there is no module 'nothing_there' in .* nor on Python's path", NoApp),
    ("", "shop_a.inner:app", "there is no module 'shop_a.inner'", NoApp),
    ("", "shop_a.py", "'shop_a.py' is no module and app; write them as Python imports them: shop_a:app", NoApp),
    ("", "./src/shop_a.py:ap", "write them as Python imports them: src.shop_a:ap", NoApp),
    ("", ":app", "is no module and app; write them as Python imports them: module:app", NoApp),
    ("from roquet.app import App\napplication = App()", "shop_a:app", "module 'shop_a' has no 'app'; it has shop_a:application", NoApp),
    ("app = 5", "shop_a", "shop_a:app is a int; expected is a roquet.app.App; make one there", NoApp),
    ("import nothing_there", "shop_a", r"ModuleNotFoundError: No module named 'nothing_there' \(.*shop_a.py, line 1\)", AppFailed),
    ("a = 1\n1 / 0", "shop_a", r"cannot be imported: ZeroDivisionError: division by zero \(.*shop_a.py, line 2\)", AppFailed),
    ("def app():\n    1 / 0", "shop_a", r"shop_a\(\) failed: ZeroDivisionError: division by zero", AppFailed),
]  # fmt: skip


@pytest.mark.parametrize(("source", "place", "text", "kind"), WRONG)
def test_a_wrong_module_or_app_is_told_in_one_sentence(
    source: str, place: str, text: str, kind: type[Exception], project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "shop_a.py").write_text(source)
    with pytest.raises(kind, match=text):
        load(place)
    sys.modules.pop("shop_a", None)
    assert main(["run", place]) == main(["docs", place]) == (2 if kind is NoApp else 1)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert all(line.startswith("roquet: ") for line in told)


@pytest.mark.parametrize("words", [["--workers", "0"], ["--workers", "many"], ["--stop-timeout", "-1"], []])
def test_a_wrong_command_line_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", *([] if not words else ["shop:app"]), *words])
    assert left.value.code == 2


def test_only_changes_of_sources_count(tmp_path: Path) -> None:
    for name in ("a.py", "b.txt", "inner/c.py", ".hidden/d.py", "__pycache__/e.py", "env/lib/f.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("1")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    before = snapshot([str(tmp_path)])
    assert {Path(path).name for path in before} == {"a.py", "c.py"}
    (tmp_path / "b.txt").write_text("22")
    (tmp_path / "a.py").write_text("22")
    (tmp_path / "inner" / "c.py").unlink()
    (tmp_path / "inner" / "new.py").write_text("1")
    names = [Path(path).name for path in changed(before, snapshot([str(tmp_path)]))]
    assert sorted(names) == ["a.py", "c.py", "new.py"]


# -- the AsyncAPI document


def everything_of(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from everything_of(inner)


def test_the_document_of_an_app_says_what_it_takes_and_sends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "tests.app.documented", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["docs", "tests.app.documented:app"]) == 0
    assert YAML(typ="safe").load(capsys.readouterr().out) == found
    assert found["asyncapi"] == "3.0.0"
    assert found["info"] == {"title": "shop", "version": "2.0.0", "description": "sells"}
    for one in everything_of(found):
        if isinstance(one, dict) and "$ref" in one:
            target: Any = found
            for step in one["$ref"].removeprefix("#/").split("/"):
                target = target[step]  # leads somewhere
    keys = [*found["channels"], *found["operations"], *found["components"]["messages"], *found["components"]["schemas"]]
    assert all(re.fullmatch(r"[a-zA-Z0-9._-]+", key) for key in keys)
    assert found["operations"]["bill"] == {
        "action": "receive",
        "summary": "Bill an order.",
        "description": "Once.",
        "channel": {"$ref": "#/channels/orders"},
        "messages": [{"$ref": "#/channels/orders/messages/orders.Order"}],
        "x-rocketmq": {"group": "billing", "tags": "paid", "orderly": True, "retries": 5},
    }
    assert found["operations"]["price"]["reply"]["channel"] == {"$ref": "#/channels/price-reply"}
    assert found["channels"]["price-reply"]["address"] is None
    assert found["operations"]["publish-bills"]["summary"] == "what bill returns"
    schemas = found["components"]["schemas"]
    assert schemas["Order"] == {
        "title": "Order",
        "type": "object",
        "description": "What somebody wants.",
        "properties": {
            "id": {"type": "integer"},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}},
            "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
            "colour": {"$ref": "#/components/schemas/Colour"},
            "next": {"anyOf": [{"$ref": "#/components/schemas/Order"}, {"type": "null"}]},
            "prices": {"type": "object", "additionalProperties": {"type": ["string", "number"], "format": "decimal"}},
        },
        "required": ["id", "items"],
    }
    assert schemas["Colour"]["enum"] == ["red", "blue"]
    assert schemas["Item"]["required"] == ["article"]
    assert set(schemas) == {"Order", "Item", "Colour", "Bill", "Line", "Struct", "Page_Item"}


def test_every_payload_that_a_handler_takes_has_a_schema() -> None:
    from roquet.app.schemas import Schemas
    from tests.app.test_payloads import VALUES, Order

    schemas = Schemas()
    for kind, _ in [*VALUES, (Order, None)]:
        assert isinstance(schemas.of(kind), dict)
    assert schemas.components["Order"]["required"] == ["id", "items", "at", "address"]
    assert schemas.components["Address"]["required"] == ["street"]
