"""Traces of the original profiler: a `tar.gz` with a JSON file for each rank.

Arrives: the archive's path.
Leaves: a pattern.
Must not know: other formats.

A rank's file has `rank`, `n_procs`, `processor_name`, and for each peer `tx_bytes`, `tx_messages`, `rx_bytes` and
`rx_messages`. There is one phase and one kind; sizes are recorded for a rank as a whole and not by peer, so they are not
taken over.
"""

from __future__ import annotations

import tarfile
import zlib
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from waystage.patterns.errors import PatternError
from waystage.patterns.kinds import KINDS, SIZE_UNKNOWN, UNSPLIT
from waystage.patterns.layout import MOST_RANKS, missing_message
from waystage.patterns.pattern import Pattern, Traffic

MOST_BYTES_A_RANK = 1 << 28
"""A rank's file of 100,000 ranks has some megabytes; past this it is none."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class _RankFile(msgspec.Struct):
    rank: Count
    n_procs: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    tx_bytes: list[Count]
    tx_messages: list[Count]
    rx_bytes: list[Count] = []
    rx_messages: list[Count] = []
    processor_name: str = ""
    description: str = ""


def read_original(path: Path, *, allow_missing: bool) -> Pattern:
    """Raises PatternError where the archive is damaged, or lacks ranks and `allow_missing` is false."""
    by_rank: dict[int, _RankFile] = {}
    decoder = msgspec.json.Decoder(_RankFile)
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                if not member.isfile() or not member.name.endswith(".json"):
                    continue
                if member.size > MOST_BYTES_A_RANK:
                    raise PatternError(f"{path}: {member.name} is too large for a rank's file")
                stream = archive.extractfile(member)
                if stream is None:
                    continue
                found = _checked(decoder, stream.read(), f"{path}: {member.name}")
                if found.rank in by_rank:
                    raise PatternError(f"{path}: rank {found.rank} is there twice")
                by_rank[found.rank] = found
    except (tarfile.TarError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, PatternError):
            raise
        raise PatternError(f"{path} is no readable tar.gz: {str(error)[:100] or 'it is damaged'}") from None
    except OSError as error:
        # A damaged gzip stream is an OSError without a number.
        raise PatternError(f"{path} cannot be read: {error.strerror or str(error)[:100]}") from None
    return _pattern(by_rank, path, allow_missing)


def _checked(decoder: msgspec.json.Decoder[_RankFile], data: bytes, where: str) -> _RankFile:
    try:
        found = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PatternError(f"{where} is no rank's file: {str(error)[:100]}") from None
    if found.rank >= found.n_procs:
        raise PatternError(f"{where} is of rank {found.rank}, and there are {found.n_procs} ranks")
    for name in ("tx_bytes", "tx_messages", "rx_bytes", "rx_messages"):
        length = len(getattr(found, name))
        if length != found.n_procs and not (name.startswith("rx") and length == 0):
            raise PatternError(f"{where}: {name} has {length} entries for {found.n_procs} ranks")
    if len(found.rx_bytes) != len(found.rx_messages):
        raise PatternError(f"{where}: rx_bytes and rx_messages differ in length")
    return found


def _pattern(by_rank: dict[int, _RankFile], path: Path, allow_missing: bool) -> Pattern:
    if not by_rank:
        raise PatternError(f"{path} holds no rank's JSON file")
    sizes = {found.n_procs for found in by_rank.values()}
    if len(sizes) > 1:
        raise PatternError(f"{path} mixes runs of {' and '.join(map(str, sorted(sizes)))} ranks")
    ranks = sizes.pop()
    if len(by_rank) < ranks and not allow_missing:
        raise PatternError(missing_message(str(path), ranks, by_rank))
    description = by_rank[min(by_rank)].description
    return Pattern(
        ranks=ranks,
        sent=_traffic(by_rank, sending=True),
        received=_traffic(by_rank, sending=False),
        phase_edges=np.array([0.0, 0.0]),
        nodes=tuple(by_rank[r].processor_name if r in by_rank else "" for r in range(ranks)),
        kinds=(UNSPLIT, *KINDS[1:]),
        missing=tuple(r for r in range(ranks) if r not in by_rank),
        warnings=(
            "sizes of messages were recorded for each rank and not for each pair: there are none here",
        ),
        run={"profiler": description} if description else {},
    )


def _traffic(by_rank: dict[int, _RankFile], *, sending: bool) -> Traffic:
    own: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    peer, messages, total = list(own), list(own), list(own)
    for rank, found in by_rank.items():
        lists = (found.tx_messages, found.tx_bytes) if sending else (found.rx_messages, found.rx_bytes)
        counts, sums = (np.asarray(values, dtype=np.int64) for values in lists)
        there = np.flatnonzero((counts > 0) | (sums > 0))
        own.append(np.full(there.size, rank, dtype=np.int64))
        peer.append(there)
        messages.append(counts[there])
        total.append(sums[there])
    mine, theirs = np.concatenate(own), np.concatenate(peer)
    src, dst = (mine, theirs) if sending else (theirs, mine)
    rows = mine.size
    return Traffic.from_rows(
        np.zeros(rows, dtype=np.uint32),
        src,
        dst,
        np.full(rows, UNSPLIT.number, dtype=np.uint32),
        np.full(rows, SIZE_UNKNOWN, dtype=np.uint32),
        np.concatenate(messages),
        np.concatenate(total),
    )
