"""SOCKS clients: requests, replies, rules at both ends."""

from __future__ import annotations

import http.server
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, free_port, wait_until
from proxy_support import Proxies, Running, connect, echo, everything, listening, receive, socks


def test_each_kind_of_address_leads_to_its_destination(proxies: Proxies) -> None:
    proxies.serve()
    with listening(echo) as port:
        running = proxies.proxy("--socks", "0")
        for host, kind in (("127.0.0.1", 1), ("localhost", 3), ("127.0.0.1", 3), ("::ffff:127.0.0.1", 4)):
            connection, code = socks(running.port("socks"), host, port, kind)
            with connection:
                assert code == 0, host
                connection.sendall(b"hello")
                assert receive(connection, 5) == b"hello"


def said(running: Running, words: str) -> None:
    wait_until(lambda: words in running.log())


def test_what_is_refused_is_refused_with_its_code_and_words(proxies: Proxies) -> None:
    user = 'proxy = ["deny 127.0.0.2", "allow 127.0.0.0/8", "allow name.invalid"]'
    proxies.serve(user=user)
    closed = free_port()
    running = proxies.proxy("--socks", "0", "--rule", "deny 127.0.0.9")
    for host, code, words in (
        ("127.0.0.1", 5, "Connection refused"),
        ("127.0.0.2", 2, "the server does not let this user reach 127.0.0.2"),
        ("10.1.1.1", 2, "the server does not let this user reach 10.1.1.1"),
        ("127.0.0.9", 2, "a rule here denies 127.0.0.9"),
        ("name.invalid", 4, "name.invalid is not known"),
    ):
        connection, found = socks(running.port("socks"), host, closed)
        with connection:
            assert (found, everything(connection)) == (code, b""), host
        said(running, words)
    with connect(running.port("socks")) as connection:
        connection.sendall(b"\x05\x01\x00\x05\x02\x00\x01")
        assert receive(connection, 4) == b"\x05\x00\x05\x07"
    with connect(running.port("socks")) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert everything(connection) == b""


def test_who_may_reach_nothing_reaches_nothing(proxies: Proxies) -> None:
    proxies.serve(user="")
    with listening(echo) as port:
        running = proxies.proxy("--socks", "0")
        connection, code = socks(running.port("socks"), "127.0.0.1", port)
        connection.close()
        assert code == 2
    refused = proxies.run("--reverse", f"0:127.0.0.1:{port}").expect(1)
    assert "the server does not let this user listen at 127.0.0.1:0" in refused.err


def test_what_a_rule_sends_directly_goes_past_the_session(proxies: Proxies) -> None:
    proxies.serve(user="")
    with listening(echo) as port:
        running = proxies.proxy("--socks", "0", "--rule", "direct 127.0.0.0/8", "--rule", "direct localhost")
        for host in ("127.0.0.1", "localhost"):
            connection, code = socks(running.port("socks"), host, port)
            with connection:
                assert code == 0
                connection.sendall(b"x" * 100_000)
                connection.shutdown(socket.SHUT_WR)
                assert everything(connection) == b"x" * 100_000
        connection, code = socks(running.port("socks"), "127.0.0.1", free_port())
        connection.close()
        assert code == 5
        told = running.end()
    direct = [notice for notice in told if notice.get("way") == "direct"]
    assert [(d["sent_bytes"], d["received_bytes"], d["end"]) for d in direct] == [
        (100_000, 100_000, "closed")
    ] * 2


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    data = bytes(range(256)) * 4000
    folder = tmp_path / "web"
    folder.mkdir()
    (folder / "file").write_bytes(data)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, directory=str(folder), **more)  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], data
        server.shutdown()
        thread.join()


def test_curl_fetches_a_file_from_an_http_server(proxies: Proxies, web: tuple[int, bytes]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port, data = web
    proxies.serve()
    running = proxies.proxy("--socks", "0")
    url = f"http://localhost:{port}/file"
    got = subprocess.run(
        ["curl", "-sS", "--noproxy", "", "--proxy", f"socks5h://127.0.0.1:{running.port('socks')}", url],
        capture_output=True,
        check=True,
        timeout=WAIT_S,
    )
    assert got.stdout == data


def test_odd_words_are_named(proxies: Proxies) -> None:
    for words, text in (
        ([], "give --socks"),
        (["--socks", "host:1"], "host is no address to listen at"),
        (["--forward", "1:2"], "is no [ADDRESS:]PORT:HOST:PORT"),
        (["--socks", "0", "--rule", "permit *"], "begins with none of allow, deny, direct"),
    ):
        done = proxies.run(*words, port=7)
        assert done.code == 2 and text in done.err, done.err
