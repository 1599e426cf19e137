"""What it means that a document of config/ is gone, and what to do: a start must not pass over that in silence."""

from __future__ import annotations

MEANING = {
    "topics.json": "topics are found again from their queues, each with as many queues as have messages. Topics without messages, "
    "permissions and orders are lost: restore the file from a backup while the broker is stopped, or set them again (roquet topic update)",
    "subscriptionGroup.json": "groups are made again when their consumers come; retry limits and switches of groups are lost: restore the "
    "file from a backup while the broker is stopped, or set them again (roquet group update)",
    "consumerOffset.json": "the progress of every group on this broker is lost, and consumers begin where their own settings say. Restore "
    "the file from a backup while the broker is stopped, or set the progress with roquet group reset",
    "consumerFilter.json": "filters come again with the consumers' next heartbeats; there is nothing to do",
    "delayOffset.json": "what was delivered of the delayed messages that are still in the log may be delivered again",
    "deletedTopics.json": "topics that were deleted while the log still holds their messages may come back, after a crash most of all: "
    "restore the file from a backup while the broker is stopped, or delete these topics again (roquet topic delete)",
}


def meaning_of(name: str) -> str:
    return MEANING.get(name, "what it held is lost; restore it from a backup while the broker is stopped")
