"""Differences between Apache RocketMQ 4.9.7 and Roquet that are meant to be, and why. One that no longer occurs fails the run."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ALL = "*"
"""As `what`: the whole answer, since one of the two refuses what the other does."""


@dataclass(frozen=True)
class Explained:
    """Steps of a group (`*` and `?` stand for any text), what differs there (a path in the answer, or the start of one), and why.

    It must differ in every step that is named, and Roquet's answer must be the one in answers.json.
    """

    group: str
    steps: tuple[str, ...]
    what: str
    why: str

    def names(self, step: str) -> bool:
        return any(fnmatchcase(step, pattern) for pattern in self.steps)

    def covers(self, step: str, path: str) -> bool:
        return self.names(step) and (self.what == ALL or path == self.what or path.startswith((self.what + ".", self.what + "[")))


# ---- reasons that hold for several steps

MISSING = (
    "a required field is missing: 4.9.7 logs that and goes on with null, to a NullPointerException or to success; Roquet refuses "
    "with the remark that upstream's code means to give"
)
NO_BODY = "a body that is missing or no JSON: code 1 from both; Java's text of the exception against what stands where in the body"
NUMBER = "a field that is no number: code 1 from both; Java's text of the exception against the field, its value and what is allowed"
SAYS_MORE = "the same code, and a remark that begins as upstream's or says the same with the value and the limit in it"
NO_ANSWER = "4.9.7 answers nothing, so that the caller waits until it times out; Roquet answers"
STRICT_NAME = "a group's name that no client accepts: 4.9.7 makes such a group, Roquet keeps to the rules for names"
DEFAULT_REMARK = "4.9.7 leaves its own default remark in a good answer"
SLASH = "Java prints an address with a slash before it"
PASSES_OVER = "Roquet goes on over messages that do not match, up to the next that does; the client need not see those again"
BAD_FILTER = (
    "an expression that is none: 4.9.7 serves such a pull without a filter or never matches; Roquet refuses it as it does in a heartbeat"
)
ORDER_MARK = "4.9.7 forgets the mark of an ordered topic that it was asked to keep"
ONE_RETRY_QUEUE = "a retry topic made by a plain send: 4.9.7 gives it as many queues as any topic, Roquet one, as every other way does"

OTHER_SETTINGS = "settings of Java's threads and buffers are not there, some of Roquet's own are"

EXPLAINED: tuple[Explained, ...] = (
    # name server
    Explained("routes", ("route without a topic*",), ALL, MISSING),
    Explained("routes", ("unknown request*", "a broker's request"), "answer", NO_ANSWER),
    Explained("values of the name server", ("put without *", "list of nothing"), ALL, MISSING),
    Explained("values of the name server", ("settings",), "body", OTHER_SETTINGS),
    Explained("values of the name server", ("a setting that is not to be changed",), "remark", SAYS_MORE),
    Explained("registrations", ("register without an id", "data version without a broker"), ALL, MISSING),
    Explained("registrations", ("register with a body that is no JSON",), "remark", NO_BODY),
    # transactions
    Explained("transactions", ("by no group", "no state"), "remark", MISSING),
    Explained("transactions", ("commit again",), ALL, "a second commit: 4.9.7 delivers the message a second time"),
    Explained("transactions", ("roll back",), "remark", DEFAULT_REMARK),
    Explained("transactions", ("do not know*",), "answer", NO_ANSWER),
    Explained("transactions", ("neither",), "remark", SAYS_MORE),
    Explained(
        "transactions", ("another place", "a message that is no half"), "remark", "a place where no half message is: 4.9.7 stumbles over it"
    ),
    Explained(
        "transactions",
        ("queue of the flag alone",),
        "fields.offset",
        "marked as a half message by the flag and not by the property: 4.9.7 stores it where nobody finds it, to Roquet it is plain",
    ),
    Explained(
        "transactions that are checked",
        ("half and delayed",),
        ALL,
        "a half message that is delayed: 4.9.7 answers well and delays the half message, so its end finds nothing",
    ),
    # topics
    Explained("topics", ("create without *", "delete nothing"), ALL, MISSING),
    Explained(
        "topics", ("create, a name with a [!pb]*", "create, a name not ASCII", "create, a name of 128 characters"), "remark", SAYS_MORE
    ),
    Explained("topics", ("create with queues that are no number",), "remark", NUMBER),
    Explained("topics", ("create with a filter type nobody knows",), "remark", SAYS_MORE),
    Explained("topics", ("all topics",), "body.JSON.topicConfigTable.D-ordered.order", ORDER_MARK),
    Explained("new topics", ("all topics after",), "body.JSON.topicConfigTable.D-ordered.order", ORDER_MARK),
    Explained("what is left", ("topics",), "body.JSON.topicConfigTable.D-ordered.order", ORDER_MARK),
    Explained("new topics", ("all topics after",), "body.JSON.topicConfigTable.%RETRY%D-nobody", ONE_RETRY_QUEUE),
    Explained("what is left", ("topics",), "body.JSON.topicConfigTable.%RETRY%D-nobody", ONE_RETRY_QUEUE),
    Explained("what is left", ("topics",), "body.JSON.topicConfigTable.%RETRY%D-strangers-too", ONE_RETRY_QUEUE),
    Explained("new topics", ("with *no queues",), ALL, "4.9.7 makes a topic without queues and then refuses the send; Roquet makes none"),
    # sends
    Explained("refused sends", ("without *", "no fields at all"), ALL, MISSING),
    Explained(
        "refused sends",
        ("short names with the code of long ones", "long names with the code of short ones"),
        ALL,
        "Roquet takes both spellings of a send's fields with each of its codes",
    ),
    Explained("refused sends", ("a queue that is no number", "a queue number too large", "a time that is no number"), ALL, NUMBER),
    Explained("refused sends", ("to a topic with a [!pb]*", "to a topic not ASCII", "to a topic of 128 characters"), "remark", SAYS_MORE),
    Explained("refused sends", ("*too large a body", "too large properties"), "remark", SAYS_MORE),
    Explained("refused sends", ("to a read-only topic",), ALL, "4.9.7 takes messages for a topic that is not to be written to"),
    Explained("refused sends", ("a lite pull of 5.x",), ALL, "Roquet serves the lite pull of 5.x clients as well"),
    Explained("batches", ("batch to a topic with a long name", "batch with a message too large", "batch too large"), "remark", SAYS_MORE),
    Explained(
        "batches",
        ("batch of nothing", "batch cut short", "batch of noise"),
        ALL,
        "a batch that is none: 4.9.7 stumbles over it, code 1, not 13",
    ),
    Explained(
        "batches",
        ("batch to a retry topic",),
        ALL,
        "upstream's client refuses a batch to a retry topic, 4.9.7's broker takes one; Roquet does not",
    ),
    Explained("delays", ("delayed by a word",), ALL, "a level that is no number: 4.9.7 stumbles over it, code 1, not 13"),
    Explained(
        "delays",
        ("a batch delayed in one message",),
        ALL,
        "a delay inside a batch: 4.9.7 stores it and delivers at once; Roquet refuses it",
    ),
    Explained("replies", ("reply without a topic",), ALL, MISSING),
    # pulls
    Explained("pulls", ("without [!ecs]*", "without consumerGroup", "without sysFlag"), ALL, MISSING),
    Explained("pulls", ("fewer than none",), "remark", SAYS_MORE),
    Explained("delays", ("a batch delayed as a whole",), "remark", SAYS_MORE),
    Explained("pulls", ("an offset that is no number",), "remark", NUMBER),
    Explained("pulls", ("a queue past the last", "a negative queue"), "remark", SLASH),
    Explained("pulls", ("a group *k", "a group *t", "a group *s"), ALL, STRICT_NAME),
    Explained("pulls", ("events of moved offsets",), "[0].properties.DELAY", "4.9.7 writes DELAY=0 into its own events"),
    Explained("pulls", ("events of moved offsets",), "[1].properties.DELAY", "4.9.7 writes DELAY=0 into its own events"),
    Explained("pulls", ("events of moved offsets",), "[2].properties.DELAY", "4.9.7 writes DELAY=0 into its own events"),
    Explained("pulls", ("events of moved offsets",), "[3].properties.DELAY", "4.9.7 writes DELAY=0 into its own events"),
    Explained("filters", ("one tag, two messages",), "fields.nextBeginOffset", PASSES_OVER),
    Explained(
        "subscriptions", ("an older version", "the request's own is stronger", "by the new tag"), "fields.nextBeginOffset", PASSES_OVER
    ),
    Explained("filters", ("SQL, not an expression", "SQL, arithmetic", "SQL, like", "a kind nobody knows"), ALL, BAD_FILTER),
    Explained("filters", ("SQL, empty",), "remark", SAYS_MORE),
    Explained(
        "long polls",
        ("not held without a match before the end",),
        ALL,
        "nothing matched up to the end: 4.9.7 sends the client round once more before it holds the pull, Roquet holds it",
    ),
    # offsets and queries
    Explained("offsets", ("commit* without *", "*, no topic", "*, no queue", "time, none said"), ALL, MISSING),
    Explained("offsets", ("commit a negative offset",), ALL, "an offset below 0 is no place: 4.9.7 keeps it and never finds it"),
    Explained(
        "offsets",
        ("progress of all groups",),
        "body.JSON.offsetTable.D-pull@D-offsets.1",
        "an offset below 0 is no place: 4.9.7 keeps it and never finds it",
    ),
    Explained("queries", ("without *", "by no place"), ALL, MISSING),
    Explained(
        "queries",
        ("by an unknown key", "by key in *", "by key at another time", "none of several", "by an empty key"),
        "fields.indexLastUpdateTimestamp",
        "nothing found: Roquet says all the same when its index was last written",
    ),
    Explained("queries", ("by *, binary header",), "form", "4.9.7 answers these with a JSON header whatever the request's was"),
    # clients
    Explained("clients", ("heartbeat without a body", "heartbeat that is no JSON", "check of nothing"), "remark", NO_BODY),
    Explained("clients", ("leave without a name", "list without a group"), ALL, MISSING),
    Explained("clients", ("check of SQL that is *", "check of a kind nobody knows"), "remark", SAYS_MORE),
    Explained("locks", ("without a body",), "remark", NO_BODY),
    Explained("groups", ("create without a body", "create with a body that is no JSON"), "remark", NO_BODY),
    Explained("groups", ("create with a name that is *",), ALL, STRICT_NAME),
    Explained("groups", ("delete nothing",), "remark", MISSING),
    Explained("calls to clients", ("status, nobody there",), "remark", "nobody of the group is there: 4.9.7 stumbles over it"),
    Explained("calls to clients", ("reset without a time", "clone to nobody"), ALL, MISSING),
    Explained("calls to clients", ("status",), "remark", DEFAULT_REMARK),
    Explained(
        "calls to clients", ("all cloned",), "fields.offset", "without a topic 4.9.7 says that it cloned all offsets, and clones none"
    ),
    Explained("send-backs", ("without *",), "remark", MISSING),
    # administration
    Explained("statistics", ("no topic", "no counter"), "remark", MISSING),
    Explained("statistics", ("entries of a queue", "entries further on", "entries of a group"), "remark", DEFAULT_REMARK),
    Explained(
        "statistics",
        ("entries past the end", "entries of an empty queue", "entries of an unknown topic"),
        ALL,
        "there are no such entries: 4.9.7 says so in the remark of a good answer without the body that its tool then reads",
    ),
    Explained(
        "statistics", ("time span",), "body.JSON.consumeTimeSpanSet", "4.9.7 also writes each time as text, which no reader of it wants"
    ),
    Explained("settings", ("names of the settings",), "body", OTHER_SETTINGS),
    Explained(
        "settings",
        ("running values",),
        "body.JSON.table.scheduleMessageOffset_18",
        "4.9.7 names a delay level only when it has delivered something of it",
    ),
    Explained("settings", ("running values",), "body.JSON.table.roquetVersion", "Roquet says its own version beside that of the protocol"),
    *(
        Explained("settings", ("running values",), f"body.JSON.table.roquet{name}", "roquet ha status asks for it")
        for name in ("Role", "RoleSince", "RoleWhy", "LastStoreTime", "Slaves")
    ),
    *(
        Explained(
            "settings", ("running values",), f"body.JSON.table.roquet{name}", "which of its ways sends took, and which form of it runs"
        )
        for name in ("Speedups", "SendsFast", "SendsGeneral", "SendsCompiled")
    ),
    *(
        Explained("settings", ("running values",), f"body.JSON.table.{name}", "whether access control is on, and what it refused")
        for name in ("aclEnable", "aclRefusedCalls")
    ),
    Explained("settings", ("running values",), "body.JSON.table.getTransferredTps", "Roquet has this row of 5.x too: its mqadmin reads it"),
    Explained("settings", ("running values",), "body.JSON.table.roquetTransactionsOpen", "Roquet says how many transactions are open"),
    Explained("settings", ("running values",), "body.JSON.table.queueEntriesMended", "Roquet counts what it mended from the log"),
    Explained("settings", ("running values",), "body.JSON.table.messagesUnreadable", "Roquet counts what it stepped over"),
    Explained("settings", ("change nothing", "change an unknown one"), ALL, "4.9.7 takes any text and says it has changed something"),
    Explained("settings", ("resume a check of *",), "remark", SAYS_MORE),
    Explained("settings", ("version of an answer",), "version", "Roquet says that it is 4.9.8, the last of that line"),
    Explained("settings", ("request 351", "request 352"), ALL, "Roquet serves these two of 5.x; here they lack their field"),
)
