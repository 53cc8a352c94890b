"""Programs that know of no proxy: rsync over ssh, iperf3."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import WAIT_S, free_port, wait_until
from proxy_support import Proxies


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def listens(port: int) -> bool:
    """Without connecting: a server that takes one connection would take this one."""
    wanted = f":{port:04X}"
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(wanted) and row[3] == "0A" for row in rows)


@pytest.mark.parametrize("back", [False, True])
def test_iperf3_runs_through_a_fixed_port(proxies: Proxies, back: bool) -> None:
    iperf3 = program("iperf3")
    port = free_port()
    proxies.serve()
    serving = subprocess.Popen([iperf3, "-s", "-1", "-p", str(port)], stdout=subprocess.DEVNULL)
    proxies.started.append(serving)
    wait_until(lambda: listens(port), serving)
    running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
    words = [iperf3, "-c", "127.0.0.1", "-p", str(running.port("forward")), "-n", "20M", "-P", "4", "-J"]
    done = subprocess.run(
        [*words, *(["-R"] if back else [])], capture_output=True, timeout=WAIT_S, check=False
    )
    found = json.loads(done.stdout)
    assert "error" not in found, found
    # Its word that it has sent all may come before what it has sent: it says so on another connection.
    assert found["end"]["sum_sent"]["bytes"] >= 20_000_000
    assert found["end"]["sum_received"]["bytes"] > 0


def test_rsync_over_ssh_goes_through_a_fixed_port(proxies: Proxies) -> None:
    sshd, ssh, keygen, rsync = (program(name) for name in ("sshd", "ssh", "ssh-keygen", "rsync"))
    folder = proxies.folder / "ssh"
    folder.mkdir(mode=0o700)
    for key in ("host", "user"):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    port = free_port()
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'authorized'}\n"
        f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n",
        encoding="utf-8",
    )
    proxies.serve()
    with (folder / "sshd.log").open("wb") as log:
        serving = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    proxies.started.append(serving)
    wait_until(lambda: serving.poll() is not None or listens(port))
    if serving.poll() is not None:
        pytest.skip(f"sshd does not start here: {(folder / 'sshd.log').read_text()}")
    tree = proxies.folder / "tree"
    (tree / "below").mkdir(parents=True)
    for number in range(20):
        (tree / "below" / str(number)).write_bytes(os.urandom(10_000 + number))
    (tree / "large").write_bytes(os.urandom(3_000_000))
    running = proxies.proxy("--forward", f"0:127.0.0.1:{port}")
    through = (
        f"{ssh} -p {running.port('forward')} -i {folder / 'user'} -o StrictHostKeyChecking=no -o IdentitiesOnly=yes"
        f" -o UserKnownHostsFile={folder / 'known'} -o BatchMode=yes -F none"
    )
    to = proxies.folder / "copy"
    subprocess.run(
        [rsync, "-a", "-e", through, f"{tree}/", f"{getpass.getuser()}@127.0.0.1:{to}/"],
        check=True,
        timeout=WAIT_S,
    )
    compared = subprocess.run(["diff", "-r", str(tree), str(to)], capture_output=True, check=False)
    assert compared.returncode == 0, compared.stdout
