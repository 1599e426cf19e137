"""Chapter 3: three brokers that choose their master. It is killed under load, and another one goes on."""

from __future__ import annotations

import asyncio

from numbered import Fire, read_back
from stage import Broken, Stage, say

from roquet import Admin, Producer
from roquet.cli.progress import Bar

NAME, TOPIC = "broker-group", "demo-group"
IN_FLIGHT = 64
PATIENCE_S = 20


async def kill_the_leader(stage: Stage) -> None:
    """Three brokers, one log: the leader is killed, another one goes on, and nothing is lost."""
    count = stage.messages * 2 // 10
    members = await stage.group(NAME, "GroupCluster")
    fire = Fire(TOPIC, count)
    async with Admin(stage.namesrv) as admin, Producer("demo_group", stage.namesrv) as producer:
        await admin.create_topic(TOPIC, read_queues=4, write_queues=4, cluster="GroupCluster")
        old = (await admin.leadership(NAME)).leader
        say(f"A DLedger group of three; {old} leads. An acknowledgement means that two of them have the message. Sending ...")
        with Bar("sending", count) as bar:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(fire.send_until_acknowledged(producer, bar))
                await fire.half_done.wait()
                await members[old].kill()
                before = fire.acknowledged
        if before == count:
            raise Broken(f"all {count:,} messages were sent before the leader could be killed; run with more --messages")
        new = (await admin.leadership(NAME)).leader
        if new == old:
            raise Broken(f"{old} was killed and still leads")
        gap_ms = fire.longest_gap * 1_000
        say(f"{old} was killed with SIGKILL after {before:,} acknowledgements, and {new} was elected.")
        say(f"For {gap_ms:,.0f} ms nothing was acknowledged. The producer waited: {fire.failures:,} sends failed.")
        times_stored = await read_back(stage, TOPIC)
        if lost := count - len(times_stored):
            raise Broken(f"{lost:,} acknowledged messages are lost")
        say(f"Read back all {count:,} acknowledged messages from {new}: none lost.")
        await members[old].start()
        await caught_up(admin)
        say(f"{old} is started again. It follows now, and has all that it missed.")
    stage.fact("leader", f"killed after {before:,} of {count:,}, {gap_ms:,.0f} ms until {new} went on, 0 lost")
    await asyncio.gather(*(member.stop() for member in members.values()))


async def caught_up(admin: Admin) -> None:
    """Wait until the logs of all three end at the same place."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [broker for broker in await admin.brokers() if broker.name == NAME]
            ends = [(await admin.runtime(broker.address))["commitLogMaxOffset"] for broker in found]
            if len(ends) == 3 and len(set(ends)) == 1:
                return
            await asyncio.sleep(0.05)
