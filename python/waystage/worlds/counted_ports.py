"""Counts of ports between switches, as the timelines of a run.

Arrives: bins of the sets of a run, the ports that keys stand for.
Leaves: timelines, what was counted late in its own interval.
Must not know: who counted, jobs, policies.

A key is the number of a port times the number of what is counted of one, and the place in `TRAFFIC`. Only ports that a
late count shows at, because more than the link carries left them or their classes are more than the port's count, are
settled one by one: a large fabric has thousands, and a day of it a million counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from waystage.events import CLASSES
from waystage.experiment.timelines import Timelines, named
from waystage.worlds.bins import I64, Bin
from waystage.worlds.late_counts import WHOLE, settle

TRAFFIC = tuple(sorted((WHOLE, *CLASSES)))
"""What is counted of a port, in the order of samples."""


class CountedPort(msgspec.Struct, frozen=True):
    """A port of a switch towards another. `core`: of a core switch."""

    node: str
    port: int
    peer: str
    core: bool
    capacity_bps: int


class _Set(msgspec.Struct):
    """Counts of one set: `bins[i]` and `keys[i]` say of which bin and port `counts[i]` is, in their order."""

    end_s: list[float]
    took_s: list[float]
    bins: I64
    keys: I64
    counts: I64


def timelines(
    counted: Mapping[tuple[str, int], Sequence[Bin]], ports: Sequence[CountedPort], start_ns: int
) -> Timelines:
    """`counted` by policy and set; `ports` in the order of node and port; times from `start_ns` on."""
    names = sorted(counted)
    sets = [
        _settled(_set([each for each in counted[name] if each.keys.size], start_ns), ports) for name in names
    ]
    of_set = _repeated([found.keys.size for found in sets])
    keys = _joined([found.keys for found in sets])
    at, traffic = np.divmod(keys, len(TRAFFIC))
    columns = {
        "policy": named([policy for policy, _ in names], of_set),
        "set": np.array([number for _, number in names], dtype=np.int64)[of_set],
        "at_s": _joined([np.array(found.end_s)[found.bins] for found in sets]),
        "interval_s": _joined([np.array(found.took_s)[found.bins] for found in sets]),
        "node": named([port.node for port in ports], at),
        "port": np.array([port.port for port in ports], dtype=np.int64)[at],
        "peer": named([port.peer for port in ports], at),
        "traffic": named(TRAFFIC, traffic),
        "bytes": _joined([found.counts for found in sets]),
        "core": np.array([port.core for port in ports], dtype=np.bool_)[at],
    }
    return Timelines.of_columns(columns)


def _set(bins: Sequence[Bin], start_ns: int) -> _Set:
    """The bins of a set, in the order of time."""
    return _Set(
        end_s=[(each.end_ns - start_ns) / 1e9 for each in bins],
        took_s=[each.took_ns / 1e9 for each in bins],
        bins=_repeated([each.keys.size for each in bins]),
        keys=_joined([each.keys for each in bins]),
        counts=_joined([each.counts for each in bins]),
    )


def _settled(found: _Set, ports: Sequence[CountedPort]) -> _Set:
    """Without counts of nothing, and what was counted late in its own interval."""
    late = _late(found, ports)
    at = found.keys // len(TRAFFIC)
    is_late = np.isin(at, late)
    bins, keys, counts = [found.bins[~is_late]], [found.keys[~is_late]], [found.counts[~is_late]]
    for port in late.tolist():
        mine = at == port
        places = found.keys[mine] % len(TRAFFIC)
        by_traffic = {
            place: np.zeros(len(found.took_s), dtype=np.int64) for place in np.unique(places).tolist()
        }
        for place, column in by_traffic.items():
            column[found.bins[mine][places == place]] = found.counts[mine][places == place]
        settle({TRAFFIC[place]: c for place, c in by_traffic.items()}, found.took_s, ports[port].capacity_bps)
        for place, column in by_traffic.items():
            bins.append(np.arange(column.size))
            keys.append(np.full(column.size, port * len(TRAFFIC) + place))
            counts.append(column)
    found = msgspec.structs.replace(found, bins=_joined(bins), keys=_joined(keys), counts=_joined(counts))
    order = np.lexsort((found.keys, found.bins))
    order = order[found.counts[order] != 0]
    return msgspec.structs.replace(
        found, bins=found.bins[order], keys=found.keys[order], counts=found.counts[order]
    )


def _late(found: _Set, ports: Sequence[CountedPort]) -> I64:
    """Ports that in some bin counted more than their link carries, or more by class than in all."""
    if not found.keys.size:
        return found.keys
    at, place = np.divmod(found.keys, len(TRAFFIC))
    is_whole = place == TRAFFIC.index(WHOLE)
    capacity_bps = np.array([port.capacity_bps for port in ports], dtype=np.float64)
    room = (capacity_bps[at] * np.array(found.took_s)[found.bins] / 8).astype(np.int64)
    above = at[is_whole & (found.counts > room)]
    # Keys rise in each bin: what was counted of a port in a bin stands together.
    firsts = np.flatnonzero(np.diff(found.bins * len(ports) + at, prepend=-1))
    left = np.add.reduceat(np.where(is_whole, found.counts, -found.counts), firsts)
    return np.union1d(above, at[firsts][left < 0])


def _repeated(times: Sequence[int]) -> I64:
    """0 `times[0]` times, then 1 `times[1]` times, and so on."""
    return np.repeat(np.arange(len(times)), np.array(times, dtype=np.int64))


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64)
