"""Subscription groups: what a consumer group may do, kept in config/subscriptionGroup.json as upstream writes it.

A group is made at its first use unless `autoCreateSubscriptionGroup` is off. Settings of 5.x that mean nothing here are
carried along, so that a Java broker finds its file as it left it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from roquet.broker.fragments import Fragments, member
from roquet.broker.handler import answers
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.part import Shared
from roquet.broker.saving import Done, SavedDocument, SavedPart, answer_when_saved, by_size
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.wire import fastjson
from roquet.wire.calls import groups as calls
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.layout import QUEUES_MAX
from roquet.wire.names import TOOLS_GROUP, check_group, is_system_group

log = logging.getLogger("roquet.broker")

STARTING_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
"""Every broker has these from the start; they do not count as a change of the table."""

UNKNOWN_MAX = 16 * 1024
"""Bytes of settings we do not know that a group may carry."""


class Groups(SavedPart):
    """State: `_table`, and `_unknown` with what 5.x keeps in the file besides; the document follows in the background."""

    def __init__(self, shared: Shared, offsets: ConsumerOffsets) -> None:
        super().__init__(shared)
        self.offsets = offsets
        self.newcomers = shared.newcomers
        self.data_version = DataVersion(self.clock.now_ms(), 0)
        self._table: dict[str, calls.GroupConfig] = {}
        self._unknown: dict[str, Any] = {}
        self.texts = Fragments[str](lambda name: member(name, self._table[name].encode()))
        self.pretty = Fragments[str](lambda name: member(name, indented(self._table[name].to_json())))
        self.record: Callable[[Mapping[str, calls.GroupConfig | None], Done], None] = lambda changed, done: done(None)
        """As `Topics.record`."""
        self.saving = SavedDocument(shared, "subscriptionGroup.json", self._snapshot, pause=by_size(lambda: len(self._table)))

    def load(self) -> None:
        loaded = self.saving.load(calls.GroupTable.decode)
        if loaded is not None:
            self.data_version, self._table, self._unknown = loaded.data_version, loaded.subscription_group_table, loaded.unknown

    def open(self) -> None:
        for name in STARTING_GROUPS:
            self._table.setdefault(name, calls.GroupConfig(name))
        self.texts.changed(self._table)
        self.pretty.changed(self._table)

    # Looking

    def get(self, name: str) -> calls.GroupConfig | None:
        return self._table.get(name)

    def find(self, name: str) -> calls.GroupConfig | None:
        """The group, made now if that is allowed. None: it does not exist and may not be made. The hot path of a pull.

        Raises Refused when whoever asks has brought too many new names.
        """
        found = self._table.get(name)
        return found if found is not None else self._make(name)

    def all(self) -> Iterable[calls.GroupConfig]:
        return self._table.values()

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def may_make(self, name: str) -> bool:
        """Whether a group of this name is made at its first use."""
        return self.settings.auto_create_subscription_group or is_system_group(name)

    def _make(self, name: str) -> calls.GroupConfig | None:
        if not self.may_make(name):
            return None
        try:
            check_group(name)
            self._check_room()
        except Refused as refused:
            log.info("group %r is not made: %s", name[:80], refused.remark)
            return None
        self.newcomers.let_in()
        made = self._table[name] = calls.GroupConfig(name)
        self._changed([name])
        return made

    def _check_room(self) -> None:
        limit = self.settings.accept_groups_max
        if len(self._table) >= limit:
            text = f"this broker holds {len(self._table)} groups, limit is acceptGroupsMax={limit}: delete unused ones or raise it"
            self.notices.warn("groups full", text)
            raise Refused(ResponseCode.SYSTEM_ERROR, text)

    # Changing

    def put(self, config: calls.GroupConfig, done: Done | None = None) -> None:
        """Create or replace; `done` is called when it is on disk, or with what went wrong.

        Raises Refused for a name, a number or a count that is not allowed, and then changes nothing.
        """
        check_config(config)
        if config.group_name not in self._table:
            self._check_room()
            self.newcomers.let_in()
        self._table[config.group_name] = config
        self._changed([config.group_name], done)

    def delete(self, name: str, *, with_offsets: bool, done: Done | None = None) -> None:
        """Deleting what is not there is fine, as upstream has it."""
        if with_offsets:
            self.offsets.remove_group(name)
        if self._table.pop(name, None) is not None:
            self.texts.removed(name)
            self.pretty.removed(name)
            self.notices.clear("groups full")
            self._changed([], done, gone=name)
        elif done is not None:
            done(None)

    def take_over(self, table: calls.GroupTable) -> bool:
        """A slave's table is its master's, as long as that has another version. False: it has this one."""
        if table.data_version == self.data_version:
            return False
        for name in self._table.keys() - table.subscription_group_table.keys():
            del self._table[name]
            self.texts.removed(name)
            self.pretty.removed(name)
        changed = [name for name, group in table.subscription_group_table.items() if self._table.get(name) != group]
        self._table.update({name: table.subscription_group_table[name] for name in changed})
        self.data_version, self._unknown = table.data_version, table.unknown
        self.texts.changed(changed)
        self.pretty.changed(changed)
        self.saving.changed()
        return True

    def _changed(self, names: Iterable[str], done: Done | None = None, gone: str = "") -> None:
        self.data_version = self.data_version.next(self.clock.now_ms())
        self.texts.changed(names)
        self.pretty.changed(names)
        if done is None:
            self.saving.changed()
            return
        waiting: list[Exception | None] = []

        def one(error: Exception | None) -> None:
            waiting.append(error)
            if len(waiting) == 2:
                done(next(filter(None, waiting), None))

        self.record({name: self._table.get(name) for name in (*names, *filter(None, [gone]))}, one)
        self.saving.changed(one)

    def encode(self) -> bytes:
        """The answer of 201."""
        rest = fastjson.dumps({"dataVersion": self.data_version.to_json()} | self._unknown)
        return b'{"subscriptionGroupTable":{' + b",".join(self.texts.members()) + b"}," + rest[1:]

    def _snapshot(self) -> Callable[[], bytes]:
        """The file as Java lays it out."""
        members, rest = self.pretty.members(), indented({"dataVersion": self.data_version.to_json()} | self._unknown)
        head = b'{\n  "subscriptionGroupTable": {\n    '
        return lambda: head + b",\n    ".join([member.replace(b"\n", b"\n    ") for member in members]) + b"\n  }," + rest[1:]

    # Requests

    @answers(calls.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update(self, peer: Peer, command: Command) -> None:
        config = calls.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.read_body(command)
        self.put(config, answer_when_saved(peer, command))
        log.info("group %s created or changed by %s", config.group_name, peer.address)

    @answers(calls.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_list(self, peer: Peer, command: Command) -> None:
        """225: all or none."""
        groups = {
            config.group_name: config for config in calls.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST.read_body(command).group_config_list
        }
        for config in groups.values():
            check_config(config)
        fresh = groups.keys() - self._table.keys()
        if fresh and len(self._table) + len(fresh) > self.settings.accept_groups_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{len(fresh)} new groups on top of {len(self._table)}, limit is acceptGroupsMax={self.settings.accept_groups_max}",
            )
        if fresh:
            self.newcomers.let_in(len(fresh))
        self._table |= groups
        done = answer_when_saved(peer, command)
        if groups:
            self._changed(groups, done)
        else:
            done(None)

    @answers(calls.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def get_all(self, peer: Peer, command: Command) -> Command:
        return calls.GET_ALL_SUBSCRIPTIONGROUP_CONFIG.reply(command, body=self.encode())

    @answers(calls.GET_SUBSCRIPTIONGROUP_CONFIG)
    def get_one(self, peer: Peer, command: Command) -> Command:
        """352. Asking does not create."""
        name = calls.GET_SUBSCRIPTIONGROUP_CONFIG.read_header(command).group
        found = self._table.get(name)
        if found is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:255]}")
        return calls.GET_SUBSCRIPTIONGROUP_CONFIG.reply(command, body=found)

    @answers(calls.DELETE_SUBSCRIPTIONGROUP)
    def delete_one(self, peer: Peer, command: Command) -> None:
        """207. 4.9 calls it removeOffset, 5.x cleanOffset."""
        header = calls.DELETE_SUBSCRIPTIONGROUP.read_header(command)
        with_offsets = bool(header.remove_offset or header.clean_offset)
        log.info("group %s deleted by %s", header.group_name[:255], peer.address)
        answer = answer_when_saved(peer, command)

        def deleted(error: Exception | None) -> None:
            if error is None and with_offsets:
                self.offsets.saving.when_saved(answer)
            else:
                answer(error)

        self.delete(header.group_name, with_offsets=with_offsets, done=deleted)


def indented(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:  # a key that is no text, among what 5.x keeps
        return fastjson.dumps_pretty(value)


def check_config(config: calls.GroupConfig) -> None:
    check_group(config.group_name)
    if config.retry_queue_nums > QUEUES_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"retryQueueNums is {config.retry_queue_nums}, allowed are 0 to {QUEUES_MAX}")
    size = len(fastjson.dumps(config.unknown)) if config.unknown else 0
    if size > UNKNOWN_MAX:
        text = f"group {config.group_name} carries {size} bytes of other settings, limit is {UNKNOWN_MAX}"
        raise Refused(ResponseCode.SYSTEM_ERROR, text)
