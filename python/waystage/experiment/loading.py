"""Read an experiment file of any kind and say precisely what is wrong with it.

Arrives: the path of a YAML file.
Leaves: an `Experiment` with its `Topology`, a `Sweep` or a `ContentionStudy`.
Must not know: how any world runs it.

An error reads `FILE:LINE: KEY: what is wrong and how to fix it`. `documents` checks the structure against `schema`,
`checks` what the schema cannot express (whether a node, policy or program exists). What a sweep names (topologies,
traces, algorithms) is checked by `simulate.loading`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from waystage.experiment import checks, documents, pfsim
from waystage.experiment.problems import ExperimentError, Problem
from waystage.experiment.schema import ContentionStudy, Experiment, Sweep
from waystage.experiment.units import MAX_BYTES
from waystage.topology import Topology

Kind = Literal["policies", "sweep", "contention"]
T = TypeVar("T")
Tree = dict[str, Any]


class _Form(NamedTuple):
    """How a kind is read: its struct, what a file of it is called, its main keys, where amounts in bytes stand."""

    struct: type[Any]
    what: str
    keys: str
    amounts: frozenset[str]
    most: int = MAX_BYTES


_FORMS: dict[Kind, _Form] = {
    "policies": _Form(
        Experiment,
        "an experiment",
        "name, topology, policies, jobs",
        frozenset(
            {
                "aggregator_bytes_per_s",
                "buffer",
                "bytes",
                "bytes_per_s",
                "memory",
                "message",
                "object_bytes",
                "tmpfs",
            }
        ),
    ),
    "sweep": _Form(
        Sweep,
        "a sweep",
        "duration, topology, algorithms, jobs",
        frozenset({"bytes", "stage_in", "stage_out"}),
        2**53,
    ),
    "contention": _Form(
        ContentionStudy,
        "a contention study",
        "name, contention, seeds",
        frozenset({"median", "largest", "stripe_size", "to"}),
    ),
}

_NO_NAME = (
    'names no policy, since YAML reads the word null as nothing: for the policy null write "null", in quotes'
)

_MARKS: dict[str, Kind] = {"algorithms": "sweep", "contention": "contention"}
"""The key by which a file without `kind` is recognised."""


def kind_of(path: Path) -> Kind:
    """The key `kind`, else the kind that the file's other keys belong to; `policies` also where it cannot be read."""
    try:
        document = documents.read(path, "an experiment", "")
    except ExperimentError:
        return "policies"
    return _kind(document)


def load(path: Path) -> tuple[Experiment, Topology]:
    """A comparison of policies and the topology that it names. Raises ExperimentError."""
    return load_as("policies", path, checks.check)


def load_contention(path: Path) -> ContentionStudy:
    """Raises ExperimentError."""
    return load_as("contention", path, checks.check_contention)


def load_as(kind: Kind, path: Path, check: Callable[[Any, Path], T]) -> T:
    """`check(experiment, folder of the file)` of the file as `kind`. Raises ExperimentError, also for its Problems."""
    form = _FORMS[kind]
    document = documents.read(path, form.what, form.keys)
    try:
        tree = documents.plain(document, documents.amounts(form.amounts, form.most))
        experiment = documents.convert(_normal(kind, tree, path), form.struct)
        return check(experiment, path.resolve().parent)
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None


def _kind(document: Mapping[str, Any]) -> Kind:
    given = document.get("kind")
    if given in _FORMS:
        return given  # type: ignore[no-any-return]
    return next((kind for mark, kind in _MARKS.items() if mark in document), "policies")


def _normal(kind: Kind, tree: Tree, path: Path) -> Tree:
    """Short spellings written out."""
    if kind == "policies":
        policies = tree.get("policies")
        if isinstance(policies, list):
            for index, item in enumerate(policies):
                if item is None or (isinstance(item, dict) and item.get("name", "") is None):
                    raise Problem(("policies", index), _NO_NAME)
            tree["policies"] = [{"name": item} if isinstance(item, str) else item for item in policies]
        return tree
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:64]
    tree = {"name": name or kind, **tree}
    return pfsim.translate(tree) if kind == "sweep" else tree
