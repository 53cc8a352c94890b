"""All runs of a scenario: every combination of its lists with every seed.

Arrives: a loaded scenario, a folder, how many processes.
Leaves: the folder with a file for each run; what has finished stays, also after Ctrl-C.
Must not know: how results are shown.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from waystage.simulate.loading import Loaded
from waystage.simulate.one_run import Combination
from waystage.simulate.records import FinishedRun
from waystage.simulate.store import Store
from waystage.simulate.workers import Workers

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of the whole that is done, 0 to 1."""

MANY_RUNS = 100_000
"""More are made only where somebody has agreed to them."""


class TooManyRuns(ValueError):
    """A scenario whose product of lists is larger than anybody may have meant."""


def count(loaded: Loaded) -> int:
    """How many runs the scenario has."""
    lists = loaded.scenario.algorithms
    sizes = (lists.scheduler, lists.host_selector, lists.process_mapper, lists.router, loaded.scenario.seeds)
    total = len(loaded.scenario.topology)
    for size in sizes:
        total *= len(size)
    return total


def combinations(loaded: Loaded) -> Iterator[Combination]:
    """In the order of the file: topology, scheduler, host selector, process mapper, router, seed."""
    lists = loaded.scenario.algorithms
    sizes = (lists.scheduler, lists.host_selector, lists.process_mapper, lists.router)
    ranges = [range(len(loaded.scenario.topology)), *(range(len(size)) for size in sizes)]
    product = itertools.product(*ranges, loaded.scenario.seeds)
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
    """Raises TooManyRuns where nobody has agreed to so many."""
    total = count(loaded)
    if total > MANY_RUNS and not agreed:
        lists = loaded.scenario.algorithms
        factors = {
            "topologies": len(loaded.scenario.topology),
            "schedulers": len(lists.scheduler),
            "host selectors": len(lists.host_selector),
            "process mappers": len(lists.process_mapper),
            "routers": len(lists.router),
            "seeds": len(loaded.scenario.seeds),
        }
        shown = " x ".join(f"{n} {what}" for what, n in factors.items() if n > 1)
        raise TooManyRuns(
            f"{loaded.scenario.name} is {total:,} runs ({shown}): shorten its lists, or say --yes to make them all"
        )


def run(
    loaded: Loaded, folder: Path, progress: Progress, *, processes: int | None = None, agreed: bool = False
) -> None:
    """Make the runs that `folder` does not hold yet. Raises TooManyRuns."""
    check_size(loaded, agreed)
    total = count(loaded)
    store = Store(folder, loaded)
    done = 0
    shares: dict[int, float] = {}

    def missing() -> Iterator[Combination]:
        nonlocal done
        for which in combinations(loaded):
            kept = store.get(which)
            # A run that failed is made again: the algorithm may have been mended.
            if kept is not None and kept.status == "done":
                done += 1
            else:
                yield which

    def finished(which: Combination, run: FinishedRun) -> None:
        nonlocal done
        store.put(which, run)
        done += 1
        shares.pop(which.number, None)
        progress(f"run {done} of {total}", done / total)

    def advanced(which: Combination, at_s: float) -> None:
        shares[which.number] = min(at_s / loaded.scenario.duration, 1.0)
        progress(f"run {done + 1} of {total}", (done + sum(shares.values())) / total)

    workers = Workers(loaded, processes or min(os.cpu_count() or 1, total), loaded.scenario.limit_s)
    workers.run(missing(), finished, advanced)
