"""A small GlusterFS: one volume of sharded files over bricks, its server in a network namespace or on this machine.

Arrives: a folder; the server's address and namespace; the number of bricks, replicas, the size of a shard.
Leaves: a started volume, mounts of it for clients in any namespace; nothing, once stopped.
Must not know: jobs, experiments, who uses it.

    with glusterfs.running(folder, server="host0", address="10.0.0.1") as made:
        glusterfs.mount(made, point, namespace="host3")

All files of the daemon are in `folder`, whose path must be short: sockets have names of at most 107 bytes. Bricks ask
their daemon at port 24007, which cannot be changed: one volume a namespace. An ordinary mount tells on which brick the
first shard of a file is; one with `layouts` has the option `client-pid=-1` and shows each shard, and is for reading
layouts alone (docs/reference/layouts.md).
Debian's packages: glusterfs-server, glusterfs-client.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from waystage.outputs import write_whole
from waystage.worlds.lab.commands import (
    environment,
    first_line,
    program,
    require_root,
    run,
    why_no_file_system,
)
from waystage.worlds.lab.errors import LabError, MissingProgram
from waystage.worlds.lab.processes import end_all

PROGRAMS = {"glusterd": "glusterfs-server", "gluster": "glusterfs-server", "glusterfs": "glusterfs-client"}
"""Program -> the Debian package that brings it."""

PORT = 24007
VOLUME = "scratch"
BLOCK = "4MB"
"""The smallest shard of a volume."""

START_S = 60.0
STOP_S = 10.0
MOST_FOLDER_BYTES = 60
"""A brick's socket is `run/` and some 40 bytes below the folder, of the 107 that a socket's name has."""

_POLL_S = 0.2
_RECORD = "glusterfs.json"


class GlusterFs(msgspec.Struct, kw_only=True):
    """A started volume, as its folder records it."""

    folder: str
    address: str
    server: str | None
    """The namespace of its daemon and bricks; None for this machine's own."""
    bricks: int
    volume: str = VOLUME
    mounts: list[str] = []


def missing(server: str | None = None) -> str | None:
    """Why none can be started here, in one sentence; None where one can."""
    reason = why_no_file_system("GlusterFS", PROGRAMS)
    if reason is not None:
        return reason
    if server is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return f"port {PORT} is taken: another GlusterFS runs here"
    return None


def start(
    folder: Path,
    *,
    server: str | None = None,
    address: str | None = None,
    bricks: int = 4,
    replicas: int = 1,
    shard: str = BLOCK,
    storage: Path | None = None,
) -> GlusterFs:
    """Start a volume. `address` is the server's in its namespace, by default this machine's name.

    `storage` is the folder of the bricks, by default below `folder`. Raises LabError, and then nothing is left running.
    """
    reason = missing(server)
    if reason is not None:
        require_root("a GlusterFS")
        raise MissingProgram(reason)
    if server is not None and address is None:
        raise LabError("a GlusterFS in a namespace needs the server's address there")
    if len(os.fsencode(folder)) > MOST_FOLDER_BYTES:
        raise LabError(
            f"{folder}: choose a folder of at most {MOST_FOLDER_BYTES} bytes: sockets are below it"
        )
    if bricks % replicas:
        raise LabError(f"{bricks} bricks cannot hold {replicas} replicas of each file: take a multiple")
    folder.mkdir(parents=True, exist_ok=False)
    made = GlusterFs(
        folder=str(folder), address=address or socket.gethostname(), server=server, bricks=bricks
    )
    write_whole(folder / _RECORD, msgspec.json.encode(made))
    try:
        _daemon(made)
        _volume(made, replicas, shard, storage or folder / "bricks")
    except BaseException:
        stop(folder)
        raise
    return made


