"""Staging and I/O in the lab: files between a storage host and a node's local storage.

Arrives: who moves how many bytes which way, for which job.
Leaves: the bytes, moved over the fabric and verified, or `LabError` naming host and reason.
Must not know: policies, when jobs start.

Every storage host has a file server on two ports, by which the switches tell the classes `staging` and `io`
apart. Servers and transfers are threads of the data plane in this process, their sockets in the hosts'
namespaces: no process is started for a transfer, whose time is the network's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from waystage._native import FileServer, FileTransfer, TransferError
from waystage.events import Direction
from waystage.flows import FlowDescription, FlowEnd, reported
from waystage.interconnect.marks import DEFAULT_MARKS
from waystage.worlds.lab.errors import LabError

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

Service = Literal["staging", "io"]
PORTS: dict[Service, int] = {
    mark.traffic: mark.tcp_port
    for mark in DEFAULT_MARKS
    if mark.tcp_port is not None and mark.traffic in ("staging", "io")
}

IO_PIECE_BYTES = 16 * 1024 * 1024
"""I/O of a job moves one file of at most this size again and again: the global file system is not full of it."""

MODULES = {"data": False, "jobs": True}
"""What a storage host shows, and whether files may be put there."""

_BLOCK = 1 << 20
_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
_DISCARD_ROUNDS = 50  # 10 ms each: a server that a transfer has left takes a moment to notice


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A finished transfer: verified bytes, and the seconds from start to end."""

    bytes: int
    seconds: float


class StagingServices:
    """The file servers of all storage hosts. A context manager; when `start` returns they listen."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._servers: list[tuple[str, Service, FileServer]] = []

    def start(self) -> None:
        """Raises LabError where a port is in use."""
        try:
            for host in self._lab.topology.storage_hosts:
                for service in PORTS:
                    self._servers.append((host, service, self._start(host, service)))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End them, and every transfer with them."""
        while self._servers:
            self._servers.pop()[2].cancel()

    def check(self) -> None:
        """Raises LabError naming the service that has ended."""
        for host, service, server in self._servers:
            try:
                server.wait(0)
            except TransferError as error:
                raise LabError(f"the {service} service of {host} has ended: {error}") from None

    def __enter__(self) -> StagingServices:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, host: str, service: Service) -> FileServer:
        root = self._lab.host_dir(host)
        for module in MODULES:
            (root / module).mkdir(exist_ok=True)
        port = PORTS[service]
        try:
            return FileServer(
                namespace=self._lab.resources.namespace(host),
                address=self._lab.host_ip(host),
                port=port,
                root=root,
                modules=list(MODULES.items()),
            )
        except TransferError as error:
            raise LabError(f"the {service} service of {host} did not start on port {port}: {error}") from None


class Transfer:
    """A running transfer, and a flow that the lab's agent knows. `wait` verifies; an early end removes what arrived in
    part.
    """

    def __init__(
        self,
        label: str,
        moving: FileTransfer,
        wanted: dict[Path, int],
        partial: Path,
        flow: tuple[FlowDescription, Path],
    ) -> None:
        self._label = label
        self._moving = moving
        self._wanted = wanted
        self._partial = partial
        self.is_over = False
        """Whether `wait` has returned or raised for good, or it was killed."""
        self._reporting = contextlib.ExitStack()
        self._report = self._reporting.enter_context(reported(moving, *flow))

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it ends, well or not, within that time."""
        try:
            return self._moving.wait(within_s)
        except TransferError:
            return True

    def wait(self, timeout: float | None = None) -> Moved:
        """The bytes moved. Raises LabError where it failed, subprocess.TimeoutExpired where it still runs."""
        try:
            ended = self._moving.wait(timeout)
        except TransferError as error:
            self._over("failed")
            self._discard()
            if error.kind == "no-space":
                reason = "no space left on the receiving host: raise its tmpfs limit or stage less"
            else:
                reason = str(error)
            raise LabError(f"{self._label}: {reason}") from None
        if not ended:
            raise subprocess.TimeoutExpired(self._label, timeout or 0.0)
        self._over("done")
        for path, size in self._wanted.items():
            missing = _missing(path, size)
            if missing is not None:
                self._discard()
                raise LabError(f"{self._label}: {missing}")
        moved, seconds = self._moving.result()
        return Moved(bytes=moved, seconds=seconds)

    def kill(self) -> None:
        """End it now where it runs, and remove what arrived."""
        self._moving.cancel()
        self._over("cancelled")
        self._discard()

    def _over(self, outcome: Literal["done", "failed", "cancelled"]) -> None:
        self.is_over, self._report.outcome = True, outcome
        self._reporting.close()

    def _discard(self) -> None:
        for _ in range(_DISCARD_ROUNDS):
            shutil.rmtree(self._partial, ignore_errors=True)
            if not self._partial.exists():
                return
            time.sleep(0.01)


def stage(
    lab: Lab,
    job_id: str,
    direction: Direction,
    node: str,
    *,
    storage: str,
    size: int = 0,
    files: int = 1,
    paths: tuple[Path, ...] = (),
) -> Transfer:
    """Start to move `size` bytes in `files` files, or the given files of the sending host, between the two.

    What is sent is made before the transfer starts and kept for later ones. It arrives in `job_dir`.
    """
    sender, receiver = (storage, node) if direction == "in" else (node, storage)
    if paths:
        for path in paths:
            if not path.is_relative_to(lab.host_dir(sender)):
                raise LabError(f"{path} is not in {sender}'s storage, {lab.host_dir(sender)}")
        sources = list(paths)
    else:
        sources = [source_file(lab, sender, part, index) for index, part in enumerate(_split(size, files))]
    target = job_dir(lab, receiver, job_id) / f"{direction}-{node}"
    target.mkdir(parents=True, exist_ok=True)
    label = f"stage-{direction} of job {job_id} from {sender} to {receiver}"
    if len({source.name for source in sources}) != len(sources):
        raise LabError(f"{label}: two of the files have the same name")
    return _start(lab, label, "staging", node, direction, storage, [(sources, 1)], target, job_id)


def job_io(
    lab: Lab,
    job_id: str,
    direction: Literal["read", "write"],
    node: str,
    *,
    storage: str,
    size: int | None,
) -> Transfer:
    """Class `io`: read or write `size` bytes of the global file system, or until killed where it is None."""
    sender, receiver = (storage, node) if direction == "read" else (node, storage)
    target = job_dir(lab, receiver, job_id) / f"io-{node}"
    target.mkdir(parents=True, exist_ok=True)
    way: Direction = "in" if direction == "read" else "out"
    label = f"{direction} of job {job_id} on {node} at {storage}"
    pieces, rest = divmod(size, IO_PIECE_BYTES) if size is not None else (None, 0)
    steps: list[_Step] = []
    if pieces is None or pieces > 0:
        steps.append(([source_file(lab, sender, IO_PIECE_BYTES, 0)], pieces))
    if rest:
        steps.append(([source_file(lab, sender, rest, 0)], 1))
    return _start(lab, label, "io", node, way, storage, steps, target, job_id)


def job_dir(lab: Lab, host: str, job_id: str) -> Path:
    """Where a job's files lie on a host; ids that are no file names are hashed."""
    name = job_id if _SAFE_NAME.match(job_id) else hashlib.sha256(job_id.encode()).hexdigest()[:32]
    return lab.host_dir(host) / "jobs" / name


