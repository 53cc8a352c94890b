"""Exit codes, errors, output and progress, shared by all subcommands.

Arrives: results, messages and fractions of work done.
Leaves: text for people or one JSON object for programs, on the right stream.
Must not know: what any subcommand does.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from waystage.cli.quantities import Rate

if TYPE_CHECKING:
    from waystage.task import Progress

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

PLAIN_PROGRESS_SECONDS = 5.0
"""Minimum interval between lines of progress where stderr is not a terminal."""

LEFT_OVER_S = 30.0
"""The last seconds of progress, from which the time left is estimated."""


class ExitCode(IntEnum):
    """The exit statuses of every subcommand, documented in docs/reference/exit-codes.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    BAD_INPUT = 3
    MISSING = 4
    NEEDS_ROOT = 5
    BUSY = 6
    INVALID = 7
    PARTIAL = 8
    TIMED_OUT = 75
    INTERRUPTED = 130


class UserError(Exception):
    """One sentence for the user (what, where, how to fix it) and an exit status."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


@dataclass(frozen=True)
class Output:
    """A subcommand's output: results on stdout, everything else on stderr."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False

    def say(self, text: str) -> None:
        """Print a line of text; nothing with --quiet or --json."""
        if not self.quiet and not self.json:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print a note on stderr; nothing with --quiet."""
        if not self.quiet:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """Print a detail on stderr, only with --verbose."""
        if self.verbose:
            click.echo(text, err=True)

    def result(self, value: Any, text: str | None = None) -> None:
        """Print the result: `value` as one JSON object with --json, else `text` unless --quiet."""
        if self.json:
            import json

            line = json.dumps(value, ensure_ascii=False, default=str)
            # A name that is not UTF-8 holds lone surrogates: JSON can escape them, UTF-8 cannot encode them.
            click.echo(line.encode("utf-8", "backslashreplace"))
        elif text is not None:
            self.say(text)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A callable that shows progress on stderr: a bar on a terminal, else occasional lines."""
        if self.quiet:
            yield lambda what, share: None
        elif sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            with _bar() as call:
                yield call
        else:
            yield _PlainProgress()


def output_options(function: Callable[P, R]) -> Callable[..., R]:
    """Give a click command `--json`, `--quiet` and `--verbose`; the function receives `output: Output`."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.option("--quiet", "-q", is_flag=True, help="Print only errors.")
    @click.option("--verbose", "-v", is_flag=True, help="Print details and log messages on stderr.")
    @functools.wraps(function)
    def with_output(*args: Any, as_json: bool, quiet: bool, verbose: bool, **kwargs: Any) -> R:
        if quiet and verbose:
            raise UserError("--quiet and --verbose exclude each other: omit one", ExitCode.USAGE)
        if verbose:
            import logging

            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        # A program that calls a command takes its output itself.
        held = click.get_current_context().find_object(Output)
        kwargs["output"] = held or Output(json=as_json, quiet=quiet, verbose=verbose)
        return function(*args, **kwargs)

    return with_output


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


walk_options = _together(
    click.option("--exclude", "-x", multiple=True, metavar="PATTERN", help="Exclude PATTERN (repeatable)."),
    click.option("--one-file-system", is_flag=True, help="Do not cross file system boundaries."),
)

read_options = _together(
    click.option(
        "--workers", "threads", type=click.IntRange(1, 1024), help="Number of threads. Default: two per core."
    ),
    click.option(
        "--bandwidth-limit",
        "bandwidth",
        type=Rate(),
        metavar="RATE",
        help="Limit the read rate, e.g. 200M (docs/reference/units.md).",
    ),
    click.option("--dry-run", is_flag=True, help="Print what would be read, and read nothing."),
)

rank_options = _together(
    click.option("--rank", type=int, help="Rank of this process, from 0. Default: from mpirun or srun."),
    click.option(
        "--ranks", type=int, help="Number of processes that share the work. Default: from mpirun or srun."
    ),
)
"""Defaults for `waystage.ranks.find_rank`."""


class GivenPath(click.Path):
    """A path argument that is not empty, and not a non-directory where a directory is expected."""

    @classmethod
    def like(cls, other: click.Path) -> GivenPath:
        """A GivenPath with the settings of `other`."""
        return cls(
            exists=other.exists,
            file_okay=other.file_okay,
            dir_okay=other.dir_okay,
            writable=other.writable,
            readable=other.readable,
            resolve_path=other.resolve_path,
            allow_dash=other.allow_dash,
            path_type=other.type,
            executable=other.executable,
        )

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert as click does, with the checks of this class as usage errors."""
        if value in ("", b""):
            self.fail("a path must not be empty; . is the current directory", param, ctx)
        given = super().convert(value, param, ctx)
        if not self.file_okay and os.path.lexists(given) and not os.path.isdir(given):
            self.fail(f"{os.fspath(value)!r} is not a directory", param, ctx)
        return given


