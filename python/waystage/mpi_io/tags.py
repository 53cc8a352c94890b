"""Tags on the packets of a program's messages: the library, and the ticket of a job.

Arrives: the socket of this node's tag service.
Leaves: variables for the ranks, and a connection that holds the job's number while it is open.
Must not know: what a tag says, how packets get it (shim/tags, crates/tags).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waystage import _native
from waystage.compiled import preloaded_library
from waystage.mpi_io.errors import Missing
from waystage.mpi_launchers import NoCompiler, find_compiler

SOCKET = Path("/run/waystage/tags.sock")
"""Where a node's service listens."""

PASSED_ON = ("LD_PRELOAD", "WAYSTAGE_TAGS_SOCKET", "WAYSTAGE_TAGS_TICKET")

FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--as-needed")

_MESSAGE = struct.Struct("=II QQQ 32s")
"""As of crates/tags/src/wire.rs."""

_MAGIC, _JOB = 0x57544731, 1
_ANSWERS_WITHIN_S = 2.0
_FULL = 2


class NoTags(RuntimeError):
    """The program runs without tags; the message says why."""


def library(mpicc: str | None, launcher: str | None) -> Path:
    """The library to preload, compiled when first used. Raises Missing."""
    try:
        compiler = find_compiler(mpicc, launcher)
    except NoCompiler as error:
        raise Missing(str(error)) from None
    sources = {name: text.encode() for name, text in _native.shim_sources("tags")}
    return preloaded_library(
        "tags", "waystage-tags", compiler, FLAGS, sources, version_flag="--version", failed=Missing
    )


@contextmanager
def ticket(path: Path | None = None) -> Iterator[dict[str, str]]:
    """Variables for the ranks of one job, whose number no other job gets before the end. Raises NoTags."""
    path = path or Path(os.environ.get("WAYSTAGE_TAGS_SOCKET") or SOCKET)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWERS_WITHIN_S)
        try:
            connection.connect(str(path))
            connection.send(_MESSAGE.pack(_MAGIC, _JOB, 0, 0, 0, b""))
            reply = connection.recv(_MESSAGE.size)
        except OSError as error:
            raise NoTags(
                f"no tag service answers at {path} ({error}): an administrator starts one with 'waystage tags serve'"
            ) from None
        if len(reply) != _MESSAGE.size:
            raise NoTags(f"what answers at {path} is no tag service of this version")
        magic, status, *_ = _MESSAGE.unpack(reply)
        if magic != _MAGIC or status != 0:
            raise NoTags(
                "all numbers of jobs are in use" if status == _FULL else "the tag service refused the job"
            )
        yield {"WAYSTAGE_TAGS_SOCKET": str(path), "WAYSTAGE_TAGS_TICKET": reply[8:].hex()}
