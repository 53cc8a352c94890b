"""What `waystage dedup` says of a tree, held against what a plain program counts in it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from harness import WAIT_S, Ran, command, open_to_others, ran, wait_until
from waystage._native import chunk_lengths

BLOCK = 4096


def waystage(*arguments: str | Path, expected: int = 0, **environment: str) -> Ran:
    return ran(command(*arguments), env=os.environ | environment).expect(expected)


def report(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = waystage("dedup", *arguments, "--json").json
    return found


def plain_report(tree: Path, method: str) -> dict[str, Any]:
    """Chunk by chunk, with sets of everything."""
    sets: dict[tuple[str, str], dict[bytes, int]] = defaultdict(dict)
    totals: dict[tuple[str, str], int] = defaultdict(int)
    whole: dict[bytes, int] = {}
    repeated = 0
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        data = path.read_bytes()
        ending = path.name.rpartition(".")[2].lower() if "." in path.name else "---"
        kind = ending if 0 < len(ending) <= 5 else "---"
        floor = str(1 << (len(data).bit_length() - 1)) if data else "0"
        at = 0
        for length in chunk_lengths(data, method):
            chunk = data[at : at + length]
            at += length
            for group in (("all", ""), ("by_type", kind), ("by_size", floor)):
                totals[group] += length
                sets[group][hashlib.sha256(chunk).digest()] = length
        digest = hashlib.sha256(data).digest()
        repeated += data != b"" and digest in whole
        whole[digest] = len(data)
    found: dict[str, Any] = {"by_type": {}, "by_size": {}, "repeated_files": repeated}
    for group, total in totals.items():
        value = (total, len(sets[group]), sum(sets[group].values()))
        if group[0] == "all":
            found["all"] = value
        else:
            found[group[0]][group[1]] = value
    return found


def numbers(found: dict[str, Any]) -> dict[str, Any]:
    def of(amount: dict[str, Any]) -> tuple[int, int, int]:
        return amount["bytes"], amount["distinct_chunks"], amount["distinct_bytes"]

    return {
        "all": of(found["all"]),
        "by_type": {name: of(amount) for name, amount in found["by_type"].items()},
        "by_size": {name: of(amount) for name, amount in found["by_size"].items()},
        "repeated_files": found["repeated_files"],
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    noise = random.Random(4)
    base = noise.randbytes(300_000)
    (root / "a.dat").write_bytes(base)
    (root / "sub/shifted.DAT").write_bytes(b"x" + base)
    (root / "sub/copy.txt").write_bytes(base)
    (root / "zeros.bin").write_bytes(bytes(100_000))
    (root / "empty").write_bytes(b"")
    (root / "one.verylongending").write_bytes(b"1")
    for number in range(20):
        (root / f"small{number}.txt").write_bytes(noise.randbytes(3000) + base[:20_000])
    (root / os.fsdecode(b"odd\n\xff.txt")).write_bytes(base[:70_000])
    (root / "link").symlink_to("a.dat")
    (root / "loop").symlink_to(".")
    return root


@pytest.mark.parametrize("method", ["fast", "fsc", "fixed:4096"])
def test_the_report_is_what_a_plain_program_counts(tree: Path, method: str) -> None:
    assert numbers(report(tree, "--method", method)) == plain_report(tree, method)


def test_chunks_of_fs_c_are_known_by_sha1(tree: Path, tmp_path: Path) -> None:
    """The part names each chunk by its SHA-1, as FS-C's traces do."""
    waystage("dedup", tree, "--method", "fsc", "--parts-in", tmp_path / "parts", "--parts", "1")
    part = (tmp_path / "parts/part-00000-of-00001.dedup").read_bytes()
    data = (tree / "a.dat").read_bytes()
    first = chunk_lengths(data, "fsc")[0]
    assert hashlib.sha1(data[:first]).digest() in part


def test_a_catalog_gives_the_same_without_walking(tree: Path, tmp_path: Path) -> None:
    waystage("catalog", "build", tree, tmp_path / "catalog", "-q")
    (tree / "later.dat").write_bytes(b"not in the catalog")
    (tree / "a.dat").write_bytes(b"changed since")
    (tree / "small1.txt").unlink()
    found = report(tmp_path / "catalog")
    assert (found["files"]["changed"], found["files"]["vanished"]) == (1, 1)
    (tree / "later.dat").unlink()
    assert numbers(found) == plain_report(tree, "fast")
    left = report(tmp_path / "catalog", "-x", "/sub", "-x", "small*")
    shutil.rmtree(tree / "sub")
    for path in tree.glob("small*"):
        path.unlink()
    assert numbers(left) == plain_report(tree, "fast")
    assert left["files"]["excluded"] == 22


