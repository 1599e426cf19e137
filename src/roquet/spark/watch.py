"""What a stream's driver knows of its queues, and how far the next batch goes. Nothing here knows Spark.

- A queue that appears is registered at its first message by one batch and read by the next: so every batch's offsets say
  exactly what it reads, and a replay reads the same.
- A queue whose broker does not answer keeps its offset: the others go on.
- Spark asks some ninety times a second whether there is something new. Brokers are asked every 0.1 to 0.5 s.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from roquet.errors import CallTimeout, ClientError, ConnectFailed, NoRoute
from roquet.message import MessageQueue
from roquet.spark.offsets import Offsets, Range, backlog, limited, limited_by_bytes, ranges
from roquet.spark.options import LATEST, Edge, Options
from roquet.spark.places import Place, Wanted
from roquet.spark.scan import Bounds, BrokerAway, all_bounds, check_order, lost, resolve, subscribed, there

log = logging.getLogger("roquet.spark")

POLL_S, POLL_MAX_S = 0.1, 0.5
DISCOVER_S = 5.0
"""How often new topics, queues and brokers are looked for."""
AWAY_S = 2.0
"""How long a broker that did not answer is left alone: trying may take seconds, and the others would wait."""
MIRROR_AGAIN_S = 5.0
"""How long after a failure a group's progress is written again."""
SAMPLE_ROWS = 64
"""Messages of a queue by which the size of the next ones is judged."""
USUAL_SIZE = 1_024.0


