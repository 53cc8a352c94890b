"""The study file: what it may hold, and what is wrong with it.

Arrives: the path of a YAML file with the key `contention`.
Leaves: `ContentionStudy`.
Must not know: how a study is run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from waystage.experiment import documents
from waystage.experiment.problems import Key, Problem
from waystage.experiment.schema import Name
from waystage.experiment.units import parse_bytes

_KEYS = "name, contention, seeds"

MOST_LOADERS = 1 << 20
"""A million loaders: more than any machine has cores."""

Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Bytes = Annotated[int, Meta(ge=1)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Unknown keys are errors."""


class Sizes(_Part, frozen=True, kw_only=True):
    """File sizes: lognormal around `median`, `sigma` of the logarithm, none larger than `largest`."""

    median: Bytes
    sigma: Annotated[float, Meta(ge=0, le=10)]
    largest: Bytes


class LayoutPart(_Part, frozen=True, kw_only=True):
    """Up to `to` bytes of a file (none: the rest) over so many targets."""

    stripes: Annotated[int, Meta(ge=1)] | Literal["all"]
    to: Bytes | None = None


class Contention(_Part, frozen=True, kw_only=True):
    """The model; `slowdown` lists (loaders on a target, time of an object relative to one loader alone)."""

    targets: Annotated[int, Meta(ge=2, le=65535)]
    files: Annotated[int, Meta(ge=1, le=100_000_000)]
    sizes: Sizes
    stripe_size: Bytes = 1 << 20
    layout: Annotated[tuple[LayoutPart, ...], Meta(min_length=1)]
    ratios: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(min_length=1)]
    slowdown: Annotated[tuple[tuple[float, float], ...], Meta(min_length=1)]
    dealing: Literal["queue", "cyclic"] = "queue"


class ContentionStudy(_Part, frozen=True, kw_only=True):
    """A study: the model, and a seed for each of its repetitions."""

    name: Name = "contention"
    description: str = ""
    contention: Contention
    seeds: Annotated[tuple[Seed, ...], Meta(min_length=1)] = (1,)


def load(path: Path) -> ContentionStudy:
    """Raises ExperimentError with file, line and key."""
    document = documents.read(path, "a contention study", _KEYS)
    try:
        tree = documents.plain(document, _amounts)
        study = documents.convert(tree, ContentionStudy)
        if "name" not in tree:
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:64]
            study = msgspec.structs.replace(study, name=name or "contention")
        _check(study.contention)
        return study
    except Problem as problem:
        raise documents.complaint(path, document, problem) from None


def _amounts(key: Key, value: Any) -> Any:
    """`4 MiB` where bytes are meant."""
    if key[-1:] and key[-1] in ("median", "largest", "stripe_size", "to") and value is not None:
        try:
            return parse_bytes(value)
        except ValueError as error:
            raise Problem(key, str(error)) from None
    return value


def _check(model: Contention) -> None:
    """What msgspec cannot know. Raises Problem."""
    key: Key = ("contention",)
    ends = [part.to for part in model.layout]
    if ends[-1] is not None:
        raise Problem((*key, "layout"), "ends before the largest files do: let the last part have no `to`")
    previous = 0
    for i, end in enumerate(ends[:-1]):
        if end is None or end <= previous:
            raise Problem(
                (*key, "layout", i), "each part but the last needs a `to` larger than the one before"
            )
        previous = end
    if any(a >= b for a, b in zip(model.ratios, model.ratios[1:], strict=False)):
        raise Problem((*key, "ratios"), "must rise: list each ratio once, the smallest first")
    if model.ratios[-1] * model.targets > MOST_LOADERS:
        raise Problem(
            (*key, "ratios"),
            f"{model.ratios[-1]} loaders a target are more than {MOST_LOADERS:,} in all: give less",
        )
    if model.ratios[-1] * model.targets > model.files:
        raise Problem((*key, "files"), "are fewer than the loaders of the largest ratio: give more files")
    if model.sizes.largest < model.sizes.median:
        raise Problem((*key, "sizes", "largest"), "is smaller than the median: give a larger one")
    for i, (loaders, slowdown) in enumerate(model.slowdown):
        if slowdown < 1:
            raise Problem((*key, "slowdown", i), f"a slowdown of {slowdown:g} is none: give 1 or more")
        if i and loaders <= model.slowdown[i - 1][0]:
            raise Problem((*key, "slowdown", i), "loaders must rise from point to point")
