"""Copies of a broker: who leads a DLedger group, and another member that is to lead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from roquet.admin.servers import Servers
from roquet.client.core.tasks import Tasks
from roquet.client.running import finished
from roquet.errors import ClientError, ConnectFailed

if TYPE_CHECKING:  # the rest where it is used: what members say to each other takes a while to load, and few commands say any of it
    from roquet.raft.messages import Answer, Request

A = TypeVar("A", bound="Answer")


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
        """Let this member lead its group from now on; the group as it was. Raises ClientError when it does not come about."""
        from roquet.raft.codes import Code
        from roquet.raft.messages import Answer, TransferRequest, VoteAnswer, VoteRequest

        now = await self.leadership(broker_name)
        if member not in now.peers:
            raise ClientError(f"the group {now.group} has no member {member!r}; it has {', '.join(now.peers)}")
        if member == now.leader:
            raise ClientError(f"{member} leads the group {now.group} already")
        group, leader, address = now.group, now.leader, now.peers[now.leader]
        # Nobody may have a term below 0: the answer refuses such a vote, changes nothing, and tells the leader's term.
        term = (await self._tell(address, VoteRequest(group=group, remote_id=leader, leader_id=member), VoteAnswer)).term
        request = TransferRequest(group=group, remote_id=leader, transfer_id=leader, transferee_id=member, term=term)
        code = (await self._tell(address, request, Answer)).code
        if code != Code.SUCCESS:
            why = Code(code).name if code in set(Code) else str(code)
            raise ClientError(f"{now.leader} does not hand the lead over to {member}: {why}; see roquet ha status, then try again")
        return now

    async def _tell(self, address: str, request: Request, kind: type[A]) -> A:
        from roquet.raft.frames import answer_from, command_of

        result = await finished(Tasks(), self._exchange(address, command_of(request)))
        answer = answer_from(request, result)
        if not isinstance(answer, kind):
            raise ClientError(f"{address} answers {result.code} {result.remark or ''}, which no member of a DLedger group does")
        return answer
