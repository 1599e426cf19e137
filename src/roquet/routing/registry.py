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

from roquet.wire.calls.routes import BrokerData, ClusterInfo, QueueData, RouteInfo
from roquet.wire.calls.topics import TopicConfig, TopicList
from roquet.wire.calls.versions import DataVersion
from roquet.wire.codes import Perm, TopicFlag, refused

L = TypeVar("L")
"""A connection."""

MASTER_ID = 0
EXPIRY_MS = 120_000

NAME_LENGTH_MAX = 255
BROKERS_MAX = 10_000
ADDRESSES_MAX = 100
"""Of one broker group: a master and its slaves."""
CLUSTERS_MAX = 1_000
DROPPED_MOST = 50_000
"""Queues of topics that silent brokers lose at a time: some milliseconds."""
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
    """None: it names none, and what is known stays."""
    expiry_ms: int | None = None
    """5.x brokers give how long they may be silent."""
    digest: bytes = b""
    """Of all of it; b"" when nobody took one."""

    def check(self) -> None:
        """Raises Refused for names and numbers that no broker may have."""
        for what, text in (("brokerName", self.broker_name), ("clusterName", self.cluster), ("brokerAddr", self.address)):
            check_name(what, text)
        if len(self.ha_address) > NAME_LENGTH_MAX:
            raise refused(f"haServerAddr of {len(self.ha_address)} characters, at most {NAME_LENGTH_MAX} are allowed")
        if self.broker_id < 0:
            raise refused(f"brokerId is {self.broker_id}, expected 0 for a master or a positive number for a slave")
        if len(self.filter_servers or ()) > FILTER_SERVERS_MAX:
            raise refused(f"{len(self.filter_servers or ())} filter servers, limit is {FILTER_SERVERS_MAX}")
        names = (topic.topic_name for topic in self.topics if not 0 < len(topic.topic_name) <= NAME_LENGTH_MAX)
        for name in names if self.broker_id == MASTER_ID else ():
            check_name("a topic's name", name)


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
    digest: bytes = b""
    """Digest of the registration that this came from; b"" when it is not known."""
    dropped: int = 0
    """How often queues had been dropped when it registered."""


