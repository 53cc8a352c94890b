"""A small Gfarm: a metadata server and filesystem nodes, each in a network namespace or on loopback.

Arrives: a folder; addresses, and the namespaces that have them.
Leaves: a running Gfarm, a configuration for its clients, mounts of gfarm2fs; nothing, once stopped.
Must not know: jobs, experiments, who uses it.

    with gfarm.running(folder, [FileNode("10.0.1.1", "far1"), FileNode("10.0.1.2", "far2")]) as made:
        gfarm.mount(made, point, namespace="host3")

Hosts are known by their addresses, so that no name needs resolving, and all keys are files named by the
configurations, so that no home folder is touched. The metadata server keeps its state in memory (`config-gfarm -b
none`): it is a laboratory, and what it stores is gone when it stops. Debian's packages: gfmd, gfsd, gfarm-client,
gfarm2fs.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from waystage.gfarm import TIMEOUT_S, GfarmError, connected_nodes, run_tool
from waystage.outputs import write_whole
from waystage.worlds.lab.commands import program, require_root, run, why_no_file_system
from waystage.worlds.lab.errors import LabError, MissingProgram
from waystage.worlds.lab.processes import ProcessId, end, end_all

METADATA_PORT = 10601
NODE_PORT = 10600
PROGRAMS = {"gfmd": "gfmd", "gfsd": "gfsd", "gfhost": "gfarm-client", "gfarm2fs": "gfarm2fs"}
"""Program -> the Debian package that brings it."""

SERVICE_USER = "_gfarmfs"
"""The account that gfsd runs as, of Debian's package."""

START_S = 30.0
STOP_S = 10.0
_POLL_S = 0.1
_RECORD = "gfarm.json"


class FileNode(msgspec.Struct, frozen=True):
    """A filesystem node: its address, and the namespace that has it; None for this machine's own."""

    address: str
    namespace: str | None = None


class Gfarm(msgspec.Struct, kw_only=True):
    """A running Gfarm, as its folder records it."""

    folder: str
    server: FileNode
    nodes: list[FileNode]
    port: int
    processes: list[ProcessId] = []
    mounts: list[str] = []

    @property
    def config(self) -> Path:
        """The configuration of its clients: set GFARM_CONFIG_FILE to it."""
        return Path(self.folder) / "gfarm2.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What a client's environment needs."""
        return {"GFARM_CONFIG_FILE": str(self.config)}


def missing() -> str | None:
    """Why no Gfarm can be started here, in one sentence; None where one can."""
    return why_no_file_system("Gfarm", PROGRAMS)


def start(
    folder: Path,
    nodes: Sequence[FileNode] = (FileNode("127.0.0.1"),),
    *,
    server: FileNode | None = None,
    port: int = METADATA_PORT,
    register: bool = True,
    wait: bool = True,
) -> Gfarm:
    """Start one in `folder`, which it makes; the metadata server beside the first node unless `server` is given.

    Without `register` no node is registered, without `wait` none is waited for: the states of a Gfarm that is not
    set up completely. Raises LabError, and then nothing is left running.
    """
    reason = missing()
    if reason is not None:
        require_root("a Gfarm")
        raise MissingProgram(reason)
    if not nodes:
        raise LabError("a Gfarm needs at least one filesystem node")
    closed = next(
        (path for path in folder.absolute().parents if path.exists() and not path.stat().st_mode & 1), None
    )
    if closed is not None:
        raise LabError(
            f"{folder}: {SERVICE_USER} cannot enter {closed}: choose a folder below /run or /var/tmp"
        )
    folder.mkdir(parents=True, exist_ok=False)
    made = Gfarm(folder=str(folder), server=server or nodes[0], nodes=list(nodes), port=port)
    try:
        _configure(made)
        _launch(made, made.server, "gfmd", "-f", folder / "gfmd.conf", "-S", log="gfmd")
        _until(lambda: _answers(made), "gfmd does not answer", made, "gfmd")
        for index, node in enumerate(made.nodes):
            if register:
                _tool(
                    made,
                    *("gfhost", "-c", "-a", "x86_64-linux", "-p", str(NODE_PORT), "-n", "2"),
                    node.address,
                )
            start_node(made, index)
        if wait and register:
            wanted = {node.address for node in made.nodes}
            _until(
                lambda: wanted <= set(connected_nodes(made.environment, _within(made.server.namespace))),
                "no gfsd connects",
                made,
                "gfsd0",
            )
            # Root is root in Gfarm too, and any user of the lab may make files, as in /tmp.
            _tool(made, "gfgroup", "-m", "gfarmroot", "root")
            _tool(made, "gfgroup", "-c", "root", "root")
            _tool(made, "gfchown", "root:root", "/")
            _tool(made, "gfchmod", "1777", "/")
    except GfarmError as error:
        stop(folder)
        raise LabError(str(error)) from None
    except BaseException:
        stop(folder)
        raise
    return made


