"""The broker's role: a master takes messages, a slave copies those of its master.

The role is the setting brokerRole, with brokerId. A DLedger group changes both while its brokers run; everybody asks the settings, and
`core.Broker` tells the parts of the change. On a slave, parts that are `master_only` neither tick nor hold files of the log back, and what
a slave must not do is refused here, with upstream's codes and remarks.
"""

from __future__ import annotations

from collections.abc import Mapping

from roquet.broker.part import Part, Shared
from roquet.broker.send import SENDS, Sender
from roquet.errors import Refused
from roquet.ports import Peer
from roquet.settings import BrokerSettings
from roquet.store.applier import FOLLOWS
from roquet.wire.codes import RequestCode, ResponseCode
from roquet.wire.command import Command

SLAVE = "SLAVE"

STORES = SENDS | {RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.RECALL_MESSAGE}
"""Requests that store a message."""

CHANGES = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    )
)  # fmt: skip
"""Requests that change topics or groups."""

NOT_HERE = "Can't modify topic or subscription group from slave broker, please execute it from master broker."


def is_slave(settings: BrokerSettings) -> bool:
    return settings.broker_role == SLAVE


class SlaveGuard:
    """A guard of `Admission`, there while the broker is a slave."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def __call__(self, peer: Peer, command: Command) -> None:
        code = command.code
        if code in STORES:
            raise self._sender.not_stored(FOLLOWS)
        if code in CHANGES:
            raise Refused(ResponseCode.SYSTEM_ERROR, NOT_HERE)
        if code == RequestCode.CONSUMER_SEND_MSG_BACK:
            raise Refused(ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
        if code in (RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE):
            raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "a transaction is ended at the master, this is a slave")


class RoleReport(Part):
    """What `roquet ha status` asks each broker. State: when it took its role (wall time), and why."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self.since_ms = 0
        self.why = ""

    def open(self) -> None:
        self._note("it was started so")

    def became_master(self) -> None:
        self._note("it was made master while it ran")

    def became_slave(self) -> None:
        self._note("it was made slave while it ran")

    def _note(self, why: str) -> None:
        self.since_ms, self.why = self.clock.now_ms(), why

    def metrics(self) -> Mapping[str, object]:
        return {
            "roquetRole": self.settings.broker_role,
            "roquetRoleSince": self.since_ms,
            "roquetRoleWhy": self.why,
            "roquetLastStoreTime": self.store.timeline.last_ms,
        }