@dataclass(slots=True)
class Registry(Generic[L]):
    """Mutated by its own methods only; every method leaves the tables agreeing with each other, refusals change nothing."""

    topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)
    brokers: dict[str, BrokerData] = field(default_factory=dict)
    clusters: dict[str, set[str]] = field(default_factory=dict)
    live: dict[tuple[str, str], Live[L]] = field(default_factory=dict)
    dropped: int = 0
    """How often queues were dropped from `topics`: since then a broker may have topics that it registered and that we lack."""

    # Brokers come

    def holder(self, broker_name: str, broker_id: int) -> Live[L] | None:
        """Who has this name and id now."""
        group = self.brokers.get(broker_name)
        address = None if group is None else group.broker_addrs.get(broker_id)
        return None if address is None else self.live.get((broker_name, address))

    def heard_again(self, broker_name: str, broker_id: int, address: str, digest: bytes, link: L, now_ms: int) -> bool:
        """The same registration, byte for byte, as this broker's last one: a sign of life, and nothing else to do. False: it is not."""
        live = self.holder(broker_name, broker_id)
        if live is None or live.address != address or not digest or live.digest != digest or live.dropped != self.dropped:
            return False
        live.seen_ms, live.link = now_ms, link
        return True

    def register(self, new: Registration, link: L, now_ms: int, *, expiry_ms: int = EXPIRY_MS) -> Live[L] | None:
        """Take in a registration, and return `master_of`. Raises Refused, and changes nothing, when a limit would be passed.

        A topic that a registration does not name stays: a broker that has just made a topic registers that one alone.
        """
        new.check()
        self._check_room(new)
        group = self.brokers.get(new.broker_name)
        if group is None:
            group = self.brokers[new.broker_name] = BrokerData(cluster=new.cluster, broker_name=new.broker_name, broker_addrs={})
        self.clusters.setdefault(new.cluster, set()).add(new.broker_name)

        addresses = group.broker_addrs
        # A slave that became the master comes with the same address under id 0: the address must not stay under two ids.
        for other in [number for number, address in addresses.items() if address == new.address and number != new.broker_id]:
            del addresses[other]
        taken_from = addresses.get(new.broker_id)
        is_new = taken_from != new.address
        if is_new and taken_from is not None:
            del self.live[new.broker_name, taken_from]  # lost its id to this one; should it speak again, it is new
        addresses[new.broker_id] = new.address

        key = (new.broker_name, new.address)
        before = self.live.get(key)
        changed = is_new or before is None or before.version != new.version
        for topic in new.topics if new.broker_id == MASTER_ID else ():
            queues, name = self.topics.setdefault(topic.topic_name, {}), new.broker_name
            # With an unchanged version only what we lack is taken, so a wiped write permission stays wiped.
            if changed or name not in queues:
                queues[name] = QueueData(name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        filters = new.filter_servers
        self.live[key] = Live(
            new.broker_name,
            new.address,
            new.ha_address,
            now_ms,
            expiry_ms if new.expiry_ms is None else min(max(new.expiry_ms, EXPIRY_RANGE_MS[0]), EXPIRY_RANGE_MS[1]),
            # The first word of a broker with one topic may be that topic alone, sent because it is new while we were
            # restarting. Its version stands for all topics; believing it would hide the rest from QUERY_DATA_VERSION.
            None if is_new and len(new.topics) == 1 else new.version,
            link,
            (before.filter_servers if before else ()) if filters is None else filters,
            new.digest,
            self.dropped,
        )
        return self.master_of(new.broker_name, new.broker_id)

    def master_of(self, broker_name: str, broker_id: int) -> Live[L] | None:
        """What a slave gets to know: its master. None for a master, or while there is none alive."""
        return None if broker_id == MASTER_ID else self.holder(broker_name, MASTER_ID)

    def _check_room(self, new: Registration) -> None:
        """Raises Refused when a table would grow beyond its limit."""
        group = self.brokers.get(new.broker_name)
        is_member = group is not None and new.broker_id in group.broker_addrs
        fresh = len({topic.topic_name for topic in new.topics}.difference(self.topics)) if new.broker_id == MASTER_ID else 0
        for one_more, count, limit, what, name in (
            (group is None, len(self.brokers), BROKERS_MAX, f"there are {BROKERS_MAX} broker groups", repr(new.broker_name)),
            (not is_member, len(group.broker_addrs) if group else 0, ADDRESSES_MAX,
             f"broker group {new.broker_name!r} has {ADDRESSES_MAX} members", new.address),
            (not is_member, len(self.live), LIVE_MAX, f"there are {LIVE_MAX} brokers", new.address),
            (new.cluster not in self.clusters, len(self.clusters), CLUSTERS_MAX, f"there are {CLUSTERS_MAX} clusters", repr(new.cluster)),
        ):  # fmt: skip
            if one_more and count >= limit:
                raise refused(f"{what}, the limit; {name} would be one more")
        if len(self.topics) + fresh > TOPICS_MAX:
            raise refused(f"{fresh} new topics beside the {len(self.topics)} there are, limit is {TOPICS_MAX}; delete some first")

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
        known = (broker_name, address) in self.live
        self._forget([(broker_name, address)])
        return known

    def drop_link(self, link: L) -> list[Live[L]]:
        """The connection is gone, and with it the brokers whose last registration came over it. Returns them."""
        return self._drop([live for live in self.live.values() if live.link is link])

    def expire(self, now_ms: int) -> list[Live[L]]:
        """Forget brokers that were silent for too long, so many at a time as take little. Returns them, so that their connections can be
        closed; nobody, when there are no others."""
        silent = [live for live in self.live.values() if live.seen_ms + live.expiry_ms < now_ms]
        return self._drop(silent[: max(1, DROPPED_MOST // (len(self.topics) + 1))])

    def _drop(self, gone: list[Live[L]]) -> list[Live[L]]:
        self._forget([(live.broker_name, live.address) for live in gone])
        return gone

    def _forget(self, processes: Iterable[tuple[str, str]]) -> None:
        """All of them with one look at the topics."""
        ended = set[str]()
        for broker_name, address in processes:
            self.live.pop((broker_name, address), None)
            group = self.brokers.get(broker_name)
            if group is None:
                continue
            for number in [number for number, known in group.broker_addrs.items() if known == address]:
                del group.broker_addrs[number]
            if not group.broker_addrs:
                del self.brokers[broker_name]
                ended.add(broker_name)
        if not ended:
            return
        for cluster, names in list(self.clusters.items()):
            names -= ended
            if not names:
                del self.clusters[cluster]
        self._drop_queues(ended, list(self.topics))

    def _drop_queues(self, broker_names: Iterable[str], topics: Iterable[str]) -> None:
        self.dropped += 1
        names = set(broker_names)
        for topic in topics:
            queues = self.topics[topic]
            for name in names if len(names) < len(queues) else names.intersection(queues):
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
                count += 1
                perm = change(data.perm)
                if perm != data.perm:  # replaced, not changed: answers that were made from the old one keep it
                    queues[broker_name] = QueueData(broker_name, data.read_queue_nums, data.write_queue_nums, perm, data.topic_sys_flag)
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


def check_name(what: str, text: str) -> None:
    if not text or len(text) > NAME_LENGTH_MAX:
        raise refused(f"{what} of {len(text)} characters, allowed are 1 to {NAME_LENGTH_MAX}")
