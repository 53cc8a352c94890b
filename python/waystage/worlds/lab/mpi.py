"""MPI jobs on the lab's hosts, with Open MPI.

Arrives: hosts in rank order, and a program: a shipped one by name, or any by path.
Leaves: a running job, all of whose processes end when it is killed.
Must not know: when jobs start, what is measured.

`mpirun` starts on the first host and reaches the others through a remote-shell agent that enters their
namespaces. The job runs in its own process namespace, so that killing it leaves no daemon
and no hung rank behind, even after a crash.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waystage.compiled import CompileError, compile_into, kept_at
from waystage.experiment.programs import PROGRAMS
from waystage.worlds.lab.commands import environment, first_line, program, require
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.wiring import PIECE_SECONDS, SUBNET

if TYPE_CHECKING:
    from waystage.worlds.lab.lab import Lab

SHIPPED = tuple(PROGRAMS)
"""Programs in the folder `programs`; compiled when first used, and again when their source changes."""

_COMMON = ("harness.c", "harness.h")
_ALONE = ("phases",)
"""Programs of one file."""
_TCP_EAGER, _TCP_FRAGMENT, _LEAST_PIECE = 65_536, 131_072, 4096
"""Open MPI's own values of `btl_tcp_eager_limit` and `btl_tcp_max_send_size`, which are the most here; and the least."""

_LEAST_WINDOW = 32_768
"""Of a receiver, in bytes: more than a path over four switches carries in the time of its answer."""

_FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")


class MpiJob(subprocess.Popen[str]):
    """A running job. All of its processes end together: `terminate` is `kill`, since the first process waits for its children."""

    def terminate(self) -> None:
        self.kill()


def start(
    lab: Lab,
    nodes: Sequence[str],
    argv: Sequence[str],
    *,
    processes_per_node: int = 1,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    **popen: Any,
) -> MpiJob:
    """Start `argv` with its first rank on `nodes[0]`; keywords are those of `subprocess.Popen`, in text mode.

    `launcher` are words before mpirun; `variables` are added to the environment.
    """
    launch = command(lab, nodes, argv, processes_per_node=processes_per_node, options=options)
    contained = [
        *lab.resources.enter_host(nodes[0]),
        program("unshare"),
        *("--pid", "--mount-proc", "--fork", "--kill-child=KILL", "--"),
        *launcher,
        *launch,
    ]
    keywords: dict[str, Any] = {
        "start_new_session": True,
        "env": environment({"TMPDIR": str(lab.run_dir / "mpi"), **(variables or {})}),
        # A program that fills its working directory fills a bounded one.
        "cwd": lab.host_dir(nodes[0]),
        **popen,
    }
    return MpiJob(contained, text=True, errors="replace", **keywords)


def command(
    lab: Lab,
    nodes: Sequence[str],
    argv: Sequence[str],
    *,
    processes_per_node: int = 1,
    options: Sequence[str] = (),
) -> list[str]:
    """The `mpirun` command line, to be started on `nodes[0]`. Raises LabError for an unknown host."""
    require("mpirun")
    if not nodes:
        raise LabError("an MPI job needs at least one node")
    for node in nodes:
        lab.host_ip(node)
    scratch = lab.run_dir / "mpi"
    scratch.mkdir(exist_ok=True)
    parameters = {
        "plm": "rsh",
        "plm_rsh_agent": str(_agent(lab, scratch)),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self",
        "btl_tcp_if_include": str(SUBNET),
        "oob_tcp_if_include": str(SUBNET),
        # More ranks than processors is the rule here: a rank that waits must let others run.
        "mpi_yield_when_idle": "1",
        "orte_tmpdir_base": str(scratch),
        "hwloc_base_binding_policy": "none",
        "rmaps_base_mapping_policy": "slot",
        "rmaps_base_no_oversubscribe": "0",
    }
    hosts = ",".join(f"{node}:{processes_per_node}" for node in nodes)
    words = [program("mpirun"), "--allow-run-as-root", "--host", hosts]
    words += ["-np", str(len(nodes) * processes_per_node)]
    parameters |= _transport(
        min(lab.topology.adjacency[node][0].capacity_bps for node in nodes),
        min(link.capacity_bps for link in lab.topology.links),
    )
    # mpirun joins two values of a parameter by a comma.
    given = {name for word, name in itertools.pairwise(options) if word in ("--mca", "-mca")}
    for name, value in parameters.items():
        if name not in given:
            words += ["--mca", name, value]
    return [*words, *options, *argv]


