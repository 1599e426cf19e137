"""Roquet's own test kit: a clock, a disk, a network and background work that a test controls, and whole clusters from a seed.

    ManualClock     a clock turned by hand
    SimDisk         a file system that loses and tears what was not synced
    SimNetwork      connections that are slow, cut and parted
    SimBackground   blocking work, done later
    Simulation      one queue of events; one seed decides everything

The cores take these in place of the real ones. `world.World` is a whole cluster of them: broker groups, name servers and clients,
each on a node of its own. `python -m roquet.testing.simulate` runs such clusters from seeds.
"""

from roquet.testing.background import SimBackground
from roquet.testing.clock import ManualClock
from roquet.testing.disk import PowerLost, SimDisk
from roquet.testing.network import SimCaller, SimNetwork, SimPeer
from roquet.testing.simulation import SimClock, Simulation

__all__ = ["ManualClock", "PowerLost", "SimBackground", "SimCaller", "SimClock", "SimDisk", "SimNetwork", "SimPeer", "Simulation"]
