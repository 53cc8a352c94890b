"""`waystage serve`: serve copies, TCP connections and probes to other hosts.

Arrives: a configuration.
Leaves: one line when ready, a log; exit status 0 after SIGTERM or Ctrl-C, when all connections are closed.
Must not know: how bytes are moved.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from waystage.cli.combining import given, refuse
from waystage.cli.common import ExitCode, Output, UserError, output_options, take_descriptors
from waystage.cli.serve_flows import SessionFlows
from waystage.cli.service import (
    Signals,
    log_format_option,
    ready_file_option,
    removed_at_exit,
    service_log,
    write_line,
    write_ready,
)
from waystage.native_options.servers import ServerOptions, ServerRoot, ServerUser

if TYPE_CHECKING:
    from waystage._native import WanServer
    from waystage.wan.config import ServeConfig
    from waystage.wan.rates import Schedule

POLL_S = 0.2
"""A bounded wait, since schedules change with the clock and a signal only counts; log lines end it early."""


@click.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML file (docs/reference/serve.md).",
)
@click.option(
    "--init",
    "init",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Create a key and a sample configuration in DIR, and exit.",
)
@click.option(
    "--on-demand",
    is_flag=True,
    help="Serve the single client that started this over ssh, with all rights of this user, until stdin is closed.",
)
@click.option("--show-key", is_flag=True, help="Print the server's public key and its fingerprint, and exit.")
@click.option(
    "--check",
    is_flag=True,
    help="Only check the configuration and access to the files it names; exit status 3 on a problem.",
)
@ready_file_option("File to write with the address when ready")
@log_format_option
@output_options
def command(
    config: Path | None,
    init: Path | None,
    on_demand: bool,
    show_key: bool,
    check: bool,
    ready_file: Path | None,
    output: Output,
) -> None:
    """Serve copies between hosts, and connections of `waystage proxy`, until SIGTERM or Ctrl-C.

    The first signal stops accepting; active sessions get `drain_s` seconds. A second one closes every connection.
    The same command resumes a copy that was cut off.
    """
    _one_of(init, on_demand, show_key, check)
    if init is not None:
        _init(init, output)
        return
    if on_demand:
        from waystage.cli.serve_on_demand import serve_on_demand

        serve_on_demand()
        return
    from waystage.wan.config import load_config

    if config is None:
        raise UserError("give --config FILE, or --init DIR to create one", ExitCode.USAGE)
    settings = load_config(config)
    if show_key:
        _show_key(settings.key, output)
        return
    if check:
        _check(settings)
        names = ", ".join(user.name for user in settings.users) or "nobody"
        value = {"listen": settings.listen, "users": [user.name for user in settings.users]}
        output.result(value, f"{config} is valid: {settings.listen}, {names}")
        return
    take_descriptors()
    stop = Signals()
    with service_log(settings.log) as log, removed_at_exit(ready_file):
        server = _start(settings)
        try:
            _ready(server, settings, ready_file, output)
            _serve(server, settings, stop, log)
        finally:
            server.cancel()
            _write_log(server, log)


def _one_of(init: Path | None, on_demand: bool, show_key: bool, check: bool) -> None:
    """Refuse options without effect. Raises UserError."""
    jobs = ("init", "on_demand", "show_key", "check")
    asked = given(jobs)
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} exclude each other: give one of them", ExitCode.USAGE)
    if asked:
        refuse(["ready_file"], f"for a running server, and {asked[0]} starts none")
    if init is not None:
        refuse(["config"], "read by a server, and --init creates a new one in DIR: give one of them")
    if on_demand:
        refuse(["config", "as_json"], "for a permanent server, and --on-demand serves a single client")


def _check(settings: ServeConfig) -> None:
    """Report all problems that would prevent serving. Raises UserError."""
    from waystage._native import WanError
    from waystage.wan.serve_check import problems

    found = problems(settings)
    try:
        _read_key(settings.key)
    except WanError as error:
        found.insert(0, str(error))
    if found:
        raise UserError("; ".join(found), ExitCode.BAD_INPUT)


class _Limits:
    """Applies the rate of the configuration's schedules to the server when it changes."""

    def __init__(self, server: WanServer, settings: ServeConfig) -> None:
        self._server, self._settings = server, settings
        self._told: tuple[int | None, dict[str, int]] | None = None
        self.look()

    def look(self) -> None:
        users = {user.name: _changing(user.rate) for user in self._settings.users}
        now = _changing(self._settings.rate), {name: rate for name, rate in users.items() if rate is not None}
        if now != self._told:
            self._told = now
            self._server.limit(*now)


