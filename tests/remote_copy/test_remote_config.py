"""The configuration of a server, keys and known hosts, the names of ends: what is wrong is named."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from harness import Waystage
from remote_copy_support import Site
from waystage.wan.address import parse_remote
from waystage.wan.config import load_config, sample_config
from waystage.wan.errors import WanConfigError
from waystage.wan.trust import KnownHosts


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("host:path", ("host", "", b"path")),
        ("ada@host:/a b/ü:x", ("host", "ada", "/a b/ü:x".encode())),
        ("[::1]:", ("::1", "", b"")),
        ("./a:b", None),
        ("/a:b", None),
        ("plain", None),
    ],
)
def test_an_end_on_another_host_is_recognised_by_its_colon(
    end: str, expected: tuple[str, str, bytes] | None
) -> None:
    remote = parse_remote(end)
    assert (None if remote is None else (remote.host, remote.user, remote.path)) == expected


def test_a_configuration_is_read_whole(site: Site) -> None:
    (site.folder / "keys").write_text(f"# ours\n{site.client_key}\n\n", encoding="utf-8")
    path = site.config(
        'rate = "1GB"\nconnections = 3\nmemory = "64Mi"\nudp = false\nworkers = 2\ndrain_s = 5',
        'modes = ["fast-start"]\nnetworks = ["10.0.0.0/8", "fd00::/8"]\nrate = "100MB"\nconnections = 2\n'
        'keys_file = "keys"',
        'users = ["ada"]',
    )
    config = load_config(path)
    assert (config.rate.most, config.connections, config.memory, config.udp) == (10**9, 3, 64 << 20, False)
    (user,) = config.users
    assert (user.modes, user.networks) == (("fast-start",), (("10.0.0.0", 8), ("fd00::", 8)))
    assert (user.rate.most, user.connections, len(user.keys)) == (10**8, 2, 2)
    assert [(root.path, root.write, root.users) for root in config.roots] == [
        (site.data, True, ("ada",)),
        (site.given, False, ("ada",)),
    ]


@pytest.mark.parametrize(
    ("top", "user", "root", "word"),
    [
        ("colour = 1", "", "", "colour: is no key that is known"),
        ('rate = "fast"', "", "", "rate: 'fast' is no rate such as"),
        ("connections = 0", "", "", "connections: expected a whole number >= 1"),
        ("udp = 1", "", "", "udp: expected true or false, got a whole number"),
        ("workers = true", "", "", "workers: expected a whole number, got true or false"),
        ("sockets = 0", "", "", "sockets: expected a whole number >= 1"),
        ('memory = "1K"', "", "", "memory: "),
        ("", 'modes = ["fair"]', "", "users.ada.modes: 'fair' is none of"),
        ("", 'networks = ["10.0.0.1/8"]', "", "users.ada.networks"),
        ("", 'keys_file = "none"', "", "none cannot be read"),
        ("", "", 'users = ["bob"]', "there is no user 'bob'"),
        ("", "colour = 1", "", "users.ada.colour: is no key that is known"),
        ("", "connections = 0", "", "users.ada.connections: expected a whole number >= 1"),
        ("", "modes = [1]", "", "users.ada.modes[0]: expected a text, got a whole number"),
        ("", 'proxy = "allow *"', "", "users.ada.proxy: expected a list, got a text"),
        ("", "", "owner = 1", "root 1: owner: is no key that is known"),
        ("", "", "privileged = 1", "root 1: privileged: expected true or false, got a whole number"),
        ("not toml", "", "", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(
    site: Site, top: str, user: str, root: str, word: str
) -> None:
    path = site.config(top, user, root)
    with pytest.raises(WanConfigError) as raised:
        load_config(path)
    assert word in str(raised.value)


def test_init_makes_a_key_of_its_owner_alone_and_a_configuration_that_is_right(
    waystage: Waystage, tmp_path: Path
) -> None:
    made = waystage("serve", "--init", "server", "--json").expect()
    folder = Path(made.json["config"]).parent
    folder = folder if folder.is_absolute() else tmp_path / folder
    assert waystage("serve", "--init", "server").code == 3, "no key is written over"
    shown = waystage("serve", "--config", "server/serve.toml", "--show-key", "--json")
    assert shown.json == {"key": made.json["key"], "fingerprint": made.json["fingerprint"]}
    assert waystage("serve", "--config", "server/serve.toml", "--check").code == 0
    missing = waystage("serve", "--config", "none.toml", "--json")
    assert missing.code == 3 and "--init" in missing.json["error"]
    assert waystage("serve").code == 2


def test_the_sample_is_a_configuration_also_with_its_comments_taken_away(site: Site) -> None:
    lines = sample_config().splitlines()
    body = [line for line in lines if not line.startswith("# A") and not line.startswith("# E")]
    text = "\n".join(line.removeprefix("# ") for line in body if not line.startswith("# W"))
    path = site.folder / "sample.toml"
    path.write_text(
        text.replace("waystage-ed25519 0123...", site.client_key).replace(
            'account = "ada"', f'account = "{getpass.getuser()}"'
        ),
        encoding="utf-8",
    )
    config = load_config(path)
    assert (config.users[0].name, config.users[0].modes) == ("ada", ("fast-start",))
    assert config.roots[0].users == ("ada",) and config.rate.most == 2**30


def test_known_hosts_are_found_by_host_and_port(site: Site) -> None:
    hosts = KnownHosts(site.folder / "new/known")
    assert hosts.find("a", 1) is None
    hosts.add("a", 1, site.server_key)
    hosts.add("::1", 2, site.client_key)
    assert (hosts.find("a", 1), hosts.find("::1", 2)) == (site.server_key, site.client_key)
    assert hosts.find("a", 2) is None
    hosts.path.write_text("a:1 no-key here\n", encoding="utf-8")
    with pytest.raises(WanConfigError, match="line 1"):
        hosts.find("a", 1)


def test_ends_that_make_no_sense_are_refused_before_anything_is_done(waystage: Waystage) -> None:
    for words, word in [
        (("a:x", "b:y"), "both remote"),
        (("x", "b:y", "--update", "content", "--dry-run=disk"), "omit one of them"),
    ]:
        ran = waystage("copy", *words, "--json")
        assert ran.code == 2 and word in ran.json["error"]