def refuse_empty_paths(command: click.Command) -> click.Command:
    """Make each path parameter of a command and its subcommands a GivenPath."""
    for param in command.params:
        if isinstance(param.type, click.Path) and not isinstance(param.type, GivenPath):
            param.type = GivenPath.like(param.type)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            refuse_empty_paths(below)
    return command


def readable_source(path: str | os.PathLike[str], *, directory: bool = False) -> None:
    """Raise UserError if a tree or file to read is missing or cannot be opened."""
    try:
        about = os.stat(path)
        if directory and not stat.S_ISDIR(about.st_mode):
            raise UserError(f"{path} is not a directory: give the root of a tree", ExitCode.BAD_INPUT)
        if not stat.S_ISDIR(about.st_mode) and not stat.S_ISREG(about.st_mode):
            raise UserError(f"{path} is neither a directory nor a file", ExitCode.BAD_INPUT)
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", ExitCode.BAD_INPUT) from None


def needs_root(doing: str) -> None:
    """Raise UserError(NEEDS_ROOT) if this process is not root."""
    if os.geteuid() != 0:
        raise UserError(
            f"{doing} needs root for network namespaces: run it with sudo, or as root in a container",
            ExitCode.NEEDS_ROOT,
        )


def take_descriptors() -> None:
    """Raise the soft limit of open files to the hard one: the usual 1,024 are too few for a socket per connection."""
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text columns: numbers right-aligned, words left-aligned, no trailing spaces."""
    cells = [[_cell(row.get(column, "")) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    numeric = [all(isinstance(row.get(c, 0), int | float) for row in rows) for c in columns]

    def line(values: Sequence[str]) -> str:
        parts = [v.rjust(w) if n else v.ljust(w) for v, w, n in zip(values, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(list(columns)), *(line(values) for values in cells)])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=LEFT_OVER_S) as bar:
        task = bar.add_task("", total=1.0)

        def call(what: str, share: float) -> None:
            bar.update(task, description=what, completed=min(max(share, 0.0), 1.0))

        yield call


class _PlainProgress:
    """Prints a line when the text has changed and the minimum interval has passed."""

    def __init__(self) -> None:
        self._last_text = ""
        self._last_time = float("-inf")
        self._left = TimeLeft()

    def __call__(self, what: str, share: float) -> None:
        now = time.monotonic()
        left = self._left.look(share, now)
        text = f"[{min(max(share, 0.0), 1.0):4.0%}] {what}"
        if text != self._last_text and (now - self._last_time >= PLAIN_PROGRESS_SECONDS or share >= 1.0):
            click.echo(text if left is None else f"{text}, {duration(left)} left", err=True)
            self._last_text, self._last_time = text, now


class TimeLeft:
    """Estimates the time left from the share done over the last `LEFT_OVER_S` seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def look(self, share: float, now: float) -> float | None:
        """Seconds left; None while nothing has advanced. A share that falls, since more was found, is a new start."""
        if self._seen and share < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, share))
        while len(self._seen) > 2 and now - self._seen[1][0] > LEFT_OVER_S:
            self._seen.popleft()
        began, before = self._seen[0]
        if share <= before or share >= 1.0 or now <= began:
            return None
        return (1.0 - share) * (now - began) / (share - before)


def duration(seconds: float) -> str:
    """Seconds as `40 s`, `12 min` or `3 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60:,} h {minutes % 60:02d} min"
