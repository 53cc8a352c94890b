"""Replicas of files on Gfarm, by Gfarm's own commands.

Arrives: a path below a gfarm2fs mount or a `gfarm:` URL, a number of replicas, perhaps the nodes to place them on.
Leaves: replicas where they were asked for; counts of files by node, and which files have fewer.
Must not know: the command line, stripes.

Gfarm stores files whole: its layout is which nodes have a replica. gfrep makes replicas, and removes with -x those
that a set of nodes has too many of; gfncopy records how many a file is to keep, so that Gfarm repairs a lost one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from waystage.gfarm import GfarmError, connected_nodes, nodes, path_in_gfarm, run_tool, why_no_node
from waystage.restripe.errors import ReplicaError
from waystage.task import Progress

MOST_PROBLEMS = 10_000

_HOSTS = re.compile(r"[A-Za-z0-9._:-]+( [A-Za-z0-9._:-]+)*")


@dataclass(frozen=True)
class Placement:
    """Where replicas are after a placement, or would be wanted."""

    files: int
    enough: int
    """Files with as many replicas as asked for on the nodes asked for."""
    to_place: int
    by_host: dict[str, int]
    """Node -> files with a replica on it."""
    problems: list[str] = field(default_factory=list)


def place_replicas(
    tree: str | Path,
    copies: int,
    hosts: Sequence[str] = (),
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Placement:
    """Give every file below `tree` `copies` replicas; with `hosts`, on these alone. Raises ReplicaError, GfarmError."""
    path = path_in_gfarm(tree)
    registered, connected = nodes(), connected_nodes()
    usable = [host for host in (hosts or registered) if host in connected]
    if set(hosts) - set(connected):
        raise ReplicaError(why_no_node(wanted=hosts))
    if len(usable) < copies:
        where = f"the {len(usable)} given" if hosts else f"{len(usable)} connected"
        raise ReplicaError(
            f"{copies} replicas need {copies} nodes, and there are {where} ({', '.join(usable) or 'none'}): ask for "
            "fewer, or add nodes"
        )
    before = where_replicas_are(path)
    lacking = [name for name, on in before.items() if not _enough(on, copies, hosts)]
    if progress is not None:
        progress(f"{len(lacking):,} of {len(before):,} files to replicate", 0.1)
    problems: list[str] = []
    if not dry_run and lacking:
        problems = _place(path, copies, hosts, registered)
        after = where_replicas_are(path)
    else:
        after = before
    enough = sum(_enough(on, copies, hosts) for on in after.values())
    if not dry_run:
        short = [name for name, on in after.items() if not _enough(on, copies, hosts)]
        problems += [
            f"{name}: replicas on {', '.join(after[name]) or 'no node'}, not as asked for" for name in short
        ]
    by_host = Counter(host for on in after.values() for host in on)
    return Placement(len(after), enough, len(lacking), dict(by_host), problems[:MOST_PROBLEMS])


def _enough(on: Sequence[str], copies: int, hosts: Sequence[str]) -> bool:
    if not hosts:
        return len(on) >= copies
    return len(set(on) & set(hosts)) == copies and set(on) <= set(hosts)


def _place(path: str, copies: int, hosts: Sequence[str], registered: Sequence[str]) -> list[str]:
    problems: list[str] = []

    def step(*command: str, text_in: str | None = None) -> None:
        try:
            run_tool(*command, text_in=text_in)
        except GfarmError as error:
            problems.append(str(error))

    def listed(names: Sequence[str]) -> str:
        return "".join(f"{name}\n" for name in names)

    # What a file is to keep comes first: Gfarm would make new replicas of those removed below.
    step("gfncopy", "-s", str(copies), path)
    if not hosts:
        step("gfrep", "-q", "-N", str(copies), path)
        return problems
    step("gfrep", "-q", "-x", "-N", str(copies), "-H", "-", path, text_in=listed(hosts))
    others = [host for host in registered if host not in hosts]
    if others and not problems:
        # Only where the wanted replicas are made may the others go.
        step("gfrep", "-q", "-x", "-N", "0", "-H", "-", path, text_in=listed(others))
    return problems


def where_replicas_are(path: str) -> dict[str, list[str]]:
    """Path in Gfarm -> the nodes with a complete replica, for every file with data below `path`. Raises GfarmError."""
    return parse_where(run_tool("gfwhere", "-R", path, check=False), path)


def parse_where(text: str, path: str) -> dict[str, list[str]]:
    """What `gfwhere -R` printed: a heading `PATH:` for each file, its nodes on a line, an empty line.

    A single file has no heading: then `path` is its name.
    """
    found: dict[str, list[str]] = {}
    name: str | None = None
    for line in text.split("\n"):
        if line.endswith(":") and (name is None or line.startswith("/")):
            name = line[:-1]
        elif line.strip() and _HOSTS.fullmatch(line.strip()):
            found[name if name is not None else path] = line.split()
            name = None
        elif not line.strip():
            name = None
    return found
