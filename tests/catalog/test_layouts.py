"""Layouts from Python and from the command line: examples worked by hand, and what errors say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness import Waystage
from waystage._native import LayoutError, parse_layout, read_layout
from waystage.cli.common import ExitCode

V1 = bytes.fromhex(
    "d00bd10b01000000110000000000000001040000020000000000100002000300"
    "640000000000000000000000000000000000000007000000"
    "65000000000000000000000000000000000000000c000000"
)
"""lustre.lov of a file in stripes of 1 MiB on targets 7 and 12, layout generation 3."""

CEPH = b"stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data"
GLUSTER = (
    b"(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> "
    b"<POSIX(/b/1):n2:/b/1/caf\xe9> <POSIX(/b/0):n1:/b/0/caf\xe9>))\0"
)
MIB = 1 << 20


def test_a_lustre_file_is_where_its_stripes_go() -> None:
    layout = parse_layout("lustre", V1, 3 * MIB + 5)
    assert (layout["kind"], layout["generation"], layout["template"]) == ("lustre", 3, False)
    assert layout["targets"] == ["ost:7", "ost:12"]
    assert [(e["target"], e["offset"], e["object_offset"], e["length"]) for e in layout["extents"]] == [
        ("ost:7", 0, 0, MIB),
        ("ost:12", MIB, 0, MIB),
        ("ost:7", 2 * MIB, MIB, MIB),
        ("ost:12", 3 * MIB, MIB, 5),
    ]
    assert [(o["target"], o["bytes"]) for o in layout["objects"]] == [("ost:7", 2 * MIB), ("ost:12", MIB + 5)]
    assert [o["id"] for o in layout["components"][0]["objects"]] == ["0x64:0x0", "0x65:0x0"]


def test_extents_are_counted_and_no_more_listed_than_asked_for() -> None:
    layout = parse_layout("lustre", V1, 2**63, limit=3)
    assert layout["extent_count"] == 2**43
    assert (len(layout["extents"]), len(layout["objects"])) == (3, 2)


def test_each_copy_is_listed_or_the_best_alone() -> None:
    every = parse_layout("gluster", GLUSTER, 100)
    assert every["mirrors"] == [0, 1] and every["extent_count"] == 2
    assert [o["id"] for c in every["components"] for o in c["objects"]] == [b"/b/0/caf\xe9", b"/b/1/caf\xe9"]
    best = parse_layout("gluster", GLUSTER, 100, mirrors="best")
    assert [e["target"] for e in best["extents"]] == ["brick:n1:/b/0"]
    sharded = parse_layout("gluster", GLUSTER, 10 * MIB, block_size=4 * MIB, mirrors="1")
    assert [(e["target"], e["flags"]) for e in sharded["extents"]] == [
        ("brick:n2:/b/1", []),
        (None, ["unlocated"]),
        (None, ["unlocated"]),
    ]


@pytest.mark.parametrize(
    ("kind", "data", "target"),
    [
        ("ceph", CEPH, "pool:cephfs_data"),
        ("gfarm", b"node1 node2\n", "host:node1"),
        ("local", b"8:1", "device:8:1"),
        ("beegfs", bytes.fromhex("01000000 00000800 01000000") + b"\0\0\x65\0\1\0stor".ljust(262, b"\0"),
         "beegfs:101@stor"),
    ],
)  # fmt: skip
def test_other_file_systems_name_their_targets(kind: str, data: bytes, target: str) -> None:
    assert parse_layout(kind, data, 10, mirrors="best")["extents"][0]["target"] == target


def test_what_is_no_layout_has_a_kind_of_error() -> None:
    for data, kind in ((V1[:50], "truncated"), (b"\xd0\x0b\xd2\x0b", "unsupported")):
        with pytest.raises(LayoutError) as caught:
            parse_layout("lustre", data, 1)
        assert caught.value.kind == kind
    with pytest.raises(ValueError, match="lustre, ceph"):
        parse_layout("ext4", b"", 1)
    with pytest.raises(ValueError, match="neither all, best"):
        parse_layout("lustre", V1, 1, mirrors="some")


def test_a_file_of_this_machine_is_on_its_device(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"\xff name")
    file.write_bytes(b"x" * 5000)
    device = file.stat().st_dev
    layout = read_layout(file)
    assert layout is not None and layout["size"] == 5000
    assert layout["targets"] == [f"device:{os.major(device)}:{os.minor(device)}"]


def test_what_is_no_file_has_no_layout_and_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert read_layout(fifo) is None
    assert read_layout(Path("/dev/null")) is None
    with pytest.raises(FileNotFoundError, match="absent"):
        read_layout(tmp_path / "absent")


def test_the_command_shows_objects_and_extents(waystage: Waystage) -> None:
    ran = waystage("catalog", "layout", "--hex", V1.hex(), "--size", str(3 * MIB + 5)).expect()
    assert [line.split()[0] for line in ran.out.splitlines()[5:]] == ["target", "ost:7", "ost:12"]
    ran = waystage(
        "catalog", "layout", "--hex", V1.hex(), "--size", str(9 * MIB), "--extents", "--limit", "2"
    )
    assert "and 7 more extents" in ran.out
    ran = waystage("catalog", "layout", "--kind", "gluster", "--hex", GLUSTER.hex(), "--json")
    assert json.loads(ran.out)["components"][0]["objects"][0]["id"] == "/b/0/caf\\xe9"


def test_the_command_says_what_is_wrong(waystage: Waystage, tmp_path: Path) -> None:
    for arguments, code, text in (
        ((), ExitCode.USAGE, "PATH or --hex"),
        (("--hex", "zz"), ExitCode.BAD_INPUT, "not hexadecimal"),
        (("--hex", V1[:50].hex()), ExitCode.BAD_INPUT, "--hex: lustre.lov: 80 bytes are needed"),
        (("--hex", V1.hex(), "--mirrors", "some"), ExitCode.USAGE, "neither all, best"),
        (("--hex", V1.hex(), "--size", str(2**64)), ExitCode.BAD_INPUT, "larger than any file"),
        ((str(tmp_path / "absent"),), ExitCode.BAD_INPUT, "absent: No such file"),
        ((str(tmp_path),), ExitCode.FAILED, "reports no layout"),
    ):
        ran = waystage("catalog", "layout", *arguments)
        assert ran.code == code and text in ran.err, (arguments, ran.err)
        assert ran.err.count("\n") == 1
