"""Workers in Slurm jobs, one a job, started by dask-jobqueue.

Arrives: a number of jobs, a directory that all nodes reach.
Leaves: a scheduler in this process with TLS, and jobs that end with it.
Must not know: what the work is.

What a site's jobs need (queue, account, walltime, interface) is in dask-jobqueue's own file,
~/.config/dask/jobqueue.yaml. Where it says nothing of cores and memory, a job has a whole node.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waystage.nodes.errors import NodesError, NodesMissing

WHOLE_NODE = ["--nodes=1", "--exclusive", "--mem=0"]
NOT_SAID = ["--cpus-per-task", "--mem="]

WORKER = ["--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
"""Dask's pages of a worker have no TLS."""

DEATH_S = 60
"""A worker whose scheduler is gone ends after this."""


@contextmanager
def cluster(jobs: int, directory: Path) -> Iterator[Any]:
    """A scheduler whose workers are to run in Slurm jobs; `scale(jobs=N)` submits them. Raises NodesError."""
    if shutil.which("sbatch") is None:
        raise NodesMissing(
            "--slurm needs Slurm's sbatch, which is not on this host: run the command on a login node, or start workers"
            " yourself and give --scheduler"
        )
    with tempfile.TemporaryDirectory(prefix=".waystage-slurm-", dir=directory) as secrets:
        made = make(secrets)
        try:
            yield made
        finally:
            made.close(timeout=20)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Importing dask_jobqueue makes Ctrl-C raise SystemExit in the whole process: the handler of before comes back."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def make(secrets: str) -> Any:
    """The cluster, without jobs yet; certificates for workers are written to the private directory `secrets`."""
    try:
        import dask

        with _signals_kept():
            from dask_jobqueue.slurm import SLURMCluster
        from distributed.security import Security

        security = _in_files(Security.temporary(), Path(secrets))  # type: ignore[no-untyped-call]
    except ImportError as error:
        raise NodesMissing(
            f"--slurm needs dask-jobqueue and cryptography ({error}): install them with pip install 'waystage[nodes]'"
        ) from None
    said = dask.config.get("jobqueue.slurm.cores", None), dask.config.get("jobqueue.slurm.memory", None)
    options: dict[str, Any] = {}
    if said == (None, None):
        extra = dask.config.get("jobqueue.slurm.job-extra-directives", None) or []
        options = {
            "cores": 1,
            # Dask's own limit would kill workers for the page cache of what they read.
            "memory": "1 TiB",
            "job_directives_skip": NOT_SAID,
            "job_extra_directives": [*WHOLE_NODE, *extra],
        }
    try:
        return SLURMCluster(
            processes=1,
            protocol="tls://",
            security=security,
            shared_temp_directory=secrets,
            scheduler_options={
                **(dask.config.get("jobqueue.slurm.scheduler-options", None) or {}),
                "dashboard": False,
                "dashboard_address": "127.0.0.1:0",
            },
            worker_extra_args=[*WORKER, *(dask.config.get("jobqueue.slurm.worker-extra-args", None) or [])],
            death_timeout=DEATH_S,
            job_name="waystage",
            **options,
        )
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise NodesError(
            f"no scheduler can be started for Slurm jobs ({error}): see ~/.config/dask/jobqueue.yaml"
        ) from None


def _in_files(made: Any, folder: Path) -> Any:
    """The same certificates and keys, each in a file of the private directory: job scripts are shown to others."""
    from distributed.security import Security

    paths: dict[str, str] = {}
    for role in ("scheduler", "worker", "client"):
        for name, text in made.get_tls_config_for_role(role).items():
            if not text or "\n" not in text:
                continue
            option = "tls_ca_file" if name == "ca_file" else f"tls_{role}_{name}"
            path = folder / f"{option}.pem"
            with open(
                path, "w", encoding="ascii", opener=lambda file, flags: os.open(file, flags, 0o600)
            ) as file:
                file.write(text)
            paths[option] = str(path)
    return Security(require_encryption=True, **paths)  # type: ignore[no-untyped-call]
