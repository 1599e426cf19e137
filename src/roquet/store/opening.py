"""Opening a store: recovery, and what it read back made safe before anything builds on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roquet.store import lost, rewriting
from roquet.store.recovery import Manifest, Recovery, ShowProgress

if TYPE_CHECKING:
    from roquet.store.store import Store


def recover(store: Store, manifest: Manifest | None, progress: ShowProgress) -> None:
    """Leaves the store ready to append. The directory was looked at, and may be written."""
    begin(store)
    rewriting.finish(store.disk, store.root, store.log.segments)
    store.deletions.load()
    store.removal.tidy()
    store.all_queues.load()
    recovery = Recovery(store, manifest, progress)
    chain = recovery.read_chain()
    end = recovery.run()
    if chain is not None:
        end = chain.end
    store.recovered_records, store.holes = recovery.records, recovery.holes
    store.recovered_from, store.recovered_to = recovery.sure, end
    if end == 0 and recovery.manifest is None:
        # A new store tells its broker's name from its first message on: who reads the files keeps positions under that name.
        store.derived.save_manifest(clean=False)
    store.timeline.recovered(recovery.last_store_ms or store.checkpoint.log_ms, recovery.set_backs, recovery.overtaken)
    lost.cut(store.disk, store.log.segments, store.root, end, store.clock.now_ms())
    if store.crashed:
        sure = recovery.sure if chain is None else min(recovery.sure, chain.checked_from)
        rewriting.write_again(store.disk, store.root, store.log.segments, sure, end)
    if store.ledger is not None and chain is None and store.log.segments.bases:
        end = store.ledger.log.begin_behind_old(end)
    store.log.start_at(end)
    store.tails.recovered()
    # What recovery read back may exist in memory only: make it safe before anything builds on it.
    _, work = store.log.syncer()
    work()
    if recovery.manifest is not None and recovery.overtaken != recovery.manifest.overtaken:
        # The next crash must know the holes of this one, though it comes before the next checkpoint.
        store.manifest.note_overtaken(recovery.manifest, recovery.overtaken)
    store.staging.now_ms = store.clock.now_ms()
    idle_ms = store.staging.now_ms - store.timeline.last_ms
    if idle_ms < 0:
        store.timeline.note_set_back(store.log.written)
    store.old_files.doubt_the_clock(idle_ms)
    if store.ledger is not None:
        store.ledger.opened(store)


def begin(store: Store) -> None:
    disk, root = store.disk, store.root
    for directory in (f"{root}/config", f"{root}/consumequeue", f"{root}/index"):
        disk.make_dir(directory)
    # The store's own name must be safe too: with it a power loss would take everything, synced or not.
    disk.sync_dir(root.rstrip("/").rpartition("/")[0] or ("/" if root.startswith("/") else "."))
    if store.ledger is not None:
        store.ledger.make_directories(disk, root)
    # From here on a crash must be seen as one, also while recovering.
    disk.open(f"{root}/abort", size=0).close()
    disk.sync_dir(root)
