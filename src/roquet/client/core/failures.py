"""What a client tells its user when a server said no: the code, the remark, and what to do about it."""

from __future__ import annotations

from roquet.errors import CallTimeout, ClientError, Rejected, SendFailed
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command

ADVICE: dict[int, str] = {
    ResponseCode.SYSTEM_BUSY: "it is overloaded; send more slowly or try again later",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "this server does not know the request; it may be older, or of another kind, than expected",
    ResponseCode.MESSAGE_ILLEGAL: "make the body, the properties or the topic's name smaller",
    ResponseCode.SERVICE_NOT_AVAILABLE: "its store takes no writes: look at its disk and role",
    ResponseCode.NO_PERMISSION: "look at the permissions of the topic, the group and the broker",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or turn autoCreateTopicEnable on",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the filter expression",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the group, or turn autoCreateSubscriptionGroup on",
    ResponseCode.CONSUMER_NOT_ONLINE: "start a consumer of the group",
}

RETRIED: frozenset[int] = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)
"""Codes after which a send is tried on another broker: upstream's set, with SYSTEM_BUSY and GO_AWAY that 5.x added."""

PASSING: frozenset[int] = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY})
"""Of these, those that pass with time: the same broker is tried again, with pauses, as long as the send may wait."""

ELSEWHERE: frozenset[int] = RETRIED - PASSING - {ResponseCode.SYSTEM_ERROR}
"""Of these, those that the same broker will answer again."""

BY_REMARK: dict[str, str] = {
    "to filter message by": "set enablePropertyFilter=true in the broker's configuration, or filter by tags",
    "timer message illegal": "deliver it sooner, or raise timerMaxDelaySec at the broker",
    "othing was changed": "",
}
"""Where one code stands for several things, words of the remark tell them apart. Apache's brokers use the same words. A refused change of
settings says itself what to do."""

ACL_EXCEPTION = "AclException"
ACL_ADVICE = "give the accessKey and secretKey of an account in its plain_acl.yml that may do this"


class ServerRejected(Rejected):
    """A Rejected whose text ends with what to do."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        super().__init__(code, remark, address)
        told = next((advice for words, advice in BY_REMARK.items() if words in remark), ADVICE.get(code))
        advice = ACL_ADVICE if self.of_keys else told
        if advice:
            self.args = (f"{self.args[0]}; {advice}",)

    @property
    def of_keys(self) -> bool:
        """Refused for who asks, which trying again does not change. Upstream answers it with code 1, as it does much that passes."""
        return ACL_EXCEPTION in self.remark


def rejected(answer: Command, address: str) -> ServerRejected:
    return ServerRejected(answer.code, (answer.remark or "no remark").strip(), address)


class SendTimedOut(SendFailed, CallTimeout):
    """The time allowed for a send ran out. A broker may have stored the message nevertheless: sending it again can make it a duplicate."""


class TooManySends(ClientError):
    """As many messages are under way as sends_in_flight_max allows, and send_async() does not wait: call it later."""


class BatchFailed(SendFailed):
    """Part of a send_batch failed. `receipts` holds one per message in order, None where it is not known to be stored."""

    def __init__(self, text: str, attempts: list[tuple[str, str]], receipts: list[object | None]) -> None:
        super().__init__(text, attempts)
        self.receipts = receipts


class GroupTaken(ClientError):
    """This client already has a producer or consumer of that group; give it another group, or another instance_name."""


class BadAnswer(ClientError):
    """A server answered with success, but with fields or a body that make no sense. Look at the versions of both ends."""
