"""Which exit status each exception has: the one place that maps them.

Arrives: an exception that a subcommand raised.
Leaves: one sentence for the user, and an exit status of docs/reference/exit-codes.md.
Must not know: which subcommand raised it.
"""

from __future__ import annotations

import os
import traceback

from waystage.cli.common import ExitCode

ERRORS: dict[str, ExitCode] = {
    "waystage.events.base.EventError": ExitCode.BAD_INPUT,
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
    "waystage._native.AggregatorError": ExitCode.FAILED,
    "waystage._native.LossMeterError": ExitCode.FAILED,
    "waystage._native.CopyError": ExitCode.FAILED,
    "waystage._native.WanError": ExitCode.FAILED,
    "waystage.wan.errors.WanConfigError": ExitCode.BAD_INPUT,
    "waystage.trees.TreeError": ExitCode.BAD_INPUT,
    "waystage._native.AugmentError": ExitCode.FAILED,
    "waystage.augment.options.AugmentOptionError": ExitCode.USAGE,
    "waystage._native.DedupPartError": ExitCode.BAD_INPUT,
    "waystage._native.DedupError": ExitCode.FAILED,
    "waystage.restripe.errors.LayoutTextError": ExitCode.BAD_INPUT,
    "waystage.restripe.errors.ReplicaError": ExitCode.FAILED,
    "waystage.gfarm.GfarmMissing": ExitCode.MISSING,
    "waystage.gfarm.GfarmError": ExitCode.FAILED,
    "waystage.staging.errors.StagingError": ExitCode.FAILED,
    "waystage.staging.errors.Unreachable": ExitCode.FAILED,
    "waystage.staging.errors.Refused": ExitCode.BAD_INPUT,
    "waystage.staging.errors.QuotaExceeded": ExitCode.BUSY,
    "waystage.staging.errors.Invalid": ExitCode.USAGE,
    "waystage.ranks.RankError": ExitCode.USAGE,
    "waystage.nodes.errors.NodesError": ExitCode.FAILED,
    "waystage.nodes.errors.NodesMissing": ExitCode.MISSING,
    "waystage.nodes.errors.NodesRefused": ExitCode.BAD_INPUT,
    "waystage.slurm.errors.SlurmError": ExitCode.FAILED,
    "waystage.slurm.errors.SlurmConfigError": ExitCode.BAD_INPUT,
    "waystage.slurm.errors.SlurmMissing": ExitCode.MISSING,
}
"""Exceptions whose message is written for the user, by class, and their status. By name, so that mapping an error of
one package imports no other; a test checks that each class exists. A subclass's own entry comes first."""

KINDS: dict[str, ExitCode] = {
    "busy": ExitCode.BUSY,
    "ends": ExitCode.BAD_INPUT,
    "other-journal": ExitCode.BAD_INPUT,
    "input": ExitCode.BAD_INPUT,
    "too-many": ExitCode.PARTIAL,
}
"""Statuses by the attribute `kind` of an error of the data plane, before that of its class."""


def status_of(error: Exception) -> ExitCode | None:
    """The exit status of an error whose message is written for the user; None for any other."""
    for kind in type(error).__mro__:
        code = ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return KINDS.get(getattr(error, "kind", ""), code)
    return None


def explain(error: Exception) -> tuple[str, ExitCode]:
    """The sentence and the exit status of an exception."""
    if os.environ.get("WAYSTAGE_DEBUG"):
        traceback.print_exception(error)
    code = status_of(error)
    if code is not None:
        return str(error), code
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}", ExitCode.FAILED
    name = type(error).__name__
    return (
        f"internal error, {name}: {error} (set WAYSTAGE_DEBUG=1 for a traceback, and report it)",
        ExitCode.FAILED,
    )
