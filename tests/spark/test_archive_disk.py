"""An archive on a disk that is full: every write may fail, in the data, in the commit, and in what follows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from roquet import Message
from roquet.spark.archive import write
from roquet.spark.archive.manifest import ArchiveError
from roquet.spark.archive.read import opened
from roquet.spark.pipelines.archive import Control, Output, archive, compact, verify_archive
from tests import small_jvm
from tests.spark.conftest import Servers

COUNT = 240
DONE = 60
"""So many are archived before the disk is full."""


@pytest.fixture
def topic(servers: Servers) -> str:
    name = servers.topic(f"full-{uuid.uuid4().hex}", queues=1)
    servers.send(Message(name, os.urandom(400), properties={"number": str(number)}) for number in range(COUNT))
    return name


LIMITED = """
import resource, sys
from roquet.cli.main import explain
from roquet.errors import RoquetError
from roquet.spark.pipelines.archive import Control, Output, archive, compact

store, topic, path, format, point, work = sys.argv[1:]

def fault(at):
    # No file may grow beyond so many bytes: EFBIG, which is as good as ENOSPC. Data is larger than 4 KiB, a commit than 64 bytes.
    if at == point or point == "data":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096 if point == "data" else 64, resource.RLIM_INFINITY))

fault("")
try:
    if work == "compact":
        compact(path, fault=fault)
    else:
        archive({"path": store}, [topic], path, output=Output(delta=format == "delta"), control=Control(fault=fault))
except (RoquetError, OSError) as error:
    sys.exit(explain(error))
