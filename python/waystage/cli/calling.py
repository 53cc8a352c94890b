"""`waystage.copy`: the copy of the command line as a Python function, with its options, checks and sentences.

Arrives: sources, a destination, options by keyword.
Leaves: a result, or an exception with the sentence that the command would print.
Must not know: how bytes are moved; how the command carries an option out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from waystage.cli.common import ExitCode, Output, UserError
from waystage.cli.copy_sources import into
from waystage.cli.errors import status_of
from waystage.task import Progress
from waystage.wan.address import parse_remote

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

NOT_HERE = ("json", "quiet", "verbose", "help", "show_key", "job")
"""Options of the command without a meaning for a function; a job is named by $WAYSTAGE_JOB."""


@dataclass(frozen=True)
class Problem:
    """An entry that was not copied."""

    path: bytes
    """Below the source."""
    kind: str
    """`error`, `changed`, `vanished` or `skipped`."""
    text: str


@dataclass(frozen=True)
class CopyResult:
    """What `waystage.copy` did."""

    files: int
    """Regular files copied, without those that existed."""
    bytes: int
    """Their bytes that this call moved."""
    seconds: float
    counts: Mapping[str, int]
    """All counts by name, as in `waystage copy --json`: `same`, `directories`, `deleted` ..."""
    problems: Sequence[Problem] = ()
    """At most 10,000; `counts` has how many there were."""
    notes: Sequence[str] = ()
    """What the user should know, e.g. that UDP is blocked."""
    details: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The object that `waystage copy --json` prints."""

    @property
    def rate(self) -> float:
        """Bytes/s over the whole call."""
        return self.bytes / max(self.seconds, 1e-9)

    @property
    def complete(self) -> bool:
        """Whether all entries were copied."""
        return bool(self.details.get("complete", True))


class CopyFailed(RuntimeError):
    """A copy that could not start or continue; the message says what, where, and how to fix it.

    `status` is the command's exit status (docs/reference/exit-codes.md). The same call resumes the copy.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class CopyIncomplete(CopyFailed):
    """A copy that went on to its end without some entries; `result` has which, and why."""

    def __init__(self, message: str, result: CopyResult) -> None:
        super().__init__(message, ExitCode.PARTIAL)
        self.result = result


@dataclass(frozen=True)
class _Collected(Output):
    """Keeps what the command would print."""

    report: Progress | None = None
    values: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Keep a note."""
        self.notes.append(text.removeprefix("note: "))

    def detail(self, text: str) -> None:
        """Nothing."""

    def result(self, value: Any, text: str | None = None) -> None:
        """Keep the result."""
        self.values.append(value)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """The caller's callable."""
        report = self.report
        yield (lambda what, share: None) if report is None else report


def copy(
    source: Path | Sequence[Path],
    destination: Path,
    *,
    progress: Progress | None = None,
    exclude: Sequence[str] = (),
    include: Sequence[str] = (),
    update: str = "changed",
    verify: bool = False,
    bandwidth_limit: str | int | None = None,
    workers: int | None = None,
    delete: bool = False,
    dry_run: bool | str = False,
    **options: Any,
) -> CopyResult:
    """Copy trees and files as `waystage copy` does, on one machine or from or to another host.

    `source` is a directory, whose contents go into `destination`, or a file; a list of them goes into the directory
    `destination`, each under its name. One end may be text `[USER@]HOST:PATH`; a `pathlib.Path` is always on this
    machine. A file appears only when it is complete.

    `progress` receives a text and the share done, 0 to 1, about five times a second, in the calling thread; an
    exception that it raises ends the copy. `exclude`, `include`: shell patterns of names, or of paths where they contain
    a slash. `update`: which existing files to copy again: `changed` (size or time), `newer`, `missing` (none),
    `content`, `always`. `verify` reads the copy back. `bandwidth_limit`: bytes/s, also as `"200M"` or a schedule.
    `workers`: threads, by default two a core, at most 16. `delete` removes entries that the source lacks, after a copy
    without errors. `dry_run`: copy nothing; True or `"plan"` plans, `"disk"` also reads, `"network"` sends.

    `options` are all others of docs/reference/cli.md, with underscores: `fsync="end"`, `port=7901`, `trust_new=True`,
    `no_owners=True`.

    Raises CopyFailed where the copy cannot start or continue, CopyIncomplete where some entries failed, OSError where
    an end cannot be opened, TypeError for an unknown option. After an exception, KeyboardInterrupt too, all threads
    have ended, and the same call resumes the copy.
    """
    from waystage.cli.copy import command

    given = options | {
        "exclude": exclude,
        "include": include,
        "update": update,
        "verify": verify,
        "bandwidth_limit": bandwidth_limit,
        "workers": workers,
        "delete": delete,
        "dry_run": dry_run,
    }
    words = _words(command, given)
    output = _Collected(report=progress)
    try:
        words += ["--", *_ends(source, destination, dry_run=bool(dry_run))]
        with command.make_context("copy", words, obj=output) as context:
            status = command.invoke(context)
    except click.ClickException as error:
        raise CopyFailed(error.format_message(), ExitCode.USAGE) from error
    except UserError as error:
        raise CopyFailed(error.message, error.exit_code) from error
    except Exception as error:
        found = status_of(error)
        if found is None:
            raise
        raise CopyFailed(str(error), found) from error
    result = _result(output)
    if status != ExitCode.OK:
        raise CopyIncomplete(_why(result), result)
    return result


