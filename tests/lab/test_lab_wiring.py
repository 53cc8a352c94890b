"""Names, addresses and batches made from a topology; no namespace is needed to see them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from waystage.interconnect.graphml import read_topology
from waystage.topology import Host, Link, Switch, Topology, TopologyError
from waystage.worlds.lab import commands
from waystage.worlds.lab.commands import require
from waystage.worlds.lab.errors import LabBusy, MissingProgram
from waystage.worlds.lab.lock import LabLock, Owner
from waystage.worlds.lab.processes import ProcessId, end
from waystage.worlds.lab.wiring import Wiring


def star(switches: list[str], hosts: int = 2, rate: int = 10**8) -> Topology:
    """Every switch on the first one, every host on the last."""
    links = [
        Link(a=switches[0], a_port=i, b=s, b_port=1, capacity_bps=rate) for i, s in enumerate(switches[1:], 1)
    ]
    links += [
        Link(a=f"h{i}", a_port=1, b=switches[-1], b_port=100 + i, capacity_bps=rate) for i in range(hosts)
    ]
    return Topology.build(
        "star",
        [Host(name=f"h{i}") for i in range(hosts)],
        [Switch(name=s, dpid=d) for d, s in enumerate(switches, 1)],
        links,
    )


def test_every_device_name_fits_the_kernel_and_is_there_once() -> None:
    names = ["lo", "s1p1", "sw2", "ovs-netdev", "a-very-long-switch-name", "9lives", "edge1"]
    wiring = Wiring.of(star(names))
    devices = [*wiring.bridges.values(), *(end.device for end in wiring.ports)]
    assert len(set(devices)) == len(devices)
    assert all(len(d) <= 15 and d not in ("lo", "ovs-netdev") for d in devices)
    assert wiring.bridges["edge1"] == "edge1"


def test_hosts_without_addresses_get_their_own() -> None:
    wiring = Wiring.of(star(["a", "b"], hosts=300))
    hosts = wiring.topology.hosts
    assert len({h.ip for h in hosts}) == len({h.mac for h in hosts}) == 300
    assert not [h.mac for h in hosts if h.mac and h.mac.startswith("02:57")], (
        "these are the controller's labels"
    )
    given = [
        msgspec.structs.replace(h, ip="10.57.0.1" if h.name == "h7" else None)
        for h in star(["a", "b"], 9).hosts
    ]
    base = star(["a", "b"], 9)
    kept = Wiring.of(Topology.build("given", given, base.switches, base.links)).topology
    assert kept.host_by_name["h7"].ip == "10.57.0.1"
    assert len({h.ip for h in kept.hosts}) == 9


def test_a_host_called_fabric_is_refused() -> None:
    base = star(["a", "b"], 1)
    links = [msgspec.structs.replace(k, a="fabric") if k.a == "h0" else k for k in base.links]
    with pytest.raises(TopologyError, match=r"host fabric: .* rename the host"):
        Wiring.of(Topology.build("x", [Host(name="fabric")], base.switches, links))


@pytest.mark.parametrize("rate", [10**6, 10**8, 10**10])
def test_a_shaper_passes_a_whole_packet_and_queues_for_a_bounded_time(rate: int) -> None:
    script = Wiring.of(star(["a", "b"], rate=rate)).fabric_script()
    shapers = re.findall(r"rate (\d+)bit burst (\d+) limit (\d+)", script)
    assert shapers
    for bits, burst, limit in shapers:
        assert int(bits) == rate
        assert int(burst) >= 9100
        assert int(limit) - int(burst) >= 10 * 9100 or (int(limit) - int(burst)) * 8 / rate <= 0.031


def test_the_shipped_topologies_can_all_be_wired() -> None:
    for name in ("paper", "leaf-spine-8", "sixteen", "fat-tree-4"):
        topology = read_topology(name)
        assert len(Wiring.of(topology).wires) == len(topology.links)


# -- owners and processes ---------------------------------------------------------------------


def test_a_lock_is_refused_to_a_second_process_and_free_once_the_first_is_dead(tmp_path: Path) -> None:
    path = tmp_path / "run" / "x.lock"
    script = (
        "import sys, time; from pathlib import Path; from waystage.worlds.lab.lock import LabLock\n"
        "LabLock(Path(sys.argv[1]), 'x').take(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LabBusy, match=f"lab 'x' is held by process {holder.pid}"):
            LabLock(path, "x").take()
    finally:
        holder.kill()
        holder.communicate()
    with LabLock(path, "x") as claim:
        assert claim.held
    assert not path.parent.exists(), "the lock's file and folder go with it"


def test_a_lock_is_waited_for_that_a_killed_process_left_to_a_child_it_was_starting(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    script = (
        "import os, signal, sys, time; from pathlib import Path; from waystage.worlds.lab.lock import LabLock\n"
        "LabLock(Path(sys.argv[1]), 'x').take()\n"
        "if os.fork(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.5)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(path)])
    holder.wait()
    with LabLock(path, "x") as claim:
        assert claim.held


def test_an_owner_is_alive_only_with_the_start_time_it_had(tmp_path: Path) -> None:
    me = Owner.me(kept=False, unmount_netns=False)
    assert me.alive
    reused = msgspec.structs.replace(me, process=ProcessId(me.process.pid, me.process.start + 1))
    assert not reused.alive, "another process with the same id is not the owner"
    assert msgspec.structs.replace(reused, kept=True, phase="up").alive
    assert not msgspec.structs.replace(reused, kept=True).alive, "a lab that was never up has no owner"
    assert not msgspec.structs.replace(me, boot_id="before").alive
    record = tmp_path / "owner.json"
    me.write(record)
    assert Owner.read(record) == me
    record.write_bytes(b"{")
    assert Owner.read(record) is None


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    script = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    deaf = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == "deaf\n"
    process = ProcessId.of(deaf.pid)
    assert process is not None
    end(process, grace_s=0.1)
    assert deaf.wait(timeout=10) == -9
    deaf.stdout.close()
    assert not process.alive
    assert ProcessId.of(os.getpid()) is not None


def test_a_tool_whose_caller_was_killed_before_it_began_does_nothing(tmp_path: Path) -> None:
    for name, by in (("ours", []), ("orphaned", ["sh", "-c", '"$@"; true', "sh"])):
        subprocess.run([*by, *commands._with_us(), "touch", tmp_path / name], check=True)
    assert [made.name for made in tmp_path.iterdir()] == ["ours"]


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("waystage.worlds.lab.commands.SEARCH_PATH", str(tmp_path))
    with pytest.raises(MissingProgram) as caught:
        require("ovs-vswitchd", "lldpd")
    assert str(caught.value) == (
        "ovs-vswitchd, lldpd not found on this machine: install with 'apt-get install lldpd openvswitch-switch'"
    )
