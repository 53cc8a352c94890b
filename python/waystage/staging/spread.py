"""Spreads one tree over the local storage of several nodes, each file read once from its source.

Arrives: a source that every node reaches, nodes, a command that starts programs on them.
Leaves: the same tree at the same path of each node.
Must not know: requests, the stager.

Scatter and allgather by recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 2005): each of M nodes, M the greatest power of two, first copies 1/M of the bytes from the
source; in round k it then copies from its partner, M XOR 2^k places away, all shares that the partner has by then. Each
node so receives every byte once, storage is read once, and log2 M rounds suffice. The nodes beyond M copy everything
from a partner at the end. A single file goes along a binomial tree: it has no shares.

Back from the nodes, each copies its tree to a directory at the destination, which has the node's name.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

POLL_S = 0.1
MOST_STDERR_BYTES = 1000

MOST_AT_ONCE = 64
"""Nodes that copy to one destination at the same time."""


class NodeFailed(RuntimeError):
    """A command on a node failed; the message names the node and has its last line."""

    kind = "failed"


@dataclass(frozen=True)
class Item:
    """What moves together: names below the source, with their bytes. Further names of a file are in the same item."""

    names: tuple[bytes, ...]
    bytes: int


@dataclass(frozen=True)
class Step:
    """Node `to` copies `shares` from node `by`, or from the source where `by` is None."""

    to: int
    by: int | None
    shares: tuple[int, ...]


@dataclass
class Spread:
    """Counts so far, of all nodes together."""

    found: int = 0
    found_bytes: int = 0
    files: int = 0
    written: int = 0
    same: int = 0
    read_bytes: int = 0
    """Bytes read from the source."""
    lost: int = 0
    """Entries of which an attribute was not preserved, or of a kind that is not copied."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {
            "found": self.found,
            "found_bytes": self.found_bytes,
            "files": self.files,
            "bytes": self.written,
            "same": self.same,
        }


def items_of(top: str) -> list[Item]:
    """All entries below `top` that are no directory, and empty directories. Raises OSError."""
    root = os.fsencode(top)
    linked: dict[tuple[int, int], list[bytes]] = {}
    sizes: dict[tuple[int, int], int] = {}
    items: list[Item] = []
    folders = [b""]
    while folders:
        folder = folders.pop()
        empty = True
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                if folder == b"" and entry.name.startswith(b".waystage-copy"):
                    continue
                empty = False
                name = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                    continue
                about = entry.stat(follow_symlinks=False)
                size = about.st_size if stat.S_ISREG(about.st_mode) else 0
                if about.st_nlink > 1:
                    linked.setdefault((about.st_dev, about.st_ino), []).append(name)
                    sizes[about.st_dev, about.st_ino] = size
                else:
                    items.append(Item((name,), size))
        if empty and folder:
            items.append(Item((folder,), 0))
    return items + [Item(tuple(names), sizes[inode]) for inode, names in linked.items()]


def divided(items: Sequence[Item], count: int) -> list[list[Item]]:
    """`items` in `count` shares of about the same bytes: the largest first, each to the least share."""
    shares: list[list[Item]] = [[] for _ in range(count)]
    loads = [(0, 0)] * count
    for item in sorted(items, key=lambda each: (-each.bytes, each.names)):
        least = min(range(count), key=loads.__getitem__)
        shares[least].append(item)
        loads[least] = loads[least][0] + item.bytes, loads[least][1] + len(item.names)
    return shares


def rounds(nodes: int) -> list[list[Step]]:
    """The steps of each round; the steps of a round run at the same time, rounds one after another."""
    power = 1 << (nodes.bit_length() - 1)
    held = [{node} for node in range(power)]
    made = [[Step(node, None, (node,)) for node in range(power)]]
    distance = 1
    while distance < power:
        before = [set(each) for each in held]
        made.append(
            [Step(node, node ^ distance, tuple(sorted(before[node ^ distance]))) for node in range(power)]
        )
        for node in range(power):
            held[node] |= before[node ^ distance]
        distance *= 2
    if nodes > power:
        made.append([Step(node, node - power, tuple(range(power))) for node in range(power, nodes)])
    return made


def tree_rounds(nodes: int) -> list[list[Step]]:
    """The steps by which one file reaches all nodes: the first reads it, then those that have it double in each round."""
    made = [[Step(0, None, (0,))]]
    have = 1
    while have < nodes:
        made.append([Step(node, node - have, (0,)) for node in range(have, min(2 * have, nodes))])
        have *= 2
    return made


@dataclass(frozen=True)
class Way:
    """How commands run on nodes: a command that starts programs there, `waystage` there, whether copies are read back."""

    rsh: Sequence[str]
    waystage: str
    verify: str

    @property
    def options(self) -> str:
        return {"none": "", "cached": " --verify", "storage": " --verify --from-storage"}[self.verify]

    def copy(self, source: str, destination: str, by: str | None = None) -> str:
        """The shell's words that copy `source`, of node `by`, and make the directories above."""
        words = f"{self.waystage} copy"
        if by is None:
            words += f" {shlex.quote(source)}"
        else:
            words += f" {shlex.quote(f'{by}:{source}')} --rsh {shlex.quote(shlex.join(self.rsh))}"
            words += f" --remote-waystage {shlex.quote(self.waystage)}"
        # The directories above are the user's to make, as for other destinations.
        above = shlex.quote(os.path.dirname(destination.rstrip("/")) or "/")
        return f"mkdir -p {above} && {words} {shlex.quote(destination)} --json{self.options}"


