"""Temporary files of what a server receives, in a directory that every user may write in: another account gets nothing of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, wait_until
from remote_copy_support import ACCOUNT, Site, parts_written

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as another account")

OTHER = 65534
SECRET = b"secret! " * (3 << 20)
"""24 MiB: six parts."""

PEEK = """
folder, seen = sys.argv[1], 0
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    for directory, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(directory, name)
            for how in (os.O_RDONLY, os.O_WRONLY):
                try:
                    os.close(os.open(path, how | os.O_NOFOLLOW))
                    print("opened", path, how, flush=True)
                except OSError:
                    seen += 1
    time.sleep(0.002)
print("seen", seen > 0)
"""
"""Tries to open everything in a folder until a file says that it is over."""

PLANT = """
path = sys.argv[1]
size = os.lstat(path).st_size
os.rename(path, path + ".aside")
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
os.fchmod(file, 0o666)
os.ftruncate(file, size)
print("planted", flush=True)
sys.stdin.readline()
held = os.pread(file, 1 << 30, 0)
print("leaked" if held.strip(bytes(1)) else "nothing", flush=True)
"""
"""Replaces another's file by its own, and returns later what was written into it."""


def as_other(code: str, *words: object) -> subprocess.Popen[str]:
    # The interpreter itself may be root's alone.
    drop = f"import os, sys, time; os.setgroups(()); os.setgid({OTHER}); os.setuid({OTHER})\n"
    argv = [sys.executable, "-I", "-c", drop + code, *map(str, words)]
    return subprocess.Popen(argv, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def folder(site: Site) -> Iterator[Path]:
    """A directory that every user may write in, which a server serves as root."""
    folder = Path(tempfile.mkdtemp(prefix="waystage-planted-"))
    folder.chmod(0o777)
    site.serve(user=f'{ACCOUNT}[[root]]\npath = "{folder}"\nwrite = true\n')
    yield folder
    shutil.rmtree(folder)


def source(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "large").write_bytes(SECRET)
    (tree / "small").write_bytes(b"secret too")
    for path in tree.iterdir():
        path.chmod(0o600)
    tree.chmod(0o777)
    return tree


def test_no_other_account_opens_what_is_on_its_way(site: Site, folder: Path, tmp_path: Path) -> None:
    over = folder.parent / f"{folder.name}.over"
    peeking = as_other(PEEK, folder, over)
    assert peeking.stdout is not None and peeking.stdout.readline() == "ready\n"
    try:
        site.copy(source(tmp_path), f"127.0.0.1:{folder}", "--bandwidth-limit", "24M").expect()
    finally:
        over.write_bytes(b"")
        out, _ = peeking.communicate(timeout=WAIT_S)
        over.unlink()
    assert out == "seen True\n"
    assert (folder / "large").read_bytes() == SECRET


def test_a_file_in_the_place_of_one_that_was_interrupted_is_not_gone_on_with(
    site: Site, folder: Path, tmp_path: Path
) -> None:
    tree = source(tmp_path)
    ends = (tree, f"127.0.0.1:{folder}")
    copying = site.begin(*ends, "--bandwidth-limit", "4M")
    journal = folder / ".waystage-copy/journal"
    wait_until(lambda: parts_written(journal) >= 2, copying)
    copying.kill()
    copying.communicate()
    (draft,) = folder.glob(".waystage-copy-*-large-*.part")
    planting = as_other(PLANT, draft)
    assert planting.stdout is not None and planting.stdout.readline() == "planted\n"
    # A server that has not noticed yet is waited for.
    site.copy(*ends).expect()
    assert planting.communicate("now\n", timeout=WAIT_S)[0] == "nothing\n"
    status = (folder / "large").stat()
    assert (folder / "large").read_bytes() == SECRET
    assert (status.st_uid, status.st_mode & 0o7777) == (0, 0o600)


def test_a_journal_of_another_account_is_not_believed(site: Site, folder: Path, tmp_path: Path) -> None:
    made = as_other("os.mkdir(sys.argv[1], 0o777)", folder / ".waystage-copy")
    assert made.wait(WAIT_S) == 0
    done = site.copy(source(tmp_path), f"127.0.0.1:{folder}")
    assert done.code == 3 and ".waystage-copy is not of a copy by this user" in done.json["error"], done
    assert not (folder / "large").exists()
