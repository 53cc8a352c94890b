"""Copies whose other end is started over ssh: by a real sshd where there is one, by a shell that only looks like ssh elsewhere."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import WAIT_S, Ran, command, wait_until
from remote_copy_support import Site
from waystage._native import wan_make_key
from waystage.wan.errors import WanConfigError
from waystage.wan.ssh import Offer, Request, read_offer, read_request

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
REMOTE = f"{shlex.quote(sys.executable)} -m waystage"

JUMP = """
import os, select, socket, sys
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True:
    for ready in select.select([0, far], [], [])[0]:
        data = os.read(0, 65536) if ready == 0 else far.recv(65536)
        if not data:
            sys.exit()
        if ready == 0:
            far.sendall(data)
        while ready != 0 and data:
            data = data[os.write(1, data):]
"""
"""What a jump host does: its stdin and stdout to a port of this host, until either ends."""

real_ssh = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None or os.geteuid() != 0,
    reason="a real sshd needs root and openssh-server",
)


def copy(site: Site, rsh: str, *words: object, remote: str = REMOTE) -> Ran:
    remote_command = ("--rsh", rsh, "--remote-waystage", remote)
    return site.ran(command("copy", *words, *remote_command, "--udp-wait", WAIT_S / 3, "--json"))


def script(site: Site, text: str) -> str:
    path = site.folder / "shell"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def shell(site: Site) -> str:
    """Looks like ssh: passes over `-l USER` and the host, says something as a login may, and runs the command here."""
    return script(
        site,
        'echo "$@" >> "$(dirname "$0")/calls"\nwhile [ $# -gt 1 ]; do shift; done\necho welcome\nexec sh -c "$1"',
    )


@pytest.fixture
def sshd(site: Site) -> Iterator[str]:
    """A real server of ssh on a free port; the words that reach it."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", site.folder / name], check=True)
    shutil.copy(site.folder / "user.pub", site.folder / "authorized")
    # It stays bound, so that no other process takes the port; sshd may listen at it since both allow that.
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    config = site.folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {site.folder}/host\nAuthorizedKeysFile {site.folder}/authorized\n"
        f"PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n",
        encoding="utf-8",
    )
    assert SSHD is not None
    # To a file: a pipe would stay open as long as any of its children.
    with open(site.folder / "sshd.log", "wb") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log)
    site.started.append(process)

    def listens() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_until(listens, process)
    known = f"-o UserKnownHostsFile={site.folder}/known -o StrictHostKeyChecking=no -o LogLevel=ERROR -F none"
    yield f"ssh -p {port} -i {site.folder}/user -o IdentitiesOnly=yes {known}"
    process.terminate()
    reserved.close()


def tree(top: Path) -> Path:
    (top / "below").mkdir(parents=True)
    (top / "one").write_bytes(b"first")
    (top / "below" / "two").write_bytes(os.urandom(3 << 20))
    return top


def same(one: Path, other: Path) -> bool:
    return subprocess.run(["diff", "-r", one, other], check=False).returncode == 0


def servers_of(site: Site) -> list[int]:
    """Servers on demand that still run below this site's home."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                b"--on-demand" in (process / "cmdline").read_bytes().split(b"\0")
                and os.fsencode(site.folder) in (process / "environ").read_bytes()
            ):
                found.append(int(process.name))
    return found


def test_both_directions_and_nothing_stays(site: Site, shell: str) -> None:
    source = tree(site.folder / "source")
    pushed = copy(site, shell, source, f"ada@localhost:{site.data}/there").expect()
    assert same(source, site.data / "there")
    assert json.loads(pushed.out)["connection"]["way"] == "UDP"
    copy(site, shell, f"localhost:{site.data}/there", site.folder / "back").expect()
    assert same(source, site.folder / "back")
    calls = (site.folder / "calls").read_text(encoding="utf-8").splitlines()
    assert calls == [f"-l ada localhost {REMOTE} serve --on-demand", f"localhost {REMOTE} serve --on-demand"]
    wait_until(lambda: not servers_of(site))


def test_a_relative_path_is_below_home(site: Site, shell: str) -> None:
    source = tree(site.folder / "source")
    copy(site, shell, source, "localhost:there").expect()
    assert same(source, site.folder / "home" / "there")


def test_an_interrupted_one_goes_on(site: Site, shell: str) -> None:
    """Host and port are others the second time; the journal must know the source again."""
    source = site.folder / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(24 << 20))
    words = ("copy", f"localhost:{source}", site.folder / "back", "--rsh", shell, "--remote-waystage", REMOTE)
    slow = subprocess.Popen(
        command(*words, "--bandwidth-limit", "4M"), env=site.environment(), stderr=subprocess.DEVNULL
    )
    site.started.append(slow)
    wait_until(lambda: any((site.folder / "back").rglob("*journal*")) or slow.poll() is not None)
    slow.send_signal(signal.SIGKILL)
    slow.wait(WAIT_S)
    wait_until(lambda: not servers_of(site))
    copy(site, shell, f"localhost:{source}", site.folder / "back").expect()
    assert same(source, site.folder / "back")


@real_ssh
def test_by_a_real_ssh(site: Site, sshd: str) -> None:
    source = tree(site.folder / "source")
    copy(site, sshd, source, f"localhost:{site.data}/there").expect()
    assert same(source, site.data / "there")


@real_ssh
def test_through_ssh_where_the_port_cannot_be_reached(site: Site, sshd: str) -> None:
    """The address given to ssh leads nowhere else: nothing but ssh itself gets through."""
    source = tree(site.folder / "source")
    (site.folder / "jump.py").write_text(JUMP, encoding="utf-8")
    proxied = f"{sshd} -o ProxyCommand='{sys.executable} {site.folder}/jump.py %p' -o HostName=192.0.2.1"
    pushed = copy(site, proxied, source, f"localhost:{site.data}/there").expect()
    assert same(source, site.data / "there")
    assert json.loads(pushed.out)["connection"]["way"] == "TCP"
    assert "through ssh" in pushed.err


@pytest.mark.parametrize(
    ("rsh", "remote", "words"),
    [
        ("/nonexistent/ssh", REMOTE, "cannot be started"),
        ("false", REMOTE, "did not start"),
        ("sh -c 'echo waystage-serve garbled'", REMOTE, "answer is malformed"),
        ("sh -c 'echo waystage-serve {}'", REMOTE, "version"),
    ],
)
def test_what_cannot_be_started_is_said(site: Site, rsh: str, remote: str, words: str) -> None:
    refused = copy(site, rsh, site.data, "localhost:there", remote=remote)
    assert refused.code != 0
    assert words in refused.out


def test_a_host_is_no_option(site: Site, shell: str) -> None:
    refused = copy(site, shell, site.data, "ada@-oProxyCommand=touch x:there")
    assert refused.code != 0
    assert "not taken" in refused.out
    assert not (site.folder / "calls").exists()


@given(st.binary(max_size=200))
def test_any_line_is_an_offer_or_refused(line: bytes) -> None:
    for read in (read_request, read_offer):
        with contextlib.suppress(WanConfigError):
            read(io.BytesIO(line))
        with contextlib.suppress(WanConfigError):
            read(io.BytesIO(b"waystage-serve " + line))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    key = wan_make_key(tmp_path / "key")
    assert read_request(io.BytesIO(Request(key).line())) == Request(key)
    said = "motd\n" + Offer(40000, key).line()
    assert read_offer(io.BytesIO(said.encode())) == Offer(40000, key)
