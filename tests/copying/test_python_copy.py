"""`waystage.copy`: the command's copy from Python, its result and its errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import waystage
from harness import wait_until
from remote_copy_support import Site


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "below").mkdir(parents=True)
    (root / "a").write_bytes(bytes(1000))
    (root / "below/b.tmp").write_bytes(bytes(500))
    return root


def test_a_tree_is_copied_and_counted(tree: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []
    done = waystage.copy(
        tree, tmp_path / "to", exclude=["*.tmp"], verify=True, fsync="end", progress=lambda text, share: seen.append(share)
    )  # fmt: skip
    assert (done.files, done.bytes, done.complete) == (1, 1000, True) and done.rate > 0
    assert done.counts["excluded"] == 1 and done.counts["verified"] == 1
    assert (tmp_path / "to/a").stat().st_size == 1000 and not (tmp_path / "to/below/b.tmp").exists()
    assert all(0 <= share <= 1 for share in seen)
    assert waystage.copy(tree, tmp_path / "to").counts["same"] == 1
    assert capfd.readouterr() == ("", "")


def test_a_list_goes_into_a_directory_also_where_it_has_one(tree: Path, tmp_path: Path) -> None:
    waystage.copy([tree], tmp_path / "one")
    waystage.copy([tree / "a", tree / "below"], tmp_path / "two")
    assert (tmp_path / "one/tree/a").exists()
    assert sorted(os.listdir(tmp_path / "two")) == ["a", "below"]


def test_a_path_with_a_colon_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("far:data").write_text("x")
    waystage.copy(Path("far:data"), Path("-"))
    assert Path("-").read_text() == "x"


def test_a_dry_run_changes_nothing(tree: Path, tmp_path: Path) -> None:
    planned = waystage.copy(tree, tmp_path / "to", dry_run=True, delete=True)
    assert [entry["path"] for entry in planned.details["would_copy"]] == ["a", "below/b.tmp"]
    assert not (tmp_path / "to").exists()


def test_errors_are_exceptions_with_the_sentence_of_the_command(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(waystage.CopyFailed, match="cannot be read: No such file") as caught:
        waystage.copy(tmp_path / "gone", tmp_path / "to")
    assert caught.value.status == 3
    with pytest.raises(waystage.CopyFailed, match="--update"):
        waystage.copy(tree, tmp_path / "to", update="sometimes")
    with pytest.raises(waystage.CopyFailed, match="both remote"):
        waystage.copy("a:x", "b:y")
    with pytest.raises(TypeError, match="no option 'colour'"):
        waystage.copy(tree, tmp_path / "to", colour="red")
    with pytest.raises(TypeError, match="give True or False"):
        waystage.copy(tree, tmp_path / "to", verify="yes")  # type: ignore[arg-type]


def test_entries_that_failed_are_an_exception_with_the_result(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to/a").mkdir()  # no file takes the place of a directory
    with pytest.raises(waystage.CopyIncomplete, match="the copy is not complete: 1 errors") as caught:
        waystage.copy(tree, tmp_path / "to")
    [problem] = caught.value.result.problems
    assert problem.path == b"a" and caught.value.result.files == 1 and caught.value.status == 8


def test_an_exception_of_the_caller_ends_the_copy(tree: Path, tmp_path: Path) -> None:
    (tree / "large").write_bytes(bytes(4 << 20))

    def refuse(text: str, share: float) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        waystage.copy(tree, tmp_path / "to", bandwidth_limit="100k", progress=refuse)
    assert waystage.copy(tree, tmp_path / "to").complete


def test_an_interrupted_call_is_resumed_by_the_same_call(tmp_path: Path) -> None:
    source, destination = tmp_path / "large", tmp_path / "to"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}").write_bytes(os.urandom(200_000))
    program = (
        "import sys, waystage\n"
        "try:\n    waystage.copy(sys.argv[1], sys.argv[2], bandwidth_limit='1M', workers=1)\n"
        "except KeyboardInterrupt:\n    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, source, destination], stderr=subprocess.PIPE)
    # In whichever order: it is that of inodes.
    wait_until(lambda: len([*destination.glob("[0-9]*")]) >= 2, process)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=90) == (None, b"") and process.returncode == 7
    done = waystage.copy(source, destination)
    assert done.counts["same"] >= 2 and done.files < 40
    assert all(
        (source / name).read_bytes() == (destination / name).read_bytes() for name in os.listdir(source)
    )


def test_a_far_host_is_reached_as_by_the_command(site: Site, tree: Path, tmp_path: Path) -> None:
    site.serve()
    trusted = {"port": site.port, "identity": site.folder / "client.key", "server_key": site.server_key}
    there = f"ada@127.0.0.1:{site.data}/tree"
    sent = waystage.copy(tree, there, **trusted)
    assert sent.files == 2 and sent.details["connection"]["way"] in ("UDP", "TCP")
    assert waystage.copy(there, tmp_path / "back", **trusted).bytes == 1500
    with pytest.raises(waystage.CopyFailed, match="is in no directory of yours") as caught:
        waystage.copy(tree, "ada@127.0.0.1:/nowhere", **trusted)
    assert caught.value.status == 1
