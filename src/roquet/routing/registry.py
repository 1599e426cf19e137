"""The name server's tables: who is alive, and which broker has which topic.

    topics     topic -> broker name -> its queues there           what producers and consumers ask for
    brokers    broker name -> cluster, id -> address              id 0 is the master
    clusters   cluster -> broker names
    live       (broker name, address) -> last sign of life, data version, the connection it came over

Everything is in memory and comes from the brokers, which register every 30 s with every name server: a restarted name
server only has to wait. Name servers do not know each other.

Time is a parameter. A connection is any object; the registry only tells it from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from roquet.errors import Refused
from roquet.wire.calls.routes import BrokerData, ClusterInfo, QueueData, RouteInfo
from roquet.wire.calls.topics import TopicConfig, TopicList
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import Perm, ResponseCode, TopicFlag

L = TypeVar("L")
"""A connection."""

MASTER_ID = 0
EXPIRY_MS = 120_000

NAME_LENGTH_MAX = 255
BROKERS_MAX = 10_000
ADDRESSES_MAX = 100
"""Of one broker group: a master and its slaves."""
CLUSTERS_MAX = 1_000
TOPICS_MAX = 200_000
"""So that the list of them all fits into one frame."""
FILTER_SERVERS_MAX = 100
LIVE_MAX = 20_000
"""Broker processes, masters and slaves."""
EXPIRY_RANGE_MS = (1_000, 3_600_000)
"""What a broker may ask for."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. `topics` may be all of them or only those that have just changed."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: DataVersion
    topics: tuple[TopicConfig, ...] = ()
    filter_servers: tuple[str, ...] | None = None
    """None: said nothing of them, what is known stays."""
    expiry_ms: int | None = None
    """5.x brokers say how long they may be silent."""
    told: bytes = b""
    """A digest of all of it; b"" when nobody took one."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What a slave gets to know: where its master is. None for a master, or while there is none alive."""

    master_address: str | None = None
    ha_address: str | None = None


@dataclass(slots=True)
class Live(Generic[L]):
    """One broker process, as heard of last."""

    broker_name: str
    address: str
    ha_address: str
    seen_ms: int
    expiry_ms: int
    version: DataVersion | None
    """None: what it has is not known in full, so the next registration counts as changed."""
    link: L
    filter_servers: tuple[str, ...] = ()
    told: bytes = b""
    """Digest of the registration that this came from; b"" when it is not known."""
    dropped: int = 0
    """How often queues had been dropped when it was told."""


