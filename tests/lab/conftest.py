"""A lab for each test, static paths for its packets, and what must not be left behind."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waystage.interconnect.graphml import read_topology
from waystage.topology import Topology
from waystage.worlds.lab.lab import Lab, take_down

_count = iter(range(1000))


@pytest.fixture
def lab_name() -> Iterator[str]:
    """A name that no other run uses; whatever is there under it afterwards is removed."""
    name = f"t{os.getpid()}x{next(_count)}"
    yield name
    take_down(name)


@pytest.fixture
def paper() -> Topology:
    return read_topology("paper")


@pytest.fixture
def lab(lab_name: str, paper: Topology) -> Iterator[Lab]:
    """The paper's cluster, up, with static paths over core1: no controller is needed."""
    with Lab(lab_name, paper, host_bytes=64 << 20) as lab:
        give_static_paths(lab)
        yield lab


def give_static_paths(lab: Lab, core: str = "core1") -> None:
    """Forward by destination address over the tree below one core, and flood ARP along it."""
    topology = lab.topology
    others = frozenset(topology.core_switches) - {core}
    for switch in topology.switches:
        if switch.name in others:
            continue
        flows = []
        for host in topology.hosts:
            path = topology.dijkstra(switch.name, host.name, avoid=others)
            assert path is not None
            port = topology.link_between(switch.name, path[1]).port_at(switch.name)
            flows.append(f"priority=10,dl_dst={host.mac},actions=output:{port}")
        ports = [
            k.port_at(switch.name)
            for k in topology.adjacency[switch.name]
            if k.other(switch.name) not in others
        ]
        flows.append("priority=1,arp,actions=" + ",".join(f"output:{port}" for port in ports))
        for flow in flows:
            lab.ofctl("add-flow", switch.name, flow)


@pytest.fixture
def static_paths() -> Callable[[Lab], None]:
    return give_static_paths


Traces = Callable[[str], list[str]]


@pytest.fixture
def traces() -> Traces:
    return traces_of


def traces_of(name: str) -> list[str]:
    """What a lab of that name has left on this machine: empty after a clean end."""
    found = [f"namespace {p.name}" for p in Path("/run/netns").glob(f"ws-{name}-*")]
    found += [str(p) for p in (Path("/run/ws-lab") / name, Path(f"/run/ws-lab/{name}.lock")) if p.exists()]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {m.split()[4]}" for m in mounts if f"/run/ws-lab/{name}/" in m or f"/ws-{name}-" in m]
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                status = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"/run/ws-lab/{name}/" in words and status != "Z":
                found.append(f"process {process.name} {words[:80]}")
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    found += [f"device {d}" for d in re.findall(r"^\d+: (s\d+p\d+)[@:]", links, re.MULTILINE)]
    return found
