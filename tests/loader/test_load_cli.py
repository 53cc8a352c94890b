"""`waystage load` and `waystage profile-targets` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from harness import Waystage
from waystage.loader import Loader, Profile

Contents = dict[str, bytes]


def test_load_reads_everything_and_says_what_each_target_gave(
    waystage: Waystage, tree: Path, catalog: Path, contents: Contents
) -> None:
    total = sum(map(len, contents.values()))
    for source, mode in ((tree, "object"), (catalog, "catalog")):
        ran = waystage("load", str(source), "--json").expect()
        assert (ran.json["bytes"], ran.json["mode"], ran.json["failures"]) == (total, mode, [])
        assert sum(target["bytes"] for target in ran.json["targets"]) == total
    shared = [
        waystage("load", str(catalog), "--files", "--rank", str(rank), "--world", "2", "--json").json
        for rank in range(2)
    ]
    assert sum(part["items"] for part in shared) == len(contents)
    said = waystage("load", str(catalog), "--quiet")
    assert (said.out, said.err) == ("", "")


def test_load_tells_what_it_could_not_read(waystage: Waystage, tree: Path, catalog: Path) -> None:
    (tree / "large").unlink()
    ran = waystage("load", str(catalog)).expect(1)
    assert "1 gone" in ran.out and "large: it is no longer there" in ran.err
    ran = waystage("load", str(catalog), "--rank", "3", "--world", "2")
    assert (ran.code, "ranks are 0 to 1" in ran.err) == (3, True)
    assert waystage("load", str(tree / "nothing")).code == 3
    assert waystage("load", str(tree), "--mode", "catalog").code == 3


def test_a_profile_is_measured_with_few_bytes_and_taken_by_the_loader(
    waystage: Waystage, tmp_path: Path
) -> None:
    tree = tmp_path / "many"
    tree.mkdir()
    for number in range(400):
        (tree / f"f{number}").write_bytes(bytes(20_000))
    ran = waystage("profile-targets", str(tree), "-o", "p.json", "--most", "4", "--json").expect()
    assert 0 < ran.json["share"] <= 0.05
    assert ran.json["points"][0][0] == 1
    profile = Profile.load(tmp_path / "p.json")
    assert profile.best_loaders == ran.json["best_loaders"] >= 1
    loader = Loader(tree, profile=profile)
    assert loader.loaders == profile.best_loaders, "one target, so as many loaders as it takes"
    assert len(list(loader)) == 400
    assert waystage("load", str(tree), "--profile", "p.json").code == 0
    (tmp_path / "p.json").write_text(json.dumps({"format": "another"}))
    assert waystage("load", str(tree), "--profile", "p.json").code == 3


def test_too_little_to_measure_is_said(waystage: Waystage, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    assert waystage("profile-targets", "few").code == 3
    (tmp_path / "few/one").write_bytes(b"x" * 100)
    ran = waystage("profile-targets", "few")
    assert (ran.code, "allow a larger share" in ran.err) == (3, True)
