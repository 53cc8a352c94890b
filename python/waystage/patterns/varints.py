"""Whole numbers in as few bytes as they need: LEB128, columns at a time.

Arrives: arrays of unsigned 64-bit numbers, or bytes.
Leaves: bytes, or arrays.
Must not know: what the numbers mean.

Seven bits a byte, lowest first; the top bit says that more follow. A number has at most ten bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 10
"""64 bits in groups of seven."""

U64 = NDArray[np.uint64]
I64 = NDArray[np.int64]


class VarintError(ValueError):
    """Bytes that are no column of numbers."""


def encode(values: U64) -> bytes:
    """The numbers one after another."""
    values = np.ascontiguousarray(values, dtype=np.uint64)
    if values.size == 0:
        return b""
    shifts = np.arange(0, 7 * MAX_BYTES, 7, dtype=np.uint64)
    # A number's length is that of its highest group that is not zero; the number 0 has one byte.
    lengths = np.ones(values.size, dtype=np.int64)
    for at in range(1, MAX_BYTES):
        lengths += (values >> shifts[at]) != 0
    width = int(lengths.max())
    groups = ((values[:, None] >> shifts[None, :width]) & np.uint64(0x7F)).astype(np.uint8)
    position = np.arange(width)
    groups[position[None, :] < lengths[:, None] - 1] |= 0x80
    return groups[position[None, :] < lengths[:, None]].tobytes()


def decode(data: bytes, count: int) -> U64:
    """Exactly `count` numbers that fill `data`. Raises VarintError."""
    raw = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if ends.size != count or (raw.size > 0 and raw[-1] >= 0x80) or (count == 0 and raw.size > 0):
        raise VarintError(f"a column should hold {count} numbers and holds {ends.size}")
    if count == 0:
        return np.zeros(0, dtype=np.uint64)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > MAX_BYTES or (longest == MAX_BYTES and np.any(raw[ends[lengths == MAX_BYTES]] > 1)):
        raise VarintError("a number has more than 64 bits")
    place = np.arange(raw.size, dtype=np.int64) - np.repeat(starts, lengths)
    parts = (raw & 0x7F).astype(np.uint64) << (place * 7).astype(np.uint64)
    return np.bitwise_or.reduceat(parts, starts)


def zigzag(values: I64) -> U64:
    """Signed numbers as unsigned ones that stay small: 0, -1, 1, -2 are 0, 1, 2, 3."""
    return ((values << 1) ^ (values >> 63)).astype(np.uint64)


def unzigzag(values: U64) -> I64:
    """The reverse of `zigzag`."""
    return (values >> np.uint64(1)).astype(np.int64) ^ -(values & np.uint64(1)).astype(np.int64)
