"""Rules per switch and messages per switch-over, labelled and per-pair, at 7, 64 and 1,024 hosts.

What is counted is what the planner makes: entries and groups a switch holds, flow-mods and group-mods from OFF to ON
status under link separation. The per-pair entries of a million host pairs are counted from their paths and not built;
a test holds both counts against the planner's own.

`labelled_1024` is the most any switch holds in either status. `per_pair_1024` is the most under OFF status alone, which
favours the peer: its ON entries come on top. The 1,024 hosts are on 32 edge and 16 core switches; a
three-level fat tree of as many hosts is in `details` too.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from typing import Any

from waystage import spread
from waystage.bench import BenchOptions
from waystage.events import Envelope, JobStarted, PathPlan, RuleStyle, StagingStarted, TopologyChanged
from waystage.interconnect import planner
from waystage.interconnect.generate import fat_tree, leaf_spine, paper
from waystage.policies.link_separation import LinkSeparation
from waystage.policies.off_status import base_pairs
from waystage.state import State
from waystage.topology import Topology

JOBS = 100
TAKES_S = 30, 10


def run(options: BenchOptions) -> dict[str, Any]:
    """Figures for 1,024 hosts; a quick run leaves the fat tree out."""
    topologies = [paper(), leaf_spine(8, 8, 4, storage_hosts=2), leaf_spine(32, 32, 16, storage_hosts=32)]
    if not options.quick:
        topologies.append(fat_tree(16, storage_hosts=32))
    rows: dict[str, dict[str, Any]] = {}
    for done, topology in enumerate(topologies):
        options.progress(topology.name, done / len(topologies))
        rows[topology.name] = measure(topology)
    large = rows[topologies[2].name]
    return {
        "figures": {
            "labelled_1024": large["labelled"]["rules"],
            "per_pair_1024": large["per_pair"]["rules_off"],
            "labelled_growth_per_job": large["labelled"]["growth_per_job"],
        },
        "peers": {"per-pair entries (seed paper, section IV.C.5)": large["per_pair"]["rules_off"]},
        "details": rows,
    }


def measure(topology: Topology) -> dict[str, Any]:
    """Both styles on one topology, with one job and with up to a hundred."""
    most = min(JOBS, len(topology.compute_hosts) // 3)
    labelled = {jobs: labelled_switch_over(topology, jobs) for jobs in (1, most)}
    per_pair = {jobs: per_pair_switch_over(topology, jobs) for jobs in (1, most)}
    rules = {jobs: result["rules"] for jobs, result in labelled.items()}
    growth = (rules[most] - rules[1]) / (most - 1) if most > 1 else 0.0
    messages = labelled[most]["messages"]
    return {
        "hosts": len(topology.hosts),
        "jobs": most,
        "labelled": {
            **labelled[most],
            "growth_per_job": growth,
            "message_growth_per_job": (messages - labelled[1]["messages"]) / max(1, most - 1),
        },
        "per_pair": per_pair[most] | {"messages_one_job": per_pair[1]["messages"]},
        "rules_ratio": round(per_pair[most]["rules_off"] / rules[most], 1),
        "messages_ratio": round(per_pair[most]["messages"] / max(1, messages), 1),
    }


def labelled_switch_over(topology: Topology, jobs: int) -> dict[str, int]:
    """The most rules and groups a switch holds in either status, and the messages from OFF to ON."""
    macs = true_macs(topology)
    state = loaded_state(topology, jobs)
    off = planner.desired(topology, topology, macs, PathPlan())
    on = planner.desired(topology, topology, macs, on_plan(state, "labelled"))
    phases = planner.difference(off, on)
    return {
        "rules": max(*planner.rule_counts(off).values(), *planner.rule_counts(on).values()),
        "messages": planner.count_messages(phases),
        "groups_touched": planner.groups_touched(phases),
    }


def per_pair_switch_over(topology: Topology, jobs: int) -> dict[str, int]:
    """The same for entries by host pair: every pair under OFF status, the jobs' pairs on top under ON."""
    state = loaded_state(topology, jobs)
    fixed = planner.rule_counts(
        planner.desired(topology, topology, true_macs(topology), PathPlan(style="per-pair"))
    )
    off = Counter(fixed) + count_base_entries(topology, seed=0)
    return {"rules_off": max(off.values()), "messages": count_on_entries(state)}


