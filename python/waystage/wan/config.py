"""The configuration of a server, as docs/reference/serve.md describes it.

Arrives: a TOML file.
Leaves: checked values; errors that name the key.
Must not know: sockets, the command line.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from waystage.units import UnitError, parse_rate, parse_size
from waystage.wan.accounts import Account, parse_account
from waystage.wan.address import DEFAULT_PORT
from waystage.wan.errors import WanConfigError
from waystage.wan.rates import UNLIMITED, RateError, Schedule, parse_schedule

T = TypeVar("T")

_Count = Annotated[int, msgspec.Meta(ge=1)]

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


class _UserTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of `[users]`."""

    keys: tuple[str, ...] = ()
    keys_file: str | None = None
    modes: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    rate: str | None = None
    connections: _Count | None = None
    proxy: tuple[str, ...] = ()
    proxy_listen: tuple[str, ...] = ()
    probe: bool | None = None
    account: str | None = None


class _RootTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[root]]`."""

    path: str
    write: bool = False
    users: tuple[str, ...] = ()
    privileged: bool = False


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file. Users are converted one by one, since msgspec does not say which of them is wrong."""

    key: str
    users: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    root: tuple[_RootTable, ...] = ()
    listen: str = f"[::]:{DEFAULT_PORT}"
    rate: str | None = None
    connections: _Count = 32
    copy_connections: _Count = 4
    sockets: _Count | None = None
    memory: str | None = None
    udp: bool = True
    workers: _Count = 4
    log: str | None = None
    drain_s: _Count = 60
    probe: bool = False
    probe_rate: str | None = None
    probe_s: _Count = 600


@dataclass(frozen=True)
class _Where:
    """The table that a key is in, for errors."""

    table: str

    def wrong(self, key: str, what: str) -> WanConfigError:
        return WanConfigError(f"{self.table}{key}: {what}")

    def convert(self, values: object, kind: type[T]) -> T:
        try:
            return msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            raise self.wrong(*_explained(str(error))) from None

    def size(self, key: str, text: str | None, default: int, least: int, most: int) -> int:
        try:
            return default if text is None else parse_size(text, least=least, most=most)
        except UnitError as error:
            raise self.wrong(key, str(error)) from None

    def rate(self, key: str, text: str | None) -> int | None:
        try:
            return None if text is None else parse_rate(text)
        except UnitError as error:
            raise self.wrong(key, str(error)) from None

    def schedule(self, key: str, text: str | None) -> Schedule:
        try:
            return UNLIMITED if text is None else parse_schedule(text)
        except RateError as error:
            raise self.wrong(key, str(error)) from None


def _explained(message: str) -> tuple[str, str]:
    """Key and sentence of a ValidationError of msgspec."""
    text, _, path = message.partition(" - at `")
    key = path.removesuffix("`").removeprefix("$").removeprefix(".")
    # `root[0].path` is the first [[root]].
    key = re.sub(r"^root\[(\d+)\]", lambda found: f"root {int(found[1]) + 1}: ", key).replace(": .", ": ")
    before = f"{key}." if key and not key.endswith(": ") else key
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return f"{before}{unknown[1]}", "is no key that is known here: see docs/reference/serve.md"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        return f"{before}{missing[1]}", "is missing"
    for kind, noun in _KINDS.items():
        text = re.sub(rf"`{kind}( \| null)?`", noun, text)
    return key, text[:1].lower() + text[1:].replace("`", "")


_KINDS = {
    "str": "a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "array": "a list",
    "object": "a table",
}


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
    here, where = path.parent, _Where(f"{path}: ")
    file = where.convert(values, _File)
    users = []
    for name, table in file.users.items():
        place = _Where(f"{path}: users.{name}.")
        users.append(_user(name, place.convert(table, _UserTable), place, here, file.probe))
    known = {user.name for user in users}
    roots = tuple(_root(number, table, path, known) for number, table in enumerate(file.root))
    return ServeConfig(
        listen=_listen(file.listen, where),
        key=here / file.key,
        users=tuple(users),
        roots=roots,
        rate=where.schedule("rate", file.rate),
        connections=file.connections,
        copy_connections=file.copy_connections,
        sockets=file.sockets or _sockets(),
        memory=where.size("memory", file.memory, 256 << 20, LEAST_MEMORY, MOST_MEMORY),
        udp=file.udp,
        workers=file.workers,
        log=None if file.log is None else here / file.log,
        drain_s=float(file.drain_s),
        probe_rate=where.rate("probe_rate", file.probe_rate),
        probe_s=float(file.probe_s),
    )