@contextmanager
def running(
    folder: Path, nodes: Sequence[FileNode] = (FileNode("127.0.0.1"),), **options: object
) -> Iterator[Gfarm]:
    """`start`, and `stop` at the end of the block."""
    made = start(folder, nodes, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        stop(folder)


def start_node(made: Gfarm, index: int) -> None:
    """Start the gfsd of one node, also again after it was killed."""
    folder, node = Path(made.folder), made.nodes[index]
    spool = folder / f"spool{index}"
    _launch(
        made,
        node,
        *(
            "gfsd",
            "-f",
            folder / f"gfsd{index}.conf",
            "-c",
            "-r",
            spool,
            "-h",
            node.address,
            "-l",
            node.address,
        ),
        log=f"gfsd{index}",
    )


def change_key(made: Gfarm, index: int) -> None:
    """Give a node another key than the metadata server's, as after an incomplete installation. For its next start."""
    key = Path(made.folder) / f"key{index}"
    text = key.read_text()
    key.write_text(re.sub(r"[0-9a-f]{8}", "0badc0de", text[::-1], count=1)[::-1])


def mount(made: Gfarm, point: Path, namespace: str | None = None, *, shared: bool = False) -> None:
    """Mount it with gfarm2fs on the directory `point`, seen by all of this machine. Raises LabError.

    gfarm2fs gives all files to the user of Gfarm that mounts it. With `shared` every user of this machine may use it
    as that user, root of the laboratory's Gfarm; otherwise the kernel keeps them from root's files.
    """
    options = "allow_other,nosuid,nodev" + ("" if shared else ",default_permissions")
    command = [program("gfarm2fs"), "-o", options, str(point)]
    done = subprocess.run(
        [*_within(namespace), *command],
        env={**os.environ, **made.environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"gfarm2fs cannot mount {point}: {reason[-1] if reason else 'no reason given'}")
    made.mounts.append(str(point))
    _record(made)


def unmount(point: Path) -> None:
    """Unmount it, also where its process was killed. Nothing where it is not mounted."""
    with suppress(LabError):
        run(["umount", "-l", str(point)])


def stop(folder: Path) -> None:
    """Unmount it everywhere, end its processes, and remove the folder. Nothing where there is none."""
    try:
        made = msgspec.json.decode((folder / _RECORD).read_bytes(), type=Gfarm)
    except (OSError, msgspec.MsgspecError):
        made = None
    if made is not None:
        for point in made.mounts:
            unmount(Path(point))
        # The nodes first: they report to the metadata server that they leave.
        for process in reversed(made.processes):
            end(process, STOP_S)
        # Children that a killed gfsd left.
        end_all(lambda: _processes_of(folder), STOP_S)
    shutil.rmtree(folder, ignore_errors=True)


def load(folder: Path) -> Gfarm:
    """The Gfarm that another process started in `folder`. Raises LabError."""
    try:
        return msgspec.json.decode((folder / _RECORD).read_bytes(), type=Gfarm)
    except (OSError, msgspec.MsgspecError):
        raise LabError(f"{folder}: there is no Gfarm in it") from None


def _configure(made: Gfarm) -> None:
    folder = Path(made.folder)
    service = pwd.getpwnam(SERVICE_USER)
    prefix = folder / "gfmd"
    done = subprocess.run(
        [
            *(program("config-gfarm"), "-N", "--prefix", str(prefix), "-S", "-b", "none"),
            *("-h", made.server.address, "-m", str(made.port), "-A", "root"),
        ],
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
        env={**os.environ, "HOME": "/root", "USER": "root", "LOGNAME": "root"},
    )
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"config-gfarm failed: {words[-1] if words else done.returncode}")
    _record(made)
    server = (prefix / "etc/gfmd.conf").read_text()
    client = (prefix / "etc/gfarm2.conf").read_text()
    key = folder / "key"
    write_whole(folder / "gfmd.conf", f"{server}shared_key_file {key}\n".encode())
    # Clients of a laboratory give up after seconds, not after half a minute.
    quick = "no_file_system_node_timeout 5\ngfmd_reconnection_timeout 5\n"
    write_whole(made.config, f"{client}{quick}shared_key_file {key}\n".encode())
    run_tool("gfkey", "-f", "-p", str(365 * 86400), env=made.environment)
    for index in range(len(made.nodes)):
        own, spool = folder / f"key{index}", folder / f"spool{index}"
        shutil.copyfile(key, own)
        own.chmod(0o600)
        spool.mkdir()
        for path in (own, spool):
            os.chown(path, service.pw_uid, service.pw_gid)
        write_whole(folder / f"gfsd{index}.conf", f"{client}shared_key_file {own}\n".encode())
    folder.chmod(0o755)


def _within(namespace: str | None) -> list[str]:
    """Only the network's namespace: `ip netns exec` would hide mounts from the rest of the machine."""
    return [] if namespace is None else [program("nsenter"), f"--net=/run/netns/{namespace}"]


def _tool(made: Gfarm, *command: str, timeout_s: float = TIMEOUT_S) -> str:
    """Run a client's command where the metadata server is. Raises GfarmError."""
    within = _within(made.server.namespace)
    return run_tool(*within, *command, env=made.environment, timeout_s=timeout_s)


def _launch(made: Gfarm, node: FileNode, *command: object, log: str) -> None:
    name, *rest = map(str, command)
    with (Path(made.folder) / f"{log}.log").open("ab") as output:
        process = subprocess.Popen(
            # In the foreground (-d), so that its number is known.
            [*_within(node.namespace), program(name), *rest, "-d", "-L", "notice"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            # Not a session: gfsd makes a process group for itself.
            process_group=0,
        )
    known = ProcessId.of(process.pid)
    if known is not None:
        made.processes.append(known)
        _record(made)


def _processes_of(folder: Path) -> list[int]:
    """Gfarm's processes with files of this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = any(word.startswith(os.fsencode(folder) + b"/") for word in words[1:])
                if mine and os.path.basename(words[0]) in (b"gfmd", b"gfsd"):
                    found.append(int(entry.name))
    return found


def _record(made: Gfarm) -> None:
    write_whole(Path(made.folder) / _RECORD, msgspec.json.encode(made))


def _answers(made: Gfarm) -> bool:
    try:
        _tool(made, "gfls", "/", timeout_s=STOP_S)
    except GfarmError:
        return False
    return True


def _until(condition: Callable[[], bool], what: str, made: Gfarm, log: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() >= deadline:
            path = Path(made.folder) / f"{log}.log"
            words = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
            raise LabError(
                f"Gfarm: {what} within {START_S:.0f} s: {words[-1] if words else 'its log is empty'}"
            )
        time.sleep(_POLL_S)
