"""What tests of simulated experiments share: a star of 100 Mbit/s, experiments as text, sizes on the wire."""

from __future__ import annotations

import math
from pathlib import Path

from waystage.experiment.loading import load
from waystage.experiment.schema import Experiment

RATE = 100e6 / 8
"""Bytes a second of every link in the hand-made cases."""

NO_COSTS = "sim: {switch_over_s: 0, transfer_s: 0, program_s: 0, message_s: 0, queue_s: 0, notify_s: 0}\n"

STAR = """<?xml version="1.0"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="t" for="node" attr.name="typ" attr.type="string"/>
  <key id="r" for="node" attr.name="role" attr.type="string"/>
  <key id="c" for="edge" attr.name="capacity" attr.type="double"/>
  <graph edgedefault="undirected">
    <node id="s1"><data key="t">switch</data></node>
    {nodes}
  </graph>
</graphml>
"""


def star(folder: Path, extra: str = "") -> str:
    """Four hosts and a storage node on one switch, 100 Mbit/s each."""
    nodes = "".join(
        f'<node id="{name}"><data key="t">host</data><data key="r">{role}</data></node>'
        f'<edge source="{name}" target="s1"><data key="c">100</data></edge>'
        for name, role in [(n, "compute") for n in ("a", "b", "c", "d")] + [("store", "storage")]
    )
    (folder / "star.graphml").write_text(STAR.format(nodes=nodes + extra))
    return "star.graphml"


def experiment(folder: Path, text: str) -> Experiment:
    (folder / "case.yaml").write_text(text)
    return load(folder / "case.yaml")[0]


def wire(payload: float) -> float:
    """By hand: 66 bytes of headers for every 8,948 of payload at MTU 9000."""
    return payload + 66 * math.ceil(payload / 8948)
