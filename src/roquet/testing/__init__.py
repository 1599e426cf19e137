"""Roquet's own test kit: a clock, a disk, a network and background work that a test controls, and whole clusters from a seed.

    ManualClock, ManualBackground, FakePeer, RecordingCaller    turned by hand, for a test of one core
    WholeBroker     a broker core between those, on real files
    SimDisk         a file system that loses and tears what was not synced
    SimNetwork      connections that are slow, cut and parted
    SimBackground   blocking work, done later
    Simulation      one queue of events; one seed decides everything

The cores take these in place of the real ones. `world.World` is a whole cluster of them: broker groups, name servers and clients,
each on a node of its own. `python -m roquet.testing.simulate` runs such clusters from seeds.
"""

from roquet.testing.background import ManualBackground, SimBackground
from roquet.testing.caller import RecordingCaller
from roquet.testing.clock import ManualClock
from roquet.testing.disk import PowerLost, SimDisk
from roquet.testing.network import SimCaller, SimNetwork, SimPeer
from roquet.testing.peer import FakePeer
from roquet.testing.simulation import SimClock, Simulation
from roquet.testing.whole_broker import WholeBroker

__all__ = [
    "FakePeer", "ManualBackground", "ManualClock", "PowerLost", "RecordingCaller", "SimBackground", "SimCaller", "SimClock", "SimDisk",
    "SimNetwork", "SimPeer", "Simulation", "WholeBroker",
]  # fmt: skip
