"""Options of `waystage copy` that users of rsync know, between hosts: backups, filters, standard input and output, `new/`."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import WAIT_S
from remote_copy_support import Site

BOTH = pytest.mark.parametrize("push", [True, False], ids=["to the server", "from the server"])


def ends(site: Site, push: bool) -> tuple[Path, Path, tuple[object, object]]:
    """Source, destination, and both as words of the command line."""
    here, there = site.folder / "here", (site.data if push else site.given) / "tree"
    source, destination = (here, there) if push else (there, here)
    source.mkdir()
    remote = f"ada@127.0.0.1:{there}"
    return source, destination, (here, remote) if push else (remote, here)


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# -- backups


@BOTH
def test_what_is_replaced_or_deleted_is_kept(site: Site, push: bool) -> None:
    source, destination, words = ends(site, push)
    large = random.Random(5).randbytes(9 << 20)
    for root in (source, destination):
        (root / "dir").mkdir(parents=True)
        (root / "same").write_text("same")
        os.utime(root / "same", (7, 7))
        (root / "small").write_text(f"small of {root.name}")
        (root / "dir/large").write_bytes(large + root.name.encode())
        (root / "link").symlink_to(root.name)
    (source / "new").write_text("new")
    (destination / "old").write_text("old")
    kept = {"small", "dir/large", "link"}
    site.serve()
    ran = site.copy(*words, "--delete", "--backup-dir", "./kept//", "--suffix", ".was").expect()
    assert ran.json["counts"]["deleted"] == 1
    backups = destination / "kept"
    assert names(backups) == {"dir"} | {f"{name}.was" for name in kept | {"old"}}
    assert (backups / "small.was").read_text() == f"small of {destination.name}"
    assert (backups / "dir/large.was").read_bytes() == large + destination.name.encode()
    assert os.readlink(backups / "link.was") == destination.name
    assert (destination / "dir/large").read_bytes() == (source / "dir/large").read_bytes()
    # Backups are no entries of the destination, and what is the same is not kept again.
    assert site.copy(*words, "--delete", "--backup-dir", "kept").expect().json["counts"]["deleted"] == 0
    (source / "small").write_text("changed")
    site.copy(*words, "--delete", "--backup", "--exclude", "kept").expect()
    assert (destination / "small~").read_text() == f"small of {source.name}"
    assert site.copy(*words, "--delete", "--backup", "--exclude", "kept").json["counts"]["deleted"] == 0


def test_backups_stay_below_the_destination(site: Site) -> None:
    source, destination, words = ends(site, push=True)
    site.serve()
    for directory in ("/etc", "../out", "a/../../b", "."):
        ran = site.copy(*words, "--backup-dir", directory)
        assert ran.code == 2 and "backups stay below DST" in ran.out + ran.err, ran
    # A link in the way leads nowhere.
    outside = site.folder / "outside"
    outside.mkdir()
    destination.mkdir()
    (destination / "kept").symlink_to(outside)
    for root in (source, destination):
        (root / "file").write_text(root.name)
    ran = site.copy(*words, "--backup-dir", "kept/below")
    assert ran.code != 0 and not list(outside.iterdir()), ran
    assert (destination / "file").read_text() == destination.name


# -- filters


@BOTH
def test_patterns_of_a_file_sizes_and_ages_select(site: Site, push: bool) -> None:
    source, destination, words = ends(site, push)
    for name, size in (("small", 10), ("large", 5000), ("left.tmp", 10), ("old", 10)):
        (source / name).write_bytes(bytes(size))
    os.utime(source / "old", (1e9, 1e9))
    patterns = site.folder / "patterns"
    patterns.write_text("# a comment\n*.tmp\n")
    site.serve()
    site.copy(*words, "--exclude-from", patterns, "--max-size", "1K", "--max-age", "30d").expect()
    assert names(destination) == {"small"}
    site.copy(*words, "--min-size", "1K").expect()
    assert names(destination) == {"small", "large"}


# -- a slash at the end


@BOTH
def test_a_slash_at_the_end_means_a_directory(site: Site, push: bool) -> None:
    source, destination, words = ends(site, push)
    (source / "file").write_text("content")
    one, other = (f"{words[0]}/file", f"{words[1]}/")
    site.serve()
    assert site.copy(one, other, "-n").expect().json["counts"]["files"] == 1
    assert not destination.exists()
    for _ in range(2):
        site.copy(one, other).expect()
        assert names(destination) == {"file"} and (destination / "file").read_text() == "content"
    ran = site.copy(one, f"{words[1]}/file/")
    assert ran.code != 0 and "leave the slash away" in ran.out + ran.err, ran
    ran = site.copy(one, f"{words[1]}/not/there/")
    assert ran.code != 0 and "make the directory it is to lie in first" in ran.out + ran.err, ran


# -- standard input and output


def streamed(site: Site, *words: object, **given: Any) -> subprocess.CompletedProcess[bytes]:
    command = [word for word in site.copying(*words) if word != "--json"]
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        command, capture_output=True, check=False, timeout=WAIT_S, env=site.environment(), **given
    )
    return done


@pytest.mark.parametrize("size", [0, 5, 9 << 20])
def test_standard_input_and_output_are_ends_of_a_copy_with_a_server(site: Site, size: int) -> None:
    site.serve()
    content = random.Random(size).randbytes(size)
    remote = f"ada@127.0.0.1:{site.data}/file"
    for data in (b"other", content):
        done = streamed(site, "-", remote, input=data)
        assert done.returncode == 0, done
        assert (site.data / "file").read_bytes() == data
    done = streamed(site, remote, "-")
    assert done.returncode == 0 and done.stdout == content, done.stderr
    assert list(site.data.iterdir()) == [site.data / "file"]


def test_a_stream_is_no_directory_and_has_few_options(site: Site) -> None:
    site.serve()
    (site.data / "dir").mkdir()
    for path in ("dir", "dir/"):
        done = streamed(site, "-", f"ada@127.0.0.1:{site.data}/{path}", input=b"x")
        assert done.returncode != 0 and b"is a directory: give the name of a file" in done.stderr
    done = streamed(site, f"ada@127.0.0.1:{site.data}/dir", "-")
    assert done.returncode != 0 and b"is a directory" in done.stderr and not done.stdout
    done = streamed(site, f"ada@127.0.0.1:{site.data}/none", "-")
    assert done.returncode != 0 and b"none" in done.stderr
    done = streamed(site, "-", f"ada@127.0.0.1:{site.data}/x", "--verify", input=b"x")
    assert done.returncode == 2 and b"--verify has no effect where - is an end" in done.stderr
    assert not (site.data / "x").exists()
    done = streamed(site, "-", f"ada@127.0.0.1:{site.given}/x", input=b"x")
    assert done.returncode != 0 and not (site.given / "x").exists(), done


def test_a_file_that_changes_while_it_is_read_is_an_error(site: Site) -> None:
    # Slow: the server has not read the rest by the time that the file changes.
    site.serve('rate = "2M"')
    file = site.data / "file"
    file.write_bytes(bytes(9 << 20))
    command = [word for word in site.copying(f"ada@127.0.0.1:{file}", "-") if word != "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=site.environment()
    )
    site.started.append(process)
    assert process.stdout is not None
    # The first part has been read, and the pipe holds little of it.
    assert os.read(process.stdout.fileno(), 1) == b"\0"
    file.write_bytes(bytes(10 << 20))
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 8 and b"changed while it was read" in err, err
    assert len(out) < 9 << 20
