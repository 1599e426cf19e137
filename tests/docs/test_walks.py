"""Pages that a reader follows with a shell and an editor: every command, file and snippet runs, in its order, against real servers."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import roquet
from tests.docs.snippets import ROOT
from tests.docs.walk import Block, Walk, blocks, missing

DAYS = ["first-day-python.md", "first-day-operator.md", "app.md", "bindings.md", "cluster.md"]
"""They start and stop their servers. The data engineer's day needs Spark: tests/spark/test_first_day.py."""
PAGES = ["install.md", "faq.md", "troubleshooting.md", "comparison.md", "migrate-from-rocketmq.md", "migrate-from-kafka.md"]
PAGES += ["outbox.md"]
"""Their snippets find servers, a producer and the names of roquet around them."""


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("page", DAYS)
def test_the_first_day_runs_as_it_is_printed(page: str, tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.through(text_of(page))
        assert not walk.running, "a page stops what it started"


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs_as_it_is_printed(page: str, tmp_path: Path) -> None:
    stack = AsyncExitStack()

    async def begin() -> None:
        mq = await stack.enter_async_context(roquet.embedded())
        walk.namesrv, walk.namesrv_port = mq.namesrv, int(mq.namesrv.rpartition(":")[2])
        walk.names["producer"] = await stack.enter_async_context(mq.producer())
        walk.names.update({name: getattr(roquet, name) for name in roquet.__all__})

    with Walk(tmp_path) as walk:
        if any(block.language == "python" for block in blocks(text_of(page))):
            walk.run(begin())
        walk.through(text_of(page))
        walk.run(stack.aclose())


SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
# What stands between two texts of one sentence: quotes, line ends, f.
WORDS = re.sub(r'"\s*\n\s*f?"', "", SOURCES)
OF_OTHERS = ("DATA_SOURCE_NOT_FOUND",)
"""Messages of Spark."""


def test_every_message_of_the_troubleshooting_page_is_one_that_roquet_says() -> None:
    headings = re.findall(r"^### (`.*)$", text_of("troubleshooting.md"), re.MULTILINE)
    messages = [message for heading in headings for message in re.findall(r"`([^`]+)`", heading)]
    assert len(messages) > 15
    for message in messages:
        for part in message.split("..."):
            assert part.strip() in WORDS or message in OF_OTHERS, f"nobody says {part!r}"


# The walk itself


def test_a_block_knows_the_sentence_before_it() -> None:
    text = "One.\n\nSave this as `a.py`:\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n<!-- runs on -->\n```console\n$ a\n```\n"
    assert [(block.file, block.before) for block in blocks(text)] == [
        ("a.py", "Save this as `a.py`:"),
        ("", ""),
        ("", "<!-- runs on -->"),
    ]


def test_a_shown_line_must_come_but_its_times_and_ids_may_differ() -> None:
    printed = "SEND_OK  broker-a:3 @0  7F0000017D3F9A5151A74F1CC9630000\n2026-11-16 08:41:26.641  late\nlag: 3 messages\n"
    assert missing(["SEND_OK broker-a:0 @0  00000000000000000000000000000000", "2027-01-01 00:00:00 late", "lag: ..."], printed) == []
    assert missing(["lag: 0 messages", "SEND_OK"], printed) == ["lag: 0 messages", "SEND_OK"]


@pytest.mark.parametrize(
    ("commands", "complaint"),
    [
        ("$ echo one\ntwo\n", "did not print:\ntwo"),
        ("$ exit 3\n", "ended with 3"),
        ("no command\n", "a console block begins with a command"),
        ("^C\n", "which program gets"),
    ],
)
def test_a_walk_that_finds_something_else_than_the_page_says_fails(commands: str, complaint: str, tmp_path: Path) -> None:
    with Walk(tmp_path) as walk, pytest.raises(AssertionError, match=complaint):
        walk.step(Block("console", commands, ""))


def test_python_of_a_page_that_prints_something_else_fails(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.step(Block("python", "print(2)\n", ""))
        walk.step(Block("text", "2\n", ""))
        with pytest.raises(AssertionError, match="was not printed"):
            walk.step(Block("text", "3\n", ""))
