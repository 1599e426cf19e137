"""Apache's mqadmin: its commands end cleanly and print what is there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import client_logs
import java_client
from java_client import JavaClient
from report import Section, run_program


@dataclass(frozen=True)
class Command:
    """One command and what must be found in its output, each a regular expression."""

    arguments: str
    shows: tuple[str, ...]
    about: str = ""
    """What tells it from another with the same options."""


def commands(version: str, broker: str, prefix: str, offset_id: str, unique_id: str, exports: Path) -> list[Command]:
    live, group = f"{prefix}_live", f"{prefix}_g_live"
    client = rf"@{prefix}-\d+\s+127.0.0.1:\d+\s+JAVA\s+V\d"
    return [
        Command("clusterList", (rf"DefaultCluster\s+broker-a\s+0\s+{broker}\s+V\d",)),
        Command("clusterList -m", (r"DefaultCluster\s+broker-a\s+\d+\s+\d+",)),
        Command(f"updateTopic -b {broker} -t {prefix}_t -r 4 -w 4", (rf"create topic to {broker} success", r"readQueueNums=4")),
        Command(f"updateTopic -c DefaultCluster -t {prefix}_t2", (rf"create topic to {broker} success",)),
        Command("topicList", (rf"(?m)^{live}$", rf"(?m)^{prefix}_t$", rf"(?m)^{prefix}_t2$", r"(?m)^TBW102$")),
        Command("topicList -c", (rf"DefaultCluster\s+{live}\s+{group}",)),
        Command(f"topicRoute -t {live}", (rf'0:\s*"{broker}"', r'"readQueueNums":\s*2', r'"perm":\s*6')),
        Command(f"topicStatus -t {live}", (r"broker-a\s+0\s+0\s+[56]\s+20\d\d-", r"broker-a\s+1\s+0\s+[56]\s+20\d\d-")),
        Command(f"sendMessage -t {live} -p hello -k sent-key -c a-tag", (r"broker-a\s+[01]\s+SEND_OK\s+[0-9A-F]{32}",)),
        Command(
            f"consumerProgress -g {group}", (rf"{live}\s+broker-a\s+0\s+\d+\s+\d+\s+\d+", rf"{live}\s+broker-a\s+1", r"Diff Total: \d+")
        ),
        Command("consumerProgress", (rf"(?m)^{group}\s+1\s+V\d",)),
        Command(f"consumerConnection -g {group}", (client, rf"{live}\s+\*", r"CONSUME_PASSIVELY", r"CLUSTERING")),
        Command(f"producerConnection -g {prefix}_producer -t {live}", (client,)),
        Command(
            f"brokerStatus -b {broker}",
            (
                r"brokerVersionDesc\s*: V\d",
                r"bootTimestamp\s*: \d{13}",
                r"msgPutTotalTodayNow\s*: [1-9]",
                r"putTps\s*:",
                r"commitLogMaxOffset\s*: [1-9]",
            ),
        ),
        Command(
            f"getBrokerConfig -b {broker}", (r"brokerName\s+=\s+broker-a", r"autoCreateTopicEnable\s+=\s+true", r"listenPort\s+=\s+\d+")
        ),
        # they read settings that mean something to Apache alone, and fail when one is not shown
        Command(f"exportConfigs -c DefaultCluster -f {exports}", (r"export .*configs.json success",)),
        Command(f"updateBrokerConfig -b {broker} -k fileReservedTime -v 72", (rf"update broker config success, {broker}",)),
        Command(f"queryMsgByKey -t {live} -k a-key", (unique_id,)),
        # 5.x takes the topic too, and 4.x does not let it pass
        Command(
            f"queryMsgById -i {offset_id}" + (f" -t {live}" if version.startswith("5") else ""),
            (rf"OffsetID:\s+{offset_id}", r"Tags:\s+\[a-tag\]", r"Keys:\s+\[a-key\]", live),
        ),
        Command(f"queryMsgByUniqueKey -t {live} -i {unique_id}", (r"Tags:\s+\[a-tag\]", r"Keys:\s+\[a-key\]")),
        Command(f"queryMsgByOffset -t {live} -b broker-a -i 0 -o 0", (r"OffsetID:\s+[0-9A-F]{32}", live)),
        Command(f"updateSubGroup -b {broker} -g {prefix}_new -r 3", (rf"create subscription group to {broker} success", r"retryMaxTimes=")),
        Command(f"deleteSubGroup -b {broker} -g {prefix}_new", (rf"\[{prefix}_new\] from broker \[{broker}\] success",)),
        Command(f"statsAll -t {live}", (rf"{live}\s+{group}\s+\d+\s+\d+\.\d+\s+\d+\.\d+",)),
        Command(f"updateTopicPerm -b {broker} -t {prefix}_t2 -p 4", (r"from 6 to 4",)),
        Command(f"deleteTopic -c DefaultCluster -t {prefix}_t", (r"from cluster \[DefaultCluster\] success", r"from NameServer success")),
    ]


def check(section: Section, client: JavaClient, namesrv: str, broker: str, extra: tuple[client_logs.PassedOver, ...] = ()) -> None:
    prefix = f"mq{client.version[0]}"
    live_command, _ = client.command("live", "Live", namesrv, prefix)
    with subprocess.Popen(live_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as live:
        try:
            assert live.stdout is not None
            said = live.stdout.readline().split()
            if said[:1] != ["live"]:
                section.fail("a producer and a consumer to look at", f"said {said}")
                return
            wanted = commands(client.version, broker, prefix, said[1], said[2], client.directory / "exports")
            run(section, client, namesrv, wanted, extra=extra)
        finally:
            live.kill()


def run(
    section: Section,
    client: JavaClient,
    namesrv: str,
    wanted: list[Command],
    *,
    name: str = "mqadmin",
    extra: tuple[client_logs.PassedOver, ...] = (),
) -> None:
    """All of them in one process. `name`: of the run, which has a directory of its own."""
    lines = [f"{each.arguments} -n {namesrv}" for each in wanted]
    program, log = client.command(name, "Mqadmin")
    output, finished = run_program(program, stdin="".join(line.replace(" ", "\t") + "\n" for line in lines))
    answers = output.split("### end\n")
    for command, answer in zip(wanted, answers, strict=False):
        section.judge(_name(command), _problem(command, answer))
    for command in wanted[len(answers) :]:
        section.fail(_name(command), "mqadmin had ended before")
    section.judge("mqadmin ends cleanly", None if finished else output[-300:])
    # every command ends with the client's shutdown, so all of the log counts as that phase
    section.judge("no warning or error in mqadmin's log", java_client.log_problem(log, {client_logs.LEAVING: ""}, extra, provoked=False))


def _name(command: Command) -> str:
    name, *options = command.arguments.split()
    return " ".join([name, *(option for option in options if option.startswith("-"))]) + (f", {command.about}" if command.about else "")


def _problem(command: Command, answer: str) -> str | None:
    shown = " ".join(answer.split())
    if "Exception" in answer:
        causes = re.findall(r"Caused by: ([^\n]*)", answer) or [shown[:300]]
        return f"{command.arguments}: {causes[-1]}"
    missing = [pattern for pattern in command.shows if not re.search(pattern, answer)]
    return f"{command.arguments}: no {missing[0]!r} in: {shown[:400]}" if missing else None
