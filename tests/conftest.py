"""What every test may use: the command line in a scratch directory, and the reasons to skip.

Tests marked `lab` bring up network namespaces and Open vSwitch. They are skipped, with the reason,
where this machine cannot do that.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness import Ran, Waystage, command, ran
from remote_copy_support import Site

REPOSITORY = Path(__file__).parents[1]

# No deadline: on a busy machine with two cores time says nothing about the code.
settings.register_profile("waystage", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("waystage")

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

    def run(*arguments: str, input: str | None = None, timeout: float = 60, **env: str) -> Ran:
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


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY
