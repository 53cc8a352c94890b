"""What `waystage copy` does to entries beside copying them: backups, deletion at the destination, removal at the source.

Arrives: options; a copy that has ended.
Leaves: fewer entries in one of the trees, only after a copy without errors; counts and problems.
Must not know: how entries are deleted.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from waystage.cli.combining import refuse
from waystage.cli.common import ExitCode, UserError
from waystage.native_options.copies import BackupOptions, DeleteOptions, RemoveOptions

if TYPE_CHECKING:
    from waystage._native import SourceRemove, TreeDelete
    from waystage.cli.copy_selection import Selected

OPTIONS = ("delete", "max_delete", "remove_source")


@dataclass(frozen=True)
class After:
    """What is asked for."""

    delete: bool
    max_delete: int | None
    backup: BackupOptions | None
    remove_source: bool

    def deletion(
        self, source: str, destination: str, selected: Selected, workers: int, *, dry_run: bool, log: bool
    ) -> TreeDelete:
        """Start to delete. Raises CopyError."""
        from waystage._native import TreeDelete

        options = self._deletion(selected, workers, dry_run=dry_run, log=log)
        return TreeDelete(source, destination, options)

    def far(self, selected: Selected, dry_run: str | None, log: bool) -> DeleteOptions:
        """Options of a deletion between hosts, whose requests are in turn."""
        return self._deletion(selected, 1, dry_run=dry_run is not None, log=log)

    def between_hosts(self) -> After:
        """The same, with the directory of backups as messages have it. Raises UserError."""
        directory = None if self.backup is None else self.backup.directory
        if self.backup is None or directory is None:
            return self
        clean = os.path.normpath(directory)
        if os.path.isabs(clean) or clean.split("/", 1)[0] in (".", ".."):
            raise UserError(
                f"--backup-dir {directory}: between hosts backups stay below DST: give a path relative to it, without ..",
                ExitCode.USAGE,
            )
        return replace(self, backup=replace(self.backup, directory=clean))

    def _deletion(self, selected: Selected, workers: int, *, dry_run: bool, log: bool) -> DeleteOptions:
        options = selected.options()
        return DeleteOptions(
            exclude=options["exclude"],
            include=options["include"],
            copy_links=selected.copy_links,
            one_file_system=selected.one_file_system,
            most=self.max_delete,
            backup=None if dry_run else self.backup,
            workers=workers,
            dry_run=dry_run,
            log=log,
        )

    def removal(
        self, source: str, destination: str, selected: Selected, workers: int, *, dry_run: bool, log: bool
    ) -> SourceRemove:
        """Start to remove. Raises CopyError."""
        from waystage._native import SourceRemove

        single = None
        if not os.path.isdir(source):
            source = os.path.realpath(source)
            name = os.path.basename(source)
            other = name if os.path.isdir(destination) else os.path.basename(destination)
            if not os.path.isdir(destination):
                destination = os.path.dirname(destination) or "."
            single = (os.fsencode(name), os.fsencode(other))
            source = os.path.dirname(source)
        options = self.removal_options(selected, workers, dry_run=dry_run, log=log)
        return SourceRemove(source, destination, replace(options, single=single))

    def removal_options(self, selected: Selected, workers: int, *, dry_run: bool, log: bool) -> RemoveOptions:
        """Options of a removal; between hosts it finds out itself whether it is of one file."""
        return RemoveOptions(workers=workers, dry_run=dry_run, log=log, **selected.options())


def after_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options; the function receives `after: After`."""
    options = (
        click.option(
            "--delete",
            is_flag=True,
            help="After a copy without errors, delete entries of DST that SRC lacks. Excluded entries stay.",
        ),
        click.option(
            "--max-delete",
            type=click.IntRange(min=0),
            metavar="N",
            help="With --delete: delete nothing if more than N entries would go.",
        ),
        click.option(
            "--backup",
            is_flag=True,
            help="Keep files that are replaced or deleted, with --suffix at their names.",
        ),
        click.option(
            "--backup-dir",
            metavar="DIR",
            help="Keep them in DIR instead, below DST or, on one machine, absolute, on the same file system.",
        ),
        click.option(
            "--suffix", metavar="TEXT", help="With --backup. Default: ~, or none with --backup-dir."
        ),
        click.option(
            "--remove-source",
            is_flag=True,
            help="After a copy without errors, remove the files of SRC whose copy at DST reads back the same.",
        ),
    )

    @functools.wraps(function)
    def with_after(
        *args: Any,
        delete: bool,
        max_delete: int | None,
        backup: bool,
        backup_dir: str | None,
        suffix: str | None,
        remove_source: bool,
        **kwargs: Any,
    ) -> Any:
        if max_delete is not None and not delete:
            raise UserError("--max-delete needs --delete", ExitCode.USAGE)
        if suffix is not None and not backup and backup_dir is None:
            raise UserError("--suffix needs --backup or --backup-dir", ExitCode.USAGE)
        if suffix is not None and ("/" in suffix or (not suffix and backup_dir is None)):
            raise UserError(
                f"--suffix {suffix!r}: give text without a slash that makes another name", ExitCode.USAGE
            )
        if backup_dir == "":
            raise UserError("--backup-dir is empty: name a directory", ExitCode.USAGE)
        kept = None
        if backup or backup_dir is not None:
            end = ("" if backup_dir is not None else "~") if suffix is None else suffix
            kept = BackupOptions(directory=backup_dir, suffix=os.fsencode(end))
        if delete and remove_source:
            raise UserError(
                "--delete and --remove-source exclude each other: the second run would delete the copy",
                ExitCode.USAGE,
            )
        return function(*args, after=After(delete, max_delete, kept, remove_source), **kwargs)

    wrapped: Callable[..., Any] = with_after
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def refuse_after(where: str) -> None:
    """Raise UserError for these options where a copy does not have them."""
    refuse(OPTIONS, f"for copies on one machine, and this copy is {where}: omit it")


def check_deletion(
    after: After, sources: tuple[str, ...], selected: Selected, *, pulls: bool = False
) -> None:
    """Raise UserError for deletions that are not clearly meant."""
    if after.remove_source and selected.copy_links:
        raise UserError(
            "--remove-source and --copy-links exclude each other: what links lead to would be removed, or the links alone",
            ExitCode.USAGE,
        )
    if not after.delete:
        return
    # What a server shares is looked at there.
    if len(sources) > 1 or (not pulls and not os.path.isdir(sources[0])):
        raise UserError(
            "--delete makes DST like one directory: give a single SRC that is a directory", ExitCode.USAGE
        )
    if selected.names is not None:
        raise UserError(
            "--delete and --files-from exclude each other: all that the list lacks would be deleted",
            ExitCode.USAGE,
        )
