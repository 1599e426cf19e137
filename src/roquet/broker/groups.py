"""Subscription groups: what a consumer group may do, kept in config/subscriptionGroup.json as upstream writes it.

A group is made at its first use unless `autoCreateSubscriptionGroup` is off. Settings of 5.x that mean nothing here are
carried along, so that a Java broker finds its file as it left it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from roquet.broker.fragments import Fragments, member
from roquet.broker.handler import answers
from roquet.broker.offsets import Offsets
from roquet.broker.part import Shared
from roquet.broker.saving import Done, SavedDocument, SavedPart, answer_when_saved, by_size
from roquet.broker.topics import QUEUES_MAX
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.wire import fastjson
from roquet.wire.bodies import columns
from roquet.wire.calls.groups import (
    DELETE_SUBSCRIPTIONGROUP,
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    GET_SUBSCRIPTIONGROUP_CONFIG,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    GroupConfig,
)
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
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

KNOWN = frozenset(column.name for column in columns(GroupConfig))

LIST_MAX = 2_000
"""Groups one request may create or change."""
EXTRAS_MAX = 16 * 1024
"""Bytes of settings we do not know that a group may carry."""

Extras = dict[str, Any]


class Groups(SavedPart):
    """State: `_table`, and `_extras` with what 5.x keeps in a group besides; the document follows in the background."""

    def __init__(self, shared: Shared, offsets: Offsets) -> None:
        super().__init__(shared)
        self.offsets = offsets
        self.newcomers = shared.newcomers
        self.data_version = DataVersion(self.clock.now_ms(), 0)
        self._table: dict[str, GroupConfig] = {}
        self._extras: dict[str, Extras] = {}
        self._top_extras: Extras = {}
        self.texts = Fragments[str](lambda name: member(name, fastjson.dumps(self.group_json(self._table[name]))))
        self.pretty = Fragments[str](lambda name: member(name, indented(self.group_json(self._table[name]))))
        self.saving = SavedDocument(shared, "subscriptionGroup.json", self._snapshot, pause=by_size(lambda: len(self._table)))

    def load(self) -> None:
        loaded = self.saving.load(parse_groups)
        if loaded is not None:
            self.data_version, self._table, self._extras, self._top_extras = loaded

    def open(self) -> None:
        """Add the groups every broker has."""
        for name in STARTING_GROUPS:
            self._table.setdefault(name, GroupConfig(name))
        self.texts.changed(self._table)
        self.pretty.changed(self._table)

    # Looking

    def get(self, name: str) -> GroupConfig | None:
        """The group if it exists."""
        return self._table.get(name)

    def find(self, name: str) -> GroupConfig | None:
        """The group, made now if that is allowed. None: it does not exist and may not be made. The hot path of a pull.

        Raises Refused when whoever asks has brought too many new names.
        """
        found = self._table.get(name)
        return found if found is not None else self._make(name)

    def all(self) -> Iterable[GroupConfig]:
        return self._table.values()

    def __contains__(self, name: str) -> bool:
        return name in self._table

    def may_make(self, name: str) -> bool:
        """Whether a group of this name is made at its first use."""
        return self.settings.auto_create_subscription_group or is_system_group(name)

    def _make(self, name: str) -> GroupConfig | None:
        if not self.may_make(name):
            return None
        try:
            check_group(name)
            self._check_room()
        except Refused as refused:
            log.info("group %r is not made: %s", name[:80], refused.remark)
            return None
        self.newcomers.let_in()
        made = self._table[name] = GroupConfig(name)
        self._changed([name])
        return made

    def _check_room(self) -> None:
        limit = self.settings.accept_groups_max
        if len(self._table) >= limit:
            text = f"this broker holds {len(self._table)} groups, limit is acceptGroupsMax={limit}: delete unused ones or raise it"
            self.notices.warn("groups full", text, self.clock.now_ms())
            raise Refused(ResponseCode.SYSTEM_ERROR, text)

    # Changing

    def put(self, config: GroupConfig, extras: Extras | None = None, done: Done | None = None) -> None:
        """Create or replace; `done` is called when it is on disk, or with what went wrong.

        Raises Refused for a name, a number or a count that is not allowed, and then changes nothing.
        """
        check_config(config, extras)
        if config.group_name not in self._table:
            self._check_room()
            self.newcomers.let_in()
        self._put(config, extras)
        self._changed([config.group_name], done)

    def _put(self, config: GroupConfig, extras: Extras | None) -> None:
        self._table[config.group_name] = config
        if extras:
            self._extras[config.group_name] = extras
        else:
            self._extras.pop(config.group_name, None)

    def delete(self, name: str, *, with_offsets: bool, done: Done | None = None) -> None:
        """Deleting what is not there is fine, as upstream has it."""
        if with_offsets:
            self.offsets.remove_group(name)
        self._extras.pop(name, None)
        if self._table.pop(name, None) is not None:
            self.texts.removed(name)
            self.pretty.removed(name)
            self.notices.clear("groups full")
            self._changed([], done)
        elif done is not None:
            done(None)

    def _changed(self, names: Iterable[str], done: Done | None = None) -> None:
        self.data_version = self.data_version.next(self.clock.now_ms())
        self.texts.changed(names)
        self.pretty.changed(names)
        self.saving.changed(done)

    def encode(self) -> bytes:
        """The answer of 201."""
        rest = fastjson.dumps({"dataVersion": self.data_version.to_json()} | self._top_extras)
        return b'{"subscriptionGroupTable":{' + b",".join(self.texts.members()) + b"}," + rest[1:]

    def _snapshot(self) -> Callable[[], bytes]:
        """The file as Java lays it out."""
        members, rest = self.pretty.members(), indented({"dataVersion": self.data_version.to_json()} | self._top_extras)
        head = b'{\n  "subscriptionGroupTable": {\n    '
        return lambda: head + b",\n    ".join([member.replace(b"\n", b"\n    ") for member in members]) + b"\n  }," + rest[1:]

    def group_json(self, config: GroupConfig) -> dict[str, Any]:
        return config.to_json() | self._extras.get(config.group_name, {})

    # Requests

    @answers(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update(self, peer: Peer, command: Command) -> None:
        config, extras = read_group(fastjson.loads(command.body))
        self.put(config, extras, answer_when_saved(peer, command))
        log.info("group %s created or changed by %s", config.group_name, peer.address)

    @answers(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_list(self, peer: Peer, command: Command) -> None:
        """225: all or none."""
        value = fastjson.loads(command.body)
        configs = value.get("groupConfigList") if isinstance(value, dict) else value
        if not isinstance(configs, list) or len(configs) > LIST_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"expected an array of at most {LIST_MAX} group settings")
        groups = [read_group(one) for one in configs]
        for config, extras in groups:
            check_config(config, extras)
        fresh = {config.group_name for config, _ in groups} - self._table.keys()
        if fresh and len(self._table) + len(fresh) > self.settings.accept_groups_max:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"{len(fresh)} new groups on top of {len(self._table)}, limit is acceptGroupsMax={self.settings.accept_groups_max}",
            )
        if fresh:
            self.newcomers.let_in(len(fresh))
        for config, extras in groups:
            self._put(config, extras)
        done = answer_when_saved(peer, command)
        if groups:
            self._changed([config.group_name for config, _ in groups], done)
        else:
            done(None)

    @answers(GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def get_all(self, peer: Peer, command: Command) -> Command:
        return GET_ALL_SUBSCRIPTIONGROUP_CONFIG.reply(command, body=self.encode())

    @answers(GET_SUBSCRIPTIONGROUP_CONFIG)
    def get_one(self, peer: Peer, command: Command) -> Command:
        """352. Asking does not create."""
        name = GET_SUBSCRIPTIONGROUP_CONFIG.read_header(command).group
        found = self._table.get(name)
        if found is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name[:255]}")
        return GET_SUBSCRIPTIONGROUP_CONFIG.reply(command, body=fastjson.dumps(self.group_json(found)))

    @answers(DELETE_SUBSCRIPTIONGROUP)
    def delete_one(self, peer: Peer, command: Command) -> None:
        """207. 4.9 calls it removeOffset, 5.x cleanOffset."""
        header = DELETE_SUBSCRIPTIONGROUP.read_header(command)
        with_offsets = bool(header.remove_offset or header.clean_offset)
        log.info("group %s deleted by %s", header.group_name[:255], peer.address)
        answer = answer_when_saved(peer, command)
        self.delete(
            header.group_name,
            with_offsets=with_offsets,
            done=answer if not with_offsets else lambda error: answer(error) if error is not None else self.offsets.saved(answer),
        )


def indented(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:  # a key that is no text, among what 5.x keeps
        return fastjson.dumps_pretty(value)


def read_group(value: Any) -> tuple[GroupConfig, Extras]:
    """Raises Refused."""
    config = GroupConfig.from_json(value)
    return config, {name: inner for name, inner in value.items() if name not in KNOWN and inner is not None}


def check_config(config: GroupConfig, extras: Extras | None) -> None:
    check_group(config.group_name)
    if config.retry_queue_nums > QUEUES_MAX:
        raise Refused(ResponseCode.SYSTEM_ERROR, f"retryQueueNums is {config.retry_queue_nums}, allowed are 0 to {QUEUES_MAX}")
    if extras:
        size = len(fastjson.dumps(extras))
        if size > EXTRAS_MAX:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"group {config.group_name} carries {size} bytes of other settings, limit is {EXTRAS_MAX}"
            )


def parse_groups(data: bytes) -> tuple[DataVersion, dict[str, GroupConfig], dict[str, Extras], Extras]:
    """The file. Raises Refused when it is not what it should be."""
    value = fastjson.loads(data)
    if not isinstance(value, dict):
        raise Refused(ResponseCode.SYSTEM_ERROR, "the group table is no JSON object")
    version = DataVersion.from_json(value.get("dataVersion") or {})
    groups: dict[str, GroupConfig] = {}
    extras: dict[str, Extras] = {}
    for name, inner in (value.get("subscriptionGroupTable") or {}).items():
        config, more = read_group(inner)
        groups[name] = config
        if more:
            extras[name] = more
    top = {name: inner for name, inner in value.items() if name not in ("dataVersion", "subscriptionGroupTable")}
    return version, groups, extras, top
