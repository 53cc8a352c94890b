"""What every test may use: the command line in a scratch directory, and the reasons to skip.

Tests marked `lab` bring up network namespaces and Open vSwitch. They are skipped, with the reason,
where this machine cannot do that.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from harness import Ran, Waystage, command, ran
from remote_copy_support import Site

REPOSITORY = Path(__file__).parents[1]

# No deadline: on a busy machine with two cores time says nothing about the code. The same inputs each time, so that a
# change is judged by what it changes; `make fuzz` and `make test-all` draw new ones.
settings.register_profile(
    "waystage",
    deadline=None,
    derandomize=not {"WAYSTAGE_RANDOM_TESTS", "WAYSTAGE_FUZZ_EXAMPLES"} & set(os.environ),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("waystage")

ALONE = {"slurm", "pfs", "view"}
"""Rooms whose tests wait for what an emulated storage, a scheduler or a browser does in time."""

LAB_COMMANDS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "ethtool": "ethtool",
    "ovs-vsctl": "openvswitch-switch",
    "ovs-vswitchd": "openvswitch-switch",
    "ovsdb-server": "openvswitch-switch",
}


def pytest_configure() -> None:
    """A shell starts what it puts in the background with SIGINT ignored, and so would be what tests interrupt."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_no_lab()
    if reason is not None:
        for item in items:
            if item.get_closest_marker("lab") is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


class _Scheduling(LoadScopeScheduling):
    """Of several processes one runs a whole file, whose tests may share a fixture, and one all clusters.

    Two clusters at once would contend for names, and for the processors that they measure.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "clusters" if _runs_alone(path) else path

    def _reschedule(self, node: WorkerController) -> None:
        """A process begins a test when it knows the next one, or that it is the last: it needs two, or the end."""
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def remove_node(self, node: WorkerController) -> str | None:
        """The test in which a process ended has failed: no other process runs it again and ends too."""
        units = self.assigned_work[node].values()
        running = next((test for unit in units for test, done in unit.items() if not done), None)
        if running is not None:
            next(unit for unit in units if running in unit)[running] = True
        super().remove_node(node)
        return running


@functools.cache
def _runs_alone(path: str) -> bool:
    return any(part in ALONE for part in Path(path).parts) or "mark.lab" in (REPOSITORY / path).read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling:
    """Called where tests run in several processes (`-n 2`)."""
    return _Scheduling(config, log)


def _why_no_lab() -> str | None:
    if os.geteuid() != 0:
        return "the lab needs root"
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = {p for c, p in LAB_COMMANDS.items() if shutil.which(c, path=path) is None}
    if missing:
        return f"the lab needs the Debian packages {' '.join(sorted(missing))}"
    # A container may have root and no right to make namespaces.
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    return None


@pytest.fixture
def waystage(tmp_path: Path) -> Waystage:
    """Run `waystage ARGUMENTS` as a user does, in a scratch directory; returns code, out and err."""

    def run(*arguments: str, input: str | None = None, timeout: float = 150, **env: str) -> Ran:
        return ran(command(*arguments), cwd=tmp_path, env={**os.environ, **env}, input=input, timeout=timeout)

    return run


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A server's site in a scratch folder; what it started has ended afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    site = Site(folder)
    yield site
    site.close()


@pytest.fixture(scope="session", autouse=True)
def _passable(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests that become another user pass through the folders above theirs, one more where several processes run tests."""
    base = tmp_path_factory.getbasetemp()
    for folder in (base, *base.parents):
        if not folder.name.startswith(("popen-", "pytest-")):
            break
        folder.chmod(0o755)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY
