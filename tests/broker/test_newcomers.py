"""New names: how many a second, and what honest clients notice of somebody who brings too many."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from roquet.broker.newcomers import ALL_FACTOR, BURST_S, Newcomers
from roquet.errors import Refused
from roquet.settings import BrokerSettings
from roquet.testing import FakePeer
from roquet.testing.clock import ManualClock
from roquet.wire.calls.members import ConsumerData, HeartbeatBody, SubscriptionData
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command
from roquet.wire.names import retry_topic

from .whole import Whole, pull_fields, send_fields

RATE = 10
BURST = RATE * BURST_S


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    made = Whole(tmp_path / "store", namesrv_addr="ns1:9876", new_names_per_second=RATE)
    yield made
    made.close()


def heartbeat(*groups: str, client_id: str = "c") -> Command:
    data = [ConsumerData(group_name=group, subscription_data_set=[SubscriptionData("T", "*")]) for group in groups]
    return Command(RequestCode.HEART_BEAT, {}, HeartbeatBody(client_id=client_id, consumer_data_set=data).encode(), opaque=1)


def ask(whole: Whole, peer: FakePeer, command: Command) -> Command:
    answers = whole.broker.sender.begin(peer)
    whole.broker.handle(peer, command)
    whole.broker.sender.finish(answers)
    (answer,) = [one for one in peer.take() if one.is_response]
    return answer


def made(whole: Whole, groups: list[str]) -> int:
    return sum(group in whole.broker.groups and whole.broker.topics.get(retry_topic(group)) is not None for group in groups)


class TestSends:
    def test_to_too_many_new_topics_are_turned_away_with_the_limit_in_the_answer(self, whole: Whole) -> None:
        answers = [whole.ask(310, send_fields(f"T-{n}"), b"x") for n in range(BURST + 1)]
        assert [answer.code for answer in answers[:BURST]] == [0] * BURST
        assert answers[BURST].code == ResponseCode.SYSTEM_BUSY
        assert "newNamesPerSecond=10" in str(answers[BURST].remark)

    def test_to_known_topics_go_on_meanwhile(self, whole: Whole) -> None:
        for n in range(BURST + 1):
            whole.ask(310, send_fields(f"T-{n}"), b"x")
        assert whole.ask(310, send_fields("T-0"), b"x").code == 0

    def test_to_new_topics_are_taken_again_after_a_while_whatever_the_wall_clock_says(self, whole: Whole) -> None:
        for n in range(BURST + 1):
            whole.ask(310, send_fields(f"T-{n}"), b"x")
        whole.clock.step(3_600_000)
        assert whole.ask(310, send_fields("Later"), b"x").code == ResponseCode.SYSTEM_BUSY
        whole.clock.step(-7_200_000)
        whole.clock.forward(1_000)
        codes = [whole.ask(310, send_fields(f"Later-{n}"), b"x").code for n in range(RATE + 1)]
        assert codes == [0] * RATE + [ResponseCode.SYSTEM_BUSY]

    def test_of_another_address_are_not_counted_with_the_flood(self, whole: Whole) -> None:
        for n in range(BURST + 1):
            whole.ask(310, send_fields(f"T-{n}"), b"x")
        assert ask(whole, FakePeer("10.0.0.2:1"), Command(310, send_fields("Honest"), b"x")).code == 0

    def test_of_the_same_address_on_another_connection_are(self, whole: Whole) -> None:
        for n in range(BURST + 1):
            whole.ask(310, send_fields(f"T-{n}"), b"x")
        assert ask(whole, FakePeer("127.0.0.1:2"), Command(310, send_fields("Again"), b"x")).code == ResponseCode.SYSTEM_BUSY

    def test_of_one_network_of_64_bits_are_those_of_one_address(self, whole: Whole) -> None:
        """One machine may have all of it."""
        codes = [ask(whole, FakePeer(f"[2001:db8::{n:x}]:1"), Command(310, send_fields(f"T-{n}"), b"x")).code for n in range(BURST + 1)]
        assert codes == [0] * BURST + [ResponseCode.SYSTEM_BUSY]
        assert ask(whole, FakePeer("[2001:db8:0:1::1]:1"), Command(310, send_fields("Honest"), b"x")).code == 0


class TestOperators:
    @pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST])
    def test_list_is_let_in_whole_and_paid_for_later(self, whole: Whole, code: RequestCode) -> None:
        def names(start: int) -> bytes:
            some = range(start, start + 3 * BURST)
            if code == RequestCode.UPDATE_AND_CREATE_TOPIC_LIST:
                return b'{"topicConfigList":[' + b",".join(b'{"topicName":"T-%d"}' % n for n in some) + b"]}"
            return b"[" + b",".join(b'{"groupName":"g-%d"}' % n for n in some) + b"]"

        assert whole.ask(code, body=names(0)).code == 0
        assert whole.ask(code, body=names(10_000)).code == ResponseCode.SYSTEM_BUSY
        whole.clock.forward(100)
        assert whole.ask(code, body=names(0)).code == 0, "nothing of it is new"
        whole.tick((BURST_S + 1) * 1_000)
        assert whole.ask(code, body=names(10_000)).code == 0, "the debt is no longer than the burst"

    def test_group_that_is_new_to_a_pull_waits_too(self, whole: Whole) -> None:
        whole.ask(310, send_fields(), b"x")
        answers = [whole.ask(11, pull_fields(consumerGroup=f"g-{n}")).code for n in range(BURST)]
        assert answers[:-1] == [0] * (BURST - 1)
        assert answers[-1] == ResponseCode.SYSTEM_BUSY


class TestHeartbeats:
    def test_of_many_clients_that_start_together_are_all_answered_and_their_groups_made(self, tmp_path: Path) -> None:
        whole = Whole(tmp_path / "store", namesrv_addr="ns1:9876")
        groups = [f"group-{n}" for n in range(500)]
        for n, group in enumerate(groups):
            peer = FakePeer(f"127.0.0.1:{n + 1}")
            assert ask(whole, peer, heartbeat(group, client_id=f"c-{n}")).code == 0
        assert made(whole, groups) == 500
        whole.close()

    def test_with_too_many_new_groups_are_answered_and_the_groups_wait_for_their_turn(self, whole: Whole) -> None:
        groups = [f"group-{n:04}" for n in range(2 * BURST)]
        for group in groups:
            assert ask(whole, whole.peer, heartbeat(group)).code == 0
        assert made(whole, groups) == BURST
        assert whole.broker.members.group(groups[-1]) is not None, "its member is a member already"
        whole.tick(1_000)
        assert made(whole, groups) == BURST + RATE
        for _ in range(BURST_S):
            whole.tick(1_000)
        assert made(whole, groups) == len(groups)

    def test_make_so_many_groups_in_one_turn_and_no_more(self, whole: Whole) -> None:
        whole.settings.new_names_per_second = 1_000
        groups = [f"group-{n:04}" for n in range(350)]
        assert ask(whole, whole.peer, heartbeat(*groups)).code == 0
        counts = [made(whole, groups)]
        while counts[-1] < 350 and len(counts) < 10:
            whole.tick(50)
            counts.append(made(whole, groups))
        assert counts == [100, 200, 300, 350]

    def test_of_another_address_are_not_behind_those_that_wait(self, whole: Whole) -> None:
        for n in range(2 * BURST):
            ask(whole, whole.peer, heartbeat(f"flood-{n}"))
        assert ask(whole, FakePeer("10.0.0.2:1"), heartbeat("honest")).code == 0
        assert made(whole, ["honest"]) == 1

    def test_of_who_left_make_nothing_later(self, whole: Whole) -> None:
        groups = [f"group-{n}" for n in range(2 * BURST)]
        for group in groups:
            ask(whole, whole.peer, heartbeat(group))
        whole.broker.disconnected(whole.peer)
        for _ in range(3 * BURST_S):
            whole.tick(1_000)
        assert made(whole, groups) == BURST

    def test_bring_no_more_waiting_groups_than_the_memory_is_meant_for(self, whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("roquet.broker.members.WAITING_MAX", 50)
        groups = [f"group-{n}" for n in range(2 * BURST)]
        for group in groups:
            assert ask(whole, whole.peer, heartbeat(group)).code == 0
        for _ in range(3 * BURST_S):
            whole.tick(1_000)
        assert made(whole, groups) == BURST + 50
        ask(whole, whole.peer, heartbeat(*groups))  # the next heartbeat brings the others
        for _ in range(3 * BURST_S):
            whole.tick(1_000)
        assert made(whole, groups) == len(groups)

    def test_of_groups_that_may_not_be_made_cost_nothing(self, whole: Whole) -> None:
        whole.settings.auto_create_subscription_group = False
        for n in range(2 * BURST):
            ask(whole, whole.peer, heartbeat(f"group-{n}"))
        assert whole.ask(310, send_fields("Fresh"), b"x").code == 0

    def test_with_many_new_groups_are_few_saves_and_few_registrations(self, whole: Whole) -> None:
        whole.settings.new_names_per_second = 1_000
        whole.tick(0)
        whole.caller.answering = False
        whole.background.hold = True
        whole.caller.calls.clear()
        for n in range(1_000):
            ask(whole, whole.peer, heartbeat(f"group-{n}"))
        assert len(whole.caller.calls) == 1
        assert len([work for work, _ in whole.background.waiting if "Document" in work.__qualname__]) <= 2, "topics and groups"
        groups, topics = whole.broker.groups, whole.broker.topics
        assert groups.pretty.encoded + topics.texts.encoded < 100, "the rest is encoded when it is written"
        whole.background.hold = False
        whole.background.release()


class TestTheSumOverAllAddresses:
    def test_is_bounded(self) -> None:
        clock = ManualClock()
        newcomers = Newcomers(BrokerSettings(new_names_per_second=RATE), clock)
        entered = 0
        for n in range(2 * ALL_FACTOR):
            newcomers.peer = FakePeer(f"10.0.0.{n}:1")
            for _ in range(BURST):
                with contextlib.suppress(Refused):
                    newcomers.let_in()
                    entered += 1
        assert entered == ALL_FACTOR * BURST

    def test_is_what_bounds_the_memory_for_addresses(self) -> None:
        clock = ManualClock()
        newcomers = Newcomers(BrokerSettings(new_names_per_second=RATE), clock)
        for n in range(20_000):
            newcomers.may_enter(f"host-{n}")
            clock.forward(1)
        assert len(newcomers._buckets) <= 3_000
