"""A server that ssh starts for one copy, as rsync starts its peer.

Arrives: `[user@]host` and how to reach it.
Leaves: address, port and keys of a server that serves this copy alone, and ends after it.
Must not know: what is copied.

ssh carries only two lines, this client's key to the server and the server's port and key back, and then stays open: the
server ends with it. The data uses separate connections; where the server's port is unreachable, TCP through a second
ssh connection (`ssh -W`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from waystage.wan.address import Remote
from waystage.wan.errors import WanConfigError
from waystage.wan.trust import passing_key

MAGIC = "waystage-serve"
VERSION = 1
LONGEST_LINE = 1 << 12
NOISE_LINES = 1000
"""The most that a login may print before the server's line."""

REACH_S = 5.0
END_S = 5.0


@dataclass(frozen=True)
class Shell:
    """`command` starts something on a host, as `ssh` does; `waystage` is what to start there, read by the shell
    there."""

    command: tuple[str, ...] = ("ssh",)
    waystage: str = "waystage"

    def is_ssh(self) -> bool:
        return os.path.basename(self.command[0]) == "ssh"


@dataclass(frozen=True)
class Request:
    """The client's first line: its key."""

    client_key: str

    def line(self) -> bytes:
        return (json.dumps({"version": VERSION, "client_key": self.client_key}) + "\n").encode("ascii")


@dataclass(frozen=True)
class Offer:
    """The server's answer: its port, of TCP and UDP, and its key."""

    port: int
    key: str

    def line(self) -> str:
        return f"{MAGIC} " + json.dumps({"version": VERSION, "port": self.port, "key": self.key}) + "\n"


@dataclass(frozen=True)
class Server:
    """The address and keys to connect with; `through_ssh` is the reason for a tunnel, where there is one."""

    host: str
    port: int
    key: str
    identity: Path
    through_ssh: str = ""


def read_request(stream: IO[bytes]) -> Request:
    """The client's line. Raises WanConfigError for anything else."""
    line = stream.readline(LONGEST_LINE)
    value = _object(line, "`waystage serve --on-demand` is started by `waystage copy --ssh`")
    key = value.get("client_key")
    if not isinstance(key, str):
        raise WanConfigError("the client's line has no client_key: use the same version at both ends")
    _check_key(key)
    return Request(key)


def read_offer(stream: IO[bytes]) -> Offer | None:
    """The server's line, after the output of the login; None where none comes. Raises WanConfigError for a wrong
    one."""
    for _ in range(NOISE_LINES):
        line = stream.readline(LONGEST_LINE)
        if not line:
            return None
        if line.startswith(MAGIC.encode("ascii") + b" "):
            value = _object(line[len(MAGIC) :], "the peer's answer is malformed")
            port, key = value.get("port"), value.get("key")
            if not isinstance(port, int) or not 0 < port < 1 << 16 or not isinstance(key, str):
                raise WanConfigError(
                    "the peer answers without port and key: use the same version at both hosts"
                )
            _check_key(key)
            return Offer(port, key)
    return None


@contextlib.contextmanager
def started(remote: Remote, shell: Shell) -> Iterator[Server]:
    """A server on the remote host, until the end of the block. Raises WanConfigError where it cannot be started."""
    if remote.host.startswith("-") or remote.user.startswith("-"):
        raise WanConfigError(
            f"{remote.host!r}: a host or user that begins with a dash is an option to ssh: not taken"
        )
    if not shell.command:
        raise WanConfigError("--rsh: the command is empty")
    where = [*(("-l", remote.user) if remote.user else ()), remote.host]
    with passing_key() as (identity, client_key), contextlib.ExitStack() as held:
        words = [*shell.command, *where, f"{shell.waystage} serve --on-demand"]
        try:
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise WanConfigError(f"{shell.command[0]} cannot be started: {error.strerror}") from None
        held.callback(_end, process)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(Request(client_key).line())
            process.stdin.flush()
        offer = read_offer(process.stdout)
        if offer is None:
            raise WanConfigError(
                f"{shlex.join(shell.command)} did not start `{shell.waystage} serve --on-demand` on {remote.host}: its own"
                " message is above; --remote-waystage says where waystage is there"
            )
        host = _address(shell, where, remote.host)
        unreachable = _reach(host, offer.port)
        if not unreachable:
            yield Server(host, offer.port, offer.key, identity)
            return
        if not shell.is_ssh():
            raise WanConfigError(
                f"{host}, port {offer.port}, cannot be reached from here: {unreachable}: open the ports from 32768"
            )
        port = held.enter_context(_tunnel([*shell.command, "-W", f"127.0.0.1:{offer.port}", *where]))
        why = f"{host}, port {offer.port}, cannot be reached from here ({unreachable}): the data goes over TCP through ssh"
        yield Server("127.0.0.1", port, offer.key, identity, why)


def _object(line: bytes, what: str) -> dict[str, object]:
    try:
        value = json.loads(line)
    except ValueError:
        raise WanConfigError(f"{what}: {line[:60]!r}") from None
    if not isinstance(value, dict):
        raise WanConfigError(f"{what}: {line[:60]!r}")
    if value.get("version") != VERSION:
        raise WanConfigError(
            f"the peer speaks version {value.get('version')!r} of this, not {VERSION}: use the same Waystage at both hosts"
        )
    return value


def _check_key(key: str) -> None:
    from waystage._native import WanError, wan_fingerprint

    try:
        wan_fingerprint(key)
    except WanError as error:
        raise WanConfigError(str(error)) from None


def _address(shell: Shell, where: list[str], host: str) -> str:
    """The host's name for ssh, whose configuration may have an alias."""
    if not shell.is_ssh():
        return host
    try:
        told = subprocess.run(
            [*shell.command, "-G", *where], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return host
    return next((line.split()[1] for line in told.splitlines() if line.startswith("hostname ")), host)


def _reach(host: str, port: int) -> str:
    """Why this port is unreachable; empty where it is reachable."""
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@contextlib.contextmanager
def _tunnel(command: list[str]) -> Iterator[int]:
    """A port of this host; each connection becomes stdin and stdout of a process of `command`."""
    processes: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    end = connection.fileno()
                    processes.append(subprocess.Popen(command, stdin=end, stdout=end))

        thread = threading.Thread(target=accept, name="ssh-tunnel", daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            # Wakes the thread, which closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for process in processes:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process by end of file, and by a signal if it does not react."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