def _ends(source: Path | Sequence[Path], destination: Path, *, dry_run: bool) -> list[str]:
    """The ends as the command takes them. Raises UserError and OSError."""
    there = _end(destination)
    if not isinstance(source, list | tuple):
        return [_end(source), there]  # type: ignore[arg-type]
    if not source:
        raise UserError("source is an empty list: give at least one path", ExitCode.USAGE)
    if len(source) > 1:
        return [*map(_end, source), there]
    one = into(_end(source[0]), there)
    if not dry_run and parse_remote(there) is None:
        os.makedirs(there, exist_ok=True)
    return [one.source, one.destination]


def _end(path: Path) -> str:
    """A path as the command takes it: what is no text is on this machine."""
    text = os.fsdecode(path)
    if text == "-" or (isinstance(path, os.PathLike) and parse_remote(text) is not None):
        return f"./{text}"
    return text


def _words(command: click.Command, given: Mapping[str, Any]) -> list[str]:
    """Options as words. TypeError for those that the command has not."""
    known: dict[str, click.Option] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            known[max(parameter.opts, key=len).removeprefix("--").replace("-", "_")] = parameter
    words: list[str] = []
    for name, value in given.items():
        if name not in known or name in NOT_HERE:
            raise TypeError(
                f"copy() has no option {name!r}: docs/reference/cli.md has those of `waystage copy`"
            )
        option = max(known[name].opts, key=len)
        if value is None or value is False:
            continue
        if value is True:
            if not known[name].is_flag and name != "dry_run":
                raise TypeError(f"{name}=True: {option} needs a value")
            words.append(option)
        elif known[name].is_flag:
            raise TypeError(f"{name}={value!r}: give True or False")
        elif known[name].multiple:
            if isinstance(value, str | bytes | os.PathLike):
                raise TypeError(f"{name}={value!r}: give a list")
            words += [f"{option}={_text(each)}" for each in value]
        else:
            words.append(f"{option}={_text(value)}")
    return words


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, bytes | os.PathLike) else str(value)


def _result(output: _Collected) -> CopyResult:
    from base64 import b64decode

    [value] = output.values
    counts = value["counts"]
    problems = []
    for each in value["problems"]:
        exact = each["path_base64"]
        path = os.fsencode(each["path"]) if exact is None else b64decode(exact)
        problems.append(Problem(path, each["kind"], each["text"]))
    return CopyResult(
        counts["files"],
        counts["bytes"],
        value["seconds"],
        counts,
        tuple(problems),
        tuple(output.notes),
        value,
    )


def _why(result: CopyResult) -> str:
    kinds = [f"{result.counts[kind]:,} {kind}" for kind in ("errors", "changed", "vanished", "lost") if result.counts.get(kind)]  # fmt: skip
    first = result.problems[0] if result.problems else None
    about = f"; first {os.fsdecode(first.path)!r}: {first.text}" if first is not None else ""
    return f"the copy is not complete: {', '.join(kinds) or 'entries are missing'}{about}; the same call retries them"