def test_hard_links_count_once_and_holes_do_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    data = random.Random(5).randbytes(50_000)
    (tree / "b").write_bytes(data)
    os.link(tree / "b", tree / "a")
    found = report(tree)
    assert (found["files"]["read"], found["files"]["links"], found["all"]["bytes"]) == (1, 1, 50_000)

    with open(tree / "sparse", "wb") as file:
        file.write(data)
        file.seek(1 << 40)
        file.write(b"end")
        file.truncate((1 << 40) + 100_000)
    if (tree / "sparse").stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system keeps no holes")
    found = report(tree)
    assert found["files"]["read"] == 2
    assert found["files"]["hole_bytes"] > (1 << 40) - (1 << 20)
    assert found["all"]["bytes"] + found["files"]["hole_bytes"] == (1 << 40) + 150_000
    assert found["with_holes"]["redundant_share"] > 0.9999


@pytest.mark.parametrize("method", ["fast", "fsc", "fixed:8192"])
def test_a_sparse_file_is_the_same_as_its_full_copy(tmp_path: Path, method: str) -> None:
    noise = random.Random(6)
    for folder in ("sparse", "full"):
        (tmp_path / folder).mkdir()
    with open(tmp_path / "sparse/f", "wb") as file:
        for at in (0, 90_000, 400_000, 1_000_001, 3_000_000):
            file.seek(at // BLOCK * BLOCK)
            file.write(noise.randbytes(noise.randrange(1, 60_000)))
        file.truncate(4_000_000)
    data = (tmp_path / "sparse/f").read_bytes()
    (tmp_path / "full/f").write_bytes(data)
    sparse = report(tmp_path / "sparse", "--method", method)
    full = report(tmp_path / "full", "--method", method)
    assert sparse["files"]["hole_bytes"] > 1_000_000 and full["files"]["hole_bytes"] == 0
    assert sparse["with_holes"] == full["all"] == full["with_holes"]
    assert report(tmp_path, "--method", method)["repeated_files"] == 1


def test_parts_of_several_ranks_join_exactly(tree: Path, tmp_path: Path) -> None:
    os.link(tree / "a.dat", tree / "sub/again.dat")
    whole = report(tree)
    parts = tmp_path / "parts"
    for rank in range(3):
        environment = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "3"}
        waystage("dedup", tree, "--parts-in", parts, "--parts", "7", **environment)
    assert len(list(parts.iterdir())) == 7
    joined = report("--merge", parts)
    del joined["index_bytes"], whole["index_bytes"]
    assert joined == whole
    estimated = report("--merge", parts, "--estimate")
    assert estimated["error"] == 0
    assert estimated["redundant_share"] == pytest.approx(whole["all"]["redundant_share"], abs=1e-5)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun (apt-get install openmpi-bin)")
def test_mpirun_shares_the_work(tree: Path, tmp_path: Path) -> None:
    whole = report(tree)
    parts = tmp_path / "parts"
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    ran([*mpirun, *command("dedup", tree, "--parts-in", parts, "-q")]).expect()
    assert len(list(parts.iterdir())) == 8
    assert report("--merge", parts)["all"] == whole["all"]


