"""A lab with Slurm for the tests of a module."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from slurm_support import USER, Cluster
from waystage.interconnect.graphml import read_topology
from waystage.worlds.lab.lab import Lab, take_down
from waystage.worlds.lab.slurm import LabSlurm, available


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    if not available():
        pytest.skip("Slurm is not installed: scripts/packages tests")
    folder = tmp_path_factory.mktemp("slurm")
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    os.chown(folder, USER, USER)
    name = f"s{os.getpid()}"
    try:
        with Lab(name, read_topology("paper"), host_bytes=64 << 20) as lab:
            slurm = LabSlurm(lab)
            slurm.start()
            yield Cluster(lab, slurm, folder)
    finally:
        take_down(name)
