"""Special addresses: a server's own services are for rules that name them, however a client writes their addresses."""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import wait_until
from proxy_support import ECHO, Proxies, does, echo, listening, receive, running, socks
from waystage._native import wan_make_key, wan_read_key

NAMES = ("127.0.0.1", "127.1", "0177.1", "0x7f.0.0.1", "2130706433", "017700000001", "127.0.0.1.", "localhost",
         "LOCALHOST.", "0", "0.0.0.0", "0x0", "00.0", "::", "::1", "0:0::0:1", "::ffff:0.0.0.0", "::ffff:127.0.0.1",
         "::FFFF:7F00:1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "127.255.255.254")  # fmt: skip
IPV4 = ("127.0.0.1", "0.0.0.0", "127.9.9.9")
IPV6 = ("::", "::1", "::ffff:0.0.0.0", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1")


@contextmanager
def service() -> Iterator[tuple[int, list[object]]]:
    """One that listens at all addresses of this host; its port, and whom it saw."""
    seen: list[object] = []

    def serve(connection: socket.socket) -> None:
        seen.append(connection.getpeername())
        echo(connection)

    with listening(serve, host="") as port:
        yield port, seen


@pytest.mark.parametrize(
    "rules", ['"deny 127.0.0.0/8", "allow *"', '"allow *"', '"allow 0.0.0.0/0", "allow [::/0]"']
)
def test_no_form_of_a_special_address_reaches_the_servers_own_services(proxies: Proxies, rules: str) -> None:
    proxies.serve(user=f"proxy = [{rules}]")
    with service() as (port, seen):
        at = proxies.proxy("--socks", "0").port("socks")
        asked = [(3, name) for name in NAMES] + [(1, each) for each in IPV4] + [(4, each) for each in IPV6]
        for kind, host in asked:
            connection, code = socks(at, host, port, kind)
            connection.close()
            assert code == 2, f"{host} (kind {kind}) was answered with {code}"
        # What is no address and no name is refused before a resolver sees it.
        for host in ("[::1]", "::1%lo", "127.0.0.1..", "256.256.256.256", "a b", "1.2.3.4.5"):
            connection, code = socks(at, host, port)
            connection.close()
            assert code == 4, f"{host} was answered with {code}"
        assert seen == []
    wait_until(lambda: "which only a rule that names it allows" in proxies.log())


def test_a_rule_that_names_them_lets_them_through(proxies: Proxies) -> None:
    proxies.serve(user='proxy = ["allow *", "allow 127.0.0.0/30", "allow localhost"]')
    with listening(echo) as port:
        at = proxies.proxy("--socks", "0").port("socks")
        for host, code in (
            ("0177.0.0.1", 0),
            ("::ffff:127.0.0.1", 0),
            ("localhost", 0),
            ("127.0.0.9", 2),
            ("0", 2),
        ):
            connection, found = socks(at, host, port)
            with connection:
                assert found == code, host
                if code == 0:
                    connection.sendall(b"x")
                    assert receive(connection, 1) == b"x"


def test_what_goes_past_the_session_is_guarded_on_this_host_too(proxies: Proxies) -> None:
    proxies.serve(user="")
    with service() as (port, seen):
        running = proxies.proxy("--socks", "0", "--rule", "deny 127.0.0.0/8", "--rule", "direct *")
        for host in ("127.1", "0", "localhost", "::ffff:0.0.0.0"):
            connection, code = socks(running.port("socks"), host, port)
            connection.close()
            assert code == 2, host
        assert seen == []
        wait_until(lambda: "a rule here denies localhost" in running.log())


@pytest.mark.parametrize(
    ("places", "asked"),
    [
        ('"127.0.0.1"', "0.0.0.0:0"),
        ('"*"', "0.0.0.0:0"),
        ('"*"', "[::ffff:127.0.0.1]:0"),
        ('"[::]"', "[::]:0"),
    ],
)
def test_a_client_listens_only_where_a_rule_names_the_place(
    proxies: Proxies, places: str, asked: str
) -> None:
    proxies.serve(user=f"proxy_listen = [{places}]")
    refused = proxies.run("--reverse", f"{asked}:127.0.0.1:1")
    assert refused.code == 1 and "the server does not let this user listen at" in refused.err, refused


def test_a_place_to_listen_that_is_a_name_is_refused(proxies: Proxies) -> None:
    config = proxies.config(user='proxy_listen = ["localhost:80"]')
    from waystage.wan.config import load_config
    from waystage.wan.errors import WanConfigError

    with pytest.raises(WanConfigError, match="'localhost:80' is a name, and a client asks for an address"):
        load_config(config)


ASK = """
import json, socket, struct, sys
def asks(host):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) as s:
        s.sendall(b"\\x05\\x01\\x00")
        s.recv(2)
        s.sendall(b"\\x05\\x01\\x00\\x03" + bytes([len(host)]) + host.encode() + struct.pack(">H", int(sys.argv[2])))
        return s.recv(10)[1]
print(json.dumps([asks(host) for host in sys.argv[3:]]))
"""


@pytest.mark.lab
def test_the_hosts_own_addresses_are_looked_up_at_each_connection(path: str, tmp_path: Path) -> None:
    """The server's host has its own addresses: `allow *` is about the client's alone."""
    primary, secondary, later, named, routed, near = (
        "10.58.0.2", "10.78.0.2", "10.79.0.1", "10.80.0.1", "10.81.0.7", "10.58.0.1",
    )  # fmt: skip
    for words in (["addr", "add", "10.78.0.1/24", "dev", "lo"], ["addr", "add", f"{secondary}/24", "dev", "lo"],
                  ["addr", "add", f"{named}/32", "dev", "lo"], ["route", "add", "local", "10.81.0.0/24", "dev", "lo"]):  # fmt: skip
        assert does(path, "right", "ip", *words)[0] == 0
    for key in ("server.key", "client.key"):
        wan_make_key(tmp_path / key)
    (tmp_path / "serve.toml").write_text(
        f'listen = "{primary}:7900"\nkey = "server.key"\nlog = "serve.log"\n'
        f'[users.ada]\nkeys = ["{wan_read_key(tmp_path / "client.key")}"]\naccount = "root"\nproxy = ["allow *", "allow {named}"]\n',
        encoding="utf-8",
    )
    waystage = (sys.executable, "-m", "waystage")
    serve = ("serve", "--config", str(tmp_path / "serve.toml"), "--ready-file", str(tmp_path / "served"))
    proxy = ("proxy", primary, "--socks", "1080", "--ready-file", str(tmp_path / "proxied"),
             "--identity", str(tmp_path / "client.key"), "--server-key", wan_read_key(tmp_path / "server.key"))  # fmt: skip
    echo_at = (sys.executable, "-I", "-c", ECHO, "0.0.0.0", "8080")

    def codes(*hosts: str) -> list[int]:
        status, said = does(path, "left", sys.executable, "-I", "-c", ASK, "1080", "8080", *hosts)
        assert status == 0, said
        found: list[int] = json.loads(said)
        return found

    with (
        running(path, "right", *echo_at),
        running(path, "left", *echo_at),
        running(path, "right", *waystage, *serve) as serving,
    ):
        wait_until((tmp_path / "served").exists, serving)
        with running(path, "left", *waystage, *proxy) as proxying:
            wait_until((tmp_path / "proxied").exists, proxying)
            wait_until(lambda: codes(near) == [0], proxying)
            hosts = (
                primary,
                secondary,
                f"::ffff:{secondary}",
                str(struct.unpack(">I", socket.inet_aton(secondary))[0]),
                routed,
            )
            assert codes(*hosts) == [2] * len(hosts)
            wait_until(lambda: codes(named) == [0], proxying)
            assert codes(later) != [0]
            assert does(path, "right", "ip", "addr", "add", f"{later}/32", "dev", "lo")[0] == 0
            assert codes(later) == [2]
            assert does(path, "right", "ip", "addr", "del", f"{later}/32", "dev", "lo")[0] == 0
            assert codes(later) != [0]
    text = (tmp_path / "serve.log").read_text(encoding="utf-8")
    assert "it is this host's own address" in text and os.geteuid() == 0
