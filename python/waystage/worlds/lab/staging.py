"""Staging and I/O in the lab: rsync between a storage host and a node's local storage.

Arrives: who moves how many bytes which way, for which job.
Leaves: the bytes, moved over the fabric and verified, or `LabError` naming host and reason.
Must not know: policies, when jobs start.

Every storage host runs rsync daemons on two ports, by which the switches tell the classes `staging` and
`io` apart. rsync was chosen over the paper's scp: no encryption that would cost more processor time than
the emulated network, and a checksum of every file that arrived.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from waystage.events import Direction
from waystage.interconnect.marks import DEFAULT_MARKS
from waystage.worlds.lab.commands import environment, first_line, program, require
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

STALL_TIMEOUT_S = 60  # rsync gives up where nothing has moved for this long
_START_TIMEOUT_S = 10.0
_BLOCK = 1 << 20
_SAFE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
_TCP_LISTEN = "0A"  # state field of /proc/net/tcp


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A finished transfer: verified bytes, and the seconds from start to end."""

    bytes: int
    seconds: float


class StagingServices:
    """The rsync daemons of all storage hosts. A context manager; `start` returns when they listen."""

    def __init__(self, lab: Lab) -> None:
        require("rsync")
        self._lab = lab
        self._folder = lab.run_dir / "staging"
        self._daemons: list[tuple[str, Service, subprocess.Popen[Any]]] = []

    def start(self) -> None:
        """Raises LabError where a port is in use, or rsync does not start."""
        self._folder.mkdir(exist_ok=True)
        try:
            for host in self._lab.topology.storage_hosts:
                for service in PORTS:
                    self._daemons.append((host, service, self._start(host, service)))
            for host, service, daemon in self._daemons:
                self._wait_listening(host, service, daemon)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for _, _, daemon in self._daemons:
            daemon.terminate()
        while self._daemons:
            self._daemons.pop()[2].wait()

    def check(self) -> None:
        """Raises LabError naming the service that has ended."""
        for host, service, daemon in self._daemons:
            if daemon.poll() is not None:
                raise LabError(f"the {service} service of {host} has ended: {self._complaint(host, service)}")

    def __enter__(self) -> StagingServices:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, host: str, service: Service) -> subprocess.Popen[Any]:
        root = self._lab.host_dir(host)
        (root / "data").mkdir(exist_ok=True)
        (root / "jobs").mkdir(exist_ok=True)
        base = self._folder / f"{host}-{service}"
        config = base.with_suffix(".conf")
        modules = "".join(
            f"[{module}]\n  path = {root / module}\n  read only = {read_only}\n"
            for module, read_only in (("data", "yes"), ("jobs", "no"))
        )
        config.write_text(
            f"address = {self._lab.host_ip(host)}\nport = {PORTS[service]}\n"
            "use chroot = no\nuid = root\ngid = root\nlist = no\n"
            f"timeout = {STALL_TIMEOUT_S}\n"
            f"log file = {base}.log\n{modules}",
            encoding="utf-8",
        )
        base.with_suffix(".log").unlink(missing_ok=True)
        with base.with_suffix(".err").open("wb") as complaints:
            return self._lab.exec(
                host,
                [program("rsync"), "--daemon", "--no-detach", f"--config={config}"],
                stdin=subprocess.DEVNULL,
                stdout=complaints,
                stderr=complaints,
            )

    def _wait_listening(self, host: str, service: Service, daemon: subprocess.Popen[Any]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while daemon.poll() is None and time.monotonic() < deadline:
            # The port may be somebody else's: only this process's own listening counts.
            if "listening on port" in self._log(host, service) or _listens(daemon.pid, PORTS[service]):
                time.sleep(0.02)
                if daemon.poll() is None:
                    return
            time.sleep(0.01)
        raise LabError(
            f"the {service} service of {host} did not start on port {PORTS[service]}: {self._complaint(host, service)}"
        )

    def _log(self, host: str, service: Service) -> str:
        try:
            return (self._folder / f"{host}-{service}.log").read_text(errors="replace")
        except OSError:
            return ""

    def _complaint(self, host: str, service: Service) -> str:
        text = (self._folder / f"{host}-{service}.err").read_text(errors="replace") + self._log(host, service)
        lines = [
            line for line in text.splitlines() if "rror" in line or "failed" in line
        ] or text.splitlines()
        return lines[0][-200:] if lines else "it said nothing"


class Transfer:
    """A running transfer. `wait` verifies; whatever ends it early removes what arrived in part."""

    def __init__(
        self,
        label: str,
        process: subprocess.Popen[bytes],
        complaints: IO[bytes],
        wanted: dict[Path, int],
        total: int,
        partial: Path | None,
    ) -> None:
        self._label = label
        self._process = process
        self._complaints = complaints
        self._wanted = wanted
        self._total = total
        self._partial = partial
        self._started = time.monotonic()
        self._ended: float | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status once it has ended, else None."""
        status = self._process.poll()
        if status is not None and self._ended is None:
            self._ended = time.monotonic()
        return status

    def wait(self, timeout: float | None = None) -> Moved:
        """The bytes moved. Raises LabError where it failed, subprocess.TimeoutExpired where it still runs."""
        status = self._process.wait(timeout)
        if self._ended is None:
            self._ended = time.monotonic()
        try:
            reason = self._reason(status)
        finally:
            self._complaints.close()
        if reason is not None:
            self._discard()
            raise LabError(f"{self._label}: {reason}")
        return Moved(bytes=self._total, seconds=self._ended - self._started)

    def kill(self) -> None:
        """End it now, with its children, and remove what arrived."""
        try:
            os.killpg(self._process.pid, 9)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._discard()

    terminate = kill

    def _reason(self, status: int) -> str | None:
        if status != 0:
            self._complaints.seek(0)
            text = self._complaints.read().decode(errors="replace")
            if "No space left on device" in text:
                return "no space left on the receiving host: raise its tmpfs limit or stage less"
            return f"rsync failed: {first_line(text, status)}"
        for path, size in self._wanted.items():
            try:
                found = path.stat().st_size
            except OSError:
                return f"{path.name} did not arrive"
            if found != size:
                return f"{path.name} arrived with {found} of {size} bytes"
        return None

    def _discard(self) -> None:
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)


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
    names = {target / source.name: source.stat().st_size for source in sources}
    if len(names) != len(sources):
        raise LabError(f"{label}: two of the files have the same name")
    argv = _rsync(lab, "staging", storage, direction, sources, target)
    return _start(lab, label, node, argv, names, partial=target)


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
    lines, names = ["set -e"], {}
    if pieces is None or pieces > 0:
        piece = source_file(lab, sender, IO_PIECE_BYTES, 0)
        names[target / piece.name] = IO_PIECE_BYTES
        once = shlex.join(_rsync(lab, "io", storage, way, [piece], target))
        condition = "true" if pieces is None else f"[ $n -lt {pieces} ]"
        lines.append(f"n=0; while {condition}; do {once}; n=$((n+1)); done")
    if rest:
        last = source_file(lab, sender, rest, 0)
        names[target / last.name] = rest
        lines.append(shlex.join(_rsync(lab, "io", storage, way, [last], target)))
    argv = ["/bin/sh", "-c", "\n".join(lines)]
    return _start(lab, label, node, argv, names, partial=target, total=size or 0)


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
    draft = folder / f".{path.name}.{os.getpid()}"
    draw = random.Random(f"{host}/{size}/{index}")
    try:
        with draft.open("wb") as file:
            block, left, number = draw.randbytes(_BLOCK), size, 0
            while left > 0:
                # A number in each block: no two blocks of a file are the same.
                piece = number.to_bytes(8, "big") + block[8:]
                file.write(piece[:left])
                left, number = left - len(piece), number + 1
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise LabError(f"{size} bytes to be staged do not fit on {host}: {error.strerror}") from None
    return path


def _rsync(
    lab: Lab, service: Service, storage: str, way: Direction, sources: list[Path], target: Path
) -> list[str]:
    if storage not in lab.topology.storage_hosts:
        known = ", ".join(lab.topology.storage_hosts) or "none"
        raise LabError(f"{ascii(storage)[:80]} is no storage host of the lab: there are {known}")
    root = lab.host_dir(storage)
    url = f"rsync://{lab.host_ip(storage)}:{PORTS[service]}/"
    if way == "in":
        ends = [url + str(source.relative_to(root)) for source in sources] + [f"{target}/"]
    else:
        ends = [str(source) for source in sources] + [f"{url}{target.relative_to(root)}/"]
    # -I: the same file again is sent again. Times are not kept: a job's files are new.
    options = ["--whole-file", "-I", "--no-motd", f"--timeout={STALL_TIMEOUT_S}"]
    return [program("rsync"), *options, *ends]


def _start(
    lab: Lab,
    label: str,
    node: str,
    argv: list[str],
    wanted: dict[Path, int],
    *,
    partial: Path,
    total: int | None = None,
) -> Transfer:
    complaints = (lab.run_dir / "staging").joinpath(f".err-{random.getrandbits(64):016x}").open("w+b")
    os.unlink(complaints.name)
    process = lab.exec(
        node,
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        env=environment({"RSYNC_PROXY": ""}),
    )
    total = sum(wanted.values()) if total is None else total
    return Transfer(label, process, complaints, wanted, total, partial)


def _split(size: int, files: int) -> list[int]:
    """`size` in `files` parts, equal but for the last bytes."""
    part, rest = divmod(size, files)
    return [part + (1 if index < rest else 0) for index in range(files)]


def _listens(pid: int, port: int) -> bool:
    """Whether anything listens on this TCP port in the process's network namespace."""
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return False
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == _TCP_LISTEN for line in lines)
