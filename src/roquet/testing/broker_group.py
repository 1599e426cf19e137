"""BrokerGroup: the simulated brokers under one broker name. Member 0 is the master."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from roquet.broker.core import Broker
from roquet.broker.topics import Topic
from roquet.testing.broker_node import BrokerNode
from roquet.testing.checker import listed
from roquet.testing.names import GROUP, READERS, SHARED_TOPIC

if TYPE_CHECKING:
    from roquet.testing.world import World

QUEUES = 4


class BrokerGroup:
    """What is said of messages is said of the group (`promises`); what goes wrong happens to one of its members."""

    def __init__(self, world: World, number: int, member_count: int) -> None:
        self.world = world
        self.number = number
        self.name = f"sim-broker-{number}"
        random = Random(f"{self.name} {world.simulation.seed}")
        self.sync_flush = random.random() < 0.75
        self.settings: dict[str, Any] = {
            "broker_name": self.name,
            "namesrv_addr": ";".join(world.name_server_addresses),
            "flush_disk_type": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
            "mapped_file_size_commit_log": random.choice((16_384, 65_536)),
            "mapped_file_size_consume_queue": random.choice((20 * 7, 20 * 50)),
            "max_hash_slot_num": 40,
            "max_index_num": random.choice((30, 200)),
            "flush_interval_consume_queue": random.choice((100, 1_000)),
            "flush_consumer_offset_interval": random.choice((500, 5_000)),
            "default_topic_queue_nums": QUEUES,
            "clean_file_forcibly_enable": False,
            "sync_flush_timeout": random.choice((200, 5_000)),
        } | dict(world.broker_settings)
        self.promises = world.checker.add(self.name, sync_flush=self.sync_flush)
        self.members = [self._member(number) for number in range(member_count)]

    def host_of(self, number: int) -> str:
        return f"10.0.2.{self.number * 10 + number + 1}"

    def _member(self, number: int) -> BrokerNode:
        return BrokerNode(self, number)

    @property
    def master(self) -> BrokerNode:
        return self.members[0]

    def look(self) -> None:
        """At rest: is everything where it must be?"""
        assert self.master.core is not None
        self.promises.look(self.master.core)

    def started(self, node: BrokerNode, core: Broker) -> None:
        """One of us is up again: did it keep what the group promised? The topic that stands in every group stands here too."""
        if node is not self.master:
            return
        with node.disk.spared():
            self.promises.started(core, node.last_seen)
        if core.topics.get(SHARED_TOPIC) is None:
            core.topics.put(Topic(SHARED_TOPIC, QUEUES, QUEUES))

    def unrest(self) -> str:
        """What is not as it must be when nothing has gone wrong for a while; "" when all is well."""
        down = next((f"{node.name} is down" for node in self.members if not node.serving), "")
        return down or self._not_registered() or self._not_consumed()

    def _not_registered(self) -> str:
        for name_server in self.world.name_servers:
            if name_server.core is None:
                return f"{name_server.name} is down"
            registry = name_server.core.registry
            for node in self.members:
                known = registry.holder(self.name, node.present_id)
                if known is None or known.address != node.address:
                    return f"{name_server.name} does not know {node.name} at {node.address}"
            if self.name not in registry.topics.get(SHARED_TOPIC, {}):
                return f"{name_server.name} does not know {SHARED_TOPIC} of {self.name}"
        return ""

    def _pending(self) -> str:
        """Are transactions left?"""
        broker = self.master.core
        count = 0 if broker is None else broker.transactions.pending
        return f"{self.name} has {count} transactions that have not ended" if count else ""

    def _not_consumed(self) -> str:
        for group in () if self.promises.copies_show else (GROUP, READERS):
            missing = self.world.checker.missing(group, self.name)
            if missing:
                return f"group {group} never got {listed(missing)} of {self.name}"
        broker = self.master.core
        assert broker is not None
        for topic in self.world.topics:
            for queue in broker.store.queues_of(topic):
                offset = broker.offsets.find(GROUP, topic, queue.queue_id)
                if queue.visible and offset != queue.visible:
                    place = f"{topic}/{queue.queue_id} of {self.name}"
                    return f"group {GROUP} is at {offset} of {place}, which ends at {queue.visible}"
        return ""
