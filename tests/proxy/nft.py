"""Rules of nf_tables by its netlink messages, for machines without `nft`: run as a program in the namespace that is to have them.

`nft.py redirect PORT TO [6]` turns TCP connections of this namespace to PORT to its own port TO; `nft.py tproxy PORT TO [6]` gives those that come
in for PORT, wherever they go, to a transparent socket at TO, and marks them with 1. Messages: linux/netfilter/nf_tables.h, nfnetlink.h.
"""

from __future__ import annotations

import socket
import struct
import sys

NETLINK_NETFILTER, NF_TABLES, AF_INET, AF_INET6 = 12, 10, 2, 10
REQUEST, ACK, CREATE, APPEND = 1, 4, 0x400, 0x800
NEW_TABLE, NEW_CHAIN, NEW_RULE = 0, 3, 6
BATCH_BEGIN, BATCH_END = 0x10, 0x11
OUTPUT_HOOK, PREROUTING_HOOK = 3, 0
TCP = 6


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + bytes(-length % 4)


def nested(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | 0x8000, b"".join(parts))


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">I", value & 0xFFFFFFFF))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def expression(name: str, *data: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *data))


def value(kind: int, data: bytes) -> bytes:
    return nested(kind, attribute(1, data))


def message(kind: int, flags: int, family: int, resource: int, body: bytes, sequence: int) -> bytes:
    payload = struct.pack(">BBH", family, 0, resource) + body
    return struct.pack("=IHHII", 16 + len(payload), kind, REQUEST | flags, sequence, 0) + payload


def rules(kind: str, port: int, to: int, family: int) -> list[bytes]:
    is_tcp = [
        expression("meta", number(1, 1), number(2, 16)),
        expression("cmp", number(1, 1), number(2, 0), value(3, bytes([TCP]))),
        expression("payload", number(1, 1), number(2, 2), number(3, 2), number(4, 2)),
        expression("cmp", number(1, 1), number(2, 0), value(3, struct.pack(">H", port))),
        expression("immediate", number(1, 1), value(2, struct.pack(">H", to))),
    ]
    if kind == "redirect":
        return [*is_tcp, expression("redir", number(1, 1))]
    mark = [
        expression("immediate", number(1, 2), value(2, struct.pack("=I", 1))),
        expression("meta", number(2, 3), number(3, 2)),
    ]
    return [*is_tcp, expression("tproxy", number(1, family), number(3, 1)), *mark]


def install(kind: str, port: int, to: int, family: int) -> None:
    """Raises OSError where the kernel has no such rules."""
    hook, priority, chain = (
        (OUTPUT_HOOK, -100, "nat") if kind == "redirect" else (PREROUTING_HOOK, -150, "filter")
    )
    table = text(1, "waystage_test")
    bodies = [
        (NEW_TABLE, CREATE, table),
        (
            NEW_CHAIN,
            CREATE,
            table + text(3, "c") + nested(4, number(1, hook), number(2, priority)) + text(7, chain),
        ),
        (NEW_RULE, CREATE | APPEND, table + text(2, "c") + nested(4, *rules(kind, port, to, family))),
    ]
    batch = message(BATCH_BEGIN, 0, 0, NF_TABLES, b"", 1)
    for sequence, (what, flags, body) in enumerate(bodies, start=2):
        batch += message(NF_TABLES << 8 | what, flags | ACK, family, 0, body, sequence)
    batch += message(BATCH_END, 0, 0, NF_TABLES, b"", len(bodies) + 2)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.settimeout(10)
        netlink.sendto(batch, (0, 0))
        answered = 0
        while answered < len(bodies):
            answer = netlink.recv(1 << 16)
            while answer:
                length, what = struct.unpack_from("=IH", answer)
                error = struct.unpack_from("=i", answer, 16)[0]
                if what == 2 and error:
                    raise OSError(-error, f"nf_tables does not take the rules for {kind}")
                answered += 1
                answer = answer[(length + 3) & ~3 :]


if __name__ == "__main__":
    install(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), AF_INET6 if sys.argv[4:] == ["6"] else AF_INET)
