"""`waystage remote ls|mkdir|rm|mv`: a server's directories with the server's rights, against users and planted links."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import Ran, command, ran, wait_until
from remote_copy_support import Site
from waystage._native import RemoteTree, WanError
from waystage.native_options.peers import Peer


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    site.serve()
    yield site
    site.close()


def remote(site: Site, *words: object) -> Ran:
    trusted = ("--identity", site.folder / "client.key", "--server-key", site.server_key)
    return ran(command("remote", *words, "--port", site.port, *trusted), env=site.environment())


def at(path: Path | str) -> str:
    return f"ada@127.0.0.1:{path}"


def test_a_directory_is_listed(served: Site) -> None:
    folder = served.data / "listed"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 1234)
    os.utime(folder / "file", (0, 86_400))
    (folder / "dir").mkdir()
    (folder / "link").symlink_to("../elsewhere")
    (folder / os.fsdecode(b"odd\n\xff")).touch()
    for number in range(3000):  # more than fit into the pages in flight
        (folder / f"n{number:04}").touch()
    found = json.loads(remote(served, "ls", at(folder), "--json").expect().out)["entries"]
    by_name = {entry["path"]: entry for entry in found}
    assert len(found) == 3004 and by_name["file"]["bytes"] == 1234 and by_name["file"]["mtime"] == 86_400
    assert by_name["dir"]["kind"] == "directory" and by_name["link"]["target"] == "../elsewhere"
    text = remote(served, "ls", "-l", at(folder)).expect().out.splitlines()
    assert text[0].startswith("d") and text[0].endswith(" dir/") and "link -> ../elsewhere" in "\n".join(text)
    assert all(line.isprintable() for line in text)
    assert remote(served, "ls", at(folder / "file")).expect().out == "file\n"
    assert remote(served, "ls", "-d", at(folder)).expect().out == "listed/\n"
    gone = remote(served, "ls", "-d", at(folder / "gone"))
    assert gone.code == 1 and "no such entry" in gone.err


def test_directories_are_made_renamed_and_removed(served: Site) -> None:
    base = served.data / "made"
    assert remote(served, "mkdir", at(base / "a/b")).code == 3
    remote(served, "mkdir", "-p", at(base / "a/b")).expect()
    remote(served, "mkdir", "-p", at(base / "a/b")).expect()
    taken = remote(served, "mkdir", at(base / "a/b"))
    assert taken.code == 3 and "the name is taken" in taken.err
    (base / "a/b/file").write_text("x")
    remote(served, "mv", at(base / "a/b"), at(base / "c")).expect()
    assert (base / "c/file").read_text() == "x"
    full = remote(served, "rm", at(base / "c"))
    assert full.code == 3 and "--recursive" in full.err and (base / "c/file").exists()
    assert "removed 2 entries" in remote(served, "rm", "-r", at(base / "c")).expect().out
    remote(served, "rm", at(base / "a")).expect()
    assert list(base.iterdir()) == []


def test_a_rename_replaces_only_on_request(served: Site) -> None:
    one, other = served.data / "one", served.data / "other"
    one.write_text("one"), other.write_text("other")
    refused = remote(served, "mv", at(one), at(other))
    assert refused.code == 3 and "the name is taken" in refused.err and other.read_text() == "other"
    remote(served, "mv", "--force", at(one), at(other)).expect()
    assert other.read_text() == "one" and not one.exists()


def test_where_a_user_may_read_nothing_is_changed(served: Site) -> None:
    (served.given / "kept").write_text("x")
    (served.data / "mine").write_text("x")
    for words in (
        ["rm", at(served.given / "kept")],
        ["mkdir", at(served.given / "new")],
        ["mv", at(served.given / "kept"), at(served.data / "kept")],
        ["mv", at(served.data / "mine"), at(served.given / "mine")],
    ):
        refused = remote(served, *words)
        assert refused.code == 1 and "may only be read" in refused.err, refused
    assert [path.name for path in served.given.iterdir()] == ["kept"] and (served.data / "mine").exists()
    assert "kept" in remote(served, "ls", at(served.given)).expect().out


@pytest.mark.parametrize("path", ["/etc", "/", "{data}/../given/kept", "../given", "{data}/out/secret"])
def test_no_path_leads_out_of_the_directories(served: Site, path: str) -> None:
    outside = served.folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "secret").write_text("x")
    if not (served.data / "out").is_symlink():
        (served.data / "out").symlink_to(outside)
    given = path.format(data=served.data)
    for words in (["ls"], ["rm", "-r"], ["mkdir", "-p"]):
        refused = remote(served, *words, at(given))
        assert refused.code in (1, 3) and "secret\n" not in refused.out, refused
    assert (outside / "secret").exists()


def test_a_link_is_removed_and_what_it_points_to_stays(served: Site) -> None:
    outside = served.folder / "beyond"
    outside.mkdir()
    (outside / "secret").write_text("x")
    tree = served.data / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    remote(served, "rm", "-r", at(tree)).expect()
    assert not tree.exists() and (outside / "secret").exists()
    for root in (served.data, f"{served.data}/."):
        refused = remote(served, "rm", "-r", at(root))
        assert refused.code == 3 and "a directory that the server shares" in refused.err, refused


def test_the_server_logs_what_was_done(served: Site) -> None:
    remote(served, "mkdir", at(served.data / "logged")).expect()
    # The line follows the answer.
    wait_until(lambda: f"made {served.data}/logged" in served.log(), what="the line of the log")


def tree(site: Site) -> RemoteTree:
    """A session of the site's user."""
    return RemoteTree(
        Peer(
            host="127.0.0.1",
            port=site.port,
            user="ada",
            key=site.folder / "client.key",
            trusted=site.server_key,
        )
    )


