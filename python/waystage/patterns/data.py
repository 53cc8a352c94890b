"""The data of a communication pattern: which ranks sent how much to which, when, and by which kind of message.

Arrives: arrays.
Leaves: columns of numbers, and sums over them.
Must not know: file formats; how a pattern is recorded or used.

Row i says that in phase `phase[i]` rank `src[i]` sent `messages[i]` messages of `bytes[i]` bytes in total to rank
`dst[i]`. Rows are sorted by phase, source, destination and kind, one for each combination that occurred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from waystage.patterns.errors import PatternError
from waystage.patterns.kinds import KINDS, SIZE_UNKNOWN, Kind

U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

MATRIX_RANKS = 16384
"""A dense matrix of more ranks than this would take 2 GiB."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Columns of equal length, sorted and without repetition; the sizes of row i are those with `size_row == i`."""

    phase: U32
    src: U32
    dst: U32
    kind: U32
    messages: U64
    bytes: U64
    size_row: U32
    size_class: NDArray[np.uint8]
    size_messages: U64
    size_bytes: U64

    def __len__(self) -> int:
        return int(self.phase.size)

    @classmethod
    def from_rows(
        cls,
        phase: Iterable[int] | NDArray[Any],
        src: Iterable[int] | NDArray[Any],
        dst: Iterable[int] | NDArray[Any],
        kind: Iterable[int] | NDArray[Any],
        size_class: Iterable[int] | NDArray[Any],
        messages: Iterable[int] | NDArray[Any],
        bytes: Iterable[int] | NDArray[Any],
    ) -> Traffic:
        """From rows in any order, one for each class of sizes; equal ones are summed."""
        keys = [_column(c, np.uint32) for c in (phase, src, dst, kind, size_class)]
        counts = [_column(c, np.uint64) for c in (messages, bytes)]
        order = np.lexsort(keys[::-1])
        keys = [key[order] for key in keys]
        counts = [count[order] for count in counts]
        fine = _starts(keys)
        keys = [key[fine] for key in keys]
        counts = [_sums(count, fine) for count in counts]
        coarse = _starts(keys[:4])
        of_row = np.repeat(
            np.arange(coarse.size, dtype=np.uint32), np.diff(np.append(coarse, keys[0].size)).astype(np.int64)
        )
        known = keys[4] != SIZE_UNKNOWN
        return cls(
            phase=keys[0][coarse],
            src=keys[1][coarse],
            dst=keys[2][coarse],
            kind=keys[3][coarse],
            messages=_sums(counts[0], coarse),
            bytes=_sums(counts[1], coarse),
            size_row=of_row[known],
            size_class=keys[4][known].astype(np.uint8),
            size_messages=counts[0][known],
            size_bytes=counts[1][known],
        )

    def rows(self) -> tuple[NDArray[Any], ...]:
        """The arguments of `from_rows`: messages without sizes have the class of unknown sizes."""
        sized = np.zeros(len(self), dtype=bool)
        sized[self.size_row] = True
        more_messages, more_bytes = self.messages.copy(), self.bytes.copy()
        np.subtract.at(more_messages, self.size_row, self.size_messages)
        np.subtract.at(more_bytes, self.size_row, self.size_bytes)
        plain = np.flatnonzero(~sized | (more_messages > 0) | (more_bytes > 0))
        at = np.concatenate((self.size_row.astype(np.int64), plain))
        classes = np.concatenate((self.size_class, np.full(plain.size, SIZE_UNKNOWN, dtype=np.uint8)))
        messages = np.concatenate((self.size_messages, more_messages[plain]))
        total = np.concatenate((self.size_bytes, more_bytes[plain]))
        return self.phase[at], self.src[at], self.dst[at], self.kind[at], classes, messages, total

    def select(self, keep: NDArray[np.bool_]) -> Traffic:
        """The rows for which `keep` is true."""
        number = np.cumsum(keep, dtype=np.int64) - 1
        sizes = keep[self.size_row]
        return Traffic(
            phase=self.phase[keep],
            src=self.src[keep],
            dst=self.dst[keep],
            kind=self.kind[keep],
            messages=self.messages[keep],
            bytes=self.bytes[keep],
            size_row=number[self.size_row[sizes]].astype(np.uint32),
            size_class=self.size_class[sizes],
            size_messages=self.size_messages[sizes],
            size_bytes=self.size_bytes[sizes],
        )


