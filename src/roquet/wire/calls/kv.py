"""The values that a name server keeps for others."""

from __future__ import annotations

from dataclasses import field

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire


class KvHeader(Header):
    """Only PUT_KV_CONFIG has a value, and must."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str | None = optional("value")


class KvResponseHeader(Header):
    value: str | None = optional("value")


class NamespaceHeader(Header):
    namespace: str = wire("namespace")


class KvTable(Body):
    table: dict[str, str] = field(default_factory=dict)


class KvConfig(Body):
    """kvConfig.json of a name server: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


PUT_KV_CONFIG = Call(Code.PUT_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KV_CONFIG = Call(Code.GET_KV_CONFIG, KvHeader, Nothing, KvResponseHeader, Nothing)
DELETE_KV_CONFIG = Call(Code.DELETE_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KVLIST_BY_NAMESPACE = Call(Code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader, Nothing, Nothing, KvTable)
