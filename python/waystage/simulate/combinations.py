"""The combinations of a sweep: every element of each of its lists with every other, with every seed.

Arrives: a loaded sweep.
Leaves: its combinations, in the order of the file.
Must not know: how a run is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from waystage.experiment.schema import Choice
from waystage.simulate.algorithms import Task
from waystage.simulate.loading import Loaded

MANY_RUNS = 100_000
"""More need the user's agreement."""


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """`number` counts from 1 in the order of the file; the rest are positions in its lists, and the seed."""

    number: int
    topology: int
    scheduler: int
    host_selector: int
    process_mapper: int
    router: int
    seed: int


class TooManyRuns(ValueError):
    """A sweep whose product of lists is larger than its author may have meant."""


def count(loaded: Loaded) -> int:
    """How many runs the sweep has."""
    lists = loaded.sweep.algorithms
    sizes = (lists.scheduler, lists.host_selector, lists.process_mapper, lists.router, loaded.sweep.seeds)
    total = len(loaded.sweep.topology)
    for size in sizes:
        total *= len(size)
    return total


def combinations(loaded: Loaded) -> Iterator[Combination]:
    """In the order of the file: topology, scheduler, host selector, process mapper, router, seed."""
    lists = loaded.sweep.algorithms
    sizes = (lists.scheduler, lists.host_selector, lists.process_mapper, lists.router)
    ranges = [range(len(loaded.sweep.topology)), *(range(len(size)) for size in sizes)]
    product = itertools.product(*ranges, loaded.sweep.seeds)
    for number, (topology, scheduler, selector, mapper, router, seed) in enumerate(product, start=1):
        yield Combination(
            number=number,
            topology=topology,
            scheduler=scheduler,
            host_selector=selector,
            process_mapper=mapper,
            router=router,
            seed=seed,
        )


def check_size(loaded: Loaded, agreed: bool) -> None:
    """Raises TooManyRuns for more than `MANY_RUNS` that were not agreed to."""
    total = count(loaded)
    if total > MANY_RUNS and not agreed:
        lists = loaded.sweep.algorithms
        factors = {
            "topologies": len(loaded.sweep.topology),
            "schedulers": len(lists.scheduler),
            "host selectors": len(lists.host_selector),
            "process mappers": len(lists.process_mapper),
            "routers": len(lists.router),
            "seeds": len(loaded.sweep.seeds),
        }
        shown = " x ".join(f"{n} {what}" for what, n in factors.items() if n > 1)
        raise TooManyRuns(
            f"{loaded.sweep.name} is {total:,} runs ({shown}): shorten its lists, or say --yes to make them all"
        )


def choice_of(loaded: Loaded, which: Combination, task: Task) -> Choice:
    """What the file says for `task`."""
    choices: tuple[Choice, ...] = getattr(loaded.sweep.algorithms, task)
    chosen: int = getattr(which, task)
    return choices[chosen]
