"""Checks of what this machine can run.

Arrives: nothing; each check probes the machine.
Leaves: findings: ok, limited or missing, the reason, and the fix.
Must not know: how findings are printed.

A check uses the real component where that takes well under a second, in a namespace that is removed afterwards.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from waystage.topology import Host, Link, Switch, Topology
from waystage.worlds.base import WorldError
from waystage.worlds.lab.commands import SEARCH_PATH, run

Status = Literal["ok", "limited", "missing"]

LOW_MEMORY_BYTES = 4 << 30
"""Enough for the demo: six ranks, two stagings and the switches."""

MPI_PROGRAM = """
#include <mpi.h>
int main(int argc, char **argv) {
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Finalize();
    return size == 2 ? 0 : 1;
}
"""

BPF_PROGRAM = """
__attribute__((section("tc"), used)) int pass(void *skb) { return 0; }
__attribute__((section("license"), used)) char _license[] = "GPL";
"""


CAP_NET_ADMIN = 12
"""Its bit in a set of capabilities (capabilities(7), linux/capability.h)."""

NFT_RULES = (
    "table inet waystage { "
    "chain out { type nat hook output priority -100; tcp dport 9 redirect to :10; } "
    "chain in { type filter hook prerouting priority -150; ip protocol tcp tproxy ip to :10; } }"
)


@dataclass(frozen=True)
class Finding:
    """`needed`: the main job requires it. `remedy` is empty if there is none."""

    name: str
    needed: bool
    purpose: str
    status: Status
    detail: str
    remedy: str = ""


class Trouble(Exception):
    """Why a check failed, and its remedy."""

    def __init__(self, detail: str, remedy: str = "", status: Status = "missing") -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy
        self.status: Status = status


@dataclass(frozen=True)
class Check:
    """`look` returns its finding, or raises Trouble."""

    name: str
    needed: bool
    purpose: str
    look: Callable[[], str]

    def finding(self) -> Finding:
        try:
            detail = self.look()
        except Trouble as trouble:
            status, detail, remedy = trouble.status, trouble.detail, trouble.remedy
            return Finding(self.name, self.needed, self.purpose, status, detail, remedy)
        except (OSError, WorldError) as error:
            return Finding(self.name, self.needed, self.purpose, "missing", str(error))
        except Exception as error:
            # Whatever breaks while it is tried does not work here: that is the finding.
            detail = f"{type(error).__name__}: {error}"
            return Finding(self.name, self.needed, self.purpose, "missing", detail)
        return Finding(self.name, self.needed, self.purpose, "ok", detail)


def _programs(**packages: str) -> None:
    """Raises Trouble with all missing programs and their packages."""
    missing = [name for name in packages if shutil.which(name, path=SEARCH_PATH) is None]
    if missing:
        wanted = " ".join(dict.fromkeys(packages[name] for name in missing))
        verb = "is" if len(missing) == 1 else "are"
        raise Trouble(f"{', '.join(missing)} {verb} not installed", f"apt-get install {wanted}")


def _version(name: str, package: str, *arguments: str) -> str:
    _programs(**{name: package})
    lines = run([name, *(arguments or ("--version",))], check=False).splitlines()
    return lines[0].strip() if lines else f"{name} is installed"


def _root() -> str:
    if os.geteuid() != 0:
        raise Trouble("not running as root", "run with sudo, or as root in a container")
    return "running as root"


def _need_root() -> None:
    if os.geteuid() != 0:
        raise Trouble("needs root to check", "run 'sudo waystage doctor'")


def _namespaces() -> str:
    _need_root()
    _programs(unshare="util-linux")
    run(["unshare", "--net", "--uts", "--mount", "true"])
    return "created network, UTS and mount namespaces"


def _links() -> str:
    _need_root()
    _programs(ip="iproute2", tc="iproute2", ethtool="ethtool")
    script = (
        "ip link add wa mtu 9000 type veth peer name wb mtu 9000 && ip link set wa up && ip link set wb up && "
        "tc qdisc add dev wa root tbf rate 100mbit burst 64kb latency 30ms && ethtool -K wa tx off gso off"
    )
    try:
        run(["unshare", "--net", "sh", "-c", script])
    except WorldError as error:
        raise Trouble(str(error), "boot a kernel with veth and sch_tbf") from None
    return "created a veth pair with a rate limit (TBF)"


def _open_vswitch() -> str:
    _programs(**{"ovsdb-server": "openvswitch-switch", "ovs-vswitchd": "openvswitch-switch"})
    return _version("ovs-vswitchd", "openvswitch-switch")


def _cluster() -> str:
    _need_root()
    from waystage.worlds.lab.lab import Lab

    topology = Topology.build(
        "doctor",
        [Host(name="one"), Host(name="two")],
        [Switch(name="s", dpid=1)],
        [
            Link(a="one", a_port=1, b="s", b_port=1, capacity_bps=100_000_000),
            Link(a="two", a_port=1, b="s", b_port=2, capacity_bps=100_000_000),
        ],
    )
    began = time.monotonic()
    with Lab(f"doctor{os.getpid()}"[:16], topology) as lab:
        lab.check()
        took = time.monotonic() - began
    return f"two hosts and an Open vSwitch bridge (userspace datapath) started in {took:.1f} s"


def _mpi() -> str:
    _programs(mpirun="openmpi-bin", mpicc="libopenmpi-dev")
    version = _version("mpirun", "openmpi-bin")
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "two.c"), Path(folder, "two")
        source.write_text(MPI_PROGRAM, encoding="ascii")
        run(["mpicc", "-o", str(binary), str(source)])
        run(
            ["mpirun", "--oversubscribe", "-n", "2", str(binary)],
            env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        )
    return f"{version}: compiled and ran a program on two ranks"


def _backplane() -> str:
    from waystage.backplane import Backplane, BackplaneConfig

    began = time.monotonic()
    with Backplane.open(BackplaneConfig()):
        took = time.monotonic() - began
    return f"a Zenoh session opened in {took * 1000:.0f} ms"


def _io_library() -> str:
    path = Path(__file__).parents[1] / "data" / "lib" / "libwaystage_io.so"
    if not path.is_file():
        raise Trouble(f"{path} is missing", "make build")
    try:
        version: int = ctypes.CDLL(str(path)).ws_io_abi()
    except (OSError, AttributeError) as error:
        raise Trouble(f"it does not load: {error}", "make build") from error
    return f"{path.name}, interface {version}"


def _pages() -> str:
    from waystage import shipped

    docs, experiments = shipped.folder("docs"), shipped.folder("experiments")
    if docs is None or experiments is None:
        raise Trouble("the wheel was built without pages and experiments", "make dist", "limited")
    return f"{docs} and {experiments}"


def _native() -> str:
    try:
        import waystage._native as native
    except ImportError as error:
        raise Trouble(f"the compiled module is missing: {error}", "make build") from None
    return f"waystage._native {native.__version__}"


def _machine() -> str:
    from waystage.machine import describe

    machine = describe()
    found = f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, kernel {machine['kernel']}"
    if machine["cores"] < 2 or machine["memory_bytes"] < LOW_MEMORY_BYTES:
        raise Trouble(
            found, "the demo needs 2 cores and 4 GiB; runs here will be marked as short of CPU", "limited"
        )
    return found


def _ebpf() -> str:
    _programs(clang="clang", bpftool="bpftool")
    if not Path("/sys/kernel/btf/vmlinux").exists():
        raise Trouble("the kernel has no BTF", "boot a kernel built with CONFIG_DEBUG_INFO_BTF", "limited")
    _need_root()
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "pass.c"), Path(folder, "pass.o")
        source.write_text(BPF_PROGRAM, encoding="ascii")
        run(["clang", "-O2", "-target", "bpf", "-c", str(source), "-o", str(binary)])
        attach = (
            f"tc qdisc add dev lo clsact && tc filter add dev lo egress bpf direct-action obj {binary} sec tc"
        )
        run(["unshare", "--net", "--mount", "sh", "-c", attach])
    return "compiled a classifier and loaded it at a clsact hook"


def _fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        remedy = "modprobe fuse, or start the container with --device /dev/fuse"
        raise Trouble(f"/dev/fuse cannot be opened: {error.strerror}", remedy) from None
    return "opened /dev/fuse"


def _tun() -> str:
    _need_root()
    _programs(ip="iproute2")
    try:
        run(["unshare", "--net", "ip", "tuntap", "add", "wt0", "mode", "tun"])
    except WorldError as error:
        remedy = "modprobe tun, or start the container with --device /dev/net/tun --cap-add NET_ADMIN"
        raise Trouble(str(error), remedy) from None
    return "created a TUN device"


def _transparent_proxy() -> str:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (effective,) = (int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    if not effective >> CAP_NET_ADMIN & 1:
        raise Trouble(
            "no CAP_NET_ADMIN, which --tproxy and nftables rules need",
            "run as root, or give the service AmbientCapabilities=CAP_NET_ADMIN; --socks and --forward need none",
        )
    _programs(nft="nftables", unshare="util-linux")
    try:
        run(["unshare", "--net", "nft", NFT_RULES])
    except WorldError as error:
        remedy = "boot a kernel with CONFIG_NFT_REDIR and CONFIG_NFT_TPROXY, or use --socks and --forward"
        raise Trouble(str(error), remedy) from None
    return "CAP_NET_ADMIN; loaded REDIRECT and TPROXY rules in a namespace"


def _slurm() -> str:
    _programs(slurmctld="slurmctld", slurmd="slurmd", munged="munge")
    return _version("slurmctld", "slurmctld", "-V")


def _flow_agent() -> str:
    from waystage.flows import socket_path
    from waystage.local_client import LocalClient, LocalRpcError

    path = socket_path()
    if path is None:
        raise Trouble("WAYSTAGE_FLOWS is none", "unset WAYSTAGE_FLOWS", "limited")
    if not path.exists():
        remedy = "run a waystage controller on this node, or set WAYSTAGE_FLOWS to its socket"
        raise Trouble(f"no agent listens at {path}: flows of this node are not reported", remedy, "limited")
    try:
        began = time.monotonic()
        with LocalClient(path, timeout_s=2.0) as client:
            client.send(b'{"type":"show"}')
            if client.receive(2.0) is None:
                raise Trouble(f"{path} does not answer within 2 s", "restart the controller of this node")
    except (LocalRpcError, EOFError, OSError) as error:
        raise Trouble(str(error) or f"{path} disconnects", "restart the controller of this node") from None
    return f"{path} answered in {(time.monotonic() - began) * 1000:.0f} ms"


def _completion() -> str:
    path = shutil.which("waystage")
    if path is None:
        raise Trouble(
            "the command waystage is not on the PATH",
            f"export PATH={Path(sys.executable).parent}:$PATH",
            "limited",
        )
    return path


CHECKS: tuple[Check, ...] = (
    Check("machine", True, "everything", _machine),
    Check("command", False, "running waystage by name", _completion),
    Check("native module", True, "probes, staging", _native),
    Check("I/O library", False, "collective I/O, coupling by name", _io_library),
    Check("pages", False, "what messages refer to", _pages),
    Check("backplane", True, "events between controllers", _backplane),
    Check("root", True, "the lab", _root),
    Check("namespaces", True, "hosts of the lab", _namespaces),
    Check("links", True, "links of the lab", _links),
    Check("Open vSwitch", True, "switches of the lab", _open_vswitch),
    Check("lldpd", True, "topology discovery", lambda: _version("lldpd", "lldpd", "-v")),
    Check("cluster", True, "a complete lab", _cluster),
    Check("Open MPI", True, "programs of the jobs", _mpi),
    Check("eBPF", False, "tags on the packets of MPI programs", _ebpf),
    Check("FUSE", False, "the emulated striped file system", _fuse),
    Check("TUN", False, "the emulated wide-area path", _tun),
    Check("transparent proxy", False, "waystage proxy --redirect and --tproxy", _transparent_proxy),
    Check("flow agent", False, "flows of this node in waystage flows, and their pacing", _flow_agent),
    Check("Slurm", False, "notifications from a batch system", _slurm),
)


def ready(findings: list[Finding]) -> bool:
    """Whether the main job can run."""
    return all(finding.status != "missing" for finding in findings if finding.needed)
