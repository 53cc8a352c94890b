"""`waystage serve --on-demand`: the server of a single copy, started over ssh.

Arrives: on stdin, one line with the client's key; then nothing until the client finishes or disappears.
Leaves: on stdout, one line with port and key of a server that grants that client the rights of this user.
Must not know: ssh.
"""

from __future__ import annotations

import getpass
import os
import select
import signal
import sys
from pathlib import Path

from waystage.cli.common import ExitCode, UserError
from waystage.wan.config import MOST_MEMORY
from waystage.wan.errors import WanConfigError
from waystage.wan.ssh import Offer, read_request
from waystage.wan.trust import passing_key

WORKERS = 4
COPY_CONNECTIONS = 4
ANYWHERE = "[::]:0"
ANYWHERE_IPV4 = "0.0.0.0:0"
"""Used if the host has no IPv6."""


def serve_on_demand() -> None:
    """Serve until a signal, or until stdin is closed, as it is with the ssh connection."""
    from waystage._native import WanError, WanServer

    try:
        request = read_request(sys.stdin.buffer)
    except WanConfigError as error:
        raise UserError(str(error), ExitCode.BAD_INPUT) from None
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    privileged = os.geteuid() == 0
    roots: list[tuple[Path, bool, list[str], bool]] = [
        (folder, True, [], privileged) for folder in (Path.home(), Path("/"))
    ]
    user: tuple[str, list[str], list[str], list[tuple[str, int]], None, None] = (
        getpass.getuser(),
        [request.client_key],
        [],
        [],
        None,
        None,
    )
    with passing_key() as (key, line):

        def listening(address: str) -> WanServer:
            return WanServer(
                address,
                key,
                [user],
                roots,
                rate_bytes_per_s=None,
                connections=4,
                copy_connections=COPY_CONNECTIONS,
                memory_bytes=MOST_MEMORY,
                udp=True,
                workers=WORKERS,
            )

        try:
            try:
                server = listening(ANYWHERE)
            except WanError:
                server = listening(ANYWHERE_IPV4)
        except WanError as error:
            raise UserError(str(error)) from None
        try:
            port = int(server.address.rpartition(":")[2])
            sys.stdout.write(Offer(port, line).line())
            sys.stdout.flush()
            while select.select([sys.stdin], [], [])[0] and os.read(sys.stdin.fileno(), 1 << 12):
                pass
        finally:
            server.stop()


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
