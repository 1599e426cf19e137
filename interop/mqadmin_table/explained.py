"""Differences between what mqadmin prints of Apache RocketMQ 4.9.7 and of Roquet that are meant to be, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Explained:
    """Commands (`*` stands for any text), the lines that only Apache's print and those that only Roquet's do (regular expressions for
    a whole line; empty: none), and why. One that no line needs fails the run."""

    commands: tuple[str, ...]
    theirs: str
    ours: str
    why: str
    brief: bool = False
    """Whether the page tells the reason alone, and not the lines: there are many, and there will be others."""

    def covers(self, line: str, of_command: str, *, theirs: bool) -> bool:
        pattern = self.theirs if theirs else self.ours
        return bool(pattern) and any(fnmatchcase(of_command, each) for each in self.commands) and bool(re.fullmatch(pattern, line))


FAILED = r"org\.apache\.rocketmq\.tools\.command\.SubCommandException: \w+ command failed"
CAUSE = r"Caused by: org\.apache\.rocketmq\.client\.exception\.MQ(Client|Broker)Exception: "
RUNTIME = r"(<[ab]> )?"

VERSION = "Apache's broker is 4.9.7, the last 4.x on Maven Central; Roquet says what the newest 4.x says"
SAYS_MORE = "the same exception and code; the text says which name or value, and what to do"
STRICT_SETTINGS = "4.9.7 says that it changed a setting that it does not have, cannot change or cannot read; Roquet refuses it"
OWN_SETTINGS = "a setting of Roquet's own, or one of RocketMQ's that 4.9.7 shows only where it is set"
OWN_FIGURES = "Roquet shows some figures of its own, and one under its name of 5.x, too"
NO_ACL = (
    "access control is off: 4.9.7's code stumbles over a validator that is not there, or does not answer until the caller gives up; "
    "Roquet says why it does not do it"
)

ALWAYS: tuple[Explained, ...] = (
    Explained(("clusterList",), r".* V4_9_7 .*", r".* V4_9_8 .*", VERSION),
    Explained(("brokerStatus *",), RUNTIME + r"brokerVersion\w* : (407|V4_9_7)", RUNTIME + r"brokerVersion\w* : (409|V4_9_8)", VERSION),
    Explained(
        ("brokerStatus *",),
        RUNTIME + r"earliestMessageTimeStamp : -1",
        RUNTIME + r"earliestMessageTimeStamp : <time>",
        "4.9.7 does not find the first message's time while the log is shorter than two messages may be; Roquet does",
    ),
    Explained(
        ("brokerStatus *",),
        "",
        RUNTIME + r"(roquet\w+|acl\w+|messagesUnreadable|queueEntriesMended|getTransferredTps) : .*",
        OWN_FIGURES,
        brief=True,
    ),
    Explained(("updateTopic *bad!name",), CAUSE + r"CODE: 1 DESC: .*", CAUSE + r"CODE: 1 DESC: .*\[bad!name\].*", SAYS_MORE),
    Explained(
        ("queryCq * -g w_g_live",),
        r"ConsumeQueueData\{.*eval=false.*",
        r"ConsumeQueueData\{.*eval=true.*",
        "4.9.7 judges entries with extensions alone, so it says of all others that the group does not want them",
    ),
    Explained(
        ("queryCq * -i 99 *",),
        r"java\.lang\.NullPointerException: .*",
        r"org\.apache\.rocketmq\.client\.exception\.MQClientException: CODE: 1 DESC: Index 99 .*",
        "4.9.7 answers well and without a body, over which mqadmin stumbles; Roquet says that there is no such entry",
    ),
    Explained(
        ("consumeMessage * -i 7 *",),
        r".*MQBrokerException: CODE: 1 .* consumer:\[/<client>\].*",
        r".*MQBrokerException: CODE: 1 .* consumer:\[<client>\].*",
        "Java prints an address with a slash before it",
    ),
    Explained(("getNamesrvConfig",), r"(rocketmqHome|configStorePath) = .*", r"[\w.]+ =.*", OWN_SETTINGS, brief=True),
    Explained(
        ("getBrokerConfig *",),
        "bitMapLengthConsumeQueueExt = 112",
        "bitMapLengthConsumeQueueExt = 64",
        "4.9.7 enlarges this setting by itself; Roquet has no such files and leaves the default",
    ),
    Explained(("getBrokerConfig *",), r"rocketmqHome = .*", r"[\w.]+ =.*", OWN_SETTINGS, brief=True),
    Explained(
        ("updateNamesrvConfig -k noSuchKey *",),
        r"update name server config success.*|noSuchKey : 1",
        FAILED + "|" + CAUSE + "CODE: 16 .*",
        STRICT_SETTINGS,
    ),
    Explained(("updateNamesrvConfig -k configStorePath *",), CAUSE + "CODE: 16 .*", CAUSE + "CODE: 16 .*", SAYS_MORE),
    Explained(
        ("updateBrokerConfig * noSuchKey *", "updateBrokerConfig * many", "updateBrokerConfig * elsewhere"),
        r"update broker config success.*",
        FAILED + "|" + CAUSE + r"CODE: (1|16) DESC: nothing was changed: .*",
        STRICT_SETTINGS,
    ),
)

EXPLAINED = (
    *ALWAYS,
    Explained(
        ("updateAclConfig *", "deleteAclConfig *", "updateGlobalWhiteAddr *"), CAUSE + "CODE: (209|210|211) .*", CAUSE + "CODE: .*", NO_ACL
    ),
    Explained(
        ("clusterAclConfigVersion *",),
        r"Caused by: org\.apache\.rocketmq\.remoting\.exception\.RemotingTimeoutException: .*",
        CAUSE + "CODE: .*",
        NO_ACL,
    ),
)

NOT_VERIFIED = (
    "clients of 4.9.4 and later sign one field of this request that 4.9.7 leaves out, so it refuses the signature; Roquet takes either"
)
FOUND = (
    r"Topic: .*|\S+( \S+)*: .*|#.*|<(unique id|first key)> .*|Pub .*|ConsumeMessageDirectlyResult .*|Message Body .*|==+|MessageTrack .*"
)
WITH_KEYS: tuple[Explained, ...] = (
    *ALWAYS,
    Explained(
        ("queryMsgByKey -t w_live -k key-3", "queryMsgByUniqueKey * {key}*", "queryMsgTraceById -i {traced}"),
        FAILED.replace(" command", " ?command") + "|" + CAUSE + "CODE: 208 .*",
        FOUND,
        NOT_VERIFIED,
        brief=True,
    ),
    Explained(("updateAclConfig * short *",), CAUSE + "CODE: 209 .*", CAUSE + "CODE: 209 .*", SAYS_MORE),
    Explained(("deleteAclConfig * nobody",), CAUSE + "CODE: 210 .*", CAUSE + "CODE: 210 .*", SAYS_MORE),
)
"""The same with access control on."""
