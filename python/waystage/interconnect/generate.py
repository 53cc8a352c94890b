"""Regular topologies of any size.

Arrives: the shape, as numbers.
Leaves: validated `Topology` values, the same for the same numbers.
Must not know: files, rules, policies.

Capacities default to 100 Mbit/s, which one machine can emulate with the network, not the CPU, as the bottleneck.
Storage hosts are placed round robin from the last edge switch backwards, so that the first switches have only compute
hosts.
"""

from __future__ import annotations

from waystage.topology import Host, Link, Switch, Topology, TopologyError

DEFAULT_BPS = 100_000_000


def paper(capacity_bps: int = DEFAULT_BPS) -> Topology:
    """The paper's Fig. 2: six compute hosts and one storage host on two edge and two core switches.

    The storage host is the fourth on edge1; the uplinks are oversubscribed 2:3 for the computing hosts.
    """
    hosts = [Host(name=f"c{i}") for i in range(1, 7)] + [Host(name="storage", role="storage")]
    on_edge = {"edge1": ["c1", "c2", "c3", "storage"], "edge2": ["c4", "c5", "c6"]}
    return _two_levels("paper", hosts, on_edge, 2, capacity_bps, capacity_bps)


def leaf_spine(
    leaves: int,
    hosts_per_leaf: int,
    spines: int,
    *,
    storage_hosts: int = 1,
    host_bps: int = DEFAULT_BPS,
    uplink_bps: int = DEFAULT_BPS,
    name: str | None = None,
) -> Topology:
    """`leaves` edge switches, each with a cable to each of `spines` core switches."""
    _positive(leaves=leaves, hosts_per_leaf=hosts_per_leaf, spines=spines)
    edges = [f"edge{i}" for i in range(1, leaves + 1)]
    hosts, on_edge = _spread_hosts(edges, hosts_per_leaf, storage_hosts)
    title = name or f"leaf-spine-{leaves}x{hosts_per_leaf}-{spines}"
    return _two_levels(title, hosts, on_edge, spines, host_bps, uplink_bps)


def fat_tree(
    k: int, *, storage_hosts: int = 1, capacity_bps: int = DEFAULT_BPS, name: str | None = None
) -> Topology:
    """The three-level k-ary fat tree: k pods, (k/2)^2 core switches, k^3/4 hosts (Al-Fares et al., SIGCOMM'08)."""
    if k < 2 or k % 2:
        raise TopologyError(
            f"a fat tree of {k}-port switches cannot be built: give an even number of at least 2"
        )
    half = k // 2
    edges = [f"edge{i}" for i in range(1, k * half + 1)]
    hosts, on_edge = _spread_hosts(edges, half, storage_hosts)
    aggregations = [f"agg{i}" for i in range(1, k * half + 1)]
    cores = [f"core{i}" for i in range(1, half * half + 1)]
    links = _host_links(on_edge, capacity_bps)
    for pod in range(k):
        for edge in range(pod * half, (pod + 1) * half):
            for up in range(half):
                aggregation = aggregations[pod * half + up]
                links.append(_link(edges[edge], half + 1 + up, aggregation, edge % half + 1, capacity_bps))
        for position in range(half):
            aggregation = aggregations[pod * half + position]
            for up in range(half):
                core = cores[position * half + up]
                links.append(_link(aggregation, half + 1 + up, core, pod + 1, capacity_bps))
    switches = _numbered(cores, 0x100) + _numbered(aggregations, 0x10000) + _numbered(edges, 0x20000)
    return Topology.build(name or f"fat-tree-{k}", hosts, switches, links)


def _two_levels(
    name: str, hosts: list[Host], on_edge: dict[str, list[str]], spines: int, host_bps: int, uplink_bps: int
) -> Topology:
    cores = [f"core{i}" for i in range(1, spines + 1)]
    links = _host_links(on_edge, host_bps)
    for index, (edge, names) in enumerate(on_edge.items(), start=1):
        for up, core in enumerate(cores, start=1):
            links.append(_link(edge, len(names) + up, core, index, uplink_bps))
    switches = _numbered(cores, 0x100) + _numbered(list(on_edge), 0x20000)
    return Topology.build(name, hosts, switches, links)


def _spread_hosts(
    edges: list[str], per_edge: int, storage_hosts: int
) -> tuple[list[Host], dict[str, list[str]]]:
    total = len(edges) * per_edge
    if not 0 <= storage_hosts <= total:
        raise TopologyError(
            f"{storage_hosts} storage hosts do not fit among {total} hosts: give 0 to {total}"
        )
    storage_at = dict.fromkeys(edges, 0)
    for turn in range(storage_hosts):
        storage_at[edges[-1 - turn % len(edges)]] += 1
    hosts: list[Host] = []
    on_edge: dict[str, list[str]] = {}
    compute = storage = 0
    for edge in edges:
        names: list[str] = []
        for _ in range(per_edge - storage_at[edge]):
            compute += 1
            names.append(f"c{compute}")
            hosts.append(Host(name=names[-1]))
        for _ in range(storage_at[edge]):
            storage += 1
            names.append(f"storage{storage}" if storage_hosts > 1 else "storage")
            hosts.append(Host(name=names[-1], role="storage"))
        on_edge[edge] = names
    return hosts, on_edge


def _host_links(on_edge: dict[str, list[str]], capacity_bps: int) -> list[Link]:
    return [
        _link(host, 1, edge, port, capacity_bps)
        for edge, names in on_edge.items()
        for port, host in enumerate(names, start=1)
    ]


def _link(a: str, a_port: int, b: str, b_port: int, capacity_bps: int) -> Link:
    return Link(a=a, a_port=a_port, b=b, b_port=b_port, capacity_bps=capacity_bps)


def _numbered(names: list[str], first_dpid: int) -> list[Switch]:
    return [Switch(name=name, dpid=first_dpid + index) for index, name in enumerate(names, start=1)]


def _positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise TopologyError(f"{name} is {number}: give at least 1")