def _sockets() -> int:
    """One for two processors, of which the other one seals or opens what the first received; four at most."""
    return max(1, min(4, len(os.sched_getaffinity(0)) // 2))


def _listen(text: str, where: _Where) -> str:
    host, colon, port = text.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        if not colon or not 0 <= int(port) < 1 << 16:
            raise ValueError
    except ValueError:
        raise where.wrong("listen", f"{text!r} is no address and port, such as [::]:{DEFAULT_PORT}") from None
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _user(name: str, table: _UserTable, where: _Where, here: Path, probe: bool) -> UserConfig:
    keys = [*table.keys]
    if table.keys_file is not None:
        keys += _keys_of(here / table.keys_file)
    if not keys:
        raise where.wrong(
            "keys", "a user needs a key, here or in keys_file: `waystage copy --show-key` prints the client's"
        )
    for line in keys:
        _check_key(line, where)
    for mode in table.modes:
        if mode not in MODES:
            raise where.wrong(
                "modes", f"{mode!r} is none of {', '.join(MODES)} (fair and modest need no grant)"
            )
    networks = []
    for text in table.networks:
        try:
            network = ipaddress.ip_network(text)
        except ValueError as error:
            raise where.wrong("networks", str(error)) from None
        networks.append((str(network.network_address), network.prefixlen))
    if networks and not table.modes:
        raise where.wrong(
            "networks",
            "says from where modes are granted, and none is: name them in modes (it does not say from where the user may come in)",
        )
    return UserConfig(
        name,
        tuple(keys),
        table.modes,
        tuple(networks),
        where.schedule("rate", table.rate),
        table.connections,
        _rules(table.proxy, where),
        _places(table.proxy_listen, where),
        probe if table.probe is None else table.probe,
        None if table.keys_file is None else here / table.keys_file,
        _account(table.account, where),
    )


def _account(text: str | None, where: _Where) -> Account | None:
    try:
        return None if text is None else parse_account(text)
    except ValueError as error:
        raise where.wrong("account", str(error)) from None


def _rules(lines: tuple[str, ...], where: _Where) -> tuple[str, ...]:
    for line in lines:
        _check_rule(line, where, "proxy")
        if line.split()[0] == "direct":
            raise where.wrong("proxy", f"{line!r}: a server reaches what it allows; `direct` is for clients")
    return lines


def _places(places: tuple[str, ...], where: _Where) -> tuple[str, ...]:
    """Rules on the addresses at which connections may be taken."""
    lines = []
    for place in places:
        line = f"allow {place}"
        if not _check_rule(line, where, "proxy_listen") and place.partition(":")[0].strip() != "*":
            raise where.wrong(
                "proxy_listen",
                f"{place!r} is a name, and a client asks for an address: write one, such as 127.0.0.1:8000-8010",
            )
        lines.append(line)
    return tuple(lines)


def _check_rule(line: str, where: _Where, key: str) -> bool:
    """Whether it is about addresses."""
    from waystage._native import wan_check_rule

    try:
        return wan_check_rule(line)
    except ValueError as error:
        raise where.wrong(key, str(error)) from None


def _keys_of(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WanConfigError(f"{path} cannot be read: {error}") from None
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _check_key(line: str, where: _Where) -> None:
    from waystage._native import WanError, wan_fingerprint

    try:
        wan_fingerprint(line)
    except WanError as error:
        raise where.wrong("keys", str(error)) from None


def _root(number: int, table: _RootTable, path: Path, known: set[str]) -> RootConfig:
    where = Path(table.path)
    if not where.is_absolute():
        raise WanConfigError(f"{path}: root {number + 1}: path: {table.path!r} is no absolute path")
    for name in table.users:
        if name not in known:
            raise WanConfigError(f"{path}: root {where}: users: there is no user {name!r} below [users]")
    return RootConfig(where, table.write, table.users, table.privileged)


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
