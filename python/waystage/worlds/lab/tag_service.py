"""The tag service of a lab's hosts, in this process: one for all, since their interfaces are on one machine.

Arrives: a lab that is up.
Leaves: packets of programs under `waystage mpi --tags` with tags, while it runs.
Must not know: programs, policies, experiments.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from waystage import _native
from waystage.interconnect.tags import layout_of
from waystage.worlds.lab.errors import LabError

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

NUMBERS = (1, 62)
"""First number of a job, and how many."""


def socket_of(lab: Lab) -> Path:
    return lab.run_dir / "tags.sock"


@contextmanager
def tag_service(lab: Lab) -> Iterator[Path]:
    """Its socket, while it runs. Raises LabError."""
    layout = layout_of(lab.topology)
    if layout is None:
        raise LabError("the topology is so large that addresses have no room for tags: leave `tags` out")
    interfaces = [f"{lab.resources.namespace(host.name)}/eth0" for host in lab.topology.hosts]
    widths = [getattr(layout, field) for field in layout.__struct_fields__]
    path = socket_of(lab)
    path.unlink(missing_ok=True)
    try:
        service = _native.TagService(interfaces, path, widths, list(secrets.token_bytes(32)), NUMBERS)
    except OSError as error:
        raise LabError(f"the tag service cannot start: {error}") from None
    try:
        yield path
    finally:
        service.close()
        path.unlink(missing_ok=True)
