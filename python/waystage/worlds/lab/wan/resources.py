"""Where a path keeps what: namespaces, folder, socket; and removing all of it.

Arrives: a path's name.
Leaves: names and paths; a machine without a trace of the path.
Must not know: what a path is like.

Everything is named after the path, so that any process can find and remove it. TUN devices are not
in the list: they go with the process that holds them.

What the folder holds decides which process is ended. So it must be the user's own, and one that no other user can write to or
put in the place of: /tmp is open to all, and a folder that another user made there is refused.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import msgspec

from waystage.worlds.lab.commands import mark, program, run
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.processes import RecordedProcess, end_all, in_namespaces, own_children
from waystage.worlds.lab.resources import NETNS_ROOT

SIDES = ("left", "right")
DEVICE = "wan0"
END_GRACE_S = 1.5

MOST_BYTES = 1 << 16
"""Records are a line each."""

_NAME = re.compile(r"^[A-Za-z0-9_]{1,16}$")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder is of. `up` when everything was there; `unmount_netns`: this path made /run/netns a mount."""

    name: str
    kind: str
    up: bool = False
    unmount_netns: bool = False
    about: str = ""


def root() -> Path:
    """The folder of this user's paths. Raises LabError where one is there that others could have filled."""
    found = _root()
    _check(found)
    return found


def make_root() -> Path:
    """The same, made where it is missing."""
    found = _root()
    if os.geteuid() != 0:  # root's is made by what claims a path
        try:
            found.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise LabError(
                f"cannot make {found}: {error.strerror}: set XDG_RUNTIME_DIR to a folder of yours"
            ) from None
    _check(found)
    return found


def _root() -> Path:
    if os.geteuid() == 0:
        return Path("/run/waystage-wan")
    given = os.environ.get("XDG_RUNTIME_DIR")
    for folder in (given, f"/run/user/{os.geteuid()}"):
        if folder and Path(folder).is_dir():
            return Path(folder) / "waystage-wan"
    return Path(tempfile.gettempdir()) / f"waystage-wan-{os.geteuid()}"


def _check(folder: Path) -> None:
    """Raises LabError where `folder` is there and is no folder of this user's alone, or could be replaced by another's."""
    remedy = "set XDG_RUNTIME_DIR to a folder of yours, of mode 0700"
    try:
        above = folder.parent.stat()
        found = folder.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise LabError(f"{folder}: {error.strerror}: {remedy}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise LabError(f"{folder} is no folder: remove it, or {remedy}")
    if found.st_uid != os.geteuid():
        raise LabError(f"{folder} belongs to another user: {remedy}")
    if found.st_mode & 0o022:
        raise LabError(f"{folder} can be written to by others: check its contents and remove it, or {remedy}")
    if above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX:
        raise LabError(f"others could replace {folder}, since they may write to {folder.parent}: {remedy}")
    if above.st_uid not in (0, os.geteuid()):
        raise LabError(f"{folder.parent} belongs to another user: {remedy}")


class PathResources:
    def __init__(self, name: str) -> None:
        if not _NAME.match(name):
            raise LabError(f"path name {ascii(name)[:40]}: use 1 to 16 letters, digits or '_'")
        self.name = name
        self.folder = root() / name
        self.lock = root() / f"{name}.lock"
        self.record = self.folder / "record.json"
        self.control = self.folder / "control"
        self.log = self.folder / "log"

    def namespace(self, side: str) -> str:
        return f"wswan-{self.name}-{side}"

    def enter(self, side: str) -> list[str]:
        if side not in SIDES:
            raise LabError(f"path '{self.name}' has no end {ascii(side)[:40]}: there are left and right")
        return [program("nsenter"), f"--net={NETNS_ROOT / self.namespace(side)}", "--"]

    def namespace_files(self) -> list[Path]:
        found = (NETNS_ROOT / self.namespace(side) for side in SIDES)
        return [file for file in found if file.exists()]

    @property
    def anything_left(self) -> bool:
        return self.folder.exists() or bool(self.namespace_files())

    @property
    def process(self) -> RecordedProcess | None:
        """The path's process, whether or not it lives."""
        data = read_own(self.folder / "process.json")
        try:
            return None if data is None else msgspec.json.decode(data, type=RecordedProcess)
        except msgspec.MsgspecError:
            return None

    def write(self, record: Record) -> None:
        """Completely or not at all."""
        draft = self.record.with_suffix(".new")
        write_own(draft, msgspec.json.encode(record))
        os.replace(draft, self.record)

    def read(self) -> Record | None:
        """None where there is no record, or none that can be read."""
        data = read_own(self.record)
        try:
            return None if data is None else msgspec.json.decode(data, type=Record)
        except msgspec.MsgspecError:
            return None

    def note_process(self) -> None:
        """This process is the path's."""
        write_own(self.folder / "process.json", msgspec.json.encode(RecordedProcess.me()))

    def remove_all(self) -> None:
        """End the path's process and the programs at its ends, then remove the namespaces and the folder.

        Goes on where one step fails, and raises LabError for the first failure at the end.
        """
        record = self.read()
        failures: list[str] = []
        stuck = end_all(self._processes, END_GRACE_S)
        if stuck:
            failures.append(f"process {stuck[0]} does not end")
        for file in self.namespace_files():
            try:
                run(["ip", "netns", "del", file.name])
            except LabError as error:
                failures.append(str(error))
        shutil.rmtree(self.folder, ignore_errors=True)
        if (
            record is not None
            and record.unmount_netns
            and NETNS_ROOT.is_dir()
            and not any(NETNS_ROOT.iterdir())
        ):
            run(["umount", str(NETNS_ROOT)], check=False)
        if failures:
            raise LabError(f"path '{self.name}' could not be taken down completely: {failures[0]}")

    def _processes(self) -> list[int]:
        own = self.process
        serving = [own.process.pid] if own is not None and own.alive else []
        return [*serving, *own_children(mark()), *in_namespaces(self.namespace_files())]


def write_own(path: Path, data: bytes) -> None:
    """A file that its owner alone reads and writes, with any umask."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)


def read_own(path: Path) -> bytes | None:
    """The contents of a file of this user's, and no link; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        return file.read(MOST_BYTES)
