"""A topology as network devices: who is called what, and the batches that make it so.

Arrives: a topology.
Leaves: a `Wiring` with addresses filled in, and texts for `ip -batch`, `tc -batch` and `sh`.
Must not know: processes, files; nothing is run here.

Every link is a veth pair. A host's end is `eth0` in the host's namespace; every other end is in the
fabric namespace and is a port of a bridge. Both ends are rate-limited by TBF, each for the direction
that leaves there.
"""

from __future__ import annotations

import ipaddress
import re
from functools import cached_property

import msgspec

from waystage.topology import Link, Topology, TopologyError

HOST_DEVICE = "eth0"
SUBNET = ipaddress.IPv4Network("10.57.0.0/16")
HOST_MTU = 9000  # at 1500 one ovs-vswitchd saturates a core near 100-200 Mbit/s of all-to-all
FABRIC_MTU = 9100  # room for the tag that a packet carries between switches

DEVICE_NAME_MAX = 15  # IFNAMSIZ - 1
BURST_MIN_BYTES = 2 * FABRIC_MTU  # less than one packet would never pass
BURST_MAX_BYTES = 1 << 20
BURST_SECONDS = 0.005  # the shaper's timer may be late by this much and still keep the rate
QUEUE_SECONDS = 0.03
"""How long a full queue takes to drain: a shallow-buffered switch's, in time, at these rates."""
PIECE_SECONDS = 0.005
"""What a host has waiting before its link, in time: that much unsent in a socket, and in a fragment of a message."""

_DEVICE_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*$")
_PORT_DEVICE = re.compile(r"^s\d+p\d+$")
_RESERVED = {"lo", "ovs-netdev", "ovs-system", "default", "all"}


class End(msgspec.Struct, frozen=True):
    """One end of a link: the device that sends from `node` into the link."""

    node: str
    port: int
    device: str
    is_host: bool


class Wire(msgspec.Struct, frozen=True):
    link: Link
    a: End
    b: End

    @property
    def ends(self) -> tuple[End, End]:
        return (self.a, self.b)


class Wiring(msgspec.Struct, frozen=True, dict=True):
    """`topology` has a mac and an ip for every host."""

    topology: Topology

    @classmethod
    def of(cls, topology: Topology) -> Wiring:
        """Raises TopologyError where the hosts do not fit into one subnet."""
        return cls(_with_addresses(topology))

    @cached_property
    def bridges(self) -> dict[str, str]:
        """switch -> bridge: the switch's own name where a device may be called that."""
        used: set[str] = set(_RESERVED)
        names = {}
        for index, switch in enumerate(self.topology.switches, 1):
            name = switch.name
            if (
                len(name) > DEVICE_NAME_MAX
                or not _DEVICE_NAME.match(name)
                or _PORT_DEVICE.match(name)
                or name in _RESERVED
            ):
                name = f"sw{index}"
                while name in used or name in self.topology.switch_by_name:
                    name += "x"
            used.add(name)
            names[switch.name] = name
        return names

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        index = {switch.name: i for i, switch in enumerate(self.topology.switches, 1)}

        def end(node: str, port: int) -> End:
            if node in index:
                # Not made of the bridge's name: `a` port 11 and `a1` port 1 must differ.
                return End(node, port, f"s{index[node]}p{port}", False)
            return End(node, port, HOST_DEVICE, True)

        return tuple(Wire(k, end(k.a, k.a_port), end(k.b, k.b_port)) for k in self.topology.links)

    @cached_property
    def wire_by_link(self) -> dict[str, Wire]:
        return {wire.link.name: wire for wire in self.wires}

    @cached_property
    def ports(self) -> list[End]:
        """Every switch port."""
        return [end for wire in self.wires for end in wire.ends if not end.is_host]

    def link_batch(self, namespace_of: dict[str, str]) -> str:
        """For `ip -batch` in the fabric namespace: make every veth pair."""
        lines = ["link set lo up"]
        for wire in self.wires:
            first, second = sorted(wire.ends, key=lambda end: end.is_host)
            if second.is_host:
                mac = self.topology.host_by_name[second.node].mac
                peer = f"{second.device} netns {namespace_of[second.node]} address {mac} mtu {HOST_MTU}"
            else:
                peer = f"{second.device} mtu {FABRIC_MTU}"
            lines.append(f"link add {first.device} mtu {FABRIC_MTU} type veth peer name {peer}")
        lines += [f"link set {end.device} up" for end in self.ports]
        return "\n".join(lines) + "\n"

    def fabric_script(self) -> str:
        """For `sh` in the fabric namespace, after the links are made."""
        devices = " ".join(end.device for end in self.ports)
        return (
            "set -e\n"
            f"for device in {devices}; do ethtool -K $device {_OFFLOADS} >/dev/null; done\n"
            "tc -batch - <<END\n"
            + "".join(_shape(end.device, w.link) for w in self.wires for end in w.ends if not end.is_host)
            + "END\n"
        )

    def host_script(self, host: str) -> str:
        """For `sh` in the host's namespace, after the links are made."""
        ip = self.topology.host_by_name[host].ip
        (link,) = self.topology.adjacency[host]
        unsent = max(2 * HOST_MTU, round(link.capacity_bps / 8 * PIECE_SECONDS))
        return (
            "set -e\n"
            f"{QUIET_IPV6}"
            # A rate learned on one run's paths must not shape the next run's start.
            "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save\n"
            # What is written last waits behind all that a socket holds, and it holds 4 MiB: 0.7 s at 50 Mbit/s.
            f"echo {unsent} > /proc/sys/net/ipv4/tcp_notsent_lowat\n"
            "ip -batch - <<END\n"
            "link set lo up\n"
            f"addr add {ip}/{SUBNET.prefixlen} dev {HOST_DEVICE}\n"
            f"link set {HOST_DEVICE} up\n"
            "END\n"
            f"ethtool -K {HOST_DEVICE} {_OFFLOADS} >/dev/null\n"
            f"tc qdisc {_shape(HOST_DEVICE, link).removeprefix('qdisc ')}"
        )


