"""The routes of a client: the resolver's table, asked for by tasks that share their questions."""

from __future__ import annotations

from collections.abc import Callable

from roquet.client.core.resolver import ASK_TIMEOUT_MS, Resolver, TopicRoute
from roquet.client.core.tasks import Task, Tasks, follow, ignore
from roquet.ports import Caller
from roquet.routing.name_servers import NameServers
from roquet.wire.command import Command


class Routes(Resolver):
    def __init__(self, name_servers: NameServers, make: Callable[[int, dict[str, str]], Command], caller: Caller, tasks: Tasks) -> None:
        super().__init__(name_servers, make)
        self.caller = caller
        self._tasks = tasks
        self._asking: dict[tuple[str, bool], Task[TopicRoute]] = {}

    async def fetch(self, topic: str, default_queues: int = 0) -> TopicRoute:
        """`find`, over the network. Questions for the same topic that are under way are shared."""
        key = (topic, default_queues > 0)
        question = self._asking.get(key)
        if question is None:
            question = self._tasks.start(self._fetch(key, default_queues), ignore)
            if not question.over:
                self._asking[key] = question
        return await question

    async def _fetch(self, key: tuple[str, bool], default_queues: int) -> TopicRoute:
        try:
            return await follow(self.caller, self.find(key[0], default_queues), ASK_TIMEOUT_MS)
        finally:
            self._asking.pop(key, None)

    def fetch_again(self, topic: str) -> None:
        """Look whether a topic in use has moved. One that had no broker of its own is looked for at the default topic's again."""
        known = self.topics.get(topic)
        self._tasks.start(self.fetch(topic, known.by_default if known is not None else 0), ignore)
