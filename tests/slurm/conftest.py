"""A lab with Slurm for the tests of a module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_support import USER, Cluster
from waystage.interconnect.graphml import read_topology
from waystage.slurm.settings import Hooks
from waystage.worlds.lab.lab import Lab, take_down
from waystage.worlds.lab.slurm import LabSlurm, available


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with _cluster("burst-buffer") as found:
        yield found


@pytest.fixture(scope="module")
def plain_cluster() -> Iterator[Cluster]:
    """Without burst buffers: job_submit, prolog and epilog stage."""
    with _cluster("job-submit") as found:
        yield found


@pytest.fixture(scope="module")
def epilog_cluster() -> Iterator[Cluster]:
    """The end of a job on its node waits while there is a file `hold` in the cluster's folder."""
    with _cluster("burst-buffer", epilog="while [ -e {folder}/hold ]; do sleep 0.1; done") as found:
        yield found


@contextmanager
def _cluster(hooks: Hooks, epilog: str = "") -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    if not available():
        pytest.skip("Slurm is not installed: scripts/packages tests")
    name = f"s{os.getpid()}"
    # Not below pytest's folder, which each run of pytest closes to other users.
    with tempfile.TemporaryDirectory(prefix="waystage-slurm-") as text:
        folder = Path(text)
        folder.chmod(0o755)
        os.chown(folder, USER, USER)
        program = folder / "epilog"
        if epilog:
            program.write_text(f"#!/bin/sh\n{epilog.format(folder=folder)}\nexit 0\n")
            program.chmod(0o755)
        try:
            with Lab(name, read_topology("paper"), host_bytes=64 << 20) as lab:
                slurm = LabSlurm(lab)
                slurm.start(hooks, extra_conf=f"Epilog={program}\n" if epilog else "")
                yield Cluster(lab, slurm, folder)
        finally:
            take_down(name)