class Watch:
    """State: the queues, their bounds as last seen, when that was, and the end of an AvailableNow run."""

    def __init__(
        self,
        place: Place,
        options: Options,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.place = place
        self.options = options
        self._clock, self._sleep, self._now_ms = clock, sleep, now_ms
        self._began_ms = now_ms()
        self._queues: list[MessageQueue] = []
        self._bounds: Bounds = {}
        self._ceiling: Offsets = {}
        self._frozen = False
        self._polled, self._discovered = -1e9, -1e9
        self._interval = POLL_S
        self._away: dict[str, float] = {}  # broker -> not to be asked before
        self._last_batch = -1e9
        self._mirrored: Offsets | None = None
        self._mirror_after = -1e9  # after a failure: not before
        self._sizes: dict[MessageQueue, float] = {}
        self._told: set[str] = set()

    # -- what Spark asks

    def initial(self) -> Offsets:
        """Where a new query begins. Raises when a topic or a broker is not there: nobody could say later where it should have begun."""
        self._queues = subscribed(self.place, self.options)
        self._bounds = all_bounds(self.place, self._queues)
        # What they name must be there.
        end = resolve(self.place, "endingOffsets", self.options.ending or Edge(LATEST), self._bounds, self._began_ms)
        start = resolve(self.place, "startingOffsets", self.options.starting or Edge(LATEST), self._bounds, self._began_ms)
        check_order(self.options, start, end)
        self._cap()
        return start

    def freeze(self) -> None:
        """From now on nothing newer than this moment is read.

        A run that ends must not leave out in silence what just did not answer (a name server forgets a broker for a moment when
        their connection breaks): this waits for all of it, and raises when that takes too long.
        """
        deadline = self._clock() + self.options.where.timeout_s
        while True:
            try:
                queues = subscribed(self.place, self.options)
                self._bounds |= all_bounds(self.place, queues)
                break
            except (NoRoute, BrokerAway, ConnectFailed, CallTimeout) as error:
                if self._clock() >= deadline:
                    raise
                self._tell(f"{error}; waiting, because a run until now must see everything")
                self._sleep(AWAY_S)
        self._queues = queues
        self._discovered = self._polled = self._clock()
        self._cap()
        self._frozen = True

    def latest(self, start: Offsets, unlimited: bool = False) -> Offsets:
        """Where the next batch ends; `start` itself when there is nothing for it yet. May wait a moment then."""
        end = self._next(start, unlimited) if self._frozen or self._fresh() else start
        if end == start and not self._frozen:
            # Nothing new, or nobody has looked for a while.
            self._sleep(max(0.0, self._polled + self._interval - self._clock()))
            self._poll()
            end = self._next(start, unlimited)
        self._mirror(start)
        if end == start:
            self._interval = min(POLL_MAX_S, self._interval * 2)
        else:
            self._interval = POLL_S
            self._last_batch = self._clock()
        return end

    def newest(self) -> Offsets:
        """The ends of all queues as last seen, for the query's progress."""
        return {queue: end for queue, (_, end) in self._bounds.items()}

    def planned(self, start: Offsets, end: Offsets) -> list[Range]:
        """What a batch reads. Raises DataLost."""
        wanted = ranges(start, end)
        unknown = [one.queue for one in wanted if one.queue not in self._bounds]
        bounds = self._bounds
        if unknown:  # a batch of the last run is repeated
            try:
                bounds = self._bounds | self.place.bounds(unknown)
            except ClientError as error:
                self._tell(f"{error}; what is there shows when it is read")
        return there(wanted, bounds, self.options.fail_on_data_loss)

    # -- deciding

    def _fresh(self) -> bool:
        return self._clock() - self._polled < self._interval

    def _next(self, start: Offsets, unlimited: bool) -> Offsets:
        end = self._ends(start)
        if unlimited:
            return end
        options = self.options
        waiting = sum(backlog(start, end).values())
        hold = options.rows_min is not None and not self._frozen and waiting < options.rows_min
        if hold and self._clock() - self._last_batch < options.delay_max_s:
            return dict(start)
        if options.rows_max is not None:
            end = limited(start, end, options.rows_max)
        if options.bytes_max is not None:
            end = self._within_bytes(start, end, options.bytes_max)
        return end

    def _ends(self, start: Offsets) -> Offsets:
        """How far each queue could be read."""
        found: Offsets = {}
        read = set(self._queues)
        for queue, offset in start.items():
            if queue not in read or queue not in self._bounds:
                found[queue] = offset
                continue
            first, end = self._bounds[queue]
            if end < offset:
                lost(queue, end, offset, first, end, self.options.fail_on_data_loss)
                found[queue] = end
            else:
                found[queue] = max(offset, min(end, self._ceiling.get(queue, end)))
        return found | {queue: self._bounds[queue][0] for queue in self._queues if queue not in start and queue in self._bounds}

    def _within_bytes(self, start: Offsets, end: Offsets, bytes_max: int) -> Offsets:
        rows = backlog(start, end)
        for queue in rows:
            self._sizes[queue] = self._average(queue, start[queue], end[queue])
        near = limited_by_bytes(start, end, bytes_max, self._sizes)
        if not self.options.where.path or near == end:
            return near
        # Of files the sizes are known without reading them.
        shares = {queue: int((near[queue] - start[queue]) * self._sizes[queue]) for queue in rows}
        return near | {queue: start[queue] + self._count(queue, start[queue], near[queue], shares[queue]) for queue in rows}

    def _average(self, queue: MessageQueue, start: int, stop: int) -> float:
        sizes = next(self._stored_sizes(queue, start, min(stop, start + SAMPLE_ROWS)), None)
        return float(sizes.mean()) if sizes is not None and len(sizes) else self._sizes.get(queue, USUAL_SIZE)

    def _count(self, queue: MessageQueue, start: int, stop: int, bytes_max: int) -> int:
        """How many of these fit; one at least."""
        count = used = 0
        for sizes in self._stored_sizes(queue, start, stop):
            sums = np.cumsum(sizes, dtype=np.int64)
            if used + int(sums[-1]) > bytes_max:
                count += int(np.searchsorted(sums, bytes_max - used, side="right"))
                break
            count, used = count + len(sizes), used + int(sums[-1])
        return max(1, count)

    def _stored_sizes(self, queue: MessageQueue, start: int, stop: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int32]]]:
        try:
            for chunk in self.place.chunks(queue, start, stop, Wanted()):
                if len(chunk.sizes):
                    yield chunk.sizes
        except ClientError:
            return  # whoever reads them says what is wrong

    # -- looking

    def _poll(self) -> None:
        now = self._clock()
        if now - self._discovered >= DISCOVER_S or self._away:
            self._discover()
        asked = [queue for queue in self._queues if self._away.get(queue.broker_name, now) <= now]
        answered: Bounds = {}
        for topic in sorted({queue.topic for queue in asked}):
            # One topic at a time: a refusal for one is none for the others.
            try:
                answered |= self.place.bounds([queue for queue in asked if queue.topic == topic])
            except ClientError as error:
                self._tell(f"{topic}: {error}; its queues keep their offsets")
        self._bounds |= answered
        self._note({queue.broker_name for queue in asked}, {queue.broker_name for queue in answered})
        self._cap()
        self._polled = self._clock()

    def _discover(self) -> None:
        try:
            found = subscribed(self.place, self.options, strict=False)
        except ClientError as error:
            self._tell(f"{error}; going on with the queues that are known")
            return
        gone = sorted(set(self._queues) - set(found))
        if gone:
            self._tell(f"{named(gone)} cannot be read now; what was reached there is kept")
        self._queues = found
        self._discovered = self._clock()

    def _note(self, asked: set[str], answered: set[str]) -> None:
        for broker in sorted(asked):
            if broker not in answered:
                if broker not in self._away:
                    log.warning("broker %s does not answer; its queues wait, the others are read", broker)
                self._away[broker] = self._clock() + AWAY_S
            elif self._away.pop(broker, None) is not None:
                log.warning("broker %s answers again", broker)
        for broker in self._away.keys() - {queue.broker_name for queue in self._queues}:
            del self._away[broker]  # it is not even known any more

    def _cap(self) -> None:
        """endingOffsets and endingTimestamp: a stream goes no further."""
        ending = self.options.ending
        if ending is None or ending == Edge(LATEST):
            return
        time_ms = ending.time(self._began_ms)
        if time_ms is not None and time_ms > self._now_ms():
            return  # nothing that is there now can lie behind it
        # An offset before the end stays what it is.
        open_ = {queue: ends for queue, ends in self._bounds.items() if self._ceiling.get(queue, ends[1]) >= ends[1]}
        try:
            found = resolve(self.place, "", ending, open_, self._began_ms) if time_ms is not None else {}
        except ClientError as error:
            self._tell(f"{error}; reading no further than known before")
            return
        self._ceiling |= found
        for topic, broker, number, offset in ending.offsets:
            if offset >= 0:
                self._ceiling[MessageQueue(topic, broker, number)] = offset

    def _tell(self, text: str) -> None:
        """Once, not at every look."""
        if text not in self._told:
            self._told.add(text)
            log.warning("%s", text)

    # -- the group

    def _mirror(self, start: Offsets) -> None:
        """Spark asks what comes after `start` when everything before it is done: that is the group's progress."""
        group, commit = self.options.group, getattr(self.place, "commit", None)
        if not group or commit is None or start == self._mirrored or self._clock() < self._mirror_after:
            return
        try:
            commit(group, {queue: offset for queue, offset in start.items() if queue in self._bounds})
        except ClientError as error:
            self._tell(f"the progress of group {group} could not be written: {error}; the query goes on")
            self._mirror_after = self._clock() + MIRROR_AGAIN_S
        else:
            self._mirrored = dict(start)


def named(queues: Sequence[MessageQueue]) -> str:
    return ", ".join(f"{one.topic}/{one.queue_id} on {one.broker_name}" for one in queues)
