"""Attempts, turns and order of requests, over brokers that do what the test says. No network, no Spark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roquet.errors import CallTimeout, ClientError, ConnectFailed, NoRoute, SendFailed
from roquet.message import MessageQueue
from roquet.net.blocking import BlockingCaller, Call, Room
from roquet.spark import sending
from roquet.spark.requests import Request
from roquet.spark.sending import Sending
from roquet.wire.calls.routes import BrokerData, QueueData, RouteInfo
from roquet.wire.codes import Perm, RequestCode, ResponseCode
from roquet.wire.command import Command

Answer = Command | ClientError
OK = Command(0, {"msgId": "x", "queueId": "0", "queueOffset": "0"})


class Brokers(BlockingCaller):
    """A name server and brokers a and b with two queues each, on one port. `decide` answers sends."""

    def __init__(self, decide: Callable[[str, Command], Answer] = lambda _address, _command: OK) -> None:
        super().__init__()
        self.decide = decide
        self.topics = {"t"}
        self.sent: list[tuple[str, str, bytes]] = []  # broker, queue, body
        self.under_way: dict[int, Answer] = {}
        self.most = 0

    def call(self, address: str, command: Command, timeout_s: float) -> Command:
        assert command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if address == "down:1":
            raise ConnectFailed("down:1 is down")
        if command.fields["topic"] not in self.topics:
            return Command(ResponseCode.TOPIC_NOT_EXIST)
        queues = [QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=Perm.READ | Perm.WRITE) for name in "ab"]
        brokers = [BrokerData(cluster="c", broker_name=name, broker_addrs={0: f"{name}:1"}) for name in "ab"]
        return Command(0, body=RouteInfo(queue_datas=queues, broker_datas=brokers).encode())

    def start(self, address: str, command: Command, timeout_s: float, body: bytes | memoryview = b"") -> Call:
        self.sent.append((command.fields["n"], command.fields["e"], command.body or bytes(body)))
        number = len(self.sent)
        self.under_way[number] = self.decide(address, command)
        self.most = max(self.most, len(self.under_way))
        return Call(address, number, 0.0, None)  # type: ignore[arg-type] # there is no connection

    def wait(self, call: Call, room: Room | None = None) -> Command:
        answer = self.under_way.pop(call.opaque)
        if isinstance(answer, ClientError):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.0)


def request(body: bytes, queue: MessageQueue | None = None) -> Request:
    return Request("t", queue, True, body, "", 0, 10, f"rows of {body.decode()}")


def made(brokers: Brokers, **options: int) -> Sending:
    return Sending(brokers, ["down:1", "up:1"], "g", **options)


def run(brokers: Brokers, requests: list[Request], **options: int) -> Sending:
    made_one = made(brokers, **options)
    made_one.send(requests)
    made_one.finish()
    return made_one


def failing_first(*failures: Answer) -> Callable[[str, Command], Answer]:
    left = list(failures)
    return lambda _address, _command: left.pop(0) if left else OK


QUEUE = MessageQueue("t", "a", 1)


def test_requests_without_a_queue_take_turns_and_several_are_under_way() -> None:
    brokers = Brokers()
    counts = run(brokers, [request(b"%d" % number) for number in range(9)], in_flight_max=4).counts
    assert [(broker, queue) for broker, queue, _ in brokers.sent[:5]] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1"), ("a", "0")]
    assert brokers.most == 4
    assert (counts.rows, counts.requests, counts.retries) == (90, 9, 0)


def test_one_that_failed_is_tried_at_another_broker_with_the_same_bytes() -> None:
    brokers = Brokers(failing_first(CallTimeout("late"), Command(ResponseCode.SYSTEM_BUSY)))
    counts = run(brokers, [request(b"x")]).counts
    assert [(broker, body) for broker, _, body in brokers.sent] == [("a", b"x"), ("b", b"x"), ("a", b"x")]
    assert counts.retries == 2


def test_requests_to_one_queue_follow_each_other_and_are_repeated_there() -> None:
    brokers = Brokers(failing_first(OK, ConnectFailed("gone"), CallTimeout("late")))
    run(brokers, [request(b"%d" % number, QUEUE) for number in range(4)] + [request(b"free")])
    there = [(broker, queue, body) for broker, queue, body in brokers.sent if body != b"free"]
    assert {(broker, queue) for broker, queue, _ in there} == {("a", "1")}
    stored = [body for _, _, body in there]
    assert sorted(stored) == stored
    assert stored[0] == b"0"
    assert len(stored) == 6 or (len(stored) == 5 and len(brokers.sent) == 7)  # one of the failures may have met the free one


def test_after_the_last_attempt_the_rows_and_every_reason_are_named() -> None:
    brokers = Brokers(lambda _address, _command: ConnectFailed("nobody home"))
    with pytest.raises(SendFailed, match=r"rows of x: not confirmed by topic 't' after 3 attempts .*nobody home") as failure:
        run(brokers, [request(b"x")], retries=2)
    assert [broker for broker, _ in failure.value.attempts] == ["a", "b", "a"]


def test_a_busy_broker_gets_fewer_at_once_and_then_more_again() -> None:
    answer = failing_first(*[Command(ResponseCode.SYSTEM_BUSY)] * 8)
    at_once: list[int] = []

    def decide(address: str, command: Command) -> Answer:
        at_once.append(len(brokers.under_way) + 1)
        return answer(address, command)

    brokers = Brokers(decide)
    counts = run(brokers, [request(b"%d" % number) for number in range(200)], in_flight_max=8).counts
    assert (counts.requests, counts.retries) == (200, 8)
    assert max(at_once[:8]) == 8
    assert max(at_once[8:14]) <= 4
    assert max(at_once[-50:]) == 8


def test_keys_that_a_broker_does_not_know_fail_at_once_with_what_to_do() -> None:
    """Apache answers that with code 1, which is tried again when anything else is behind it."""
    remark = "org.apache.rocketmq.acl.common.AclException: No acl config for hare, org.apache..."
    brokers = Brokers(lambda _address, _command: Command(ResponseCode.SYSTEM_ERROR, remark=remark))
    with pytest.raises(SendFailed, match=r"rows of x: not sent to 't': .*No acl config for hare.*give the accessKey and secretKey"):
        run(brokers, [request(b"x")])
    assert len(brokers.sent) == 1


def test_what_a_retry_cannot_mend_fails_at_once_with_the_rows() -> None:
    brokers = Brokers(lambda _address, _command: Command(ResponseCode.MESSAGE_ILLEGAL, remark="too odd"))
    with pytest.raises(SendFailed, match=r"rows of x: not sent to 't': .*too odd"):
        run(brokers, [request(b"x")])
    assert len(brokers.sent) == 1


def test_rows_that_are_stored_less_safely_count_and_are_told_apart() -> None:
    counts = run(Brokers(failing_first(Command(ResponseCode.FLUSH_DISK_TIMEOUT))), [request(b"x"), request(b"y")]).counts
    assert (counts.rows, counts.unsure) == (20, 10)


def test_a_topic_that_nobody_has_goes_to_the_brokers_that_create_topics() -> None:
    brokers = Brokers()
    brokers.topics = {"TBW102"}
    assert len(made(brokers).queues("t")) == 4
    brokers.topics = set()
    with pytest.raises(NoRoute, match="none creates topics on demand; create it first"):
        made(brokers).queues("t")


def test_a_route_that_is_lost_for_a_moment_is_still_used() -> None:
    brokers = Brokers(failing_first(ConnectFailed("restarting")))
    sends = made(brokers)
    assert sends.queues("t")
    brokers.topics = {"TBW102"}  # the name server was restarted: no broker has told it of the topic yet
    sends.send([request(b"x", QUEUE)])
    sends.finish()
    assert [broker for broker, _, _ in brokers.sent] == ["a", "a"]
