"""The entry point: finds the subcommand, turns every failure into one sentence and an exit status.

Arrives: the argument vector.
Leaves: the exit status of docs/reference/exit-codes.md.
Must not know: what a subcommand does.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from waystage import __version__
from waystage.cli.common import ExitCode, UserError, refuse_empty_paths

SUBCOMMANDS: dict[str, str] = {
    "doctor": "Say what this machine can run, what is missing, and how to get it.",
    "lab": "Bring an emulated cluster up, look into it, take it down.",
    "run": "Run an experiment and compare its policies.",
    "report": "Print and draw the results of a run.",
    "compare": "Say what differs between two trees or catalogs, or between two runs.",
    "controller": "Run a controller of a site.",
    "notify": "Tell the controllers that a job or its staging starts or ends.",
    "events": "Watch, publish and describe events.",
    "state": "Show, save and compare what a controller knows.",
    "profile": "Record what the ranks of an MPI program send to one another.",
    "pattern": "Look into communication patterns, convert and merge them.",
    "catalog": "Know what a tree holds, and ask without walking it again.",
    "load": "Read what a tree or catalog names, and say how fast each target gave it.",
    "profile-targets": "Measure how many loaders a storage target takes.",
    "copy": "Copy a tree or a file, to another host too: resumable, verified on request, safe against kill -9.",
    "proxy": "Carry TCP connections of programs over a long or lossy path.",
    "serve": "Let other hosts copy from and to directories of this one.",
    "probe": "Measure the path to another host: round trip, loss, rate and what limits it, each way by itself.",
    "verify": "Say whether a copy holds what its source holds.",
    "dedup": "Say how much of a tree is there more than once.",
    "augment": "Make training images from images.",
    "bench": "Measure the figures that Waystage promises.",
    "completion": "Print the completion script of a shell.",
}
"""Name -> one line of help. A subcommand whose module is absent is not listed."""

ERRORS: dict[str, ExitCode] = {
    "waystage.events.EventError": ExitCode.BAD_INPUT,
    "waystage.topology.TopologyError": ExitCode.BAD_INPUT,
    "waystage.policies.base.PolicyError": ExitCode.BAD_INPUT,
    "waystage.interconnect.graphml_parser.GraphmlError": ExitCode.BAD_INPUT,
    "waystage.interconnect.per_pair.PlanError": ExitCode.BAD_INPUT,
    "waystage.jobs.hostlist.HostlistError": ExitCode.BAD_INPUT,
    "waystage.experiment.problems.ExperimentError": ExitCode.BAD_INPUT,
    "waystage.experiment.results.ResultError": ExitCode.BAD_INPUT,
    "waystage.jobs.database.DatabaseError": ExitCode.FAILED,
    "waystage.backplane.config.BackplaneError": ExitCode.FAILED,
    "waystage.interconnect.openflow_errors.AccessError": ExitCode.USAGE,
    "waystage.interconnect.openflow_errors.OpenFlowError": ExitCode.FAILED,
    "waystage.worlds.lab.errors.NotRoot": ExitCode.NEEDS_ROOT,
    "waystage.worlds.lab.errors.MissingProgram": ExitCode.MISSING,
    "waystage.worlds.lab.errors.LabBusy": ExitCode.BUSY,
    "waystage.patterns.errors.PatternError": ExitCode.BAD_INPUT,
    "waystage.profiler.errors.ProfilerError": ExitCode.FAILED,
    "waystage.profiler.errors.CompilerMissing": ExitCode.MISSING,
    "waystage.recorder.errors.RecorderError": ExitCode.FAILED,
    "waystage.recorder.errors.CompilerMissing": ExitCode.MISSING,
    "waystage.catalog.errors.CatalogError": ExitCode.BAD_INPUT,
    "waystage.catalog.errors.CatalogBusy": ExitCode.BUSY,
    "waystage.catalog.errors.DuckdbMissing": ExitCode.MISSING,
    "waystage.catalog.errors.SourceMissing": ExitCode.BAD_INPUT,
    "waystage.catalog.errors.BuildError": ExitCode.FAILED,
    "waystage.loader.errors.LoaderError": ExitCode.BAD_INPUT,
    "waystage.worlds.base.WorldError": ExitCode.FAILED,
    "waystage._native.ProbeError": ExitCode.FAILED,
    "waystage._native.CopyError": ExitCode.FAILED,
    "waystage._native.WanError": ExitCode.FAILED,
    "waystage.wan.errors.WanConfigError": ExitCode.BAD_INPUT,
    "waystage.trees.TreeError": ExitCode.BAD_INPUT,
    "waystage._native.AugmentError": ExitCode.FAILED,
    "waystage.augment.options.AugmentOptionError": ExitCode.USAGE,
    "waystage._native.DedupPartError": ExitCode.BAD_INPUT,
    "waystage._native.DedupError": ExitCode.FAILED,
    "waystage.ranks.RankError": ExitCode.USAGE,
}
"""Errors whose message is written for the user, by class, and their status. By name, so that an error in one
room imports no other; a test checks that each class exists. A subclass's own entry comes first."""


