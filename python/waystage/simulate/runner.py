"""All runs of a sweep: every combination of its lists with every seed.

Arrives: a loaded sweep, a folder, how many processes.
Leaves: the folder with a file for each run, results and report; what has finished stays, also after Ctrl-C.
Must not know: how a run is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from waystage.nodes import Engine
from waystage.simulate.combinations import Combination, combinations, count
from waystage.simulate.loading import Loaded
from waystage.simulate.on_nodes import by_nodes, in_processes
from waystage.simulate.records import FinishedRun
from waystage.simulate.report import write_report
from waystage.simulate.results import save
from waystage.simulate.store import Store
from waystage.task import Progress


def run(
    loaded: Loaded,
    folder: Path,
    progress: Progress,
    *,
    processes: int | None = None,
    nodes: tuple[Engine, Path] | None = None,
) -> None:
    """Make the runs that `folder` does not hold yet, then its results and report; these also after Ctrl-C.

    `nodes` are an engine that makes them on many nodes, and a directory that all these reach.
    """
    try:
        _make_missing(loaded, folder, progress, processes, nodes)
    except KeyboardInterrupt:
        write_report(loaded, folder, save(loaded, folder))
        raise
    write_report(loaded, folder, save(loaded, folder))


def _make_missing(
    loaded: Loaded,
    folder: Path,
    progress: Progress,
    processes: int | None,
    nodes: tuple[Engine, Path] | None,
) -> None:
    total = count(loaded)
    store = Store(folder, loaded)
    done = 0
    shares: dict[int, float] = {}

    def missing() -> Iterator[Combination]:
        nonlocal done
        for which in combinations(loaded):
            kept = store.get(which)
            # A run that failed is made again: the algorithm may have been fixed.
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
        shares[which.number] = min(at_s / loaded.sweep.duration, 1.0)
        progress(f"run {done + 1} of {total}", (done + sum(shares.values())) / total)

    if nodes is not None:
        engine, directory = nodes
        by_nodes(engine, loaded, folder, list(missing()), processes, progress, directory=directory)
        return
    in_processes(loaded, missing(), processes or min(os.cpu_count() or 1, total), finished, advanced)