def test_parts_of_a_file_are_read_over_one_session(served: Site) -> None:
    data = random.Random(1).randbytes(9 << 20)  # more than fits into the pieces in flight
    path = served.data / "parts"
    path.write_bytes(data)
    session, name = tree(served), os.fsencode(path)
    try:
        assert session.read(name, 0, 1 << 40)[0] == data
        for offset, length in ((0, 1), (65_535, 2), ((9 << 20) - 1, 10), (9 << 20, 10), (1 << 62, 1), (5, 0)):
            found, entry = session.read(name, offset, length)
            assert found == data[offset : offset + length] and entry is not None and entry[2] == len(data)
        # What is refused leaves the session as it was.
        with pytest.raises(WanError, match="cannot be read"):
            session.read(os.fsencode(served.data / "gone"), 0, 1)
        assert session.ask("list", [os.fsencode(served.data / "gone")], True)[0] == []
        assert session.read(name, 7, 3)[0] == data[7:10]
    finally:
        session.close()
    wait_until(lambda: "parts of files" in served.log(), what="the line of the log")


def test_only_regular_files_are_read(served: Site) -> None:
    outside = served.folder / "hidden"
    outside.write_text("x")
    os.mkfifo(served.data / "fifo")
    (served.data / "pointer").symlink_to(outside)
    session = tree(served)
    try:
        for name, says in (("fifo", "no regular file"), ("pointer", "symbolic link"), (".", "shares")):
            with pytest.raises(WanError, match=says):
                session.read(os.fsencode(served.data / name), 0, 1)
    finally:
        session.close()


def test_a_session_goes_on_at_a_server_that_was_started_again(site: Site) -> None:
    site.serve()
    (site.data / "file").write_text("abc")
    session, name = tree(site), os.fsencode(site.data / "file")
    try:
        assert session.read(name, 1, 1)[0] == b"b"
        site.end()
        site.serve()
        assert session.read(name, 2, 1)[0] == b"c"
    finally:
        session.close()


def test_reads_of_parts_keep_to_the_rate_of_the_user(site: Site) -> None:
    site.serve(user='rate = "1M"')
    (site.data / "file").write_bytes(bytes(2 << 20))
    session = tree(site)
    began = time.monotonic()
    try:
        session.read(os.fsencode(site.data / "file"), 0, 2 << 20)
    finally:
        session.close()
    assert time.monotonic() - began > 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ls", "here"], "is on this machine"),
        (["mv", "a:x", "b:y"], "different servers"),
        (["rm", "a:x", "--no-such"], "No such option"),
    ],
)
def test_bad_arguments_are_refused(served: Site, words: list[str], says: str) -> None:
    refused = ran(command("remote", *words), env=served.environment())
    assert refused.code == 2 and says in refused.err, refused
