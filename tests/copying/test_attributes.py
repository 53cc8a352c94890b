"""Attributes from one file system to another: access control lists, capabilities, labels, projects; no user gets more rights."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from copying_trees import add_socket
from harness import IMPORTED_LATER, WAIT_S, Waystage

MAKERS = {
    "ext4": ("32M", ["mkfs.ext4", "-q", "-F", "-I", "256"]),
    "xfs": ("300M", ["mkfs.xfs", "-q", "-f"]),
    "btrfs": ("128M", ["mkfs.btrfs", "-q", "-f"]),
}
WITH_PROJECTS = {"ext4": ["-O", "project,quota"]}
"""The options of mkfs for projects; kernels without quotas refuse to mount what it makes then."""

ALL = [*MAKERS, "tmpfs"]
NO_ONE, OTHER_ID = 65534, 12345

GET, SET = 0x801C581F, 0x401C5820  # FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR of linux/fs.h
FSXATTR = struct.Struct("=IIIII8x")
INHERIT = 0x200

CAPABILITY = struct.pack("<IIIII", 0x02000001, 0x400, 0, 0, 0)  # cap_net_bind_service+ep, linux/capability.h

Places = dict[str, Path]


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    """Small file systems of every sort that can be made here, mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting file systems needs root")
    # Where other users reach it, as they do not pytest's own.
    folder, made = Path(tempfile.mkdtemp(prefix="waystage-test-")), Places()
    folder.chmod(0o755)
    try:
        for name in [*ALL, "ramfs"]:
            point = folder / name
            point.mkdir()
            if any(mounted(name, point, more) for more in (WITH_PROJECTS.get(name, []), [])):
                made[name] = point
                point.chmod(0o777)
        yield made
    finally:
        for point in made.values():
            subprocess.run(["umount", "-l", str(point)], check=False)
        # Not what a mount that stayed may hold.
        for entry in folder.iterdir():
            entry.unlink() if entry.is_file() else entry.rmdir()
        folder.rmdir()


