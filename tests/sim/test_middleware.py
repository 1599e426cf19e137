"""Clusters from seeds whose producers have middleware, some of which fails: nothing is lost for it, and each send is told once."""

from __future__ import annotations

import logging
from collections import Counter
from random import Random
from typing import Any

import pytest

from roquet.client import CallEvent, Middleware, SendEvent
from roquet.client.core.hooks import Hooks
from roquet.client.core.instance import ClientCore
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.testing.world import Cores, World

SEEDS = (3, 11)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hooks raise is logged, which would end a simulation."""
    monkeypatch.setattr(logging.getLogger("roquet.client.core.hooks"), "disabled", True)


class Watches(Middleware):
    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()

    def before_send(self, event: SendEvent) -> None:
        self.begun[event.message_id] += 1

    def after_send(self, event: SendEvent) -> None:
        (self.failed if event.receipt is None else self.stored)[event.message_id] += 1

    def after_call(self, event: CallEvent) -> None:
        self.calls[event.name] += 1


class Fails(Middleware):
    """One hook in three raises."""

    def __init__(self) -> None:
        self.random = Random(1)
        self.count = 0

    def _maybe(self, event: object) -> None:
        if self.random.random() < 0.3:
            self.count += 1
            raise ValueError("a hook of the test fails")

    before_send = after_send = before_call = after_call = _maybe


def world_with(seed: int, *middleware: Middleware, show: Any = None) -> World:
    def producer(client: ClientCore, group: str, settings: ProducerSettings) -> ProducerCore:
        hooks = Hooks(middleware, group)
        hooks.join(client)
        return ProducerCore(client, group, settings, hooks=hooks)

    return World(seed, cores=Cores(producer=producer), show=show)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_send_is_told_once_while_things_fail_and_no_promise_is_broken(seed: int) -> None:
    watches, fails = Watches(), Fails()
    world = world_with(seed, fails, watches)
    world.run()
    assert fails.count > 100
    ended = watches.stored + watches.failed
    assert set(watches.begun.values()) == set(ended.values()) == {1}
    assert ended.keys() <= watches.begun.keys()
    killed = len(watches.begun) - len(ended)
    assert killed < len(watches.begun) // 4, "what a process had under way when it was killed is all that nobody is told of"
    acknowledged = {held.unique_key for group in world.groups for held in group.promises.acked.values()} - {""}
    assert len(acknowledged) > 50
    assert watches.stored.keys() >= acknowledged
    assert watches.calls["SEND_BATCH_MESSAGE"]
    assert watches.calls["GET_ROUTEINFO_BY_TOPIC"]


def test_middleware_makes_a_seed_no_less_sure() -> None:
    stories: list[list[str]] = []
    for _ in range(2):
        story: list[str] = []
        world_with(5, Watches(), Fails(), show=story.append).run()
        stories.append(story)
    assert stories[0] == stories[1]
