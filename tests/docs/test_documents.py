"""What the documents say is true: snippets run as printed, every command and setting is described, links lead somewhere."""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import roquet
from docs import api_page
from roquet.cli.main import build_parser
from roquet.cli.reference import configuration_page
from roquet.message import Message
from roquet.settings import BrokerSettings, NameServerSettings, table
from tests.docs.snippets import PRINTED_ADDRESS, ROOT, snippets

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATIENCE_S = 600.0

README = (ROOT / "README.md").read_text()
PROGRAMS = snippets(README)
TUTORIAL = ROOT / "docs" / "tutorial.md"
FRAGMENTS = snippets(TUTORIAL.read_text())
"""They stand inside an async function that has a producer."""
RUN_BY = {
    "access.md": "tests/access/test_clients.py",
    "app.md": "tests/docs/test_walks.py",
    "client-settings.md": "tests/docs/test_client_settings.py",
    "bindings.md": "tests/docs/test_walks.py",
    "README.md": __file__,
    "cluster.md": "tests/docs/test_walks.py",
    "idempotence.md": "tests/idempotence/test_page.py",
    "tutorial.md": __file__,
    "middleware.md": "tests/docs/test_middleware_page.py",
    "tour.md": "tests/spark/test_tour.py",
    "traces.md": "tests/traces/test_traces_page.py",
    "spark.md": "tests/spark/test_source.py",
    "pipeline-observe.md": "tests/spark/test_pipeline_docs.py",
    "first-day-data-engineer.md": "tests/spark/test_first_day.py",
    "first-day-python.md": "tests/docs/test_walks.py",
    "migrate-from-kafka.md": "tests/docs/test_walks.py",
    "testing.md": "tests/testing/test_page.py",
    "outbox.md": "tests/docs/test_walks.py",
}
"""Who runs the Python of each document."""
NOT_RUN = {"spark-cluster.md": "it needs a Spark Connect server on another machine"}
AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def snippet_with(text: str) -> str:
    found = [snippet for snippet in PROGRAMS if text in snippet]
    assert len(found) == 1, f"one README snippet should hold {text!r}"
    return found[0]


async def run_python(code: str, until: str, *, is_stopped: bool = False) -> str:
    """Run a program as a user would, until it has ended; with `is_stopped` SIGTERM ends it once it has printed `until`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", code,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while until not in printed and (line := await process.stdout.readline()):
                printed += line.decode()
            if is_stopped and process.returncode is None:
                process.terminate()
            printed += (await process.communicate())[0].decode()
    except TimeoutError:
        process.kill()
        await process.communicate()
        pytest.fail(f"{until!r} and an end did not come within {PATIENCE_S} s; printed was:\n{printed}")
    assert until in printed, printed
    assert process.returncode == 0, printed
    return printed


def test_the_readmes_producer_and_consumer_run_as_printed() -> None:
    producer, consumer = snippet_with("Producer("), snippet_with("PushConsumer(")

    async def scenario() -> None:
        async with roquet.embedded() as mq:
            printed = await run_python(producer.replace(PRINTED_ADDRESS, mq.namesrv), "SEND_OK")
            assert len(printed.split()[1]) == 32
            consumer_here = consumer.replace(PRINTED_ADDRESS, mq.namesrv)
            assert await run_python(consumer_here, "order 17", is_stopped=True) == "['order-17'] b'order 17'\n"
            async with mq.producer() as second:
                await second.send(Message("orders", b"order 18", tags="paid", keys=["order-18"]))
            printed = await run_python(consumer_here, "order 18", is_stopped=True)
            assert printed == "['order-18'] b'order 18'\n", "what was consumed before SIGTERM does not come again"

    asyncio.run(scenario())


class Outside:
    """What the fragments of the tutorial find around them, and what they print."""

    def __init__(self, producer: roquet.Producer) -> None:
        self.printed: list[tuple[object, ...]] = []
        self.names: dict[str, Any] = {name: getattr(roquet, name) for name in roquet.__all__}
        self.names |= {"producer": producer, "print": lambda *words: self.printed.append(words), "paid": set()}
        self.names |= {"asyncio": asyncio, "roquet": roquet}

    async def run(self, fragment: str, namesrv: str) -> None:
        code = compile(fragment.replace(PRINTED_ADDRESS, namesrv), TUTORIAL.name, "exec", flags=AWAITS)
        result = eval(code, self.names)  # as it is printed is the test
        if inspect.isawaitable(result):
            await result

    async def until_printed(self, *words: object) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while words not in self.printed:
                await asyncio.sleep(0.01)


def test_the_tutorials_fragments_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one keeps a file

    async def scenario() -> None:
        async with roquet.embedded(settings={"enablePropertyFilter": "true"}) as mq, mq.producer() as producer:
            outside = Outside(producer)
            for fragment in FRAGMENTS:
                await outside.run(fragment, mq.namesrv)
            assert outside.names["paid"] == {"order-17"}
            assert outside.names["receipt"].recall_handle
            assert outside.printed[:2] == [("stored", "SEND_OK"), (b"3 EUR",)]
            assert outside.printed[2:] == [("polled", "orders")]
            outside.names["once"].seen.close()
            async with outside.names["ledger"], outside.names["exports"]:
                await outside.until_printed("exported", ["order-18"])
                await outside.until_printed("booked", b"close")
            booked = [words[1] for words in outside.printed if words[0] == "booked"]
            assert booked == [b"open", b"deposit", b"close"]

            committed = asyncio.Event()
            shipping = mq.consumer("shipping", consume_from="first")

            @shipping.on("paid")
            async def ship(message: roquet.ReceivedMessage) -> None:
                assert message.body == b"order 17"
                committed.set()

            async with shipping, asyncio.timeout(PATIENCE_S):
                await committed.wait()

    asyncio.run(scenario())


def test_the_tutorial_has_a_snippet_of_each_feature() -> None:
    for word in ("deliver_after", "send_in_transaction", "on_orderly", "sql=", "request(", "poll(", "embedded()", "Idempotent("):
        assert sum(word in fragment for fragment in FRAGMENTS) == 1, word


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if snippets(path.read_text())], ids=lambda path: path.name)
def test_somebody_runs_the_python_of_every_document(document: Path) -> None:
    if document.name not in NOT_RUN:
        assert document.name in RUN_BY, f"say in RUN_BY which test runs the snippets of {document.name}"
        assert document.name in (ROOT / RUN_BY[document.name]).read_text()


EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "tour.py")
"""The tour needs Spark, and has a test of its own: tests/spark/test_tour.py."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_runs(example: Path) -> None:
    async def scenario() -> None:
        async with roquet.embedded() as mq:
            env = {**os.environ, "NAMESRV_ADDR": mq.namesrv}
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(example), env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            async with asyncio.timeout(PATIENCE_S):
                printed, _ = await process.communicate()
            assert process.returncode == 0, printed.decode()

    asyncio.run(scenario())


