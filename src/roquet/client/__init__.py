"""The client: producers and consumers over asyncio. The blocking face with the same names is `roquet.client.sync`."""

from roquet.client.core.batches import split_messages
from roquet.client.core.failures import BadAnswer, BatchFailed, GroupTaken, SendTimedOut, ServerRejected
from roquet.client.core.pulling import PullResult, PullStatus
from roquet.client.core.receipt import SendReceipt, SendStatus
from roquet.client.core.replies import RequestTimedOut, reply_message
from roquet.client.core.transactions import TransactionReceipt, TransactionState
from roquet.client.core.verdicts import COMMIT, DEAD_LETTER, RETRY_LATER, ROLLBACK, Outcome, RetryLater, Suspend
from roquet.client.idempotent import Idempotent, Seen
from roquet.client.lite_pull_consumer import LitePullConsumer
from roquet.client.producer import Producer
from roquet.client.pull_consumer import PullConsumer
from roquet.client.push_consumer import OrderlyListener, PushConsumer
from roquet.client.stopping import run, serve
from roquet.client.transaction_producer import TransactionProducer
from roquet.message import Message, MessageQueue, ReceivedMessage
from roquet.net.connection import ConnectionOptions
from roquet.routing.sql92 import BadSql
from roquet.routing.subscription import BadExpression

__all__ = [
    "COMMIT",
    "DEAD_LETTER",
    "RETRY_LATER",
    "ROLLBACK",
    "BadAnswer",
    "BadExpression",
    "BadSql",
    "BatchFailed",
    "ConnectionOptions",
    "GroupTaken",
    "Idempotent",
    "LitePullConsumer",
    "Message",
    "MessageQueue",
    "OrderlyListener",
    "Outcome",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "RequestTimedOut",
    "RetryLater",
    "Seen",
    "SendReceipt",
    "SendStatus",
    "SendTimedOut",
    "ServerRejected",
    "Suspend",
    "TransactionProducer",
    "TransactionReceipt",
    "TransactionState",
    "reply_message",
    "run",
    "serve",
    "split_messages",
]
