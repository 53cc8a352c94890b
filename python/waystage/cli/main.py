"""Entry point: runs the subcommand and maps each failure to one sentence and an exit status.

Arrives: the argument vector.
Leaves: the exit status of docs/reference/exit-codes.md.
Must not know: what a subcommand does.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from waystage import __version__
from waystage.cli.arrow import leave_pandas_out
from waystage.cli.common import ExitCode, UserError, refuse_empty_paths
from waystage.cli.examples import with_examples

SECTIONS: dict[str, dict[str, str]] = {
    "Move data": {
        "copy": "Copy a tree or a file, also between hosts: resumable, optionally verified.",
        "remote": "List, make, remove and rename in the directories of a server.",
        "verify": "Verify a copy against its source.",
        "compare": "Compare two trees or catalogs, or two runs.",
        "stage": "Stage a job's data in before it starts and out after it ended.",
        "restripe": "Lay out the files of a tree anew on their storage targets, or suggest how.",
    },
    "Read and describe trees": {
        "catalog": "Catalog a tree and query it without walking it again.",
        "load": "Read all files of a tree or catalog and report the rate of each storage target.",
        "profile-targets": "Measure how many concurrent loaders suit a storage target.",
        "dedup": "Measure how much data of a tree is redundant.",
        "augment": "Augment images for training.",
    },
    "Cross a wide-area network": {
        "serve": "Serve copies and TCP connections to other hosts.",
        "proxy": "Relay TCP connections over a long or lossy path.",
        "probe": "Measure the path to another host: RTT, and per direction loss, rate and bottleneck.",
    },
    "Run MPI programs": {
        "mpi": "Run an MPI program with collective I/O through aggregators, tags on its packets, and a profile.",
        "tags": "Let packets of MPI messages carry what they belong to, and decode it.",
        "profile": "Record the communication between the ranks of an MPI program.",
        "pattern": "Show, convert and merge communication patterns.",
        "aggregator": "Gather and write the collective I/O of a node's MPI ranks.",
    },
    "See and control flows": {
        "controller": "Run a site controller.",
        "view": "Show a site or a recorded run in a browser.",
        "top": "Show a site in the terminal.",
        "flows": "List running flows, and pace them.",
        "events": "Watch, publish and describe events.",
        "state": "Show, save and compare the state of a controller.",
        "notify": "Notify the controllers that a job or its staging starts or ends.",
        "slurm": "Install, check and remove the hooks that stage data and report jobs in Slurm.",
        "stager": "Run the staging daemon.",
    },
    "Try and measure": {
        "run": "Run an experiment and compare its policies.",
        "report": "Print the results of a run and rewrite its report.",
        "lab": "Start, inspect and remove an emulated cluster.",
        "bench": "Run benchmarks.",
    },
    "This installation": {
        "doctor": "Check what this machine can run, what is missing, and how to install it.",
        "completion": "Print the completion script for a shell.",
    },
}
"""Section of the help -> name -> one line of help. Each name is a module of this package."""

SUBCOMMANDS: dict[str, str] = {name: text for part in SECTIONS.values() for name, text in part.items()}

MOST_SUGGESTIONS = 3


class ReaderGone(Exception):
    """The reader of stdout or stderr has left, as `head` does. Not an OSError, which click would end with status 1."""


class LazyGroup(click.Group):
    """A group whose subcommands are modules of this package, imported when they are called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise ReaderGone from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module = importlib.import_module(f"waystage.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return with_examples(refuse_empty_paths(command), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(_no_command(args[0]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, SUBCOMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in names.items()])


def _no_command(given: str) -> str:
    """The error for a mistyped subcommand, with the names that are like it."""
    import difflib

    near = difflib.get_close_matches(given, SUBCOMMANDS, MOST_SUGGESTIONS, 0.6)
    found = f"there is no command {given!r}"
    return f"{found}: did you mean {' or '.join(repr(name) for name in near)}?" if near else found


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="waystage")
def group() -> None:
    """Coordinate data movement in high-performance computing.

    `waystage COMMAND --help` explains a command and shows examples.

    Exit status: 0 success, 1 failure, 2 usage error, 3 bad input, 4 missing program or library,
    5 needs root, 6 busy, 7 invalid result, 8 partial success, 75 time is up, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `waystage` and exit with its status."""
    _open_closed_streams()
    ended: list[int] = []
    atexit.register(_leave_at_once, ended)
    leave_pandas_out()
    ended.append(run(list(sys.argv[1:] if arguments is None else arguments)))
    sys.exit(ended[0])


def _open_closed_streams() -> None:
    """Connect standard streams that were closed, as by `>&-`, to /dev/null: a file opened later would get the descriptor
    of one, and what a child process prints would go into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _leave_at_once(ended: list[int]) -> None:
    """The last exit function: ends the process without finalizing the interpreter.

    Threads that must end have been joined, and other exit functions have run. What remains is to free memory, a fifth
    of the time of `waystage --help`. Zenoh's threads outlive its sessions and may still acquire the GIL: a finalizing
    interpreter ends such a thread by unwinding its stack, which Rust turns into abort().
    """
    if not ended:
        return
    if "logging" in sys.modules:
        import logging

        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone: `run` has said so already
            stream.flush()
    os._exit(ended[0])


def run(arguments: list[str]) -> int:
    """Run `waystage arguments...` and return its exit status. Prints at most one error."""
    _unwind_on_termination()
    try:
        return _run(arguments)
    except (ReaderGone, BrokenPipeError):
        _leave_broken_pipes()
        return ExitCode.OK


def _run(arguments: list[str]) -> int:
    try:
        status = group.main(args=arguments, prog_name="waystage", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else ExitCode.OK
    except UserError as error:
        return _fail(arguments, error.message, error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a subcommand
        click.echo(error.format_message())
        return ExitCode.OK
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
        return _fail(arguments, error.format_message() + where, ExitCode.USAGE)
    except click.FileError as error:
        return _fail(arguments, error.format_message(), ExitCode.BAD_INPUT)
    except click.ClickException as error:
        return _fail(arguments, error.format_message(), ExitCode.FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _fail(arguments, "interrupted", ExitCode.INTERRUPTED)
    except (ReaderGone, BrokenPipeError):
        raise
    except Exception as error:
        from waystage.cli.errors import explain

        return _fail(arguments, *explain(error))


def _fail(arguments: list[str], message: str, code: ExitCode) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    try:
        if "--json" in own:
            import json

            click.echo(json.dumps({"error": message, "exit_code": int(code)}, ensure_ascii=False))
        else:
            click.echo(f"waystage: error: {message}", err=True)
    except BrokenPipeError:
        _leave_broken_pipes()
    return int(code)


def _leave_broken_pipes() -> None:
    """Send what remains in buffers to /dev/null: the interpreter would complain about it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unwind_on_termination() -> None:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that a lab is removed."""

    def interrupt(signum: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)