QUIET_IPV6 = (
    "for scope in all default; do\n"
    "  if [ -e /proc/sys/net/ipv6/conf/$scope/disable_ipv6 ]; then\n"
    "    echo 1 > /proc/sys/net/ipv6/conf/$scope/disable_ipv6\n"
    "  fi\n"
    "done\n"
)
"""Neighbour discovery would flood the fabric with packets of no use here."""

# A segment of 64 KiB, or one without checksum, must not reach a switch that reads it from a socket.
_OFFLOADS = "tx off sg off tso off gso off gro off"


def _shape(device: str, link: Link) -> str:
    rate = link.capacity_bps
    burst = max(BURST_MIN_BYTES, min(BURST_MAX_BYTES, round(rate / 8 * BURST_SECONDS)))
    limit = burst + max(10 * FABRIC_MTU, round(rate / 8 * QUEUE_SECONDS))
    return f"qdisc add dev {device} root tbf rate {rate}bit burst {burst} limit {limit}\n"


def _with_addresses(topology: Topology) -> Topology:
    """Fill in what the file leaves open: locally administered MACs, and addresses of the lab's subnet."""
    taken_ips = {host.ip for host in topology.hosts}
    taken_macs = {host.mac for host in topology.hosts}
    ips = (str(ip) for ip in SUBNET.hosts() if str(ip) not in taken_ips)
    # 02:57 begins the labels that the controller hands out in place of hosts' own addresses.
    macs = (
        m for m in (f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}" for n in range(1, 65536)) if m not in taken_macs
    )
    hosts = []
    for host in topology.hosts:
        if host.name == "fabric":
            raise TopologyError(
                "host fabric: the lab gives this name to the switches' namespace: rename the host"
            )
        if host.ip is not None and ipaddress.IPv4Address(host.ip) not in SUBNET:
            raise TopologyError(
                f"host {host.name}: ip {host.ip} is outside the lab's subnet {SUBNET}: change it or leave it out"
            )
        ip, mac = host.ip or next(ips, None), host.mac or next(macs, None)
        if ip is None or mac is None:
            raise TopologyError(
                f"topology {topology.name} has more hosts than the lab's subnet {SUBNET} holds"
            )
        hosts.append(msgspec.structs.replace(host, ip=ip, mac=mac))
    return Topology.build(topology.name, hosts, topology.switches, topology.links)