def remove_job(lab: Lab, job_id: str) -> None:
    """Remove a job's files from every host."""
    for host in lab.topology.hosts:
        shutil.rmtree(job_dir(lab, host.name, job_id), ignore_errors=True)


def source_file(lab: Lab, host: str, size: int, index: int) -> Path:
    """A file of that size on a host, made once: pseudo-random, so that nothing on the way can shorten it."""
    folder = lab.host_dir(host) / "data"
    path = folder / f"{size}-{index}.bin"
    if path.exists():
        return path
    folder.mkdir(exist_ok=True)
    temporary = folder / f".{path.name}.{os.getpid()}"
    draw = random.Random(f"{host}/{size}/{index}")
    try:
        with temporary.open("wb") as file:
            block, left, number = draw.randbytes(_BLOCK), size, 0
            while left > 0:
                # A number in each block: no two blocks of a file are the same.
                piece = number.to_bytes(8, "big") + block[8:]
                file.write(piece[:left])
                left, number = left - len(piece), number + 1
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise LabError(f"{size} bytes to be staged do not fit on {host}: {error.strerror}") from None
    return path


_Step = tuple[list[Path], int | None]
"""Files, and how often they are moved; None for until killed."""


def _start(
    lab: Lab,
    label: str,
    service: Service,
    node: str,
    way: Direction,
    storage: str,
    steps: list[_Step],
    target: Path,
    job_id: str,
) -> Transfer:
    if storage not in lab.topology.storage_hosts:
        known = ", ".join(lab.topology.storage_hosts) or "none"
        raise LabError(f"{ascii(storage)[:80]} is no storage host of the lab: there are {known}")
    root = lab.host_dir(storage)
    wanted: dict[Path, int] = {}
    asked, total = [], 0
    for sources, times in steps:
        # Without an end it has no total.
        total += sum(source.stat().st_size for source in sources) * (times or 0)
        wanted |= {target / source.name: source.stat().st_size for source in sources}
        # On the node a file is a path, on the storage host a name that its server knows.
        if way == "in":
            names, directory = [source.relative_to(root) for source in sources], target
        else:
            names, directory = [source.resolve() for source in sources], target.relative_to(root)
        asked.append(([os.fsencode(name) for name in names], os.fsencode(directory), times))
    try:
        moving = FileTransfer(
            namespace=lab.resources.namespace(node),
            address=lab.host_ip(storage),
            port=PORTS[service],
            way="get" if way == "in" else "put",
            steps=asked,
        )
    except TransferError as error:
        raise LabError(f"{label}: {error}") from None
    ends = FlowEnd(host=storage), FlowEnd(host=node)
    source, destination = ends if way == "in" else ends[::-1]
    about = FlowDescription(
        service,
        "transfer",
        job_id=job_id,
        source=source,
        destination=destination,
        bytes=total,
        counts=lambda counts: (counts["bytes"], total),
    )
    return Transfer(label, moving, wanted, target, (about, lab.flow_agent))


def _missing(path: Path, size: int) -> str | None:
    try:
        found = path.stat().st_size
    except OSError:
        return f"{path.name} did not arrive"
    return None if found == size else f"{path.name} arrived with {found} of {size} bytes"


def _split(size: int, files: int) -> list[int]:
    """`size` in `files` parts, equal but for the last bytes."""
    part, rest = divmod(size, files)
    return [part + (1 if index < rest else 0) for index in range(files)]
