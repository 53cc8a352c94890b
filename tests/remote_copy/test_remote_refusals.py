"""What a server refuses, what a client does not believe, and what datagrams of strangers do: nothing."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from copying_trees import snapshot
from harness import WAIT_S
from remote_copy_support import Middlebox, Site, peer, server_here
from waystage._native import RemoteCopy, WanError, wan_fingerprint, wan_make_key
from waystage.native_options.copies import RemoteCopyOptions
from waystage.native_options.servers import ServerUser

OF_PEER = ("host", "port", "user", "key", "trusted", "mode", "rate_bytes_per_s", "udp_wait_s")


def copy(site: Site, local: Path, remote: str, *, push: bool = True, **more: Any) -> RemoteCopy:
    """A copy in this process, which has ended."""
    server = peer(site, **{name: more.pop(name) for name in OF_PEER if name in more})
    options = RemoteCopyOptions(workers=2, **more)
    with RemoteCopy(local, os.fsencode(remote), server, options, push=push) as copying:
        assert copying.wait(WAIT_S)
    return copying


def refused(call: Callable[[], object]) -> WanError:
    with pytest.raises(WanError) as raised:
        call()
    return raised.value


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_bytes(b"content")
    return tree


def test_only_keys_that_the_server_knows_come_in(site: Site, tree: Path) -> None:
    wan_make_key(site.folder / "other.key")
    with server_here(site) as server:
        error = refused(lambda: copy(site, tree, "new", key=site.folder / "other.key"))
        assert error.kind == "denied" and 'does not know this key as user "ada"' in str(error)
        error = refused(lambda: copy(site, tree, "new", user="root"))
        assert error.kind == "denied" and "waystage-ed25519 " in str(error)
        assert copy(site, tree, "new", user="").complete
        assert any("does not know this key" in line for line in server.log())
    assert list(site.data.iterdir()) == [site.data / "new"]


def test_a_client_believes_only_the_server_it_knows(site: Site, tree: Path) -> None:
    wan_make_key(site.folder / "other.key")
    with server_here(site):
        error = refused(lambda: copy(site, tree, "new", trusted=None))
        assert (error.kind, error.server_key) == ("untrusted", site.server_key)
        assert wan_fingerprint(site.server_key) in str(error) and "--trust-new" in str(error)
        error = refused(lambda: copy(site, tree, "new", trusted=site.client_key))
        assert error.kind == "untrusted" and "another key than the one that is known" in str(error)
        known = site.folder / "known"
        words = (tree, "127.0.0.1:new", "--known-hosts", known)
        # An empty key is none: the file of known hosts decides.
        ran = site.copy(*words, key="")
        assert ran.code == 1 and "not known yet" in ran.json["error"] and not known.exists()
        ran = site.copy(*words, "--trust-new", key="").expect()
        assert known.read_text(encoding="utf-8") == f"127.0.0.1:{site.port} {site.server_key}\n"
        assert known.stat().st_mode & 0o777 == 0o600
        assert site.copy(*words, key="").code == 0
        known.write_text(f"127.0.0.1:{site.port} {site.client_key}\n", encoding="utf-8")
        ran = site.copy(*words, "--trust-new", key="")
        assert ran.code == 1 and "may be intercepted" in ran.json["error"]
        assert site.copy(*words, key=wan_fingerprint(site.server_key)).code == 0
        assert site.copy(*words, key=wan_fingerprint(site.client_key)).code == 1


@pytest.mark.parametrize("push", [True, False], ids=["write", "read"])
def test_nothing_leads_out_of_the_roots(site: Site, tree: Path, tmp_path: Path, push: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (site.data / "link").symlink_to(outside)
    (site.data / "file-link").symlink_to(outside / "secret")
    local = tree if push else tmp_path / "here"
    with server_here(site):
        for path, kind, word in [
            ("../outside", "denied", "`..` is not"),
            (f"{site.data}/../../outside", "denied", "`..` is not"),
            (f"{outside}", "denied", "is in no directory of yours"),
            (f"{site.data}x", "denied", "is in no directory of yours"),
            ("link", "ends", "symbolic link"),
            ("link/sub", "ends", "symbolic link"),
            ("file-link", "ends", "symbolic link" if not push else ""),
        ]:
            error = refused(lambda path=path: copy(site, local, path, push=push))  # type: ignore[misc]
            assert (error.kind, word in str(error)) == (kind, True), (path, error.kind, str(error))
        if push:
            error = refused(lambda: copy(site, tree, f"{site.given}/new"))
            assert error.kind == "denied" and "may only be read" in str(error)
    assert [path.name for path in outside.iterdir()] == ["secret"]


def test_a_link_in_the_way_at_the_destination_is_not_followed(site: Site, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (site.data / "new").mkdir()
    (site.data / "new/sub").symlink_to(outside)
    with server_here(site):
        copied = copy(site, tree, "new")
    assert not copied.complete and list(outside.iterdir()) == []
    assert {path for path, _, _ in copied.problems()} == {b"sub", b"sub/file"}


def test_a_server_takes_over_no_rights_by_default(site: Site, tree: Path) -> None:
    (tree / "program").write_bytes(b"#!/bin/sh\n")
    (tree / "program").chmod(0o4755)
    if os.geteuid() == 0:
        os.chown(tree / "sub/file", 12345, 23456)
    with server_here(site):
        copied = copy(site, tree, "new")
    about = (site.data / "new/program").stat()
    assert about.st_mode & 0o7777 == 0o755
    assert (site.data / "new/sub/file").stat().st_uid == os.geteuid()
    assert [(path, kind) for path, kind, _ in copied.problems()] == [(b"program", "lost")]


def test_the_caps_on_connections_hold(site: Site, tree: Path) -> None:
    (tree / "large").write_bytes(bytes(16 << 20))
    user = ServerUser(name="ada", keys=[site.client_key], connections=1)
    caps: list[tuple[str, dict[str, Any], str]] = [
        ("one", {"connections": 1}, "the server's cap"),
        ("two", {"users": [user]}, "this user's cap"),
    ]
    for name, more, whose in caps:
        with server_here(site, **more) as server:
            server_of_slow = peer(site, rate_bytes_per_s=500_000)
            with RemoteCopy(
                tree, name.encode(), server_of_slow, RemoteCopyOptions(workers=1), push=True
            ) as slow:
                while not (site.data / name / ".waystage-copy").exists():
                    assert not slow.wait(0.01)
                error = refused(lambda: copy(site, tree, "new"))
                assert error.kind == "busy" and whose in str(error)
                assert server.progress()["connections"] >= 1


def test_the_faster_modes_are_granted_and_a_downgrade_is_reported(site: Site, tree: Path) -> None:
    with server_here(site):
        (note,) = copy(site, tree, "one", mode="aggressive").notes()
        assert "does not grant mode aggressive to ada" in note
        assert copy(site, tree, "two", mode="modest").notes() == []
    ada = ServerUser(name="ada", keys=[site.client_key], modes=["aggressive"])
    far = replace(ada, networks=[("192.0.2.0", 24)])
    with server_here(site, users=[far]):
        assert len(copy(site, tree, "three", mode="aggressive").notes()) == 1
    granted = replace(ada, networks=[("127.0.0.0", 8)])
    with server_here(site, users=[granted]):
        assert copy(site, tree, "four", mode="aggressive").notes() == []


def test_damaged_repeated_cut_and_forged_datagrams_change_nothing(site: Site, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(random.Random(5).randbytes(3 << 20))
    chance = random.Random(6)
    earlier: list[bytes] = []

    def mangle(datagram: bytes, to_server: bool) -> list[bytes]:
        if chance.random() > 0.1:
            return [datagram]
        earlier.append(datagram)
        flipped = bytearray(datagram)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        return [
            bytes(flipped),
            datagram[: chance.randrange(len(datagram))],
            datagram,
            datagram,
            earlier[chance.randrange(len(earlier))],
            datagram + b"more",
            chance.randbytes(chance.randrange(2000)),
            datagram[:12] + chance.randbytes(9000),
        ]

    with server_here(site) as server:
        with Middlebox(site.port, mangle) as box:
            there = copy(site, tree, "new", port=box.port)
            back = copy(site, tmp_path / "back", "new", push=False, port=box.port)
        assert server.progress()["strange_datagrams"] > 0
    assert there.complete and back.complete
    assert there.connection()[0]["udp"] == 1 and back.connection()[0]["refused_packets"] > 0
    assert snapshot(site.data / "new") == snapshot(tree) == snapshot(tmp_path / "back")


def test_what_speaks_something_else_is_turned_away_and_the_server_goes_on(site: Site, tree: Path) -> None:
    with server_here(site) as server:
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40, b"\x16\x03\x01\x00\x05hello"):
            with socket.create_connection(("127.0.0.1", site.port), timeout=WAIT_S) as stranger:
                # It may have been turned away before all was said.
                with contextlib.suppress(OSError):
                    stranger.sendall(words)
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(1 << 16):
                        pass
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for size in (0, 1, 11, 12, 28, 1472, 60_000):
                stranger.sendto(bytes([0x11]) + bytes(size), ("127.0.0.1", site.port))
            stranger.settimeout(0.2)
            with pytest.raises(TimeoutError):
                stranger.recv(1)
        assert copy(site, tree, "new").complete
        assert server.progress()["connections"] == 0 or server.log()


def test_a_destination_that_cannot_be_used_is_reported_with_its_reason(
    site: Site, tree: Path, tmp_path: Path
) -> None:
    (site.data / "file").write_bytes(b"")
    with server_here(site):
        for call, kind, word in [
            (lambda: copy(site, tree, "no/such/folder"), "ends", "make the directory it is to lie in first"),
            (lambda: copy(site, tree, "file"), "ends", "is no directory, and the source is one"),
            (lambda: copy(site, tmp_path / "none", "new"), "ends", "cannot be read"),
            (lambda: copy(site, tmp_path / "new", "none", push=False), "ends", "it is not there"),
        ]:
            error = refused(call)
            assert (error.kind, word in str(error)) == (kind, True), str(error)
