"""A topology with its loads as GraphML, for Cytoscape, Gephi and networkx.

Arrives: a cluster and the loads of its links.
Leaves: the text of a GraphML file, which can be read again as a topology.
Must not know: where the loads come from.

PFSim's convention: two directed edges for each cable, `capacity` in Mbit/s. Each edge also has `peak_bytes`,
`total_bytes`, and `relative`: its peak by that of the busiest link between switches.
"""

from __future__ import annotations

from decimal import Decimal
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from numpy.typing import NDArray

from waystage.simulate.cluster import BITS_PER_BYTE, Cluster

F64 = NDArray[np.float64]

_KEYS = (
    ("graph", "name", "string"),
    ("node", "typ", "string"),
    ("node", "capacity", "long"),
    ("node", "role", "string"),
    ("edge", "capacity", "double"),
    ("edge", "peak_bytes", "double"),
    ("edge", "total_bytes", "double"),
    ("edge", "relative", "double"),
)


def with_loads(cluster: Cluster, peak: F64, total: F64) -> str:
    """The text."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
    ]
    for target, name, kind in _KEYS:
        lines.append(f'  <key id="{target}_{name}" for="{target}" attr.name="{name}" attr.type="{kind}"/>')
    lines += ['  <graph edgedefault="directed">', f'    <data key="graph_name">{escape(cluster.name)}</data>']
    storage = set(cluster.storage)
    for index, name in enumerate(cluster.hosts):
        data = _data("node", "typ", "host") + _data("node", "capacity", str(cluster.slots[index]))
        if index in storage:
            data += _data("node", "role", "storage")
        lines.append(f"    <node id={quoteattr(name)}>{data}</node>")
    for name in cluster.switches:
        lines.append(f"    <node id={quoteattr(name)}>{_data('node', 'typ', 'switch')}</node>")
    busiest = float(peak[cluster.between_switches].max(initial=0.0)) or 1.0
    names = cluster.names
    columns = (cluster.links_from, cluster.links_to, cluster.capacity, peak, total)
    for a, b, capacity, most, whole in zip(*(column.tolist() for column in columns), strict=True):
        megabits = (Decimal(repr(capacity)) * BITS_PER_BYTE / 1_000_000).normalize()
        data = _data("edge", "capacity", f"{megabits:f}") + _data("edge", "peak_bytes", _number(most))
        data += _data("edge", "total_bytes", _number(whole)) + _data(
            "edge", "relative", f"{most / busiest:.6g}"
        )
        lines.append(f"    <edge source={quoteattr(names[a])} target={quoteattr(names[b])}>{data}</edge>")
    lines += ["  </graph>", "</graphml>", ""]
    return "\n".join(lines)


def _data(target: str, name: str, value: str) -> str:
    return f'<data key="{target}_{name}">{escape(value)}</data>'


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
