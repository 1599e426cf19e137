"""SQL filters at a whole broker: subscribing, pulling, waiting, and what consumerFilter.json keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roquet.broker import filters as filters_module
from roquet.broker import pull as pull_module
from roquet.broker.bloom import positions, size_of
from roquet.broker.filters import properties_at
from roquet.store.disk import Cold, RealFile
from roquet.testing import FakePeer
from roquet.wire import fastjson
from roquet.wire.calls.members import HeartbeatBody, SubscriptionData
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import MAGIC_V2
from roquet.wire.record import Record, decode_records

from .whole import Whole, pull_fields, send_fields

DAY_MS = 86_400_000
WAIT = "2"
"""The pull's own flags: wait for messages, and take the subscription of the heartbeat."""


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", enable_property_filter=True)
    yield made
    made.background.hold = False
    made.background.release()
    made.close()


def send(whole: Whole, body: bytes, *, topic: str = "T", **properties: str) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    assert whole.ask(310, send_fields(topic=topic, properties=text), body).code == 0


def beat(expression: str = "a > 5", version: int = 1, *, topic: str = "T", group: str = "g", kind: str = "SQL92", more: Any = ()) -> bytes:
    subscription = {"topic": topic, "subString": expression, "subVersion": version, "expressionType": kind}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription, *more], "unitMode": False,
    }  # fmt: skip
    return HeartbeatBody.from_json({"clientID": "c1", "consumerDataSet": [consumer], "producerDataSet": []}).encode()


def heartbeat(whole: Whole, *args: Any, **more: Any) -> None:
    assert whole.ask(RequestCode.HEART_BEAT, body=beat(*args, **more)).code == 0


def pull(whole: Whole, offset: int = 0, version: int = 1, flags: str = "0", **more: str) -> Command:
    return whole.ask(11, pull_fields(offset=offset, sysFlag=flags, subVersion=str(version)) | more)


def check(whole: Whole, expression: str, kind: str | None = "SQL92") -> Command:
    body = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "subString": expression, "expressionType": kind}}
    return whole.ask(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body))


def bodies(answer: Command) -> list[bytes]:
    return [record.body for record in decode_records(answer.body)]


