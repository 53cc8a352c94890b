"""Events of storage and distance: file systems with their storage targets, wide-area paths.

Arrives: facts from a site's configuration, a measurement or an experiment file.
Leaves: typed structs.
Must not know: loaders, copies, policies.
"""

from __future__ import annotations

from waystage.events.base import Event


class FileSystemDeclared(Event, frozen=True, kw_only=True):
    """A file system with `targets` storage targets, named `FILE_SYSTEM:NUMBER` in flows.

    `target_bps` is what one loader alone gets from a target. `slowdown` lists points (loaders on a target, g), where x
    loaders get a g(x)-th of that each (SwiftLoad, section III.A); none: not measured. `hosts` serve the targets in
    turn. `targets` of 0 withdraws the file system.
    """

    file_system: str
    targets: int
    target_bps: int = 0
    slowdown: tuple[tuple[float, float], ...] = ()
    hosts: tuple[str, ...] = ()


class WidePathDeclared(Event, frozen=True, kw_only=True):
    """A wide-area path to `peer`, which enters the interconnect at `host`. A `rate_bps` of 0 withdraws it."""

    peer: str
    host: str = ""
    rate_bps: int
    rtt_s: float = 0.0
