"""The policy interface.

Arrives: an event and the state into which it has just been folded.
Leaves: actions, which are data.
Must not know: which world it runs in, how events travel, how an action is carried out.

A policy is a callable `(event, state) -> actions`. It keeps nothing between calls (the state holds what it needs, above
all `state.requested`), reads no clock (`state.time_ns`), draws no unseeded random numbers, and does not change the
state. The simulated object is therefore the deployed one. `null.py` is an annotated template.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from waystage.events import Action, Event
from waystage.state import State

REASON_LENGTH = 2000
"""Longest reason that is published with a decision."""


class PolicyError(ValueError):
    """A policy that cannot be found, built or used; the message lists the alternatives."""


@runtime_checkable
class Policy(Protocol):
    """`name` appears in results and decisions."""

    name: str

    def __call__(self, event: Event, state: State) -> Sequence[Action]: ...


class Explained(tuple[Action, ...]):
    """Actions with the policy's reason for them, which is published in `Decided`."""

    reason: str = ""

    @classmethod
    def by(cls, actions: Iterable[Action], reason: str) -> Explained:
        """`reason` in one line, cut to `REASON_LENGTH` characters."""
        answer = cls(actions)
        answer.reason = " ".join(reason.split())[:REASON_LENGTH]
        return answer


def reason_of(answer: object) -> str:
    """The reason that came with a policy's answer; empty where none did."""
    return answer.reason if isinstance(answer, Explained) else ""


SHIPPED: dict[str, str] = {
    "null": "waystage.policies.null:Null",
    "ecmp": "waystage.policies.ecmp:Ecmp",
    "d-mod-k": "waystage.policies.d_mod_k:DModK",
    "link-separation": "waystage.policies.link_separation:LinkSeparation",
    "demand-separation": "waystage.policies.demand_separation:DemandSeparation",
    "storage-shares": "waystage.policies.storage_shares:StorageShares",
    "wan-yields": "waystage.policies.wan_yields:WanYields",
    "deadline-staging": "waystage.policies.deadline_staging:DeadlineStaging",
    "io-apart": "waystage.policies.io_apart:IoApart",
    "elastic-io": "waystage.policies.elastic_io:ElasticIo",
    "failed-aggregator": "waystage.policies.failed_aggregator:FailedAggregator",
    "aggregators-by-paths": "waystage.policies.aggregators_by_paths:AggregatorsByPaths",
    "io-fcfs": "waystage.policies.io_fcfs:IoFcfs",
    "io-fair": "waystage.policies.io_fair:IoFair",
    "io-set10": "waystage.policies.io_set10:IoSet10",
    "io-calciom": "waystage.policies.io_calciom:IoCalciom",
    "io-min-dilation": "waystage.policies.io_min_dilation:IoMinDilation",
    "combined": "waystage.policies.combined:Combined",
    "foresee": "waystage.policies.foresee:Foresee",
    "multicast-trees": "waystage.policies.multicast_trees:MulticastTrees",
    "collective-paths": "waystage.policies.collective_paths:CollectivePaths",
    "primitive-paths": "waystage.policies.primitive_paths:PrimitivePaths",
}
"""Short name -> dotted path. Users name their own by dotted path, `my.module:Policy`."""


def policy_factory(name: str) -> Callable[..., Any]:
    """The factory of policy `name` (a shipped name or `module:Class`). Raises PolicyError."""
    return _factory("policy", name, SHIPPED)


def _factory(what: str, name: str, shipped_names: Mapping[str, str]) -> Callable[..., Any]:
    target = shipped_names.get(name, name)
    module_name, colon, attribute = target.partition(":")
    if not colon:
        shipped = ", ".join(sorted(shipped_names))
        raise PolicyError(f"unknown {what} {name!r}: use one of {shipped}, or your own as module:Class")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        # Only what is on the path is found: a program's own folder is, the folder it was started in is not.
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        fix = ": is its folder in PYTHONPATH (PYTHONPATH=. for this one)?" if absent else ""
        raise PolicyError(f"{what} {name!r}: cannot import {module_name}: {error}{fix}") from error
    except AttributeError:
        raise PolicyError(f"{what} {name!r}: module {module_name} has no {attribute}") from None
    except (Exception, SystemExit) as error:  # the user's own module ran, and may raise anything
        raise PolicyError(
            f"{what} {name!r}: {module_name} fails when imported: {_in_words(error)}"
        ) from error
    if not callable(factory):
        raise PolicyError(
            f"{what} {name!r}: {target} is a {type(factory).__name__}, and no class to build from"
        )
    return factory


def reads_rates(policy: object) -> bool:
    """Whether the policy may read `LinkUse`, `class_rate_bps` or `port_rate_bps`: always, unless its own class says
    `reads_rates = False`. A class derived from such a one is another policy, and says it anew."""
    declared = vars(policy) if "reads_rates" in vars(policy) else vars(type(policy))
    return declared.get("reads_rates", True) is not False


def load_policy(name: str, **options: Any) -> Policy:
    """Build policy `name` (a shipped name or `module:Class`) with keyword `options`.

    Raises PolicyError with the cause: unknown name, module that does not import, class without
    the interface, option it does not take.
    """
    policy = load_part("policy", name, SHIPPED, options)
    if not callable(policy) or not isinstance(getattr(policy, "name", None), str):
        raise PolicyError(
            f"policy {name!r}: {SHIPPED.get(name, name)} needs a `name` and to be callable as (event, state)"
        )
    return policy  # type: ignore[no-any-return]


def load_part(what: str, name: str, shipped: Mapping[str, str], options: Mapping[str, Any]) -> Any:
    """Build `name`, one of `shipped` or `module:Class`, with keyword `options`; `what` it is, for errors.

    Raises PolicyError.
    """
    factory = _factory(what, name, shipped)
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{what} {name!r} with {dict(options) or 'no options'}: {error}") from error
    except (Exception, SystemExit) as error:
        raise PolicyError(f"{what} {name!r} cannot be built: {_in_words(error)}") from error


def _in_words(error: BaseException) -> str:
    """The error in one line, with the line of the user's code for a syntax error."""
    return f"{type(error).__name__}: {error}".strip().replace("\n", " ")
