"""Access control lists: accounts, the white list, their version; and who was refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, field
from typing import Any

from roquet.wire.bodies import Body, int32
from roquet.wire.calls.call import Bytes, Call, Nothing
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, optional, wire

UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211
"""Response codes of 4.9; 5.x gave them other meanings."""


class AccountHeader(Header):
    """What is not given stays as it is. Lists have commas between their members, as in topicA=PUB,topicB=SUB."""

    access_key: str = wire("accessKey")
    secret_key: str | None = optional("secretKey")
    white_remote_address: str | None = optional("whiteRemoteAddress")
    admin: bool | None = optional("admin")
    default_topic_perm: str | None = optional("defaultTopicPerm")
    default_group_perm: str | None = optional("defaultGroupPerm")
    topic_perms: str | None = optional("topicPerms")
    group_perms: str | None = optional("groupPerms")

    def __repr__(self) -> str:
        """Without the secret."""
        return f"<AccountHeader {self.access_key!r}>"


class AccessKeyHeader(Header):
    access_key: str = wire("accessKey")


class WhiteAddressesHeader(Header):
    """A path that 4.9.4 and later send along (aclFileFullPath) is not read: no path comes from the network."""

    global_white_addrs: str = wire("globalWhiteAddrs")


class AclVersionHeader(Header):
    version: str = wire("version")
    """A DataVersion as JSON."""
    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    all_acl_file_version: str | None = optional("allAclFileVersion")
    """The same of each file, as JSON by its name. mqadmin 4.9.8 fails without it."""


class PlainAccessConfig(Body):
    access_key: str
    secret_key: str = field(repr=False)
    """Masked, except in what ACCESS_COPY seals."""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] = field(default_factory=list)
    group_perms: list[str] = field(default_factory=list)


class AclConfig(Body):
    global_white_addrs: list[str] = field(default_factory=list)
    plain_access_configs: list[PlainAccessConfig] = field(default_factory=list)


class CheckHeader(Header):
    """May this account use this topic, this group?"""

    access_key: str = wire("accessKey")
    topic: str | None = optional("topic")
    group: str | None = optional("group")


class Verdict(Body):
    resource: str
    permission: str
    allowed: bool
    why: str
    """With the file and its line."""


class Verdicts(Body):
    verdicts: list[Verdict] = field(default_factory=list)


class RefusedCallBody(Body):
    """One call that access control refused."""

    time_ms: int
    address: str
    access_key: str
    code: int = int32()
    resource: str = ""
    why: str = ""


class RefusedCalls(Body):
    """`refused` counts all since the start; the newest of them are `calls`, the last one last."""

    refused: int = 0
    calls: list[RefusedCallBody] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Of a name server: what is wrong with who may come in. Brokers tell theirs with their runtime information."""


def refused_calls(refused: int, calls: Iterable[Any], warnings: Iterable[str] = ()) -> RefusedCalls:
    """Of dataclasses with the fields of RefusedCallBody."""
    return RefusedCalls(refused, [RefusedCallBody(**asdict(one)) for one in calls], list(warnings))


UPDATE_AND_CREATE_ACL_CONFIG = Call(Code.UPDATE_AND_CREATE_ACL_CONFIG, AccountHeader, Nothing, Nothing, Nothing)
DELETE_ACL_CONFIG = Call(Code.DELETE_ACL_CONFIG, AccessKeyHeader, Nothing, Nothing, Nothing)
UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = Call(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, WhiteAddressesHeader, Nothing, Nothing, Nothing)
GET_BROKER_CLUSTER_ACL_INFO = Call(Code.GET_BROKER_CLUSTER_ACL_INFO, Nothing, Nothing, AclVersionHeader, Nothing)
GET_BROKER_CLUSTER_ACL_CONFIG = Call(Code.GET_BROKER_CLUSTER_ACL_CONFIG, Nothing, Nothing, Nothing, AclConfig)
ACCESS_COPY = Call(Code.ACCESS_COPY, Nothing, Nothing, Nothing, Bytes)
"""An AclConfig with its secrets, sealed (`wire/sealing.py`) with the secret key of whoever signed the request."""
ACCESS_AUDIT = Call(Code.ACCESS_AUDIT, Nothing, Nothing, Nothing, RefusedCalls)
ACCESS_CHECK = Call(Code.ACCESS_CHECK, CheckHeader, Nothing, Nothing, Verdicts)
