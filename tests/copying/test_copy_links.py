"""`waystage copy --copy-links`: what symbolic links lead to is copied, and no link is followed for ever."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copying_trees import leftovers
from harness import Ran, Waystage
from remote_copy_support import Site
from waystage._native import TreeCopy
from waystage.native_options.copies import TreeCopyOptions


def texts(ran: Ran) -> dict[str, str]:
    """What is said of each path."""
    return {each["path"]: each["text"] for each in ran.json["problems"]}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with links to a file, a directory and a large file out of it, and within it."""
    for folder in ("a/real", "out/below"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a/real/file").write_bytes(b"in the tree")
    (tmp_path / "out/below/file").write_bytes(b"out of the tree")
    (tmp_path / "out/large").write_bytes(random.Random(3).randbytes(40 << 20))
    os.utime(tmp_path / "out/below/file", ns=(5, 1_234_567_890_123_456_789))
    os.setxattr(tmp_path / "out/below/file", "user.waystage", b"value")
    (tmp_path / "a/one").symlink_to("real/file")
    (tmp_path / "a/dir").symlink_to(tmp_path / "out")
    (tmp_path / "a/line\nbreak").symlink_to("one")
    return tmp_path / "a"


NAMES = {"real", "real/file", "one", "dir", "dir/below", "dir/below/file", "dir/large", "line\nbreak"}


def check(copy: Path, source: Path) -> None:
    """The copy has no link, and what the links of `source` lead to."""
    found = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert found == NAMES and not any(path.is_symlink() for path in copy.rglob("*"))
    for name in NAMES:
        if not (copy / name).is_dir():
            assert (copy / name).read_bytes() == (source / name).read_bytes(), name
    assert (copy / "dir/below/file").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert os.getxattr(copy / "dir/below/file", "user.waystage") == b"value"
    assert (copy / "one").stat().st_nlink == 1
    assert not leftovers(copy)


def test_what_links_lead_to_is_copied_once_and_verified(
    tmp_path: Path, source: Path, waystage: Waystage
) -> None:
    dry = waystage("copy", "-L", "a", "b", "-n", "--json").expect()
    assert not (tmp_path / "b").exists()
    ran = waystage("copy", "--copy-links", "a", "b", "--verify", "--json").expect()
    assert ran.json["counts"]["files"] == ran.json["counts"]["verified"] == 5, ran
    assert ran.json["counts"]["symlinks"] == 0
    would = {each["path"].replace("\\n", "\n") for each in dry.json["would_copy"]}
    assert would == NAMES - {"real", "dir", "dir/below"}
    check(tmp_path / "b", source)
    again = waystage("copy", "-L", "a", "b", "--update", "content", "--json").expect()
    assert again.json["counts"]["files"] == 0 and again.json["counts"]["same"] == 5
    assert waystage("copy", "-L", "a", "b", "--delete", "--json").json["counts"]["deleted"] == 0


def test_links_are_followed_to_another_host(site: Site, source: Path) -> None:
    site.serve()
    ran = site.copy("-L", source, f"ada@127.0.0.1:{site.data}/copy", "--verify").expect()
    assert ran.json["counts"]["files"] == 5
    check(site.data / "copy", source)
    again = site.copy("-L", source, f"ada@127.0.0.1:{site.data}/copy", "--update", "content").expect()
    assert again.json["counts"]["files"] == 0


def test_a_server_follows_no_link(site: Site, tmp_path: Path) -> None:
    (site.folder / "secret").write_text("secret")
    (site.given / "link").symlink_to(site.folder / "secret")
    site.serve()
    ran = site.copy("-L", f"ada@127.0.0.1:{site.given}", tmp_path / "here")
    assert ran.code == 2 and "a server follows no symbolic links" in ran.json["error"], ran


def test_links_that_lead_nowhere_and_in_circles_are_named_and_the_rest_is_copied(
    tmp_path: Path, source: Path, waystage: Waystage
) -> None:
    links = {
        "gone": "no such name",
        "self": "self",
        "to": "fro",
        "fro": "to",
        "real/up": "..",
        "real/here": ".",
        "through": "one/below",
    }
    for name, target in links.items():
        (source / name).symlink_to(target)
    # A plain directory leads back: out of the tree and in again.
    (tmp_path / "out/around").symlink_to(tmp_path)
    ran = waystage("copy", "-L", "a", "b", "--delete", "--json")
    said = texts(ran)
    assert ran.code == 8 and "nothing was deleted" in ran.err
    assert '"no such name", which does not exist' in said["gone"]
    assert "which does not exist" in said["through"]
    for name in ("self", "to", "fro"):
        assert "symbolic links that lead to each other" in said[name]
    for name in ("real/up", "real/here", "dir/around/a", "dir/around/out"):
        assert "leads back to a directory that it is in" in said[name], said
    assert "into the destination" in said["dir/around/b"]
    assert ran.json["counts"]["errors"] == len(said) == len(links) + 3
    for name in NAMES:
        assert (tmp_path / "b" / name).exists(), name
    assert not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))


