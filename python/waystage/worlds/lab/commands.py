"""Running the tools of iproute2, Open vSwitch and util-linux.

Arrives: argument vectors and batches.
Leaves: their output, or `LabError` with the tool's own first words.
Must not know: what a lab is made of.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from waystage.worlds.lab.errors import LabError, MissingProgram, NotRoot

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ss": "iproute2",
    "ethtool": "ethtool",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
    "ovsdb-tool": "openvswitch-common",
    "ovsdb-server": "openvswitch-switch",
    "ovs-vswitchd": "openvswitch-switch",
    "ovs-vsctl": "openvswitch-switch",
    "ovs-ofctl": "openvswitch-common",
    "lldpd": "lldpd",
    "mpirun": "openmpi-bin",
    "mpicc": "libopenmpi-dev",
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "sbatch": "slurm-client",
}
"""Program -> the Debian package that brings it."""

SEARCH_PATH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
"""A user's PATH may lack the sbin folders, where half of these tools live."""

TIMEOUT_S = 60.0  # none of these tools takes a second; one that hangs must not hang the lab


_MARK = "WAYSTAGE_TOOL_OF"


def mark() -> str:
    """NAME=VALUE in the environment of every tool this process runs: Ctrl-C can come after a tool has begun and
    before anyone has noted that it has."""
    return f"{_MARK}={os.getpid()}"


def require(*programs: str) -> None:
    """Raises MissingProgram naming every absent program's package."""
    missing = [p for p in programs if shutil.which(p, path=SEARCH_PATH) is None]
    if missing:
        packages = " ".join(sorted({PACKAGES.get(p, p) for p in missing}))
        raise MissingProgram(
            f"{', '.join(missing)} not found on this machine: install with 'apt-get install {packages}'"
        )


def require_root(doing: str) -> None:
    """Raises NotRoot, before anything is done."""
    if os.geteuid() != 0:
        raise NotRoot(f"{doing} needs root: run it with sudo, or as root in a container")


def program(name: str) -> str:
    """The program's full path. Raises MissingProgram."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        require(name)
        raise MissingProgram(f"{name} not found on this machine")
    return path


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with a complete PATH and untranslated messages."""
    return {**os.environ, "PATH": SEARCH_PATH, "LC_ALL": "C.UTF-8", **(extra or {})}


def run(
    argv: Sequence[str],
    *,
    text_in: str | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> str:
    """Run to the end; its stdout. Raises LabError with the first line of its stderr."""
    try:
        done = subprocess.run(
            [*_with_us(), program(argv[0]), *argv[1:]],
            input=text_in,
            stdin=subprocess.DEVNULL if text_in is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment({**(env or {}), _MARK: str(os.getpid())}),
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"'{_shown(argv)}' did not end within {TIMEOUT_S:.0f} s") from None
    if check and done.returncode != 0:
        raise LabError(f"'{_shown(argv)}' failed: {first_line(done.stderr or done.stdout, done.returncode)}")
    return done.stdout


def run_together(scripts: Mapping[str, tuple[Sequence[str], str]], at_once: int = 4) -> None:
    """Run several (argv, stdin), a few at a time. Raises LabError naming the first that failed."""
    waiting = list(scripts.items())
    running: list[tuple[str, subprocess.Popen[str]]] = []
    failure: str | None = None
    try:
        while waiting or running:
            while waiting and len(running) < at_once and failure is None:
                name, (argv, text) = waiting.pop(0)
                process = subprocess.Popen(
                    [*_with_us(), program(argv[0]), *argv[1:]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    env=environment({_MARK: str(os.getpid())}),
                )
                assert process.stdin is not None
                try:
                    process.stdin.write(text)
                    process.stdin.close()
                except BrokenPipeError:
                    pass  # it failed early; its stderr says why
                process.stdin = None
                running.append((name, process))
            if not running:
                break
            name, process = running.pop(0)
            _, stderr = process.communicate(timeout=TIMEOUT_S)
            if process.returncode != 0 and failure is None:
                failure = f"setting up {name} failed: {first_line(stderr, process.returncode)}"
    finally:
        for _, process in running:
            process.kill()
            process.wait()
    if failure is not None:
        raise LabError(failure)


def _with_us() -> list[str]:
    """A tool must not go on making namespaces after its caller was killed: what it made would be missed
    by the clean-up. Daemons that it starts are not concerned, since the wish is not inherited.

    A caller that was killed before the kernel knew of the wish is no longer the parent: then the tool is not run.
    """
    is_ours = '[ "$PPID" = "$0" ] && exec "$@"'
    return [program("setpriv"), "--pdeathsig", "KILL", "--", program("sh"), "-c", is_ours, str(os.getpid())]


def first_line(text: str, status: int) -> str:
    """What a tool complained about, or its status where it said nothing."""
    for line in text.splitlines():
        if line.strip():
            return line.strip()[:300]
    return f"exit status {status}" if status >= 0 else f"ended by signal {-status}"


def _shown(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    return text if len(text) <= 120 else text[:120] + "..."


def why_no_file_system(what: str, programs: Mapping[str, str]) -> str | None:
    """Why no `what` can be started and mounted here, in one sentence; None where one can.

    `programs` maps each program that it needs to the Debian package that brings it.
    """
    if os.geteuid() != 0:
        return f"a {what} needs root"
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    absent = [name for name in programs if shutil.which(name, path=path) is None]
    if absent:
        packages = " ".join(sorted({programs[name] for name in absent}))
        return f"{', '.join(absent)} not found on this machine: install with 'apt-get install {packages}'"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse to mount with"
    return None
