"""Access control: accounts and the white list of brokers, and who was refused."""

from __future__ import annotations

from collections.abc import Sequence

from roquet.admin.asking import Asking, Broker
from roquet.wire.calls import access as calls


class Accounts(Asking):
    async def acl(self, address: str) -> calls.AclConfig:
        """Accounts and white list of one broker. Secrets are masked."""
        return (await self.call(address, calls.GET_BROKER_CLUSTER_ACL_CONFIG)).body

    async def change_account(self, masters: Sequence[Broker], header: calls.AccountHeader) -> None:
        """Make an account, or change what is given of it, on all of these."""
        await self._on_all(masters, f"account {header.access_key!r}", calls.UPDATE_AND_CREATE_ACL_CONFIG, header)

    async def delete_account(self, masters: Sequence[Broker], access_key: str) -> None:
        """On all of these. Who uses it is refused at the next request."""
        await self._on_all(masters, f"account {access_key!r}", calls.DELETE_ACL_CONFIG, calls.AccessKeyHeader(access_key))

    async def check_account(self, address: str, access_key: str, topic: str | None, group: str | None) -> list[calls.Verdict]:
        """What it may do there, and which line says so. Of Roquet's brokers."""
        return (await self.call(address, calls.ACCESS_CHECK, calls.CheckHeader(access_key, topic, group))).body.verdicts

    async def refused_calls(self, address: str) -> calls.RefusedCalls:
        """The last calls that a server refused. Of Roquet's brokers and name servers."""
        return (await self.call(address, calls.ACCESS_AUDIT)).body
