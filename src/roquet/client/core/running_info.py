"""What a push consumer tells an operator about itself (GET_CONSUMER_RUNNING_INFO)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.routing.assign import name_of
from roquet.wire.calls.consumers import ConsumerRunningInfo, ProcessQueueInfo

if TYPE_CHECKING:
    from roquet.client.core.process_queue import ProcessQueue
    from roquet.client.core.push_consumer import PushConsumerCore


def running_info(consumer: PushConsumerCore) -> ConsumerRunningInfo:
    settings = consumer.settings
    properties = {
        "PROP_NAMESERVER_ADDR": ";".join(consumer.client.name_servers.addresses) + ";",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_CONSUMEORDERLY": "true" if settings.orderly else "false",
        "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
        "PROP_THREADPOOL_CORE_SIZE": str(settings.concurrency),
        "consumerGroup": consumer.group,
        "messageModel": str(consumer.heartbeat().message_model),
        "consumeFromWhere": str(settings.consume_from),
        "consumeMessageBatchMaxSize": str(settings.batch_size),
        "pullBatchSize": str(settings.pull_batch_size),
        "pullThresholdForQueue": str(settings.count_max),
        "pullThresholdSizeForQueue": str(settings.size_max >> 20),
        "consumeConcurrentlyMaxSpan": str(settings.span_max),
        "maxReconsumeTimes": str(settings.reconsume_times_max),
        "allocateMessageQueueStrategy": name_of(settings.strategy),
    }
    offsets = consumer.offsets.table
    return ConsumerRunningInfo(
        properties=properties,
        subscription_set=sorted(consumer.subscriptions.values(), key=lambda one: one.topic),
        mq_table={queue: queue_info(held, offsets.get(queue, -1)) for queue, held in sorted(consumer.queues.items())},
        status_table={
            topic: consumer.rates.status(consumer.namespace.unwrap(topic), consumer.client.clock.steady_ms())
            for topic in sorted(consumer.subscriptions)
        },
    )


def queue_info(held: ProcessQueue, commit_offset: int) -> ProcessQueueInfo:
    return ProcessQueueInfo(
        commit_offset=commit_offset,
        cached_msg_min_offset=next(iter(held.messages), 0),
        cached_msg_max_offset=held.largest if held.messages else 0,
        cached_msg_count=len(held.messages),
        cached_msg_size_in_mib=held.size >> 20,
        droped=held.dropped,
        last_pull_timestamp=held.last_pull_ms,
        last_consume_timestamp=held.last_consume_ms,
    )
