"""Two machines that talk, for test_machines.py: a process of its own, since it takes namespaces of its own. Prints what it saw as JSON."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from random import Random

from chaos.links import Links, Trouble, both_ways, outward
from chaos.namespaces import Impossible, Machine, mount_memory, prepare, resize_memory


def echo(server: socket.socket) -> None:
    line, _ = server.accept()
    while data := line.recv(65_536):
        line.sendall(data)


def round_trip(line: socket.socket) -> float:
    """Seconds; -1 when nothing came back within the socket's timeout."""
    began = time.monotonic()
    line.sendall(b"x" * 100)
    try:
        line.recv(100)
    except TimeoutError:
        return -1
    return time.monotonic() - began


def main(directory: Path) -> int:
    try:
        prepare()
        one, other = Machine("one", "10.77.0.1"), Machine("other", "10.77.0.2")
    except Impossible as error:
        print(error)
        return 2
    seen: dict[str, object] = {}
    with one.inside():
        server = socket.create_server((one.address, 5_000))
        try:
            socket.create_server((other.address, 5_000))
        except OSError as error:
            seen["the other's address"] = errno.errorcode[error.errno or 0]
    threading.Thread(target=echo, args=(server,), daemon=True).start()
    with Links([one, other], Random(1)) as links:
        with other.inside():
            line = socket.create_connection((one.address, 5_000), 30)
        seen["plain"] = round_trip(line)
        links.set(both_ways("one", ["other"], Trouble(delay_s=0.2)))
        seen["delayed"] = round_trip(line)
        links.set(outward("one", ["other"], Trouble(cut=True)))
        line.settimeout(1.0)
        seen["cut"] = round_trip(line)
        links.set([])
        line.settimeout(30)
        seen["healed"] = len(line.recv(100))
        links.set(both_ways("one", ["other"], Trouble(loss=0.15)))
        seen["lossy"] = [round_trip(line) >= 0 for _ in range(20)]
        seen["dropped"] = links.dropped
    mount_memory(directory / "disk", 1 << 20)
    seen["free"] = os.statvfs(directory / "disk").f_bavail * os.statvfs(directory / "disk").f_bsize
    (directory / "disk" / "file").write_bytes(bytes(4_096))
    resize_memory(directory / "disk", 4_096)
    try:
        (directory / "disk" / "other").write_bytes(bytes(4_096))
    except OSError as error:
        seen["full"] = errno.errorcode[error.errno or 0]
    print(json.dumps(seen), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
