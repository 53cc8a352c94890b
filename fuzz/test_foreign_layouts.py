"""What file systems say of files, damaged: a layout, or LayoutError, and nothing else.

The parsers' own properties are tested beside them in Rust; this goes the way that a user's bytes go. `make fuzz`
tries 20,000 inputs each ($WAYSTAGE_FUZZ_EXAMPLES), `make test` a hundred.
"""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from waystage._native import LayoutError, parse_layout

EXAMPLES = int(os.environ.get("WAYSTAGE_FUZZ_EXAMPLES", "100"))


def plain(targets: int, pattern: int = 1) -> bytes:
    header = struct.pack("<IIQQIHH", 0x0BD10BD0, pattern, 17, 0x200000401, 1 << 20, targets, 3)
    return header + b"".join(struct.pack("<QQII", 100 + i, 0, 0, i) for i in range(targets))


def composite(mirrors: int, parts: int) -> bytes:
    entries, blobs = b"", b""
    bodies_at = 32 + 48 * mirrors * parts
    for mirror in range(mirrors):
        for part in range(parts):
            blob = plain(part + 1)
            end = (part + 1) << 26 if part < parts - 1 else 2**64 - 1
            entries += struct.pack("<IIQQIIIQI", mirror << 16 | part, 0x10, part << 26, end,
                                   bodies_at + len(blobs), len(blob), 0, 0, 0)  # fmt: skip
            blobs += blob
    size = bodies_at + len(blobs)
    return (
        struct.pack("<IIIHHHxxxxxxxxxxxxxx", 0x0BD60BD0, size, 7, 0, mirrors * parts, mirrors - 1)
        + entries
        + blobs
    )


SEEDS = {
    "lustre": (plain(2), plain(1, 0x80000001), composite(2, 3)),
    "ceph": (b"stripe_unit=65536 stripe_count=3 object_size=131072 pool=p pool_namespace=n",),
    "gluster": (
        b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b/1):n:/b/1/f> <POSIX(/b/0):n:/b/0/f>))\0",
        b"(<DISTRIBUTE:v-dht> (<EC:v-disperse-0> <POSIX(/b/0):n:/b/0/f> <POSIX(/b/1):n:/b/1/f>))\0",
    ),
    "gfarm": (b"file:\nnode1 node2.example\n",),
    "beegfs": (struct.pack("<IIHxx", 1, 1 << 19, 2) + 2 * struct.pack("<HHH256s", 0, 101, 1, b"stor"),),
    "local": (b"259:1",),
}


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_a_seed_is_a_layout(kind: str) -> None:
    for seed in SEEDS[kind]:
        assert parse_layout(kind, seed, 1000, mirrors="best")["extents"]


@st.composite
def damaged(draw: st.DrawFn, kind: str) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS[kind])))
    for _ in range(draw(st.integers(0, 6))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data)))
        data[at:at] = draw(st.binary(max_size=40))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


@pytest.mark.parametrize("kind", sorted(SEEDS))
def test_damaged_answers_are_layouts_or_errors(kind: str) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=damaged(kind), size=st.integers(0, 2**64 - 1), mirrors=st.sampled_from(["all", "best"]))
    def check(data: bytes, size: int, mirrors: str) -> None:
        try:
            layout = parse_layout(kind, data, size, mirrors=mirrors, limit=50)
        except LayoutError:
            return
        at: dict[int, int] = {}
        for extent in layout["extents"]:
            mirror = extent["mirror"] if mirrors == "all" else 0
            assert extent["offset"] == at.get(mirror, 0) and extent["length"] > 0
            at[mirror] = extent["offset"] + extent["length"]
            assert extent["target"] is not None or extent["flags"]
        assert all(end <= size for end in at.values())
        assert len(layout["components"]) <= 1 + len(data)

    check()
