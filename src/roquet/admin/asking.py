"""How servers are asked: one of them, the name servers, every broker of a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from roquet.client.core.failures import rejected
from roquet.client.core.resolver import MASTER, masters_of
from roquet.client.core.tasks import Tasks, follow
from roquet.client.core.tasks import call as answered
from roquet.client.lookup import look_up
from roquet.client.name_servers import default_name_servers
from roquet.client.place import Connections, place_of
from roquet.client.running import finished
from roquet.errors import ClientError, NoRoute, RoquetError
from roquet.message import MessageQueue
from roquet.net.connection import PLAIN, ConnectionOptions, Tls
from roquet.routing.name_servers import NameServers, lookup_url, parse_name_servers
from roquet.wire.calls.call import Answer, Answered, AnswerHeader, Asked, Call, Header
from roquet.wire.calls.routes import GET_BROKER_CLUSTER_INFO, GET_ROUTEINFO_BY_TOPIC, ClusterInfo, RouteHeader, RouteInfo
from roquet.wire.codes import ResponseCode
from roquet.wire.command import Command
from roquet.wire.signing import Credentials

T = TypeVar("T")
K = TypeVar("K")

AT_ONCE_MAX = 32
"""Calls under way at a time when many are needed (the progress of every group, say)."""
SUCCESS = (ResponseCode.SUCCESS,)


class PartlyDone(ClientError):
    """Some brokers did it and some did not. `failed` says which and why; doing it again is safe."""

    def __init__(self, text: str, failed: Mapping[str, RoquetError]) -> None:
        super().__init__(text)
        self.failed = dict(failed)


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    cluster: str
    name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER


class Asking:
    """Belongs to the event loop it is entered in. Connections are made on first use and kept until it is closed."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout_ms: int = 5_000,
        connection: ConnectionOptions = PLAIN,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`namesrv`: as for a Producer. `tls`: encrypt all connections so; `credentials`: sign all requests with these keys. Both are the
        same as in `connection`."""
        self.connection = connection.over(tls).signed_by(credentials)
        where = default_name_servers() if namesrv is None else namesrv
        self._lookup = lookup_url(where)
        self.name_server_addresses = () if self._lookup else parse_name_servers(where)
        self.timeout_ms = timeout_ms
        self._caller: Connections | None = None
        self._name_servers = NameServers(self.name_server_addresses, random.randrange(max(len(self.name_server_addresses), 1)))

    async def __aenter__(self) -> Self:
        if self._lookup is not None:
            self.name_server_addresses = await look_up(self._lookup)
            self._name_servers.change(self.name_server_addresses)
        self._caller = place_of(self.name_server_addresses).connections(self.connection)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._caller is not None:
            await self._caller.close()

    # Who is there

    async def cluster(self) -> ClusterInfo:
        """Clusters and brokers as the name server knows them."""
        return (await self.ask(GET_BROKER_CLUSTER_INFO)).body

    async def brokers(self, cluster: str | None = None) -> list[Broker]:
        """Every broker that the name server knows now, sorted by cluster, name and id."""
        found = [
            Broker(data.cluster, data.broker_name, broker_id, address)
            for data in (await self.cluster()).broker_addr_table.values()
            for broker_id, address in data.broker_addrs.items()
            if cluster is None or data.cluster == cluster
        ]
        if cluster is not None and not found:
            raise ClientError(f"no broker of cluster {cluster!r} is registered; see which are: roquet status")
        return sorted(found)

    async def masters(self, cluster: str | None = None) -> list[Broker]:
        """The brokers with id 0, of one cluster or of all. Raises ClientError when there is none."""
        found = [broker for broker in await self.brokers(cluster) if broker.is_master]
        if not found:
            names = ", ".join(self.name_server_addresses)
            raise ClientError(f"no broker is registered with {names}; start one (roquet broker -n {self.name_server_addresses[0]})")
        return found

    async def masters_named(self, names: Sequence[str], cluster: str | None = None) -> list[Broker]:
        """Raises ClientError when there is none of a name."""
        found = await self.masters(cluster)
        missing = [name for name in names if name not in {broker.name for broker in found}]
        if missing:
            there = ", ".join(sorted({broker.name for broker in found}))
            raise ClientError(f"no master named {missing[0]!r} is registered; there are: {there}")
        return [broker for broker in found if broker.name in names]

    async def until_registered(self, names: Iterable[str], *, timeout_s: float = 10.0) -> None:
        """Wait until every name server knows a master of each of these brokers: what listens is not yet known to clients."""
        wanted = set(names)
        deadline = asyncio.get_running_loop().time() + timeout_s
        for address in self.name_server_addresses:
            while True:
                info = (await self.call(address, GET_BROKER_CLUSTER_INFO)).body
                missing = wanted - {name for name, data in info.broker_addr_table.items() if MASTER in data.broker_addrs}
                if not missing:
                    break
                if asyncio.get_running_loop().time() > deadline:
                    raise ClientError(f"{address} does not know {', '.join(sorted(missing))} after {timeout_s:g} s; see the brokers' logs")
                await asyncio.sleep(0.01)

    async def route(self, topic: str) -> RouteInfo:
        """Raises NoRoute when no name server knows the topic."""
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        answer = await self.ask(GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic, True), accept=accept)
        if not answer.ok:
            raise NoRoute(f"no name server knows the topic {topic!r}")
        return answer.body

    async def master_of(self, queue: MessageQueue) -> str:
        """The address of the broker that takes writes for this queue. Raises NoRoute."""
        address = masters_of((await self.route(queue.topic)).broker_datas).get(queue.broker_name)
        if address is None:
            raise NoRoute(f"no master of {queue.broker_name} is registered, which has {queue.topic} {queue.queue_id}")
        return address

    async def masters_with(self, topic: str) -> dict[str, str]:
        """Address -> broker name of every master that has the topic. Raises NoRoute."""
        return {address: name for name, address in masters_of((await self.route(topic)).broker_datas).items()}

    # Asking

    async def ask(
        self, call: Call[Header, Any, AnswerHeader, Answered], header: Header | None = None, *, accept: Sequence[int] = SUCCESS
    ) -> Answer[AnswerHeader, Answered]:
        """Ask the name servers: the next one when one does not answer."""
        steps = self._name_servers.ask(lambda: call.request(header, language="PYTHON"))
        address, result = await finished(Tasks(), follow(self._open(), steps, self.timeout_ms))
        return call.answer(checked(result, address, accept))

    async def call(
        self,
        address: str,
        call: Call[Header, Asked, AnswerHeader, Answered],
        header: Header | None = None,
        body: Asked | bytes = b"",
        *,
        accept: Sequence[int] = SUCCESS,
    ) -> Answer[AnswerHeader, Answered]:
        """One request to one server. Raises Rejected for an answer whose code is not in `accept`."""
        request = call.request(header, body, language="PYTHON")
        return call.answer(checked(await finished(Tasks(), self._exchange(address, request)), address, accept))

    async def _exchange(self, address: str, request: Command) -> Command:
        return await answered(self._open(), address, request, self.timeout_ms)

    def _open(self) -> Connections:
        if self._caller is None:
            raise ClientError("this Admin is not open; use it in `async with Admin(...) as admin:`")
        return self._caller

    async def _from_all(
        self,
        addresses: Iterable[str],
        call: Call[Header, Any, AnswerHeader, Answered],
        header: Header | None = None,
        *,
        accept: Sequence[int] = SUCCESS,
    ) -> dict[str, Answer[AnswerHeader, Answered]]:
        """Ask every address; any failure is the whole's, since a part would read like everything."""
        return await gather_bounded(addresses, lambda address: self.call(address, call, header, accept=accept))

    async def _on_all(
        self,
        masters: Sequence[Broker],
        what: str,
        call: Call[Header, Asked, Any, Any],
        header: Header | None = None,
        body: Asked | bytes = b"",
    ) -> None:
        """Change something on every master at once. One master's failure alone is raised as it is, else as PartlyDone."""
        results = await asyncio.gather(*(self.call(broker.address, call, header, body) for broker in masters), return_exceptions=True)
        failed: dict[str, RoquetError] = {}
        for broker, result in zip(masters, results, strict=True):
            if isinstance(result, RoquetError):
                failed[broker.name] = result
            elif isinstance(result, BaseException):
                raise result
        if not failed:
            return
        if len(failed) == len(masters) == 1:
            raise next(iter(failed.values()))
        done = ", ".join(broker.name for broker in masters if broker.name not in failed)
        reasons = "; ".join(f"{name}: {error}" for name, error in failed.items())
        changed = f"was changed on {done}, but not on" if done else "was changed on no broker;"
        raise PartlyDone(f"{what} {changed} {reasons}; solve that and do it again", failed)

    async def _on_name_servers(
        self, call: Call[Header, Asked, AnswerHeader, Answered], header: Header | None = None, body: Asked | bytes = b""
    ) -> Answer[AnswerHeader, Answered]:
        """A change, told to every name server, since they do not tell each other. The last one's answer."""
        answers = [await self.call(address, call, header, body) for address in self.name_server_addresses]
        return answers[-1]


def checked(result: Command, address: str, accept: Sequence[int]) -> Command:
    if result.code not in accept:
        raise rejected(result, address)
    return result


def by_address(brokers: Sequence[Broker]) -> dict[str, str]:
    return {broker.address: broker.name for broker in brokers}


async def gather_bounded(keys: Iterable[K], one: Callable[[K], Awaitable[T]]) -> dict[K, T]:
    """{key: await one(key)}, at most AT_ONCE_MAX at a time, in the order of the keys."""
    slots = asyncio.Semaphore(AT_ONCE_MAX)

    async def bounded(key: K) -> tuple[K, T]:
        async with slots:
            return key, await one(key)

    return dict(await asyncio.gather(*(bounded(key) for key in keys)))
