"""The emulated file system of the benchmarks of collective I/O.

Arrives: nothing.
Leaves: a shape for `pfs.mount`.
Must not know: who writes.
"""

from __future__ import annotations

import msgspec

from waystage.worlds.lab import pfs

TARGETS = 4
STRIPE_BYTES = 1 << 20
DILATION = 4.0
"""Seconds of real time for one emulated second, so that this machine keeps up."""


def shape() -> pfs.shape.Shape:
    """Four targets of the shape `nurion`; files are striped over all of them by 1 MiB, and no page is kept."""
    nurion = pfs.load("nurion")
    stripes = pfs.shape.LayoutPart(stripes="all", stripe_size=STRIPE_BYTES)
    return msgspec.structs.replace(
        nurion,
        targets=msgspec.structs.replace(nurion.targets, count=TARGETS),
        layout=msgspec.structs.replace(nurion.layout, parts=(stripes,)),
        client=msgspec.structs.replace(nurion.client, pages="direct"),
        tree=None,
        dilation=DILATION,
    )
