"""The garbage collector of a server's process: each collection looks at a bounded number of objects, however many there are."""

from __future__ import annotations

import subprocess
import sys

from roquet.collector import OLDER, YOUNG

GROWING = """
import gc
from roquet.collector import quiet_collector

quiet_collector()
looked_at = []

def note(phase, info):
    if phase == "start":
        looked_at.append(sum(len(gc.get_objects(n)) for n in range(info["generation"] + 1)))

gc.callbacks.append(note)
kept = [[n] for n in range(1_000_000)]
for n in range(300_000):
    dropped = [n]
    dropped.append(dropped)
seen = len(looked_at), max(looked_at), gc.get_freeze_count()
quiet_collector()
print(*seen, gc.callbacks.count(note), len(gc.callbacks))
"""


def test_a_process_that_grows_by_a_million_objects_never_looks_at_many_of_them_at_once() -> None:
    said = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True, timeout=900).stdout
    collections, most, frozen, _, callbacks = map(int, said.split())
    assert collections > 50
    assert most <= YOUNG * (OLDER + 3), "a pause is in proportion to it"
    assert 800_000 < frozen < 1_200_000, "what lives long is out of its sight, and the cycles that were dropped are not among it"
    assert callbacks == 2, "set up once, however often it is called"
