"""What becomes of a catalog: made anew, added to, flagged, repaired."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import wait_until
from recorder_support import differences, run_in
from waystage.catalog import BuildError, Catalog, CatalogBusy, CatalogError, refresh
from waystage.catalog import build as build_catalog
from waystage.catalog.build import workplace
from waystage.catalog.store import MANIFEST, Manifest
from waystage.recorder import RecorderError


def shell(text: str) -> list[str]:
    return ["sh", "-c", text]


def gaps(target: Path) -> dict[str, int]:
    return Catalog(target).manifest.gaps


def test_a_new_catalog_of_an_empty_tree_is_whole(tmp_path: Path, target: Path) -> None:
    tree = tmp_path / "empty"
    tree.mkdir()
    ran = run_in(tree, target, shell("mkdir -p a/b; echo x > a/b/c; ln -s a l; ln a/b/c a/d"))
    assert ran.status == 0 and gaps(target) == {}
    assert Catalog(target).rows == 5
    assert not differences(target)


def test_a_new_catalog_of_a_full_tree_says_that_it_has_only_what_changed(tree: Path, target: Path) -> None:
    run_in(tree, target, shell("echo x > d/e/new"))
    assert gaps(target) == {"before": 1}
    found = differences(target)
    assert not found.changed and not found.removed
    assert b"a" in found.added and b"d/e/new" not in found.added
    refresh(target, trust_directories=True)
    assert gaps(target) == {} and not differences(target)


def test_a_catalog_in_its_own_tree_leaves_itself_out(tree: Path) -> None:
    target = tree / "own"
    build_catalog(tree, target)
    run_in(tree, target, shell("echo x > new"))
    assert not differences(target)
    assert Catalog(target).rows == 12


def test_what_a_catalog_leaves_out_stays_out(tree: Path, target: Path) -> None:
    build_catalog(tree, target)
    again = tree.parent / "again.catalog"
    run_in(
        tree,
        again,
        shell("mkdir out; echo x > out/y; echo x > z.tmp; echo x > keep"),
        exclude=("*.tmp", "/out"),
    )
    kept = {row["name"] for row in Catalog(again).entries(["name"]).to_pylist()}
    assert kept == {b"keep"}
    run_in(tree, again, shell("echo y > out/z; mv out d/out; echo more > d/out/w.tmp"))
    kept = {row["name"] for row in Catalog(again).entries(["name"]).to_pylist()}
    assert {b"out", b"y", b"z"} <= kept and b"w.tmp" not in kept


def test_trusting_directories_after_a_recording_finds_what_was_not_recorded(
    tree: Path, catalogued: Path
) -> None:
    run_in(tree, catalogued, shell("echo x > d/n; rm a; mv d/e z/e"))
    (tree / "z" / "e" / "unseen").write_text("x")
    os.unlink(tree / "b")
    refresh(catalogued, trust_directories=True)
    assert not differences(catalogued)


def test_recordings_add_up(tree: Path, catalogued: Path) -> None:
    for turn in range(4):
        run_in(
            tree,
            catalogued,
            shell(f"mkdir -p r{turn}/s; echo x > r{turn}/s/t; mv r{turn} d/; rm -f d/r1/s/t"),
        )
    assert gaps(catalogued) == {} and not differences(catalogued)


def test_a_program_that_changes_nothing_changes_nothing(tree: Path, catalogued: Path) -> None:
    before = Catalog(catalogued).entries()
    ran = run_in(tree, catalogued, ["cat", "a"])
    assert ran.applied is not None and ran.applied.looked_at == 0
    assert Catalog(catalogued).entries().equals(before)
    assert not differences(catalogued)


def test_changes_outside_the_tree_are_not_of_it(tree: Path, catalogued: Path) -> None:
    ran = run_in(tree, catalogued, shell("echo x > ../outside; echo x > ../treehouse"))
    assert ran.counts["outside"] >= 2 and gaps(catalogued) == {}
    assert not differences(catalogued)


def test_a_link_pointed_elsewhere_while_it_is_used_is_flagged(tree: Path, catalogued: Path) -> None:
    # Faster than the reader can follow each change of the link.
    script = """