def test_finished_parts_are_not_made_again(tree: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    waystage("dedup", tree, "--parts-in", parts, "--parts", "3")
    whole = report("--merge", parts)
    kept = parts / "part-00001-of-00003.dedup"
    before = kept.stat().st_mtime_ns
    (parts / "part-00000-of-00003.dedup").unlink()
    (parts / "part-00000-of-00003.dedup.unfinished").write_bytes(b"what a killed run left")
    said = waystage("dedup", tree, "--parts-in", parts, "--parts", "3")
    assert said.out.startswith("1 parts made, 2 kept")
    assert kept.stat().st_mtime_ns == before
    assert report("--merge", parts) == whole
    assert not list(parts.glob("*.unfinished"))
    other = waystage("dedup", tree, "--parts-in", parts, "--parts", "3", "--method", "fsc", expected=3)
    assert "is of another tree, method or patterns" in other.err


def test_an_estimate_is_near_the_truth_in_little_memory(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    noise = random.Random(8)
    pieces = [noise.randbytes(BLOCK) for _ in range(500)]
    for number in range(8):
        (tree / f"f{number}").write_bytes(b"".join(noise.choices(pieces, k=500)))
    waystage("dedup", tree, "--method", "fixed:4096", "--parts-in", tmp_path / "parts", "-q")
    exact = report("--merge", tmp_path / "parts")["all"]["redundant_share"]
    found = report("--merge", tmp_path / "parts", "--estimate", "--sample", "1000", "--seed", "3")
    assert found["sample"] == 1000 and 0 < found["error"] < 0.1
    assert abs(found["redundant_share"] - exact) <= found["error"]


def test_parts_that_are_no_whole_set_are_refused(tree: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    waystage("dedup", tree, "--parts-in", parts, "--parts", "2", "-q")
    one, two = sorted(parts.iterdir())
    assert "1 of 2 parts" in waystage("dedup", "--merge", one, expected=3).err
    assert "given before" in waystage("dedup", "--merge", one, "--merge", one, expected=3).err
    two.write_bytes(two.read_bytes()[:-1])
    assert f"{two}: it ends early" in waystage("dedup", "--merge", parts, expected=3).err
    assert "contains no parts" in waystage("dedup", "--merge", tree, expected=1).err
    (tmp_path / "x.dedup").write_bytes(b"something else")
    assert "no part of a dedup" in waystage("dedup", "--merge", tmp_path / "x.dedup", expected=3).err


def test_a_dry_run_reads_nothing(tree: Path, tmp_path: Path) -> None:
    said = report(tree, "--dry-run", "-x", "*.txt")
    assert (said["files"], said["excluded"]) == (5, 22)
    assert said["bytes"] == 300_000 + 300_001 + 100_000 + 1
    waystage("dedup", tree, "--parts-in", tmp_path / "p", "--parts", "2", "-q")
    said = report(tree, "--parts-in", tmp_path / "p", "--parts", "2", "--dry-run")
    assert (said["files"], said["finished_parts"]) == (0, 2)


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv to be no root")
def test_what_cannot_be_read_is_counted_and_told(tree: Path) -> None:
    (tree / "a.dat").chmod(0)
    os.mkfifo(tree / "pipe")
    program = command("dedup", str(tree), "--json")
    if os.geteuid() == 0:
        program = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", *program]
        open_to_others(tree)
    done = ran(program).expect()
    found = json.loads(done.out)
    assert found["files"]["unreadable"] == 1
    assert found["errors"] == [
        {"path": "a.dat", "path_base64": None, "error": "Permission denied (os error 13)"}
    ]
    assert found["files"]["read"] == 26


def test_usage_errors_say_what_to_do(tree: Path, tmp_path: Path) -> None:
    assert "give a tree" in waystage("dedup", expected=2).err
    assert (
        "'--bandwidth-limit': 'fast' is no rate"
        in waystage("dedup", tree, "--bandwidth-limit", "fast", expected=2).err
    )
    assert "--parts-in" in waystage("dedup", tree, "--rank", "0", "--ranks", "2", expected=2).err
    assert "--rank and --ranks" in waystage("dedup", tree, "--rank", "0", expected=2).err
    assert "fixed:N" in waystage("dedup", tree, "--method", "magic", expected=2).err
    assert "absent cannot be read: No such file" in waystage("dedup", tmp_path / "absent", expected=3).err


def test_the_bandwidth_is_kept_and_an_interrupt_leaves_no_part(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "f").write_bytes(random.Random(1).randbytes(8 << 20))
    parts = tmp_path / "parts"
    program = command("dedup", str(tree), "--parts-in", str(parts))
    with subprocess.Popen([*program, "--parts", "1", "--bandwidth-limit", "100K", "-q"]) as process:
        try:
            # 8 MiB at 100 KiB/s take 80 seconds: it cannot be over.
            wait_until(lambda: list(parts.glob("*.unfinished")), process, "the first part")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=WAIT_S) == 130
        finally:
            process.kill()
    assert list(parts.iterdir()) == []


@pytest.mark.parametrize("where", [".", "parts", "here/parts"])
def test_parts_among_the_files_that_are_read_are_refused(tree: Path, where: str) -> None:
    (tree / "here").symlink_to(".")
    before = sorted(tree.rglob("*"))
    said = waystage("dedup", tree, "--parts-in", tree / where, "--parts", "2", expected=3)
    assert "name a folder outside of it" in said.err
    assert sorted(tree.rglob("*")) == before
