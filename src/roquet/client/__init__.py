"""The client: producers and consumers over asyncio. The blocking face with the same names is `roquet.client.sync`."""

from roquet.client.core.batches import split_messages
from roquet.client.core.consuming import RETRY_LATER
from roquet.client.core.failures import BadAnswer, BatchFailed, GroupTaken, SendTimedOut, ServerRejected
from roquet.client.core.pulling import PullResult, PullStatus
from roquet.client.core.receipt import SendReceipt, SendStatus
from roquet.client.producer import Producer
from roquet.client.pull_consumer import PullConsumer
from roquet.client.push_consumer import PushConsumer
from roquet.message import Message, MessageQueue, ReceivedMessage

__all__ = [
    "RETRY_LATER",
    "BadAnswer",
    "BatchFailed",
    "GroupTaken",
    "Message",
    "MessageQueue",
    "Producer",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PushConsumer",
    "ReceivedMessage",
    "SendReceipt",
    "SendStatus",
    "SendTimedOut",
    "ServerRejected",
    "split_messages",
]
