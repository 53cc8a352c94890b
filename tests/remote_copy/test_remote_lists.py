"""Lists of names between hosts: read where the command is given, obeyed where the source is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from copying_trees import ODD_NAMES, make_everything, snapshot
from remote_copy_support import Site


@pytest.fixture
def tree(site: Site) -> Path:
    make_everything(site.given)
    return site.given


@pytest.mark.parametrize("push", [True, False], ids=["push", "pull"])
def test_a_list_is_obeyed_in_both_directions(site: Site, tree: Path, tmp_path: Path, push: bool) -> None:
    listed = [b"a/" + name for name in ODD_NAMES] + [b"a/b/c", b"first name"]
    (tmp_path / "list").write_bytes(b"".join(b"./" + name + b"\0" for name in listed))
    site.serve()
    to = site.data / "copy" if push else tmp_path / "copy"
    ends = (tree, f"127.0.0.1:{to}") if push else (f"127.0.0.1:{tree}", to)
    words = ("--files-from", tmp_path / "list", "--null", "--privileged")
    site.copy(*ends, *words).expect()
    below = {path for path in snapshot(tree) if path.startswith(b"a/b/c/")}
    assert set(snapshot(to)) == {b"", b"a", b"a/b", *listed, *below}
    again = site.copy(*ends, *words)
    assert (again.code, again.json["counts"]["files"]) == (0, 0), again


def test_a_list_longer_than_a_message_is_sent_in_pieces_and_bounded_by_the_server(
    site: Site, tree: Path, tmp_path: Path
) -> None:
    # Most are not there, which costs the least; together they are far longer than what one message holds.
    names = [f"none/{number:0200}" for number in range(30_000)] + ["a/secret"]
    (tmp_path / "list").write_text("\n".join(names))
    site.serve()
    words = ("--files-from", tmp_path / "list")
    ran = site.copy(f"127.0.0.1:{tree}", tmp_path / "copy", *words).expect(8)
    assert ran.json["counts"]["errors"] == 30_000
    assert set(snapshot(tmp_path / "copy")) == {b"", b"a", b"a/secret"}
    site.end()
    (tmp_path / "list").write_bytes(b"\n".join(b"%0250d" % number for number in range(70_000)))
    site.serve('memory = "16Mi"')
    ran = site.copy(f"127.0.0.1:{tree}", tmp_path / "copy", *words)
    assert ran.code == 3 and "takes more than the 8 MiB that the server has for it" in ran.json["error"], ran


def test_no_list_leads_out_of_a_root(site: Site, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not for them")
    (tree / "up").symlink_to(tmp_path)
    (tmp_path / "list").write_text("up/secret\nup\n")
    site.serve()
    ran = site.copy(f"127.0.0.1:{tree}", tmp_path / "copy", "--files-from", tmp_path / "list")
    assert ran.code == 8 and "is not followed" in ran.json["problems"][0]["text"], ran
    assert os.readlink(tmp_path / "copy/up") == str(tmp_path)
    (tmp_path / "list").write_text("secret\n")
    ran = site.copy(f"127.0.0.1:{tree}/a/secret", tmp_path / "one", "--files-from", tmp_path / "list")
    assert ran.code == 3 and "is a file, and a list names" in ran.json["error"], ran