def mounted(name: str, point: Path, more: list[str]) -> bool:
    """Whether a new file system of this sort is at `point` now."""
    mount = ["mount", "-t", name, name, str(point)]
    if name in MAKERS:
        size, maker = MAKERS[name]
        environment = os.environ | {"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        if shutil.which(maker[0], path=environment["PATH"]) is None:
            return False
        image = point.with_suffix(".img")
        subprocess.run(["truncate", "-s", size, str(image)], check=True)
        subprocess.run([*maker, *more, str(image)], check=True, capture_output=True, env=environment)
        mount = ["mount", "-o", "loop", str(image), str(point)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


def place(places: Places, name: str, folder: str) -> Path:
    if name not in places:
        pytest.skip(f"no {name} can be made here")
    path = places[name] / folder
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    return path


def acl(*entries: tuple[int, int, int]) -> bytes:
    """A list as the kernel takes it: tag, rights, id."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


UNDEFINED_ID = 0xFFFFFFFF
LIST = acl(
    (1, 6, UNDEFINED_ID), (2, 6, OTHER_ID), (4, 0, UNDEFINED_ID), (16, 6, UNDEFINED_ID), (32, 0, UNDEFINED_ID)
)
"""user::rw-, user:12345:rw-, group::---, mask::rw-, other::---: the mode's group bits say rw-."""


def set_project(path: Path, number: int, flags: int = 0) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fields = list(FSXATTR.unpack(fcntl.ioctl(descriptor, GET, bytes(FSXATTR.size))))
        fields[0], fields[3] = fields[0] | flags, number
        fcntl.ioctl(descriptor, SET, FSXATTR.pack(*fields))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def project_of(path: Path) -> tuple[int, bool]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fields = FSXATTR.unpack(fcntl.ioctl(descriptor, GET, bytes(FSXATTR.size)))
        return fields[3], bool(fields[0] & INHERIT)
    except OSError:
        return 0, False
    finally:
        os.close(descriptor)


def fill(root: Path) -> int:
    """A tree with all that may be set on the file system; how many entries have a project."""
    for name in ("list", "capability", "labels", "plain", "project"):
        (root / name).write_text(name)
        (root / name).chmod(0o640)
    os.setxattr(root / "list", "system.posix_acl_access", LIST)
    os.chown(root / "capability", OTHER_ID, OTHER_ID)
    os.setxattr(root / "capability", "security.capability", CAPABILITY)
    for name in ("user.waystage", "trusted.waystage", "security.waystage", "security.selinux"):
        os.setxattr(root / "labels", name, name.encode() + b"\0")
    (root / "folder").mkdir()
    os.setxattr(root / "folder", "system.posix_acl_default", LIST)
    (root / "folder/inherits").write_text("x")
    (root / "folder/not").write_text("x")
    os.removexattr(root / "folder/not", "system.posix_acl_access")
    (root / "folder/not").chmod(0o604)
    (root / "link").symlink_to("nowhere")
    os.setxattr(root / "link", "trusted.waystage", b"of a link", follow_symlinks=False)
    os.mkfifo(root / "fifo", 0o640)
    os.setxattr(root / "fifo", "system.posix_acl_access", LIST)
    (root / "projects").mkdir()
    made = set_project(root / "project", 42) and set_project(root / "projects", 43, INHERIT)
    return 2 if made else 0


def own_attributes(path: Path) -> dict[str, bytes]:
    """Those that are not another face of an access control list."""
    names = os.listxattr(path, follow_symlinks=False)
    kept = [name for name in names if not name.startswith("trusted.SGI_")]
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in kept}


def state(root: Path, *, projects: bool) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        about = path.lstat()
        number = (0, False)
        if projects and stat.S_IFMT(about.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
            number = project_of(path)
        rights = (oct(about.st_mode), about.st_uid, about.st_gid)
        found[str(path.relative_to(root))] = (rights, own_attributes(path), number)
    return found


def copied(source: Path, destination: Path, **options: bool) -> dict[str, int]:
    """As the command line does, without its start."""
    from waystage._native import TreeCopy
    from waystage.native_options.copies import TreeCopyOptions

    copying = TreeCopy(source, destination, TreeCopyOptions(workers=2, **options))
    assert copying.wait(WAIT_S)
    counts = copying.progress()
    assert counts["errors"] + counts["changed"] == 0, copying.problems()
    return counts


@pytest.mark.parametrize(("one", "other"), [*permutations(ALL, 2), ("xfs", "xfs")])
def test_all_attributes_arrive_or_are_counted(places: Places, one: str, other: str) -> None:
    source, to = place(places, one, "tree"), place(places, other, "copies")
    projects = fill(source)
    (to / "probe").touch()
    keeps = set_project(to / "probe", 42)
    counts = copied(source, to / "copy")
    assert counts["lost"] == (0 if keeps else projects)
    assert state(to / "copy", projects=keeps) == state(source, projects=keeps)
    again = copied(source, to / "copy")
    assert again["lost"] == counts["lost"]
    if keeps:
        assert again["mended"] == 0
    # What another copy there would have left.
    for command in (["cp", "-a"], ["rsync", "-aHAXS"]):
        # Onto XFS, rsync takes away access control lists: it removes `trusted.SGI_ACL_FILE`, in which they are stored.
        if shutil.which(command[0]) is None or (command[0], other) == ("rsync", "xfs"):
            continue
        peer = to / command[0]
        peer.mkdir()
        subprocess.run([*command, f"{source}/.", str(peer)], check=False, capture_output=True)
        for name in ("list", "plain", "folder", "folder/inherits", "folder/not"):
            rights = ("system.posix_acl_access", "system.posix_acl_default")
            ours, theirs = (
                {key: value for key, value in own_attributes(root / name).items() if key in rights}
                for root in (to / "copy", peer)
            )
            assert ours == theirs, (command, name)
            assert (to / "copy" / name).stat().st_mode == (peer / name).stat().st_mode, (command, name)


@pytest.mark.parametrize("other", ALL)
def test_only_what_users_and_copies_set_is_taken_away(places: Places, other: str) -> None:
    if "ext4" not in places:
        pytest.skip("no ext4 can be made here")
    source, to = place(places, "ext4", "tree"), place(places, other, "copies")
    for root in (source, to):
        (root / "file").write_text("x")
        (root / "file").chmod(0o644)
        os.utime(root / "file", ns=(0, 10**18))
    for name in ("user.own", "trusted.of-the-administrator", "security.of-the-system"):
        os.setxattr(to / "file", name, b"1")
    os.setxattr(to / "file", "security.capability", CAPABILITY)
    os.setxattr(to / "file", "system.posix_acl_access", LIST)
    counts = copied(source, to)
    assert (counts["mended"], counts["lost"]) == (1, 0)
    assert set(own_attributes(to / "file")) == {"trusted.of-the-administrator", "security.of-the-system"}
    assert stat.S_IMODE((to / "file").stat().st_mode) == 0o644
    assert copied(source, to)["same"] == 1


@pytest.mark.parametrize("one", ["ext4", "xfs"])
def test_where_a_list_cannot_be_kept_no_user_gets_more_rights(places: Places, one: str) -> None:
    source, to = place(places, one, "tree"), place(places, "ramfs", "copies")
    fill(source)
    counts = copied(source, to / "copy")
    assert counts["lost"] >= 5
    for name in ("list", "fifo", "folder/inherits"):
        assert oct(stat.S_IMODE((to / "copy" / name).lstat().st_mode)) == "0o600", name
    again = copied(source, to / "copy")
    assert again["lost"] == counts["lost"]


def test_without_extended_attributes_the_mask_is_not_the_group_s_right(places: Places) -> None:
    source, to = place(places, "ext4", "tree"), place(places, "tmpfs", "copies")
    fill(source)
    counts = copied(source, to / "copy", xattrs=False)
    assert counts["lost"] == 0, "it was asked for"
    assert stat.S_IMODE((to / "copy/list").stat().st_mode) == 0o600
    assert copied(source, to / "copy", xattrs=False)["mended"] == 0


def test_a_project_of_the_destination_stays(places: Places) -> None:
    source, to = place(places, "xfs", "tree"), place(places, "xfs", "copies")
    assert fill(source) == 2 and set_project(to, 7, INHERIT)
    counts = copied(source, to / "copy")
    assert counts["lost"] == 2
    assert {project_of(to / "copy" / name) for name in ("plain", "project")} == {(7, False)}
    assert project_of(to / "copy/projects") == (7, True)


def test_times_that_the_destination_does_not_know_are_counted(places: Places) -> None:
    tmpfs, to = place(places, "tmpfs", "tree"), place(places, "ext4", "copies")
    (tmpfs / "file").write_text("x")
    os.utime(tmpfs / "file", ns=(0, 30_000_000_000 * 10**9))
    if (tmpfs / "file").stat().st_mtime_ns != 30_000_000_000 * 10**9:
        pytest.skip("this tmpfs does not know the year 2920")
    assert copied(tmpfs, to / "copy")["lost"] == 1


def test_a_user_keeps_what_a_user_may_and_the_rest_is_counted(places: Places) -> None:
    source, to = place(places, "xfs", "tree"), place(places, "ext4", "copies")
    fill(source)
    for path in [source, *source.rglob("*")]:
        os.chown(path, NO_ONE, NO_ONE, follow_symlinks=False)
    os.setxattr(source / "capability", "security.capability", CAPABILITY)
    # Root may have a Python that others cannot reach: rights are given up after the start.
    code = (
        f"import os, sys, waystage._native, waystage.catalog.store, waystage.cli.copy, {IMPORTED_LATER}\n"
        "from waystage.cli.main import main\n"
        "os.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", code, "copy", str(source), str(to / "copy"), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    assert ran.returncode == 8, ran
    assert ("capability", "lost") in {(p["path"], p["kind"]) for p in json.loads(ran.stdout)["problems"]}
    assert own_attributes(to / "copy/list") == {"system.posix_acl_access": LIST}
    assert own_attributes(to / "copy/labels")["user.waystage"] == b"user.waystage\0"
    assert own_attributes(to / "copy/folder") == {"system.posix_acl_default": LIST}
    for name in ("list", "folder", "folder/inherits", "folder/not", "plain"):
        assert (to / "copy" / name).stat().st_mode == (source / name).stat().st_mode, name


def test_the_command_line_says_what_was_not_kept(places: Places, waystage: Waystage) -> None:
    source, to = place(places, "xfs", "tree"), place(places, "ramfs", "copies")
    (source / "file").write_text("x")
    os.setxattr(source / "file", "system.posix_acl_access", LIST)
    add_socket(source / "socket")
    ran = waystage("copy", str(source), str(to / "copy"), "--json")
    assert ran.code == 8
    kinds = {problem["path"]: problem["kind"] for problem in ran.json["problems"]}
    assert kinds == {"file": "lost", "socket": "skipped"}
    assert "system.posix_acl_access" in ran.out