def test_no_link_leads_into_the_destination(tmp_path: Path, waystage: Waystage) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b/deep/below").mkdir(parents=True)
    (tmp_path / "b/deep/below/x").write_text("x")
    (tmp_path / "a/all").symlink_to("../b")
    (tmp_path / "a/part").symlink_to("../b/deep/below")
    ran = waystage("copy", "-L", "a", "b", "--json")
    assert ran.code == 8 and {"all", "part"} == set(texts(ran))
    listed = tmp_path / "list"
    listed.write_text("all\npart/x\n")
    ran = waystage("copy", "-L", "a", "b", "--files-from", listed, "--json")
    assert texts(ran).keys() == {"all"} and (tmp_path / "b/part/x").read_text() == "x"
    assert not (tmp_path / "b/all/all").exists()


def test_lists_and_patterns_name_what_is_behind_links(
    tmp_path: Path, source: Path, waystage: Waystage
) -> None:
    (source / "gone").symlink_to("nowhere")
    listed = tmp_path / "list"
    listed.write_bytes(b"dir/below\0one\0gone\0")
    ran = waystage("copy", "-L", "a", "b", "--files-from", listed, "-0", "--json")
    assert ran.code == 8 and texts(ran).keys() == {"gone"}
    found = {str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*")}
    assert found == {"dir", "dir/below", "dir/below/file", "one"}
    waystage(
        "copy", "-L", "a", "c", "--exclude", "dir/below", "--include", "l*", "--exclude", "gone"
    ).expect()
    found = {str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*")}
    assert found == {"dir", "dir/large", "line\nbreak"}
    ran = waystage("copy", "-L", "a", "d", "--max-size", "1K", "--exclude", "gone")
    assert ran.code == 0 and not (tmp_path / "d/dir/large").exists() and (tmp_path / "d/one").exists()


def test_deletion_looks_behind_links(tmp_path: Path, source: Path, waystage: Waystage) -> None:
    waystage("copy", "-L", "a", "b").expect()
    (tmp_path / "b/dir/below/old").write_text("old")
    (tmp_path / "out/below/file").unlink()
    ran = waystage("copy", "-L", "a", "b", "--delete", "--json").expect()
    assert ran.json["counts"]["deleted"] == 2
    assert not list((tmp_path / "b/dir/below").iterdir())


def test_a_link_into_the_way_of_removed_sources_is_refused(waystage: Waystage) -> None:
    ran = waystage("copy", "-L", "a", "b", "--remove-source")
    assert ran.code == 2 and "--remove-source and --copy-links exclude each other" in ran.err
    ran = waystage("copy", "-L", "a", "b", "--scheduler", "tcp://x:1")
    assert ran.code == 2 and "--copy-links" in ran.err


def test_without_it_links_are_copied_as_links(tmp_path: Path, source: Path, waystage: Waystage) -> None:
    waystage("copy", "a", "b").expect()
    assert os.readlink(tmp_path / "b/one") == "real/file" and (tmp_path / "b/dir").is_symlink()


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(links=st.lists(st.tuples(st.sampled_from("pqrs"), st.sampled_from("pqrs")), min_size=1, max_size=8))
def test_any_web_of_links_ends(
    tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]
) -> None:
    """Directories that link to each other in any way: each path without a repeated directory is copied, and no other."""
    top = tmp_path_factory.mktemp("web")
    for name in "pqrs":
        (top / "a" / name).mkdir(parents=True)
        (top / "a" / name / "file").write_text(name)
    for number, (place, target) in enumerate(links):
        (top / "a" / place / f"to{number}").symlink_to(f"../{target}")

    def expected(place: str, way: tuple[str, ...]) -> set[str]:
        found = {"/".join([*way, "file"])}
        # The tree's own directories that the way has been in.
        been = places(way)
        for number, (at, target) in enumerate(links):
            if at == place and target not in been:
                found |= expected(target, (*way, f"to{number}"))
        return found

    def places(way: tuple[str, ...]) -> list[str]:
        return [way[0], *(links[int(name[2:])][1] for name in way[1:])]

    wanted = set[str]().union(*(expected(name, (name,)) for name in "pqrs"))
    with TreeCopy(top / "a", top / "b", TreeCopyOptions(workers=3, copy_links=True)) as copying:
        while not copying.wait(60):
            pass
    found = {str(path.relative_to(top / "b")) for path in (top / "b").rglob("*") if path.is_file()}
    assert found == wanted
