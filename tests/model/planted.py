"""Faults on purpose, each a change that somebody could make by mistake. A model that does not find them is no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from roquet.broker import retry
from roquet.broker.delay import Delays
from roquet.broker.offsets import ConsumerOffsets
from roquet.broker.timed.cancelling import Cancelling
from roquet.broker.timed.firing import Firing
from roquet.broker.transactions import Ending, Transactions
from roquet.broker.writer import Draft, Writer
from roquet.store.staging import Staging
from roquet.store.watermark import Watermark
from roquet.wire.names import SCHEDULE_TOPIC

Plant = Callable[[pytest.MonkeyPatch], None]


def a_delay_is_one_level_short(patch: pytest.MonkeyPatch) -> None:
    divert = Delays.divert

    def short(self: Delays, draft: Draft) -> None:
        if draft.properties.get("DELAY", "0") > "1":
            draft.properties["DELAY"] = str(int(draft.properties["DELAY"]) - 1)
        divert(self, draft)

    patch.setattr(Delays, "divert", short)
    patch.setattr(Delays, "divert_plain", lambda self, topic, asked: None)  # all of them go there


def delay_cursors_are_saved_before_the_log_is_flushed(patch: pytest.MonkeyPatch) -> None:
    make = Delays.__init__

    def hasty(self: Delays, *parts: Any) -> None:
        make(self, *parts)
        self.saving.store = None
        self.saving.pause = lambda awaited: 0

    patch.setattr(Delays, "__init__", hasty)


def deliveries_before_a_crash_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delays, "_step_over_delivered", lambda self, log_offset: iter(()))


def an_end_is_answered_and_its_op_record_is_not_written(patch: pytest.MonkeyPatch) -> None:
    write = Transactions._write_op

    def forgetful(self: Transactions, ending: Ending) -> None:
        if ending.copy is None:
            self._mark(ending.half)
        else:
            write(self, ending)

    patch.setattr(Transactions, "_write_op", forgetful)


def a_transaction_may_end_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "_is_done", lambda self, half: False)
    patch.setattr(Transactions, "_is_ending", lambda self, half: False)


def a_half_message_is_shown_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Transactions, "divert", lambda self, draft: None)
    patch.setattr(Transactions, "divert_plain", lambda self, topic, asked: None)  # all of them go there


def a_retry_counts_one_attempt_too_few(patch: pytest.MonkeyPatch) -> None:
    put = Writer.put_as_is

    def miscount(self: Writer, draft: Draft) -> Any:
        if draft.topic == SCHEDULE_TOPIC and "RETRY_TOPIC" in draft.properties:
            draft.reconsumed -= 1
        return put(self, draft)

    patch.setattr(Writer, "put_as_is", miscount)


def a_retry_forgets_its_first_topic(patch: pytest.MonkeyPatch) -> None:
    put = Writer.put_as_is

    def renamed(self: Writer, draft: Draft) -> Any:
        if draft.reconsumed > 1:
            draft.properties["RETRY_TOPIC"] = "%RETRY%g"
        return put(self, draft)

    patch.setattr(Writer, "put_as_is", renamed)


def retries_begin_a_level_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retry, "FIRST_LEVEL", 2)


def a_cancellation_is_kept_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Cancelling, found: Any, key: str) -> None:
        for due, offset, _ in found:
            self._near.taken_back.dead[offset] = due

    patch.setattr(Cancelling, "_cancel", forgetful)


def timers_fire_up_to_a_second_early(patch: pytest.MonkeyPatch) -> None:
    fire = Firing.fire
    patch.setattr(Firing, "fire", lambda self, now_ms: fire(self, now_ms + 999))


def a_delivery_of_a_timer_is_no_record_of_it(patch: pytest.MonkeyPatch) -> None:
    put = Staging.put

    def blank(self: Staging, *values: Any, **more: Any) -> tuple[int, int]:
        if more.get("prepared", 0) < 0 and values[0].topic != "rmq_sys_wheel_timer":
            more["prepared"] = 0
        return put(self, *values, **more)

    patch.setattr(Staging, "put", blank)


def requests_are_answered_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watermark, "when_reached", lambda self, target, deadline_ms, wake: wake(True))


def progress_is_saved_one_too_far(patch: pytest.MonkeyPatch) -> None:
    encode = ConsumerOffsets._text

    def ahead(self: ConsumerOffsets, key: str) -> bytes:
        head, _, offset = encode(self, key).rpartition(b":")
        return b"%b:%d" % (head, int(offset) + key.endswith("@g"))

    patch.setattr(ConsumerOffsets, "_text", ahead)


PLANTS: list[Plant] = [
    a_delay_is_one_level_short,
    a_half_message_is_shown_at_once,
    a_transaction_may_end_twice,
    a_retry_counts_one_attempt_too_few,
    a_retry_forgets_its_first_topic,
    a_cancellation_is_kept_in_memory_only,
    timers_fire_up_to_a_second_early,
    requests_are_answered_before_the_flush,
    progress_is_saved_one_too_far,
    retries_begin_a_level_too_early,
    an_end_is_answered_and_its_op_record_is_not_written,
    deliveries_before_a_crash_are_not_looked_for,
    a_delivery_of_a_timer_is_no_record_of_it,
    delay_cursors_are_saved_before_the_log_is_flushed,
]
"""All of them are found by random sequences, with no hint of what to look for."""
