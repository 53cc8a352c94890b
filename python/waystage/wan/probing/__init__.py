"""What a path to another host is like, each direction by itself: what is measured in which order, and what it
means.

Arrives: a session with a server (`waystage._native.WanProbe`), what to measure and for how long.
Leaves: a `Report`: round trips, loss, order, damage, path MTU, the rate that the path carries and what limits it.
Must not know: how packets are sent and counted, the command line.

`points` are the figures of one train; `sweep` decides which rate is tried next, `limits` what the tried ones say,
`mtu` which size; these are pure. `plan` says how much is measured, `measure` does it, `report` is what comes out,
`plot` shows it.
"""

from waystage.wan.probing.measure import measure
from waystage.wan.probing.plan import Plan
from waystage.wan.probing.report import Report

__all__ = ["Plan", "Report", "measure"]
