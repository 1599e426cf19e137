"""Messages sent again from an archive, a store or a topic: which, how marked, how fast, and resumed."""

from __future__ import annotations

import json
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roquet import Message, Producer
from roquet.cli.main import main
from roquet.message import MessageQueue
from roquet.spark import replay
from roquet.spark.archive.manifest import File, Span
from roquet.spark.columns import arrow_schema
from roquet.spark.decode import Decoder
from roquet.spark.options import place_of
from roquet.spark.pipelines import restore as pipeline
from roquet.spark.pipelines.archive import Output, archive, compact
from roquet.spark.pipelines.restore import Portion, Run, Source, Target, overlapping, restore, rounds
from roquet.spark.places import Wanted
from roquet.spark.replay import Choice, Pace, ReplayError, added, covers, joined, unique_ids, within
from tests.spark.conftest import Servers

COUNT = 120


@pytest.fixture(scope="module")
def topic(servers: Servers) -> str:
    """Numbers as bodies, a third in each of three queues."""
    name = servers.topic(f"restore-{uuid.uuid4().hex}", queues=3)

    async def work() -> None:
        async with Producer("restore_tests", servers.namesrv) as producer:
            for queue in range(3):
                listed = [
                    Message(name, b"%d" % number, keys=[f"key-{number}", f"group-{number % 10}"], tags="even" if number % 2 == 0 else "odd",
                            properties={"number": str(number)})
                    for number in range(queue, COUNT, 3)
                ]  # fmt: skip
                await producer.send_batch(listed, queue=MessageQueue(name, "broker-a", queue))

    servers.run(work())
    return name


@pytest.fixture(scope="module")
def where(servers: Servers) -> dict[str, str]:
    return {"namesrvAddr": servers.namesrv}


@pytest.fixture(scope="module")
def kept(topic: str, where: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kept") / "archive"
    archive(where, [topic], path, output=Output(batch_rows=50))
    return path


@pytest.fixture
def target(servers: Servers) -> str:
    return servers.topic(f"target-{uuid.uuid4().hex}", queues=3)


def rows(where: dict[str, str], topic: str) -> list[dict[str, Any]]:
    """Every message of a topic, queue by queue."""
    place = place_of(where)
    found: list[dict[str, Any]] = []
    for queue in place.queues(topic):
        first, end = place.bounds([queue])[queue]
        for chunk in place.chunks(queue, first, end, Wanted()):
            for batch in Decoder(arrow_schema(), queue.broker_name).batches(chunk):
                found += batch.to_pylist()
    place.close()
    for row in found:
        row["properties"] = dict(row["properties"])
    return found


def bodies(where: dict[str, str], topic: str) -> list[int]:
    return sorted(int(row["body"]) for row in rows(where, topic))


# ---- which ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, set(range(COUNT))),
        ({"keys": ("key-17", "key-18")}, {17, 18}),
        ({"keys": ("key-1",)}, {1}),
        ({"keys": ("group-3",)}, set(range(3, COUNT, 10))),
        ({"tags": "even"}, set(range(0, COUNT, 2))),
        ({"tags": "odd || none"}, set(range(1, COUNT, 2))),
        ({"sql": "number BETWEEN 10 AND 12"}, {10, 11, 12}),
        ({"queue_id": 1, "from_offset": 2, "to_offset": 4}, {7, 10}),
        ({"until_ms": 1_000}, set()),
        ({"since_ms": 1_000, "tags": "even", "keys": ("group-4",)}, set(range(4, COUNT, 10))),
    ],
)
@pytest.mark.parametrize("source", ["archive", "topic"])
def test_a_selection_is_sent_and_nothing_else(
    topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path, choice: dict[str, Any], expected: set[int], source: str
) -> None:
    given: dict[str, Any] = {"archive": kept} if source == "archive" else {"where": where}
    summary = restore(Choice((topic,), **choice), Source(**given), Target(where, target), Run(uuid.uuid4().hex, tmp_path))
    assert bodies(where, target) == sorted(expected)
    assert summary.chosen == len(expected)


def test_an_expression_of_spark_chooses_and_a_wrong_one_is_explained(
    topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path, spark: Any
) -> None:
    choice = Choice((topic,), where="tags = 'even' and cast(properties['number'] as int) < 10")
    restore(choice, Source(archive=kept), Target(where, target), Run("spark", tmp_path), spark=spark)
    assert bodies(where, target) == [0, 2, 4, 6, 8]
    with pytest.raises(ReplayError, match="colour"):
        restore(Choice((topic,), where="colour = 1"), Source(archive=kept), Target(where, target), Run("wrong", tmp_path), spark=spark)


