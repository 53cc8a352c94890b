"""The configuration of a path's process, and requests to it.

Arrives: a request.
Leaves: the configuration's type; answers.
Must not know: what a path does.

A request and its answer are a JSON object each, over a unix socket in the path's folder; one for each connection.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from waystage.local_client import peer_of
from waystage.worlds.lab.errors import LabError
from waystage.worlds.lab.wan.profile import Profile

MOST_BYTES = 1 << 20
ANSWER_S = 10.0


class PathConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which path to carry, and where."""

    name: str
    folder: str
    namespaces: tuple[str, str]
    profile: Profile


def ask(where: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the process that listens at `where`. Raises LabError where there is none, or it says no."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(ANSWER_S)
            connection.connect(str(where))
            if peer_of(connection).uid not in (0, os.geteuid()):
                raise LabError(f"a process of another user answers at {where}: do not believe it")
            connection.sendall(json.dumps(request).encode() + b"\n")
            pieces = []
            while piece := connection.recv(1 << 16):
                pieces.append(piece)
        answer: dict[str, Any] = json.loads(b"".join(pieces))
    except (OSError, ValueError) as error:
        raise LabError(f"the path's process does not answer at {where}: {error}") from None
    if "error" in answer:
        raise LabError(str(answer["error"]))
    return answer


def take(connection: socket.socket) -> dict[str, Any] | None:
    """The request on a connection; None where it is none."""
    connection.settimeout(ANSWER_S)
    data = b""
    try:
        while not data.endswith(b"\n"):
            piece = connection.recv(1 << 16)
            if not piece or len(data) > MOST_BYTES:
                return None
            data += piece
        request = json.loads(data)
    except (OSError, ValueError):
        return None
    return request if isinstance(request, dict) else None


def answer(connection: socket.socket, content: dict[str, Any]) -> None:
    """Answer; a client that has gone misses it."""
    try:
        connection.sendall(json.dumps(content).encode())
    except OSError:
        pass