"""


def limited(servers: Servers, topic: str, path: Path, delta: bool, point: str, work: str = "archive") -> str:
    """What a run says whose files may not grow."""
    call = [sys.executable, "-c", LIMITED, str(servers.store), topic, str(path), "delta" if delta else "parquet", point, work]
    done = subprocess.run(call, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def numbers(path: Path) -> list[int]:
    """Of exactly the committed rows."""
    tables = [pq.read_table(path / file, columns=["properties"], partitioning=None) for file in opened(path).files]
    return sorted(int(dict(row)["number"]) for table in tables for row in table["properties"].to_pylist())


def rubbish(path: Path) -> list[str]:
    """Files that belong to no commit and take room."""
    committed = set(opened(path).files)
    data = [one for one in path.rglob("part-*") if one.is_file() and one.relative_to(path).as_posix() not in committed]
    return sorted(str(one.relative_to(path)) for one in [*data, *(path / "_roquet").glob("commits/.*")])


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("point", ["data", "before commit"])
def test_a_run_that_finds_no_room_says_so_leaves_nothing_and_the_next_one_finishes(
    servers: Servers, topic: str, tmp_path: Path, point: str, delta: bool
) -> None:
    path, where = tmp_path / "a", {"path": str(servers.store)}
    archive(where, [topic], path, output=Output(delta=delta, batch_rows=DONE), control=Control(stop=iter([False, True, True]).__next__))
    before = opened(path)
    for _ in range(2):
        output = limited(servers, topic, path, delta, point)
        assert f"{path} cannot be written to: File too large" in output
        assert "Make room there and run the same command again" in output
        assert "Traceback" not in output
        assert opened(path) == before
        assert rubbish(path) == []
        assert numbers(path) == list(range(DONE))
    assert archive(where, [topic], path, output=Output(delta=delta)).rows == COUNT - DONE
    assert numbers(path) == list(range(COUNT))
    assert verify_archive(path).problems == []


def test_an_archive_that_cannot_even_be_begun_is_begun_by_the_next_run(servers: Servers, topic: str, tmp_path: Path) -> None:
    output = limited(servers, topic, tmp_path / "a", False, "data")
    assert "cannot be written to: File too large" in output
    assert archive({"path": str(servers.store)}, [topic], tmp_path / "a").rows == COUNT
    assert verify_archive(tmp_path / "a").problems == []


def test_a_compaction_that_finds_no_room_changes_nothing(servers: Servers, topic: str, tmp_path: Path) -> None:
    archive({"path": str(servers.store)}, [topic], tmp_path / "a", output=Output(batch_rows=DONE))
    before = opened(tmp_path / "a")
    for point in ("data", "before commit"):
        assert "cannot be written to: File too large" in limited(servers, topic, tmp_path / "a", False, point, "compact")
        assert opened(tmp_path / "a") == before
        assert rubbish(tmp_path / "a") == []
    assert compact(tmp_path / "a") == COUNT // DONE
    assert numbers(tmp_path / "a") == list(range(COUNT))


def test_files_of_a_batch_stay_when_its_commit_was_made_before_the_disk_failed(servers: Servers, topic: str, tmp_path: Path) -> None:
    def fault(at: str) -> None:
        if at == "committed":
            raise OSError(28, "No space left on device")

    with pytest.raises(ArchiveError, match="No space left on device"):
        archive({"path": str(servers.store)}, [topic], tmp_path / "a", control=Control(fault=fault))
    assert verify_archive(tmp_path / "a").rows == COUNT
    assert archive({"path": str(servers.store)}, [topic], tmp_path / "a").rows == 0
    assert numbers(tmp_path / "a") == list(range(COUNT))


def test_a_sync_that_fails_fails_the_batch(servers: Servers, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells it once: to the sync that ran while rows were still coming, not to the one at the end."""

    def broken(_path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(write, "sync_file", broken)
    monkeypatch.setattr(write, "GROUP_ROWS", 10)
    with pytest.raises(ArchiveError, match=r"Input/output error\. .* Solve that"):
        archive({"path": str(servers.store)}, [topic], tmp_path / "a")
    assert opened(tmp_path / "a").rows == 0
    assert rubbish(tmp_path / "a") == []


SMALL = """
import json, os, subprocess, sys
from pathlib import Path
path, store, topic = sys.argv[1:]

def mount(*options):
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", path], check=True)

def run():
    call = [sys.executable, "-m", "roquet", "pipeline", "archive", topic, "--to", path + "/a", "--store", store, "--batch-rows", "50",
            "--master", "local[2]", "--compression", "none", "--no-compact"]
    done = subprocess.run(call, capture_output=True, text=True)
    from roquet.spark.pipelines.archive import verify_archive
    from roquet.spark.archive.read import opened
    verdict = verify_archive(path + "/a")
    left = [str(one) for one in Path(path, "a", "_staging").rglob("part-*")]
    free = os.statvfs(path)
    return {"code": done.returncode, "output": done.stderr, "rows": verdict.rows, "problems": verdict.problems, "left": left,
            "commits": opened(path + "/a").number + 1, "free": free.f_bavail * free.f_frsize}

mount("size=160k")
first = run()
mount("remount", "size=16m")
print(json.dumps([first, run()]))
"""


def own_mounts() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not own_mounts(), reason="no mounts of its own for a process here")
def test_the_command_on_a_disk_that_fills_up_ends_with_a_sentence_and_goes_on_when_there_is_room(
    servers: Servers, topic: str, tmp_path: Path, spark: Any
) -> None:
    call = ["unshare", "-rm", sys.executable, "-c", SMALL, str(tmp_path), str(servers.store), topic]
    env = {**os.environ, **small_jvm.alone()}
    done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    full, roomy = json.loads(done.stdout.splitlines()[-1])
    assert full["code"] == 1
    before, sentence, after = full["output"].partition(f"roquet: {tmp_path}/a cannot be written to: No space left on device.")
    assert sentence
    assert "Traceback" not in before
    assert "/roquet/" not in after.replace(str(tmp_path), "")  # PySpark's own workers may say that they lost the process that ends here
    assert 0 < full["commits"] < COUNT // 50 + 1
    assert (full["rows"], full["problems"], full["left"]) == (full["commits"] * 50, [], [])
    assert (roomy["code"], roomy["rows"], roomy["problems"], roomy["left"]) == (0, COUNT, [], [])