def _transport(bps: float, slowest_bps: float) -> dict[str, str]:
    """What a rank may have waiting on a connection: as much as its link at `bps` sends in PIECE_SECONDS.

    What is on its way is bounded likewise, by the receiver's window and the slowest link of the topology: networks for
    messages have credits. TCP alone fills the switches' queues, which its own answers in the other direction wait in.

    With what Open MPI's TCP does by default, the answer to a partner's request waits behind a rank's whole message to
    that partner, which the socket holds: two ranks that exchange 1 MB at 50 Mbit/s then do it one after the other. No
    adapter for messages has such a queue, and at its rates a message of that size takes 0.1 ms.
    """
    piece = round(bps / 8 * PIECE_SECONDS)
    fragment = max(_LEAST_PIECE, min(_TCP_FRAGMENT, piece))
    eager = max(_LEAST_PIECE, min(_TCP_EAGER, piece // 2))
    window = max(_LEAST_WINDOW, round(slowest_bps / 8 * PIECE_SECONDS))
    return {
        **({"btl_tcp_rcvbuf": str(window)} if window < _TCP_FRAGMENT else {}),
        "btl_tcp_flags": "1",  # fragments by MPI_Send's own messages: a put is one write of all
        "btl_tcp_max_send_size": str(fragment),
        "btl_tcp_rndv_eager_limit": str(eager),
        "btl_tcp_eager_limit": str(eager),
        "pml_ob1_send_pipeline_depth": "1" if fragment < _TCP_FRAGMENT else "3",
    }


def shipped(
    name: str, *, iterations: int = 50, message: int = 65536, time_s: float = 0.0, spin: bool = False
) -> list[str]:
    """The command of a shipped program, compiled if need be. `message` is bytes to each peer."""
    words = [str(build(name)), "--iterations", str(iterations), "--message", str(message)]
    words += ["--time-ms", repr(time_s * 1000)]
    return [*words, "--spin"] if spin else words


def build(name: str) -> Path:
    """The executable of a shipped program, from the cache or compiled now. Raises LabError."""
    if name not in (*SHIPPED, *_ALONE):
        raise LabError(f"there is no shipped program {ascii(name)[:40]}: there are {', '.join(SHIPPED)}")
    folder = resources.files("waystage.worlds.lab") / "programs"
    sources = {
        file: (folder / file).read_bytes() for file in (f"{name}.c", *(() if name in _ALONE else _COMMON))
    }
    binary = kept_at("programs", name, sources, *_FLAGS)
    if not binary.exists():
        _compile(name, sources, binary)
    return binary


def _compile(name: str, sources: dict[str, bytes], binary: Path) -> None:
    require("mpicc")
    try:
        compile_into(binary, (program("mpicc"), *_FLAGS), sources)
    except CompileError as error:
        raise LabError(f"mpicc could not compile {name}.c: {first_line(error.said, error.status)}") from None


def _agent(lab: Lab, scratch: Path) -> Path:
    """The remote-shell agent: `agent HOST COMMAND...`, as ssh would be called."""
    path = scratch / "agent.sh"
    if not path.exists():
        enter = " ".join(lab.resources.enter_host("$host"))
        draft = scratch / f".agent.{os.getpid()}.{threading.get_ident()}"  # jobs may start together
        draft.write_text(
            "#!/bin/sh\n"
            "# Called by mpirun in place of ssh: agent HOST COMMAND...\n"
            "host=$1\nshift\nexec "
            + enter.replace("/$host", '/"$host"').replace("-$host", '-"$host"')
            + ' sh -c "$*"\n',
            encoding="utf-8",
        )
        draft.chmod(0o755)
        os.replace(draft, path)
    return path
