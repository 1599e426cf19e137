"""The commands of mqadmin 4.9.8 that are compared, each with its main options, on things that are there and on things that are not.

They run one after the other, so each finds what those before it left; what counts by the minute comes first. Names in braces: `{a}` and
`{b}` the brokers' addresses, `{id}` the offset id and `{key}` the unique key of the first message, `{traced}` the unique key of the
traced one, `{single}` the offset id of one in a topic of one queue, `{client}` the consumer's id, `{dir}` a directory of this command.
"""

from __future__ import annotations

from dataclasses import dataclass

TOPIC, GROUP, PRODUCER = "w_live", "w_g_live", "w_producer"
CLUSTER = "DefaultCluster"


@dataclass(frozen=True)
class Command:
    """A command line, without the name server's address."""

    line: str
    ordered: bool = False
    """Whether the order of its lines means something; most print what Java's maps hold, in no order."""
    until: str = ""
    """For a command that never ends: it is stopped when it has printed this (a regular expression)."""

    who: str = ""
    """By whom, if not by the one who did the others."""

    @property
    def title(self) -> str:
        return f"{self.line}, by {self.who}" if self.who else self.line

    @property
    def name(self) -> str:
        return self.line.split()[0]


LINES = f"""
statsAll -t {TOPIC}
statsAll -a
statsAll
clusterList
clusterList -m
updateTopic -b {{a}} -t one -r 4 -w 4
updateTopic -c {CLUSTER} -t two -r 2 -w 2 -p 6 -u false -s false
updateTopic -c {CLUSTER} -t ordered -r 2 -w 2 -o true
updateTopic -c nosuch -t one
updateTopic -b {{a}} -t bad!name
topicList
topicList -c
topicRoute -t {TOPIC}
topicRoute -t {TOPIC} -l
topicRoute -t nosuch
topicStatus -t {TOPIC}
topicStatus -t two
topicStatus -t nosuch
topicClusterList -t {TOPIC}
topicClusterList -t nosuch
updateSubGroup -b {{a}} -g new -r 3
updateSubGroup -c {CLUSTER} -g new2 -s true -m false -d false -q 2 -i 1 -w 1 -a true
updateSubGroup -c nosuch -g new
getConsumerConfig -g new
getConsumerConfig -g new2
getConsumerConfig -g nosuch
updateTopicPerm -b {{a}} -t one -p 4
updateTopicPerm -c {CLUSTER} -t two -p 2
updateTopicPerm -c {CLUSTER} -t two -p 2
updateTopicPerm -b {{a}} -t nosuch -p 4
brokerStatus -b {{a}}
brokerStatus -c {CLUSTER}
brokerStatus -b 127.0.0.1:1
producerConnection -g {PRODUCER} -t {TOPIC}
producerConnection -g nosuch -t {TOPIC}
producer -b {{a}}
consumerConnection -g {GROUP}
consumerConnection -g {GROUP} -b {{b}}
consumerConnection -g nosuch
consumerProgress -g {GROUP}
consumerProgress -g {GROUP} -s true
consumerProgress -g nosuch
consumerProgress
consumerStatus -g {GROUP}
consumerStatus -g {GROUP} -i {{client}}
consumerStatus -g {GROUP} -i {{client}} -s
consumerStatus -g nosuch
brokerConsumeStats -b {{a}} -t 10000 -l 0 -o false
brokerConsumeStats -b {{a}} -o true
queryMsgById -i {{id}}
queryMsgById -i {{id}} -g {GROUP} -d {{client}}
queryMsgById -i {{id}} -g {GROUP} -d nobody
queryMsgById -i nonsense
queryMsgById -i 7F00000100000001000000000000000A
queryMsgByKey -t {TOPIC} -k key-3
queryMsgByKey -t {TOPIC} -k none
queryMsgByKey -t nosuch -k none
queryMsgByUniqueKey -t {TOPIC} -i {{key}}
queryMsgByUniqueKey -t {TOPIC} -i {{key}} -g {GROUP} -d {{client}}
queryMsgByUniqueKey -t {TOPIC} -i {{key}} -g {GROUP} -d nobody
queryMsgByUniqueKey -t {TOPIC} -i {{key}} -a
queryMsgByUniqueKey -t {TOPIC} -i 00000000000000000000000000000000
queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0
queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 99
queryMsgByOffset -t {TOPIC} -b nobody -i 0 -o 0
queryMsgTraceById -i {{traced}}
queryMsgTraceById -i {{traced}} -t {TOPIC}
printMsg -t {TOPIC} -d true
printMsg -t {TOPIC} -s a-tag -b 2020-01-01#00:00:00:000 -e 2036-01-01#00:00:00:000
printMsg -t nosuch
printMsgByQueue -t {TOPIC} -a broker-a -i 0 -p true -d true -f true -c UTF-8
printMsgByQueue -t {TOPIC} -a broker-b -i 1 -p true -s b-tag
printMsgByQueue -t {TOPIC} -a broker-b -i 7 -p true
queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b {{a}}
queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b {{a}} -g {GROUP}
queryCq -t {TOPIC} -q 0 -i 0 -c 2 -b {{a}} -g nosuch
queryCq -t {TOPIC} -q 7 -i 0 -c 2 -b {{a}}
queryCq -t {TOPIC} -q 0 -i 99 -c 2 -b {{a}}
consumeMessage -t {TOPIC} -c 13 -g reader
consumeMessage -t {TOPIC} -b broker-a -i 0 -o 0 -c 2
consumeMessage -t {TOPIC} -b broker-a -i 0 -o 1 -c 2 -s 2020-01-01#00:00:00:000 -e 2036-01-01#00:00:00:000
consumeMessage -t {TOPIC} -b broker-a -i 7 -o 0 -c 2
cloneGroupOffset -s {GROUP} -d new -t {TOPIC} -o true
cloneGroupOffset -s nosuch -d new -t {TOPIC} -o true
updateKvConfig -s spaced -k key1 -v value1
deleteKvConfig -s spaced -k key1
deleteKvConfig -s spaced -k none
wipeWritePerm -b broker-a
topicRoute -t {TOPIC}
addWritePerm -b broker-a
topicRoute -t {TOPIC}
wipeWritePerm -b nobody
addWritePerm -b nobody
updateOrderConf -m put -t two -v broker-a:4
updateOrderConf -m get -t two
topicRoute -t two
updateOrderConf -m delete -t two
updateOrderConf -m get -t two
cleanExpiredCQ -c {CLUSTER}
cleanExpiredCQ -b {{a}}
cleanExpiredCQ -c nosuch
deleteExpiredCommitLog -b {{a}}
deleteExpiredCommitLog -c {CLUSTER}
cleanUnusedTopic -b {{a}}
cleanUnusedTopic -c {CLUSTER}
allocateMQ -t {TOPIC} -i 10.0.0.1,10.0.0.2
allocateMQ -t nosuch -i 10.0.0.1
getNamesrvConfig
updateNamesrvConfig -k orderMessageEnable -v true
updateNamesrvConfig -k noSuchKey -v 1
updateNamesrvConfig -k configStorePath -v elsewhere
getBrokerConfig -b {{a}}
getBrokerConfig -c {CLUSTER}
updateBrokerConfig -b {{a}} -k fileReservedTime -v 71
updateBrokerConfig -c {CLUSTER} -k fileReservedTime -v 72
updateBrokerConfig -b {{a}} -k noSuchKey -v 1
updateBrokerConfig -b {{a}} -k brokerConfigPath -v elsewhere
updateBrokerConfig -b {{a}} -k storePathRootDir -v elsewhere
updateBrokerConfig -b {{a}} -k fileReservedTime -v many
updateBrokerConfig -b {{a}} -k brokerPermission -v 6
updateAclConfig -b {{a}} -a accountone -s secretsecret -i DENY -u DENY -t one=PUB -g new=SUB -w 127.0.0.1 -m false
clusterAclConfigVersion -b {{a}}
updateGlobalWhiteAddr -b {{a}} -g 10.1.1.1
deleteAclConfig -b {{a}} -a accountone
sendMessage -t {TOPIC} -p hello -k kk -c tt -b broker-b -i 1
sendMessage -t w_single -p hello -k kk -c tt
sendMessage -t {TOPIC} -p hello -b broker-b -i 1 -m true
sendMessage -t {TOPIC} -p hello -b broker-b -i 9
queryMsgById -i {{single}} -s true
sendMsgStatus -b broker-a -s 64 -c 2
checkMsgSendRT -t {TOPIC} -a 3 -s 64
exportMetadata -c {CLUSTER} -f {{dir}}
exportMetadata -c {CLUSTER} -t -f {{dir}}
exportMetadata -c {CLUSTER} -g -f {{dir}}
exportMetadata -b {{a}} -s -f {{dir}}
exportMetadata -c nosuch -f {{dir}}
exportConfigs -c {CLUSTER} -f {{dir}}
exportMetrics -c {CLUSTER} -f {{dir}}
resetOffsetByTime -g {GROUP} -t {TOPIC} -s 2020-01-01#00:00:00:000 -f true
resetOffsetByTime -g {GROUP} -t {TOPIC} -s now
resetOffsetByTime -g new -t {TOPIC} -s -1
resetOffsetByTime -g {GROUP} -t {TOPIC} -s now -c
resetOffsetByTime -g nosuch -t {TOPIC} -s now
resetOffsetByTime -g {GROUP} -t nosuch -s now
skipAccumulatedMessage -g {GROUP} -t {TOPIC}
skipAccumulatedMessage -g nosuch -t {TOPIC} -f true
deleteSubGroup -b {{a}} -g new -r true
deleteSubGroup -c {CLUSTER} -g new2
deleteSubGroup -b {{a}} -g nosuch
deleteTopic -c {CLUSTER} -t one
deleteTopic -c {CLUSTER} -t nosuch
deleteTopic -c nosuch -t one
topicList
help
help topicList
nosuchCommand
"""

