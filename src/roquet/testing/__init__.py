"""Tests without waiting: a broker whose clock the test turns, and what Roquet's own tests are made of.

    async with Broker() as broker:                      # for tests of applications: docs/testing.md
        async with Producer("shop", broker.namesrv) as producer: ...
        await broker.clock.advance(days=40)
        assert broker.published.bodies("reminders") == [b"pay"]

`roquet.testing.pytest_plugin` has it as fixtures. For tests of the cores themselves:

    ManualClock, ManualBackground, FakePeer, RecordingCaller    turned by hand, for a test of one core
    WholeBroker     a broker core between those, on real files
    SimDisk         a file system that loses and tears what was not synced
    SimNetwork      connections that are slow, cut and parted
    SimBackground   blocking work, done later
    Simulation      one queue of events; one seed decides everything

The cores take these in place of the real ones. `world.World` is a whole cluster of them: broker groups, name servers and clients,
each on a node of its own. `python -m roquet.testing.simulate` runs such clusters from seeds.

The names are loaded at first use: pytest loads the plugin in every run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roquet.testing.background import ManualBackground, SimBackground
    from roquet.testing.caller import RecordingCaller
    from roquet.testing.clock import ManualClock
    from roquet.testing.disk import PowerLost, SimDisk
    from roquet.testing.kit.broker import Broker
    from roquet.testing.kit.clock import Clock
    from roquet.testing.kit.published import Published, Scheduled
    from roquet.testing.network import SimCaller, SimNetwork, SimPeer
    from roquet.testing.peer import FakePeer
    from roquet.testing.simulation import SimClock, Simulation
    from roquet.testing.whole_broker import WholeBroker

__all__ = [
    "Broker", "Clock", "FakePeer", "ManualBackground", "ManualClock", "PowerLost", "Published", "RecordingCaller", "Scheduled",
    "SimBackground", "SimCaller", "SimClock", "SimDisk", "SimNetwork", "SimPeer", "Simulation", "WholeBroker",
]  # fmt: skip

_HOMES = {
    "background": ("ManualBackground", "SimBackground"),
    "caller": ("RecordingCaller",),
    "clock": ("ManualClock",),
    "disk": ("PowerLost", "SimDisk"),
    "kit.broker": ("Broker",),
    "kit.clock": ("Clock",),
    "kit.published": ("Published", "Scheduled"),
    "network": ("SimCaller", "SimNetwork", "SimPeer"),
    "peer": ("FakePeer",),
    "simulation": ("SimClock", "Simulation"),
    "whole_broker": ("WholeBroker",),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'roquet.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"roquet.testing.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