def spread(
    source: str,
    destination: str,
    nodes: Sequence[str],
    *,
    way: Way,
    report: Callable[[dict[str, int]], None],
) -> Spread:
    """Spread the directory or file `source` to `destination` on each of `nodes`. Raises OSError and NodeFailed.

    `report` is called with the counts about ten times a second; an exception of it ends all commands.
    """
    if not os.path.isdir(source):
        return _spread_file(source, destination, nodes, way, report)
    items = items_of(source)
    power = 1 << (len(nodes).bit_length() - 1)
    shares = divided(items, power)
    state = Spread(
        found=sum(len(item.names) for item in items) * len(nodes),
        found_bytes=sum(item.bytes for item in items) * len(nodes),
    )
    with _ended(state):
        for steps in rounds(len(nodes)):
            commands = []
            for step in steps:
                names = [name for share in step.shares for item in shares[share] for name in item.names]
                if names:
                    by = None if step.by is None else nodes[step.by]
                    words = way.copy(source if by is None else destination, destination, by)
                    commands.append((step, f"{words} --files-from - -0", names))
            _run(commands, nodes, way, state, report)
    return state


def _spread_file(
    source: str,
    destination: str,
    nodes: Sequence[str],
    way: Way,
    report: Callable[[dict[str, int]], None],
) -> Spread:
    """One file: under its own name where `destination` is a directory on the first node, or ends with a slash."""
    size = os.stat(source).st_size
    state = Spread(found=len(nodes), found_bytes=size * len(nodes))
    target = destination.rstrip("/")
    asks = f"test -d {shlex.quote(destination)}"
    if destination.endswith("/") or subprocess.run([*way.rsh, nodes[0], asks], check=False).returncode == 0:
        target = os.path.join(target or "/", os.path.basename(source))
    with _ended(state):
        for steps in tree_rounds(len(nodes)):
            commands: list[Command] = []
            for step in steps:
                by = None if step.by is None else nodes[step.by]
                commands.append((step, way.copy(source if by is None else target, target, by), []))
            _run(commands, nodes, way, state, report)
    return state


def gather(
    source: str,
    destination: str,
    nodes: Sequence[str],
    *,
    way: Way,
    report: Callable[[dict[str, int]], None],
) -> Spread:
    """Copy `source` of each node to `destination`/NODE, which every node reaches. Raises NodeFailed; `report` as above."""
    state = Spread()
    with _ended(state):
        for first in range(0, len(nodes), MOST_AT_ONCE):
            commands: list[Command] = []
            for number in range(first, min(first + MOST_AT_ONCE, len(nodes))):
                words = way.copy(source, os.path.join(destination, nodes[number]))
                commands.append((Step(number, None, ()), words, []))
            _run(commands, nodes, way, state, report)
    return state


@contextlib.contextmanager
def _ended(state: Spread) -> Iterator[None]:
    """No command of it runs after the block."""
    try:
        yield
    finally:
        for process in state.running:
            process.kill()
            process.wait()


Command = tuple[Step, str, Sequence[bytes]]
"""A step, the words of its shell, and what it reads from its standard input."""


def _run(
    commands: Sequence[Command],
    nodes: Sequence[str],
    way: Way,
    state: Spread,
    report: Callable[[dict[str, int]], None],
) -> None:
    """Run commands of a round at the same time."""
    with contextlib.ExitStack() as held:
        waiting: list[tuple[Step, subprocess.Popen[bytes], IO[bytes], IO[bytes]]] = []
        for step, words, names in commands:
            files: list[IO[bytes]] = [held.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            listing, out, err = files
            listing.write(b"".join(name + b"\0" for name in names))
            listing.seek(0)
            process = subprocess.Popen(
                [*way.rsh, nodes[step.to], words], stdin=listing, stdout=out, stderr=err
            )
            state.running.append(process)
            waiting.append((step, process, out, err))
        while waiting:
            for each in list(waiting):
                step, process, out, err = each
                status = process.poll()
                if status is None:
                    continue
                waiting.remove(each)
                state.running.remove(process)
                _count(nodes[step.to], status, out, err, step, state)
            report(state.counts())
            time.sleep(POLL_S)


def _count(node: str, status: int, out: IO[bytes], err: IO[bytes], step: Step, state: Spread) -> None:
    out.seek(0)
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(out.read())
    counts = value.get("counts") if isinstance(value, dict) else None
    # Attributes that could not be preserved make no copy incomplete.
    minor = status == 8 and counts and not any(counts[each] for each in ("errors", "changed", "vanished"))
    if (status and not minor) or not counts:
        why = ""
        if isinstance(value, dict):
            problems = value.get("problems") or [{}]
            why = str(value.get("error") or f"{problems[0].get('path')}: {problems[0].get('text')}")
        if not why:
            err.seek(max(0, err.seek(0, os.SEEK_END) - MOST_STDERR_BYTES))
            lines = err.read().decode("utf-8", "replace").strip().splitlines()
            why = lines[-1] if lines else f"status {status}"
        raise NodeFailed(f"node {node}: {why}")
    state.lost += counts["lost"] + counts["skipped"]
    state.files += counts["files"]
    state.same += counts["same"] + counts["mended"]
    state.written += counts["bytes"] + counts["resumed_bytes"]
    if step.by is None:
        state.read_bytes += counts["bytes"]
