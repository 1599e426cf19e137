"""Marks in Redis: one key each, whose value is `running:TOKEN`, `done` or `failed`, and whose expiry is the lease, or how long it is kept.

Every step looks and sets in one script, so nothing comes between. Times are Redis' own. The lease is renewed, at a third of its time, as
long as the handler runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio

from roquet.errors import ClientError
from roquet.idempotence.renewing import Renewals
from roquet.idempotence.store import DONE, MINE, Claim, Mark, Standing, State

log = logging.getLogger(__name__)

PREFIX = "roquet:once:"
KEEP_S = 7 * 86_400
RENEWALS = 3
"""So often a lease is renewed in its time."""

CLAIM = """
local mark = redis.call('GET', KEYS[1])
if not mark or mark == 'failed' or mark == 'running:' .. ARGV[1] then
  redis.call('SET', KEYS[1], 'running:' .. ARGV[1], 'PX', ARGV[2])
  return -1
end
if mark == 'done' then return -2 end
return math.max(redis.call('PTTL', KEYS[1]), 0)
"""
"""(token, lease) to -1: ours, -2: done, or how long the lease of another one lasts. Asked twice with one token, it says the same."""

SET = """
local mark = redis.call('GET', KEYS[1])
if mark and mark ~= 'running:' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
"""(token, value, for how long) to 0 when the mark is another one's. One that has expired is still ours while nobody else took it."""


class _Base:
    has_session = False

    def __init__(self, keep_s: float, prefix: str) -> None:
        if keep_s < 1:
            raise ClientError(f"keep_s={keep_s}; expected is at least 1 second")
        self.keep_ms = round(keep_s * 1000)
        self.prefix = prefix

    def _key(self, mark: Mark) -> str:
        return f"{self.prefix}{mark.group}:{mark.digest}"

    def _settled(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> list[tuple[Mark, list[Any]]]:
        """The arguments of SET for each."""
        return [(mark, [claim.token, state, self.keep_ms]) for marks, state in ((done, "done"), (failed, "failed")) for mark in marks]

    def _renewed(self, claim: Claim) -> list[tuple[Mark, list[Any]]]:
        return [(mark, [claim.token, f"running:{claim.token}", claim.lease_ms]) for mark in claim.marks]


def standing(answer: int) -> Standing:
    """What CLAIM says."""
    return MINE if answer == -1 else DONE if answer == -2 else Standing(State.RUNNING, answer)


def warn_of_lost(claim: Claim, answers: Sequence[int]) -> None:
    """The handler did not notice: it runs, or is over."""
    if not all(answers):
        log.warning(
            "! the lease of %d messages was lost while their handler ran, so that another one may have handled them, too;"
            " a longer lease_s than %.1f s makes it rare",
            answers.count(0), claim.lease_ms / 1000,
        )  # fmt: skip


class RedisStore(_Base):
    """Guarantee: while Redis keeps its data and answers, no two handlers run for one key at the same time, and a key that is done does not
    run again for `keep_s`; a crash after the handler's last deed and before its mark repeats it when the lease is over (at least once).

    Redis must not evict keys (`maxmemory-policy noeviction`), and what a failover or a restart without persistence forgets is run again.
    """

    blocks = True

    def __init__(self, client: redis.Redis, *, keep_s: float = KEEP_S, prefix: str = PREFIX) -> None:
        """`prefix`: what its keys begin with."""
        super().__init__(keep_s, prefix)
        if not isinstance(client, redis.Redis):
            raise ClientError(f"client={client!r}; expected is a redis.Redis; AsyncRedisStore takes a redis.asyncio.Redis")
        self._client = client
        self._claim, self._set = client.register_script(CLAIM), client.register_script(SET)
        self._renewals = Renewals("roquet-leases", self._renew)

    def claim(self, claim: Claim) -> list[Standing]:
        """In one round trip."""
        return [standing(one) for one in self._run(self._claim, [(mark, [claim.token, claim.lease_ms]) for mark in claim.marks])]

    def begin(self, claim: Claim) -> None:
        """From now on the lease is renewed."""
        self._renewals.add(claim, claim.lease_ms / 1000 / RENEWALS)

    def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """Marks that another one has meanwhile are left to it."""
        self._renewals.remove(claim)
        warn_of_lost(claim, self._run(self._set, self._settled(claim, done, failed)))

    def fail(self, claim: Claim) -> None:
        """The same."""
        self._renewals.remove(claim)
        self._run(self._set, self._settled(claim, (), claim.marks))

    def _renew(self, claim: Claim) -> None:
        self._run(self._set, self._renewed(claim))

    def _run(self, script: Any, calls: list[tuple[Mark, list[Any]]]) -> list[int]:
        if len(calls) == 1:
            return [script([self._key(calls[0][0])], calls[0][1])]
        with self._client.pipeline(transaction=False) as pipe:
            for mark, args in calls:
                script([self._key(mark)], args, client=pipe)
            return pipe.execute()


class AsyncRedisStore(_Base):
    """Guarantee: that of RedisStore."""

    def __init__(self, client: redis.asyncio.Redis, *, keep_s: float = KEEP_S, prefix: str = PREFIX) -> None:
        """As RedisStore has them."""
        super().__init__(keep_s, prefix)
        if not isinstance(client, redis.asyncio.Redis):
            raise ClientError(f"client={client!r}; expected is a redis.asyncio.Redis; RedisStore takes a redis.Redis")
        self._client = client
        self._claim, self._set = client.register_script(CLAIM), client.register_script(SET)
        self._renewing: set[asyncio.Task[None]] = set()

    async def claim(self, claim: Claim) -> list[Standing]:
        """In one round trip."""
        return [standing(one) for one in await self._run(self._claim, [(mark, [claim.token, claim.lease_ms]) for mark in claim.marks])]

    async def begin(self, claim: Claim) -> None:
        """From now on the lease is renewed."""
        self._renew_later(claim)

    async def finish(self, claim: Claim, done: Sequence[Mark], failed: Sequence[Mark]) -> None:
        """Marks that another one has meanwhile are left to it."""
        self._stop_renewing(claim)
        warn_of_lost(claim, await self._run(self._set, self._settled(claim, done, failed)))

    async def fail(self, claim: Claim) -> None:
        """The same."""
        self._stop_renewing(claim)
        await self._run(self._set, self._settled(claim, (), claim.marks))

    def _renew_later(self, claim: Claim) -> None:
        claim.work = asyncio.get_running_loop().call_later(claim.lease_ms / 1000 / RENEWALS, self._begin_renewing, claim)

    def _begin_renewing(self, claim: Claim) -> None:
        task = asyncio.get_running_loop().create_task(self._renew(claim))
        self._renewing.add(task)
        task.add_done_callback(self._renewing.discard)

    async def _renew(self, claim: Claim) -> None:
        try:
            await self._run(self._set, self._renewed(claim))
        except Exception as error:
            log.warning("! the lease of %d messages could not be renewed; it is tried again: %s", len(claim.marks), error)
        if claim.work is not None:
            self._renew_later(claim)

    def _stop_renewing(self, claim: Claim) -> None:
        """A renewal under way is let go on: it finds the mark settled, and changes nothing."""
        timer, claim.work = claim.work, None
        if timer is not None:
            timer.cancel()

    async def _run(self, script: Any, calls: list[tuple[Mark, list[Any]]]) -> list[int]:
        if len(calls) == 1:
            return [await script([self._key(calls[0][0])], calls[0][1])]
        async with self._client.pipeline(transaction=False) as pipe:
            for mark, args in calls:
                await script([self._key(mark)], args, client=pipe)
            return await pipe.execute()
