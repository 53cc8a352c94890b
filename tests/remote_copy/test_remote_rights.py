"""What a server may give to a client's files: contents, but no rights on the client's machine, unless the client says so."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from remote_copy_support import Site

ROOT = os.geteuid() == 0
LARGE = b"large" * (1 << 20)
"""More than one message holds."""
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
"""cap_net_bind_service, effective and permitted, as setcap(8) writes it."""


def hostile(folder: Path) -> None:
    """Every kind of entry that carries a mode, with every bit that gives rights."""
    (folder / "directory").mkdir()
    (folder / "directory/small").write_bytes(b"small")
    (folder / "large").write_bytes(LARGE)
    os.link(folder / "directory/small", folder / "linked")
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to("large")
    for name in ("directory/small", "large", "fifo"):
        if ROOT:
            os.chown(folder / name, 1234, 1235)
        os.chmod(folder / name, 0o6755)
    if ROOT:
        for name in ("directory/small", "large", "directory"):
            os.setxattr(folder / name, "trusted.waystage", b"x")
        os.setxattr(folder / "large", "security.capability", CAPABILITY)
        os.mknod(folder / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.lchown(folder / "link", 1234, 1235)
        os.chown(folder / "directory", 1234, 1235)
    os.chmod(folder / "directory", 0o7777)
    os.chmod(folder, 0o6755)


def rights(tree: Path) -> dict[str, str]:
    """Entries of a tree that carry a right, and which."""
    found = {}
    for path in (tree, *tree.rglob("*")):
        status = path.lstat()
        name = str(path.relative_to(tree))
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            found[name] = "device"
        elif status.st_mode & 0o6000 and not path.is_symlink():
            found[name] = oct(status.st_mode)
        elif (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            found[name] = "owner"
        elif any(not key.startswith("user.") for key in os.listxattr(path, follow_symlinks=False)):
            found[name] = "attribute"
    return found


@pytest.mark.parametrize(
    "more", [(), ("--no-owners",), ("--update", "content", "--verify"), ("--connections", "2")]
)
def test_a_server_gives_no_rights_to_a_clients_files(
    site: Site, tmp_path: Path, more: tuple[str, ...]
) -> None:
    hostile(site.given)
    os.setxattr(site.given / "large", "user.kept", b"yes")
    site.serve()
    to = tmp_path / "to"
    # An existing file is repaired, which is another way to a mode.
    for name, contents in (("large", LARGE), ("old", b"")):
        to.mkdir(exist_ok=True)
        (to / name).write_bytes(contents)
    for _ in range(2):
        done = site.copy(f"ada@127.0.0.1:{site.given}", to, *more).expect(8)
        assert rights(to) == {}
    assert (to / "large").read_bytes() == LARGE
    assert stat.S_IMODE((to / "large").stat().st_mode) == 0o755
    assert stat.S_IMODE((to / "directory").stat().st_mode) == 0o1777
    assert os.getxattr(to / "large", "user.kept") == b"yes"
    assert stat.S_ISFIFO((to / "fifo").stat().st_mode)
    said = done.json
    assert said["counts"]["lost"] > 0
    told = " ".join(text for problem in said["problems"] for text in map(str, problem.values()))
    assert "--privileged" in told
    if ROOT and "--no-owners" not in more:
        assert any("owners" in note for note in said["notes"])


@pytest.mark.skipif(not ROOT, reason="only root gives files away and makes devices")
def test_a_client_takes_rights_from_a_server_where_it_says_so(site: Site, tmp_path: Path) -> None:
    hostile(site.given)
    site.serve()
    to = tmp_path / "to"
    site.copy(f"ada@127.0.0.1:{site.given}", to, "--privileged").expect()
    for name in (".", "large", "linked", "directory", "directory/small", "fifo", "link", "device"):
        one, other = (site.given / name).lstat(), (to / name).lstat()
        assert (one.st_mode, one.st_uid, one.st_gid) == (other.st_mode, other.st_uid, other.st_gid), name
    assert os.getxattr(to / "large", "security.capability") == CAPABILITY
    assert os.getxattr(to / "directory", "trusted.waystage") == b"x"


def test_a_single_file_brings_no_rights_either(site: Site, tmp_path: Path) -> None:
    hostile(site.given)
    site.serve()
    (tmp_path / "to").mkdir()
    for name in ("large", "directory/small"):
        site.copy(f"ada@127.0.0.1:{site.given}/{name}", tmp_path / "to/file").expect(8)
        assert rights(tmp_path / "to") == {}
