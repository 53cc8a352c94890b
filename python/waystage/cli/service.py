"""Options, log, ready file and signals of subcommands that serve until a signal.

Arrives: paths, lines, signals.
Leaves: a log of mode 0600, one line an event; a ready file, written atomically; the number of signals; notifications
of systemd.
Must not know: which service it is.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click

from waystage.cli.common import UserError
from waystage.outputs import remove_written, write_whole

F = TypeVar("F", bound=Callable[..., Any])


def ready_file_option(help_text: str) -> Callable[[F], F]:
    """The option `--ready-file`, passed as `ready_file`; see `write_ready`."""
    return click.option(
        "--ready-file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"{help_text}; removed at exit.",
    )


def pem_option(name: str, help_text: str) -> Callable[[F], F]:
    """An option that names a PEM file."""
    return click.option(name, type=click.Path(dir_okay=False), help=f"PEM file of {help_text}.")


def log_format_option(function: F) -> F:
    """The option `--log-format`, which acts when it is read: a process has one log."""

    def choose(ctx: click.Context, param: click.Parameter, value: str) -> None:
        _Format.json = value == "json"

    return click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        expose_value=False,
        callback=choose,
        help="Format of log lines; json is one object a line: time, level, logger, message.",
    )(function)


def start_logging(*, quiet: bool) -> None:
    """Log to stderr, in the format asked for; only warnings where it is to be quiet."""
    handler = logging.StreamHandler()
    if _Format.json:
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler])


class _Format:
    json = False


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def _moment(since_epoch: float) -> str:
    return datetime.datetime.fromtimestamp(since_epoch, datetime.UTC).isoformat(timespec="milliseconds")


class Signals:
    """Counts SIGTERM and Ctrl-C from now on."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signal)

    def _signal(self, *_: object) -> None:
        self.count += 1

    def wait(self) -> None:
        """Wait until one has come. Any thread may receive a signal while its handler has to run in the main thread:
        the interpreter wakes that by a pipe."""
        receiver, sender = os.pipe()
        os.set_blocking(sender, False)
        before = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
        try:
            while not self.count:
                os.read(receiver, 4096)
        finally:
            signal.set_wakeup_fd(before)
            os.close(receiver)
            os.close(sender)


@contextlib.contextmanager
def service_log(path: Path | None) -> Iterator[TextIO]:
    """The log at `path`, created with mode 0600; stderr for None. Raises UserError."""
    if path is None:
        yield sys.stderr
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"the log {path} cannot be written: {error.strerror}") from None
    with open(descriptor, "a", encoding="utf-8") as file:
        yield file


@contextlib.contextmanager
def removed_at_exit(ready_file: Path | None) -> Iterator[None]:
    """Remove the ready file in the end, if this process wrote it."""
    try:
        yield
    finally:
        if ready_file is not None:
            remove_written(ready_file)


def write_line(log: TextIO, text: str) -> None:
    """Write a line with the time."""
    if _Format.json:
        line = {"time": _moment(time.time()), "level": "info", "logger": "waystage", "message": text}
        log.write(json.dumps(line) + "\n")
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # Text of the peer must not look like our own lines.
    clean = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    log.write(f"{now} {clean}\n")


def write_ready(path: Path | None, text: str, mode: int = 0o666) -> None:
    """Write the service's address to the ready file, if there is one; new, with this mode. Raises UserError."""
    if path is None:
        return
    # Who waits for the file never sees it empty.
    try:
        write_whole(path, text.encode("ascii"), mode)
    except OSError as error:
        raise UserError(f"cannot write --ready-file {path}: {error.strerror}") from None


def tell_systemd(text: str) -> None:
    """sd_notify(3): one datagram to the socket in $NOTIFY_SOCKET."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        try:
            channel.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            logging.getLogger(__name__).warning("cannot notify systemd of %s: %s", text, error)