@dataclass(frozen=True, eq=False)
class PatternData:
    """A pattern without its files: see `Pattern`.

    Traffic between `ranks` ranks. `received` is what the receiving ranks themselves counted, for the kinds in
    `received_kinds`; it is empty where nothing counted it.

    `phase_edges` are seconds since the start, one more than there are phases. `nodes` has a name for each rank, empty
    where it is not known. `missing` are ranks that left nothing, `unfinished` those that did not reach MPI_Finalize.
    `run` says what was run by which profiler. `warnings` say what the numbers do not hold; `differs`, where senders and
    receivers counted different bytes. `order` has the ranks as they follow one another in an archive; it is empty where
    ranks come by number.
    """

    ranks: int
    sent: Traffic
    received: Traffic
    phase_edges: NDArray[np.float64]
    nodes: tuple[str, ...]
    kinds: tuple[Kind, ...] = KINDS
    missing: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    run: Mapping[str, str] = field(default_factory=dict)
    differs: str = ""
    order: tuple[int, ...] = ()

    # -- columns of what was sent ------------------------------------------------------------------

    @property
    def phase(self) -> U32:
        return self.sent.phase

    @property
    def src(self) -> U32:
        return self.sent.src

    @property
    def dst(self) -> U32:
        return self.sent.dst

    @property
    def kind(self) -> U32:
        return self.sent.kind

    @property
    def messages(self) -> U64:
        return self.sent.messages

    @property
    def bytes(self) -> U64:
        return self.sent.bytes

    # -- sums --------------------------------------------------------------------------------------

    @property
    def phases(self) -> int:
        return int(self.phase_edges.size - 1)

    def kind_named(self, name: str) -> Kind:
        """Raises PatternError for a name that this pattern's table does not have."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise PatternError(f"there is no kind {name!r}: there are {', '.join(k.name for k in self.kinds)}")

    def counted(
        self,
        *,
        kinds: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        phase: int | None = None,
        traffic: Traffic | None = None,
    ) -> Traffic:
        """The rows of these kinds or groups and this phase; of all kinds except protocol ones by default."""
        taken = self.sent if traffic is None else traffic
        if kinds is not None:
            wanted = {self.kind_named(name).number for name in kinds}
        elif groups is not None:
            wanted = {k.number for k in self.kinds if k.group in groups and not k.protocol}
        else:
            wanted = {k.number for k in self.kinds if not k.protocol}
        keep = np.isin(taken.kind, np.array(sorted(wanted), dtype=np.uint32))
        if phase is not None:
            if not 0 <= phase < self.phases:
                raise PatternError(f"there is no phase {phase}: there are {self.phases}, numbered from 0")
            keep &= taken.phase == phase
        return taken.select(keep)

    def pairs(
        self,
        *,
        kinds: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        phase: int | None = None,
    ) -> tuple[U32, U32, U64, U64]:
        """Source, destination, messages and bytes of each pair that exchanged anything, sorted by pair."""
        chosen = self.counted(kinds=kinds, groups=groups, phase=phase)
        key = chosen.src.astype(np.uint64) * np.uint64(self.ranks) + chosen.dst
        order = np.argsort(key, kind="stable")
        first = _starts([key[order]])
        src, dst = chosen.src[order][first], chosen.dst[order][first]
        return src, dst, _sums(chosen.messages[order], first), _sums(chosen.bytes[order], first)

    def matrix(
        self,
        what: str = "bytes",
        *,
        kinds: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        phase: int | None = None,
    ) -> U64:
        """`bytes` or `messages` as a dense array, source by destination. Raises PatternError past 16,384 ranks."""
        if self.ranks > MATRIX_RANKS:
            raise PatternError(f"a matrix of {self.ranks} ranks takes too much memory: use the pairs instead")
        src, dst, messages, total = self.pairs(kinds=kinds, groups=groups, phase=phase)
        matrix = np.zeros((self.ranks, self.ranks), dtype=np.uint64)
        matrix[src, dst] = total if what == "bytes" else messages
        return matrix

    def merged_phases(self, bounds: Sequence[int]) -> Self:
        """Merge phases: the new ones begin at the old ones `bounds`, the first of which is 0."""
        starts = np.asarray(bounds, dtype=np.int64)
        if starts.size == 0 or starts[0] != 0 or np.any(np.diff(starts) <= 0) or starts[-1] >= self.phases:
            raise PatternError(f"phases cannot be joined at {list(bounds)}: there are {self.phases}")
        new = (np.searchsorted(starts, np.arange(self.phases), side="right") - 1).astype(np.uint32)
        sent, received = (self._with_phases(t, new) for t in (self.sent, self.received))
        edges = np.append(self.phase_edges[starts], self.phase_edges[-1])
        return replace(self, sent=sent, received=received, phase_edges=edges)

    @staticmethod
    def _with_phases(traffic: Traffic, new: U32) -> Traffic:
        phase, *rest = traffic.rows()
        return Traffic.from_rows(new[phase.astype(np.int64)], *rest)


def _column(values: Iterable[int] | NDArray[Any], kind: type) -> NDArray[Any]:
    return np.asarray(values if isinstance(values, np.ndarray) else list(values), dtype=kind)


def _starts(keys: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """The starts of runs of equal keys in sorted columns."""
    if keys[0].size == 0:
        return np.zeros(0, dtype=np.int64)
    changed = np.zeros(keys[0].size, dtype=bool)
    changed[0] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changed)


def _sums(values: U64, starts: NDArray[np.int64]) -> U64:
    if starts.size == 0:
        return np.zeros(0, dtype=np.uint64)
    return np.add.reduceat(values, starts).astype(np.uint64)
