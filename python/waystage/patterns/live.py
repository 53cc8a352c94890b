"""What a rank had counted when it was killed: its counters' memory, which is a file (shim/mpi/live.h).

Arrives: such a file's bytes, perhaps damaged.
Leaves: the rank's section, as it would have left it.
Must not know: how a rank ended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from waystage.patterns import varints
from waystage.patterns.encode import encode_rank, end_section
from waystage.patterns.errors import PatternError
from waystage.patterns.layout import FINISHED, PatternFile, RankPart
from waystage.patterns.parse import parse_file

MAGIC = b"WAYLIVE\1"
HEADER = struct.Struct("=8sIIQII256s")
HEAD_AT, HEAD_BYTES = 512, 7680
SLOTS_AT, SLOTS = 8192, 1024
TABLE = struct.Struct("=QQQQ")
"""Rows less one, rows used, doublings of phases, the table's own place in the file."""

ELSEWHERE = 1
MOST_DOUBLINGS = 40

# The fields of a key, from shim/mpi/record.h: shift and bits.
SIZE, PEER, KIND, PHASE = (0, 6), (6, 26), (32, 8), (40, 20)


def is_live(data: bytes) -> bool:
    """Whether these are a rank's counters; those of one that had not begun to count are empty or begin with zeros."""
    return data[: len(MAGIC)] == MAGIC


def parse_live(data: bytes, name: str) -> PatternFile:
    """The rank's part. Raises PatternError, whose message begins with `name`."""
    try:
        return _parse(data, name)
    except (struct.error, ValueError) as error:
        raise PatternError(f"{name} is damaged: {error}") from None


def _parse(data: bytes, name: str) -> PatternFile:
    _, rank, flags, duration_ns, head_bytes, slots, node = HEADER.unpack_from(data)
    if head_bytes > HEAD_BYTES or len(data) < SLOTS_AT + 16 * SLOTS:
        raise ValueError("it is shorter than its header says")
    file = parse_file(data[HEAD_AT : HEAD_AT + head_bytes] + end_section(), name)
    if rank >= file.ranks:
        raise ValueError(f"it is of rank {rank}, and there were {file.ranks}")
    places = np.frombuffer(data, np.uint64, 2 * min(slots, SLOTS), SLOTS_AT).reshape(-1, 2)
    tables = [list(_tables(data, places[:, direction].tolist())) for direction in (0, 1)]
    doublings = max((doubled for some in tables for doubled, _ in some), default=0)
    sent, received = (_rows(some, doublings) for some in tables)
    lost = slots > SLOTS or bool((places == ELSEWHERE).any())
    if not flags & FINISHED:
        last = max((int(rows[0][-1]) for rows in (sent, received) if rows[0].size), default=0)
        duration_ns = (last + 1) * file.interval_ns << doublings
    warnings = ("some of what it counted was not kept when it was killed",) if lost else ()
    text = node.split(b"\0", 1)[0].decode("utf-8", "replace")
    part = RankPart(rank, text, flags, doublings, min(duration_ns, (1 << 64) - 1), warnings, sent, received)
    return PatternFile(
        file.ranks, file.start_ns, file.interval_ns, file.run, file.kinds, (), (), {rank: encode_rank(part)}
    )


def _tables(data: bytes, places: list[int]) -> Iterator[tuple[int, varints.U64]]:
    """Doublings and rows (key, messages, bytes) of the tables that are in the file."""
    left = len(data)
    for place in places:
        if place <= ELSEWHERE:
            continue
        if place > len(data) - TABLE.size:
            raise ValueError(f"there is no table at byte {place}")
        mask, _, doublings, own = TABLE.unpack_from(data, place)
        if own != place or doublings > MOST_DOUBLINGS or 24 * (mask + 1) > len(data) - place - TABLE.size:
            raise ValueError(f"there is no table at byte {place}")
        # Tables share no byte: those that do would be read many times over.
        left -= 24 * (mask + 1)
        if left < 0:
            raise ValueError(f"the table at byte {place} is within another")
        rows = np.frombuffer(data, np.uint64, 3 * (mask + 1), place + TABLE.size).reshape(-1, 3)
        yield doublings, rows[(rows[:, 0] != 0) & (rows[:, 1] != 0)]


def _rows(tables: list[tuple[int, varints.U64]], doublings: int) -> tuple[varints.U64, ...]:
    """Columns phase, peer, kind, size class, messages, bytes of all threads, sorted by the first four."""
    if not tables:
        return tuple(np.zeros(0, np.uint64) for _ in range(6))
    rows = np.concatenate([rows for _, rows in tables])
    halvings = np.concatenate([np.full(len(rows), doublings - doubled) for doubled, rows in tables])
    phase = _field(rows[:, 0], PHASE) >> halvings.astype(np.uint64)
    rest = rows[:, 0] & np.uint64((1 << PHASE[0]) - 1)
    keys, which = np.unique((phase << np.uint64(PHASE[0])) | rest, return_inverse=True)
    sums = np.zeros((2, keys.size), np.uint64)
    for column in (0, 1):
        np.add.at(sums[column], which, rows[:, 1 + column])
    return (*(_field(keys, field) for field in (PHASE, PEER, KIND, SIZE)), sums[0], sums[1])


def _field(keys: varints.U64, field: tuple[int, int]) -> varints.U64:
    shift, bits = field
    return (keys >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