class TestSubscribing:
    def test_a_good_expression_is_accepted(self, whole: Whole) -> None:
        assert check(whole, "a > 5 AND b IN ('x', 'y')").code == 0
        assert check(whole, "a || b", "TAG").code == 0
        assert check(whole, "anything", None).code == 0

    def test_a_bad_one_is_refused_with_the_place_of_the_mistake(self, whole: Whole) -> None:
        answer = check(whole, "a > 5 AN b = 1")
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert answer.remark == "SQL92 expression, line 1 column 7, near 'AN b = 1': expected AND, OR or the end of the expression"
        assert check(whole, "").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert check(whole, "x", "GROOVY").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    def test_where_it_is_switched_off_it_is_refused_as_upstream_does(self, whole: Whole) -> None:
        whole.settings.enable_property_filter = False
        answer = check(whole, "a > 5")
        assert (answer.code, answer.remark) == (1, "The broker does not support consumer to filter message by SQL92")
        send(whole, b"x")
        answer = whole.ask(11, pull_fields(expressionType="SQL92", subscription="a > 1"))
        assert (answer.code, answer.remark) == (1, "The broker does not support consumer to filter message by SQL92")
        heartbeat(whole)
        assert pull(whole).code == 1

    @pytest.mark.parametrize("code", [301, 302])
    def test_code_of_a_user_is_never_taken(self, whole: Whole, code: int) -> None:
        assert whole.ask(code, {}, b"class Filter {}").code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class TestAPull:
    def test_takes_only_what_matches(self, whole: Whole) -> None:
        for number in range(10):
            send(whole, b"%d" % number, a=str(number))
        heartbeat(whole)
        answer = pull(whole)
        assert (answer.code, bodies(answer), answer.fields["nextBeginOffset"]) == (0, [b"6", b"7", b"8", b"9"], "10")

    def test_may_bring_its_own_expression(self, whole: Whole) -> None:
        for number in range(4):
            send(whole, b"%d" % number, a=str(number), TAGS="t")
        own = pull_fields(expressionType="SQL92", subscription="a BETWEEN 1 AND 2 AND TAGS = 't'")
        assert bodies(whole.ask(11, own)) == [b"1", b"2"]
        answer = whole.ask(11, own | {"subscription": "a BETWEEN 1"})
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "line 1 column 12, at the end" in (answer.remark or "")

    def test_is_told_27_when_the_group_has_no_filter_and_28_when_it_has_an_old_one(self, whole: Whole) -> None:
        send(whole, b"x", a="6")
        heartbeat(whole, "a >")
        answer = pull(whole)
        assert (answer.code, answer.remark) == (27, "The broker's consumer filter data is not exist!Your expression may be wrong!")
        notice = next(one for one in whole.broker.notices.list() if "filter" in one.key)
        assert "column 4, at the end" in notice.text
        heartbeat(whole, "a > 5", 2)
        assert bodies(pull(whole, version=2)) == [b"x"]
        assert not [one for one in whole.broker.notices.list() if "filter" in one.key]
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        found.client_version = 1
        answer = pull(whole, version=2)
        assert (answer.code, answer.remark) == (28, "the consumer's consumer filter data not latest")

    def test_an_older_heartbeat_does_not_take_a_newer_filter_away(self, whole: Whole) -> None:
        for number in (1, 2):
            send(whole, b"%d" % number, a=str(number))
        heartbeat(whole, "a = 2", 5)
        heartbeat(whole, "a = 1", 4)
        assert bodies(pull(whole, version=5)) == [b"2"]

    def test_that_matches_nothing_advances(self, whole: Whole) -> None:
        for _ in range(3):
            send(whole, b"x", a="1")
        heartbeat(whole)
        answer = pull(whole)
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (20, "NO_MATCHED_MESSAGE", "3")

    def test_judges_a_bounded_number_of_entries_and_goes_on_from_there(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pull_module, "SCAN_MAX", 4)
        for number in range(10):
            send(whole, b"%d" % number, a=str(number))
        heartbeat(whole, "a = 9")
        offsets, found = [0], b""
        while not found:
            answer = pull(whole, offsets[-1], maxMsgNums="2")
            offsets.append(int(answer.fields["nextBeginOffset"]))
            found = answer.body
        assert offsets == [0, 4, 8, 10]

    def test_an_expensive_filter_sees_fewer_entries(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(30):
            send(whole, b"x", a="1")
        expression = " OR ".join(["a = 2"] * 100)
        heartbeat(whole, expression)
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        assert found.filter is not None
        monkeypatch.setattr(pull_module, "WORK_MAX", found.filter.cost * 7)
        assert pull(whole).fields["nextBeginOffset"] == "7"

    def test_reads_a_bounded_number_of_bytes(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pull_module, "JUDGED_BYTES_MAX", 3_000)
        monkeypatch.setattr(pull_module, "SPAN_MAX", 1_500)
        for _ in range(10):
            send(whole, bytes(1_000), a="1")
        heartbeat(whole)
        assert pull(whole).fields["nextBeginOffset"] == "3"

    def test_keeps_to_the_count_and_the_size_of_an_answer(self, whole: Whole) -> None:
        for number in range(20):
            send(whole, bytes(100), a=str(number % 2 * 10))
        heartbeat(whole)
        answer = pull(whole, maxMsgNums="3")
        assert (len(bodies(answer)), answer.fields["nextBeginOffset"]) == (3, "6")
        answer = pull(whole, maxMsgBytes="500")
        assert (len(bodies(answer)), answer.fields["nextBeginOffset"]) == (2, "5")
        assert len(bodies(pull(whole, maxMsgBytes="1"))) == 1

    def test_stops_at_what_must_be_read_from_disk_and_keeps_what_it_has(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pull_module, "SPAN_MAX", 1)  # a read each
        for number in range(6):
            send(whole, b"%d" % number, a=str(number + 5))
        heartbeat(whole)
        entry = whole.broker.store.find_queue("T", 0).entry(3)  # type: ignore[union-attr]  # it exists, a message is in it
        assert entry is not None
        warm: set[int] = set()
        read_now = RealFile.read_now

        def maybe(self: RealFile, offset: int, size: int) -> bytes:
            if "commitlog" in self.path and offset >= entry[0] and offset not in warm:
                raise Cold(lambda: warm.add(offset))
            return read_now(self, offset, size)

        monkeypatch.setattr(RealFile, "read_now", maybe)
        answer = pull(whole)
        assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"1", b"2"], "3")
        answer = pull(whole, 3)  # all that follow come with one trip to the disk
        assert (bodies(answer), answer.fields["nextBeginOffset"]) == ([b"3", b"4", b"5"], "6")

    def test_a_record_that_is_none_is_nobodys(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        send(whole, b"x", a="6")
        heartbeat(whole)
        monkeypatch.setattr(RealFile, "read_now", lambda self, offset, size: b"\xff" * size)
        answer = pull(whole)
        assert (answer.code, answer.fields["nextBeginOffset"]) == (20, "1")


class TestWaiting:
    def test_ends_with_the_first_message_that_matches_and_not_before(self, whole: Whole) -> None:
        heartbeat(whole)
        send(whole, b"old", a="1")
        whole.frames(Command(11, pull_fields(sysFlag=WAIT, subVersion="1"), opaque=77))
        for number in range(4):
            send(whole, b"no", a=str(number))
        assert whole.peer.take() == []
        assert len(whole.broker.puller.parking) == 1
        whole.frames(Command(310, send_fields(properties="a\x0150"), b"yes", opaque=78))
        answers = {answer.opaque: answer for answer in whole.peer.take()}
        assert (bodies(answers[77]), answers[77].fields["nextBeginOffset"]) == ([b"yes"], "6")

    def test_ends_at_the_deadline_behind_what_was_judged_and_judges_nothing_twice(self, whole: Whole) -> None:
        heartbeat(whole)
        send(whole, b"old", a="1")
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        judged: list[bytes] = []

        class Watched:
            cost = 1

            def takes(self, data: bytes, start: int, stop: int) -> bool:
                judged.append(data[start:stop])
                return False

        found.filter = Watched()  # type: ignore[assignment]  # a judge that tells
        whole.frames(Command(11, pull_fields(sysFlag=WAIT, subVersion="1"), opaque=77))
        for number in range(3):
            send(whole, b"no", a=str(number))
        whole.tick(15_000)
        (answer,) = whole.peer.take()
        assert (answer.code, answer.remark, answer.fields["nextBeginOffset"]) == (19, "OFFSET_OVERFLOW_ONE", "4")
        assert [one.partition(b"\x02")[0] for one in judged] == [b"a\x011", b"a\x010", b"a\x011", b"a\x012"]


class TestAClockThatWasSetBack:
    def test_does_not_make_a_group_that_comes_back_keep_its_old_expression(self, whole: Whole) -> None:
        """Versions are times of the client. All of the group were away, so there is nobody whose version is newer."""
        heartbeat(whole, "a > 5", version=3_600_000)
        whole.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"})
        heartbeat(whole, "a < 5", version=1_000)
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        assert (found.expression, found.client_version) == ("a < 5", 1_000)


class TestRetryTopics:
    TOPIC = "%RETRY%g"

    def test_are_not_judged_when_subscribed_to_by_tag_as_clients_do(self, whole: Whole) -> None:
        heartbeat(whole, more=[{"topic": self.TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG"}])
        send(whole, b"again", topic=self.TOPIC, a="1", RETRY_TOPIC="T")
        assert bodies(pull(whole, topic=self.TOPIC)) == [b"again"]

    def test_are_judged_by_their_own_expression_or_by_that_of_the_first_topic(self, whole: Whole) -> None:
        heartbeat(whole, more=[{"topic": self.TOPIC, "subString": "a = 1", "subVersion": 1, "expressionType": "SQL92"}])
        send(whole, b"1", topic=self.TOPIC, a="1", RETRY_TOPIC="T")
        send(whole, b"9", topic=self.TOPIC, a="9", RETRY_TOPIC="T")
        send(whole, b"of nobody", topic=self.TOPIC, a="1", RETRY_TOPIC="other")
        assert bodies(pull(whole, topic=self.TOPIC)) == [b"1", b"of nobody"]
        whole.settings.filter_support_retry = True
        assert bodies(pull(whole, topic=self.TOPIC)) == [b"9", b"of nobody"]


class TestTheFile:
    def path(self, whole: Whole) -> Path:
        return whole.root / "config" / "consumerFilter.json"

    def saved(self, whole: Whole) -> dict[str, Any]:
        whole.tick(10_000)
        found: dict[str, Any] = json.loads(self.path(whole).read_text())["filterDataByTopic"]
        return found

    def test_is_written_as_java_writes_it(self, whole: Whole) -> None:
        heartbeat(whole, "a > 1", 5)
        born_ms = whole.clock.ms
        self.saved(whole)
        assert self.path(whole).read_text() == (
            '{\n\t"filterDataByTopic":{\n\t\t"T":{\n\t\t\t"groupFilterData":{\n\t\t\t\t"g":{\n\t\t\t\t\t"bloomFilterData":{\n'
            '\t\t\t\t\t\t"bitNum":112,\n\t\t\t\t\t\t"bitPos":[90,68,28]\n\t\t\t\t\t},\n'
            f'\t\t\t\t\t"bornTime":{born_ms},\n\t\t\t\t\t"clientVersion":5,\n\t\t\t\t\t"consumerGroup":"g",\n\t\t\t\t\t"dead":false,\n'
            '\t\t\t\t\t"deadTime":0,\n\t\t\t\t\t"expression":"a > 1",\n\t\t\t\t\t"expressionType":"SQL92",\n\t\t\t\t\t"topic":"T"\n'
            '\t\t\t\t}\n\t\t\t},\n\t\t\t"topic":"T"\n\t\t}\n\t}\n}'
        )

    def test_of_many_filters_is_laid_out_as_the_plain_encoder_would_and_made_in_portions(self, whole: Whole) -> None:
        filters = whole.broker.filters
        for n in range(450):
            one = SubscriptionData(f"T{n % 3}", f"a > {n}", expression_type="SQL92", sub_version=1)
            filters.heard(f"g{n}", [one])
        filters.heard("bad", [SubscriptionData("T0", "a >", expression_type="SQL92", sub_version=1)])
        counts: list[int] = []
        while filters.texts.stale and len(counts) < 10:
            counts.append(len(filters.texts.stale))
            whole.tick(50)
        assert counts == [451, 251, 51]
        found = self.saved(whole)
        assert {topic: len(inner["groupFilterData"]) for topic, inner in found.items()} == {"T0": 150, "T1": 150, "T2": 150}
        assert self.path(whole).read_bytes() == fastjson.dumps_pretty({"filterDataByTopic": found})

    def test_keeps_filters_over_a_restart(self, whole: Whole) -> None:
        send(whole, b"x", a="6")
        heartbeat(whole, "a > 5", 5)
        whole.close()
        again = Whole(whole.root, enable_property_filter=True)
        found = again.broker.filters.find("T", "g")
        assert found is not None
        assert (found.expression, found.client_version, found.is_dead) == ("a > 5", 5, True)
        assert found.dead_ms == max(again.clock.ms - 30_000, found.born_ms)
        heartbeat(again, "a > 5", 5)
        assert not found.is_dead
        assert bodies(pull(again, version=5)) == [b"x"]
        again.close()

    def test_of_a_java_broker_is_taken_over(self, tmp_path: Path) -> None:
        """Written by ConsumerFilterManager.encode of 4.9.7, with bit maps for another number of groups."""
        config = tmp_path / "store" / "config"
        config.mkdir(parents=True)
        (config / "consumerFilter.json").write_text(
            '{\n\t"filterDataByTopic":{\n\t\t"T":{\n\t\t\t"groupFilterData":{\n\t\t\t\t"g":{\n\t\t\t\t\t"bloomFilterData":{\n'
            '\t\t\t\t\t\t"bitNum":216,\n\t\t\t\t\t\t"bitPos":[162,52,132]\n\t\t\t\t\t},\n\t\t\t\t\t"bornTime":1794742182181,\n'
            '\t\t\t\t\t"clientVersion":5,\n\t\t\t\t\t"consumerGroup":"g",\n\t\t\t\t\t"dead":false,\n\t\t\t\t\t"deadTime":0,\n'
            '\t\t\t\t\t"expression":"a > 1",\n\t\t\t\t\t"expressionType":"SQL92",\n\t\t\t\t\t"topic":"T"\n\t\t\t\t}\n\t\t\t},\n'
            '\t\t\t"topic":"T"\n\t\t}\n\t}\n}'
        )
        whole = Whole(tmp_path / "store")
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        assert (found.expression, found.client_version, found.born_ms) == ("a > 1", 5, 1794742182181)
        assert self.saved(whole)["T"]["groupFilterData"]["g"]["bloomFilterData"] == {"bitNum": 112, "bitPos": [90, 68, 28]}
        whole.close()

    def test_keeps_them_for_a_day_after_the_group_left(self, whole: Whole) -> None:
        heartbeat(whole)
        whole.broker.disconnected(whole.peer)
        left_ms = whole.clock.ms
        one = self.saved(whole)["T"]["groupFilterData"]["g"]
        assert (one["dead"], one["deadTime"]) == (True, left_ms)
        whole.tick(DAY_MS - 20_000)
        assert whole.broker.filters.find("T", "g") is not None
        whole.tick(10_000)
        assert whole.broker.filters.find("T", "g") is None
        assert self.saved(whole) == {}

    def test_of_many_groups_that_leave_together_some_a_tick_are_marked_as_dead(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters_module, "LEFT_A_TICK", 2)
        for group in "abcde":
            heartbeat(whole, group=group)
        left_ms = whole.clock.ms
        whole.broker.disconnected(whole.peer)
        dead = []
        for _ in range(3):
            whole.tick(50)
            found = [whole.broker.filters.find("T", group) for group in "abcde"]
            dead.append(sum(one is not None and one.is_dead and one.dead_ms == left_ms for one in found))
        assert dead == [2, 4, 5]

    def test_of_groups_that_left_just_before_a_stop_the_file_says_so(self, whole: Whole) -> None:
        heartbeat(whole)
        left_ms = whole.clock.ms
        whole.broker.disconnected(whole.peer)
        whole.broker.filters.save_now()
        one = self.saved(whole)["T"]["groupFilterData"]["g"]
        assert (one["dead"], one["deadTime"]) == (True, left_ms)

    def test_a_topic_that_is_no_longer_subscribed_to_is_dead_and_comes_alive_again(self, whole: Whole) -> None:
        heartbeat(whole, "a > 5", 1)
        heartbeat(whole, "*", 1, topic="other", kind="TAG")
        found = whole.broker.filters.find("T", "g")
        assert found is not None
        assert found.is_dead
        heartbeat(whole, "a > 5", 2)
        assert (found.is_dead, found.client_version, found.dead_ms) == (False, 2, 0)

    def test_forgets_the_filters_of_a_deleted_topic(self, whole: Whole) -> None:
        send(whole, b"x", a="6")
        heartbeat(whole)
        assert whole.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
        assert whole.broker.filters.find("T", "g") is None

    def test_leaves_out_what_cannot_be_used(self, whole: Whole) -> None:
        heartbeat(whole, "a >")
        assert self.saved(whole) == {}

    def test_an_expression_in_it_that_cannot_be_used_is_a_notice(self, tmp_path: Path) -> None:
        config = tmp_path / "store" / "config"
        config.mkdir(parents=True)
        one = {"expression": "a LIKE 'x'", "expressionType": "SQL92", "clientVersion": 1, "bornTime": 1, "deadTime": 0}
        text = json.dumps({"filterDataByTopic": {"T": {"topic": "T", "groupFilterData": {"g": one}}}})
        (config / "consumerFilter.json").write_text(text)
        whole = Whole(tmp_path / "store")
        assert whole.broker.filters.find("T", "g") is None
        assert "there is no LIKE" in whole.broker.notices.list()[0].text
        whole.close()

    def test_that_cannot_be_read_is_begun_anew(self, tmp_path: Path) -> None:
        config = tmp_path / "store" / "config"
        config.mkdir(parents=True)
        (config / "consumerFilter.json").write_text("{")
        whole = Whole(tmp_path / "store", enable_property_filter=True)
        assert "consumerFilter.json" in whole.broker.notices.list()[0].text
        heartbeat(whole)
        assert list(self.saved(whole)) == ["T"]
        whole.close()


class TestBounds:
    def test_the_number_of_filters_is_bounded(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters_module, "FILTERS_MAX", 2)
        for group in ("g1", "g2", "g3"):
            heartbeat(whole, group=group)
        assert [whole.broker.filters.find("T", group) is not None for group in ("g1", "g2", "g3")] == [True, True, False]
        assert "limits are 2 and" in whole.broker.notices.list()[0].text

    def test_the_length_of_all_expressions_is_bounded(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters_module, "EXPRESSIONS_MAX", 12)
        heartbeat(whole, group="g1")
        heartbeat(whole, group="g2")
        heartbeat(whole, group="g3")
        assert whole.broker.filters.find("T", "g3") is None
        heartbeat(whole, "a > 5555", 2, group="g2")
        assert whole.broker.filters.find("T", "g2") is None

    def test_one_heartbeat_makes_us_parse_a_bounded_amount(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(filters_module, "HEARTBEAT_COMPILES_MAX", 12)
        more = [{"topic": f"T{n}", "subString": f"a > {n}", "subVersion": 1, "expressionType": "SQL92"} for n in range(9)]
        counts = []
        for _ in range(6):
            heartbeat(whole, more=more)
            counts.append(sum(whole.broker.filters.find(topic, "g") is not None for topic in ("T", *(f"T{n}" for n in range(9)))))
        assert counts == [3, 6, 9, 10, 10, 10]


def test_bloom_positions_are_those_of_java() -> None:
    """From BloomFilter.createByFn(20, 32).generate(key) of rocketmq-filter 4.9.7."""
    assert size_of(20, 32) == (3, 112)
    assert [size_of(rate, groups) for rate in (1, 20, 50) for groups in (1, 32, 1000)] == [
        (7, 16), (7, 312), (7, 9592), (3, 8), (3, 112), (3, 3352), (1, 8), (1, 48), (1, 1448),
    ]  # fmt: skip
    for key, bits in {
        "g#T": [90, 68, 28],
        "billing#orders": [31, 20, 9],
        "CID_x#%RETRY%CID_x": [11, 105, 33],
        "ein-längerer-name#thema": [21, 17, 87],
        "a#b": [101, 103, 59],
        "0123456789abcdef#0123456789abcdef": [30, 43, 26],
    }.items():
        assert positions(key, 3, 112) == bits


@pytest.mark.parametrize("born", [8, 20])
@pytest.mark.parametrize("stored", [8, 20])
@pytest.mark.parametrize("magic", [0xDAA320A7, MAGIC_V2])
def test_properties_are_found_in_every_kind_of_record(born: int, stored: int, magic: int) -> None:
    record = Record("T", 0, b"body" * 99, b"a\x015", born_host=bytes(born), store_host=bytes(stored), magic=magic).encode()
    data = b"before" + record
    assert data[properties_at(data, 6) :] == b"a\x015"


def test_a_parked_pull_of_a_peer_that_left_is_forgotten(whole: Whole) -> None:
    heartbeat(whole)
    send(whole, b"old", a="1")
    gone = FakePeer("127.0.0.1:2")
    whole.broker.handle(gone, Command(11, pull_fields(sysFlag=WAIT, subVersion="1")))
    gone.closed = True
    send(whole, b"new", a="9")
    assert gone.sent == []
    assert len(whole.broker.puller.parking) == 0
