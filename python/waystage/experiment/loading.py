"""Read an experiment file and say precisely what is wrong with it.

Arrives: the path of a YAML file.
Leaves: an `Experiment` that a world can run, and its `Topology`.
Must not know: how any world runs it.

An error reads `FILE:LINE: KEY: what is wrong and how to mend it`. The structure is checked against `schema` by
`documents`; what that cannot know (is there such a node, policy, program) is checked in `checks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from waystage.experiment import checks, documents
from waystage.experiment.problems import Key, Problem
from waystage.experiment.schema import Experiment
from waystage.experiment.units import parse_bytes
from waystage.topology import Topology

_BYTE_KEYS = frozenset({"bytes", "message", "tmpfs"})


def load(path: Path) -> tuple[Experiment, Topology]:
    """The experiment in `path` and the topology it names. Raises ExperimentError."""
    document = documents.read(path, "an experiment", "name, topology, policies, jobs")
    try:
        experiment = documents.convert(documents.plain(document, _spell_out), Experiment)
        return checks.check(experiment, path.resolve().parent)
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None


def _spell_out(key: Key, value: Any) -> Any:
    """Amounts in bytes, and bare policy names as mappings."""
    if isinstance(value, list):
        if key == ("policies",):
            return [{"name": item} if isinstance(item, str) else item for item in value]
        return value
    if key and key[-1] in _BYTE_KEYS and "options" not in key:
        try:
            return parse_bytes(value)
        except ValueError as error:
            raise Problem(key, str(error)) from None
    return value
