"""A producer whose broker falls silent without a word, and another one takes its place."""

from __future__ import annotations

import pytest

from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.receipt import SendReceipt
from roquet.client.core.silence import SILENT_LOOKS
from roquet.errors import RoquetError
from roquet.message import Message
from tests.broker.simulated_group import SimulatedGroup

Result = SendReceipt | RoquetError


@pytest.mark.parametrize("linger_ms", [None, 5], ids=["one by one", "gathered"])
@pytest.mark.parametrize("seed", range(5))
def test_a_send_that_waits_at_a_silent_leader_goes_to_the_new_one_before_its_time_is_over(seed: int, linger_ms: int | None) -> None:
    group = SimulatedGroup(seed)
    leader = group.start()
    group.run(1)  # name servers know it by then
    client = group.client_core()
    producer = ProducerCore(client, "senders", ProducerSettings(linger_ms=linger_ms))
    producer.start()

    def send() -> list[Result]:
        results: list[Result] = []
        producer.send(Message("T", b"hello"), results.append)
        return results

    first = send()
    group.wait(lambda: bool(first), "the first send")
    assert isinstance(first[0], SendReceipt)
    group.cut_off(leader)
    waiting = send()
    began_us = group.simulation.now_us
    group.wait(lambda: bool(waiting), "the send that waited")
    assert isinstance(waiting[0], SendReceipt), waiting
    assert group.simulation.now_us - began_us < 2_000_000


def test_a_silent_broker_that_nobody_replaces_is_asked_about_less_and_less_often() -> None:
    group = SimulatedGroup()
    leader = group.start()
    group.run(1)  # name servers know it by then
    client = group.client_core()
    producer = ProducerCore(client, "senders", ProducerSettings(retries=0, send_timeout_ms=60_000, delivery_timeout_ms=60_000))
    producer.start()
    results: list[Result] = []
    producer.send(Message("T", b"hello"), results.append)
    group.wait(lambda: bool(results), "the first send")
    for member in group.others(leader):
        member.kill()  # so the leader commits nothing more, and nobody takes its place
    group.cut_off(leader)
    asked = count_route_questions(group)
    producer.send(Message("T", b"hello"), results.append)
    group.run(20)
    assert 5 <= len(asked) <= 11


def count_route_questions(group: SimulatedGroup) -> list[float]:
    asked: list[float] = []
    handlers = group.name_server.receive

    def receive(peer: object, frames: list[object], *rest: object) -> object:
        asked.append(group.simulation.now_us / 1e6)
        return handlers(peer, frames, *rest)  # type: ignore[arg-type]

    group.name_server.receive = receive  # type: ignore[method-assign, assignment]
    return asked


def test_sends_that_time_out_do_not_hide_that_their_broker_is_silent() -> None:
    group = SimulatedGroup()
    leader = group.start()
    group.run(1)  # name servers know it by then
    client = group.client_core()
    producer = ProducerCore(client, "senders", ProducerSettings(send_timeout_ms=400))
    producer.start()
    results: list[Result] = []
    producer.send(Message("T", b"hello"), results.append)
    group.wait(lambda: bool(results), "the first send")
    for member in group.others(leader):
        member.kill()  # nobody takes its place
    group.cut_off(leader)
    for _ in range(20):  # from the fifth on one fails every tenth of a second, before the broker counts as silent
        producer.send(Message("T", b"hello"), results.append)
        group.run(0.1)
    assert len(results) > 10
    assert client.silence._waited[leader.address].looks >= SILENT_LOOKS
