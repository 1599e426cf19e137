from __future__ import annotations

from pathlib import Path

import pytest
from chaos.cluster import acknowledgements
from chaos.history import Acknowledged, History, Place, Writer, read_back


def write_some(path: Path) -> None:
    with Writer(path, "producer-1") as writer:
        writer.write("send", id="producer-1-0", crc=5, kind="plain", not_before=0.0)
        writer.write("acknowledged", id="producer-1-0", queue="broker-a/1", offset=3, status="SEND_OK")
        writer.write("send", id="producer-1-1", crc=6, kind="plain", not_before=0.0)
        writer.write("failed", id="producer-1-1", why="no answer")
        writer.write("read", id="producer-1-0", crc=5, queue="broker-a/1", offset=3, group="readers")


def test_what_clients_wrote_is_read_back(tmp_path: Path) -> None:
    write_some(tmp_path / "one.jsonl")
    history = read_back([tmp_path / "one.jsonl"])
    assert list(history.sends) == ["producer-1-0", "producer-1-1"]
    (answer,) = history.acknowledged.values()
    assert answer == Acknowledged(answer.at, Place("broker-a/1", 3), "SEND_OK")
    assert history.failed == {"producer-1-1": "no answer"}
    assert history.reads[0].group == "readers"
    assert history.sends["producer-1-0"].at <= answer.at


def test_the_torn_line_of_a_killed_client_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write_some(path)
    with path.open("ab") as file:
        file.write(b'{"at":1,"by":"producer-1","did":"se')
    assert len(read_back([path]).sends) == 2


def test_a_reading_has_what_was_found_and_how_far_the_queues_go(tmp_path: Path) -> None:
    with Writer(tmp_path / "run.jsonl", "run") as writer:
        writer.write("began reading", reading="broker-1", must_hold_all=True, all_delivered=False)
        writer.write("read", reading="broker-1", id="a", crc=1, queue="broker-a/0", offset=0)
        writer.write("range", reading="broker-1", queue="broker-a/0", first=0, end=1)
    (reading,) = read_back([tmp_path / "run.jsonl"]).readings
    assert not reading.all_delivered
    assert reading.ranges == {"broker-a/0": (0, 1)}
    assert reading.found == {Place("broker-a/0", 0): "a"}


def test_an_event_that_is_unknown_is_refused_with_what_is_known() -> None:
    with pytest.raises(ValueError, match="none of: send"):
        History().add({"at": 0, "by": "x", "did": "jump"})


def test_acknowledgements_are_taken_from_where_the_last_look_ended(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write_some(path)
    offsets: dict[Path, int] = {}
    assert [status for _, status in acknowledgements([path], offsets)] == ["SEND_OK"]
    assert acknowledgements([path], offsets) == []
    with Writer(path, "producer-1") as writer:
        writer.write("acknowledged", id="producer-1-1", queue="broker-a/1", offset=4, status="FLUSH_SLAVE_TIMEOUT")
    with path.open("ab") as file:
        file.write(b'{"at":1,"did":"acknowledged"')
    assert [status for _, status in acknowledgements([path], offsets)] == ["FLUSH_SLAVE_TIMEOUT"]