import os
for number in range(3000):
    open("m/n", "w").close()
    os.symlink("dz"[number % 2], "other")
    os.rename("other", "m")
"""
    run_in(tree, catalogued, [sys.executable, "-S", "-E", "-c", script])
    assert gaps(catalogued).keys() == {"doubtful"}
    refresh(catalogued)
    assert gaps(catalogued) == {} and not differences(catalogued)


def test_a_process_that_runs_on_is_flagged(tree: Path, catalogued: Path) -> None:
    script = (
        "sh -c 'touch ../up; while [ ! -e ../end ]; do sleep 0.05; done; echo late > late' >/dev/null 2>&1 & "
        "while [ ! -e ../up ]; do sleep 0.05; done; echo x > n"
    )
    try:
        run_in(tree, catalogued, shell(script))
        assert gaps(catalogued).keys() == {"running"}
    finally:
        (tree.parent / "end").touch()
    wait_until(lambda: (tree / "late").exists() and (tree / "late").read_text() == "late\n")
    refresh(catalogued)
    assert not differences(catalogued)


def test_another_root_is_counted_as_a_gap(tree: Path, catalogued: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    script = "import os; os.chroot('.'); os.chdir('/'); os.mkdir('/n')"
    run_in(tree, catalogued, [sys.executable, "-S", "-E", "-c", script])
    assert gaps(catalogued) == {"unplaced": 1}


def test_rubbish_in_the_shared_memory_is_survived_and_flagged(tree: Path, catalogued: Path) -> None:
    script = """
import mmap, os, random
with open(os.environ["WAYSTAGE_RING"], "r+b") as file:
    size = os.fstat(file.fileno()).st_size
    for call in (lambda: os.ftruncate(file.fileno(), 0), lambda: os.ftruncate(file.fileno(), size * 2)):
        try:
            call()
        except OSError:
            pass
    memory = mmap.mmap(file.fileno(), size)
    chance = random.Random(1)
    for number in range(200):
        open(f"n{number}", "w").close()
        at = chance.randrange(0, size - 4096)
        memory[at : at + 4096] = chance.randbytes(4096)
        at = 4288 + 192 * chance.randrange(64)
        memory[at : at + 192] = chance.randbytes(192)
"""
    ran = run_in(tree, catalogued, [sys.executable, "-S", "-E", "-c", script])
    assert ran.status == 0
    assert ran.counts["damaged"] > 0 and gaps(catalogued)["damaged"] > 0
    refresh(catalogued)
    assert gaps(catalogued) == {} and not differences(catalogued)


def test_nothing_is_run_where_the_catalog_cannot_be_had(tree: Path, catalogued: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    with workplace(catalogued), pytest.raises(CatalogBusy):
        run_in(tree, catalogued, ["touch", str(ran)])
    (tmp_path / "other").mkdir()
    with pytest.raises(CatalogError):
        run_in(tree, tmp_path / "other", ["touch", str(ran)])
    with pytest.raises(BuildError):
        run_in(tree, tmp_path / "absent" / "c", ["touch", str(ran)])
    assert not ran.exists()


def test_a_program_that_cannot_be_started_leaves_the_catalog_as_it_was(
    tree: Path, catalogued: Path, tmp_path: Path
) -> None:
    from waystage.recorder import RecordOptions, record

    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    before = Manifest.load(catalogued / MANIFEST)
    for command in ([str(broken)], ["/no/such/program"]):
        with pytest.raises(RecorderError):
            record(command, catalogued, None, RecordOptions())
    assert Manifest.load(catalogued / MANIFEST) == before
    with pytest.raises(RecorderError):
        record([str(broken)], tmp_path / "new", tree, RecordOptions())
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists()


def test_names_of_one_file_stay_alike(tree: Path, catalogued: Path) -> None:
    subprocess.run(["ln", "h", "z/h3"], cwd=tree, check=True)
    refresh(catalogued)
    run_in(tree, catalogued, shell("echo more >> z/h3; rm d/h2"))
    assert not differences(catalogued)
