"""What a peer sends and asks for does not decide how much memory a server takes: `memory` does."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote_copy_support import ACCOUNT, Site

MOST_GROWTH_MIB = 64
"""Four times `memory`: data in flight, what is made of it, and what the allocator reserves for other threads."""

DIRECTORIES, LINKS, LARGE = 500, 20_000, 500
DEEP = "/".join("d" * 250 for _ in range(6))
"""A path that each entry below it brings along: 1.5 kB."""


@pytest.fixture(scope="module")
def given() -> Iterator[Path]:
    """A tree of little contents and much else, where directories may have long attributes if that is anywhere on this host."""
    for place in ("/dev/shm", tempfile.gettempdir()):
        folder = Path(tempfile.mkdtemp(prefix="waystage-memory-", dir=place))
        try:
            os.setxattr(folder, "user.large", bytes(45_000))
            os.removexattr(folder, "user.large")
            long_attributes = True
        except OSError:
            long_attributes = False
            if place == "/dev/shm":
                folder.rmdir()
                continue
        break
    try:
        for number in range(DIRECTORIES if long_attributes else 0):
            directory = folder / "attributes" / f"{number:04}"
            directory.mkdir(parents=True)
            for part in range(4):
                os.setxattr(directory, f"user.{part}", bytes([part]) * 45_000)
        deep = folder / DEEP
        deep.mkdir(parents=True)
        held = os.open(deep, os.O_DIRECTORY)
        try:
            for number in range(LARGE):
                file = os.open(f"large{number}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=held)
                os.ftruncate(file, (4 << 20) + 1)
                os.close(file)
            for number in range(LINKS):
                os.link("large0", f"link{number:0200}", src_dir_fd=held, dst_dir_fd=held)
        finally:
            os.close(held)
        yield folder
    finally:
        shutil.rmtree(folder)


def status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise AssertionError(key)


def grown_mib(site: Site, *words: object) -> float:
    """By how much the server was larger at most in a copy than before it."""
    assert site.process is not None
    pid = site.process.pid
    before = status_kib(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
    site.copy(*words).expect()
    return (status_kib(pid, "VmHWM") - before) / 1024


@pytest.mark.parametrize(("push", "way"), [(True, "udp"), (True, "tcp"), (False, "udp")])
def test_a_server_keeps_to_its_memory_whatever_a_tree_consists_of(
    site: Site, given: Path, push: bool, way: str
) -> None:
    place = Path(tempfile.mkdtemp(prefix="waystage-memory-to-", dir=given.parent))
    try:
        roots = "".join(f'[[root]]\npath = "{path}"\nwrite = true\n' for path in (place, given))
        site.serve(f'memory = "16Mi"\nudp = {"true" if way == "udp" else "false"}', ACCOUNT + roots)
        # What the first copy of a process takes is not of this tree.
        (site.folder / "one").write_bytes(b"one")
        assert site.copy(site.folder / "one", f"127.0.0.1:{site.data}/one").code == 0
        ends = (given, f"127.0.0.1:{place}/copy") if push else (f"127.0.0.1:{given}", place / "copy")
        grown = grown_mib(site, *ends)
        assert grown < MOST_GROWTH_MIB
        last = place / "copy" / DEEP / f"link{LINKS - 1:0200}"
        assert last.stat().st_nlink == LINKS + 1
        if (given / "attributes").exists():
            assert os.getxattr(place / "copy/attributes/0499", "user.3") == bytes([3]) * 45_000
    finally:
        shutil.rmtree(place)