def _changing(rate: Schedule) -> int | None:
    # One that stays the same was agreed on at first.
    return rate.now() if rate.changes else None


def _serve(server: WanServer, settings: ServeConfig, stop: Signals, log: TextIO) -> None:
    limits = _Limits(server, settings)
    deadline = None
    with closing(SessionFlows(server)) as flows:
        while stop.count < 2 and (deadline is None or time.monotonic() < deadline):
            if server.wait(POLL_S):
                return
            if stop.count and deadline is None:
                server.drain()
                deadline = time.monotonic() + settings.drain_s
            limits.look()
            flows.look()
            _write_log(server, log)


def _write_log(server: WanServer, log: TextIO) -> None:
    for line in server.log():
        write_line(log, line)
    log.flush()


def _start(settings: ServeConfig) -> WanServer:
    from waystage._native import WanServer
    from waystage.wan.accounts import accounts_taken

    accounts = {name: (uid, gid, groups) for name, uid, gid, groups in accounts_taken(settings)}
    users = [
        ServerUser(
            name=user.name,
            keys=user.keys,
            modes=user.modes,
            networks=user.networks,
            rate_bytes_per_s=user.rate.most,
            connections=user.connections,
            account=accounts.get(user.name),
            reach=user.proxy,
            listen=user.proxy_listen,
            probe=user.probe,
        )
        for user in settings.users
    ]
    roots = [
        ServerRoot(path=root.path, write=root.write, users=root.users, privileged=root.privileged)
        for root in settings.roots
    ]
    options = ServerOptions(
        listen=settings.listen,
        key=settings.key,
        users=users,
        roots=roots,
        rate_bytes_per_s=settings.rate.most,
        connections=settings.connections,
        copy_connections=settings.copy_connections,
        sockets=settings.sockets,
        memory_bytes=settings.memory,
        udp=settings.udp,
        workers=settings.workers,
        probe_rate_bytes_per_s=settings.probe_rate,
        probe_s=settings.probe_s,
    )
    return WanServer(options)


def _ready(server: WanServer, settings: ServeConfig, ready_file: Path | None, output: Output) -> None:
    _, fingerprint = _read_key(settings.key)
    value = {"address": server.address, "fingerprint": fingerprint, "pid": os.getpid()}
    output.result(value, f"ready: {server.address}, key {fingerprint}")
    sys.stdout.flush()
    write_ready(ready_file, f"{server.address}\n")


def _read_key(path: Path) -> tuple[str, str]:
    from waystage._native import wan_fingerprint, wan_read_key

    line = wan_read_key(path)
    return line, wan_fingerprint(line)


def _show_key(path: Path, output: Output) -> None:
    line, fingerprint = _read_key(path)
    output.result({"key": line, "fingerprint": fingerprint}, f"{line}\nfingerprint {fingerprint}")


def _init(folder: Path, output: Output) -> None:
    from waystage._native import wan_fingerprint, wan_make_key
    from waystage.wan.config import sample_config

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = wan_make_key(folder / "server.key")
        with open(folder / "serve.toml", "x", encoding="utf-8") as file:
            file.write(sample_config())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be created: {error.strerror}") from None
    fingerprint = wan_fingerprint(line)
    value = {"config": str(folder / "serve.toml"), "key": line, "fingerprint": fingerprint}
    text = f"created {folder}/server.key, fingerprint {fingerprint}\nnext: grant access to users in {folder}/serve.toml"
    output.result(value, text)
