"""Options that would do nothing are refused, and `--show-key` and `serve --check` look at what they are asked about."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from harness import Ran, Waystage, command, ran
from remote_copy_support import Site
from waystage._native import wan_make_key, wan_read_key
from waystage.wan.config import load_config
from waystage.wan.serve_check import problems


def run(site: Site, *words: object) -> Ran:
    done = ran(command(*words), env=site.environment())
    return Ran(done.code, done.out, done.err)


@pytest.mark.parametrize("word", ["copy", "proxy", "probe"])
def test_the_key_that_is_shown_is_the_one_that_is_named(site: Site, word: str) -> None:
    wan_make_key(site.folder / "other.key")
    other = wan_read_key(site.folder / "other.key")
    named = ("--identity", site.folder / "other.key")
    for words in ((*named, "--show-key"), ("--show-key", *named)):
        ran = run(site, word, *words)
        assert (ran.code, ran.out) == (0, f"{other}\n"), ran
    ran = run(site, word, "--show-key", *named, "--json")
    assert ran.json["key"] == other and ran.json["fingerprint"]
    ran = run(site, word, "--show-key", "--identity", site.folder / "none")
    assert ran.code == 2 and "does not exist" in ran.err, ran
    usual = run(site, word, "--show-key")
    assert usual.code == 0 and usual.out == f"{wan_read_key(site.folder / 'home/.config/waystage/wan/key')}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["copy", "a", "b", "--retry-for", "5"], "--retry-for: for copies between hosts"),
        (["copy", "a", "b", "--port", "7900", "--memory", "1Gi"], "--port, --memory: for copies between hosts"),
        (["copy", "a", "h:b", "--ssh", "--port", "22"], "--port: for a running `waystage serve`"),
        (["copy", "a", "h:b", "--rsh", "ssh", "--trust-new"], "--trust-new: for a running `waystage serve`"),
        (["copy", "a", "h:b", "--remote-waystage", "/opt/w"], "--remote-waystage: the command that ssh runs"),
        (["copy", "a", "h:b", "--mode", "modest", "--udp-wait", "0"], "--mode: for pacing datagrams"),
        (["copy", "a", "h:b", "--server-key", "k", "--trust-new"], "give one of them"),
        (["proxy", "h", "--socks", "0", "--server-key", "k", "--trust-new"], "give one of them"),
        (["proxy", "h", "--reverse", "1:a:1", "--rule", "deny *"], "--rule: for connections accepted here"),
        (["proxy", "h", "--socks", "0", "--mode", "fair", "--udp-wait", "0"], "--mode: for pacing datagrams"),
        (["probe", "h", "--quick", "--duration", "9"], "--duration: and --quick is --duration 2"),
        (["probe", "h", "--only", "tcp", "--no-tcp"], "give one of them"),
        (["probe", "h", "--only", "rtt", "--rate", "1Mbit"], "--rate: for the loss measurement"),
        (["probe", "h", "--max-rate", "1Mbit", "--rate", "2Mbit"], "--rate is above --max-rate"),
        (["serve", "--check", "--show-key"], "--show-key and --check exclude each other"),
        (["serve", "--init", "d", "--config", "c"], "--config: read by a server"),
        (["serve", "--on-demand", "--config", "c"], "--config: for a permanent server"),
        (["serve", "--config", "c", "--check", "--ready-file", "r"], "--ready-file: for a running server"),
    ],
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(waystage: Waystage, words: list[str], says: str) -> None:
    ran = waystage(*words)
    assert ran.code == 2 and says in re.sub(r"\s+", " ", ran.err), ran


def check(site: Site) -> Ran:
    return run(site, "serve", "--config", site.folder / "serve.toml", "--check", "--json")


def test_a_configuration_that_would_work_is_right_and_nothing_is_made(site: Site) -> None:
    site.config()
    before = sorted(site.folder.rglob("*"))
    ran = check(site)
    assert ran.code == 0 and ran.json["users"] == ["ada"], ran
    assert sorted(site.folder.rglob("*")) == before
    site.serve()
    assert check(site).code == 0, "the port is the running server's own"


def test_all_that_is_missing_is_named_at_once(site: Site) -> None:
    path = site.config(root="")
    text = path.read_text(encoding="utf-8")
    text = text.replace('"serve.log"', '"nowhere/serve.log"').replace("127.0.0.1:", "192.0.2.1:")
    text += f'[users.eve]\nkeys = ["{site.client_key}"]\n'
    path.write_text(text, encoding="utf-8")
    site.data.rmdir()
    site.given.rmdir()
    site.given.write_bytes(b"a file")
    os.chmod(site.folder / "server.key", 0o644)
    ran = check(site)
    assert ran.code == 3
    for words in (
        "server.key is open to others than its owner",
        "listen: 192.0.2.1 is no address to listen at",
        f"log: {site.folder}/nowhere is no directory",
        "users.eve.keys: a key of this user is one of ada's too",
        f"root {site.data} is not there: make it",
        f"root {site.given} is no directory",
    ):
        assert words in ran.json["error"], (words, ran.json["error"])


def test_a_file_of_keys_that_others_may_write_is_named(site: Site) -> None:
    keys = site.folder / "keys"
    keys.write_text(f"{site.client_key}\n", encoding="utf-8")
    site.config(user='keys_file = "keys"')
    os.chmod(keys, 0o666)
    ran = check(site)
    assert (
        ran.code == 3
        and f"users.ada.keys_file: others than its owner may write to {keys}" in ran.json["error"]
    )
    os.chmod(keys, 0o600)
    assert check(site).code == 0


def test_what_another_user_may_not_use_is_named() -> None:
    if os.geteuid() != 0:
        pytest.skip("to be another user needs root")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        site = Site(Path(folder))
        os.chmod(site.given, 0o700)
        config = load_config(site.config(root="privileged = true"))
        near, far = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.write(far, " ".join(problems(config)).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(far)
        with open(near, encoding="utf-8") as told:
            said = told.read()
    assert f"root {site.data}: write is true, and user 65534 may not write in it" in said
    assert f"root {site.given} cannot be read by user 65534" in said
    assert "privileged is true, and user 65534 may not give files to other users" in said
    assert f"log: {site.folder}/serve.log cannot be made: user 65534 may not write in {site.folder}" in said
