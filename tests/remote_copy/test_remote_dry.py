"""Dry runs between hosts: what would be sent, how fast the source is, how fast the path is; nothing is written at either end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from copying_trees import make_everything, snapshot
from remote_copy_support import Site

PART = 4 << 20


@pytest.fixture
def tree(site: Site) -> Path:
    make_everything(site.given)
    (site.given / "large").write_bytes(bytes(2 * PART) + b"more")
    return site.given


def ends(site: Site, tree: Path, tmp_path: Path, push: bool) -> tuple[tuple[object, object], Path]:
    to = site.data / "copy" if push else tmp_path / "copy"
    return ((tree, f"127.0.0.1:{to}") if push else (f"127.0.0.1:{tree}", to)), to


def made(counts: dict[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in ("files", "symlinks", "hard_links", "specials")}


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_a_plan_says_what_a_copy_then_does(site: Site, tree: Path, tmp_path: Path, push: bool) -> None:
    site.serve()
    between, to = ends(site, tree, tmp_path, push)
    dry = site.copy(*between, "--privileged", "--dry-run").expect()
    assert not to.exists()
    value = dry.json
    assert (value["dry_run"], value["limited_by"]) == ("plan", None)
    by_path = {each["path"]: each for each in value["would_copy"]}
    assert by_path["large"] == {
        "path": "large",
        "path_base64": None,
        "kind": "file",
        "bytes": 2 * PART + 4,
    }
    assert by_path["a/dangling"]["kind"] == "symbolic link"
    done = site.copy(*between, "--privileged").expect()
    assert made(value["counts"]) == made(done.json["counts"])
    assert value["counts"]["directories"] == sum(
        path.is_dir() for path in tree.rglob("*") if not path.is_symlink()
    )
    (tree / "a/secret").write_text("another")
    (to / "a/dangling").unlink()
    before = snapshot(to)
    again = site.copy(*between, "--privileged", "-n").json
    assert {each["path"] for each in again["would_copy"]} == {"a/secret", "a/dangling"}
    assert again["counts"]["bytes"] == 7 and again["counts"]["files"] == 1
    assert snapshot(to) == before


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_the_disk_alone_and_the_network_alone_are_measured(
    site: Site, tree: Path, tmp_path: Path, push: bool
) -> None:
    with (tree / "holes").open("wb") as file:
        file.truncate(3 * PART)
    site.serve()
    between, to = ends(site, tree, tmp_path, push)
    sizes = sum(
        each["bytes"]
        for each in site.copy(*between, "--privileged", "-n").json["would_copy"]
        if each["kind"] == "file"
    )

    def tried(what: str) -> Any:
        ran = site.copy(*between, "--privileged", f"--dry-run={what}").expect()
        assert not to.exists() and ran.json["counts"]["bytes"] == sizes, ran
        return ran.json

    disk, network = tried("disk"), tried("network")
    assert made(disk["counts"]) == made(network["counts"])
    assert int(disk["digest"], 16) == 0 and disk["limited_by"] == "source"
    assert int(network["digest"], 16) != 0
    if push:
        least = sizes / network["connection"]["datagram_bytes"]
        assert disk["connection"]["sent_packets"] < least < network["connection"]["sent_packets"]
    site.end()
    assert "tried to write" in site.log() if push else "tried to read" in site.log()


def test_a_dry_run_needs_the_same_rights_as_a_copy(site: Site, tree: Path, tmp_path: Path) -> None:
    site.serve()
    denied = site.copy(tree, "127.0.0.1:/elsewhere", "--dry-run")
    assert denied.code == 1 and "is in no directory of yours" in denied.json["error"]
    (site.data / "there").mkdir()
    (site.data / "there/large").mkdir()
    clash = site.copy(tree, f"127.0.0.1:{site.data}/there", "--dry-run").expect(8)
    assert "a directory has this name" in clash.json["problems"][0]["text"]
    one = site.copy(tree / "large", f"127.0.0.1:{site.data}/one", "--dry-run=network")
    assert one.code == 0 and one.json["counts"]["files"] == 1, one
    assert [path.name for path in site.data.iterdir()] == ["there"]
