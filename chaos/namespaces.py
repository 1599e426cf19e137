"""Machines that are network namespaces, each with an address of its own; and directories that are file systems of their own.

Nothing here has a name in the system: namespaces are held by file descriptors, devices by theirs, and file systems are mounted
in a mount namespace of this process alone. So all of it goes with the process, however it ends, and there is nothing to clear up.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS, CLONE_NEWNET = 0x0002_0000, 0x4000_0000
MS_REC, MS_PRIVATE, MS_REMOUNT = 0x4000, 1 << 18, 0x20
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU = 0x8913, 0x8914, 0x8916, 0x891C, 0x8922
IFF_UP = 0x1
PR_SET_PDEATHSIG = 1

TUN = Path("/dev/net/tun")
OWN_NETWORK = "/proc/thread-self/ns/net"
DEVICE = b"machine0"
NETWORK = ipaddress.ip_network("10.77.0.0/24")
MTU = 1_500

LIBC = ctypes.CDLL(None, use_errno=True)


class Impossible(Exception):
    """This system, or this user, cannot make machines. The text says what is missing."""


def checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    checked(LIBC.unshare(flags), "unshare")


def setns(descriptor: int) -> None:
    """Only the calling thread goes there; what it starts meanwhile begins there."""
    checked(LIBC.setns(descriptor, CLONE_NEWNET), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    checked(LIBC.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()), f"mount {target}")


def die_with_parent() -> None:
    """The system kills this process when the thread ends that started it."""
    checked(LIBC.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def prepare() -> None:
    """Once, before there are threads: from now on this process sees mounts of its own. Raises Impossible."""
    if not TUN.exists():
        raise Impossible(f"there is no {TUN}: machines are network namespaces that a program connects through it (modprobe tun)")
    try:
        unshare(CLONE_NEWNS)
        mount("none", "/", "none", MS_REC | MS_PRIVATE, "")
    except OSError as error:
        raise Impossible(f"namespaces cannot be made here ({error.strerror}): run it as root, in a container with CAP_SYS_ADMIN") from error


def mount_memory(directory: Path, size: int) -> None:
    """A file system of `size` bytes that nobody but this process and its children sees."""
    directory.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", str(directory), "tmpfs", 0, f"size={size},mode=755")


def resize_memory(directory: Path, size: int) -> None:
    """Raises OSError when more than that is used."""
    mount("tmpfs", str(directory), "tmpfs", MS_REMOUNT, f"size={size}")


class Machine:
    """A network namespace with one device. `device` is its other end: what is read from it was sent there, what is written arrives."""

    def __init__(self, name: str, address: str) -> None:
        """Raises Impossible."""
        self.name, self.address = name, address
        self.packed = ipaddress.ip_address(address).packed
        before = os.open(OWN_NETWORK, os.O_RDONLY)
        try:
            unshare(CLONE_NEWNET)
            self._namespace = os.open(OWN_NETWORK, os.O_RDONLY)
            self.device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(self.device, TUNSETIFF, struct.pack("16sH22x", DEVICE, IFF_TUN | IFF_NO_PI))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
                raise_device(handle, b"lo")
                set_device(handle, SIOCSIFADDR, packed_address(self.packed))
                set_device(handle, SIOCSIFNETMASK, packed_address(NETWORK.netmask.packed))
                set_device(handle, SIOCSIFMTU, struct.pack("i", MTU))
                raise_device(handle, DEVICE)
        except OSError as error:
            raise Impossible(f"machine {name} cannot be made ({error}): run it as root, in a container with CAP_NET_ADMIN") from error
        finally:
            setns(before)
            os.close(before)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets and processes that this thread makes meanwhile belong to the machine."""
        before = os.open(OWN_NETWORK, os.O_RDONLY)
        try:
            setns(self._namespace)
            yield
        finally:
            setns(before)
            os.close(before)

    def close(self) -> None:
        os.close(self.device)
        os.close(self._namespace)


def set_device(handle: socket.socket, what: int, value: bytes, device: bytes = DEVICE) -> None:
    fcntl.ioctl(handle, what, struct.pack("16s24s", device, value))


def raise_device(handle: socket.socket, device: bytes) -> None:
    answer = fcntl.ioctl(handle, SIOCGIFFLAGS, struct.pack("16s24x", device))
    (flags,) = struct.unpack_from("H", answer, 16)
    set_device(handle, SIOCSIFFLAGS, struct.pack("H", flags | IFF_UP), device)


def packed_address(packed: bytes) -> bytes:
    """As sockaddr_in has it."""
    return struct.pack("HH4s8x", socket.AF_INET, 0, packed)