@contextmanager
def running(folder: Path, **options: object) -> Iterator[GlusterFs]:
    """`start`, and `stop` at the end of the block."""
    made = start(folder, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        stop(folder)


def mount(made: GlusterFs, point: Path, namespace: str | None = None, *, layouts: bool = False) -> None:
    """Mount the volume on the directory `point`, seen by all of this machine; its client is in `namespace`.

    With `layouts` the client is a special one, as of geo-replication, to which each shard is a file: it gives a file
    the size of its first shard, and what is written through it is not sharded. Raises LabError.
    """
    folder = Path(made.folder)
    name = f"{len(made.mounts)}-{point.name}"
    command = [
        *("glusterfs", f"--volfile-server={made.address}", f"--volfile-id={made.volume}"),
        *("-l", str(folder / f"log/mount-{name}.log"), "-p", str(folder / f"run/mount-{name}.pid")),
        *("--acl", *(["--client-pid=-1"] if layouts else [])),
    ]
    _in(namespace, [*command, str(point)], "GlusterFS cannot be mounted")
    deadline = time.monotonic() + START_S
    while not os.path.ismount(point):
        if time.monotonic() >= deadline:
            raise LabError(f"{point}: GlusterFS is not mounted within {START_S:.0f} s: see {folder}/log")
        time.sleep(_POLL_S)
    made.mounts.append(str(point))
    write_whole(folder / _RECORD, msgspec.json.encode(made))


def stop(folder: Path) -> None:
    """Unmount it everywhere, end its processes, remove the folder. Nothing where there is none."""
    try:
        made = msgspec.json.decode((folder / _RECORD).read_bytes(), type=GlusterFs)
    except (OSError, msgspec.MsgspecError):
        made = None
    if made is not None:
        for point in made.mounts:
            if os.path.ismount(point):
                with suppress(LabError):
                    run(["umount", "-l", point])
    # The daemon first: it would start bricks anew.
    end_all(lambda: _processes(folder, b"glusterd"), STOP_S)
    end_all(lambda: _processes(folder, b"gluster"), STOP_S)
    shutil.rmtree(folder, ignore_errors=True)
    name = str(folder).strip("/").replace("/", "-")
    for log in Path("/var/log/glusterfs/bricks").glob(f"{name}*"):
        log.unlink(missing_ok=True)


def load(folder: Path) -> GlusterFs:
    """The volume that another process started in `folder`. Raises LabError."""
    try:
        return msgspec.json.decode((folder / _RECORD).read_bytes(), type=GlusterFs)
    except (OSError, msgspec.MsgspecError):
        raise LabError(f"{folder}: there is no GlusterFS in it") from None


def _daemon(made: GlusterFs) -> None:
    folder = Path(made.folder)
    for name in ("lib", "run", "log"):
        (folder / name).mkdir()
    (folder / "glusterd.vol").write_text(
        "volume management\n"
        "    type mgmt/glusterd\n"
        f"    option working-directory {folder}/lib\n"
        f"    option run-directory {folder}/run\n"
        f"    option glusterd-sockfile {folder}/run/glusterd.socket\n"
        "    option transport-type socket\n"
        "    option transport.address-family inet\n"
        "    option event-threads 1\n"
        "end-volume\n"
    )
    _in(
        made.server,
        [
            "glusterd",
            "-f",
            f"{folder}/glusterd.vol",
            "-p",
            f"{folder}/run/glusterd.pid",
            "-l",
            f"{folder}/log/d.log",
        ],
        "glusterd cannot be started",
    )
    deadline = time.monotonic() + START_S
    while True:
        try:
            _gluster(made, "pool", "list")
        except LabError:
            if time.monotonic() >= deadline:
                words = (folder / "log/d.log").read_text(errors="replace").strip().splitlines()
                raise LabError(
                    f"glusterd does not answer: {words[-1] if words else 'its log is empty'}"
                ) from None
            time.sleep(_POLL_S)
        else:
            return


def _volume(made: GlusterFs, replicas: int, shard: str, storage: Path) -> None:
    folders = [storage / f"brick{number}" for number in range(made.bricks)]
    for folder in folders:
        folder.mkdir(parents=True)
    bricks = [f"{made.address}:{folder}" for folder in folders]
    copies = ["replica", str(replicas)] if replicas > 1 else []
    _gluster(made, "volume", "create", made.volume, *copies, *bricks, "force")
    settings = {
        "features.shard": "on",
        "features.shard-block-size": shard,
        "nfs.disable": "on",
        # Bricks share the machine's disk: a rather full one would have all files on the first brick.
        "cluster.min-free-disk": "0%",
    }
    for key, value in settings.items():
        _gluster(made, "volume", "set", made.volume, key, value)
    _gluster(made, "volume", "start", made.volume)


def _gluster(made: GlusterFs, *command: str) -> str:
    tool = ["gluster", "--mode=script", f"--glusterd-sock={made.folder}/run/glusterd.socket"]
    return _in(made.server, [*tool, *command], f"gluster {' '.join(command[:2])} failed")


def _in(namespace: str | None, command: Sequence[str], what: str) -> str:
    """Run in a namespace's network alone: `ip netns exec` would hide mounts from the rest of the machine."""
    within = [] if namespace is None else [program("nsenter"), f"--net=/run/netns/{namespace}"]
    try:
        done = subprocess.run(
            [*within, program(command[0]), *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment(),
            timeout=START_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{what}: no answer within {START_S:.0f} s") from None
    if done.returncode != 0:
        raise LabError(f"{what}: {first_line(done.stderr or done.stdout, done.returncode)}")
    return done.stdout


def _processes(folder: Path, named: bytes) -> list[int]:
    """GlusterFS's processes with files of this folder; daemon, bricks and mounts are one program by several names."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if os.path.basename(command.split(b"\0")[0]).startswith(named) and (
                    os.fsencode(folder) + b"/" in command
                ):
                    found.append(int(entry.name))
    return found
