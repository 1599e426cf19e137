"""Starts on a bad day: a file is gone, or is not what it was. Each is named with what it means; none destroys anything."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from roquet.errors import Damaged
from roquet.wire.codes import RequestCode, ResponseCode

from .whole import Whole, pull_fields, send_fields

CONFIG = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The store of a broker that was stopped: a topic with four queues and 20 messages in two of them, a group that read 7."""
    where = tmp_path / "store"
    whole = Whole(where)
    fields = {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "order": "false"}
    fields["topicFilterType"] = "SINGLE_TAG"
    assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    for n in range(20):
        assert whole.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders", n % 2), b"order %d" % n).code == 0
    offset = {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "commitOffset": "7"}
    assert whole.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset).code == 0
    assert whole.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders", 3, "DELAY\x012\x02"), b"later").code == 0
    group = b'{"groupName":"billing","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":3}'
    assert whole.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
    whole.tick(10_000)
    whole.tick(10_000)
    whole.close()
    return where


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def pulled(whole: Whole, queue_id: int = 0) -> bytes:
    answer = whole.ask(RequestCode.PULL_MESSAGE, pull_fields("orders", queue_id, sysFlag="4"))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.body


def gone(root: Path, *names: str) -> None:
    for name in names:
        for path in (root / "config" / name, root / "config" / f"{name}.bak"):
            path.unlink(missing_ok=True)


def spoiled(root: Path, name: str) -> None:
    for path in (root / "config" / name, root / "config" / f"{name}.bak"):
        path.write_bytes(b"\0" * 100)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{"mapped_file_size_commit_log": 2 << 20}, {"mapped_file_size_commit_log": 1 << 19}, {"mapped_file_size_consume_queue": 12_000}],
)
def test_a_start_with_a_wrong_size_is_refused_and_the_next_right_one_finds_all(root: Path, killed: bool, settings: dict[str, Any]) -> None:
    if killed:
        (root / "abort").touch()
    before = everything(root)
    for _ in range(3):
        with pytest.raises(Damaged, match="mappedFileSize"):
            Whole(root, **settings)
        assert everything(root) == before
    whole = Whole(root)
    assert b"order 0" in pulled(whole)
    assert whole.broker.topics.get("orders") is not None
    whole.close()


@pytest.mark.parametrize("name", CONFIG)
def test_a_document_that_nobody_can_read_refuses_the_start_before_anything_is_written(root: Path, name: str) -> None:
    spoiled(root, name)
    before = everything(root)
    for _ in range(2):
        with pytest.raises(Damaged, match=name):
            Whole(root)
        assert everything(root) == before


def test_a_log_that_is_gone_refuses_the_start_before_anything_is_written(root: Path) -> None:
    for path in (root / "commitlog").iterdir():
        path.unlink()
    before = everything(root)
    with pytest.raises(Damaged, match="holds no file"):
        Whole(root)
    assert everything(root) == before


@pytest.mark.parametrize("killed", [False, True])
def test_topics_that_are_gone_are_found_again_from_their_queues(root: Path, killed: bool) -> None:
    if killed:
        (root / "abort").touch()
    gone(root, "topics.json")
    whole = Whole(root)
    assert b"order 0" in pulled(whole)
    assert b"order 1" in pulled(whole, 1)
    (notice,) = [one for one in whole.broker.notices.list() if "topics.json" in str(one)]
    assert "found again from their queues" in str(notice)
    whole.close()
    whole = Whole(root)
    assert b"order 0" in pulled(whole)
    whole.close()


@pytest.mark.parametrize("name", CONFIG)
def test_every_document_that_is_gone_is_named_with_what_that_means(root: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    gone(root, name)
    with caplog.at_level(logging.WARNING):
        whole = Whole(root)
    assert any(f"config/{name} is missing" in line for line in caplog.messages)
    whole.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        Whole(root).close()
    assert not [line for line in caplog.messages if "is missing" in line], "said once: it is there again, or not expected any more"


def test_a_start_with_all_its_files_says_nothing(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Whole(root).close()
    assert caplog.messages == []


def test_a_damaged_log_is_told_to_who_asks_for_the_broker_s_notices(root: Path) -> None:
    path = next((root / "commitlog").iterdir())
    raw = bytearray(path.read_bytes())
    at = raw.index(b"order 11")
    raw[at] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(root / "consumequeue")
    whole = Whole(root)
    assert any("1 damaged places" in str(one) for one in whole.broker.notices.list())
    assert pulled(whole, 1).count(b"\x06orders") == 9, "all but the damaged one"
    whole.close()


@pytest.mark.parametrize("where", ["checkpoint", "index", "timers"])
def test_a_directory_in_place_of_a_file_is_named_and_nothing_is_written(root: Path, where: str) -> None:
    path = root / where
    if path.is_dir():
        path = next(iter(sorted(path.iterdir())), path / "0000500000")
    if path.exists():
        path.unlink()
    path.mkdir(parents=True)
    before = sorted(root.rglob("*"))
    with pytest.raises(Damaged, match=f"{path.name} is a directory"):
        Whole(root)
    assert sorted(root.rglob("*")) == before
    path.rmdir()
    whole = Whole(root)
    assert whole.ask(RequestCode.PULL_MESSAGE, pull_fields("orders", 0)).code == 0
    whole.close()
