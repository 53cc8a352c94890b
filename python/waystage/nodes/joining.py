"""Reaching a Dask scheduler, or starting one with workers in Slurm jobs.

Arrives: an address, or a number of jobs.
Leaves: an engine for the time of a block; nothing started here is left behind.
Must not know: what the work is.

Anyone who reaches a Dask scheduler can run programs as its workers' user. So what is started here listens on other
than the loopback interface only with TLS, with its own certificate authority, which lives as long as the command.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from waystage.nodes.engine import Engine
from waystage.nodes.errors import NodesError, NodesMissing

CONNECT_S = 15

LOOPBACK = ("127.", "localhost", "::1", "[::1]")

JOBS_S = 86_400.0
"""How long Slurm jobs may wait in their queue."""


@dataclass(frozen=True)
class Where:
    """Where work runs: at the workers of a scheduler, or in Slurm jobs, each with a worker."""

    scheduler: str | None = None
    slurm: int | None = None
    directory: Path = Path(".")
    """A directory that every node reaches."""

    def warning(self) -> str:
        """What is dangerous about this scheduler; empty where nothing is."""
        parts = urlsplit(self.scheduler or "")
        if self.slurm or not parts.netloc or parts.scheme in ("tls", "wss", "inproc", "unix"):
            return ""
        if (parts.hostname or "").startswith(LOOPBACK):
            return ""
        return (
            f"{self.scheduler} is not encrypted: anyone on that network can run programs as you by it; use tls:// (see"
            " docs/how-to/many-nodes.md)"
        )


@contextmanager
def join(where: Where) -> Iterator[Engine]:
    """An engine at `where`. Raises NodesMissing without Dask, NodesError where nothing answers."""
    try:
        from distributed import Client
    except ImportError:
        raise NodesMissing(
            "work on many nodes needs Dask: install it with pip install 'waystage[nodes]', on all nodes"
        ) from None
    # Dask logs what is said here in one sentence.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with ExitStack() as held:
        if where.slurm is not None:
            from waystage.nodes.slurm import cluster

            started = held.enter_context(cluster(where.slurm, where.directory))
            client = held.enter_context(_client(Client, started, "the Slurm jobs"))
            started.scale(jobs=where.slurm)
            yield Engine(client, "the Slurm jobs", patience_s=JOBS_S)
            return
        address = _address(where.scheduler or "")
        client = held.enter_context(_client(Client, address, address))
        yield Engine(client, address)


def _address(given: str) -> str:
    """The address, which may be in a file as `dask scheduler --scheduler-file` writes it. Raises NodesError."""
    if not given.endswith(".json") and os.sep not in given.partition("://")[0]:
        return given if "://" in given else f"tcp://{given}"
    import json

    try:
        found = json.loads(Path(given).read_bytes()[: 1 << 20])["address"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = (
            getattr(error, "strerror", None) or "it is no file that 'dask scheduler --scheduler-file' wrote"
        )
        raise NodesError(f"{given}: {what}: give the scheduler's address or file") from None
    if not isinstance(found, str):
        raise NodesError(f"{given}: its address is no text: give the scheduler's address or file")
    return found


@contextmanager
def _client(kind: Any, place: Any, shown: str) -> Iterator[Any]:
    try:
        client = kind(place, timeout=CONNECT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
        raise NodesError(
            f"no Dask scheduler answers at {shown} ({_short(error)}): start one with 'dask scheduler', and for tls:// name"
            " the certificates in Dask's configuration (docs/how-to/many-nodes.md)"
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=5)


def _short(error: Exception) -> str:
    """The first line of an error, or of what caused it."""
    said = str(error.__cause__ or error).strip().splitlines()
    return (said[0] if said else type(error).__name__)[:200]