def loaded_state(topology: Topology, jobs: int) -> State:
    """`jobs` jobs, each on its own share of the computing hosts, alternately from every edge switch; the first stages
    in.
    """
    state = State()
    by_edge = [
        [host for host in topology.hosts_at[edge] if host in set(topology.compute_hosts)]
        for edge in topology.edge_switches
    ]
    dealt = [host for turn in itertools.zip_longest(*by_edge) for host in turn if host is not None]
    size = max(2, len(dealt) // max(jobs, 1)) if jobs > 1 else 3
    stories: list[Any] = [TopologyChanged(topology=topology)]
    for job in range(jobs):
        stories.append(JobStarted(job_id=str(job), nodes=tuple(dealt[job * size : (job + 1) * size])))
    for time_ns, event in enumerate(stories, start=1):
        state.apply(Envelope(event=event, event_id=str(time_ns), time_ns=time_ns))
    return state


def on_plan(state: State, style: RuleStyle) -> PathPlan:
    """What link separation asks for when the first job begins to stage."""
    event = StagingStarted(job_id="0")
    state.apply(Envelope(event=event, event_id="on", time_ns=state.time_ns + 1))
    (action,) = LinkSeparation(style=style)(event, state)
    plan = getattr(action, "plan", None)
    if not isinstance(plan, PathPlan) or not plan.separated:
        raise RuntimeError(f"link separation did not separate {state.topology and state.topology.name}")
    return plan


def count_on_entries(state: State) -> int:
    """Entries that ON status adds, each one flow-mod: Algorithm 1's pairs, one entry a switch of a shortest path."""
    topology = state.topology
    if topology is None:
        return 0
    pairs: set[tuple[str, str]] = set()
    for job in state.jobs.values():
        pairs.update(itertools.permutations(job.nodes, 2))
        pairs.update(itertools.product(topology.storage_hosts, job.nodes))
        pairs.update(itertools.product(job.nodes, topology.storage_hosts))
    switches = {
        (src, dst): hops + 1
        for src in topology.edge_switches
        for dst, hops in topology.distances(src, frozenset(topology.host_by_name)).items()
    }
    at = topology.attachment
    return sum(switches[at[src][0], at[dst][0]] for src, dst in pairs)


def count_base_entries(topology: Topology, seed: int) -> Counter[str]:
    """switch -> entries of OFF status, one for each ordered host pair whose path passes it.

    Counts pairs by edge switches and path index, which fix the path; only where several paths avoid the path index's
    core switch is the pair's own hash asked.
    """
    homes = spread.cores_of_paths(topology.core_switches, ())
    table = spread.pair_table(len(topology.core_switches), seed)
    rows = {e: Counter(spread.row(topology, h) for h in hosts) for e, hosts in topology.hosts_at.items()}
    columns = {
        e: Counter(spread.column(topology, h) for h in hosts) for e, hosts in topology.hosts_at.items()
    }
    counts: Counter[str] = Counter()
    for src, dst in itertools.product(topology.edge_switches, repeat=2):
        if src == dst:
            hosts = len(topology.hosts_at[src])
            counts[src] += hosts * (hosts - 1)
            continue
        ways = topology.shortest_paths(src, dst)
        if len(ways) == 1 or all(any(core in way for core in homes) for way in ways):
            over: Counter[str] = Counter()
            for (row, n), (column, m) in itertools.product(rows[src].items(), columns[dst].items()):
                over[homes[table[row][column]]] += n * m
            for core, pairs in over.items():
                way = next((way for way in ways if core in way), ways[0])
                for switch in way:
                    counts[switch] += pairs
        else:
            for a, b in itertools.product(topology.hosts_at[src], topology.hosts_at[dst]):
                counts.update(ways[zlib.crc32(f"{seed} {a} {b}".encode()) % len(ways)])
    return counts


def planned_per_pair(topology: Topology, state: State) -> tuple[dict[str, int], int]:
    """Rules under OFF status and messages to ON as the planner itself makes them; for sizes where that is quick."""
    macs = true_macs(topology)
    base = PathPlan(style="per-pair", base_pairs=base_pairs(topology, topology, "pair", 0))
    held = planner.desired(topology, topology, macs, base)
    wanted = planner.desired(topology, topology, macs, on_plan(state, "per-pair"))
    return planner.rule_counts(held), planner.count_messages(planner.difference(held, wanted))


def true_macs(topology: Topology) -> dict[str, int]:
    """Addresses as a site would have them: any will do for counting."""
    return {host.name: 0x020000000000 + index for index, host in enumerate(topology.hosts, start=1)}