class LazyGroup(click.Group):
    """A group whose subcommands are modules of this package, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in SUBCOMMANDS if _module_exists(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS or not _module_exists(cmd_name):
            return None
        module = importlib.import_module(_module_of(cmd_name))
        command: click.Command = module.command
        return refuse_empty_paths(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name]) for name in self.list_commands(ctx)])


def _module_exists(name: str) -> bool:
    return importlib.util.find_spec(_module_of(name)) is not None


def _module_of(name: str) -> str:
    """The module of a subcommand: a dash in its name is an underscore there."""
    return f"waystage.cli.{name.replace('-', '_')}"


@click.command(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="waystage")
def group() -> None:
    """Coordinate how data moves in high-performance computing.

    Exit status: 0 ok, 1 failed, 2 usage, 3 bad input file, 4 something is missing on this machine,
    5 needs root, 6 busy, 7 ran but the result is invalid, 8 done but not all of it, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `waystage` and exit with its status."""
    ended: list[int] = []
    atexit.register(_leave_at_once, ended)
    ended.append(run(list(sys.argv[1:] if arguments is None else arguments)))
    sys.exit(ended[0])


def _leave_at_once(ended: list[int]) -> None:
    """Last of the exit functions: end without taking the interpreter down, where Zenoh was used.

    Its threads outlive its sessions and may still ask for the interpreter's lock. An interpreter that is
    going away ends such a thread by unwinding its stack, which Rust answers with abort().
    """
    if ended and "zenoh" in sys.modules:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # its reader is gone: `run` has said so already
                stream.flush()
        os._exit(ended[0])


def run(arguments: list[str]) -> int:
    """Run `waystage arguments...`; returns the exit status, having printed at most one error."""
    _unwind_on_termination()
    try:
        status = group.main(args=arguments, prog_name="waystage", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else ExitCode.OK
    except UserError as error:
        return _fail(arguments, error.message, error.exit_code)
    except click.UsageError as error:
        where = f" (see '{error.ctx.command_path} --help')" if error.ctx is not None else ""
        return _fail(arguments, error.format_message() + where, ExitCode.USAGE)
    except click.FileError as error:
        return _fail(arguments, error.format_message(), ExitCode.BAD_INPUT)
    except click.ClickException as error:
        return _fail(arguments, error.format_message(), ExitCode.FAILED)
    except (KeyboardInterrupt, click.Abort):
        return _fail(arguments, "interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output went away, as `head` does; the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        return _fail(arguments, *_explain(error))


def _explain(error: Exception) -> tuple[str, ExitCode]:
    """The sentence and status of an exception that no subcommand turned into a UserError."""
    if os.environ.get("WAYSTAGE_DEBUG"):
        traceback.print_exception(error)
    for kind in type(error).__mro__:
        code = ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return str(error), code
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", ExitCode.FAILED
    name = type(error).__name__
    return (
        f"internal error, {name}: {error} (set WAYSTAGE_DEBUG=1 to see where, and report it)",
        ExitCode.FAILED,
    )


def _fail(arguments: list[str], message: str, code: ExitCode) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in own:
        click.echo(json.dumps({"error": message, "exit_code": int(code)}, ensure_ascii=False))
    else:
        click.echo(f"waystage: error: {message}", err=True)
    return int(code)


def _unwind_on_termination() -> None:
    """SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that a lab is taken down on the way."""

    def interrupt(signum: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)
