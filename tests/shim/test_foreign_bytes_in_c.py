"""Datagrams and frames of strangers, to the C parsers that read them: no read beyond, and only what is true believed."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "shim"
HEADER = struct.Struct("=II16sIIII")
MAGIC = 0x57534D31
FRAME = struct.Struct("=BBHI")
MATCH, RNDV, ACK, FRAG, PUT = 0x41, 0x42, 0x44, 0x46, 0x48
SEND, PUT_DATA = 1, 2
ANNOUNCED = 16384  # KEPT of shim/tags/announced.h


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is missing: install build-essential")
    binary = tmp_path_factory.mktemp("foreign") / "foreign"
    flags = ["-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    folders = [f"-I{SHIM / name}" for name in ("multicast", "tags")]
    sources = [SHIM / "tests" / "foreign.c", SHIM / "tags" / "announced.c", SHIM / "tags" / "stream.c"]
    subprocess.run(["gcc", *flags, *folders, "-o", binary, *sources], check=True)
    return binary


def judged(parser: Path, records: list[tuple[str, bytes]]) -> list[list[int]]:
    data = b"".join(word.encode() + len(part).to_bytes(2, "little") + part for word, part in records)
    done = subprocess.run([parser], input=data, capture_output=True, check=False, timeout=150)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [[int(number) for number in line.split()] for line in done.stdout.decode().splitlines()]


def datagram(kind: int = 1, token: bytes = bytes(16), rank: int = 3, data: bytes = b"x" * 100) -> bytes:
    return HEADER.pack(MAGIC, kind, token, 7, rank, 5, 9) + data


def frame(kind: int, rest: bytes, base: int = SEND, count: int = 0) -> bytes:
    return FRAME.pack(kind, base, count, len(rest)) + rest


def match(kind: int, context: int, tag: int, more: bytes = b"") -> bytes:
    return frame(kind, struct.pack("=BBHiiHxx", kind, 0, context, 2, tag, 1) + more)


def test_a_datagram_is_believed_only_with_the_token_a_known_kind_and_a_rank(parser: Path) -> None:
    believed = [("d", datagram(kind=kind)) for kind in (1, 2, 3, 4)]
    assert judged(parser, believed) == [[1, kind] for kind in (1, 2, 3, 4)]
    whole = datagram()
    forged = [datagram(kind=0), datagram(kind=5), datagram(rank=4), datagram(token=b"\1" + bytes(15))]
    forged += [datagram(token=bytes(15) + b"\x80"), whole[:39], whole[:3], b"", b"\0" + whole[1:]]
    forged += [random.Random(seed).randbytes(seed % 300) for seed in range(2000)]
    assert all(row == [0, 0] for row in judged(parser, [("d", data) for data in forged]))


def announcement(number: int, context: int) -> bytes:
    return match(RNDV, context, -12, struct.pack("=QQ", 123, number))


def rest_of(number: int) -> bytes:
    return frame(FRAG, struct.pack("=QQQ", 0, 4096, number))


def test_no_long_message_loses_its_tag_to_another_among_those_that_are_kept(parser: Path) -> None:
    source = random.Random(2)
    numbers = [0x5593_DFA0_0000 + 0x40 * at for at in source.sample(range(1 << 18), ANNOUNCED)]
    announced = [("s", announcement(number, at % 65536)) for at, number in enumerate(numbers)]
    order = source.sample(range(ANNOUNCED), ANNOUNCED)
    rows = judged(parser, announced + [("s", rest_of(numbers[at])) for at in order])
    assert [row[:3] for row in rows[ANNOUNCED:]] == [[1, 9, at % 65536] for at in order]


def test_the_message_that_was_not_used_for_longest_makes_room(parser: Path) -> None:
    numbers = [0x40 * at for at in range(1, 3 * ANNOUNCED)]
    records = [("s", announcement(number, number // 0x40 % 65536)) for number in numbers[:ANNOUNCED]]
    records += [("s", rest_of(numbers[0])), ("s", announcement(numbers[1], 7))]
    records += [("s", announcement(number, 5)) for number in numbers[ANNOUNCED : 2 * ANNOUNCED - 2]]
    asked = [numbers[0], numbers[1], numbers[2], numbers[ANNOUNCED - 1], numbers[ANNOUNCED]]
    rows = judged(parser, records + [("s", rest_of(number)) for number in asked])
    assert [row[:3] for row in rows[-5:]] == [[1, 9, 1], [1, 9, 7], [0, 0, 0], [0, 0, 0], [1, 9, 5]]


def test_frames_say_what_they_are_and_no_damaged_frame_is_read_beyond_its_end(parser: Path) -> None:
    request = struct.pack("=QQ", 123, 0xABCDEF)
    begun = match(RNDV, 9, -17, request)
    fragment = frame(FRAG, struct.pack("=QQ", 0, 4096) + request[8:])
    rows = judged(
        parser,
        [
            ("s", match(MATCH, 6, 5)),
            ("s", match(MATCH, 6, -12)),
            ("s", fragment),
            ("s", begun),
            ("s", fragment),
        ],
    )
    assert [row[:3] for row in rows] == [[1, 1, 6], [1, 9, 6], [0, 0, 0], [1, 14, 9], [1, 14, 9]]
    assert rows[0][3] == len(match(MATCH, 6, 5))
    source = random.Random(1)
    damaged: list[tuple[str, bytes]] = []
    for _ in range(4000):
        valid = bytearray(source.choice([begun, fragment, match(PUT, 1, 2, source.randbytes(48))]))
        for _ in range(source.randrange(4)):
            valid[source.randrange(len(valid))] = source.randrange(256)
        cut = max(FRAME.size, source.randrange(len(valid) + 1))
        damaged.append((source.choice("sr"), bytes(valid[:cut])))
    judged(parser, damaged)
