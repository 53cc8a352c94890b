"""`waystage copy - DST` and `waystage copy SRC -`: standard input or output as one end.

Arrives: the ends of a copy, one of them a stream, the other a file here or at a server.
Leaves: a complete file, or the bytes of one on standard output.
Must not know: the options of other copies, which it refuses.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.copy_remote import AT_A_SERVER, FarEnds, begun_by_ssh, copy_far, shell_of
from waystage.cli.copy_report import size_text
from waystage.cli.copy_sources import STREAM, pump, read_stream, write_stream
from waystage.cli.reaching import Session, Trust, believing
from waystage.wan.address import Remote, parse_remote

KNOWN = ("sources", "destination", "as_json", "quiet", "verbose")

KNOWN_FAR = (*KNOWN, *AT_A_SERVER, "by_ssh", "rsh", "remote_waystage", "udp_wait")

PIECE_BYTES = 4 << 20
"""Read of a server's file at a time: a round trip costs as much as some of it."""


def copy_stream(sources: tuple[str, ...], destination: str, output: Output) -> int:
    """Copy from standard input or to standard output. Raises UserError, OSError and WanError."""
    if len(sources) > 1 or sources[0] == destination:
        raise UserError("- is one end of a copy of one file: give one SRC and one DST", ExitCode.USAGE)
    remote = parse_remote(sources[0] if destination == STREAM else destination)
    _refuse_options(KNOWN if remote is None else KNOWN_FAR)
    began = time.monotonic()
    if destination == STREAM:
        if output.json:
            raise UserError("--json and - both write to standard output: omit --json", ExitCode.USAGE)
        moved = read_stream(sources[0]) if remote is None else _read_far(remote, output)
        output.detail(f"copied {size_text(moved)} in {time.monotonic() - began:.1f} s")
        return ExitCode.OK
    moved = write_stream(destination) if remote is None else _write_far(remote, output)
    seconds = time.monotonic() - began
    output.result(
        {
            "source": STREAM,
            "destination": destination,
            "complete": True,
            "seconds": round(seconds, 3),
            "bytes": moved,
        },
        f"copied {size_text(moved)} in {seconds:.1f} s to {os.path.basename(destination)}",
    )
    return ExitCode.OK


class _Far:
    """A file at a server, reached as the command's options say."""

    def __init__(self, remote: Remote, output: Output, held: ExitStack) -> None:
        given = click.get_current_context().params
        ends = FarEnds(".", remote, push=True)
        self._session = Session(given["port"], "fair", None, given["udp_wait"] or None)
        self._trust = Trust(*(given[name] for name in ("identity", "known_hosts", "server_key", "trust_new")))
        self._output = output
        if given["by_ssh"] or given["rsh"] is not None:
            shell = shell_of(given["rsh"], given["remote_waystage"])
            begun = held.enter_context(begun_by_ssh(ends, shell, self._session, output))
            ends, self._session, self._trust = begun
        self.remote = ends.remote

    def tree(self, do: Any) -> Any:
        """What `do` returns of the server's directories."""
        from waystage._native import RemoteTree

        def attempt(known: str | None, key: Path) -> Any:
            tree = RemoteTree(self._session.peer(self.remote.host, self.remote.user, key, known))
            try:
                return do(tree)
            finally:
                tree.close()

        return believing(self.remote.host, self._session.port, self._trust, self._output, attempt)

    def put(self, path: Path) -> None:
        """Copy a file to the server, under its name there."""
        from waystage.native_options.copies import RemoteCopyOptions
        from waystage.task import follow

        ends = FarEnds(str(path), self.remote, push=True)
        options = RemoteCopyOptions(update="always", restart=True)

        def wait(copying: Any) -> None:
            with self._output.progress() as progress:
                follow(copying, lambda counts: progress(f"sent {size_text(counts['bytes'])}", 0.99))

        copying = copy_far(ends, self._session, self._trust, self._output, wait, options)
        problems = [text for _, _, text in copying.problems()]
        if problems:
            raise UserError(f"{os.fsdecode(self.remote.path)}: {problems[0]}", ExitCode.PARTIAL)


def _read_far(remote: Remote, output: Output) -> int:
    """Write a server's file to standard output; its bytes. A file that changes meanwhile is an error."""
    with ExitStack() as held:
        far = _Far(remote, output, held)
        sys.stdout.flush()

        def read(tree: Any) -> int:
            at, seen = 0, None
            while True:
                data, entry = tree.read(remote.path, at, PIECE_BYTES)
                # Size and time of the last change.
                state = None if entry is None else entry[2:5]
                if state is None or (seen is not None and state != seen):
                    shown = os.fsdecode(remote.path)
                    raise UserError(
                        f"{shown} changed while it was read: what was written is not whole", ExitCode.PARTIAL
                    )
                seen = state
                view = memoryview(data)
                while view:
                    view = view[os.write(sys.stdout.fileno(), view) :]
                at += len(data)
                if at >= state[0] or not data:
                    return at

        return int(far.tree(read))


def _write_far(remote: Remote, output: Output) -> int:
    """Send standard input as a server's file, which gets its name when it is complete; its bytes.

    What cannot be read again is kept here until it has been sent, so that a lost connection loses nothing at the server.
    """
    name = os.path.basename(remote.path)
    shown = os.fsdecode(remote.path)
    if not name:
        raise UserError(
            f"{shown} is a directory: give the name of a file for standard input", ExitCode.BAD_INPUT
        )
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="waystage-") as folder:
        far = _Far(remote, output, held)
        found = far.tree(lambda tree: tree.ask("list", [remote.path], True)[0])
        if found and found[0][0] == "d":
            raise UserError(
                f"{shown} is a directory: give the name of a file for standard input", ExitCode.BAD_INPUT
            )
        path = Path(folder) / os.fsdecode(name)
        with path.open("wb") as file:
            moved = pump(sys.stdin.fileno(), file.fileno())
        # Not with the mode of what others must not read here.
        path.chmod(0o666 & ~_umask())
        far.put(path)
        return moved


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _refuse_options(known: tuple[str, ...]) -> None:
    context = click.get_current_context()
    for parameter in context.command.params:
        if parameter.name is None or parameter.name in known:
            continue
        if context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE:
            name = max(parameter.opts, key=len)
            raise UserError(f"{name} has no effect where - is an end: omit it", ExitCode.USAGE)
