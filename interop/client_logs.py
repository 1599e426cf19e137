"""What a client may log while it works with a healthy broker: nothing from warnings up, but for the lines listed here.

Each line that is passed over has its reason written next to it; all of them are logged against Apache's own servers as well.
The one warning that the check programs provoke on purpose must be there, or else the log was not kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

WORKING, LEAVING, CLOSING = "working", "leaving", "closing"


@dataclass(frozen=True)
class PassedOver:
    """Lines that match `pattern` (searched in the entry with its first stack line) say nothing of the broker, for this reason."""

    pattern: str
    reason: str


# ---------------------------------------------------------------- Java

PROVOKED_JAVA = r"get Topic \[\S+_AutoCreated\] RouteInfoFromNameServer is not exist value"

JAVA_WORKING = (
    PassedOver(PROVOKED_JAVA, "provoked: the check sends to a topic that does not exist yet"),
    PassedOver(
        r"updateTopicRouteInfoFromNameServer Exception.*No topic route info in name server for the topic: \S+_AutoCreated",
        "provoked, the second line of it",
    ),
    PassedOver(
        r"get Topic \[%RETRY%\S+\] RouteInfoFromNameServer is not exist value",
        "a consumer asks for its retry topic before its first heartbeat, which creates it",
    ),
    PassedOver(
        r"doRebalance, \S+, but the topic\[\S+\] not exist",
        "a pull consumer that is told its queue subscribes to the topic without ever asking for the route",
    ),
    PassedOver(
        r"doRebalance, \S+ \S+, get consumer id list failed",
        "the client rebalances before its first heartbeat is through, so the group does not exist yet",
    ),
    PassedOver(
        r"getConsumerIdListByGroup exception.*CODE: 1  DESC: no consumer for this group",
        "the same as the broker says it: another thread of the client was still sending that heartbeat (lock heartBeat, but failed)",
    ),
    PassedOver(
        r"execute the pull request exception.*CODE: 25  DESC: the consumer's subscription not latest|the subscription is not latest",
        "at every rebalance the client raises its subscription's version, and pulls before the heartbeat that says so",
    ),
    PassedOver(
        r"pullKernelImpl exception.*does not upgrade to support for filter message by SQL92",
        "the client learns the broker's version from the answer to its first heartbeat, and may pull before it",
    ),
    PassedOver(r"lock heartBeat, but failed", "two threads of one client wanted to send the same heartbeat"),
    PassedOver(r"sending heartbeat, but no consumer and no producer", "a client without groups, such as an admin client"),
    PassedOver(r"\[PullMsgThread-\S+_lite_assign\d+\].*Polling thread was interrupted", "seek() interrupts the client's own pull"),
    PassedOver(
        r"The Pull Task is cancelled after doPullTask, MessageQueue \[topic=\S+_lite_assign", "seek() interrupts the client's own pull"
    ),
    PassedOver(r"consumerOffset is -1 in messageQueue", "a lite pull consumer commits by timer before it has polled anything"),
    PassedOver(
        r"updateTopicRouteInfoFromNameServer tryLock timeout 3000ms",
        "threads of one client wait for each other to have a route; with so many on a busy machine for longer than it likes",
    ),
    PassedOver(
        r"prepare send request for <\S+> cost \d+ ms", "asking for a route took more than 500 ms, with so many clients on few processors"
    ),
    PassedOver(r"Cannot find conf file \S+tools.yml|Failed to parse configuration to enable ACL", "mqadmin looks for its own ACL settings"),
)

JAVA_LEAVING = (
    PassedOver(
        r"processQueue is dropped without process consume result", "a member lost the queue in a rebalance while it was consuming from it"
    ),
    PassedOver(
        r"the message queue not be able to consume, because it's dropped", "the same queue's messages that were still to be consumed"
    ),
    PassedOver(
        r"(examineConsumeStats|examineConsumerConnectionInfo) exception, .*CODE: (206|213) ",
        "mqadmin asks for every group there is; those of other checks are offline by then, have consumed nothing or are broadcasting",
    ),
    PassedOver(
        r"send heart beat to broker\[.*\] failed.*(connect to  failed|send request to </?\S+> failed)",
        "5.x sends a heartbeat when its own connection is closed",
    ),
    PassedOver(
        r"updateTopicRouteInfoFromNameServer [Ee]xception.*(send request to </?\S+> failed|connect to \S* ?failed)",
        "the client's timer asks for routes while it closes its own connection",
    ),
    PassedOver(
        r"invokeSync: (close socket because of timeout, \d+ms, null|wait response timeout exception, the channel\[null\])"
        r"|updateTopicRouteInfoFromNameServer [Ee]xception.*wait response on the channel <?(null)?>? ?timeout",
        "the same, when the request was sent already: `null` is the address of a channel that the client itself has closed",
    ),
    PassedOver(
        r"getConsumerIdListByGroup exception.*CODE: 1  DESC: no consumer for this group",
        "the last member rebalances once more after it has taken itself off the group",
    ),
    PassedOver(
        r"execute the pull request exception.*CODE: 24  DESC: the consumer's group info not exist",
        "the last member pulls once more after it has taken itself off the group",
    ),
    PassedOver(
        r"(execute the pull request exception|An error occurred in pull message process|pullKernelImpl exception).*"
        r"(send request failed to|send request to <\S+> failed|RejectedExecutionException|connect to )",
        "a consumer that shuts down closes its connection under its own pulls",
    ),
    PassedOver(r"PullMessageServiceScheduledThread has shutdown", "the same, of a pull that it will not repeat"),
    PassedOver(r"No matched consumer for the PullRequest", "the same, of a pull that was still queued"),
    PassedOver(
        r"(invokeSync|invokeAsync|invokeOneway): send request exception, so close the channel", "the same, as the transport tells it"
    ),
    PassedOver(r"execute callback in executor exception, maybe executor busy", "the same: the executor has been shut down"),
    PassedOver(r"Polling thread was interrupted|The Pull Task is cancelled", "the same, of a lite pull consumer"),
    PassedOver(r"didn't terminate!", "the client's own thread pools end a little later than it waits"),
    PassedOver(
        r"send a request command to channel <\S+>.* failed|createChannel: connect remote host\[\S+\] failed", "the client's own shutdown"
    ),
    PassedOver(r"unregister client \S+ from broker", "the client's own shutdown"),
    PassedOver(
        r"(PIPELINE: exceptionCaught exception\.|Failed to submit a listener notification task).*RejectedExecutionException: "
        "event executor terminated",
        "its selector had ended before its other threads, which did not run for some seconds, told it that the connections are closed",
    ),
)

UNMATCHED_JAVA = r"receive response, .*not matched any request"
"""An answer whose number nobody waits for: it may have been meant for somebody else."""
UNMATCHED_SHOWN = r"RemotingCommand \[code=(\d+), .*?opaque=(\d+), .*?remark=(.*?), extFields="
"""The answer itself: in the same entry, or (4.x) in the next one."""
OF_A_PULL = {"FOUND", "OFFSET_OVERFLOW_ONE", "NO_MESSAGE_IN_QUEUE", "NO_MATCHED_MESSAGE", "NO_MATCHED_LOGIC_QUEUE"}
HELD_S = 30
"""So long a broker holds a pull at most, with what a busy machine adds."""
GIVEN_UP_JAVA = r"remove timeout request, .*?opaque=(\d+)"
CLOSED_JAVA = (
    r"send request to </?\S+> failed|send request failed to|connect to \S* ?failed|send request exception, so close the channel|"
    r"unregister client \S+ from broker"
)
INTERRUPTED_JAVA = r"\[PullMsgThread-\S+_lite_assign\d+\].*Polling thread was interrupted"

# ---------------------------------------------------------------- Go

PROVOKED_GO = r'msg="queryTopicRouteInfoFromServer return nil" topic=\S+_AutoCreated'

GO_WORKING = (
    PassedOver(PROVOKED_GO, "provoked: the check sends to a topic that does not exist yet"),
    PassedOver(
        r'msg="query topic route from server error" underlayError="topic not exist"',
        "the line before queryTopicRouteInfoFromServer, which names the topic",
    ),
    PassedOver(
        r'msg="queryTopicRouteInfoFromServer return nil" topic="%RETRY%',
        "a consumer asks for its retry topic before its first heartbeat, which creates it",
    ),
    PassedOver(
        r'msg="do balance in group failed, the topic does not exist" consumerGroup=\S+ topic="?(%RETRY%|\S+)',
        "the same, and a pull consumer that is told its queue subscribes without asking for the route",
    ),
    PassedOver(
        r'msg="executeLocalTransaction but state unexpected" localState=2',
        "this client logs every rollback (state 2) as an error",
    ),
    PassedOver(r'msg="do balance in group failed, get consumer id list failed"', "it rebalances before its first heartbeat is through"),
    PassedOver(
        r'msg="get consumer list of group from broker error".*no consumer for this group',
        "it rebalances before its first heartbeat is through",
    ),
    PassedOver(
        r'msg="pull message from broker error".*subscription not latest',
        "at every rebalance the client raises its subscription's version, and pulls before the heartbeat that says so",
    ),
)

GO_LEAVING = (
    PassedOver(
        r'msg="(processQueue is dropped without process consume result|the message queue not be able to consume)',
        "a member lost the queue in a rebalance while it was consuming from it",
    ),
    PassedOver(r'msg="pull message from broker error".*(closed|canceled)', "the member that leaves closes its own connection"),
    PassedOver(r'msg="(conn error, close connection|close remoting conn error)"', "the member that leaves closes its own connection"),
    PassedOver(
        r'msg="get consumer list of group from broker error".*service close is not running',
        "the member that leaves rebalances once more when it has closed itself",
    ),
    PassedOver(r'msg="update offset to broker error".*(closed|canceled)', "the member that leaves closes its own connection"),
)

# ---------------------------------------------------------------- many clients in one group

JAVA_TOGETHER = (
    PassedOver(r"add a new mq failed, .*because lock failed", "an orderly queue that the member before has not yet given up"),
    PassedOver(r"the message queue locked Failed, Group", "the same, of a queue that this member held before"),
    PassedOver(
        r"lockBatchMQ exception.*connect to  failed", "a member that shuts down asks for its queues once more when its connection is closed"
    ),
    PassedOver(r"unlock messageQueue\. group:", "this client logs that it gives an orderly queue up to another member"),
    PassedOver(
        r"consumer was paused, execute pull request later.*_(reset|orderly)_",
        "the client stops for 10 s when its offsets are reset; an orderly one comes to rest before it leaves",
    ),
    PassedOver(r"when broker check, client rollback this transaction", "this client logs every rollback that a broker asked for"),
)
GO_TOGETHER = (
    PassedOver(r'msg="executeLocalTransaction but state unexpected" localState=3', "this client logs every unknown state (3) as an error"),
)
PYTHON = (PassedOver(r"is put to offset \d+ by an operator", "provoked: offsets are reset while the consumer runs"),)


def java_entries(log: Path, phases: dict[str, str]) -> list[tuple[str, str]]:
    """The entries of a Java client's log as (phase, text); `phases` says from which time on each phase counts.

    An entry is its line and the lines of its exceptions, without the stack.
    """
    entries: list[tuple[str, str]] = []
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    for line in lines:
        dated = re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", line)
        if dated:
            phase = WORKING
            for name, begin in phases.items():
                if dated.group() >= begin:
                    phase = name
            entries.append((phase, whose_exception(entries, line) + line))
        elif entries and not re.match(r"\s+at |\s*\.\.\. \d+", line):
            phase, text = entries[-1]
            entries[-1] = (phase, f"{text} | {line}")
    return entries


def whose_exception(entries: list[tuple[str, str]], line: str) -> str:
    """4.x logs what failed on a connection in two entries, the first with nothing but the address: that one is taken out for the second."""
    if "PIPELINE: exceptionCaught exception." not in line:
        return ""
    thread = re.search(r"\[[^]]+\]", line)
    for at in range(len(entries) - 1, -1, -1):
        text = entries[at][1]
        if thread is not None and thread.group() in text:
            return f"{entries.pop(at)[1]} | " if re.search(r"PIPELINE: exceptionCaught \S+:\d+$", text) else ""
    return ""


def go_entries(directory: Path) -> list[tuple[str, str]]:
    """The entries of a Go client's logs as (phase, text): there is a file a phase."""
    entries = []
    for phase in (WORKING, LEAVING, CLOSING):
        log = directory / f"{phase}.log"
        entries += [(phase, line) for line in (log.read_text(errors="replace").splitlines() if log.exists() else [])]
    return entries


