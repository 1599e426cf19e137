"""The numbers of the wire that somebody here asks with, answers or refuses by name: requests, responses, and the bits of flags.

Names are upstream's, so that a log line or a remark can be searched for. Codes marked 5.x are not sent by a 4.9 client.
To any other number Roquet says REQUEST_CODE_NOT_SUPPORTED, as upstream does.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from roquet.errors import Refused


class RequestCode(IntEnum):
    """What a request asks for. The number travels in the header's `code`."""

    # messages
    SEND_MESSAGE = 10  # store one message, long field names
    PULL_MESSAGE = 11  # read records of one queue; may be held until there are some
    QUERY_MESSAGE = 12  # find records by key
    QUERY_CONSUMER_OFFSET = 14  # how far a group has come in a queue
    UPDATE_CONSUMER_OFFSET = 15  # remember how far a group has come
    UPDATE_AND_CREATE_TOPIC = 17  # create a topic or change its queues and permission
    UPDATE_AND_CREATE_TOPIC_LIST = 18  # 5.x: several of them
    GET_ALL_TOPIC_CONFIG = 21  # the whole topic table, for slaves and tools
    UPDATE_BROKER_CONFIG = 25  # change settings at run time, properties text
    GET_BROKER_CONFIG = 26  # read the settings
    GET_BROKER_RUNTIME_INFO = 28  # counters and rates for operators
    SEARCH_OFFSET_BY_TIMESTAMP = 29  # first queue offset stored at or after a time
    GET_MAX_OFFSET = 30  # one past the last queue offset
    GET_MIN_OFFSET = 31  # the first queue offset that still exists
    GET_EARLIEST_MSG_STORETIME = 32  # store time of that one
    VIEW_MESSAGE_BY_ID = 33  # one record by its physical offset

    # clients
    HEART_BEAT = 34  # who I am, what I produce and consume
    UNREGISTER_CLIENT = 35  # I am leaving
    CONSUMER_SEND_MSG_BACK = 36  # consuming failed: deliver it to me again later
    END_TRANSACTION = 37  # commit or roll back a half message
    GET_CONSUMER_LIST_BY_GROUP = 38  # client ids of a group, for rebalancing
    CHECK_TRANSACTION_STATE = 39  # to a producer: what became of this half message?
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # to consumers: the group changed, rebalance now
    LOCK_BATCH_MQ = 41  # hold queues for ordered consuming
    UNLOCK_BATCH_MQ = 42  # let go of them
    GET_ALL_CONSUMER_OFFSET = 43  # all progress, for slaves
    GET_ALL_DELAY_OFFSET = 45  # progress of the delay levels, for slaves
    CHECK_CLIENT_CONFIG = 46  # is this SQL92 subscription acceptable?

    # access control lists, version 1
    UPDATE_AND_CREATE_ACL_CONFIG = 50  # create or change an account
    DELETE_ACL_CONFIG = 51  # delete an account
    GET_BROKER_CLUSTER_ACL_INFO = 52  # version of the list
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53  # addresses that need no account
    GET_BROKER_CLUSTER_ACL_CONFIG = 54  # the list itself

    GET_TIMER_CHECK_POINT = 60  # 5.x
    GET_TIMER_METRICS = 61  # 5.x

    # name server
    PUT_KV_CONFIG = 100  # set a value
    GET_KV_CONFIG = 101  # read it
    DELETE_KV_CONFIG = 102  # forget it
    REGISTER_BROKER = 103  # a broker announces itself and its topics
    UNREGISTER_BROKER = 104  # a broker leaves
    GET_ROUTEINFO_BY_TOPIC = 105  # which brokers and queues hold a topic
    GET_BROKER_CLUSTER_INFO = 106  # all brokers by cluster

    # groups and statistics
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200  # create or change a consumer group
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201  # the whole group table
    GET_TOPIC_STATS_INFO = 202  # offsets of every queue of a topic
    GET_CONSUMER_CONNECTION_LIST = 203  # who is consuming in a group
    GET_PRODUCER_CONNECTION_LIST = 204  # who is producing in a group
    WIPE_WRITE_PERM_OF_BROKER = 205  # take the write permission from a broker's routes
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206  # every topic name
    DELETE_SUBSCRIPTIONGROUP = 207  # delete a consumer group
    GET_CONSUME_STATS = 208  # progress and backlog of a group
    DELETE_TOPIC_IN_BROKER = 215  # delete a topic from a broker
    DELETE_TOPIC_IN_NAMESRV = 216  # delete a topic from the routes
    REGISTER_TOPIC_IN_NAMESRV = 217  # 5.x; the Node client means GET_KV_CONFIG_BY_VALUE
    GET_KVLIST_BY_NAMESPACE = 219  # all values of a namespace
    RESET_CONSUMER_CLIENT_OFFSET = 220  # to a consumer: go on from these offsets
    GET_CONSUMER_STATUS_FROM_CLIENT = 221  # to a consumer: where are you?
    INVOKE_BROKER_TO_RESET_OFFSET = 222  # put a group back or forward to a time
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223  # ask all consumers of a group where they are
    GET_TOPICS_BY_CLUSTER = 224  # topic names of a cluster
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  # 5.x: several groups
    QUERY_TOPIC_CONSUME_BY_WHO = 300  # groups that consume a topic
    QUERY_CONSUME_TIME_SPAN = 303  # oldest, newest and consumed time of every queue
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304  # names that are not the users'
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305  # the same, of a broker
    CLEAN_EXPIRED_CONSUMEQUEUE = 306  # remove queue files without records
    GET_CONSUMER_RUNNING_INFO = 307  # what a consumer is doing; passed on to it
    QUERY_CORRECTION_OFFSET = 308  # smallest progress among groups
    CONSUME_MESSAGE_DIRECTLY = 309  # let one consumer consume one record now; passed on to it
    SEND_MESSAGE_V2 = 310  # store one message, one-letter field names
    GET_UNIT_TOPIC_LIST = 311  # unit topics
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312  # topics with unit subscriptions
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313  # of those, the ones that are not unit topics
    CLONE_GROUP_OFFSET = 314  # copy a group's progress to another
    VIEW_BROKER_STATS_DATA = 315  # one counter: minute, hour, day
    CLEAN_UNUSED_TOPIC = 316  # remove queue files of deleted topics
    GET_BROKER_CONSUME_STATS = 317  # progress of every group
    UPDATE_NAMESRV_CONFIG = 318  # change a name server's settings
    GET_NAMESRV_CONFIG = 319  # read them
    SEND_BATCH_MESSAGE = 320  # store several messages of one topic
    QUERY_CONSUME_QUEUE = 321  # raw queue entries, for debugging
    QUERY_DATA_VERSION = 322  # is my topic table the one you know?
    RESUME_CHECK_HALF_MESSAGE = 323  # check a half message that was given up
    SEND_REPLY_MESSAGE = 324  # answer of a request-reply call, long names
    SEND_REPLY_MESSAGE_V2 = 325  # the same, one-letter names
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  # to the requester: here is your reply
    ADD_WRITE_PERM_OF_BROKER = 327  # undo 205
    GET_ALL_PRODUCER_INFO = 328  # every producer connected
    DELETE_EXPIRED_COMMITLOG = 329  # remove old segments now

    # 5.x
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351  # one topic of the table
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  # one group of the table
    LITE_PULL_MESSAGE = 361  # PULL_MESSAGE as the 5.x lite pull consumer spells it
    RECALL_MESSAGE = 370  # cancel a timed message
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_BROKER_MEMBER_GROUP = 901
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    LOG_PIECE = 30_001  # Roquet's own: a piece of the commit log or its checksum, for a slave that compares
    ACCESS_AUDIT = 30_002  # Roquet's own: the last requests that access control refused
    ACCESS_COPY = 30_004  # Roquet's own: all accounts with their secrets, sealed with the secret of the admin who asks
    ACCESS_CHECK = 30_003  # Roquet's own: what an account may do, and which line of which file says so
    POP_MESSAGE = 200050  # does not fit the binary header's two bytes
    ACK_MESSAGE = 200051
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    BATCH_ACK_MESSAGE = 200151