@dataclass(slots=True)
class Registry(Generic[L]):
    """Mutated by its own methods only; every method leaves the tables agreeing with each other, refusals change nothing."""

    topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, set[str]] = field(default_factory=dict)
    live: dict[tuple[str, str], Live[L]] = field(default_factory=dict)
    dropped: int = 0
    """How often queues were dropped from `topics`: since then a broker may have topics that it told us and that we lack."""

    # Brokers come

    def holder(self, broker_name: str, broker_id: int) -> Live[L] | None:
        """Who has this name and id now."""
        group = self.brokers.get(broker_name)
        address = None if group is None else group.broker_addrs.get(broker_id)
        return None if address is None else self.live.get((broker_name, address))

    def heard_again(self, broker_name: str, broker_id: int, address: str, told: bytes, link: L, now_ms: int) -> bool:
        """The same registration, byte for byte, as this broker's last one: a sign of life, and nothing else to do. False: it is not."""
        live = self.holder(broker_name, broker_id)
        if live is None or live.address != address or not told or live.told != told or live.dropped != self.dropped:
            return False
        live.seen_ms, live.link = now_ms, link
        return True

    def register(self, said: Registration, link: L, now_ms: int, *, expiry_ms: int = EXPIRY_MS) -> Registered:
        """Take in a registration. Raises Refused, and changes nothing, when a limit would be passed.

        A topic that a registration does not name stays: a broker that has just made a topic registers that one alone.
        """
        self._check(said)
        group = self.brokers.get(said.broker_name)
        if group is None:
            group = self.brokers[said.broker_name] = BrokerData(cluster=said.cluster, broker_name=said.broker_name, broker_addrs={})
        self.clusters.setdefault(said.cluster, set()).add(said.broker_name)

        addresses = group.broker_addrs
        # A slave that became the master comes with the same address under id 0: the address must not stay under two ids.
        for other in [number for number, address in addresses.items() if address == said.address and number != said.broker_id]:
            del addresses[other]
        taken_from = addresses.get(said.broker_id)
        is_new = taken_from != said.address
        if is_new and taken_from is not None:
            del self.live[said.broker_name, taken_from]  # lost its id to this one; should it speak again, it is new
        addresses[said.broker_id] = said.address

        key = (said.broker_name, said.address)
        before = self.live.get(key)
        changed = is_new or before is None or before.version != said.version
        if said.broker_id == MASTER_ID:
            self._take_topics(said, changed)
        filters = said.filter_servers
        self.live[key] = Live(
            said.broker_name,
            said.address,
            said.ha_address,
            now_ms,
            expiry_ms if said.expiry_ms is None else min(max(said.expiry_ms, EXPIRY_RANGE_MS[0]), EXPIRY_RANGE_MS[1]),
            # The first word of a broker with one topic may be that topic alone, sent because it is new while we were
            # restarting. Its version stands for all topics; believing it would hide the rest from QUERY_DATA_VERSION.
            None if is_new and len(said.topics) == 1 else said.version,
            link,
            (before.filter_servers if before else ()) if filters is None else filters,
            said.told,
            self.dropped,
        )
        return self.master_of(said.broker_name, said.broker_id)

    def master_of(self, broker_name: str, broker_id: int) -> Registered:
        """What a member of this broker group gets to know."""
        master = None if broker_id == MASTER_ID else self.holder(broker_name, MASTER_ID)
        return Registered(master.address, master.ha_address) if master else Registered()

    def _take_topics(self, said: Registration, changed: bool) -> None:
        name = said.broker_name
        for topic in said.topics:
            queues = self.topics.setdefault(topic.topic_name, {})
            # With an unchanged version only what we lack is taken, so a wiped write permission stays wiped.
            if changed or name not in queues:
                queues[name] = QueueData(name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)

    def _check(self, said: Registration) -> None:
        for what, text in (("brokerName", said.broker_name), ("clusterName", said.cluster), ("brokerAddr", said.address)):
            if not text or len(text) > NAME_LENGTH_MAX:
                raise refused(f"{what} of {len(text)} characters, allowed are 1 to {NAME_LENGTH_MAX}")
        if len(said.ha_address) > NAME_LENGTH_MAX:
            raise refused(f"haServerAddr of {len(said.ha_address)} characters, at most {NAME_LENGTH_MAX} are allowed")
        if said.broker_id < 0:
            raise refused(f"brokerId is {said.broker_id}, expected 0 for a master or a positive number for a slave")
        if len(said.filter_servers or ()) > FILTER_SERVERS_MAX:
            raise refused(f"{len(said.filter_servers or ())} filter servers, limit is {FILTER_SERVERS_MAX}")
        group = self.brokers.get(said.broker_name)
        if group is None and len(self.brokers) >= BROKERS_MAX:
            raise refused(f"there are {BROKERS_MAX} broker groups, the limit; {said.broker_name!r} would be one more")
        if group is not None and said.broker_id not in group.broker_addrs and len(group.broker_addrs) >= ADDRESSES_MAX:
            raise refused(f"broker group {said.broker_name!r} has {ADDRESSES_MAX} members, the limit; {said.address} would be one more")
        if (group is None or said.broker_id not in group.broker_addrs) and len(self.live) >= LIVE_MAX:
            raise refused(f"there are {LIVE_MAX} brokers, the limit; {said.address} would be one more")
        if said.cluster not in self.clusters and len(self.clusters) >= CLUSTERS_MAX:
            raise refused(f"there are {CLUSTERS_MAX} clusters, the limit; {said.cluster!r} would be one more")
        if said.broker_id == MASTER_ID:
            for topic in said.topics:
                if not topic.topic_name or len(topic.topic_name) > NAME_LENGTH_MAX:
                    raise refused(f"a topic's name of {len(topic.topic_name)} characters, allowed are 1 to {NAME_LENGTH_MAX}")
            new = len({topic.topic_name for topic in said.topics}.difference(self.topics)) if said.topics else 0
            if len(self.topics) + new > TOPICS_MAX:
                raise refused(f"{new} new topics beside the {len(self.topics)} there are, limit is {TOPICS_MAX}; delete some first")

    def version_of(self, broker_name: str, address: str) -> DataVersion | None:
        live = self.live.get((broker_name, address))
        return live.version if live else None

    def has_changed(self, broker_name: str, address: str, version: DataVersion, now_ms: int) -> bool:
        """Whether the broker's topics are others than those it registered. If not, asking counts as a sign of life."""
        live = self.live.get((broker_name, address))
        if live is None or live.version != version:
            return True
        live.seen_ms = now_ms
        return False

    # Brokers go

    def unregister(self, broker_name: str, address: str) -> bool:
        """Forget this process; False when it was not known. Not by its id, as upstream does: another may have taken that over,
        such as a new master after a failover, or a second broker under the same name."""
        known = self.live.pop((broker_name, address), None) is not None
        group = self.brokers.get(broker_name)
        if group is None:
            return known
        for number in [number for number, known in group.broker_addrs.items() if known == address]:
            del group.broker_addrs[number]
        if not group.broker_addrs:
            del self.brokers[broker_name]
            for cluster in [cluster for cluster, names in self.clusters.items() if broker_name in names]:
                self.clusters[cluster].discard(broker_name)
                if not self.clusters[cluster]:
                    del self.clusters[cluster]
            self._drop_queues([broker_name], list(self.topics))
        return known

    def drop_link(self, link: L) -> list[Live[L]]:
        """The connection is gone, and with it the brokers whose last registration came over it. Returns them."""
        return self._drop([live for live in self.live.values() if live.link is link])

    def expire(self, now_ms: int) -> list[Live[L]]:
        """Forget the brokers that were silent for too long. Returns them, so that their connections can be closed."""
        return self._drop([live for live in self.live.values() if live.seen_ms + live.expiry_ms < now_ms])

    def _drop(self, gone: list[Live[L]]) -> list[Live[L]]:
        for live in gone:
            self.unregister(live.broker_name, live.address)
        return gone

    def _drop_queues(self, broker_names: Iterable[str], topics: Iterable[str]) -> None:
        self.dropped += 1
        for topic in topics:
            queues = self.topics[topic]
            for name in broker_names:
                queues.pop(name, None)
            if not queues:
                del self.topics[topic]

    # Topics

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic everywhere, or in one cluster. A broker that still has it brings it back with its next registration."""
        if topic in self.topics:
            self._drop_queues(list(self.topics[topic]) if cluster is None else self.clusters.get(cluster, ()), [topic])

    def wipe_write_perm(self, broker_name: str) -> int:
        """Send no more producers there. Lasts until the broker registers with changed topics. Returns the number of topics."""
        return self._change_perm(broker_name, lambda perm: perm & ~int(Perm.WRITE))

    def add_write_perm(self, broker_name: str) -> int:
        return self._change_perm(broker_name, lambda perm: int(Perm.READ | Perm.WRITE))

    def _change_perm(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            data = queues.get(broker_name)
            if data is not None:
                # Replaced, not changed: answers that were made from the old one keep it.
                queues[broker_name] = QueueData(
                    broker_name, data.read_queue_nums, data.write_queue_nums, change(data.perm), data.topic_sys_flag
                )
                count += 1
        return count

    # Questions

    def route(self, topic: str) -> RouteInfo | None:
        """The queues of a topic and the addresses of their brokers; None when no broker has it."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        groups = [copy_of(self.brokers[name]) for name in queues]
        filters: dict[str, list[str]] = {}
        for group in groups:
            for address in group.broker_addrs.values():
                servers = self.live[group.broker_name, address].filter_servers
                if servers:
                    filters[address] = list(servers)
        return RouteInfo(queue_datas=list(queues.values()), broker_datas=groups, filter_server_table=filters)

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: copy_of(group) for name, group in self.brokers.items()},
            cluster_addr_table={cluster: set(names) for cluster, names in self.clusters.items()},
        )

    def all_topics(self) -> TopicList:
        return TopicList(topic_list=list(self.topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """Nothing for a cluster nobody knows."""
        names = self.clusters.get(cluster, set())
        return TopicList(topic_list=[topic for topic, queues in self.topics.items() if not names.isdisjoint(queues)])

    def system_topics(self) -> TopicList:
        """Clusters and brokers, which are topics of the same name; and a broker to ask for its own system topics."""
        names: dict[str, None] = {}
        for cluster, brokers in self.clusters.items():
            names.update(dict.fromkeys([cluster, *sorted(brokers)]))
        address = next((address for group in self.brokers.values() for _, address in sorted(group.broker_addrs.items())), None)
        return TopicList(topic_list=list(names), broker_addr=address)

    def unit_topics(self) -> TopicList:
        return self._by_flag(lambda flag: bool(flag & TopicFlag.UNIT))

    def unit_sub_topics(self) -> TopicList:
        return self._by_flag(lambda flag: bool(flag & TopicFlag.UNIT_SUB))

    def unit_sub_not_unit_topics(self) -> TopicList:
        return self._by_flag(lambda flag: bool(flag & TopicFlag.UNIT_SUB) and not flag & TopicFlag.UNIT)

    def _by_flag(self, wanted: Callable[[int], bool]) -> TopicList:
        # One broker speaks for all, as upstream has it: the flag is the topic's, not the broker's.
        return TopicList(topic_list=[topic for topic, queues in self.topics.items() if wanted(next(iter(queues.values())).topic_sys_flag)])


def copy_of(group: BrokerData) -> BrokerData:
    """So that an answer does not change while it waits to be written."""
    return replace(group, broker_addrs=dict(sorted(group.broker_addrs.items())))


def refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
