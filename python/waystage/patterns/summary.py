"""What a pattern amounts to: totals, by kind, by phase, the busiest pairs.

Arrives: a pattern.
Leaves: plain values for JSON, and for tables.
Must not know: how they are shown.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from waystage.patterns.kinds import SIZE_CLASSES
from waystage.patterns.pattern import Pattern, Traffic


def summarise(pattern: Pattern, *, top: int = 10, phase: int | None = None) -> dict[str, Any]:
    """Everything of `waystage pattern show --json`."""
    sent = pattern.counted(phase=phase)
    src, dst, messages, total = pattern.pairs(phase=phase)
    order = np.lexsort((dst, src, -total.astype(np.float64)))[:top]
    nodes = sorted({name for name in pattern.nodes if name})
    return {
        "ranks": pattern.ranks,
        "nodes": len(nodes),
        "messages": int(sent.messages.sum()),
        "bytes": int(sent.bytes.sum()),
        "pairs": int(src.size),
        "duration_s": float(pattern.phase_edges[-1]),
        "phases": _phases(pattern),
        "kinds": _kinds(pattern, phase),
        "top_pairs": [
            {
                "src": int(src[i]),
                "dst": int(dst[i]),
                "src_node": pattern.nodes[int(src[i])],
                "dst_node": pattern.nodes[int(dst[i])],
                "messages": int(messages[i]),
                "bytes": int(total[i]),
            }
            for i in order
        ],
        "sizes": _sizes(sent),
        "run": dict(pattern.run),
        "missing": list(pattern.missing),
        "unfinished": list(pattern.unfinished),
        "warnings": [*([pattern.differs] if pattern.differs else []), *pattern.warnings],
    }


def _kinds(pattern: Pattern, phase: int | None) -> list[dict[str, Any]]:
    """With what the receivers counted, where they did: it should be the same."""
    rows = []
    for kind in pattern.kinds:
        sent = pattern.counted(kinds=[kind.name], phase=phase)
        received = pattern.counted(kinds=[kind.name], phase=phase, traffic=pattern.received)
        if len(sent) or len(received):
            rows.append(
                {
                    "kind": kind.name,
                    "group": kind.group,
                    "counted": not kind.protocol,
                    "messages": int(sent.messages.sum()),
                    "bytes": int(sent.bytes.sum()),
                    "received_messages": int(received.messages.sum()) if len(received) else None,
                    "received_bytes": int(received.bytes.sum()) if len(received) else None,
                }
            )
    return rows


def _phases(pattern: Pattern) -> list[dict[str, Any]]:
    counted = pattern.counted()
    rows = []
    for phase in range(pattern.phases):
        here = counted.phase == phase
        rows.append(
            {
                "phase": phase,
                "start_s": float(pattern.phase_edges[phase]),
                "end_s": float(pattern.phase_edges[phase + 1]),
                "messages": int(counted.messages[here].sum()),
                "bytes": int(counted.bytes[here].sum()),
            }
        )
    return rows


def _sizes(sent: Traffic) -> list[dict[str, Any]]:
    """The histogram: messages of at least `least` bytes and at most `most`."""
    rows = []
    for size_class in range(SIZE_CLASSES):
        messages = int(sent.size_messages[sent.size_class == size_class].sum())
        if messages:
            least = 0 if size_class == 0 else 1 << (size_class - 1)
            most = None if size_class == SIZE_CLASSES - 1 else max(0, (1 << size_class) - 1)
            rows.append({"least": least, "most": most, "messages": messages})
    return rows
