"""The controller of the command line on the lab's paper cluster, with a real LLDP daemon on every host."""

from __future__ import annotations

import subprocess

import pytest

from harness import WAIT_S, wait_until
from waystage.backplane import Backplane, BackplaneConfig
from waystage.events import CablingError, HostSeen, LinkDown, LinkUse
from waystage.interconnect.graphml import read_topology
from waystage.worlds.lab.controller_process import start_controller
from waystage.worlds.lab.lab import Lab


@pytest.mark.lab
def test_daemons_on_hosts_are_heard_and_the_cabling_is_found_to_be_as_given() -> None:
    topology = read_topology("paper")
    with Lab("t_openflow", topology) as lab:
        process = start_controller(lab, "null")
        with Backplane.open(BackplaneConfig(connect=(lab.backplane_endpoint,))) as backplane:
            uses = backplane.watch(LinkUse)
            wrong, down = backplane.watch(CablingError), backplane.watch(LinkDown)
            for host in topology.hosts:
                backplane.watch(HostSeen, host=host.name)
            source, target = topology.hosts[0].name, topology.storage_hosts[0]
            ping = ["ping", "-q", "-c", "3", "-i", "0.2", lab.host_ip(target)]
            assert lab.exec(source, ping, stdout=subprocess.DEVNULL).wait(timeout=WAIT_S) == 0
            # A host is reported once: the controller may have heard it before we listened, but not in between.
            heard = bytes(backplane.snapshot().state)
            for host in lab.topology.hosts:
                if f'"{host.name}":{{"switch"'.encode() not in heard:
                    seen = backplane.wait(HostSeen, timeout=WAIT_S, host=host.name)
                    assert seen is not None, host.name
                    assert isinstance(seen.event, HostSeen)
                    assert (seen.event.switch, seen.event.port) == topology.attachment[host.name]
                    assert (seen.event.mac, seen.event.ip) == (host.mac, host.ip)
            ends = {end for k in topology.links for end in ((k.a, k.a_port), (k.b, k.b_port))}

            def all_are_counted() -> bool:
                """A switch that answers late is left out of a use."""
                arrived = uses.get(WAIT_S)
                assert arrived is not None and isinstance(arrived.event, LinkUse)
                counted = {(u.node, u.port) for u in arrived.event.ports}
                assert counted <= ends
                return counted == ends

            wait_until(all_are_counted, what="the use of every port")
            assert wrong.get(0) is None
            assert down.get(0) is None
        process.terminate()
        assert process.wait(timeout=WAIT_S) == 0
