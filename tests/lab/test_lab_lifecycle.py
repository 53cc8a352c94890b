"""Up, down, and everything that can happen in between: afterwards nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import WAIT_S, halt, wait_until
from waystage.interconnect.graphml import read_topology
from waystage.topology import Topology, TopologyError
from waystage.worlds.lab.commands import environment, mark
from waystage.worlds.lab.errors import LabBusy, LabError, NotRoot
from waystage.worlds.lab.lab import Lab, take_down
from waystage.worlds.lab.processes import ProcessId, in_namespaces
from waystage.worlds.lab.wiring import Wiring

pytestmark = pytest.mark.lab

Traces = Callable[[str], list[str]]

OWNER = """
import sys, time
from waystage.interconnect.graphml import read_topology
from waystage.worlds.lab.lab import Lab
with Lab(sys.argv[1], read_topology("paper")):
    print("up", flush=True)
    time.sleep(600)
"""


def start_owner(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def wait_up(owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"


def answer(lab: Lab, host: str, *command: str) -> str:
    done = lab.exec(host, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = done.communicate(timeout=WAIT_S)
    assert done.returncode == 0, err
    return str(out)


def test_a_lab_has_hosts_that_reach_each_other_and_is_gone_afterwards(
    lab_name: str, lab: Lab, traces: Traces
) -> None:
    assert answer(lab, "c1", "hostname").strip() == "c1"
    answer(lab, "c1", "ping", "-c", "1", "-w", "30", "-M", "do", "-s", "8972", lab.host_ip("c6"))
    lab.check()
    inside = in_namespaces(lab.resources.namespace_files())
    assert len(inside) >= 9, "two daemons of Open vSwitch and an LLDP daemon on each of seven hosts"
    lab.down()
    assert traces(lab_name) == []
    assert not [pid for pid in inside if ProcessId.of(pid) is not None]


def test_switches_have_the_topology_s_numbers_and_speak_openflow_13_to_15(lab: Lab) -> None:
    for switch in lab.topology.switches:
        shown = lab.ofctl("show", switch.name)
        assert f"dpid:{switch.dpid:016x}" in shown
        for link in lab.topology.adjacency[switch.name]:
            assert f" {link.port_at(switch.name)}(" in shown
    for version in ("OpenFlow13", "OpenFlow14", "OpenFlow15"):
        assert "dpid" in lab.ofctl("-O", version, "show", "core1")


def test_hosts_announce_themselves_by_lldp(lab: Lab) -> None:
    deadline = time.monotonic() + WAIT_S
    while "SysName:      c1" not in (
        text := subprocess.run(
            ["lldpcli", "-u", f"{lab.resources.lldp}/c1.socket", "show", "chassis"],
            capture_output=True,
            text=True,
            env=environment(),
        ).stdout
    ):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)
    while "Transmitted:  0" in (
        text := subprocess.run(
            ["lldpcli", "-u", f"{lab.resources.lldp}/c1.socket", "show", "statistics"],
            capture_output=True,
            text=True,
            env=environment(),
        ).stdout
    ):
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def test_down_twice_and_down_of_nothing_are_harmless(lab_name: str, paper: Topology, traces: Traces) -> None:
    assert take_down(lab_name) is False
    lab = Lab(lab_name, paper)
    lab.up()
    lab.down()
    lab.down()
    assert traces(lab_name) == []


def test_a_failure_half_way_takes_everything_back(lab_name: str, paper: Topology, traces: Traces) -> None:
    # The tmpfs of a host cannot have this size: namespaces are there by then, switches are not.
    with pytest.raises(LabError, match="mount"):
        Lab(lab_name, paper, host_bytes=-1).up()
    assert traces(lab_name) == []


def test_a_failure_at_the_end_takes_everything_back(
    lab_name: str, paper: Topology, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(lab: Lab) -> dict[str, subprocess.Popen[bytes]]:
        assert len(in_namespaces(lab.resources.namespace_files())) >= 2
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("waystage.worlds.lab.lab.start_lldp", fail)
    with pytest.raises(OSError, match="No space"):
        Lab(lab_name, paper).up()
    assert traces(lab_name) == []


def test_an_exception_inside_the_with_block_takes_the_lab_down(
    lab_name: str, paper: Topology, traces: Traces
) -> None:
    with pytest.raises(ZeroDivisionError), Lab(lab_name, paper) as lab:
        lab.exec("c1", ["sleep", "600"])
        raise ZeroDivisionError
    assert traces(lab_name) == []


def test_a_tool_that_was_interrupted_as_it_began_is_ended_with_the_lab(lab_name: str, traces: Traces) -> None:
    name, _, value = mark().partition("=")
    with Lab(lab_name, read_topology("paper")):
        late = subprocess.Popen(["sleep", "600"], env={**os.environ, name: value})
        own = subprocess.Popen(["sleep", "600"])
    try:
        assert late.wait(timeout=WAIT_S) != 0
        assert own.poll() is None, "what the caller runs besides is left alone"
        assert traces(lab_name) == []
    finally:
        for process in (late, own):
            process.kill()
            process.wait()


@pytest.mark.parametrize("delay_s", [0.25, 0.4, 0.55, None])
def test_ctrl_c_at_any_time_takes_the_lab_down(lab_name: str, traces: Traces, delay_s: float | None) -> None:
    owner = start_owner(lab_name)
    try:
        if delay_s is None:
            wait_up(owner)
        else:
            time.sleep(delay_s)
        owner.send_signal(signal.SIGINT)
        assert owner.wait(timeout=WAIT_S) != 0
    finally:
        owner.kill()
        owner.communicate()
    assert traces(lab_name) == []


@pytest.mark.parametrize("delay_s", [0.25, 0.4, 0.55, None])
def test_what_a_killed_owner_left_is_removed_by_down(
    lab_name: str, traces: Traces, delay_s: float | None
) -> None:
    owner = start_owner(lab_name)
    try:
        if delay_s is None:
            wait_up(owner)
            assert traces(lab_name), "the test would not see what is left"
        else:
            time.sleep(delay_s)
    finally:
        owner.kill()
        owner.communicate()
    take_down(lab_name)
    assert traces(lab_name) == []


def test_what_a_killed_owner_left_is_replaced_by_up(lab_name: str, paper: Topology, traces: Traces) -> None:
    owner = start_owner(lab_name)
    wait_up(owner)
    owner.kill()
    owner.communicate()
    with pytest.raises(LabError, match="left behind by a process that was killed"):
        Lab.attach(lab_name)
    with Lab(lab_name, paper) as lab:
        lab.check()
        assert len(list(Path("/run/netns").glob(f"ws-{lab_name}-*"))) == 8
    assert traces(lab_name) == []


def test_a_second_start_is_refused_and_harms_nothing(lab_name: str, lab: Lab) -> None:
    second = start_owner(lab_name)
    second.communicate(timeout=WAIT_S)
    assert second.returncode != 0
    with pytest.raises(LabBusy, match=f"held by process {os.getpid()}"):
        Lab(lab_name, lab.topology).up()
    with pytest.raises(LabBusy):
        take_down(lab_name)
    lab.check()
    answer(lab, "c1", "ping", "-c", "1", "-w", "30", lab.host_ip("c4"))


def test_two_labs_with_names_that_begin_alike_do_not_touch_each_other(
    lab_name: str, paper: Topology, traces: Traces
) -> None:
    longer = f"{lab_name}_2"
    with Lab(longer, paper) as other:
        with Lab(lab_name, paper):
            pass
        assert traces(lab_name) == []
        other.check()
        assert answer(other, "c6", "hostname").strip() == "c6"
    assert traces(longer) == []


def test_a_kept_lab_outlives_its_maker_and_can_be_attached_to(
    lab_name: str, paper: Topology, traces: Traces
) -> None:
    Lab(lab_name, paper, keep=True).up()
    attached = Lab.attach(lab_name)
    assert attached.topology == Wiring.of(paper).topology
    attached.check()
    assert answer(attached, "c3", "hostname").strip() == "c3"
    with pytest.raises(LabBusy, match="is up already"):
        Lab(lab_name, paper).up()
    attached.down()
    assert traces(lab_name) == []
    with pytest.raises(LabError, match="is not up"):
        Lab.attach(lab_name)


@pytest.mark.parametrize("daemon", ["ovs-vswitchd", "ovsdb-server"])
def test_open_vswitch_dying_is_reported_in_one_sentence_that_names_it(lab: Lab, daemon: str) -> None:
    process = lab.switches.process(daemon)
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not process.alive)
    with pytest.raises(LabError, match=f"{daemon} of the lab has stopped: see .*{daemon}.log") as caught:
        lab.check()
    assert "\n" not in str(caught.value)
    if daemon == "ovs-vswitchd":
        with pytest.raises(LabError, match="ovs-vswitchd of the lab has stopped"):
            lab.ofctl("show", "edge1")


def test_a_halted_open_vswitch_is_named_with_the_way_to_let_it_go_on(lab: Lab) -> None:
    process = lab.switches.process("ovs-vswitchd")
    assert process is not None
    halt(process.pid)
    wait_until(lambda: process.halted)
    with pytest.raises(LabError, match=f"halted by SIGSTOP: let it go on with 'kill -CONT {process.pid}'"):
        lab.check()
    os.kill(process.pid, signal.SIGCONT)
    wait_until(lambda: not process.halted)
    lab.check()


def test_a_dead_lldp_daemon_is_named(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"lldpd on c2 of lab .* has stopped"):
        for pid in in_namespaces([Path("/run/netns") / lab.resources.namespace("c2")]):
            with contextlib.suppress(ProcessLookupError):  # one of the two ends with the other
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            lab.check()
            time.sleep(0.02)


def test_host_storage_is_full_at_its_limit_and_no_other_host_notices(lab: Lab) -> None:
    block = b"x" * (1 << 20)
    with (
        pytest.raises(OSError, match="No space left"),
        (lab.host_dir("c1") / "big").open("wb", buffering=0) as file,
    ):
        for _ in range(65):
            assert file.write(block) == len(block), os.strerror(28)
        raise AssertionError("65 MiB fitted into 64")
    (lab.host_dir("c2") / "small").write_bytes(block)


def test_unknown_hosts_links_and_names_are_refused(lab: Lab, paper: Topology) -> None:
    with pytest.raises(LabError, match="has no host 'c9': there are c1, c2"):
        lab.exec("c9", ["true"])
    with pytest.raises(LabError, match="has no link"):
        lab.set_link("c1:1-edge9:1", False)
    for name in ("", "a-b", "a/b", "x" * 17, "../x"):
        with pytest.raises(LabError, match="lab name"):
            Lab(name, paper)


def test_without_root_nothing_is_done(
    lab_name: str, paper: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotRoot, match="needs root"):
        Lab(lab_name, paper).up()
    assert not Path(f"/run/ws-lab/{lab_name}.lock").exists()
    monkeypatch.undo()


def test_addresses_outside_the_lab_s_subnet_are_refused(lab_name: str, paper: Topology) -> None:
    import msgspec

    hosts = [msgspec.structs.replace(h, ip="192.0.2.1" if h.name == "c1" else None) for h in paper.hosts]
    foreign = Topology.build("foreign", hosts, paper.switches, paper.links)
    with pytest.raises(TopologyError, match=r"host c1: ip 192\.0\.2\.1 is outside the lab's subnet"):
        Lab(lab_name, foreign)
