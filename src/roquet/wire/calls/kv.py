"""The values that a name server keeps for others."""

from __future__ import annotations

from dataclasses import dataclass, field

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import optional, wire


@dataclass(frozen=True, slots=True)
class KvHeader:
    """Only PUT_KV_CONFIG has a value, and must."""

    namespace: str = wire("namespace")
    key: str = wire("key")
    value: str | None = optional("value")


@dataclass(frozen=True, slots=True)
class KvResponseHeader:
    value: str | None = optional("value")


@dataclass(frozen=True, slots=True)
class NamespaceHeader:
    namespace: str = wire("namespace")


@dataclass(slots=True)
class KvTable(Body):
    table: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class KvConfig(Body):
    """kvConfig.json of a name server: namespace -> key -> value."""

    config_table: dict[str, dict[str, str]] = field(default_factory=dict)


PUT_KV_CONFIG = Call(Code.PUT_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KV_CONFIG = Call(Code.GET_KV_CONFIG, KvHeader, Nothing, KvResponseHeader, Nothing)
DELETE_KV_CONFIG = Call(Code.DELETE_KV_CONFIG, KvHeader, Nothing, Nothing, Nothing)
GET_KVLIST_BY_NAMESPACE = Call(Code.GET_KVLIST_BY_NAMESPACE, NamespaceHeader, Nothing, Nothing, KvTable)
