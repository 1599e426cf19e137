"""A new broker takes the topics, groups and accounts of its cluster before clients can find it: copyTopicsFrom.

    nothing of users here ── held: no name server hears of it ── asked: the cluster's masters ── accounts, groups, topics ── registered

It is new as long as it has no topic of users. Topics come last, and all at once, so a broker that was killed on the way begins anew.
Whatever keeps it from copying is a notice, and it waits: without its groups and accounts it should not take messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from roquet.access.signed_caller import SignedCaller
from roquet.broker.access_control import AccessControl
from roquet.broker.groups import Groups
from roquet.broker.part import Part, Shared
from roquet.broker.register import Registration
from roquet.broker.talking import hold
from roquet.broker.topics import Topics
from roquet.errors import Refused, RoquetError
from roquet.routing.expansion import ORDER_TOPICS, Holdings, Plan, copied, look, masters_of, plan
from roquet.routing.talks import Talk, ask_first
from roquet.wire.calls.brokers import GET_KVLIST_BY_NAMESPACE, NamespaceHeader
from roquet.wire.calls.routes import GET_BROKER_CLUSTER_INFO
from roquet.wire.codes import ResponseCode

log = logging.getLogger("roquet.broker")

CALL_MS = 5_000
RETRY_MS = 2_000
CLUSTER = "cluster"
"""The value of copyTopicsFrom that means all brokers of the cluster."""
FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
NOTICE = "joining"

Done = Callable[[Exception | None], None]


class Joining(Part):
    """State: whether the registration is held, and a copy under way."""

    master_only = True

    def __init__(
        self, shared: Shared, topics: Topics, groups: Groups, access: AccessControl, registration: Registration, caller: SignedCaller
    ) -> None:  # fmt: skip
        super().__init__(shared)
        self._topics, self._groups, self._access = topics, groups, access
        self._registration = registration
        self._caller = caller
        self._under_way = False
        self._due_ms = 0

    @property
    def _own_names(self) -> set[str]:
        return {self.settings.broker_name, self.settings.broker_cluster_name}

    def open(self) -> None:
        wanted = bool(self.settings.copy_topics_from and self._registration.name_servers)
        if wanted and not any(copied(topic.topic_name, self._own_names) for topic in self._topics.all()):
            log.info("this broker is new: it is registered when it has the topics of %s", self.settings.copy_topics_from)
            self._registration.held = True

    def became_master(self) -> None:
        self.open()

    def became_slave(self) -> None:
        self._registration.held = False

    def tick(self, now_ms: int) -> None:
        if self._registration.held and not self._under_way and now_ms >= self._due_ms:
            self._under_way = True
            hold(self._caller, self._look(), CALL_MS, self._looked)

    def _look(self) -> Talk[Plan]:
        settings, servers = self.settings, self._registration.name_servers
        info = (yield from ask_first(servers, GET_BROKER_CLUSTER_INFO)).body
        masters = masters_of(info, settings.broker_cluster_name)
        masters.pop(settings.broker_name, None)
        wanted = settings.copy_topics_from
        if wanted != CLUSTER:
            if wanted not in masters:
                there = ", ".join(sorted(masters)) or "none"
                raise RoquetError(f"no master named {wanted} is registered in {settings.broker_cluster_name}; there are: {there}")
            masters = {wanted: masters[wanted]}
        sources: dict[str, Holdings] = {}
        for name, address in sorted(masters.items()):
            sources[name] = found = yield from look(address, self._caller.credentials)
            if found.access_control and self._access.guard is None:
                raise RoquetError(f"{name} has access control, and this broker has none: set aclEnable=true here, with an admin's account")
        order = yield from ask_first(servers, GET_KVLIST_BY_NAMESPACE, NamespaceHeader(ORDER_TOPICS), accept=FOUND_OR_NOT)
        ordered = order.body.table if order.ok else {}
        return plan(
            sources, self._holdings(), own_names={*info.broker_addr_table, *info.cluster_addr_table, *self._own_names}, ordered=ordered
        )

    def _holdings(self) -> Holdings:
        accounts = self._access.accounts_with_secrets()
        return Holdings(
            {topic.topic_name: topic for topic in self._topics.all()},
            {group.group_name: group for group in self._groups.all()},
            {one.access_key: one for one in accounts.plain_access_configs},
            tuple(accounts.global_white_addrs),
            access_control=self._access.guard is not None,
        )

    def _looked(self, found: Plan | RoquetError) -> None:
        if not self._registration.held:
            self._under_way = False  # it is a slave meanwhile
        elif isinstance(found, RoquetError):
            self._failed(found)
        else:
            self._access.take(found.accounts, found.white, partial(self._then, self._make_groups, found))

    def _then(self, go_on: Callable[[Plan], None], found: Plan, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
            return
        try:
            with self.shared.newcomers.own_work():
                go_on(found)
        except Refused as refused:
            self._failed(refused)

    def _make_groups(self, found: Plan) -> None:
        done = when_all_saved(len(found.groups), partial(self._then, self._make_topics, found))
        for group in found.groups:
            self._groups.put(group, done)

    def _make_topics(self, found: Plan) -> None:
        for topic in found.topics:
            self._topics.check(topic)
        if found.topics:
            self._topics.put_all(found.topics, partial(self._then, self._finish, found))
        else:
            self._finish(found)

    def _finish(self, found: Plan) -> None:
        self._under_way = False
        self._registration.held = False
        self.notices.clear(NOTICE)
        log.info(
            "copied from %s: %d topics, %d groups, %d accounts; this broker is registered now",
            self.settings.copy_topics_from, len(found.topics), len(found.groups), len(found.accounts),
        )  # fmt: skip
        for name, why in found.left_out.items():
            log.warning(
                "topic %s is not copied: %s. To copy it all the same: roquet cluster expand %s --topic %s",
                name,
                why,
                self.settings.broker_name,
                name,
            )
        for note in found.notes:
            log.warning("%s", note)
        self._registration.now()

    def _failed(self, error: Exception) -> None:
        self._under_way = False
        self._due_ms = self.clock.steady_ms() + RETRY_MS
        self.notices.warn(
            NOTICE,
            f"this broker is new and waits, no client can find it: the topics of copyTopicsFrom={self.settings.copy_topics_from} cannot be "
            f"copied: {error}. It is tried again every {RETRY_MS // 1000} s; to start without, take copyTopicsFrom out of its file",
        )

    def metrics(self) -> Mapping[str, object]:
        return {"roquetJoining": self.settings.copy_topics_from} if self._registration.held else {}


def when_all_saved(count: int, done: Done) -> Done:
    """What it returns is called by each of so many; when all have, `done` gets the first error. None to wait for: at once."""
    errors: list[Exception | None] = []

    def one(error: Exception | None) -> None:
        errors.append(error)
        if len(errors) == count:
            done(next(filter(None, errors), None))

    if not count:
        done(None)
    return one
