"""A BPF program that does nothing at an interface's egress: what the kernel's own count of a program's time costs.

Arrives: network namespaces and an interface.
Leaves: nanoseconds and runs of the program, as the kernel counts them.
Must not know: tags.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
_PROG_LOAD, _LINK_CREATE = 5, 28
_SCHED_CLS, _TCX_EGRESS = 3, 47
_NEW_NET = 0x40000000
_NOTHING = struct.pack("=BBhi", 0xB7, 0, 0, -1) + struct.pack("=BBhi", 0x95, 0, 0, 0)
"""r0 = TCX_NEXT; exit."""

_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, *words: int) -> int:
    attributes = (ctypes.c_uint32 * 32)(*words)
    result: int = _libc.syscall(_SYS_BPF, command, ctypes.byref(attributes), ctypes.sizeof(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), "bpf")
    return result


def _address(value: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
    place = ctypes.addressof(value)
    return place & 0xFFFFFFFF, place >> 32


@contextmanager
def nothing_at(namespaces: Sequence[Path], interface: str) -> Iterator[int]:
    """The program's descriptor; it is attached in every namespace meanwhile. Raises OSError where the kernel cannot."""
    code, licence = ctypes.create_string_buffer(_NOTHING), ctypes.create_string_buffer(b"GPL")
    held = [_bpf(_PROG_LOAD, _SCHED_CLS, len(_NOTHING) // 8, *_address(code), *_address(licence))]
    errors: list[OSError] = []

    def attach() -> None:
        try:
            for namespace in namespaces:
                with open(namespace, "rb") as there:
                    if _libc.setns(there.fileno(), _NEW_NET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
                index: int = _libc.if_nametoindex(interface.encode())
                held.append(_bpf(_LINK_CREATE, held[0], index, _TCX_EGRESS))
        except OSError as error:
            errors.append(error)

    try:
        thread = threading.Thread(target=attach)  # a thread's namespace ends with it
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        yield held[0]
    finally:
        for descriptor in held:
            os.close(descriptor)


def time_of(descriptor: int) -> tuple[int, int]:
    """Nanoseconds and runs of a program of this process, where the kernel counts them; 0, 0 of another descriptor."""
    try:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    except OSError:
        return 0, 0
    words = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(words.get("run_time_ns", 0)), int(words.get("run_cnt", 0))
