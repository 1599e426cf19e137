"""Brokers and name servers themselves: counters, settings, values, write permission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roquet.admin.asking import Asking, gather_bounded
from roquet.errors import ClientError, NoRoute
from roquet.wire.calls import brokers as broker_calls
from roquet.wire.calls.routes import ADD_WRITE_PERM_OF_BROKER, WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader
from roquet.wire.codes import Perm, ResponseCode
from roquet.wire.names import DEFAULT_TOPIC

FOUND_OR_NOT = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)


class Servers(Asking):
    async def runtime(self, address: str) -> dict[str, str]:
        """What a broker says of itself: version, rates, sizes, and its warnings under `roquetWarning_<n>`."""
        return (await self.call(address, broker_calls.GET_BROKER_RUNTIME_INFO)).body.table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Every setting of this broker, as text under RocketMQ's keys."""
        return (await self.call(address, broker_calls.GET_BROKER_CONFIG)).body.pairs()

    async def update_broker_config(self, address: str, pairs: Mapping[str, str]) -> None:
        """All or nothing: a refused key changes none of them."""
        await self.call(address, broker_calls.UPDATE_BROKER_CONFIG, body=properties_text(pairs))

    async def update_configs(self, addresses: Sequence[str], pairs: Mapping[str, str]) -> None:
        """The same on several brokers. One that refuses is found before any has changed, as far as their versions are the same."""
        first, *others = addresses
        await self.update_broker_config(first, pairs)
        await gather_bounded(others, lambda address: self.update_broker_config(address, pairs))

    async def namesrv_config(self, address: str) -> dict[str, str]:
        """Every setting of this name server, as text under RocketMQ's keys."""
        return (await self.call(address, broker_calls.GET_NAMESRV_CONFIG)).body.pairs()

    async def update_namesrv_config(self, pairs: Mapping[str, str]) -> None:
        """Change settings on every name server."""
        await self._on_name_servers(broker_calls.UPDATE_NAMESRV_CONFIG, body=properties_text(pairs))

    async def kv_put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value on every name server."""
        await self._on_name_servers(broker_calls.PUT_KV_CONFIG, broker_calls.KvHeader(namespace, key, value))

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """A value that a name server keeps; None when it has none of that name."""
        return (await self.ask(broker_calls.GET_KV_CONFIG, broker_calls.KvHeader(namespace, key), accept=FOUND_OR_NOT)).header.value

    async def kv_delete(self, namespace: str, key: str) -> None:
        """Remove a value from every name server."""
        await self._on_name_servers(broker_calls.DELETE_KV_CONFIG, broker_calls.KvHeader(namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All values of a namespace; empty when there are none."""
        answer = await self.ask(broker_calls.GET_KVLIST_BY_NAMESPACE, broker_calls.NamespaceHeader(namespace), accept=FOUND_OR_NOT)
        return answer.body.table if answer.ok else {}

    async def takes_messages(self, broker_name: str) -> bool:
        """Whether name servers send producers to this broker: not when its write permission is off, on it or at them."""
        for topic in (broker_name, DEFAULT_TOPIC):
            try:
                rows = [row for row in (await self.route(topic)).queue_datas if row.broker_name == broker_name]
            except NoRoute:
                continue
            if rows:
                return bool(rows[0].perm & Perm.WRITE)
        return True

    async def wipe_write_permission(self, broker_name: str) -> int:
        """Routes no longer offer the broker for writing, until it registers a change. How many topics that concerned."""
        return (await self._on_name_servers(WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name))).header.wipe_topic_count

    async def add_write_permission(self, broker_name: str) -> int:
        """Take wipe_write_permission back. How many topics that concerned."""
        return (await self._on_name_servers(ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader(broker_name))).header.add_topic_count


def properties_text(pairs: Mapping[str, str]) -> bytes:
    for key, value in pairs.items():
        if "\n" in key or "\n" in value or "=" in key:
            raise ClientError(f"setting {key!r}={value!r} cannot be written as one key=value line")
    return "".join(f"{key}={value}\n" for key, value in pairs.items()).encode()
