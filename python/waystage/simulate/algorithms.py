"""The four interfaces of the simulator's algorithms, and how one is found by name.

Arrives: a name (a shipped one, PFSim's, or `module:Class`) with options, and a seed.
Leaves: objects that choose jobs, hosts, places for ranks, and paths.
Must not know: files, worlds, events of the backplane, how a choice is carried out.

An algorithm is a class; a fresh object is made for each run with the options of the sweep file, and with `seed` where
its `__init__` takes one, so it may keep state between calls. It reads no clock and draws no unseeded number: the
same seed must give the same run. A host is its index in `Cluster.hosts`, a rank counts from 0.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from waystage.experiment.documents import nearest
from waystage.experiment.scheduling import AlgorithmError, said
from waystage.simulate.cluster import Cluster
from waystage.simulate.traffic import Traffic

Task = Literal["scheduler", "host_selector", "process_mapper", "router"]
TASKS: tuple[Task, ...] = ("scheduler", "host_selector", "process_mapper", "router")


@runtime_checkable
class HostSelector(Protocol):
    """Chooses hosts for `ranks` ranks among the `free` ones, in order; None where these do not do."""

    def select(self, ranks: int, free: Sequence[int], cluster: Cluster) -> Sequence[int] | None: ...


@runtime_checkable
class ProcessMapper(Protocol):
    """Gives each rank a host: one of `hosts`, none with more ranks than slots (`cluster.slots`).

    A mapper that has `judged_by(judge)` is given a function before the run: `judge(traffic, host_of)` is the largest load
    of a link between switches under the sweep's own router, on an empty network.
    """

    def map(self, traffic: Traffic, hosts: Sequence[int], cluster: Cluster) -> Sequence[int]: ...


@runtime_checkable
class Router(Protocol):
    """Gives each pair of hosts a path: the links, in order, from `src[i]` to `dst[i]`.

    `amounts[i]` is the pair's bytes, `loads[l]` what running jobs have on link `l` already. Each pair is there once.
    """

    def paths(
        self,
        src: NDArray[np.uint32],
        dst: NDArray[np.uint32],
        amounts: NDArray[np.float64],
        loads: NDArray[np.float64],
        cluster: Cluster,
    ) -> Sequence[Sequence[int]]: ...


@dataclass(frozen=True)
class KernelRouter:
    """A router of the compiled module.

    `sees_loads`: the loads of the links affect its paths. `minimal`: it takes shortest paths only.
    """

    kernel: str
    sees_loads: bool = False
    minimal: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


Judge = Callable[[Traffic, Sequence[int]], float]
"""The largest load of a job's mapping under the sweep's router."""

SHIPPED: dict[Task, dict[str, str]] = {
    "scheduler": {
        "fcfs": "waystage.experiment.schedulers.fcfs:Fcfs",
        "easy": "waystage.experiment.schedulers.easy:Easy",
        "conservative": "waystage.experiment.schedulers.conservative:Conservative",
    },
    "host_selector": {
        "linear": "waystage.simulate.selectors.linear:Linear",
        "random": "waystage.simulate.selectors.random_hosts:RandomHosts",
        "topology-aware": "waystage.simulate.selectors.topology_aware:TopologyAware",
    },
    "process_mapper": {
        "block": "waystage.simulate.mappers.block:Block",
        "cyclic": "waystage.simulate.mappers.cyclic:Cyclic",
        "random": "waystage.simulate.mappers.random_ranks:RandomRanks",
        "application-aware": "waystage.simulate.mappers.application_aware:ApplicationAware",
    },
    "router": {
        "d-mod-k": "waystage.simulate.routers.kernels:d_mod_k",
        "s-mod-k": "waystage.simulate.routers.kernels:s_mod_k",
        "random": "waystage.simulate.routers.kernels:random",
        "ecmp": "waystage.simulate.routers.kernels:ecmp",
        "greedy-sum": "waystage.simulate.routers.kernels:greedy_sum",
        "greedy-max": "waystage.simulate.routers.kernels:greedy_max",
        "adaptive-minimal": "waystage.simulate.routers.kernels:adaptive_minimal",
        "joint": "waystage.simulate.routers.kernels:joint",
        "valiant": "waystage.simulate.routers.kernels:valiant",
        "ugal-l": "waystage.simulate.routers.kernels:ugal_l",
        "ugal-g": "waystage.simulate.routers.kernels:ugal_g",
        "first-path": "waystage.simulate.routers.first_path:FirstPath",
    },
}
"""Short name -> dotted path. Users name their own by dotted path, `my.module:Class`."""

_METHODS: dict[Task, str] = {
    "scheduler": "choose",
    "host_selector": "select",
    "process_mapper": "map",
    "router": "paths",
}


def factory(task: Task, name: str) -> Callable[..., Any]:
    """The class called `name`. Raises AlgorithmError."""
    target = SHIPPED[task].get(name, name)
    module_name, colon, attribute = target.partition(":")
    what = task.replace("_", " ")
    if not colon:
        hint = nearest(name, list(SHIPPED[task]))
        raise AlgorithmError(f"unknown {what} {name!r}: {hint}; your own is named as module:Class")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    except AttributeError:
        raise AlgorithmError(f"{what} {name!r}: module {module_name} has no {attribute}") from None
    except Exception as error:  # whatever a user's module does when it is imported
        raise AlgorithmError(f"{what} {name!r}: cannot import {module_name}: {said(error)}") from error
    return found


def build(task: Task, name: str, options: dict[str, Any], seed: int) -> Any:
    """A fresh object with the interface of `task`. Raises AlgorithmError."""
    make = factory(task, name)
    what = f"{task.replace('_', ' ')} {name!r}"
    try:
        parameters = dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # its parameters are not known
        parameters = {}
    else:
        _check_options(what, parameters, options)
    given = {"seed": seed, **options} if "seed" in parameters else options
    try:
        made = make(**given)
    except Exception as error:
        shown = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "no options"
        raise AlgorithmError(f"{what} with {shown}: {said(error)}") from error
    if not callable(getattr(made, _METHODS[task], None)) and not (
        task == "router" and isinstance(made, KernelRouter)
    ):
        raise AlgorithmError(f"{what}: has no method {_METHODS[task]}: see docs/reference/simulator.md")
    return made


def _check_options(
    what: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> None:
    """Raises AlgorithmError for an option that the class does not take."""
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    known = [name for name, parameter in parameters.items() if parameter.kind in named and name != "seed"]
    for option in options:
        if option in known:
            continue
        hint = nearest(str(option), known) if known else "it takes none: remove it"
        raise AlgorithmError(f"{what} has no option {str(option)!r}: {hint}")


def identity(task: Task, name: str) -> str:
    """What a kept run of this algorithm depends on: its name, and for a user's own the bytes of its module."""
    if name in SHIPPED[task]:
        return name
    module = inspect.getmodule(factory(task, name))
    source = getattr(module, "__file__", None)
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    return f"{name}@{digest}"
