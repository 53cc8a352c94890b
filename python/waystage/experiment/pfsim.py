"""PFSim's scenario files (Takahashi et al., 2018) as sweeps.

Arrives: a sweep's file as plain values, in PFSim's spelling, in this schema's, or in both.
Leaves: the same in this schema's spelling. Raises Problem with the key that cannot be translated.
Must not know: what the keys mean.

PFSim names algorithms, distributions and topologies by Python class, gives the parameters of a distribution as `params`,
and calls host selection `node_selector`. Single values stand for lists of one.
"""

from __future__ import annotations

from typing import Any

from waystage.experiment.problems import Key, Problem

TASKS = ("scheduler", "host_selector", "process_mapper", "router")

ALGORITHMS: dict[str, dict[str, str]] = {
    "scheduler": {"pfsim.scheduler.FCFSScheduler": "fcfs"},
    "host_selector": {
        "pfsim.host_selector.LinearHostSelector": "linear",
        "pfsim.host_selector.RandomHostSelector": "random",
        "pfsim.node_selector.LinearNodeSelector": "linear",
        "pfsim.node_selector.RandomNodeSelector": "random",
    },
    "process_mapper": {
        "pfsim.process_mapper.LinearProcessMapper": "block",
        "pfsim.process_mapper.CyclicProcessMapper": "cyclic",
        "pfsim.process_mapper.RandomProcessMapper": "random",
        "linear": "block",
    },
    "router": {
        "pfsim.router.DmodKRouter": "d-mod-k",
        "pfsim.router.SmodKRouter": "s-mod-k",
        "pfsim.router.RandomRouter": "random",
        "pfsim.router.GreedyRouter": "greedy-sum",
        "pfsim.router.GreedyRouter2": "greedy-max",
        "dynamic": "greedy-max",
    },
}
"""PFSim's names, of its thesis and of its code, and other names in use."""

_OPTIONS = {"pfsim.process_mapper.RandomProcessMapper": {"by": "host"}}
"""What makes a shipped algorithm behave as PFSim's of that name."""

_TOPOLOGIES = {
    "pfsim.topology.FileTopology": "file",
    "pfsim.topology.XGFTTopology": "xgft",
    "pfsim.topology.NDTorusTopology": "torus",
}
_TOPOLOGY_PARAMS = {"npe": "slots", "bw": "capacity"}
_LENGTHS = {"xgft": ("h", "m"), "torus": ("n", "dims")}
"""PFSim requires the length of a list beside the list."""

_DISTRIBUTIONS = {"pfsim.math.ExponentialDistribution": "exponential"}
_DISTRIBUTION_PARAMS = {
    "lambd": "rate_per_s",
    "mean": "mean_s",
    "value": "mean_s",
    "low": "low_s",
    "high": "high_s",
    "median": "median_s",
    "sigma": "sigma",
}


def translate(tree: dict[str, Any]) -> dict[str, Any]:
    """What is of an unexpected type stays as it is: the schema refuses it with its key."""
    tree = dict(tree)
    if "topology" in tree:
        tree["topology"] = [_topology(item, i) for i, item in enumerate(_listed(tree["topology"]))]
    if isinstance(tree.get("algorithms"), dict):
        algorithms = dict(tree["algorithms"])
        if "node_selector" in algorithms and "host_selector" not in algorithms:
            algorithms["host_selector"] = algorithms.pop("node_selector")
        for task in TASKS:
            if task in algorithms:
                algorithms[task] = [_algorithm(task, item) for item in _listed(algorithms[task])]
        tree["algorithms"] = algorithms
    if isinstance(tree.get("jobs"), list):
        tree["jobs"] = [_source(item, i) for i, item in enumerate(tree["jobs"])]
    if "seeds" in tree:
        tree["seeds"] = _listed(tree["seeds"])
    return tree


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _topology(item: Any, index: int) -> Any:
    if isinstance(item, str):
        return {"kind": "file", "params": {"path": item}}
    if not isinstance(item, dict) or not isinstance(item.get("params", {}), dict):
        return item
    kind = _known(_TOPOLOGIES, item.get("kind"))
    params = {_TOPOLOGY_PARAMS.get(key, key): value for key, value in item.get("params", {}).items()}
    if kind in _LENGTHS:
        count, values = _LENGTHS[kind]
        given = params.pop(count, None)
        if given is not None and isinstance(params.get(values), list) and given != len(params[values]):
            key: Key = ("topology", index, "params", count)
            raise Problem(key, f"is {given} where {values} has {len(params[values])} numbers")
    return {**item, **({"kind": kind} if "kind" in item else {}), "params": params}


def _algorithm(task: str, item: Any) -> Any:
    known = ALGORITHMS[task]
    if isinstance(item, str):
        return {"name": known.get(item, item), "options": _OPTIONS.get(item, {})}
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return {**item, "name": known.get(item["name"], item["name"])}
    return item


def _source(item: Any, index: int) -> Any:
    if not isinstance(item, dict):
        return item
    times = {
        name: _distribution(item[name], ("jobs", index, name))
        for name in ("submit", "duration")
        if name in item
    }
    return {**item, **times}


def _distribution(item: Any, key: Key) -> Any:
    if not isinstance(item, dict):
        return item
    translated = {name: value for name, value in item.items() if name != "params"}
    if "distribution" in item:
        translated["distribution"] = _known(_DISTRIBUTIONS, item["distribution"])
    params = item.get("params", {})
    if not isinstance(params, dict):
        raise Problem((*key, "params"), "is a mapping, such as {mean: 10}")
    for name, value in params.items():
        if name not in _DISTRIBUTION_PARAMS:
            raise Problem((*key, "params", name), f"unknown parameter: use {', '.join(_DISTRIBUTION_PARAMS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Problem((*key, "params", name), f"{value!r} is no number: give a finite one")
        translated[_DISTRIBUTION_PARAMS[name]] = value
    return translated


def _known(names: dict[str, str], name: Any) -> Any:
    return names.get(name, name) if isinstance(name, str) else name