ORDERED = {"queryCq", "printMsgByQueue", "queryMsgByOffset", "help"}

COMMANDS: tuple[Command, ...] = tuple(Command(line, ordered=line.split()[0] in ORDERED) for line in LINES.strip().splitlines())

ENDLESS: tuple[Command, ...] = (
    Command(f"clusterRT -a 2 -i 1 -c {CLUSTER}", until=r"(?s)broker-a.*broker-b|broker-b.*broker-a"),
    Command("startMonitoring", until="Execute one round monitor work"),
)

RESEND = "queryMsgById -i {single} -s true"
"""Its producer has keys only when it is made in the same millisecond as the rest of the command, and shares a client with it."""
WITH_KEYS: tuple[Command, ...] = (
    *(command for command in COMMANDS if command.line != RESEND),
    *map(
        Command,
        (
            f"updateAclConfig -c {CLUSTER} -a accounttwo -s secretsecret -m true",
            "updateAclConfig -b {a} -a short -s x",
            "deleteAclConfig -b {a} -a nobody",
        ),
    ),
)
"""With access control, by an admin."""
STRANGERS: tuple[Command, ...] = tuple(
    Command(line, who="a stranger")
    for line in (
        "brokerStatus -b {a}",
        "getBrokerConfig -b {a}",
        "updateTopic -b {a} -t stranger",
        "updateBrokerConfig -b {a} -k fileReservedTime -v 1",
        "updateAclConfig -b {a} -a stranger -s secretsecret -m true",
        "clusterAclConfigVersion -b {a}",
        f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0",
        "sendMessage -t w_single -p hello",
        "deleteSubGroup -b {a} -g w_g_live",
        f"topicRoute -t {TOPIC}",
    )
)
"""With access control, by somebody without a key."""
AFTERWARDS: tuple[Command, ...] = (Command(f"clusterAclConfigVersion -c {CLUSTER}"),)
"""With access control, by an admin, in a program that is started when all others have ended: Apache reads its file when it finds, every
half second, that it has changed, and a version that was read just before a change may stand in place of the new one until then."""
