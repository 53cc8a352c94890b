"""`waystage copy --dry-run`: what would be copied, the read rate of the source, the rate of the path.

Arrives: arguments; the result of a dry run.
Leaves: arguments with explicit option values; the result as text and as JSON.
Must not know: how a dry run works.
"""

from __future__ import annotations

from typing import Any, Protocol

import click

from waystage.cli.common import ExitCode, UserError

KINDS = {
    "f": "file",
    "h": "hard link",
    "l": "symbolic link",
    "p": "FIFO",
    "b": "block device",
    "c": "character device",
}

WORDS = {"plan": "would copy", "disk": "read", "network": "carried"}

REMARKS = {
    "plan": "",
    "disk": "; nothing was sent or written",
    "network": "; sent synthetic data, nothing was read or written",
}


class Dry(Protocol):
    """A dry run, local or between hosts."""

    def planned(self) -> list[tuple[bytes, str, int]]: ...


class DryRunCommand(click.Command):
    """Allows `--dry-run` and `-n` without a value, which click would take from the next argument."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, with `--dry-run=plan` in their place."""
        end = args.index("--") if "--" in args else len(args)
        options = ["--dry-run=plan" if each in ("--dry-run", "-n") else each for each in args[:end]]
        return super().parse_args(ctx, options + args[end:])


def refuse_network(what: str | None) -> None:
    """Raise UserError for a dry run that requires two hosts."""
    if what == "network":
        raise UserError(
            "--dry-run=network measures the path to another host, and this copy is local: use --dry-run=disk",
            ExitCode.USAGE,
        )


def about_dry_run(dry: Dry, what: str | None) -> tuple[dict[str, Any], list[str]]:
    """The result as JSON, and the paths as text; empty if it was not a dry run."""
    from waystage.display import named

    if what is None:
        return {"dry_run": None}, []
    planned = [
        named(path) | {"kind": KINDS.get(letter, letter), "bytes": size}
        for path, letter, size in dry.planned()
    ]
    deleted = [
        named(path) | {"kind": "directory" if letter == "d" else KINDS.get(letter, letter), "bytes": size}
        for path, letter, size in getattr(dry, "would_delete", ())
    ]
    value = {"dry_run": what, "would_copy": planned, "would_delete": deleted}
    listing = [str(each["path"]) for each in planned] + [f"delete {each['path']}" for each in deleted]
    return value, listing if what == "plan" else []
