"""The handlers of one consumer group in one app: one consumer, so that every process of the app has the same subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roquet.app.handlers import Handler, Listener, by_condition, words
from roquet.client import PushConsumer
from roquet.errors import ClientError, Refused
from roquet.wire.names import check_group

if TYPE_CHECKING:
    from roquet.app.app import App

ALL = "*"


class Group:
    """Settings that one handler names hold for all of the group: they belong to its consumer."""

    def __init__(self, app: App, name: str) -> None:
        try:
            check_group(name)
        except Refused as refusal:
            raise ClientError(f"group={name!r}: {refusal.remark}") from None
        self.app = app
        self.name = name
        self.handlers: list[Handler] = []
        self.settings: dict[str, Any] = {}

    def add(self, handler: Handler, settings: dict[str, Any]) -> None:
        """Raises ClientError where it cannot go together with the others, and for settings that cannot work."""
        self._check_settings(handler, settings)
        for other in self.handlers:
            if other.topic == handler.topic:
                self._check_shared_topic(other, handler)
        before = self.settings
        self.settings = {**self.settings, **settings}
        self.handlers.append(handler)
        try:
            self.consumer()
        except BaseException:
            self.settings = before
            self.handlers.remove(handler)
            raise

    def _check_settings(self, handler: Handler, settings: dict[str, Any]) -> None:
        for name in settings.keys() & self.settings.keys():
            if settings[name] != self.settings[name]:
                raise ClientError(
                    f"handler {handler.name} wants {WORDS.get(name, name)}={settings[name]!r} in group {self.name!r}, where"
                    f" {self.handlers[0].name} has {self.settings[name]!r}; a group is one consumer with one set of settings: make them the"
                    " same, or use another group"
                )
        sizes = {other.batch for other in self.handlers} | {handler.batch}
        if len(sizes) > 1:
            raise ClientError(
                f"handler {handler.name} has batch={handler.batch} in group {self.name!r}, where {self.handlers[0].name} has"
                f" batch={self.handlers[0].batch}; a group is one consumer with one size: make them the same, or use another group"
            )

    def _check_shared_topic(self, one: Handler, two: Handler) -> None:
        both = f"handlers {one.name} and {two.name} both take topic {one.topic!r} in group {self.name!r}"
        if one.batch > 1:
            raise ClientError(f"{both}, with batches, which cannot be shared out; use one handler, or another group")
        if one.sql != two.sql:
            raise ClientError(
                f"{both}, with sql={one.sql!r} and sql={two.sql!r}; a group has one subscription of a topic: give both the same sql and"
                " tell them apart with when=, or use another group"
            )
        if one.when is None and two.when is None:
            first, second = words(one.tags), words(two.tags)
            common = first & second if first is not None and second is not None else {ALL}
            if common:
                which = "every message" if ALL in common else " and ".join(sorted(common))
                raise ClientError(
                    f"{both}, and {which} would go to either; give them tags that differ, or when=, or another group if each shall get all"
                    " messages"
                )

    def by_topic(self) -> dict[str, list[Handler]]:
        found: dict[str, list[Handler]] = {}
        for handler in self.handlers:
            found.setdefault(handler.topic, []).append(handler)
        return found

    def consumer(self, *, listening: bool = False) -> PushConsumer:
        """A new one that is not started. `listening`: with the handlers; else it is made to see whether the settings can work."""
        app = self.app
        settings = app._settings(app._consumer_settings, self.settings)
        made = PushConsumer(self.name, app.namesrv, close_wait_ms=app.close_wait_ms, **settings)
        for topic, handlers in self.by_topic().items():
            tags = " || ".join(dict.fromkeys(handler.tags for handler in handlers))
            sql = handlers[0].sql
            made.subscribe(topic, ALL if words(tags) is None else tags, listener_of(handlers) if listening else nothing, sql=sql)
        return made


WORDS = {"batch_size": "batch", "reconsume_times_max": "retries"}
"""As the decorator calls them."""


def listener_of(handlers: list[Handler]) -> Listener:
    first = handlers[0]
    if len(handlers) > 1 or first.when is not None:
        return by_condition(handlers)
    return first.listener()


async def nothing(message: Any) -> None: ...
