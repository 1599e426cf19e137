"""Copies of a broker: who leads a DLedger group, and another member that is to lead."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from roquet.admin.servers import Servers
from roquet.client.core.tasks import Tasks
from roquet.client.running import finished
from roquet.errors import ClientError, ConnectFailed

if TYPE_CHECKING:  # the rest where it is used: what members say to each other takes a while to load, and few commands say any of it
    from roquet.raft.messages import Answer, Request

A = TypeVar("A", bound="Answer")

FOLLOWS_S = 5.0
"""A member that was just started follows with its leader's next heartbeat: every 0.3 s from Roquet's, every 2 s from Java's."""
SERVES_S = 10.0
"""Until one who leads serves, and name servers know it."""


@dataclass(frozen=True)
class Leadership:
    """Of one DLedger group."""

    group: str
    leader: str
    peers: dict[str, str]
    """Member -> its address for the others."""


class Copies(Servers):
    async def until_copied(self, broker_name: str, *, timeout_s: float = 10.0) -> None:
        """Wait until a slave copies this broker's master: from then on a SYNC_MASTER's sends are on two machines."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        (master,) = await self.masters_named([broker_name])
        while (await self.runtime(master.address)).get("roquetSlaves", "0") == "0":
            if asyncio.get_running_loop().time() > deadline:
                raise ClientError(f"no slave of {broker_name} copies its master after {timeout_s:g} s; see the slave's log")
            await asyncio.sleep(0.02)

    async def leadership(self, broker_name: str) -> Leadership:
        """Who leads this broker's group. Raises ClientError when it is in none, or has no leader now."""
        from roquet.raft.messages import MetadataAnswer, MetadataRequest
        from roquet.raft.options import peers_of

        found = [broker for broker in await self.brokers() if broker.name == broker_name]
        if not found:
            raise ClientError(f"no broker named {broker_name!r} is registered; see which are: roquet status")
        pairs = await self.broker_config(found[0].address)
        if pairs.get("enableDLegerCommitLog") != "true":
            raise ClientError(f"{broker_name} is in no DLedger group (enableDLegerCommitLog=false): there is no leader to choose")
        group, peers = pairs.get("dLegerGroup") or broker_name, peers_of(pairs.get("dLegerPeers", ""))
        for member, address in peers.items():
            try:
                answer = await self._tell(address, MetadataRequest(group=group, remote_id=member), MetadataAnswer)
            except ConnectFailed:
                continue
            if answer.leader_id:
                return Leadership(group, answer.leader_id, peers)
        raise ClientError(f"the group {group} has no leader now; see roquet ha status")

    async def transfer_leader(self, broker_name: str, member: str) -> Leadership:
        """Let this member lead its group from now on; the group as it was. When this returns, the member serves, and clients can find it.
        Raises ClientError when that does not come about."""
        from roquet.raft.codes import Code

        now, clock = await self.leadership(broker_name), asyncio.get_running_loop().time
        if member not in now.peers:
            raise ClientError(f"the group {now.group} has no member {member!r}; it has {', '.join(now.peers)}")
        if member == now.leader:
            raise ClientError(f"{member} leads the group {now.group} already")
        deadline = clock() + FOLLOWS_S
        while (code := await self._hand_over(now, member)) == Code.INCONSISTENT_LEADER and clock() < deadline:
            await asyncio.sleep(0.1)
        if code != Code.SUCCESS:
            why = Code(code).name if code in set(Code) else str(code)
            raise ClientError(f"{now.leader} does not hand the lead over to {member}: {why}; see roquet ha status, then try again")
        await self._until_it_serves(broker_name, now, member)
        return now

    async def _hand_over(self, now: Leadership, member: str) -> int:
        """The code of the leader's answer: it comes when the other one was elected, or was not."""
        from roquet.raft.messages import Answer, TransferRequest, VoteAnswer, VoteRequest

        group, leader, address = now.group, now.leader, now.peers[now.leader]
        # Nobody may have a term below 0: the answer refuses such a vote, changes nothing, and tells the leader's term.
        term = (await self._tell(address, VoteRequest(group=group, remote_id=leader, leader_id=member), VoteAnswer)).term
        request = TransferRequest(group=group, remote_id=leader, transfer_id=leader, transferee_id=member, term=term)
        return (await self._tell(address, request, Answer)).code

    async def _until_it_serves(self, broker_name: str, group: Leadership, member: str) -> None:
        """It was elected. Another may have been since then: one that heard too late of it, and asked for votes in the next term."""
        from roquet.raft.messages import MetadataAnswer, MetadataRequest

        deadline = asyncio.get_running_loop().time() + SERVES_S
        while True:
            question = MetadataRequest(group=group.group, remote_id=member)
            leader = (await self._tell(group.peers[member], question, MetadataAnswer)).leader_id
            if leader and leader != member:
                raise ClientError(f"{member} was elected, and then {leader}, which leads the group {group.group} now; try again")
            with contextlib.suppress(ClientError):  # one that is listed may be gone
                masters = [broker.address for broker in await self.brokers() if broker.name == broker_name and broker.is_master]
                if leader and masters and (await self.broker_config(masters[0])).get("dLegerSelfId") == member:
                    return
            if asyncio.get_running_loop().time() > deadline:
                raise ClientError(f"{member} was elected, and is not the master of {broker_name} after {SERVES_S:g} s; see its log")
            await asyncio.sleep(0.1)

    async def _tell(self, address: str, request: Request, kind: type[A]) -> A:
        from roquet.raft.frames import answer_from, command_of

        result = await finished(Tasks(), self._exchange(address, command_of(request)))
        answer = answer_from(request, result)
        if not isinstance(answer, kind):
            raise ClientError(f"{address} answers {result.code} {result.remark or ''}, which no member of a DLedger group does")
        return answer
