"""Brokers that announce themselves to name servers, and leave."""

from __future__ import annotations

import dataclasses
import zlib
from dataclasses import field
from typing import Any

from roquet.errors import InvalidMessage
from roquet.wire.bodies import Body
from roquet.wire.calls.brokers import KvTable
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.calls.topics import TopicConfig, TopicTable
from roquet.wire.calls.versions import BrokerHeader, DataVersion
from roquet.wire.codes import RequestCode as Code
from roquet.wire.codes import SysFlag, refused
from roquet.wire.compression import decompress
from roquet.wire.fastjson import dumps, loads
from roquet.wire.headers import Header, optional, wire


class RegisterBrokerHeader(BrokerHeader):
    ha_server_addr: str = wire("haServerAddr")
    compressed: bool | None = optional("compressed")
    body_crc32: int | None = optional("bodyCrc32")
    """Of the body as sent (`record.body_crc`); 0 or absent: do not check."""
    heartbeat_timeout_millis: int | None = optional("heartbeatTimeoutMillis", bits=64)
    enable_acting_master: bool | None = optional("enableActingMaster")


class RegisterBrokerResponseHeader(Header):
    """Both only for a slave whose master is alive."""

    ha_server_addr: str | None = optional("haServerAddr")
    master_addr: str | None = optional("masterAddr")


COMPRESSED_LIMIT = 64 * 1024 * 1024


class RegisterBrokerBody(Body):
    """Brokers before 3.0.11 (version 37) send a TopicTable in its place."""

    topics: TopicTable = field(default_factory=TopicTable, metadata={"name": "topicConfigSerializeWrapper"})
    filter_server_list: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, value: Any) -> RegisterBrokerBody:
        table = value.get("topicConfigSerializeWrapper") if isinstance(value, dict) else None
        if table is None:
            return super().from_json(value)
        rest = super().from_json({**value, "topicConfigSerializeWrapper": None})
        return cls(TopicTable.from_json(table), rest.filter_server_list)

    def encode_compressed(self) -> bytes:
        """The form that goes with compressed=true: zlib over length-prefixed texts, a topic as five words.

        Attributes of a topic are not in it, as in 4.9.
        """
        lines = [
            f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} {topic.topic_filter_type}".encode()
            for topic in self.topics.topic_config_table.values()
        ]
        parts = [prefixed(self.topics.data_version.encode()), len(lines).to_bytes(4, "big")]
        parts += map(prefixed, lines)
        parts.append(prefixed(dumps(self.filter_server_list)))
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode_compressed(cls, data: bytes) -> RegisterBrokerBody:
        """Raises Refused(1). topicSysFlag and order are not in this form and get their defaults."""
        try:
            raw = decompress(data, SysFlag.COMPRESSED, COMPRESSED_LIMIT)
        except InvalidMessage as error:
            raise refused(f"registration: {error}") from None
        at = 0

        def take(size: int, what: str) -> bytes:
            nonlocal at
            if size < 0 or at + size > len(raw):
                raise refused(f"registration: {what} of {size} bytes, {len(raw) - at} are left")
            at += size
            return raw[at - size : at]

        def number(what: str) -> int:
            return int.from_bytes(take(4, what), "big", signed=True)

        version = DataVersion.decode(take(number("length of the version"), "the version"))
        count = number("the number of topics")
        if count < 0 or count * 4 > len(raw) - at:
            raise refused(f"registration: {count} topics in {len(raw) - at} bytes")
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            line = take(number("length of a topic"), "a topic")
            words = line.decode("utf-8", "replace").split(" ")
            if len(words) < 5:
                raise refused(f"registration: topic {line[:80]!r} has {len(words)} words, expected name read write perm filter")
            name, read, write, perm, kind = words[:5]
            table[name] = TopicConfig.from_json(
                {"topicName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicFilterType": kind}
            )
        servers = loads(take(number("length of the filter servers"), "the filter servers"))
        if at != len(raw):
            raise refused(f"registration: {len(raw) - at} bytes behind its end")
        return dataclasses.replace(cls.from_json({"filterServerList": servers}), topics=TopicTable(table, version))


def prefixed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


REGISTER_BROKER = Call(Code.REGISTER_BROKER, RegisterBrokerHeader, RegisterBrokerBody, RegisterBrokerResponseHeader, KvTable)
UNREGISTER_BROKER = Call(Code.UNREGISTER_BROKER, BrokerHeader, Nothing, Nothing, Nothing)
