"""The client's brain: pure coroutines (see tasks.py), driven by tick() and by a Caller. The simulation runs it without asyncio."""

from roquet.client.core.instance import ClientCore
from roquet.client.core.lite_pull import LitePullCore, LitePullSettings
from roquet.client.core.producer import ProducerCore, ProducerSettings
from roquet.client.core.pull_consumer import PullConsumerCore
from roquet.client.core.push_consumer import PushConsumerCore, PushConsumerSettings
from roquet.client.core.transactions import TransactionCore

__all__ = [
    "ClientCore",
    "LitePullCore",
    "LitePullSettings",
    "ProducerCore",
    "ProducerSettings",
    "PullConsumerCore",
    "PushConsumerCore",
    "PushConsumerSettings",
    "TransactionCore",
]
