"""Consumer offsets: committing, asking, and the file that Java reads too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from roquet.broker.offsets import TEXTS_A_TURN
from roquet.broker.topics import Topic
from roquet.errors import Damaged
from roquet.wire import fastjson
from roquet.wire.calls.offsets import OffsetTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

from .conftest import MEMORY, BrokerKit, Golden, golden, recorded, same_answer
from .whole import Whole, send_fields

NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


def ask(kit: BrokerKit, **more: str) -> tuple[int, str | None, dict[str, str]]:
    answer = kit.request(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "g", "topic": "T", "queueId": "0"} | more)
    return answer.code, answer.remark, answer.fields


def file_of(kit: BrokerKit) -> Path:
    return kit.root / "config" / "consumerOffset.json"


@pytest.mark.parametrize("pair", golden(14), ids=str)
def test_a_query_is_answered_as_apache_answered_it(kit: BrokerKit, pair: Golden) -> None:
    fields = pair.request.fields
    stored = int(pair.response.fields["offset"])
    if stored:
        kit.offsets.commit(fields["consumerGroup"], fields["topic"], int(fields["queueId"]), stored)
    same_answer(kit.ask(pair.request), pair.response)


def test_every_commit_that_clients_were_seen_to_send_is_taken(kit: BrokerKit) -> None:
    for command in recorded(15, "c->s"):
        answer = kit.ask(command)
        assert (answer.code, answer.remark, answer.fields) == (0, None, {})
        fields = command.fields
        found = kit.offsets.find(fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        assert found == int(fields["commitOffset"])


def test_a_group_without_progress_starts_at_0_while_the_first_message_is_near(kit: BrokerKit) -> None:
    assert ask(kit) == (0, None, {"offset": "0"}), "a queue that does not exist yet"
    kit.put("T")
    assert ask(kit) == (0, None, {"offset": "0"})


def test_a_group_without_progress_is_not_found_once_the_queue_has_lost_its_first_message(kit: BrokerKit) -> None:
    kit.put("T")
    kit.put("T")
    kit.store.queue("T", 0).first = 1
    assert ask(kit) == (ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, {})


def test_a_group_without_progress_is_not_found_when_the_first_message_is_far_behind(kit: BrokerKit) -> None:
    kit.put("T")
    kit.offsets.memory_bytes = 100
    assert ask(kit) == (ResponseCode.QUERY_NOT_FOUND, NOT_FOUND, {})
    kit.offsets.memory_bytes = MEMORY
    assert ask(kit)[0] == ResponseCode.SUCCESS


def test_a_client_of_5_may_ask_not_to_be_given_0(kit: BrokerKit) -> None:
    assert ask(kit, setZeroIfNotFound="false")[0] == ResponseCode.QUERY_NOT_FOUND
    assert ask(kit, setZeroIfNotFound="true") == (0, None, {"offset": "0"})
    kit.offsets.commit("g", "T", 0, 4)
    assert ask(kit, setZeroIfNotFound="false") == (0, None, {"offset": "4"})


def test_an_offset_may_go_back(kit: BrokerKit) -> None:
    kit.offsets.commit("g", "T", 0, 9)
    kit.offsets.commit("g", "T", 0, 3)
    assert kit.offsets.find("g", "T", 0) == 3
    assert kit.offsets.find("g", "T", 1) == -1
    assert kit.offsets.find("other", "T", 0) == -1


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": "../x"}, {"topic": "a/b"}, {"topic": ""}, {"topic": "t" * 300}, {"consumerGroup": "g@h"}, {"consumerGroup": "g" * 256},
        {"consumerGroup": " "}, {"queueId": "-1"}, {"queueId": "65536"}, {"commitOffset": "-1"}, {"commitOffset": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_a_commit_that_makes_no_sense_is_refused_and_changes_nothing(kit: BrokerKit, wrong: dict[str, str]) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"} | wrong
    answer = kit.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert fastjson.loads(kit.offsets.encode()) == {"offsetTable": {}}


def test_a_negative_offset_does_not_replace_a_known_one(kit: BrokerKit) -> None:
    kit.offsets.commit("g", "T", 0, 5)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "-1"}
    assert kit.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SYSTEM_ERROR
    assert kit.offsets.find("g", "T", 0) == 5


def test_the_table_does_not_grow_without_end(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roquet.broker.offsets.ENTRIES_MAX", 3)
    fields = {"consumerGroup": "g", "topic": "T", "commitOffset": "1"}
    codes = [kit.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"queueId": str(number)}).code for number in range(4)]
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_ERROR]
    assert "limit" in kit.notices.list()[0].text
    kit.offsets.remove_group("g")
    assert kit.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields | {"queueId": "3"}).code == 0


def test_the_file_is_written_at_the_interval_and_only_when_something_changed(kit: BrokerKit) -> None:
    def tick(ms: int) -> None:
        kit.clock.forward(ms)
        kit.offsets.tick(kit.clock.steady_ms())

    tick(0)
    assert not file_of(kit).exists()
    kit.offsets.commit("g", "T", 0, 4)
    tick(1)
    assert fastjson.loads(file_of(kit).read_bytes()) == {"offsetTable": {"T@g": {"0": 4}}}
    kit.offsets.commit("g", "T", 0, 5)
    tick(4_999)
    assert fastjson.loads(file_of(kit).read_bytes()) == {"offsetTable": {"T@g": {"0": 4}}}
    tick(1)
    assert fastjson.loads(file_of(kit).read_bytes()) == {"offsetTable": {"T@g": {"0": 5}}}
    file_of(kit).unlink()
    tick(10_000)
    assert not file_of(kit).exists()
    kit.offsets.topic_deleted("T")
    tick(0)
    assert fastjson.loads(file_of(kit).read_bytes()) == {"offsetTable": {}}


def test_progress_survives_a_restart(kits: Callable[..., BrokerKit]) -> None:
    first = kits()
    first.offsets.commit("g", "T", 0, 5)
    first.offsets.commit("g", "%RETRY%g", 0, 2)
    first.close()
    assert file_of(first).read_text() == '{\n\t"offsetTable":{\n\t\t"T@g":{0:5\n\t\t},\n\t\t"%RETRY%g@g":{0:2\n\t\t}\n\t}\n}'
    again = kits()
    assert again.offsets.find("g", "T", 0) == 5
    assert again.offsets.topics_of("g") == ["T", "%RETRY%g"]
    assert again.offsets.groups_of("T") == ["g"]


def test_the_file_of_apache_is_read_and_written_back_equal(apache: BrokerKit) -> None:
    before = fastjson.loads(file_of(apache).read_bytes())
    assert apache.offsets.find("vec_group", "VecTopic", 0) == 27
    apache.offsets.commit("vec_group", "VecTopic", 0, 27)
    file_of(apache).unlink()
    apache.offsets.save_now()
    assert fastjson.loads(file_of(apache).read_bytes()) == before
    assert fastjson.loads(apache.request(RequestCode.GET_ALL_CONSUMER_OFFSET).body) == before


def test_the_table_as_one_answer_leaves_the_file_due(kit: BrokerKit) -> None:
    kit.offsets.commit("g", "T", 0, 5)
    assert kit.request(RequestCode.GET_ALL_CONSUMER_OFFSET).body == b'{"offsetTable":{"T@g":{0:5}}}'
    kit.offsets.tick(5_000)
    assert file_of(kit).exists()


def test_a_file_that_cannot_be_written_is_tried_again_and_said(kit: BrokerKit, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(data: bytes) -> None:
        raise OSError(28, "no space left")

    kit.offsets.commit("g", "T", 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(kit.offsets.saving.document, "_replace", full)
        kit.offsets.tick(0)
    assert "consumerOffset.json could not be written" in kit.notices.list()[0].text
    kit.clock.forward(5_000)
    kit.offsets.tick(kit.clock.steady_ms())
    assert not kit.notices.list()
    assert file_of(kit).exists()


def test_a_damaged_file_falls_back_to_the_one_before_it_and_without_one_stops_the_start(kits: Callable[..., BrokerKit]) -> None:
    first = kits()
    first.offsets.commit("g", "T", 0, 5)
    first.offsets.tick(0)
    first.offsets.commit("g", "T", 0, 6)
    first.close()
    file_of(first).write_bytes(bytes(40))
    again = kits()
    assert again.offsets.find("g", "T", 0) == 5
    assert "consumerOffset.json" in again.notices.list()[0].text
    again.close()
    file_of(first).with_suffix(".json.bak").write_bytes(b"{")
    file_of(first).write_bytes(b"{")
    with pytest.raises(Damaged, match=r"consumerOffset\.json"):
        kits()


def test_names_that_share_an_end_or_a_beginning_are_not_mixed_up(kit: BrokerKit) -> None:
    for topic, group in (("T", "g"), ("TT", "g"), ("T", "gg"), ("g", "T")):
        kit.offsets.commit(group, topic, 0, 1)
    assert sorted(kit.offsets.topics_of("g")) == ["T", "TT"]
    assert sorted(kit.offsets.groups_of("T")) == ["g", "gg"]
    assert kit.offsets.topics_by_group() == {"g": ["T", "TT"], "gg": ["T"], "T": ["g"]}
    kit.offsets.topic_deleted("T")
    assert kit.offsets.topics_by_group() == {"g": ["TT"], "T": ["g"]}
    kit.offsets.remove_group("g")
    assert kit.offsets.topics_by_group() == {"T": ["g"]}


def test_progress_is_saved_only_after_the_messages_it_speaks_of_are_flushed(tmp_path: Path) -> None:
    """A power loss must not leave a group ahead of messages that were lost: new ones get those offsets again, and are skipped."""
    whole = Whole(tmp_path / "store")
    whole.broker.topics.put(Topic("T", 1, 1))
    file = tmp_path / "store/config/consumerOffset.json"
    whole.background.hold = True
    whole.frames(Command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"body"))
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    whole.frames(Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields))
    assert whole.broker.store.log.flushed < whole.broker.store.log.written
    for _ in range(200):
        whole.tick(100)
        for job in [job for job in whole.background.waiting if "LogFlush" not in job[1].__qualname__]:
            whole.background.waiting.remove(job)
            work, done = job
            done(work())
    assert not file.exists(), "the message is in memory only, and its consumption on disk"
    whole.background.hold = False
    whole.background.release()
    whole.tick(100)
    assert fastjson.loads(file.read_bytes()) == {"offsetTable": {"T@g": {"0": 1}}}
    whole.close()


def test_the_file_of_many_groups_is_prepared_in_portions_and_misses_nothing(kit: BrokerKit) -> None:
    keys = 2 * TEXTS_A_TURN + 5
    for n in range(keys):
        kit.offsets.commit("g", f"T{n}", 0, 1)
    kit.offsets.tick(kit.clock.ms)
    assert len(kit.offsets.texts.texts) == TEXTS_A_TURN
    kit.offsets.commit("g", "T0", 0, 2)  # while the save is prepared: in this one or in the next
    kit.offsets.commit("g", f"T{keys - 1}", 0, 3)
    kit.offsets.topic_deleted("T4001")
    for _ in range(2):
        kit.offsets.tick(kit.clock.ms)
    path = kit.root / "config" / "consumerOffset.json"
    first = OffsetTable.decode(path.read_bytes()).offset_table
    assert len(first) == keys - 1
    assert first[f"T{keys - 1}@g"] == {0: 3}
    kit.clock.forward(5_000)
    kit.offsets.tick(kit.clock.ms)
    assert OffsetTable.decode(path.read_bytes()).offset_table["T0@g"] == {0: 2}


def test_one_who_fails_when_it_is_told_of_a_save_keeps_it_from_nobody(kit: BrokerKit, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Exception | None] = []

    def fails(error: Exception | None) -> None:
        raise ZeroDivisionError

    kit.offsets.commit("g", "T", 0, 1)
    kit.offsets.saving.when_saved(fails)
    kit.offsets.saving.when_saved(told.append)
    assert told == [None]
    assert "what waited for" in caplog.text


def test_who_waits_for_the_disk_is_told_of_the_save_that_holds_its_change(kit: BrokerKit) -> None:
    told: list[Exception | None] = []
    kit.offsets.saving.when_saved(told.append)
    assert told == [None], "nothing is unsaved"
    kit.offsets.commit("g", "T", 0, 1)
    kit.offsets.saving.when_saved(told.append)
    assert told == [None, None]
    assert OffsetTable.decode((kit.root / "config" / "consumerOffset.json").read_bytes()).offset_table["T@g"] == {0: 1}
