"""Which state a table is in, and whether a name server knows that state of it."""

from __future__ import annotations

import dataclasses

from roquet.wire.bodies import Body
from roquet.wire.calls.call import Call
from roquet.wire.codes import RequestCode as Code
from roquet.wire.headers import Header, wire


class DataVersion(Body, frozen=True):
    """Which state a table is in: when it last changed, and how often it has. 5.x adds a state version."""

    timestamp: int = 0
    counter: int = 0
    state_version: int | None = None

    def next(self, now_ms: int) -> DataVersion:
        """Of the table after one more change."""
        return dataclasses.replace(self, timestamp=now_ms, counter=self.counter + 1)


class BrokerHeader(Header):
    """Which broker this is."""

    broker_name: str = wire("brokerName")
    broker_addr: str = wire("brokerAddr")
    cluster_name: str = wire("clusterName")
    broker_id: int = wire("brokerId", bits=64)


class DataVersionResponseHeader(Header):
    changed: bool = wire("changed")


QUERY_DATA_VERSION = Call(Code.QUERY_DATA_VERSION, BrokerHeader, DataVersion, DataVersionResponseHeader, DataVersion)