def test_a_dry_run_counts_and_shows_and_sends_nothing(topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path) -> None:
    summary = restore(Choice((topic,), tags="even"), Source(archive=kept), Target(where, target, dry_run=True), Run("dry", tmp_path))
    assert (summary.chosen, summary.seen) == (COUNT // 2, COUNT)
    assert len(summary.shown) == 10
    assert bodies(where, target) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_x", "no/topic"])
def test_a_system_topic_is_refused(topic: str, where: dict[str, str], kept: Path, name: str) -> None:
    with pytest.raises(ReplayError):
        restore(Choice((topic,)), Source(archive=kept), Target(where, name), Run("system"))


# ---- how ------------------------------------------------------------------------------------------------------------------


def test_what_is_sent_says_where_it_comes_from_and_keeps_the_rest(
    topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path
) -> None:
    restore(Choice((topic,)), Source(archive=kept), Target(where, target), Run("marked", tmp_path))
    was = {row["body"]: row for row in rows(where, topic)}
    now = rows(where, target)
    assert len({row["unique_id"] for row in now}) == COUNT
    for row in now:
        old = was[row["body"]]
        assert (row["keys"], row["tags"]) == (old["keys"], old["tags"])
        assert row["properties"]["number"] == old["properties"]["number"]
        assert row["properties"]["REPLAY_OF"] == old["unique_id"]
        assert row["properties"]["REPLAY_RUN"] == "marked"
        assert row["unique_id"] != old["unique_id"]


def test_the_ids_of_a_run_are_the_same_from_the_archive_from_its_compacted_form_and_from_the_topic(
    servers: Servers, topic: str, where: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    archive(where, [topic], path, output=Output(batch_rows=50))
    seen = []
    sources: list[dict[str, Any]] = [{"archive": path}, {"archive": path}, {"where": where}, {"where": {"path": str(servers.store)}}]
    for number, source in enumerate(sources):
        goal = servers.topic(f"target-{uuid.uuid4().hex}", queues=2)
        restore(Choice((topic,)), Source(**source), Target(where, goal), Run("same", tmp_path / str(number)))
        seen.append(sorted((row["unique_id"], row["body"]) for row in rows(where, goal)))
        compact(path)
    assert seen[0] == seen[1] == seen[2] == seen[3]


def test_the_order_of_every_queue_can_be_kept(topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path) -> None:
    restore(Choice((topic,)), Source(archive=kept), Target(where, target, keep_order=True), Run("ordered", tmp_path))
    by_queue = [[int(row["body"]) for row in rows(where, target) if row["queue_id"] == queue] for queue in range(3)]
    assert by_queue == [list(range(queue, COUNT, 3)) for queue in range(3)]


def test_a_run_goes_on_where_it_stopped_and_another_begins_anew(
    topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PORTIONS_PER_CORE", 1)

    class Stopped(BaseException):
        pass

    def stop(_seen: int, _chosen: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        restore(Choice((topic,)), Source(archive=kept), Target(where, target), Run("a", tmp_path), progress=stop)
    sent = len(bodies(where, target))
    assert 0 < sent < COUNT
    summary = restore(Choice((topic,)), Source(archive=kept), Target(where, target), Run("a", tmp_path))
    assert (summary.chosen, summary.before) == (COUNT - sent, sent)
    assert bodies(where, target) == list(range(COUNT))
    assert restore(Choice((topic,)), Source(archive=kept), Target(where, target), Run("a", tmp_path)).chosen == 0
    with pytest.raises(ReplayError, match="another choice"):
        restore(Choice((topic,), tags="even"), Source(archive=kept), Target(where, target), Run("a", tmp_path))
    assert restore(Choice((topic,), tags="even"), Source(archive=kept), Target(where, target), Run("b", tmp_path)).chosen == COUNT // 2


def test_a_run_does_not_send_its_own_messages_once_more(servers: Servers, where: dict[str, str], tmp_path: Path) -> None:
    name = servers.topic(f"loop-{uuid.uuid4().hex}", queues=1)
    servers.send([Message(name, b"%d" % number) for number in range(5)])
    assert restore(Choice((name,)), Source(where=where), Target(where), Run("loop", tmp_path)).chosen == 5
    assert restore(Choice((name,)), Source(where=where), Target(where), Run("loop", tmp_path)).chosen == 0
    assert bodies(where, name) == sorted([*range(5), *range(5)])


def test_the_pace_is_kept_from_the_beginning() -> None:
    pace = Pace(100, now=10.0)
    assert pace.rows_max == 10
    assert pace.delay(10, now=10.0) == 0
    assert pace.delay(10, now=10.0) == pytest.approx(0.1)
    assert pace.delay(10, now=10.5) == 0
    assert Pace(None, 0.0).delay(10, 0.0) == 0


def test_the_rate_reaches_the_tasks(
    topic: str, where: dict[str, str], kept: Path, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("roquet.spark.pipelines.restore.time.sleep", slept.append)
    restore(Choice((topic,)), Source(archive=kept), Target(where, target, rate=100), Run("slow", tmp_path))
    assert sum(slept) > 0.5
    assert bodies(where, target) == list(range(COUNT))


# ---- the pure parts -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60))), st.lists(st.integers(0, 70)))
def test_stretches_put_together_hold_the_same_offsets(pairs: list[tuple[int, int]], offsets: list[int]) -> None:
    stretches = [(min(pair), max(pair)) for pair in pairs]
    made = joined(stretches)
    assert all(first[1] < second[0] for first, second in pairwise(made))
    wanted = [any(start <= offset < stop for start, stop in stretches) for offset in offsets]
    assert within(np.array(offsets, np.int64), made).tolist() == wanted


def test_progress_is_added_queue_by_queue() -> None:
    one, two = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)
    done = added({one: [(0, 5)]}, {one: [(5, 9)], two: [(1, 2)]})
    assert done == {one: [(0, 9)], two: [(1, 2)]}
    assert covers(done[one], 3, 9)
    assert not covers(done[one], 3, 10)


@given(st.lists(st.one_of(st.text("0123456789ABCDEF", min_size=32, max_size=32), st.text(min_size=1)), unique=True, min_size=1), st.text())
def test_ids_of_a_run_are_different_for_different_messages_and_the_same_for_the_same(origins: list[str], run: str) -> None:
    ids = [row.tobytes() for row in unique_ids(run, pa.array(origins))]
    assert len(set(ids)) == len(ids)
    assert ids == [row.tobytes() for row in unique_ids(run, pa.array(origins))]
    assert all(len(one) == 32 and one.isalnum() for one in ids)
    assert set(ids).isdisjoint(row.tobytes() for row in unique_ids(run + "x", pa.array(origins)))


NAMES = st.sampled_from(["a", "b", "REPLAY_OF", "REPLAY_RUN"])


@given(st.lists(st.one_of(st.none(), st.dictionaries(NAMES, st.text())), min_size=1), st.integers(0, 2))
def test_marks_are_added_to_any_map_and_older_marks_go(maps: list[dict[str, str] | None], skip: int) -> None:
    column = pa.array([None if one is None else list(one.items()) for one in maps], pa.map_(pa.string(), pa.string()))
    batch = pa.RecordBatch.from_arrays([column], names=["properties"]).slice(min(skip, len(maps) - 1))
    origin = pa.array([f"id-{number}" for number in range(batch.num_rows)])
    made = [dict(row) for row in replay.marked(batch, origin, "run").to_pylist()]
    wanted = maps[min(skip, len(maps) - 1) :]
    assert made == [{**(one or {}), "REPLAY_OF": f"id-{number}", "REPLAY_RUN": "run"} for number, one in enumerate(wanted)]


def test_files_that_share_a_stretch_of_a_queue_are_found() -> None:
    def file(path: str, *spans: tuple[int, int]) -> File:
        return File(path, "t", "d", 0, 0, 1, 0, 0, 0, tuple(Span("b", queue, start, stop, 1) for queue, (start, stop) in enumerate(spans)))

    assert overlapping([file("x", (0, 10)), file("y", (10, 20)), file("z", (20, 30))]) == set()
    assert overlapping([file("x", (0, 10)), file("y", (8, 20)), file("z", (20, 30))]) == {"x", "y"}
    assert overlapping([file("x", (0, 30)), file("y", (3, 4)), file("z", (5, 6))]) == {"x", "y", "z"}
    assert overlapping([file("x")]) == {"x"}


def test_kept_in_order_no_two_portions_of_a_queue_are_under_way_at_once() -> None:
    lanes = [[Portion("a", str(step)) for step in range(3)], [Portion("b", str(step)) for step in range(2)]]
    for now in rounds(lanes, 8, keep_order=True):
        assert len({portion.topic for portion in now}) == len(now)
    assert [len(now) for now in rounds(lanes, 4, keep_order=False)] == [4, 1]


# ---- the command ----------------------------------------------------------------------------------------------------------


def test_the_command_restores_and_says_how_much(
    topic: str, where: dict[str, str], kept: Path, target: str, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["pipeline", "restore", topic, "--archive", str(kept), "--tag", "even", "--to-topic", target, "-n", where["namesrvAddr"]]
    assert main([*call, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == COUNT // 2
    assert main(call) == 1
    assert "--yes" in capsys.readouterr().err
    assert main([*call, "--yes"]) == 0
    assert f"{COUNT // 2} messages" in capsys.readouterr().out
    assert main([*call, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"] == COUNT // 2
    assert len(bodies(where, target)) == COUNT // 2
