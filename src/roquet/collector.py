"""Python's garbage collector, for a process that serves: no collection may hold the loop for long.

A collection looks at every object of its generations, about three million a second, and everybody waits meanwhile. What lives long
is therefore taken out of its sight (`gc.freeze`): all that exists when the server begins, and whatever survives two collections
after that. Objects go, as ever, with their last reference. Only a cycle that grew old before it was dropped stays for good: long-lived
objects here take care not to be in one.
"""

from __future__ import annotations

import gc

YOUNG = 5_000
"""New objects before they are looked at: one or two milliseconds. A send leaves none behind, so this is seldom."""
OLDER = 4
"""Such looks before the survivors of all of them are looked at, and frozen: some 10 ms."""
NEVER = 1_000_000


def quiet_collector() -> None:
    """What exists now lives as long as the server. Call it once everything is open."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, OLDER, NEVER)
    if freeze_old not in gc.callbacks:
        gc.callbacks.append(freeze_old)


def freeze_old(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] > 0:
        gc.freeze()
