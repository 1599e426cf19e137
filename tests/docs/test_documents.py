"""What the documents say is true: snippets run as printed, every command and setting is described, links lead somewhere."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import roquet
from roquet.cli.main import build_parser
from roquet.cli.reference import configuration_page
from roquet.message import Message
from roquet.settings import BrokerSettings, NameServerSettings, table

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PRINTED_ADDRESS = "127.0.0.1:9876"
PATIENCE_S = 30


def snippets(document: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)


README_SNIPPETS = snippets(ROOT / "README.md")


def snippet_with(text: str) -> str:
    found = [snippet for snippet in README_SNIPPETS if text in snippet]
    assert len(found) == 1, f"one README snippet should hold {text!r}"
    return found[0]


async def run_python(code: str, until: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Run a program as a user would, and return what it printed once that holds `until`; then it is ended."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", *(arguments or ("-c", code)),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=env,
    )  # fmt: skip
    assert process.stdout is not None
    printed = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while until not in printed and (line := await process.stdout.readline()):
                printed += line.decode()
    except TimeoutError:
        pytest.fail(f"{until!r} did not appear within {PATIENCE_S} s; printed was:\n{printed}")
    finally:
        if process.returncode is None and until != "":
            process.terminate()
        await process.communicate()
    assert until in printed, printed
    return printed


def test_the_readmes_producer_and_consumer_run_as_printed() -> None:
    producer, consumer = snippet_with("Producer("), snippet_with("PushConsumer(")

    async def scenario() -> None:
        async with roquet.embedded() as mq:
            printed = await run_python(producer.replace(PRINTED_ADDRESS, mq.namesrv), "SEND_OK")
            assert len(printed.split()[1]) == 32
            printed = await run_python(consumer.replace(PRINTED_ADDRESS, mq.namesrv), "order 17")
            assert "['order-17'] b'order 17'" in printed

    asyncio.run(scenario())


def test_the_readmes_test_runs_as_printed() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", snippet_with("embedded()")], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ran.stderr == ""


def test_every_python_snippet_of_the_readme_is_one_of_those_that_run() -> None:
    assert len(README_SNIPPETS) == 3


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
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


def test_the_demo_runs_through_every_chapter() -> None:
    command = [sys.executable, str(ROOT / "demo" / "run.py"), "--messages", "10000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "0 of the acknowledged messages" in ran.stdout


def test_the_first_screen_has_what_a_newcomer_needs() -> None:
    text = (ROOT / "README.md").read_text()
    for words in (
        "make demo",
        "make up",
        "Compatible with",
        "What it does not do yet",
        "Where things are",
        "ARCHITECTURE.md",
        "GLOSSARY.md",
    ):
        assert words in text


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
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


def test_every_make_target_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"(?:`|^    )make ([a-z]+)", document.read_text(), re.MULTILINE):
            assert name in targets, f"{document.name} says make {name}"
