"""The configuration of a server, as docs/reference/serve.md describes it.

Arrives: a TOML file.
Leaves: checked values; errors that name the key.
Must not know: sockets, the command line.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waystage.units import UnitError, parse_rate, parse_size
from waystage.wan.accounts import Account, parse_account
from waystage.wan.address import DEFAULT_PORT
from waystage.wan.errors import WanConfigError
from waystage.wan.rates import UNLIMITED, RateError, Schedule, parse_schedule

MODES = ("fast-start", "aggressive")
"""Modes that require a grant; every user has `fair` and `modest`."""

LEAST_MEMORY, MOST_MEMORY = 16 << 20, 4 << 30
"""For data in flight, at each host: some messages of 4 MiB, and as many as a connection has at a time."""


@dataclass(frozen=True)
class UserConfig:
    """A user of the server; `rate` in bytes per second by the time of the week, `proxy` and `proxy_listen` rules of
    the proxy, the first that fits decides.

    `probe` says whether the path may be measured; `account` as whom the server acts for it, None for as the
    server's own.
    """

    name: str
    keys: tuple[str, ...]
    modes: tuple[str, ...] = ()
    networks: tuple[tuple[str, int], ...] = ()
    rate: Schedule = UNLIMITED
    connections: int | None = None
    proxy: tuple[str, ...] = ()
    proxy_listen: tuple[str, ...] = ()
    probe: bool = False
    keys_file: Path | None = None
    account: Account | None = None


@dataclass(frozen=True)
class RootConfig:
    """A directory that clients may use; all users' where none is named."""

    path: Path
    write: bool = False
    users: tuple[str, ...] = ()
    privileged: bool = False


@dataclass(frozen=True)
class ServeConfig:
    """A server: `rate` in bytes a second of each connection by the time of the week, `memory` in bytes of each
    connection, `probe_rate` in bytes a second."""

    listen: str
    key: Path
    users: tuple[UserConfig, ...]
    roots: tuple[RootConfig, ...]
    rate: Schedule = UNLIMITED
    connections: int = 32
    copy_connections: int = 4
    sockets: int = 1
    memory: int = 256 << 20
    udp: bool = True
    workers: int = 4
    log: Path | None = None
    drain_s: float = 60.0
    probe_rate: int | None = None
    probe_s: float = 600.0


class _Table:
    """A table of the file, read key by key; unknown keys are errors."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self._where = dict(values), where

    def wrong(self, key: str, what: str) -> WanConfigError:
        return WanConfigError(f"{self._where}{key}: {what}")

    def take(self, key: str, kind: type, default: Any = None, *, required: bool = False) -> Any:
        if key not in self._values:
            if required:
                raise self.wrong(key, "is missing")
            return default
        value = self._values.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"{value!r} is no {_KINDS[kind]}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.take(key, list, [])
        if not all(isinstance(each, str) for each in value):
            raise self.wrong(key, f"{value!r} is no list of texts")
        return tuple(value)

    def size(self, key: str, default: int, least: int, most: int) -> int:
        text = self.take(key, str)
        try:
            return default if text is None else parse_size(text, least=least, most=most)
        except UnitError as error:
            raise self.wrong(key, str(error)) from None

    def rate(self, key: str) -> int | None:
        text = self.take(key, str)
        try:
            return None if text is None else parse_rate(text)
        except UnitError as error:
            raise self.wrong(key, str(error)) from None

    def schedule(self, key: str) -> Schedule:
        text = self.take(key, str)
        try:
            return UNLIMITED if text is None else parse_schedule(text)
        except RateError as error:
            raise self.wrong(key, str(error)) from None

    def count(self, key: str, default: int | None) -> int | None:
        value = self.take(key, int, default)
        if value is not None and value < 1:
            raise self.wrong(key, f"{value} is less than one")
        return value if value is None else int(value)

    def end(self) -> None:
        if self._values:
            key = min(self._values)
            raise self.wrong(key, "is no key that is known here: see docs/reference/serve.md")


_KINDS = {str: "text", bool: "true or false", int: "whole number", list: "list", dict: "table"}


def load_config(path: Path) -> ServeConfig:
    """Read and check the file. Raises WanConfigError, which names file and key."""
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WanConfigError(
            f"{path} cannot be read: {error.strerror}: `waystage serve --init DIR` makes one"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WanConfigError(f"{path} is no TOML: {error}") from None
    here = path.parent
    top = _Table(values, f"{path}: ")
    key = here / top.take("key", str, required=True)
    probe = top.take("probe", bool, False)
    users = tuple(
        _user(
            name,
            _Table(table, f"{path}: users.{name}.") if isinstance(table, dict) else None,
            here,
            top,
            probe,
        )
        for name, table in top.take("users", dict, {}).items()
    )
    roots = tuple(_root(number, table, path, top) for number, table in enumerate(top.take("root", list, [])))
    log = top.take("log", str)
    config = ServeConfig(
        listen=_listen(top),
        key=key,
        users=users,
        roots=roots,
        rate=top.schedule("rate"),
        connections=top.count("connections", 32) or 32,
        copy_connections=top.count("copy_connections", 4) or 4,
        sockets=top.count("sockets", None) or _sockets(),
        memory=top.size("memory", 256 << 20, LEAST_MEMORY, MOST_MEMORY),
        udp=top.take("udp", bool, True),
        workers=top.count("workers", 4) or 4,
        log=here / log if log is not None else None,
        drain_s=float(top.count("drain_s", 60) or 60),
        probe_rate=top.rate("probe_rate"),
        probe_s=float(top.count("probe_s", 600) or 600),
    )
    top.end()
    known = {user.name for user in users}
    for root in roots:
        for name in root.users:
            if name not in known:
                raise WanConfigError(
                    f"{path}: root {root.path}: users: there is no user {name!r} below [users]"
                )
    return config


def _sockets() -> int:
    """One for two processors, of which the other one seals or opens what the first received; four at most."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def _listen(top: _Table) -> str:
    text: str = top.take("listen", str, f"[::]:{DEFAULT_PORT}")
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not colon or not 0 <= int(port) < 1 << 16:
            raise ValueError
    except ValueError:
        raise top.wrong("listen", f"{text!r} is no address and port, such as [::]:{DEFAULT_PORT}") from None
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _user(name: str, table: _Table | None, here: Path, top: _Table, probe: bool) -> UserConfig:
    if table is None:
        raise top.wrong(f"users.{name}", "is no table")
    keys = [*table.texts("keys")]
    file = table.take("keys_file", str)
    if file is not None:
        keys += _keys_of(here / file)
    if not keys:
        raise table.wrong(
            "keys", "a user needs a key, here or in keys_file: `waystage copy --show-key` prints the client's"
        )
    for line in keys:
        _check_key(line, table)
    modes = table.texts("modes")
    for mode in modes:
        if mode not in MODES:
            raise table.wrong(
                "modes", f"{mode!r} is none of {', '.join(MODES)} (fair and modest need no grant)"
            )
    networks = []
    for text in table.texts("networks"):
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise table.wrong("networks", str(error)) from None
        networks.append((str(network.network_address), network.prefixlen))
    if networks and not modes:
        raise table.wrong(
            "networks",
            "says from where modes are granted, and none is: name them in modes (it does not say from where the user may come in)",
        )
    user = UserConfig(
        name,
        tuple(keys),
        modes,
        tuple(networks),
        table.schedule("rate"),
        table.count("connections", None),
        _rules(table, "proxy"),
        _places(table),
        table.take("probe", bool, probe),
        None if file is None else here / file,
        _account(table),
    )
    table.end()
    return user


def _account(table: _Table) -> Account | None:
    text = table.take("account", str)
    try:
        return None if text is None else parse_account(text)
    except ValueError as error:
        raise table.wrong("account", str(error)) from None


def _rules(table: _Table, key: str) -> tuple[str, ...]:
    lines = table.texts(key)
    for line in lines:
        _check_rule(line, table, key)
        if line.split()[0] == "direct":
            raise table.wrong(key, f"{line!r}: a server reaches what it allows; `direct` is for clients")
    return lines


def _places(table: _Table) -> tuple[str, ...]:
    """Rules on the addresses at which connections may be taken."""
    lines = []
    for place in table.texts("proxy_listen"):
        line = f"allow {place}"
        if not _check_rule(line, table, "proxy_listen") and place.partition(":")[0].strip() != "*":
            raise table.wrong(
                "proxy_listen",
                f"{place!r} is a name, and a client asks for an address: write one, such as 127.0.0.1:8000-8010",
            )
        lines.append(line)
    return tuple(lines)


def _check_rule(line: str, table: _Table, key: str) -> bool:
    """Whether it is about addresses."""
    from waystage._native import wan_check_rule

    try:
        return wan_check_rule(line)
    except ValueError as error:
        raise table.wrong(key, str(error)) from None


def _keys_of(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WanConfigError(f"{path} cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _check_key(line: str, table: _Table) -> None:
    from waystage._native import WanError, wan_fingerprint

    try:
        wan_fingerprint(line)
    except WanError as error:
        raise table.wrong("keys", str(error)) from None


def _root(number: int, values: Any, path: Path, top: _Table) -> RootConfig:
    if not isinstance(values, dict):
        raise top.wrong("root", "is no [[root]]")
    table = _Table(values, f"{path}: root {number + 1}: ")
    where = Path(table.take("path", str, required=True))
    if not where.is_absolute():
        raise table.wrong("path", f"{str(where)!r} is no absolute path")
    root = RootConfig(
        where,
        table.take("write", bool, False),
        table.texts("users"),
        table.take("privileged", bool, False),
    )
    table.end()
    return root


def sample_config() -> str:
    """The sample configuration of `waystage serve --init`."""
    return SAMPLE


SAMPLE = f"""\
# A server for copies and TCP connections of other hosts: waystage serve --config FILE
# Every key is described in docs/reference/serve.md. Paths are relative to this file.

listen = "[::]:{DEFAULT_PORT}"    # TCP and UDP; let both through the firewall
key = "server.key"
connections = 32          # at a time
# copy_connections = 4    # of one copy, with --connections
# rate = "1G"             # bytes a second of each connection; or by time: "mon-fri 08:00-18:00=200M"
# log = "serve.log"       # else stderr
# probe = true            # let users measure the path with `waystage probe`

# What clients may use. Paths without a leading slash are below the first one.
# [[root]]
# path = "/scratch"
# write = true
# users = ["ada"]         # everybody below, if left out

# Who may come in. The client's `waystage copy --show-key` prints the line for `keys`.
# [users.ada]
# keys = ["waystage-ed25519 0123..."]
# modes = ["fast-start"]  # beside fair and modest
# account = "ada"         # of this host, as which a server that runs as root acts for ada
# networks = ["10.0.0.0/8"]  # from where these modes are granted
# rate = "500M"
# connections = 4
# proxy = ["allow 10.0.0.0/8:22,80,443"]  # what `waystage proxy` may reach; this host itself only where a rule names it
# proxy_listen = ["127.0.0.1:8000-8010"]  # where it may have this host listen
# probe = true
"""
