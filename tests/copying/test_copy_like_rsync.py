"""What users of rsync and rclone expect of `waystage copy`: deletion, backups, filters, several sources, streams."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import Waystage, wait_until
from waystage._native import CopyError, SourceRemove, TreeCopy, TreeDelete
from waystage.native_options.copies import DeleteOptions, RemoveOptions, TreeCopyOptions


def make(root: Path, *paths: str, content: bytes = b"content") -> Path:
    """Files, and directories where a path ends with a slash."""
    root.mkdir(exist_ok=True)
    for path in paths:
        if path.endswith("/"):
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


# -- deletion


def test_delete_makes_the_destination_like_the_source(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x", "dir/y")
    make(tmp_path / "b", "x", "old", "dir/old", "gone/deep/file", "kept.tmp")
    ran = waystage("copy", "a", "b", "--delete", "--exclude", "*.tmp", "--json")
    assert ran.code == 0 and ran.json["counts"]["deleted"] == 5, ran
    assert names(tmp_path / "b") == {"x", "dir", "dir/y", "kept.tmp"}


def test_without_delete_nothing_is_deleted(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "b", "old")
    assert waystage("copy", "a", "b").code == 0 and names(tmp_path / "b") == {"x", "old"}


def test_a_dry_run_lists_what_would_go_and_deletes_nothing(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "b", "old", "dir/old")
    ran = waystage("copy", "a", "b", "--delete", "-n")
    assert ran.code == 0 and {"delete old", "delete dir", "delete dir/old", "x"} <= set(ran.out.splitlines())
    found = waystage("copy", "a", "b", "--delete", "-n", "--json").json
    assert [each["path"] for each in found["would_delete"]] == ["dir", "dir/old", "old"]
    assert names(tmp_path / "b") == {"old", "dir", "dir/old"}


def test_more_than_max_delete_deletes_nothing(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "b", "one", "two")
    ran = waystage("copy", "a", "b", "--delete", "--max-delete", "1")
    assert ran.code == 8 and "2 entries of b" in ran.err and "nothing was deleted" in ran.err, ran
    assert names(tmp_path / "b") == {"x", "one", "two"}
    assert waystage("copy", "a", "b", "--delete", "--max-delete", "2").code == 0
    assert names(tmp_path / "b") == {"x"}


def test_a_copy_with_errors_deletes_nothing(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "clash", "x")
    make(tmp_path / "b", "clash/", "old")
    ran = waystage("copy", "a", "b", "--delete")
    assert ran.code == 8 and "nothing was deleted" in ran.err, ran
    assert "old" in names(tmp_path / "b")


def test_a_link_planted_in_the_destination_leads_no_deletion_out_of_it(
    tmp_path: Path, waystage: Waystage
) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "outside", "precious")
    make(tmp_path / "b", "x")
    (tmp_path / "b/link").symlink_to(tmp_path / "outside")
    assert waystage("copy", "a", "b", "--delete").code == 0
    assert names(tmp_path / "b") == {"x"} and names(tmp_path / "outside") == {"precious"}


def test_a_source_that_cannot_be_read_deletes_nothing(tmp_path: Path) -> None:
    make(tmp_path / "b", "old")
    with pytest.raises(CopyError):
        TreeDelete(tmp_path / "missing", tmp_path / "b", DeleteOptions(workers=1))
    assert names(tmp_path / "b") == {"old"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "b", "--max-delete", "1"], "--max-delete needs --delete"),
        (["a/x", "b", "--delete"], "a single SRC that is a directory"),
        (["a", "c", "b", "--delete"], "a single SRC that is a directory"),
        (["a", "b", "--delete", "--files-from", "-"], "--files-from exclude each other"),
        (["a", "b", "--delete", "--remove-source"], "exclude each other"),
        (["a", "b", "--suffix", "x"], "--suffix needs --backup"),
        (["a", "b", "--backup", "--suffix", "x/y"], "without a slash"),
        (["a", "b", "--min-size", "2K", "--max-size", "1K"], "--min-size is above --max-size"),
        (["a", "b", "--max-age", "3"], "is no age such as 30d"),
        (["a", "-", "c"], "- is one end"),
        (["a/x", "-", "--verify"], "--verify has no effect where - is an end"),
        (["a", "host:x", "b"], "either local or remote"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, waystage: Waystage, words: list[str], says: str
) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "c", "x")
    ran = waystage("copy", *words)
    assert ran.code == 2 and says in ran.err, ran


PATHS = st.lists(
    st.lists(st.sampled_from(["a", "b", "c.tmp", "d"]), min_size=1, max_size=3).map("/".join),
    max_size=12,
    unique=True,
)


def tree(root: Path, paths: list[str], content: bytes) -> None:
    """Those of the paths that fit together: where a file is, no directory is made."""
    root.mkdir()
    for path in paths:
        if not any((root / part).is_file() for part in Path(path).parents) and not (root / path).exists():
            make(root, path, content=content)
            os.utime(root / path, ns=(10**18, 10**18 + len(content)))


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(source=PATHS, destination=PATHS, exclude=st.sampled_from([None, "*.tmp", "/a", "b/d"]))
def test_delete_leaves_what_rsync_leaves(
    tmp_path_factory: pytest.TempPathFactory, source: list[str], destination: list[str], exclude: str | None
) -> None:
    root = tmp_path_factory.mktemp("trees")
    tree(root / "a", source, b"new contents")
    tree(root / "ours", destination, b"old")
    clashes = any(
        (root / "a" / path).exists() and (root / "a" / path).is_dir() != (root / "ours" / path).is_dir()
        for path in names(root / "ours")
    )
    if clashes:
        return  # rsync replaces a directory by a file; a copy of ours reports that and deletes nothing.
    shutil.copytree(root / "ours", root / "theirs")
    patterns = [] if exclude is None else [exclude.encode()]
    anchored = exclude if exclude is None or "/" not in exclude else "/" + exclude.lstrip("/")
    with TreeCopy(root / "a", root / "ours", TreeCopyOptions(workers=2, exclude=patterns)) as copy:
        copy.wait()
    with TreeDelete(root / "a", root / "ours", DeleteOptions(workers=2, exclude=patterns)) as delete:
        delete.wait()
    words = [] if anchored is None else [f"--exclude={anchored}"]
    subprocess.run(
        ["rsync", "-a", "--delete", *words, f"{root}/a/", f"{root}/theirs/"], check=False, capture_output=True
    )
    assert names(root / "ours") == names(root / "theirs")
    shutil.rmtree(root)


def test_a_deletion_that_is_killed_is_completed_by_the_same_command(
    tmp_path: Path, waystage: Waystage
) -> None:
    make(tmp_path / "a", "x")
    make(tmp_path / "b", *(f"d{number % 50}/f{number}" for number in range(20_000)), content=b"")
    command = [sys.executable, "-m", "waystage", "copy", "a", "b", "--delete", "-q"]
    process = subprocess.Popen(command, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "b/x").exists(), process, "the copy ends")
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert waystage("copy", "a", "b", "--delete").code == 0
    assert names(tmp_path / "b") == {"x"}


# -- backups


def test_backups_keep_what_is_replaced_and_deleted(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x", "dir/y", content=b"new contents")
    make(tmp_path / "b", "x", "dir/y", "old", content=b"before")
    ran = waystage("copy", "a", "b", "--delete", "--backup")
    assert ran.code == 0 and names(tmp_path / "b") == {"x", "x~", "dir", "dir/y", "dir/y~", "old~"}, ran
    assert (tmp_path / "b/x~").read_bytes() == b"before" and (
        tmp_path / "b/x"
    ).read_bytes() == b"new contents"
    # Once more: backups are neither deleted nor backed up.
    assert waystage("copy", "a", "b", "--delete", "--backup").code == 0
    assert names(tmp_path / "b") == {"x", "x~", "dir", "dir/y", "dir/y~", "old~"}


def test_a_directory_takes_backups_by_their_paths(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "dir/y", content=b"new contents")
    make(tmp_path / "b", "dir/y", "dir/old", content=b"before")
    for _ in range(2):
        assert waystage("copy", "a", "b", "--delete", "--backup-dir", "kept").code == 0
    kept = tmp_path / "b/kept"
    assert names(tmp_path / "b") == {"dir", "dir/y", "kept", "kept/dir", "kept/dir/y", "kept/dir/old"}
    assert (kept / "dir/y").read_bytes() == b"before"


# -- filters


def test_sizes_and_ages_select_files(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "small", content=b"x")
    make(tmp_path / "a", "large", content=b"x" * 5000)
    make(tmp_path / "a", "dir/ancient", content=b"x" * 2000)
    os.utime(tmp_path / "a/dir/ancient", (0, time.time() - 40 * 86400))
    wanted = {
        ("--min-size", "1K"): {"large", "dir", "dir/ancient"},
        ("--max-size", "2000B"): {"small", "dir", "dir/ancient"},
        ("--min-age", "30d"): {"dir", "dir/ancient"},
        ("--max-age", "1d"): {"small", "large", "dir"},
        ("--min-size", "1k", "--max-size", "3KiB"): {"dir", "dir/ancient"},
    }
    for number, (words, expected) in enumerate(wanted.items()):
        ran = waystage("copy", "a", f"b{number}", *words, "--json")
        assert ran.code == 0 and names(tmp_path / f"b{number}") == expected, (words, ran)
        assert ran.json["counts"]["excluded"] == 3 - sum(
            (tmp_path / "a" / each).is_file() for each in expected
        )


def test_exclude_from_reads_patterns_and_comments(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x.tmp", "y", "cache/z", "# odd")
    (tmp_path / "patterns").write_text("# a comment\n; another\n\n*.tmp\r\n/cache\n", encoding="utf-8")
    assert waystage("copy", "a", "b", "--exclude-from", "patterns").code == 0
    assert names(tmp_path / "b") == {"y", "# odd"}
    (tmp_path / "patterns").write_bytes(b"a\0b")
    ran = waystage("copy", "a", "b", "--exclude-from", "patterns")
    assert ran.code == 3 and "NUL byte" in ran.err


# -- ends


def test_several_sources_go_into_the_directory(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path, "file", "one/x", "two/y")
    ran = waystage("copy", "file", "one", "two/", "to", "--json")
    assert ran.code == 0 and ran.json["counts"]["files"] == 3, ran
    assert names(tmp_path / "to") == {"file", "one", "one/x", "y"}
    make(tmp_path, "other/file")
    same = waystage("copy", "file", "other/file", "to")
    assert same.code == 2 and "two sources are called 'file'" in same.err
    lost = waystage("copy", "file", "missing", "new")
    assert lost.code == 3 and not (tmp_path / "new").exists()


def test_a_slash_at_the_end_makes_a_directory(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path, "file")
    assert waystage("copy", "file", "new/", "-n").code == 0 and not (tmp_path / "new").exists()
    assert waystage("copy", "file", "new/").code == 0
    assert names(tmp_path / "new") == {"file"}
    assert "Not a directory" in waystage("copy", "file", "file/").err


def test_standard_input_and_output_are_ends(tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    command = [sys.executable, "-m", "waystage", "copy"]
    (tmp_path / "from").write_bytes(data)
    for stdin in ("pipe", "file"):
        with open(tmp_path / "from", "rb") as file:
            given = {"stdin": file} if stdin == "file" else {"input": data}
            subprocess.run([*command, "-", "to", "-q"], cwd=tmp_path, check=True, **given)
        assert (tmp_path / "to").read_bytes() == data
        (tmp_path / "to").unlink()
    piped = subprocess.run([*command, "from", "-"], cwd=tmp_path, check=True, capture_output=True)
    assert piped.stdout == data and piped.stderr == b""
    with open(tmp_path / "log", "ab") as appended:
        subprocess.run([*command, "from", "-"], cwd=tmp_path, check=True, stdout=appended)
    assert (tmp_path / "log").read_bytes() == data


# -- removal at the source


def test_remove_source_leaves_directories(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x", "dir/y", "kept.tmp")
    os.link(tmp_path / "a/x", tmp_path / "a/dir/second")
    (tmp_path / "a/link").symlink_to("x")
    ran = waystage("copy", "a", "b", "--remove-source", "--exclude", "*.tmp", "--json")
    assert ran.code == 0 and ran.json["counts"]["removed"] == 4, ran
    assert names(tmp_path / "a") == {"dir", "kept.tmp"}
    assert names(tmp_path / "b") == {"x", "dir", "dir/y", "dir/second", "link"}


def test_a_single_file_is_moved(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path, "one", "two", "to/")
    assert waystage("copy", "one", "renamed", "--remove-source").code == 0
    assert waystage("copy", "two", "to", "--remove-source").code == 0
    assert names(tmp_path) >= {"renamed", "to/two"} and not names(tmp_path) & {"one", "two"}


def test_only_what_reads_back_the_same_is_removed(tmp_path: Path) -> None:
    make(tmp_path / "a", "good", "damaged", "missing", "linked")
    make(tmp_path / "b", "good")
    make(tmp_path / "b", "damaged", content=b"contenT")
    os.link(tmp_path / "a/linked", tmp_path / "b/linked")
    with SourceRemove(tmp_path / "a", tmp_path / "b", RemoveOptions(workers=2)) as remove:
        remove.wait()
    assert names(tmp_path / "a") == {"damaged", "missing", "linked"}
    assert {path: kind for path, kind, _ in remove.problems()} == dict.fromkeys(
        (b"damaged", b"missing", b"linked"), "changed"
    )


# -- the log


def test_a_log_has_a_line_for_each_entry(tmp_path: Path, waystage: Waystage) -> None:
    make(tmp_path / "a", "x", "dir/line\nbreak")
    make(tmp_path / "b", "old")
    ran = waystage("copy", "a", "b", "--delete", "--log-file", "log", "-v")
    assert ran.code == 0 and {"copied x", "made dir/", "deleted old"} <= set(ran.err.splitlines()), ran
    lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    done = {(line["what"], line.get("path"), line.get("kind")) for line in lines[:-1]}
    assert done == {
        ("copied", "x", "file"),
        ("made", "dir", "directory"),
        ("copied", "dir/line\\nbreak", "file"),
        ("deleted", "old", "file"),
    }
    assert lines[-1]["what"] == "result" and lines[-1]["complete"] is True
    refused = waystage("copy", "a", "b", "--log-file", "/nowhere/log")
    assert refused.code == 3 and "--log-file /nowhere/log cannot be written" in refused.err
