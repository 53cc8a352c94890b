"""Mounts of emulated file systems: made, found again, replaced, ended.

Arrives: a shape, a mount point, a folder.
Leaves: a process that serves it, a record of it, what it counted.
Must not know: how files are served.

The record is in /run, named after the mount point. Where the process was killed, the mount remains and does not
answer; it is found by its record, and `unmount` or the next `mount` removes it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from waystage.outputs import write_whole
from waystage.worlds.lab import daemons
from waystage.worlds.lab.commands import require_root, run
from waystage.worlds.lab.errors import LabBusy, LabError, MissingProgram
from waystage.worlds.lab.pfs.mountinfo import is_mounted
from waystage.worlds.lab.pfs.shape import MountConfig, Shape
from waystage.worlds.lab.processes import ProcessId, ask_to_end

RECORDS = Path("/run/waystage-pfs")
STATISTICS = ".waystage-statistics"
RESET = "user.waystage.reset"
READY_S = 120.0

_serving: list[subprocess.Popen[bytes]] = []
"""Kept, since the destructor of one that still runs warns, and an interrupt that comes while a destructor runs is lost."""
END_S = 30.0
_POLL_S = 0.02


class Mounted(msgspec.Struct, frozen=True, kw_only=True):
    """One mount; `serves` is its folder, or describes the generated files."""

    point: str
    shape: str
    dilation: float
    serves: str
    process: ProcessId

    @property
    def state(self) -> str:
        """`serving`; `stale` where its process is gone and the mount is not; `gone` where both are."""
        if not is_mounted(Path(self.point)):
            return "gone"
        return "serving" if self.process.alive else "stale"


def mount(point: Path, shape: Shape, folder: Path | None = None, *, shared: bool = False) -> Mounted:
    """Serve `folder`, or the files that the shape makes up, on `point`. Raises LabError and its subclasses.

    With `shared` every user may use it, with their own rights; otherwise root alone.
    """
    _check_machine()
    point = _check_point(point)
    if folder is not None:
        folder = _check_folder(folder, point)
    elif shape.tree is None:
        raise LabError(f"shape {shape.name} makes up no files: give --files and --size, or --folder")
    RECORDS.mkdir(mode=0o755, exist_ok=True)
    log = _record(point).with_suffix(".log")
    order = MountConfig(
        point=str(point), shape=shape, folder=None if folder is None else str(folder), shared=shared
    )
    process = None
    try:
        process = daemons.start(
            "waystage.worlds.lab.pfs.daemon",
            msgspec.json.encode(order),
            log,
            name=str(point),
            limit_s=READY_S,
        )
        assert process.stdin is not None
        process.stdin.close()
        identity = ProcessId.of(process.pid)
        if identity is None:
            raise LabError(f"{point}: the serving process ended at once: see {log}")
        serves = str(folder) if folder is not None else _made_up(shape)
        made = Mounted(
            point=str(point), shape=shape.name, dilation=shape.dilation, serves=serves, process=identity
        )
        write_whole(_record(point), msgspec.json.encode(made))
        _serving.append(process)
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        if is_mounted(point):
            run(["umount", "--lazy", str(point)], check=False)
        raise
    return made


def mounted() -> list[Mounted]:
    """Every mount that has a record, by mount point. Records of mounts that are gone are removed."""
    found = []
    for path in sorted(RECORDS.glob("*.json")):
        try:
            made = msgspec.json.decode(path.read_bytes(), type=Mounted)
        except (OSError, msgspec.MsgspecError):
            continue
        if made.state == "gone" and not made.process.alive:
            _forget(Path(made.point))
        else:
            found.append(made)
    return sorted(found, key=lambda made: made.point)


def find(point: Path) -> Mounted:
    """The mount on `point`. Raises LabError where there is none of ours."""
    path = _absolute(point)
    for made in mounted():
        if made.point == str(path):
            return made
    raise LabError(f"{path}: no emulated file system is mounted there: see `waystage lab pfs status`")


def unmount(point: Path, *, force: bool = False) -> str:
    """End the mount on `point`; returns what it was: `serving` or `stale`.

    Raises LabBusy where a program uses it, unless `force`: then open files are lost.
    """
    require_root("unmounting an emulated file system")
    made = find(point)
    state, path = made.state, Path(made.point)
    if state == "stale":
        run(["umount", "--lazy", str(path)])
    elif state == "serving":
        try:
            run(["umount", str(path)])
        except LabError:
            if not force:
                raise LabBusy(f"{path} is in use: leave it and close its files, or give --force") from None
            ask_to_end(made.process)
    _await_end(made)
    _forget(path)
    return state


def statistics(made: Mounted) -> dict[str, Any]:
    """What the servers did since the mount, or since `reset`. Raises LabError where its process does not answer."""
    try:
        text = (Path(made.point) / STATISTICS).read_text(encoding="ascii")
    except OSError as error:
        raise LabError(f"{made.point}: cannot be read: {error.strerror}") from None
    counted: dict[str, Any] = json.loads(text)
    return counted


def reset(made: Mounted) -> None:
    """Reset the counters."""
    try:
        os.setxattr(made.point, RESET, b"1")
    except OSError as error:
        raise LabError(f"{made.point}: cannot reset its counters: {error.strerror}") from None


def _check_machine() -> None:
    require_root("mounting an emulated file system")
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        raise MissingProgram(
            f"/dev/fuse cannot be opened ({error.strerror}): load it with `modprobe fuse`, and give it to a container "
            "with --device /dev/fuse --cap-add SYS_ADMIN"
        ) from None


def _check_point(point: Path) -> Path:
    path = _absolute(point)
    known = {made.point: made for made in mounted()}.get(str(path))
    if known is not None and known.state == "serving":
        raise LabBusy(f"{path}: an emulated file system is mounted there already: unmount it first")
    if known is not None and known.state == "stale":
        unmount(path)
    try:
        if not path.is_dir():
            raise LabError(f"{path}: is no directory to mount on: make one")
        if os.path.ismount(path):
            raise LabBusy(f"{path}: something else is mounted there: choose another directory")
        if any(path.iterdir()):
            raise LabError(f"{path}: is not empty: mount on an empty directory")
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise LabError(f"{path}: cannot be mounted on: {error.strerror}") from None
        raise LabBusy(f"{path}: a dead mount is there: take it away with `umount -l {path}`") from None
    return path


def _check_folder(folder: Path, point: Path) -> Path:
    try:
        path = folder.resolve(strict=True)
    except OSError as error:
        raise LabError(f"{folder}: cannot be served: {error.strerror}") from None
    if not path.is_dir():
        raise LabError(f"{folder}: is no directory that could be served")
    if point.is_relative_to(path) or path.is_relative_to(point):
        raise LabError(f"{folder}: the mount point must lie outside the folder, and the folder outside of it")
    return path


def _absolute(point: Path) -> Path:
    """Resolved but for its last part: to look at a dead mount fails."""
    parent = point.absolute().parent
    try:
        return parent.resolve(strict=True) / point.absolute().name
    except OSError as error:
        raise LabError(f"{point}: cannot be mounted on: {error.strerror}") from None


def _await_end(made: Mounted) -> None:
    deadline = time.monotonic() + END_S
    while made.process.alive:
        if time.monotonic() > deadline:
            raise LabError(f"{made.point}: process {made.process.pid} does not end: see its log in {RECORDS}")
        time.sleep(_POLL_S)


def _made_up(shape: Shape) -> str:
    assert shape.tree is not None, "checked before mounting"
    return f"{shape.tree.files} made-up files"


def _record(point: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(point)).hexdigest()[:16]
    return RECORDS / f"{digest}.json"


def _forget(point: Path) -> None:
    record = _record(point)
    record.with_suffix(".log").unlink(missing_ok=True)
    record.unlink(missing_ok=True)
    try:
        RECORDS.rmdir()
    except OSError:
        pass  # others are there
