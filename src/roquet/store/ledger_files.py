"""DLedger's files as somebody sees them who is not their broker: which there are, and how far they are known to be committed."""

from __future__ import annotations

from roquet.errors import Damaged
from roquet.store.disk import Disk
from roquet.store.ledger_documents import LedgerCheckpoint
from roquet.wire.layout import LEDGER_UNIT
from roquet.wire.ledger_entry import read_unit


def ledger_home(disk: Disk, root: str) -> str:
    """The directory of the ledger in a store's root, "" when there is none. Raises Damaged when there are several."""
    homes = [name for name in disk.list(root) if name.startswith("dledger-") and disk.is_dir(f"{root}/{name}/data")]
    if len(homes) > 1:
        raise Damaged(f"{root} holds the ledgers of {len(homes)} members: {', '.join(homes)}; a store has one, move the others away")
    return f"{root}/{homes[0]}" if homes else ""


def committed_end(disk: Disk, home: str) -> int:
    """Where the last entry ends that the checkpoint says is committed; 0 when it says of none. It is written every few seconds."""
    index = LedgerCheckpoint(disk, home).load().committed
    place = index * LEDGER_UNIT.size
    if index < 0:
        return 0
    for name in reversed(disk.list(f"{home}/index")):
        if name.isdigit() and int(name) <= place:
            file = disk.open(f"{home}/index/{name}")
            try:
                raw = file.read(place - int(name), LEDGER_UNIT.size)
            finally:
                file.close()
            unit = read_unit(raw) if len(raw) == LEDGER_UNIT.size else None
            return unit.pos + unit.size if unit is not None and unit.index == index else 0
    return 0
