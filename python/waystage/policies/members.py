"""Policies made of policies: how their members are named, built and kept apart.

Arrives: entries of an options list. Leaves: built members; what each acts on.
Must not know: events, decisions.

A policy declares in `acts_on` what its actions set: `paths`, of flows `rate`, `mode`, `loaders`, `pause`, of collective
I/O `aggregators`, `grants`. Two that set the same would undo each other's answers for ever, so they cannot be combined.
A policy without the declaration cannot be a member.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from waystage.policies.base import Policy, PolicyError, load_policy, policy_factory

SETTINGS = frozenset({"paths", "rate", "mode", "loaders", "pause", "aggregators", "grants"})

MOST = 16
"""Members of one policy; a forecast of each costs time at every decision."""


def build(entry: object, given: Mapping[str, Any]) -> Policy:
    """A member from `name`, or `{name, options}`. `given` are options for members that take them. Raises ValueError."""
    if isinstance(entry, str):
        name, options = entry, {}
    elif (
        isinstance(entry, Mapping)
        and isinstance(entry.get("name"), str)
        and set(entry) <= {"name", "options"}
    ):
        name, options = entry["name"], dict(entry.get("options") or {})
    else:
        raise ValueError(f"{entry!r} is no policy: give a name, or a mapping of name and options")
    try:
        taken = inspect.signature(policy_factory(name)).parameters
        policy = load_policy(name, **{k: v for k, v in given.items() if k in taken} | options)
    except PolicyError as error:
        raise ValueError(str(error)) from None
    if acts_on(policy) is None:
        raise ValueError(
            f"{name} does not say what it acts on: give its class `acts_on`, a set of {', '.join(sorted(SETTINGS))}"
        )
    return policy


def acts_on(policy: Policy) -> frozenset[str] | None:
    """What a policy's actions set; None where it does not say."""
    declared = getattr(policy, "acts_on", None)
    return frozenset(declared) if isinstance(declared, set | frozenset) and declared <= SETTINGS else None


def build_all(entries: object, given: Mapping[str, Any]) -> tuple[Policy, ...]:
    """Members that act on different things. Raises ValueError."""
    if isinstance(entries, str) or not isinstance(entries, Sequence) or not 1 <= len(entries) <= MOST:
        raise ValueError(f"policies: give a list of 1 to {MOST} policies")
    members = tuple(build(entry, given) for entry in entries)
    seen: dict[str, str] = {}
    for member in members:
        for setting in sorted(acts_on(member) or ()):
            if setting in seen:
                raise ValueError(
                    f"{seen[setting]} and {member.name} both act on {setting}: combine policies that act on "
                    "different things"
                )
            seen[setting] = member.name
    return members
