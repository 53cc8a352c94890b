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
from dataclasses import replace
from pathlib import Path

from waystage.native_options.servers import ServerOptions, ServerRoot, ServerUser
from waystage.wan.config import MOST_MEMORY
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

    request = read_request(sys.stdin.buffer)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _end)
    privileged = os.geteuid() == 0
    roots = [ServerRoot(path=path, write=True, privileged=privileged) for path in (Path.home(), Path("/"))]
    user = ServerUser(name=getpass.getuser(), keys=[request.client_key])
    with passing_key() as (key, line):
        options = ServerOptions(
            listen=ANYWHERE,
            key=key,
            users=[user],
            roots=roots,
            connections=4,
            copy_connections=COPY_CONNECTIONS,
            memory_bytes=MOST_MEMORY,
            workers=WORKERS,
        )
        try:
            server = WanServer(options)
        except WanError:
            server = WanServer(replace(options, listen=ANYWHERE_IPV4))
        with server:
            port = int(server.address.rpartition(":")[2])
            sys.stdout.write(Offer(port, line).line())
            sys.stdout.flush()
            while select.select([sys.stdin], [], [])[0] and os.read(sys.stdin.fileno(), 1 << 12):
                pass


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
