"""Captures tagged packets that enter devices; as a separate process, so that what it takes disturbs nothing timed.

Arguments: the file to append to, the number of a core switch's device, its name, and so on in pairs; in the namespace
of the devices. Writes a record `RECORD` a packet: the kernel's time of its arrival, ns since 1970; the number; the
first octet of its destination. Runs until SIGTERM. Start it with `python -P`: modules of this folder have names of the
standard library's.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import time

from waystage.interconnect.tags import MARKER

RECORD = struct.Struct("<qBB")
SO_TIMESTAMPNS, SO_RCVBUFFORCE, SO_ATTACH_FILTER = 35, 33, 26
ETH_P_ALL = 0x0003
RECEIVE_BYTES = 16 << 20
BETWEEN_S = 0.004
"""Between two readings of the devices: times are the kernel's."""

_OUTGOING = 4  # PACKET_OUTGOING, if_packet.h
_LOAD_TYPE = 0xFFFFF000 + 4  # SKF_AD_OFF + SKF_AD_PKTTYPE
_FILTER = (
    (0x20, 0, 0, _LOAD_TYPE),  # ld  type of the packet
    (0x15, 4, 0, _OUTGOING),  # jeq outgoing: drop
    (0x30, 0, 0, 0),  # ldb the destination's first octet
    (0x54, 0, 0, 0b111),  # and
    (0x15, 0, 1, MARKER),  # jeq the tags' marker
    (0x06, 0, 0, 64),  # pass
    (0x06, 0, 0, 0),  # drop
)
"""Classic BPF, `struct sock_filter`: code, jump if true, if false, operand."""


def main(file: str, pairs: list[str]) -> None:
    opened = [(int(number), _open(device)) for number, device in zip(pairs[::2], pairs[1::2], strict=True)]
    out = os.open(file, os.O_WRONLY | os.O_APPEND)
    while True:
        found = b"".join(record for number, device in opened for record in _arrived(number, device))
        if found:
            os.write(out, found)
        time.sleep(BETWEEN_S)


def _open(device: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    rows = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *row) for row in _FILTER))
    program = struct.pack("HP", len(_FILTER), ctypes.addressof(rows))
    opened.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
    opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    opened.bind((device, ETH_P_ALL))
    opened.setblocking(False)
    return opened


def _arrived(number: int, device: socket.socket) -> list[bytes]:
    found: list[bytes] = []
    while True:
        try:
            frame, ancillary, _, _ = device.recvmsg(1, 64)
        except BlockingIOError:
            return found
        for _, kind, data in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, ns = struct.unpack("qq", data[:16])
                found.append(RECORD.pack(seconds * 10**9 + ns, number, frame[0]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
