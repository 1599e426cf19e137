"""The first look at a store's directory: whatever can refuse a start is found here, before anything is written."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from roquet.errors import Damaged
from roquet.store.disk import Disk
from roquet.store.manifest_file import sizes_of
from roquet.store.queue import ENTRY_SIZE
from roquet.store.recovery import Manifest, times_of
from roquet.store.segments import file_name

if TYPE_CHECKING:
    from roquet.store.store import Store

log = logging.getLogger("roquet.store")

SIZES_LOOKED_AT = 256
"""Queue files that tell which size they all have."""


def look(store: Store) -> Manifest | None:
    """What our last run left word of. The store gets to know whether that ended in a crash, and which documents are gone. Raises Damaged
    when this directory must not be opened."""
    disk, root, segments = store.disk, store.root, store.log.segments
    store.crashed = disk.exists(f"{root}/abort")
    parts = [f"{root}/{part}/{name}" for part in ("index", "timers") for name in disk.list(f"{root}/{part}")]
    refuse_directories(disk, f"{root}/checkpoint", *parts)
    if store.ledger is None:
        refuse_ledgers(disk, root)
    store.checkpoint.load()
    store.manifest.times = times_of(store.checkpoint)
    manifest = store.manifest.load()
    _compare_sizes(store, manifest)
    segments.load(crashed=store.crashed)
    if manifest is not None:
        _compare_log(store, manifest)
        present = set(disk.list(f"{root}/config"))
        store.missing = sorted(name for name in manifest.documents if not present & {name, f"{name}.bak"})
        _compare_checkpoint(store, manifest)
    elif segments.bases and not store.manifest.document.warning:
        log.warning("%s is missing. Where Apache RocketMQ wrote last that is so; more of the log is read again", store.manifest.path)
    return manifest


def _compare_sizes(store: Store, manifest: Manifest | None) -> None:
    if manifest is None:
        _look_at_queue_files(store)
        return
    for setting, size in sizes_of(store.settings).items():
        given = manifest.sizes.get(setting, size)
        if given != size:
            raise Damaged(f"{setting} is {size}, but {store.root} was written with {given}: set it as it was, sizes of files cannot change")


def _look_at_queue_files(store: Store) -> None:
    """Nobody remembers their size (Apache RocketMQ wrote here last): where they all have the same and it is another, the setting is
    wrong. One alone may be damaged, and is derived again."""
    disk, where, sizes = store.disk, f"{store.root}/consumequeue", set[int]()
    directories = (f"{where}/{topic}/{name}" for topic in disk.list(where) for name in disk.list(f"{where}/{topic}") if name.isdigit())
    paths = (f"{directory}/{name}" for directory in directories for name in disk.list(directory) if len(name) == 20 and name.isdigit())
    count = 0
    for path in itertools.islice(paths, SIZES_LOOKED_AT):
        sizes.add(disk.size(path))
        count += 1
    expected = store.settings.mapped_file_size_consume_queue
    if count > 1 and len(sizes) == 1 and expected not in sizes and not (size := sizes.pop()) % ENTRY_SIZE and size:
        raise Damaged(
            f"mappedFileSizeConsumeQueue is {expected}, but the files in {where} have {size} bytes: set it as it was when they were "
            "written, or remove that directory to have it derived from the log anew"
        )


def _compare_log(store: Store, manifest: Manifest) -> None:
    segments = store.log.segments
    if manifest.end and not segments.bases and not (store.ledger is not None and store.ledger.begins_anew):
        raise Damaged(
            f"{segments.directory} holds no file, but the log of this store had reached offset {manifest.end}. If it is on a "
            "disk of its own: is that mounted? If its messages are lost for good, remove roquet.json and roquet.json.bak from "
            f"{store.root}/config: then a new log begins, and topics, groups and the numbers of queues stay"
        )
    if segments.start > manifest.start:
        log.error(
            "%s begins at offset %d, and began at %d when this store was last written: %s. The messages of the files before %s "
            "cannot be read; bring these files back from a backup while the broker is stopped",
            segments.directory, segments.start, manifest.start,
            "unless retention removed them just before the crash, files are missing" if store.crashed else "files are missing",
            file_name(segments.start),
        )  # fmt: skip


def _compare_checkpoint(store: Store, manifest: Manifest) -> None:
    times, path = times_of(store.checkpoint), store.checkpoint.path
    if manifest.fits(times):
        return
    if not store.disk.exists(path):
        log.error("%s is missing: more of the log is read again, and nothing is lost", path)
    else:
        log.warning(
            "%s says %s, and %s says that it should say %s: another program wrote here since, it is damaged, or the broker was killed "
            "between writing the two. More of the log is read again, and nothing is lost",
            path, times, store.manifest.path, manifest.checkpoint,
        )  # fmt: skip


def refuse_ledgers(disk: Disk, root: str) -> None:
    """The log of this store is another: what stands in it would be missed, and its offsets given again. Raises Damaged."""
    for name in disk.list(root):
        data = f"{root}/{name}/data"
        if name.startswith("dledger-") and any(one.isdigit() for one in disk.list(data)):
            raise Damaged(
                f"{data} holds the log of a member of a DLedger group: start this broker with enableDLegerCommitLog=true and "
                f"dLegerSelfId={name.removeprefix('dledger-')}, or move {root}/{name} away to go on without its messages"
            )


def refuse_directories(disk: Disk, *paths: str) -> None:
    """Raises Damaged."""
    for path in paths:
        if disk.is_dir(path):
            raise Damaged(f"{path} is a directory, and a file of the store should stand there: move it away, it is made again from the log")
