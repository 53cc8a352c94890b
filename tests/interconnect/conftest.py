"""A private Open vSwitch: its own daemons, database, namespace and run directory, gone after the test."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import WAIT_S, halt, wait_until
from openflow_peer import Recorder
from openflow_square import World
from waystage.interconnect import openflow_connection
from waystage.interconnect.openflow import OpenFlowServer

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class PrivateOvs:
    """Bridges with the userspace datapath in one namespace; hosts in separate namespaces."""

    def __init__(self, run_dir: Path, name: str) -> None:
        self.run_dir = run_dir
        self.name = name
        self.namespaces: list[str] = []
        self.daemons: list[subprocess.Popen[bytes]] = []
        self._env = {**os.environ, "OVS_RUNDIR": str(run_dir), "OVS_LOGDIR": str(run_dir)}

    def start(self) -> None:
        self.add_namespace(self.name)
        database = self.run_dir / "conf.db"
        self.run("ovsdb-tool", "create", str(database), "/usr/share/openvswitch/vswitch.ovsschema")
        self._daemon("ovsdb-server", str(database), f"--remote=punix:{self.run_dir}/db.sock", "--log-file")
        wait_until((self.run_dir / "db.sock").exists, what="the database's socket")
        self._daemon("ovs-vswitchd", f"unix:{self.run_dir}/db.sock", "--log-file")
        self.vsctl("init")

    def stop(self) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
        for name in self.namespaces:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def add_namespace(self, name: str) -> None:
        self.run("ip", "netns", "add", name, inside=False)
        self.namespaces.append(name)
        # The kernel's own neighbour discovery on every device would be noise on the links.
        quiet = ("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
        self.run("ip", "netns", "exec", name, "sysctl", "-qw", *quiet, inside=False)
        self.run("ip", "-n", name, "link", "set", "lo", "up", inside=False)

    def add_switch(self, name: str, dpid: int, versions: str = "OpenFlow13,OpenFlow14,OpenFlow15") -> None:
        self.vsctl(
            *("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", "fail_mode=secure"),
            *(f"protocols={versions}", f"other-config:datapath-id={dpid:016x}"),
        )

    def add_cable(self, a: str, a_port: int, b: str, b_port: int) -> None:
        """A veth between two switches; its ends are called SWITCH-PORT."""
        ends = f"{a}-{a_port}", f"{b}-{b_port}"
        self.run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for switch, port, end in ((a, a_port, ends[0]), (b, b_port, ends[1])):
            self.run("ip", "link", "set", end, "up")
            self.vsctl("add-port", switch, end, "--", "set", "interface", end, f"ofport_request={port}")

    def add_host(self, name: str, ip: str, mac: str, switch: str, port: int) -> str:
        """A host namespace on a switch port; gives the namespace's name."""
        namespace, end = f"{self.name}-{name}", f"{switch}-{port}"
        self.add_namespace(namespace)
        self.run(
            *("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "address", mac),
            *("netns", namespace),
        )
        self.run("ip", "link", "set", end, "up")
        self.vsctl("add-port", switch, end, "--", "set", "interface", end, f"ofport_request={port}")
        self.run("ip", "-n", namespace, "addr", "add", f"{ip}/24", "dev", "eth0", inside=False)
        self.run("ip", "-n", namespace, "link", "set", "eth0", "up", inside=False)
        self.run("ip", "netns", "exec", namespace, "ethtool", "-K", "eth0", "tx", "off", inside=False)
        return namespace

    def connect(self, *switches: str, port: int) -> None:
        for switch in switches:
            self.vsctl(
                *("set-controller", switch, f"tcp:127.0.0.1:{port}", "--"),
                *("set", "controller", switch, "max_backoff=1000", "connection_mode=out-of-band"),
            )

    def disconnect(self, switch: str) -> None:
        """Lose the control channel. Open vSwitch empties a switch that has no controller at all, so point it at a closed port."""
        self.connect(switch, port=1)

    def pause(self) -> None:
        """Stop the switches' process without ending it."""
        halt(self._pid("ovs-vswitchd"))

    def resume(self) -> None:
        os.kill(self._pid("ovs-vswitchd"), signal.SIGCONT)

    def _pid(self, daemon: str) -> int:
        return int((self.run_dir / f"{daemon}.pid").read_text())

    def flows(self, switch: str) -> str:
        return self.run("ovs-ofctl", "-O", "OpenFlow13,OpenFlow14", "--no-stats", "dump-flows", switch)

    def groups(self, switch: str) -> str:
        return self.run("ovs-ofctl", "-O", "OpenFlow13,OpenFlow14", "dump-groups", switch)

    def ping(self, namespace: str, ip: str, *, count: int = 1, timeout_s: float = 30) -> bool:
        command = ("ip", "netns", "exec", namespace, "ping", "-q", "-i", "0.05", "-c", str(count))
        return subprocess.run([*command, "-w", str(timeout_s), ip], capture_output=True).returncode == 0

    def vsctl(self, *arguments: str) -> str:
        return self.run("ovs-vsctl", f"--db=unix:{self.run_dir}/db.sock", "--timeout=60", *arguments)

    def run(self, *command: str, inside: bool = True) -> str:
        prefix = ("ip", "netns", "exec", self.name) if inside else ()
        done = subprocess.run([*prefix, *command], env=self._env, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def within(self, host: str = "") -> Iterator[None]:
        """Sockets made inside belong to the namespace of the switches, or of a host."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        other = os.open(f"/run/netns/{f'{self.name}-{host}' if host else self.name}", os.O_RDONLY)
        try:
            assert _libc.setns(other, _CLONE_NEWNET) == 0
            yield
        finally:
            assert _libc.setns(own, _CLONE_NEWNET) == 0
            os.close(own)
            os.close(other)

    def _daemon(self, *command: str) -> None:
        full = ["ip", "netns", "exec", self.name, *command, "--pidfile"]
        daemon = subprocess.Popen(full, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.daemons.append(daemon)
        wait_until(lambda: (self.run_dir / f"{command[0]}.pid").exists(), what=f"{command[0]}'s start")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no stranger that says nothing and no silent switch: where a test wants little time, it says so."""
    monkeypatch.setattr(openflow_connection, "IDENTIFY_S", WAIT_S)
    monkeypatch.setattr(openflow_connection, "SEND_TIMEOUT_S", WAIT_S)


@pytest.fixture
def ovs(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PrivateOvs]:
    """A running private Open vSwitch without switches."""
    if os.geteuid() != 0 or shutil.which("ovs-vswitchd") is None:
        pytest.skip("needs root and Open vSwitch")
    # Unix socket names are short: not below pytest's long temporary path.
    run_dir = Path(f"/run/wst{os.getpid()}")
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(mode=0o700)
    fabric = PrivateOvs(run_dir, f"wst{os.getpid()}")
    try:
        fabric.start()
        yield fabric
    finally:
        fabric.stop()
        shutil.rmtree(run_dir, ignore_errors=True)


@pytest.fixture
def world(ovs: PrivateOvs, caplog: pytest.LogCaptureFixture) -> Iterator[World]:
    world = World(ovs)
    yield world
    if world.controller is not None:
        world.controller.stop()
    errors = [r.getMessage() for r in caplog.get_records("call") if r.levelname == "ERROR"]
    assert not errors, "the controller must meet nothing unforeseen"


@pytest.fixture
def seen() -> Recorder:
    return Recorder()


@pytest.fixture
def server(seen: Recorder) -> Iterator[OpenFlowServer]:
    server = OpenFlowServer(seen, ("127.0.0.1", 0))
    server.start()
    yield server
    server.stop()
