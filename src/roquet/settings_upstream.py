"""What Roquet makes of the settings of RocketMQ 4.9 that are no settings of its own: plain data, one line a key.

Every key of BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig, NamesrvConfig and of TLS is in one of three places:

    settings.py     served: it does here what it does there
    HARMLESS        taken and without effect, because it tunes what we do not have, or counts only with what is refused
    REFUSED         a value that asks for something this version does not do: refused at the start and at run time

A key may be served and refused: some of its values are there, others are not yet. What is built later leaves REFUSED; a key
with no field in settings.py then gets one. A test holds the three complete against tests/vectors/settings-4.9.7.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Harmless:
    """A key that is taken and changes nothing that a client or an operator sees."""

    default: str
    """What is shown when nobody gave a value: upstream's default. Empty: upstream has none and shows none."""
    why: str


@dataclass(frozen=True)
class Refusal:
    """A key of which only some values are served."""

    accepted: tuple[str, ...]
    """Upstream's default is the first."""
    missing: str
    """What the other values ask for, as in "Roquet has no ..."."""
    instead: str = ""
    """What to do; empty: set the accepted value."""
    shown: bool = True
    """Whether upstream's 4.9 shows it among its settings."""

    def takes(self, value: str) -> bool:
        return plain(value) in map(plain, self.accepted)

    def sentence(self, key: str, value: str, version: str) -> str:
        default = self.accepted[0]
        instead = self.instead or (f"set {key}={default}" if default else f"leave {key} out")
        return f"{key}={value[:200]}: Roquet {version} has no {self.missing}; {instead}"


def plain(value: str) -> str:
    """A value for comparing: True is true, 00 is 0."""
    value = value.strip().lower()
    return str(int(value)) if value.isascii() and value.isdigit() else value


def harmless(groups: Mapping[str, str]) -> dict[str, Harmless]:
    """From {why: "key=default key=default"}."""
    made: dict[str, Harmless] = {}
    for why, words in groups.items():
        for word in words.split():
            key, _, default = word.partition("=")
            assert key not in made, key
            made[key] = Harmless(default, why)
    return made


# Harmless. Upstream makes some numbers of threads from the machine's processors; ours is 1.

NETTY_SERVER = {
    "one event loop serves all connections": """
        serverWorkerThreads=8 serverCallbackExecutorThreads=0 serverSelectorThreads=3 useEpollNativeSelector=false
        serverPooledByteBufAllocatorEnable=true
        """,
    "requests are answered as they come; none waits for a permit": "serverOnewaySemaphoreValue=256 serverAsyncSemaphoreValue=64",
    "the system sizes the buffers of sockets, and 4,096 connections may wait to be accepted": """
        serverSocketSndBufSize=0 serverSocketRcvBufSize=0 serverSocketBacklog=1024
        """,
    "what a slow reader may leave unread has a limit of its own, per connection": "writeBufferHighWaterMark=0 writeBufferLowWaterMark=0",
}

BROKER_HARMLESS = harmless(
    NETTY_SERVER
    | {
        "one event loop does the work of these thread pools": """
            sendMessageThreadPoolNums=1 putMessageFutureThreadPoolNums=1 pullMessageThreadPoolNums=1 processReplyMessageThreadPoolNums=1
            queryMessageThreadPoolNums=1 adminBrokerThreadPoolNums=16 clientManageThreadPoolNums=32 consumerManageThreadPoolNums=32
            heartbeatThreadPoolNums=1 endTransactionThreadPoolNums=1
            """,
        "no request waits in a queue for a thread; sends that wait for their fsync have sendThreadPoolQueueCapacity": """
            putThreadPoolQueueCapacity=10000 pullThreadPoolQueueCapacity=100000 replyThreadPoolQueueCapacity=10000
            queryThreadPoolQueueCapacity=20000 clientManagerThreadPoolQueueCapacity=1000000 consumerManagerThreadPoolQueueCapacity=1000000
            heartbeatThreadPoolQueueCapacity=50000 endTransactionPoolQueueCapacity=100000
            waitTimeMillsInPullQueue=5000 waitTimeMillsInHeartbeatQueue=31000 waitTimeMillsInTransactionQueue=3000
            """,
        "RocketMQ 4.9 has it and uses it nowhere": """
            flushConsumerOffsetHistoryInterval=60000 highSpeedMode=false maxDelayTime=40 putMsgIndexHightWater=600000
            commercialEnable=true commercialTimerCount=1 commercialTransCount=1 commercialBigCount=1 commercialBaseCount=1
            """,
        "the registration of every period is whole, whether something changed or not": "forceRegister=true",
        "what is sent is copied once, from the page cache": "transferMsgByHeap=true",
        "counters are cheap here: they are always kept, and go with their topic or group": """
            enableDetailStat=true autoDeleteUnusedStats=false enableScheduleMessageStats=true
            """,
        "the log goes to standard error": "isolateLogEnable=false",
        "nothing is loaded from it": "rocketmqHome=",
        "counts only with disableConsumeIfConsumerReadSlowly": "consumerFallbehindThreshold=17179869184",
        "counts only with enableConsumeQueueExt": """
            enableCalcFilterBitMap=false mappedFileSizeConsumeQueueExt=50331648 bitMapLengthConsumeQueueExt=64
            """,
        "counts only with fetchNamesrvAddrByAddressServer": "rmqAddressServerDomain= rmqAddressServerSubGroup=",
        "the broker calls name servers alone, and registerBrokerTimeoutMills limits each call": """
            clientWorkerThreads=4 clientCallbackExecutorThreads=1 clientOnewaySemaphoreValue=65535 clientAsyncSemaphoreValue=65535
            connectTimeoutMillis=3000 channelNotActiveInterval=60000 clientChannelMaxIdleTimeSeconds=120 clientSocketSndBufSize=0
            clientSocketRcvBufSize=0 clientPooledByteBufAllocatorEnable=false clientCloseSocketIfTimeout=true
            """,
        "files are written, not mapped: there is no pool, no warming and no lock to choose": """
            transientStorePoolEnable=false transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false warmMapedFileEnable=false
            flushLeastPagesWhenWarmMapedFile=4096 useReentrantLockWhenPutMessage=true debugLockEnable=false
            destroyMapedFileIntervalForcibly=120000 redeleteHangedFileInterval=120000
            """,
        "a write goes to the system at once; flushIntervalCommitLog and flushIntervalConsumeQueue alone say when it is synced": """
            commitIntervalCommitLog=200 commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200 flushCommitLogTimed=true
            flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000 flushConsumeQueueLeastPages=2
            flushConsumeQueueThoroughInterval=60000
            """,
        "files are removed without a pause between them": "deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100",
        "the index is always mended from the log": "messageIndexSafe=false",
        "how far a reader is behind is always known": "diskFallRecorded=true",
        "delayed messages are delivered many at a time in any case": """
            enableScheduleAsyncDeliver=false scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
            """,
        "the HA port is listenPort + 1, as RocketMQ 4.9 itself sets it at every start": "haListenPort=10912",
        "entries are always pushed many at a time": "isEnableBatchPush=false enableBatchPush=",
        "counts only with enableLmq": "maxLmqConsumeQueueNum=20000",
        "a certificate that a client shows is always verified": "tls.server.authClient=",
    }
)

NAMESERVER_HARMLESS = harmless(
    NETTY_SERVER
    | {
        "nothing is loaded from it": "rocketmqHome=",
        "counts only with clusterTest": "productEnvName=center",
        "a certificate that a client shows is always verified": "tls.server.authClient=",
        "a name server opens no connections": """
            tls.enable= tls.client.keyPath= tls.client.keyPassword= tls.client.certPath= tls.client.trustCertPath= tls.client.authServer=
            tls.client.checkHost=
            """,
    }
)


# Refused

REPLICATION = "controller and its replication (of RocketMQ 5)"
ACL_OF_5 = "access control of RocketMQ 5 (users and policies)"
OWN_ACL = "set aclEnable=true, with RocketMQ 4.9's plain_acl.yml"

BROKER_REFUSED: Mapping[str, Refusal] = {
    "duplicationEnable": Refusal(("false",), "copies of its own messages (duplicationEnable)"),
    "messageStorePlugIn": Refusal(("",), "plug-ins of the store: they are Java classes"),
    "fetchNamesrvAddrByAddressServer": Refusal(
        ("false",), "look-up of name servers at an address server", "name them in namesrvAddr, separated by ';'"
    ),
    "filterServerNums": Refusal(("0",), "filter servers", "set filterServerNums=0; SQL filters (enablePropertyFilter=true) do their work"),
    "disableConsumeIfConsumerReadSlowly": Refusal(("false",), "switching off of groups that fall behind"),
    "startAcceptSendRequestTimeStamp": Refusal(("0",), "time from which sends are taken", "start the broker at that time"),
    "enableConsumeQueueExt": Refusal(("false",), "extended consume queues (consumequeue_ext)"),
    "readOnlyCommitLogStorePaths": Refusal(("",), "commit log in several directories", "name one directory in storePathCommitLog"),
    "enableLmq": Refusal(("false",), "light message queues"),
    "enableMultiDispatch": Refusal(("false",), "dispatch of one message to several queues"),
    # Of RocketMQ 5: what somebody relies on
    "authenticationEnabled": Refusal(("false",), ACL_OF_5, OWN_ACL, shown=False),
    "authorizationEnabled": Refusal(("false",), ACL_OF_5, OWN_ACL, shown=False),
    "enableControllerMode": Refusal(("false",), REPLICATION, shown=False),
    "enableSlaveActingMaster": Refusal(("false",), REPLICATION, shown=False),
    "allAckInSyncStateSet": Refusal(("false",), REPLICATION, shown=False),
    "totalReplicas": Refusal(("1",), REPLICATION, shown=False),
    "inSyncReplicas": Refusal(("1",), REPLICATION, shown=False),
    "minInSyncReplicas": Refusal(("1",), REPLICATION, shown=False),
    "storeType": Refusal(("default",), "store in RocksDB", shown=False),
}

NAMESERVER_REFUSED: Mapping[str, Refusal] = {
    "clusterTest": Refusal(("false",), "look-up of routes in another cluster"),
    "enableControllerInNamesrv": Refusal(("false",), "controller (of RocketMQ 5)", shown=False),
}


OF_NO_VERSION: Mapping[str, str] = {
    "storePathConsumeQueue": "queues are always in consumequeue under storePathRootDir",
    "storePathIndex": "the index is always in index under storePathRootDir",
    "storeCheckpoint": "the checkpoint is always in storePathRootDir",
    "abortFile": "it is always in storePathRootDir",
    "checkTransactionMessageEnable": "prepared messages are always asked about",
}
"""Keys that stand in many files and that RocketMQ 4.9 does not know either: a warning says what holds instead."""
