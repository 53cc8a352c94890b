"""Layouts on a real GlusterFS: what the bricks hold at the places that a layout names is the file.

The volumes live in a scratch folder and are served by a separate daemon. `scripts/packages tests`
installs it; without glusterfs-server and glusterfs-client these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness import ran, wait_until
from waystage._native import read_layout

pytestmark = pytest.mark.lab

PORT = 24007
"""Bricks ask their daemon there; the port cannot be changed."""
BLOCK = 4 << 20
"""The smallest block of a sharded volume."""


def why_not() -> str | None:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [c for c in ("glusterd", "gluster", "glusterfs") if shutil.which(c, path=path) is None]
    if missing:
        return f"{missing[0]} is missing: install the Debian packages glusterfs-server and glusterfs-client"
    if not os.path.exists("/dev/fuse"):
        return "there is no /dev/fuse to mount with"
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            return f"port {PORT} is taken: another GlusterFS runs here"
    return None


@dataclass(frozen=True)
class Volumes:
    """Mounts of one sharded volume: `sharded` as geo-replication mounts it, to look below, and `ordinary`."""

    sharded: Path
    ordinary: Path


def run(*command: str | Path) -> None:
    done = ran([str(c) for c in command])
    assert done.code == 0, f"{command}: {done.out}{done.err}"


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volumes]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # The paths of bricks' sockets are short, so the folder's must be.
    base = tmp_path_factory.mktemp("gl")
    mounts = Volumes(*(base / name for name in ("sharded", "ordinary")))
    try:
        start(base)
        make_volumes(base, mounts)
        yield mounts
    finally:
        stop(base, mounts)


def start(base: Path) -> None:
    for folder in ("lib", "run", "log"):
        (base / folder).mkdir()
    (base / "glusterd.vol").write_text(
        "volume management\n"
        "    type mgmt/glusterd\n"
        f"    option working-directory {base}/lib\n"
        f"    option run-directory {base}/run\n"
        f"    option glusterd-sockfile {base}/run/glusterd.socket\n"
        "    option transport-type socket\n"
        "    option transport.address-family inet\n"
        "    option event-threads 1\n"
        "end-volume\n"
    )
    run(
        "glusterd",
        "-f",
        base / "glusterd.vol",
        "-p",
        base / "run/glusterd.pid",
        "-l",
        base / "log/glusterd.log",
    )
    listed = [*gluster(base), "pool", "list"]
    wait_until(
        lambda: subprocess.run(listed, capture_output=True, check=False).returncode == 0, what="a daemon"
    )


def bricks_online(command: list[str]) -> int:
    """How many bricks of the volume serve."""
    asked = [*command, "volume", "status", "sh", "--xml"]
    answer = ElementTree.fromstring(subprocess.run(asked, capture_output=True, check=False).stdout)
    nodes = [node for node in answer.iter("node") if "/bricks/" in node.findtext("path", "")]
    return sum(node.findtext("status") == "1" and node.findtext("port", "N/A") != "N/A" for node in nodes)


def gluster(base: Path) -> list[str]:
    return ["gluster", "--mode=script", f"--glusterd-sock={base}/run/glusterd.socket"]


def make_volumes(base: Path, mounts: Volumes) -> None:
    host = socket.gethostname()

    def bricks(name: str, count: int) -> list[str]:
        folders = [base / "bricks" / f"{name}{number}" for number in range(count)]
        for folder in folders:
            folder.mkdir(parents=True)
        return [f"{host}:{folder}" for folder in folders]

    command = gluster(base)
    run(*command, "volume", "create", "sh", "replica", "2", *bricks("s", 4), "force")
    run(*command, "volume", "set", "sh", "features.shard", "on")
    run(*command, "volume", "set", "sh", "features.shard-block-size", "4MB")
    run(*command, "volume", "start", "sh")
    # A client that comes before one of two copies would write to the other alone.
    wait_until(lambda: bricks_online(command) == 4, what="four bricks")
    for mount, extra in ((mounts.sharded, ["--client-pid=-1"]), (mounts.ordinary, [])):
        mount.mkdir()
        log, pid = base / "log" / f"{mount.name}.log", base / f"run/{mount.name}.pid"
        server = [f"--volfile-server={host}", "--volfile-id=sh"]
        run("glusterfs", *server, *extra, "-l", log, "-p", pid, mount)


def stop(base: Path, mounts: Volumes) -> None:
    """Unmount, then end what was started here, by the numbers that it wrote down."""
    for mount in (mounts.sharded, mounts.ordinary):
        if os.path.ismount(mount):
            subprocess.run(["umount", "-l", str(mount)], check=False)
    daemon = base / "run/glusterd.pid"
    others = [path for path in (base / "run").rglob("*.pid") if path != daemon]
    # The daemon first: it would start bricks anew.
    for path in (daemon, *others):
        try:
            process = int(path.read_text())
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"gluster" in command and os.fsencode(base) in command:
                os.kill(process, signal.SIGKILL)
        except (OSError, ValueError):
            continue
    name = str(base).strip("/").replace("/", "-")
    for log in Path("/var/log/glusterfs/bricks").glob(f"{name}*"):
        log.unlink()


def held(layout: dict[str, Any], mirror: int) -> bytes:
    """The file as this copy's bricks, which are folders of this machine, hold it."""
    pieces = []
    for extent in layout["extents"]:
        if extent["mirror"] != mirror:
            continue
        if extent["flags"] == ["unwritten"]:
            pieces.append(bytes(extent["length"]))
            continue
        assert extent["flags"] == [] and extent["target"] is not None
        brick = layout["components"][extent["component"]]["objects"][extent["object"]]
        with open(brick["id"], "rb") as file:
            file.seek(extent["object_offset"])
            pieces.append(file.read(extent["length"]))
    return b"".join(pieces)


def test_the_bricks_hold_a_sharded_file_where_its_layout_says(volumes: Volumes) -> None:
    content = os.urandom(3 * BLOCK + 70_000)
    name = os.fsdecode(b"caf\xe9 > (1)")
    (volumes.ordinary / "folder").mkdir()
    (volumes.ordinary / "folder" / name).write_bytes(content)
    file = volumes.sharded / "folder" / name
    layout = read_layout(file, size=len(content))
    assert layout is not None and layout["kind"] == "gluster" and layout["mirrors"] == [0, 1]
    assert layout["components"][0]["stripe_size"] == BLOCK
    assert layout["extent_count"] == 2 * 4
    for mirror in (0, 1):
        assert held(layout, mirror) == content
    directory = read_layout(file.parent)
    assert directory is not None and directory["template"] and len(directory["targets"]) == 4


def test_a_block_that_was_never_written_is_said_to_be_absent(volumes: Volumes) -> None:
    with open(volumes.ordinary / "sparse", "wb") as sparse:
        sparse.write(b"first")
        sparse.seek(2 * BLOCK)
        sparse.write(b"third")
    layout = read_layout(volumes.sharded / "sparse", mirrors="1", size=2 * BLOCK + 5)
    assert layout is not None
    assert [extent["flags"] for extent in layout["extents"]] == [[], ["unwritten"], []]
    # The first block's object ends where writing did.
    assert held(layout, 1).replace(b"\0", b"") == b"firstthird"


def test_an_ordinary_mount_tells_where_a_file_begins(volumes: Volumes) -> None:
    file = volumes.ordinary / "small"
    file.write_bytes(b"whole")
    layout = read_layout(file)
    assert layout is not None and layout["extent_count"] == 2
    assert {held(layout, mirror) for mirror in layout["mirrors"]} == {b"whole"}
