"""Connections that know of no proxy at all: turned to it by the kernel, between two namespaces."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import wait_until
from proxy_support import ECHO, FAR, does, running
from waystage._native import wan_make_key, wan_read_key

pytestmark = pytest.mark.lab

FAR6, PORT = "fd77:1::2", 8080
"""An address that only the right end has, as FAR, and what listens there."""

ASKER = """
import socket, sys
connection = socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
connection.settimeout(60)
connection.setsockopt(socket.SOL_SOCKET, 36, int(sys.argv[3]))  # SO_MARK
connection.connect((sys.argv[1], int(sys.argv[2])))
assert connection.getpeername()[:2] == (sys.argv[1], int(sys.argv[2]))
connection.sendall(b"hello" * 20000)
connection.shutdown(socket.SHUT_WR)
data = b""
while more := connection.recv(1 << 16):
    data += more
print(data == b"hello" * 20000)
"""


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("way", ["redirect", "local-route", "tproxy"])
def test_a_program_reaches_an_address_that_only_the_server_has(
    path: str, tmp_path: Path, way: str, family: int
) -> None:
    far, bits, every, ip = (FAR, 32, "0.0.0.0", ("ip",)) if family == 4 else (FAR6, 128, "[::]", ("ip", "-6"))
    if family == 6:
        status, said = does(path, "right", "ip", "-6", "addr", "add", f"{FAR6}/128", "dev", "lo")
        if status != 0:
            pytest.skip(f"the kernel has no IPv6: {said.strip()}")
    if way == "redirect":
        # Where it would go otherwise: nowhere. It needs a route to be turned.
        steps = [[*ip, "route", "add", f"{far}/{bits}", "dev", "lo"]]
        kind, listen = "redirect", 3128
    elif way == "local-route":
        steps = [[*ip, "route", "add", "local", f"{far}/{bits}", "dev", "lo"]]
        kind, listen = "tproxy", PORT
    else:
        # What leaves with the mark comes in again by lo, where TPROXY takes it.
        steps = [
            [*ip, "route", "add", f"{far}/{bits}", "dev", "lo"],
            [*ip, "rule", "add", "fwmark", "1", "lookup", "100"],
            [*ip, "route", "add", "local", "default", "dev", "lo", "table", "100"],
        ]
        kind, listen = "tproxy", 3129
    # IPv6 decides where a packet goes before TPROXY has marked it, where it was sent on the same machine.
    mark = "1" if (way, family) == ("tproxy", 6) else "0"
    for step in steps:
        status, said = does(path, "left", *step)
        assert status == 0, said
    if way != "local-route":
        nft = str(Path(__file__).with_name("nft.py"))
        status, said = does(path, "left", sys.executable, "-I", nft, way, str(PORT), str(listen), str(family))
        if status != 0:
            pytest.skip(
                f"the kernel has no {way} of IPv{family} for nf_tables: {said.strip().splitlines()[-1]}"
            )
    for key in ("server.key", "client.key"):
        wan_make_key(tmp_path / key)
    client = wan_read_key(tmp_path / "client.key")
    (tmp_path / "serve.toml").write_text(
        f'listen = "10.58.0.2:7900"\nkey = "server.key"\nlog = "serve.log"\n'
        f'[users.ada]\nkeys = ["{client}"]\naccount = "root"\nproxy = ["allow {far if family == 4 else f"[{far}]"}:{PORT}"]\n',
        encoding="utf-8",
    )
    waystage = (sys.executable, "-m", "waystage")
    serve = ("serve", "--config", str(tmp_path / "serve.toml"), "--ready-file", str(tmp_path / "served"))
    proxy = ("proxy", "10.58.0.2", f"--{kind}", f"{every}:{listen}", "--ready-file", str(tmp_path / "proxied"),
             "--identity", str(tmp_path / "client.key"), "--server-key", wan_read_key(tmp_path / "server.key"))  # fmt: skip
    with (
        running(path, "right", sys.executable, "-I", "-c", ECHO, far, str(PORT)),
        running(path, "right", *waystage, *serve) as serving,
    ):
        wait_until((tmp_path / "served").exists, serving)
        with running(path, "left", *waystage, *proxy) as proxying:
            wait_until((tmp_path / "proxied").exists, proxying)
            status, said = does(path, "left", sys.executable, "-I", "-c", ASKER, far, str(PORT), mark)
            assert (status, said) == (0, "True\n")
            log = tmp_path / "serve.log"
            wait_until(
                lambda: (
                    f"to {far if family == 4 else f'[{far}]'}:{PORT}: closed"
                    in log.read_text(encoding="utf-8")
                ),
                serving,
            )