def python_entries(log: Path) -> list[tuple[str, str]]:
    """The entries of our own client's log, an entry with the lines of its exceptions."""
    entries: list[tuple[str, str]] = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if re.match(r"\d{4}-\d\d-\d\d ", line):
            entries.append((WORKING, line))
        elif entries:
            entries[-1] = (WORKING, f"{entries[-1][1]} | {line.strip()}")
    return entries


def unmatched(entries: list[tuple[str, str]]) -> list[str]:
    """Answers that nobody waited for, in any phase but the last. They are always a failure but for these, where the client has stopped
    to wait for an answer that comes all the same:

    - the check program's seek() interrupts the client's own pull: for every pull that was interrupted one answer of a pull is let pass;
    - on a busy machine the client gave the request up: its number is in the line about that;
    - the client closed its connection, which ends every wait, within a second of the answer (not while it is working);
    - it closed one of its consumers, which ends that one's wait for a pull that the broker holds until there is a message or its time is
      over: the answer without a message may come as late as that (not while it is working)."""
    interrupted = sum(bool(re.search(INTERRUPTED_JAVA, text)) for _, text in entries)
    given_up = {match[1] for _, text in entries if (match := re.search(GIVEN_UP_JAVA, text))}
    closed = [second_of(text) for phase, text in entries if phase != WORKING and re.search(CLOSED_JAVA, text)]
    left = []
    for at, (phase, text) in enumerate(entries):
        if phase == CLOSING or not re.search(UNMATCHED_JAVA, text):
            continue
        following = entries[at + 1][1] if at + 1 < len(entries) else ""
        shown = re.search(UNMATCHED_SHOWN, text) or re.search(UNMATCHED_SHOWN, following)
        if shown is not None and shown[3] in OF_A_PULL and interrupted:
            interrupted -= 1
        elif shown is not None and shown[2] in given_up:
            given_up.remove(shown[2])
        elif phase == WORKING or not any(-1 <= second_of(text) - when <= (HELD_S if is_held(shown) else 1) for when in closed):
            before = [each[:200] for _, each in entries[max(0, at - 2) : at]]
            left.append(f"an answer that nobody waits for: {text} | {following} | before it: {before}")
    return left


def is_held(shown: re.Match[str] | None) -> bool:
    """Is this what the broker answers when it has held a pull for as long as that allows?"""
    return shown is not None and shown[1] == "19" and shown[3] in OF_A_PULL


def second_of(text: str) -> float:
    """When a dated entry of a Java client's log was written."""
    return datetime.fromisoformat(text[:23]).timestamp()


def complaints(entries: Iterable[tuple[str, str]], working: tuple[PassedOver, ...], leaving: tuple[PassedOver, ...]) -> list[str]:
    """What is left of the log. Nothing of the closing phase counts: all clients are shutting down then."""
    entries = list(entries)
    left = unmatched(entries)
    after_unmatched = False
    for phase, text in entries:
        of_an_answer = bool(re.search(UNMATCHED_JAVA, text)) or (after_unmatched and bool(re.search(UNMATCHED_SHOWN, text)))
        after_unmatched = bool(re.search(UNMATCHED_JAVA, text))
        passed_over = {WORKING: working, LEAVING: working + leaving}.get(phase)
        if passed_over is not None and not of_an_answer and not any(re.search(each.pattern, text) for each in passed_over):
            left.append(text)
    return left