@pytest.mark.parametrize("door", ["demo", "up"])
def test_on_a_fresh_machine_the_first_doors_install_no_development_tools(door: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", door, f"VENV={tmp_path}/fresh"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    assert "pip install" in planned
    assert "[dev]" not in planned


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_is_marked_in_one_way_so_that_no_snippet_is_missed(document: Path) -> None:
    marks = re.findall(r"^```(\S+)$", document.read_text(), re.MULTILINE)
    assert not [mark for mark in marks if mark.startswith("py") and mark != "python"]


def test_the_first_screen_has_what_a_newcomer_needs() -> None:
    for words in (
        "make demo",
        "make up",
        "make test",
        "Compatible with",
        "What it does not do yet",
        "docs/install.md",
        "architecture.svg",
        "ARCHITECTURE.md",
        "GLOSSARY.md",
    ):
        assert words in README
    assert len(README.splitlines()) <= 80, "one screen and a half; the rest is in docs/"


def command_names(parser: argparse.ArgumentParser, path: str = "roquet") -> Iterator[str]:
    subs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not subs:
        yield path
    for action in subs:
        for name, sub in action.choices.items():
            yield from command_names(sub, f"{path} {name}")


@pytest.mark.parametrize("name", list(command_names(build_parser())))
def test_every_command_is_documented(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "commands.md").read_text()


def test_the_configuration_page_is_fresh() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == configuration_page(), "run `make docs`"


def test_the_api_page_is_fresh() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == api_page.page(), "run `make docs`"


@pytest.mark.parametrize("entry", list(api_page.entries()), ids=lambda entry: entry.name)
def test_every_public_name_and_member_says_what_it_is(entry: api_page.Entry) -> None:
    described = [entry, *(api_page.members(entry.value) if inspect.isclass(entry.value) else [])]
    assert [one.name for one in described if not one.text] == []


@pytest.mark.parametrize("key", [*table(NameServerSettings), *table(BrokerSettings)])
def test_every_setting_is_documented(key: str) -> None:
    assert f"| `{key}` |" in configuration_page()


@pytest.mark.parametrize("name", roquet.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(roquet, name) is not None
    assert name in dir(roquet)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        roquet.Nonsense  # noqa: B018 (looking is the test)
    assert roquet.Message is Message


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text()):
        if "://" not in target:
            found = document.parent / target if target else document
            assert found.exists(), f"{document.name} links to {target}, which is not there"
            if anchor:
                assert anchor in anchors(found.read_text()), f"{document.name} links to {target}#{anchor}, and there is no such heading"


def anchors(text: str) -> set[str]:
    """As GitHub and the site make them from headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_public_ci_runs_what_ours_does_and_on_other_systems_tests_that_exist() -> None:
    linux, others = (ROOT / ".github" / "workflows" / "ci.yml").read_text().split("\n  macos:\n")
    steps = re.findall(r"^ +- run: (.*)$", linux, re.MULTILINE)
    assert [step for step in steps if "apt-get" not in step] == [".ci/run"]
    assert re.findall(r"runs-on: (\w+)", others) == ["macos", "windows"]
    named = re.findall(r"tests/[\w/.]+", others)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"(?:`|^    )make ([a-z-]+)", document.read_text(), re.MULTILINE):
            assert name in targets, f"{document.name} says make {name}"
