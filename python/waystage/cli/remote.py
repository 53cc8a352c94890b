"""`waystage remote ls|mkdir|rm|mv`: a server's directories, with the rights that it gives to the user.

Arrives: paths as [USER@]HOST:PATH.
Leaves: entries as text or JSON; changed directories; exit status 8 if some entries could not be removed.
Must not know: how a server is asked.
"""

from __future__ import annotations

import stat as modes
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError, output_options
from waystage.cli.copy_remote import FarEnds, begun_by_ssh
from waystage.cli.reaching import Session, Trust, believing, trust_options
from waystage.wan.address import DEFAULT_PORT, Remote, parse_remote

LETTERS = {"f": "-", "d": "d", "l": "l", "p": "p", "b": "b", "c": "c", "s": "s"}
KINDS = {"f": "file", "d": "directory", "l": "symbolic link", "p": "FIFO", "s": "socket"}


@click.group()
def command() -> None:
    """List, make, remove and rename what is in the directories of a `waystage serve`.

    With the rights that the server's configuration gives to the user: below its roots, only where it may write, never
    through a symbolic link.
    """


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for reaching a server; the function receives `ask: Callable`, as `_Asking`."""

    @click.option(
        "--port",
        type=click.IntRange(1, 65535),
        default=DEFAULT_PORT,
        show_default=True,
        help="The server's TCP port.",
    )
    @trust_options
    @click.option(
        "--ssh", "by_ssh", is_flag=True, help="Start the server over ssh if no `waystage serve` runs."
    )
    @output_options
    def with_asking(*args: Any, port: int, trust: Trust, by_ssh: bool, output: Output, **kwargs: Any) -> Any:
        return function(*args, ask=_Asking(port, trust, by_ssh, output), output=output, **kwargs)

    with_asking.__name__, with_asking.__doc__ = function.__name__, function.__doc__
    wrapped: Callable[..., Any] = with_asking
    wrapped.__click_params__ = [  # type: ignore[attr-defined]
        *getattr(function, "__click_params__", []),
        *getattr(with_asking, "__click_params__", []),
    ]
    return wrapped


class _Asking:
    """Asks a server."""

    def __init__(self, port: int, trust: Trust, by_ssh: bool, output: Output) -> None:
        self._port, self._trust, self._by_ssh, self._output = port, trust, by_ssh, output

    def __call__(self, what: str, remotes: list[Remote], flag: bool = False) -> Any:
        """The answer. Raises WanError and UserError."""
        from waystage._native import RemoteTree

        def asked(known: str | None, key: Path) -> Any:
            tree = RemoteTree(by.peer(remote.host, remote.user, key, known))
            try:
                return tree.ask(what, paths, flag)
            finally:
                tree.close()

        session = Session(self._port, "fair", None, None)
        with ExitStack() as held:
            there, by, trust = FarEnds(".", remotes[0], push=True), session, self._trust
            if self._by_ssh:
                from waystage.wan.ssh import Shell

                shell = Shell(("ssh",), "waystage")
                there, by, trust = held.enter_context(begun_by_ssh(there, shell, session, self._output))
            remote = there.remote
            paths = [each.path for each in remotes]
            return believing(remote.host, by.port, trust, self._output, asked)


def _remote(path: str) -> Remote:
    found = parse_remote(path)
    if found is None:
        raise UserError(f"{path!r} is on this machine: give [USER@]HOST:PATH", ExitCode.USAGE)
    return found


@command.command("ls")
@click.argument("path", metavar="[USER@]HOST:PATH")
@click.option("--long", "-l", is_flag=True, help="Also print type, mode, owner, group, bytes and time.")
@click.option("--directory", "-d", "itself", is_flag=True, help="List the directory itself.")
@server_options
def ls(path: str, long: bool, itself: bool, ask: _Asking, output: Output) -> int:
    """List a directory of a server, by name; of anything else the entry itself."""
    from waystage.display import display, named

    entries, _, _ = ask("list", [_remote(path)], itself)
    if itself and not entries:
        raise UserError(f"{path}: there is no such entry")
    entries.sort(key=lambda entry: entry[1])
    rows: list[dict[str, Any]] = []
    lines: list[str] = []
    width = max((len(str(entry[2])) for entry in entries), default=1)
    for letter, name, size, mtime, _, mode, uid, gid, target in entries:
        row: dict[str, Any] = named(name) | {
            "kind": KINDS.get(letter, "device"),
            "bytes": size,
            "mtime": mtime,
            "mode": f"{mode:04o}",
            "uid": uid,
            "gid": gid,
        }
        rows.append(row | ({"target": display(target)} if letter == "l" else {}))
        shown = display(name) + ("/" if letter == "d" else "")
        if long:
            bits = LETTERS.get(letter, "?") + modes.filemode(mode)[1:]
            when = time.strftime("%Y-%m-%d %H:%M", time.localtime(min(max(mtime, -(1 << 40)), 1 << 40)))
            link = f" -> {display(target)}" if letter == "l" else ""
            shown = f"{bits} {uid:>5} {gid:>5} {size:>{width}} {when} {shown}{link}"
        lines.append(shown)
    output.result({"path": path, "entries": rows}, "\n".join(lines) if lines else None)
    return ExitCode.OK


@command.command("mkdir")
@click.argument("path", metavar="[USER@]HOST:PATH")
@click.option("--parents", "-p", is_flag=True, help="Make the directories above too; no error if it exists.")
@server_options
def mkdir(path: str, parents: bool, ask: _Asking, output: Output) -> int:
    """Make a directory at a server."""
    ask("make", [_remote(path)], parents)
    output.result({"path": path}, f"made {path}")
    return ExitCode.OK


@command.command("rm")
@click.argument("path", metavar="[USER@]HOST:PATH")
@click.option("--recursive", "-r", is_flag=True, help="Remove a directory with all that is in it.")
@server_options
def rm(path: str, recursive: bool, ask: _Asking, output: Output) -> int:
    """Remove a file, a symbolic link itself, or an empty directory at a server.

    Exit status 8: some entries below PATH could not be removed; the same command removes the rest.
    """
    from waystage.display import display, named

    _, removed, problems = ask("remove", [_remote(path)], recursive)
    value = {
        "path": path,
        "removed": removed,
        "problems": [named(each) | {"text": text} for each, text in problems],
    }
    output.result(value, f"removed {removed:,} {'entry' if removed == 1 else 'entries'}")
    for each, text in problems[:20]:
        output.note(f"{display(each)}: {text}")
    return ExitCode.PARTIAL if problems else ExitCode.OK


@command.command("mv")
@click.argument("source", metavar="[USER@]HOST:FROM")
@click.argument("destination", metavar="[USER@]HOST:TO")
@click.option("--force", "-f", is_flag=True, help="Replace what is called TO.")
@server_options
def mv(source: str, destination: str, force: bool, ask: _Asking, output: Output) -> int:
    """Rename an entry at a server, atomically, within one of its file systems."""
    one, other = _remote(source), _remote(destination)
    if (one.host, one.user) != (other.host, other.user):
        raise UserError(
            f"{source} and {destination} are at different servers or of different users: copy instead",
            ExitCode.USAGE,
        )
    ask("rename", [one, other], force)
    output.result({"source": source, "destination": destination}, f"renamed {source} to {destination}")
    return ExitCode.OK