class ResponseCode(IntEnum):
    """What came of a request. Clients decide by this number whether to try again."""

    SUCCESS = 0
    SYSTEM_ERROR = 1  # a fault, or a field that makes no sense
    SYSTEM_BUSY = 2  # too much to do; 4.9 Java producers do not retry on this one
    REQUEST_CODE_NOT_SUPPORTED = 3  # nobody here handles that code

    FLUSH_DISK_TIMEOUT = 10  # stored, but not surely on disk yet
    SLAVE_NOT_AVAILABLE = 11  # stored, but no slave is near enough
    FLUSH_SLAVE_TIMEOUT = 12  # stored, but no slave has confirmed it in time
    MESSAGE_ILLEGAL = 13  # too large, or no message at all
    SERVICE_NOT_AVAILABLE = 14  # the store takes no writes: disk full, slave, shutting down
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19  # nothing new
    PULL_RETRY_IMMEDIATELY = 20  # nothing that matches so far; go on from nextBeginOffset
    PULL_OFFSET_MOVED = 21  # that offset does not exist; nextBeginOffset says where to go
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28

    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    FLOW_CONTROL = 215

    GO_AWAY = 1500  # 5.x: close this connection and open another


def refused(remark: str) -> Refused:
    """As upstream refuses what makes no sense."""
    return Refused(ResponseCode.SYSTEM_ERROR, remark)


class Perm(IntFlag):
    """What may be done with a topic, or with a broker."""

    INHERIT = 1  # a new topic may be made in this one's image
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TopicFlag(IntFlag):
    """`topicSysFlag`."""

    UNIT = 1
    UNIT_SUB = 2


class SysFlag(IntFlag):
    """`sysFlag` of a message, as sent and as stored."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC  # also the mask of the transaction bits
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300  # 0 means zlib too: clients before 4.9.4 set no kind
    COMPRESSION_MASK = 0x700


TRANSACTION_MASK = 0xC
"""Bits 2 and 3 of SysFlag: 0 no transaction, 4 half message, 8 committed, 12 rolled back."""


class PullFlag(IntFlag):
    """`sysFlag` of a pull request."""

    COMMIT_OFFSET = 1  # commitOffset is to be remembered
    SUSPEND = 2  # hold the request while there is nothing new
    SUBSCRIPTION = 4  # filter by the subscription in this request
    CLASS_FILTER = 8
    LITE_PULL = 16
