"""The core as a whole: dispatch, topics and registration, stop and start again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.admin import NOT_YET
from roquet.wire.calls.registration import RegisterBrokerBody
from roquet.wire.calls.table import CALLS
from roquet.wire.calls.topics import TopicTable
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import ONEWAY, Command

from .whole import Whole, pull_fields, send_fields


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", namesrv_addr="ns1:9876;ns2:9876")
    yield made
    made.close()


def topic_fields(name: str, read: int = 4, write: int = 4) -> dict[str, str]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": str(read), "writeQueueNums": str(write), "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip


class TestDispatch:
    def test_answers_an_unknown_code_with_3_and_upstream_s_remark(self, whole: Whole) -> None:
        answer = whole.ask(9_999)
        assert (answer.code, answer.remark) == (3, " request type 9999 not supported")

    def test_answers_no_code_but_those_of_the_table_of_calls(self, whole: Whole) -> None:
        assert {whole.ask(code).code for code in RequestCode if code not in CALLS} == {3}

    @pytest.mark.parametrize("code", sorted(NOT_YET))
    def test_answers_what_comes_later_with_3_and_a_sentence(self, whole: Whole, code: int) -> None:
        answer = whole.ask(code)
        assert answer.code == 3
        assert len(str(answer.remark)) > len(f" request type {code} not supported: ")

    def test_does_not_answer_oneway_requests_whatever_they_are(self, whole: Whole) -> None:
        for code in (9_999, 11, 34, 310):
            whole.frames(Command(code, flag=ONEWAY))
        assert whole.peer.take() == []

    def test_turns_an_unexpected_failure_into_an_answer(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        def boom(*args: object) -> None:
            raise RuntimeError("boom")

        whole.broker.table[RequestCode.GET_BROKER_CONFIG] = boom
        answer = whole.ask(RequestCode.GET_BROKER_CONFIG)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "boom" in str(answer.remark)

    def test_closes_a_peer_whose_header_is_no_header(self, whole: Whole) -> None:
        whole.broker.receive(whole.peer, [(0, b"[1]", b"")])
        assert whole.peer.closed


class TestTopics:
    def test_are_answered_when_every_name_server_knows_them(self, whole: Whole) -> None:
        whole.caller.answering = False
        whole.frames(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Fresh"), opaque=1))
        assert whole.peer.take() == []
        registrations = [call for call in whole.caller.calls if call[1].code == RequestCode.REGISTER_BROKER]
        assert {address for address, _, _ in registrations} == {"ns1:9876", "ns2:9876"}
        for _, command, done in registrations:
            assert "Fresh" in RegisterBrokerBody.decode(command.body).topics.topic_config_table
            done(command.reply())
        assert [answer.code for answer in whole.peer.take()] == [0]

    def test_survive_a_restart(self, whole: Whole, tmp_path: Path) -> None:
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Kept", 3, 5))
        whole.close()
        again = Whole(tmp_path / "store")
        topic = again.broker.topics.get("Kept")
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums) == (3, 5)
        again.close()

    def test_are_written_as_upstream_reads_them(self, whole: Whole) -> None:
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Kept"))
        table = TopicTable.decode((whole.root / "config" / "topics.json").read_bytes())
        assert table.topic_config_table["Kept"].read_queue_nums == 4
        assert {"TBW102", "SELF_TEST_TOPIC", "SCHEDULE_TOPIC_XXXX", "DefaultCluster"} <= table.topic_config_table.keys()

    def test_that_are_deleted_take_their_queues_and_offsets_along(self, whole: Whole) -> None:
        whole.ask(310, send_fields(), b"x")
        whole.broker.offsets.commit("g", "T", 0, 1)
        assert whole.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        assert whole.ask(11, pull_fields()).code == ResponseCode.TOPIC_NOT_EXIST
        assert not (whole.root / "consumequeue" / "T").exists()
        assert whole.broker.offsets.find("g", "T", 0) == -1
        assert whole.ask(310, send_fields(), b"again").fields["queueOffset"] == "0"

    def test_that_were_deleted_and_made_again_keep_only_the_new_messages_over_a_crash(self, whole: Whole, tmp_path: Path) -> None:
        for body in (b"old 1", b"old 2"):
            whole.ask(310, send_fields(), body)
        whole.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        whole.ask(310, send_fields(), b"new")
        assert whole.broker.store.is_open
        whole.broker.store.locks.close()
        again = Whole(tmp_path / "store")
        queue = again.broker.store.queue("T", 0)
        assert (queue.first, queue.visible) == (0, 1)
        again.close()

    def test_of_the_system_are_not_touched(self, whole: Whole) -> None:
        assert whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("TBW102")).code == 1
        assert whole.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "SELF_TEST_TOPIC"}).code == 1

    @pytest.mark.parametrize(("read", "write"), [(0, 4), (4, 0), (-1, 4), (4, 65_536)])
    def test_have_a_sensible_number_of_queues(self, whole: Whole, read: int, write: int) -> None:
        answer = whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Odd", read, write))
        assert answer.code == 1
        assert "65535" in str(answer.remark)

    def test_shrink_without_losing_a_message(self, whole: Whole) -> None:
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 8, 8))
        for queue_id in range(8):
            whole.ask(310, send_fields(queue_id=queue_id), b"%d" % queue_id)
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 8, 4))
        assert whole.ask(11, pull_fields(queue_id=7)).code == 0  # still readable, no longer written to by producers
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 4, 4))
        (notice,) = whole.broker.notices.list()
        assert "4 messages" in notice.text
        assert "readQueueNums" in notice.text
        whole.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T", 8, 4))
        assert whole.ask(11, pull_fields(queue_id=7)).code == 0
        assert whole.broker.notices.list() == []


class TestRegistration:
    def test_comes_at_once_and_every_thirty_seconds(self, whole: Whole) -> None:
        def registrations() -> int:
            return sum(command.code == RequestCode.REGISTER_BROKER for _, command, _ in whole.caller.calls)

        whole.tick(0)
        assert registrations() == 2
        whole.tick(29_000)
        assert registrations() == 2
        whole.tick(1_000)
        assert registrations() == 4

    def test_is_tried_again_soon_when_it_fails(self, whole: Whole) -> None:
        whole.caller.answering = False
        whole.tick(0)
        for _, command, done in whole.caller.calls:
            done(command.reply(1, "crc32 not match"))
        assert set(whole.broker.registration.failing) == {"ns1:9876", "ns2:9876"}
        whole.caller.calls.clear()
        whole.tick(1_000)
        assert len(whole.caller.calls) == 2

    def test_is_withdrawn_at_a_clean_stop(self, whole: Whole) -> None:
        gone: list[bool] = []
        whole.broker.registration.unregister(lambda: gone.append(True))
        assert [command.code for _, command, _ in whole.caller.calls] == [RequestCode.UNREGISTER_BROKER] * 2
        assert gone == [True]
