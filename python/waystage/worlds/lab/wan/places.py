"""Where a path keeps what: namespaces, folder, socket; and removing all of it.

Arrives: a path's name.
Leaves: names and paths; a machine without a trace of the path.
Must not know: what a path is like.

Everything is named after the path, so that it is found and removed whoever made it, however that ended. TUN devices are not
in the list: they go with the process that holds them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from waystage.worlds.lab.commands import mark, program, run
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.places import NETNS_ROOT
from waystage.worlds.lab.processes import ProcessId, end_all, in_namespaces, own_children

SIDES = ("left", "right")
DEVICE = "wan0"
END_GRACE_S = 1.5

_NAME = re.compile(r"^[A-Za-z0-9_]{1,16}$")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder is of. `up` when everything was there; `unmount_netns`: this path made /run/netns a mount."""

    name: str
    kind: str
    up: bool = False
    unmount_netns: bool = False
    about: str = ""


def root() -> Path:
    """The folder of this user's paths."""
    if os.geteuid() == 0:
        return Path("/run/waystage-wan")
    given = os.environ.get("XDG_RUNTIME_DIR")
    if given and Path(given).is_dir():
        return Path(given) / "waystage-wan"
    return Path(tempfile.gettempdir()) / f"waystage-wan-{os.geteuid()}"


class Places:
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
    def process(self) -> ProcessId | None:
        """The path's process, whether or not it lives."""
        try:
            return msgspec.json.decode((self.folder / "process.json").read_bytes(), type=ProcessId)
        except (OSError, msgspec.MsgspecError):
            return None

    def write(self, record: Record) -> None:
        """Whole or not at all."""
        draft = self.record.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(record))
        os.replace(draft, self.record)

    def read(self) -> Record | None:
        """None where there is no record, or none that can be read."""
        try:
            return msgspec.json.decode(self.record.read_bytes(), type=Record)
        except (OSError, msgspec.MsgspecError):
            return None

    def remove_all(self) -> None:
        """End the path's process and whatever runs at its ends, then remove the namespaces and the folder.

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
            raise LabError(f"path '{self.name}' could not be taken down whole: {failures[0]}")

    def _processes(self) -> list[int]:
        own = self.process
        serving = [own.pid] if own is not None and own.alive else []
        return [*serving, *own_children(mark()), *in_namespaces(self.namespace_files())]
