"""Cores with a bug on purpose. A checker that does not find them is no checker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from roquet.broker.core import Broker
from roquet.client.core.gathering import Gathering, Waiting
from roquet.client.core.instance import ClientCore
from roquet.client.core.plain_sends import Told
from roquet.client.core.producer import ProducerCore
from roquet.client.core.push_consumer import PushConsumerCore, PushConsumerSettings
from roquet.client.core.sending import Sending
from roquet.client.core.verdicts import Judged, Outcome
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.nameserver.core import NameServer
from roquet.ports import Peer
from roquet.routing.registry import Registry
from roquet.settings import BrokerSettings
from roquet.testing.disk import SimDisk
from roquet.wire.calls.routes import RouteInfo

Listen = Callable[[list[ReceivedMessage], Judged], None]


def answers_before_the_flush(*parts: Any) -> Broker:
    """SYNC_FLUSH in name only: sends are answered when they are written."""
    broker = Broker(*parts)
    broker.store.log.when_safe = lambda target, deadline_ms, wake: wake(True)  # type: ignore[method-assign] # that is the plant
    return broker


def shows_before_the_flush(*parts: Any) -> Broker:
    """Consumers see a message when it is written, as upstream does it."""
    broker = Broker(*parts)
    store = broker.store
    commit = store.commit

    def commit_and_show() -> None:
        commit()
        shown = list(store.showing.unsafe)
        store.showing.unsafe.clear()
        store.showing.show(shown)

    store.commit = commit_and_show  # type: ignore[method-assign] # that is the plant
    return broker


def counts_a_failed_fsync(*parts: Any) -> Broker:
    """Upstream's E1: an fsync that failed counts as done."""
    broker = Broker(*parts)
    store = broker.store
    sure = store.log.syncer

    def syncer() -> Any:
        target, work = sure()

        def hopeful() -> None:
            with contextlib.suppress(OSError):
                work()

        return target, hopeful

    store.log.syncer = syncer  # type: ignore[method-assign] # that is the plant
    return broker


def registers_with_the_first_name_server_only(settings: BrokerSettings, *parts: Any) -> Broker:
    settings.namesrv_addr = settings.namesrv_addr.partition(";")[0]
    return Broker(settings, *parts)


def comes_back_with_an_empty_disk(settings: BrokerSettings, disk: SimDisk, *parts: Any) -> Broker:
    """The second group loses its directory with every process."""
    if settings.broker_name == "sim-broker-1":
        disk.remove_tree(settings.store_path_root_dir)
    return Broker(settings, disk, *parts)


class HalfRegistry(Registry[Peer]):
    """Its routes lack the second group."""

    def route(self, topic: str) -> RouteInfo | None:
        found = super().route(topic)
        if found is not None:
            found.queue_datas = [queues for queues in found.queue_datas if queues.broker_name != "sim-broker-1"]
        return found


def hides_the_second_group(*parts: Any) -> NameServer:
    server = NameServer(*parts)
    server.registry = HalfRegistry()
    return server


class SendsToTheFirstGroupOnly(ProducerCore):
    def send(self, message: Message, *rest: Any, **named: Any) -> Sending | Told:
        named["queue"] = MessageQueue(message.topic, "sim-broker-0", 0)
        return super().send(message, *rest, **named)


def takes_nothing_of_the_second_group(core: ClientCore, group: str, listen: Listen, settings: PushConsumerSettings) -> PushConsumerCore:
    """Its messages are counted as consumed; no listener saw them."""

    def hear(messages: list[ReceivedMessage], judge: Judged) -> None:
        if messages[0].queue.broker_name == "sim-broker-1":
            judge(Outcome.SUCCESS)
        else:
            listen(messages, judge)

    return PushConsumerCore(core, group, hear, settings)


class Overtakes(Gathering):
    """Later sends for a queue do not wait for those before them that wait for its broker."""

    def _may_go(self, waiting: Waiting, send: Sending, now: int) -> bool:
        return send.left_ms(now) > 0


def gathers_out_of_order(*parts: Any) -> ProducerCore:
    producer = ProducerCore(*parts)
    if producer.gathering is not None:
        producer.gathering = Overtakes(producer.gathering.linger_ms, producer.gathering.batch_bytes)
    return producer


class SendsTwice(ProducerCore):
    """Every hundredth message goes a second time, and nobody is told."""

    def send(self, message: Message, *rest: Any, **named: Any) -> Sending | Told:
        if message.body.partition(b"|")[0].endswith(b"00"):
            super().send(message, lambda _: None)
        return super().send(message, *rest, **named)
