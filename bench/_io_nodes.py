"""Nodes for benchmarks of collective I/O: namespaces with a host name and one limited link each, on one bridge.

Arrives: the number of nodes, the rate of a link.
Leaves: commands that run in a node; MPI launches over all nodes, with Open MPI or MPICH; everything removed at the end.
Must not know: what is measured.

All nodes see the same files, so an emulated file system that is mounted outside is the parallel file system of all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from waystage.bench import BenchError, installed

SUBNET = "10.213.71.0/24"
_BURST_BYTES = 64 << 10
_LATENCY = "20ms"
_POLL_S = 0.05
_TIDY_S = 2.0


@dataclass(frozen=True)
class Nodes:
    """`names[i]` is a host name, and the name of its network namespace after `prefix`."""

    folder: Path
    prefix: str
    names: tuple[str, ...]

    def enter(self, name: str) -> list[str]:
        """The beginning of a command that runs in a node."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}{name}", f"--uts={self.folder}/{name}.uts", "--"]

    def contained(self, command: Sequence[object]) -> list[str]:
        """`command` on the first node, in a separate process namespace: killing it leaves no process behind."""
        apart = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child=KILL", "--"]
        # Names of nodes are known inside alone: the mount belongs to the new namespace.
        named = ["sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self.folder / "hosts")]
        return [*self.enter(self.names[0]), *apart, *named, *map(str, command)]

    def open_mpi(self, ranks: int, program: Sequence[object], options: Sequence[str] = ()) -> list[str]:
        """An mpirun of Open MPI with its ranks spread over the nodes in blocks, over TCP between them."""
        parameters = {
            "plm": "rsh",
            "plm_rsh_agent": str(self.folder / "agent"),
            "plm_rsh_no_tree_spawn": "1",
            "pml": "ob1",
            "btl": "tcp,vader,self",
            "btl_tcp_if_include": SUBNET,
            "oob_tcp_if_include": SUBNET,
            # More ranks than processors: a rank that waits must let others run.
            "mpi_yield_when_idle": "1",
            "orte_tmpdir_base": str(self.folder),
            "hwloc_base_binding_policy": "none",
            "rmaps_base_mapping_policy": "slot",
            "rmaps_base_no_oversubscribe": "0",
        }
        each = -(-ranks // len(self.names))
        hosts = ",".join(f"{name}:{each}" for name in self.names)
        words = [
            installed("mpirun", "openmpi-bin"),
            "--allow-run-as-root",
            "--host",
            hosts,
            "-np",
            str(ranks),
        ]
        for name, value in parameters.items():
            words += ["--mca", name, value]
        return [*words, *options, *map(str, program)]

    def mpich(self, ranks: int, program: Sequence[object]) -> list[str]:
        """The same with MPICH, whose UCX uses TCP between nodes."""
        each = -(-ranks // len(self.names))
        words = [
            installed("mpirun.mpich", "mpich"),
            "-launcher",
            "ssh",
            "-launcher-exec",
            str(self.folder / "agent"),
        ]
        words += ["-iface", "eth0", "-hosts", ",".join(self.names), "-ppn", str(each), "-n", str(ranks)]
        words += ["-genv", "UCX_TLS", "tcp,self", "-genv", "UCX_NET_DEVICES", "eth0"]
        return [*words, *map(str, program)]

    def run(
        self,
        command: Sequence[object],
        *,
        limit_s: float,
        environment: Mapping[str, str] | None = None,
        may_hang_at_end: bool = False,
    ) -> str:
        """Run a command on the first node; returns its stdout. Raises BenchError with the end of its stderr.

        With `may_hang_at_end` the command is ended once it has printed a whole line of JSON: MPICH 4.0 with UCX over
        TCP often does not come back from MPI_Finalize.
        """
        variables = {**os.environ, "TMPDIR": str(self.folder), **(environment or {})}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self.contained(command),
                env=variables,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
            began = time.time()
            try:
                deadline = time.monotonic() + limit_s
                while process.poll() is None and not (may_hang_at_end and _printed(out)):
                    if time.monotonic() > deadline:
                        raise BenchError(f"no end within {limit_s:g} s")
                    time.sleep(_POLL_S)
            finally:
                if (ended := process.poll()) is None:
                    process.kill()
                    process.wait()
                    tidy(began)
            if ended:
                raise BenchError(f"status {ended}: {(_text(errors).strip() or _text(out).strip())[-600:]}")
            return _text(out)


def tidy(began: float) -> None:
    """Remove what launches since `began` (time since 1970, s) that were ended by force have left: folders of which no
    process holds the lock."""
    until = time.monotonic() + _TIDY_S
    while time.monotonic() < until:
        left = 0
        for folder in Path("/tmp").glob(f"waystage-io-{os.geteuid()}-*"):
            try:
                with (folder / "lock").open() as lock:
                    if folder.stat().st_mtime < began:
                        continue
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            except OSError:
                # Its processes are ending, or it is another launch's.
                left += 1
        if not left:
            return
        time.sleep(0.1)


def _printed(out: IO[bytes]) -> bool:
    return os.pread(out.fileno(), 1 << 16, 0).rstrip(b" ").endswith(b"}\n")


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")


@contextlib.contextmanager
def nodes(count: int, link_bit_s: int) -> Iterator[Nodes]:
    """`count` nodes whose links carry `link_bit_s` in each direction. Raises BenchError without root or a program."""
    if os.geteuid() != 0:
        raise BenchError("namespaces for nodes need root")
    for program in ("ip", "tc", "nsenter", "unshare", "mount", "umount"):
        installed(program)
    folder = Path(tempfile.mkdtemp(prefix="waystage-io-nodes-"))
    # Open MPI names shared memory by host, user and a job that is numbered by a process id, and each launch has its own
    # process namespace: only host names tell apart what runs beside it.
    names = tuple(f"ionode{index}-{os.getpid()}" for index in range(count))
    made = Nodes(folder, f"wsio{os.getpid()}-", names)
    try:
        _build(made, link_bit_s)
        yield made
    finally:
        _remove(made)


def _build(made: Nodes, link_bit_s: int) -> None:
    hub = f"{made.prefix}hub"
    _do("ip", "netns", "add", hub)
    _do("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
    _do("ip", "-n", hub, "link", "set", "bridge", "up")
    limit = ["root", "tbf", "rate", f"{link_bit_s}bit", "burst", str(_BURST_BYTES), "latency", _LATENCY]
    for index, name in enumerate(made.names):
        space = made.prefix + name
        _do("ip", "netns", "add", space)
        port = f"port{index}"
        _do("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
        _do("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")
        address = f"{SUBNET.rsplit('.', 1)[0]}.{index + 1}"
        _do("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        _do("ip", "-n", space, "link", "set", "eth0", "up")
        _do("ip", "-n", space, "link", "set", "lo", "up")
        _do("tc", "-n", space, "qdisc", "add", "dev", "eth0", *limit)
        _do("tc", "-n", hub, "qdisc", "add", "dev", port, *limit)
        (made.folder / f"{name}.uts").touch()
        _do("unshare", f"--uts={made.folder}/{name}.uts", "hostname", name)
    base = SUBNET.rsplit(".", 1)[0]
    lines = [f"{base}.{index + 1} {name}" for index, name in enumerate(made.names)]
    (made.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]), encoding="ascii")
    agent = made.folder / "agent"
    spaces = f"--net=/run/netns/{made.prefix}$host --uts={made.folder}/$host.uts"
    agent.write_text(
        "#!/bin/sh\n"
        "# Called in place of ssh: agent [OPTION...] HOST COMMAND...\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        f'host=$1\nshift\nexec nsenter {spaces} -- sh -c "$*"\n',
        encoding="ascii",
    )
    agent.chmod(0o755)


def _remove(made: Nodes) -> None:
    for space in [*(made.prefix + name for name in made.names), f"{made.prefix}hub"]:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
    for name in made.names:
        subprocess.run(["umount", f"{made.folder}/{name}.uts"], capture_output=True, check=False)
    shutil.rmtree(made.folder, ignore_errors=True)


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(words)}: {done.stderr.strip()}")
