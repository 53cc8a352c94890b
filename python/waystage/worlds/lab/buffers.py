"""Room in the sockets through which Open vSwitch reads and sends packets.

Arrives: the switch program's process.
Leaves: its packet sockets with buffers that never limit anything.
Must not know: bridges, topologies.

Open vSwitch's userspace datapath sends for all ports through one AF_PACKET socket, and what waits in a
link's shaper is charged to it. With the kernel's default of 208 KiB, some twelve jumbo frames queued on
one link would make the switch drop packets to every other. Its receive sockets must hold what arrives
while the one thread is busy with the controller's rules. The sockets are reached by pidfd_getfd(2):
the system-wide default could only be changed for every program on the machine.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from waystage.worlds.lab.errors import LabError

SEND_BYTES = 256 << 20  # all links' queues together; the shapers bound what is really used
RECEIVE_BYTES = 8 << 20  # 60 ms of a 1 Gbit/s link

# asm-generic/socket.h: like SO_SNDBUF and SO_RCVBUF, but above the system's maximum; needs CAP_NET_ADMIN.
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SYS_PIDFD_GETFD = 438  # the same on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


def widen(pid: int) -> int:
    """Give the process's packet sockets room; how many there are. Raises LabError."""
    try:
        with _opened(pid) as pidfd:
            return sum(_widen_one(pidfd, int(name)) for name in _sockets(pid))
    except OSError as error:
        raise LabError(
            f"the buffers of Open vSwitch cannot be set ({error.strerror}): the lab needs the right to trace "
            "processes, CAP_SYS_PTRACE"
        ) from None


def _widen_one(pidfd: int, number: int) -> int:
    copy = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    if copy < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    with socket.socket(fileno=copy) as found:
        if found.family != socket.AF_PACKET:
            return 0
        found.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BYTES)
        found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
        return 1


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            if os.readlink(f"{folder}/{name}").startswith("socket:"):
                yield name
        except FileNotFoundError:
            continue  # closed meanwhile


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
